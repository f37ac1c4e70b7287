"""Make a job from text: FIELD=VALUE on the command line, or a message in the chat."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from inspect import Parameter
from typing import Any, TypeAlias, cast

from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError

from ..commander import AnabranchError, ConfigurationError, Node
from ..jobs.fields import Field, InvalidValue, hints_of, parameters_of, read_text
from ..messages.mask import mask
from ._output import one_line
from ._user_code import import_named

__all__ = ["AskLine", "FieldMissing", "MakeNode", "fill_fields", "find_work"]

MakeNode: TypeAlias = Callable[[], Any]
"""Returns a node, or an awaitable. Call it inside the commander's block."""

AskLine: TypeAlias = Callable[[str], Awaitable[str | None]]
"""Shows a prompt of one or more lines. Returns the user's line, or None for no answer."""

MAX_VALUE_CHARS = 200  # of a value, a type, a description, and an error


def find_work(place: str, assignments: Sequence[str]) -> MakeNode:
    """Import the object at `place`, a `module:name`, and fill its fields from FIELD=VALUE texts.

    It may be a job class, a `@handler` function, an agent, an async function, a function that
    returns one of these, or a job. Raises `ConfigurationError`, which lists the fields.
    """
    found = import_named(place, place)
    if isinstance(found, Node):
        if assignments:
            raise ConfigurationError(f"{place} is a job object, not a class, so it takes no fields")
        job = cast("Node[Any]", found)
        return lambda: job
    make = cast("Any", found) if callable(found) else None
    needed: Sequence[str] = ()
    if hasattr(found, "call"):
        from ..agents import Agent  # a slow import, needed only where an agent exists

        if isinstance(found, Agent):
            make = cast("Any", found).call
            needed = ("messages",)  # without one the model would answer nothing
    if make is None:
        raise ConfigurationError(
            f"{place} is a {type(cast('object', found)).__name__}. Name a job class, a @handler"
            " function, or a function that returns a job"
        )
    args, kwargs = _read_arguments(place, make, assignments, needed)
    return lambda: make(*args, **kwargs)


