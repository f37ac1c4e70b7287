"""What a person has chosen for all chats: a small file of JSON, which may be edited by hand."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ...backends.limits import Price
from ...commander import ConfigurationError
from ...messages.whole import write_whole

__all__ = ["Settings"]


class Settings(BaseModel):
    """The choices, and where they are kept.

    `theme` is "dark", "light" or "none"; `prices` what models cost, for a million tokens:
    `{"gpt-5-mini": [0.25, 2.0]}`, input and output.
    """

    model_config = ConfigDict(extra="forbid")

    theme: Literal["dark", "light", "none"] = "dark"
    prices: dict[str, tuple[float, float]] = Field(default_factory=dict[str, tuple[float, float]])

    @property
    def priced(self) -> dict[str, Price]:
        """The prices as limits and traces take them."""
        return {model: Price(*each) for model, each in self.prices.items()}

    @classmethod
    def load(cls) -> Settings:
        """Read the file, if there is one; raise `ConfigurationError` for one that is wrong."""
        path = cls.path()
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError:
            return cls()
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ConfigurationError(
                f"{path}: {where}: {first['msg']}; mend or remove it"
            ) from None

    @staticmethod
    def path() -> Path:
        """Return where the file is."""
        from platformdirs import user_config_path

        return user_config_path("anabranch") / "chat.json"

    def save(self, **changes: Any) -> None:
        """Change some, here and in the file; where that cannot be written, only here."""
        for name, value in changes.items():
            setattr(self, name, value)
        path = self.path()
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            kept: dict[str, Any] = {}
            with suppress(OSError, ValueError):
                kept = cast("dict[str, Any]", json.loads(path.read_bytes()))
            write_whole(path, json.dumps({**kept, **changes}, indent=2) + "\n")
