"""Options of chat completions, as the local model takes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..commander.errors import ConfigurationError
from ..messages.text import quote

__all__ = ["Options", "Sampling", "read_options"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw tokens. With `schema` (JSON text) the reply is JSON that follows it."""

    max_tokens: int = 512
    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    schema: str | None = None


_SAMPLING_NAMES = frozenset(Sampling.__dataclass_fields__) - {"schema"}
_OPTION_NAMES = _SAMPLING_NAMES | {"response_format", "tool_choice"}


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a request.

    `tool_choice` is `auto`, `none`, `required`, or an object that names a function.
    """

    sampling: Sampling
    tool_choice: str | Mapping[str, Any] = "auto"


def read_options(options: Mapping[str, Any]) -> Options:
    """Return a request's options; None stands for the default.

    Raises `ConfigurationError` for an unknown one.
    """
    values = {name: value for name, value in options.items() if value is not None}
    if unknown := values.keys() - _OPTION_NAMES:
        raise ConfigurationError(
            f"the local model has no option {', '.join(sorted(unknown))};"
            f" it has {', '.join(sorted(_OPTION_NAMES))}"
        )
    match choice := values.pop("tool_choice", "auto"):
        case "auto" | "none" | "required" | {"function": {"name": str()}}:
            pass
        case _:
            raise ConfigurationError(
                f"tool_choice={quote(choice)}: it must be 'auto', 'none', 'required' or"
                " {'type': 'function', 'function': {'name': ...}}"
            )
    match response_format := values.pop("response_format", {"type": "text"}):
        case {"type": "text"}:
            schema = None
        case {"type": "json_object"}:
            schema = json.dumps({"type": "object"})
        case {"type": "json_schema", "json_schema": {"schema": obeyed}}:
            try:
                schema = json.dumps(obeyed, allow_nan=False)
            except (TypeError, ValueError, RecursionError) as error:
                text = f"the schema of response_format is not JSON: {error}"
                raise ConfigurationError(text) from None
        case _:
            raise ConfigurationError(
                f"response_format={quote(response_format)}: its type must be text, json_object, or"
                " json_schema with a schema"
            )
    match stop := values.pop("stop", ()):
        case str():
            stop = (stop,)
        case [*texts] if all(isinstance(text, str) for text in texts):
            stop = tuple(texts)
        case _:
            raise ConfigurationError(f"stop={quote(stop)}: it must be a text or a list of texts")
    return Options(Sampling(stop=stop, schema=schema, **values), choice)
