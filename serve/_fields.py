"""The fields of a class of jobs or a handler, as a client may fill them."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, cast, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.json_schema import PydanticJsonSchemaWarning

from ..commander.errors import ConfigurationError
from ..store import Live

__all__ = ["BadQuestion", "Field", "fields_of"]

# What marks a field that whoever starts a run of a journal brings.
LIVE = cast("Any", Live).__metadata__


class BadQuestion(Exception):
    """A client asks for what is not offered; `field` is what it names, `text` is told to it."""

    def __init__(self, text: str, field: str | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.field = field


@dataclass(frozen=True, slots=True)
class Field:
    """One field; `takes_text` says that what a user says may be its value.

    `hint` is its type as it is annotated, `default` what it has if nothing is given, unless it is
    `needed`.
    """

    name: str
    type: TypeAdapter[Any]
    needed: bool
    takes_text: bool
    hint: Any = Any
    default: Any = None

    @property
    def about(self) -> str:
        """What its annotation says that it is for."""
        return str(self.type.json_schema().get("description", ""))

    def read(self, value: object) -> Any:
        """Check a value; raise `BadQuestion` with what is wrong."""
        try:
            return self.type.validate_python(value)
        except ValidationError as error:
            raise self._wrong(error) from None

    def read_text(self, text: str) -> Any:
        """Check a value that a person has written: by its type, else as JSON; as `read` raises."""
        try:
            return self.type.validate_strings(text)
        except ValidationError as as_text:
            try:
                return self.type.validate_json(text)
            except ValidationError:
                raise self._wrong(as_text) from None

    def _wrong(self, error: ValidationError) -> BadQuestion:
        why = error.errors(include_url=False, include_input=False)[0]["msg"]
        return BadQuestion(f"{self.name!r}: {why}", "fields")


def fields_of(make: Callable[..., Any], name: str) -> list[Field]:
    """Return what a client may give: all that has a type of which JSON can hold a value.

    What can only be made in Python keeps its default, and so does what begins with an underscore.
    Raises `ConfigurationError` for one that has none, and for annotations that cannot be read.
    """
    given = [*inspect.signature(make).parameters.values()]
    if not isinstance(make, type):
        given = given[1:]  # a handler's own node
    hints = _hints(make, name)
    fields: list[Field] = []
    for each in given:
        if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            continue
        hint = hints.get(each.name, Any)
        is_live = get_origin(hint) is Annotated and hint.__metadata__ == LIVE
        needed = each.default is each.empty or is_live
        named = each.kind is not each.POSITIONAL_ONLY and not each.name.startswith("_")
        offered = named and not is_live
        adapter = _adapter(hint) if offered else None
        if adapter is not None:
            takes_text = _takes_text(adapter)
            fields.append(Field(each.name, adapter, needed, takes_text, hint, each.default))
        elif needed:
            raise ConfigurationError(
                f"{name} cannot be served: its field {each.name!r} has a type of which no client"
                " can send a value; give it a default, or serve a handler that fills it"
            )
    return fields


def _hints(make: Callable[..., Any], name: str) -> Mapping[str, Any]:
    source: Any = make
    if isinstance(make, type) and cast("Any", make)._node_own_init:
        source = cast("Any", make).__init__
    try:
        return get_type_hints(inspect.unwrap(source), include_extras=True)
    except Exception as error:  # whatever stands in a user's annotations
        raise ConfigurationError(
            f"{name} cannot be served: its annotations cannot be read ({error})"
        ) from error


def _adapter(hint: Any) -> TypeAdapter[Any] | None:
    """Return what checks values of a type; None if JSON can hold none."""
    try:
        with warnings.catch_warnings():
            # Of a choice, as `Callable | None`, pydantic would offer what is left of it.
            warnings.simplefilter("error", PydanticJsonSchemaWarning)
            adapter: TypeAdapter[Any] = TypeAdapter(hint)
            adapter.json_schema()
    except (PydanticUserError, PydanticJsonSchemaWarning, NameError, TypeError):
        return None
    return adapter


def _takes_text(adapter: TypeAdapter[Any]) -> bool:
    try:
        adapter.validate_python("text")
    except ValidationError as error:
        # A text of some kinds, as a date or a word of a list, is one that a user may say.
        return not all(each["type"].endswith("_type") for each in error.errors())
    return True
