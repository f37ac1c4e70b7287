"""The fields of a job class or a handler, and their values from JSON or text."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, cast, get_type_hints

from pydantic import TypeAdapter, ValidationError

from ..handlers import HandlerFunction

__all__ = ["Field", "InvalidValue", "hints_of", "parameters_of", "read_text"]


class InvalidValue(ValueError):
    """A value does not fit its field's type. The message has the reason, without the value."""

    def __init__(self, error: ValidationError) -> None:
        super().__init__(error.errors(include_url=False, include_input=False)[0]["msg"])


@dataclass(frozen=True, slots=True)
class Field:
    """A field. `takes_text`: its type accepts some texts. `hint`: its annotation."""

    name: str
    type: TypeAdapter[Any]
    needed: bool
    takes_text: bool
    hint: Any = Any
    default: Any = None

    @property
    def about(self) -> str:
        """The description in its annotation."""
        return str(self.type.json_schema().get("description", ""))

    def read(self, value: object) -> Any:
        """Return the validated value; raise `InvalidValue` if it does not fit."""
        try:
            return self.type.validate_python(value)
        except ValidationError as error:
            raise InvalidValue(error) from None


def read_text(type: TypeAdapter[Any], text: str) -> Any:  # noqa: A002 - as in `Field`
    """Return the value of a text that a person wrote: as its type reads text, or else as JSON.

    Raises `InvalidValue`.
    """
    try:
        return type.validate_strings(text)
    except ValidationError as as_text:
        try:
            return type.validate_json(text)
        except ValidationError:
            raise InvalidValue(as_text) from None


def parameters_of(make: Any) -> list[inspect.Parameter]:
    """Return the parameters of a class or a function; of a handler without its node.

    Raises `TypeError` or `ValueError` for an object without a signature.
    """
    parameters = [*inspect.signature(make).parameters.values()]
    return parameters[1:] if isinstance(make, HandlerFunction) else parameters


def hints_of(make: Any) -> dict[str, Any]:
    """Return the types of these parameters. Errors of a user's annotations are raised."""
    if isinstance(make, type):
        kind = cast("Any", make)
        if getattr(kind, "_node_own_init", False) or not getattr(kind, "__dataclass_fields__", {}):
            make = kind.__init__
    return get_type_hints(inspect.unwrap(make), include_extras=True)
