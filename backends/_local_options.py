"""The wire's options, as the local model takes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..commander.errors import ConfigurationError
from ..messages.text import quote
from ._local_model import Sampling

__all__ = ["Options", "read_options"]

_SAMPLING = frozenset(Sampling.__dataclass_fields__) - {"schema"}
_KNOWN = _SAMPLING | {"response_format", "tool_choice"}


@dataclass(frozen=True, slots=True)
class Options:
    """`tool_choice` is `auto`, `none`, `required`, or the wire's object that names a function."""

    sampling: Sampling
    tool_choice: str | Mapping[str, Any] = "auto"


def read_options(options: Mapping[str, Any]) -> Options:
    """Read the wire's options; None stands for the default.

    Raises `ConfigurationError` if there is one that is not known.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if unknown := given.keys() - _KNOWN:
        raise ConfigurationError(
            f"the local model has no option {', '.join(sorted(unknown))};"
            f" it has {', '.join(sorted(_KNOWN))}"
        )
    choice = _tool_choice(given.pop("tool_choice", "auto"))
    schema = _schema(given.pop("response_format", {"type": "text"}))
    stop = _stop(given.pop("stop", ()))
    return Options(Sampling(stop=stop, schema=schema, **given), choice)


def _stop(given: Any) -> tuple[str, ...]:
    match given:
        case str():
            return (given,)
        case [*texts] if all(isinstance(text, str) for text in texts):
            return tuple(texts)
        case _:
            raise ConfigurationError(f"stop {quote(given)}: expected a text or a list of texts")


def _tool_choice(given: Any) -> str | Mapping[str, Any]:
    match given:
        case "auto" | "none" | "required" | {"function": {"name": str()}}:
            return given
        case _:
            raise ConfigurationError(
                f"tool_choice {quote(given)}: expected 'auto', 'none', 'required' or"
                " {'type': 'function', 'function': {'name': ...}}"
            )


def _schema(response_format: Any) -> str | None:
    match response_format:
        case {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return json.dumps({"type": "object"})
        case {"type": "json_schema", "json_schema": {"schema": schema}}:
            try:
                return json.dumps(schema, allow_nan=False)
            except (TypeError, ValueError, RecursionError) as error:
                raise ConfigurationError(
                    f"response_format: its schema is no JSON: {error}"
                ) from None
        case _:
            raise ConfigurationError(
                f"response_format {quote(response_format)}: expected the type text, json_object or"
                " json_schema with its schema"
            )
