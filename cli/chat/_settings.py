"""The person's settings for all chats, in a JSON file that can be edited by hand."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ...backends.limits import Price
from ...commander import ConfigurationError
from ...files.replacing import replace_private_file

__all__ = ["Settings"]


class Settings(BaseModel):
    """The content of the settings file.

    `prices` are the costs of a million input and output tokens: `{"gpt-5-mini": [0.25, 2.0]}`.
    """

    model_config = ConfigDict(extra="forbid")

    theme: Literal["dark", "light", "none"] = "dark"
    prices: dict[str, tuple[float, float]] = Field(default_factory=dict[str, tuple[float, float]])

    @property
    def priced(self) -> dict[str, Price]:
        """The prices as limits and traces need them."""
        return {model: Price(*each) for model, each in self.prices.items()}

    @classmethod
    def load(cls) -> Settings:
        """Read the file if it exists; raise `ConfigurationError` if it is invalid."""
        path = cls.path()
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError:
            return cls()
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ConfigurationError(
                f"{path}: {where}: {first['msg']}. Repair or remove the file"
            ) from None

    @staticmethod
    def path() -> Path:
        """Return the path of the file."""
        from platformdirs import user_config_path

        return user_config_path("anabranch") / "chat.json"

    def save(self, **changes: Any) -> None:
        """Change settings in this object and in the file, if it can be written."""
        for name, value in changes.items():
            setattr(self, name, value)
        path = self.path()
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            stored: dict[str, Any] = {}
            with suppress(OSError, ValueError):
                stored = cast("dict[str, Any]", json.loads(path.read_bytes()))
            replace_private_file(path, json.dumps({**stored, **changes}, indent=2) + "\n")