def _read_arguments(
    place: str, make: Any, assignments: Sequence[str], needed: Sequence[str]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the positional and keyword arguments for `make` from FIELD=VALUE texts.

    A field in `needed` must be given although the signature does not require it.
    """
    try:
        parameters = [each for each in parameters_of(make) if each.kind != each.VAR_KEYWORD]
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"{place} has no readable signature, so its fields are unknown"
        ) from None
    try:
        hints = hints_of(make)
    except Exception:  # noqa: BLE001 - annotations are a user's code
        hints = dict[str, Any]()
    fields = {each.name: each for each in parameters}

    def make_error(reason: str) -> ConfigurationError:
        listed = ", ".join(_describe_parameter(each, hints) for each in parameters)
        takes = f"takes {listed}" if listed else "takes no fields"
        return ConfigurationError(f"{reason}; {place} {takes}")

    values: dict[str, Any] = {}
    for each in assignments:
        name, equals, text = each.partition("=")
        if not equals:
            raise make_error(f"{one_line(mask(each), MAX_VALUE_CHARS)!r} is not FIELD=VALUE")
        if name not in fields:
            close = get_close_matches(name, fields, n=1)
            hint = f": did you mean {close[0]}?" if close else ""
            raise make_error(f"unknown field {one_line(name, MAX_VALUE_CHARS)!r}{hint}")
        if name in values:
            raise make_error(f"the field {name} is given twice")
        kind = hints.get(name, Any)
        try:
            values[name] = read_text(TypeAdapter(kind), text)
        except PydanticUserError:  # also `PydanticSchemaGenerationError`
            raise make_error(
                f"the field {name} is a {name_of_type(kind)}, which cannot be written as text. Name"
                " a function that returns the job instead"
            ) from None
        except InvalidValue as error:
            shown, why = (
                one_line(mask({name: text})[name], MAX_VALUE_CHARS),
                one_line(f"{error}", MAX_VALUE_CHARS),
            )
            raise make_error(
                f"{name}={shown!r} is not a valid {name_of_type(kind)}: {why}"
            ) from None
    missing = [
        each.name
        for each in parameters
        if each.name not in values
        and (
            each.name in needed or (each.default is each.empty and each.kind != each.VAR_POSITIONAL)
        )
    ]
    if missing:
        raise make_error(f"missing: {', '.join(missing)}")
    args = [
        values.pop(each.name)
        for each in parameters
        if each.kind in (each.POSITIONAL_ONLY, each.VAR_POSITIONAL) and each.name in values
    ]
    return args, values


def _describe_parameter(each: Parameter, hints: Mapping[str, Any]) -> str:
    described = f"{each.name}: {name_of_type(hints.get(each.name, Any))}"
    if each.default is Parameter.empty or each.kind == each.VAR_POSITIONAL:
        return described
    return f"{described} = {_show(each.name, each.default)}"


def _show(name: str, value: Any) -> str:
    """Return the repr of a value, masked if `name` is a name for secrets."""
    try:
        return one_line(str(mask({name: repr(value)})[name]), 60)
    except Exception:  # noqa: BLE001 - a user's repr
        return "..."


def name_of_type(kind: Any) -> str:
    """Return a type as the user's annotation shows it."""
    if isinstance(kind, type) and not getattr(kind, "__args__", ()):
        return kind.__name__
    return one_line(str(kind).replace("typing.", ""), MAX_VALUE_CHARS)


# --- fields from a message of the chat


class FieldMissing(AnabranchError):
    """A job did not start because one of its fields has no value."""


async def fill_fields(
    fields: Sequence[Field], message: str, last: Mapping[str, Any], ask: AskLine | None
) -> dict[str, Any]:
    """Return the fields' values from the user's message; ask for the others until each is valid.

    The message is either a JSON object of fields, or the value of the first field that accepts it;
    required fields are tried first. The user is asked if a required field is missing or if no field
    accepts the message. An empty line takes the value in `last`, or the default. Raises
    `FieldMissing` if the user gives no answer, or if `ask` is None.
    """
    given, wrong = _read_message(fields, message)
    values = given or {}
    missing = [each for each in fields if each.name not in values]
    if given is not None and not wrong and not any(each.needed for each in missing):
        return values
    for each in missing:
        if ask is not None:
            await _ask_for(each, values, last, ask, wrong)
            wrong = ""
        elif each.needed:
            takes = ", ".join(map(_describe_field, fields))
            why = f"{wrong}; " if wrong else ""
            raise FieldMissing(
                f"{why}{each.name} is missing. Write a JSON object with these fields: {takes}"
            )
    return values


async def _ask_for(
    field: Field, values: dict[str, Any], last: Mapping[str, Any], ask: AskLine, wrong: str
) -> None:
    """Ask until the value is valid; add it unless it is the default."""
    question = f"{_describe_field(field, last)}: "
    while True:
        written = await ask(f"{wrong}\n{question}" if wrong else question)
        if written is None:
            raise FieldMissing(f"{field.name} is missing, so the job did not start")
        if not written.strip() and field.name in last:
            values[field.name] = last[field.name]
            return
        if not written.strip() and not field.needed:
            return
        try:
            values[field.name] = read_text(field.type, written)
        except InvalidValue as error:
            wrong = _name_problem(field, error)
        else:
            return


def _read_message(fields: Sequence[Field], message: str) -> tuple[dict[str, Any] | None, str]:
    """Return the values in a message, or None if no field accepts it, and the errors in them."""
    found: dict[str, Any] | None = None
    if message.lstrip().startswith("{"):  # other JSON, such as a number, is the value of a field
        with suppress(ValueError, RecursionError):
            found = json.loads(message)
    if found is not None and found.keys() <= {each.name for each in fields}:
        values, wrong = dict[str, Any](), list[str]()
        for each in fields:
            try:
                if each.name in found:
                    values[each.name] = each.read(found[each.name])
            except InvalidValue as error:
                wrong.append(_name_problem(each, error))
        return values, "; ".join(wrong)
    if not fields:
        return {}, ""
    takers = [each for each in fields if each.needed or each.takes_text]
    for each in sorted(takers, key=lambda each: (not each.needed, not each.takes_text)):
        with suppress(InvalidValue):
            read = each.read(message) if each.takes_text else read_text(each.type, message)
            return {each.name: read}, ""
    return None, ""


def _name_problem(field: Field, error: InvalidValue) -> str:
    return one_line(f"{field.name!r}: {error}", MAX_VALUE_CHARS)


def _describe_field(field: Field, last: Mapping[str, Any] | None = None) -> str:
    known = [name_of_type(field.hint)]
    if last is not None and field.name in last:
        known.append(f"now {_show(field.name, last[field.name])}")
    elif not field.needed:
        known.append(f"default {_show(field.name, field.default)}")
    about = f" - {one_line(field.about, MAX_VALUE_CHARS)}" if field.about else ""
    return f"{field.name} ({', '.join(known)}){about}"
