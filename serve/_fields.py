"""The fields of a class of jobs or a handler that a client may fill."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Annotated, Any, cast, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.json_schema import PydanticJsonSchemaWarning

from ..commander.errors import ConfigurationError
from ..jobs.fields import Field, hints_of, parameters_of
from ..store import Live

__all__ = ["BadQuestion", "fields_of"]

# The mark of a field that the caller supplies at each start of a durable run.
LIVE = cast("Any", Live).__metadata__


class BadQuestion(Exception):
    """A client asks for something that is not offered: `text` says what, `field` names where."""

    def __init__(self, text: str, field: str | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.field = field


def fields_of(make: Callable[..., Any], name: str) -> list[Field]:
    """Return the parameters that a client may give: all whose values JSON can have.

    Others keep their defaults, and so do those whose names begin with an underscore. Raises
    `ConfigurationError` for one without a default, and for annotations that cannot be read.
    """
    try:
        hints = hints_of(make)
    except Exception as error:  # annotations are a user's code
        raise ConfigurationError(
            f"{name} cannot be served: its annotations cannot be read ({error})"
        ) from error
    fields: list[Field] = []
    for each in parameters_of(make):
        if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            continue
        hint = hints.get(each.name, Any)
        is_live = get_origin(hint) is Annotated and hint.__metadata__ == LIVE
        needed = each.default is each.empty or is_live
        named = each.kind is not each.POSITIONAL_ONLY and not each.name.startswith("_")
        adapter = _adapter(hint) if named and not is_live else None
        if adapter is not None:
            takes_text = _takes_text(adapter)
            fields.append(Field(each.name, adapter, needed, takes_text, hint, each.default))
        elif needed:
            raise ConfigurationError(
                f"{name} cannot be served: JSON has no values for its field {each.name!r}; give it"
                " a default, or serve a handler that fills it"
            )
    return fields


def _adapter(hint: Any) -> TypeAdapter[Any] | None:
    """Return the validator of a type; None if JSON has no values of it."""
    try:
        with warnings.catch_warnings():
            # Else pydantic would accept a part of a union, as None of `Callable | None`.
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
        # Other errors mean that it takes some texts: a date, or one of several words.
        return not all(each["type"].endswith("_type") for each in error.errors())
    return True
