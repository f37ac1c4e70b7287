"""Jobs that a user names as `module:attribute`, and their fields, which the user writes as text."""

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
from ._named import import_named
from ._terminal import in_line

__all__ = ["AskLine", "FieldMissing", "Work", "fill", "find_work"]

Work: TypeAlias = Callable[[], Any]
"""Makes a node, or an awaitable; call it inside the commander's block."""

AskLine: TypeAlias = Callable[[str], Awaitable[str | None]]
"""Shows a prompt, which may have several lines, and returns the user's line, or None."""

MAX_CHARS = 200  # of a value, a type, a description, and an error


def find_work(place: str, given: Sequence[str]) -> Work:
    """Find the object at `place`, and fill its fields from texts FIELD=VALUE.

    It is a class of jobs, a `@handler` function, an agent, a function that returns one of them or
    is async, or a job that exists already. Raises `ConfigurationError`, which lists the fields.
    """
    found = import_named(place, place)
    if isinstance(found, Node):
        if given:
            raise ConfigurationError(f"{place} is a job that is already made: it takes no fields")
        job = cast("Node[Any]", found)
        return lambda: job
    make = cast("Any", found) if callable(found) else None
    if hasattr(found, "call"):
        from ..agents import Agent  # a slow import, needed only where an agent exists

        if isinstance(found, Agent):
            make = cast("Any", found).call
    if make is None:
        raise ConfigurationError(
            f"{place} is a {type(cast('object', found)).__name__}: name a class of jobs, a @handler"
            " function, or a function that makes a job"
        )
    args, kwargs = _read_arguments(place, make, given)
    return lambda: make(*args, **kwargs)


def _read_arguments(
    place: str, make: Any, given: Sequence[str]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments that FIELD=VALUE texts give to a class or a function."""
    try:
        parameters = [each for each in parameters_of(make) if each.kind != each.VAR_KEYWORD]
    except (TypeError, ValueError):
        raise ConfigurationError(f"{place} does not say what it takes") from None
    try:
        hints = hints_of(make)
    except Exception:  # noqa: BLE001 - annotations are a user's code
        hints = dict[str, Any]()
    fields = {each.name: each for each in parameters}

    def wrong(what: str) -> ConfigurationError:
        listed = ", ".join(_describe_parameter(each, hints) for each in parameters)
        takes = f"takes {listed}" if listed else "takes no fields"
        return ConfigurationError(f"{what}; {place} {takes}")

    values: dict[str, Any] = {}
    for each in given:
        name, equals, text = each.partition("=")
        if not equals:
            raise wrong(f"{in_line(mask(each), MAX_CHARS)!r} is not FIELD=VALUE")
        if name not in fields:
            close = get_close_matches(name, fields, n=1)
            hint = f": did you mean {close[0]}?" if close else ""
            raise wrong(f"there is no field {in_line(name, MAX_CHARS)!r}{hint}")
        if name in values:
            raise wrong(f"the field {name} is given twice")
        kind = hints.get(name, Any)
        try:
            values[name] = read_text(TypeAdapter(kind), text)
        except PydanticUserError:  # also `PydanticSchemaGenerationError`
            raise wrong(
                f"the field {name} is a {name_of_type(kind)}, which cannot be written here: name a"
                " function that makes the job instead"
            ) from None
        except InvalidValue as error:
            shown, why = (
                in_line(mask({name: text})[name], MAX_CHARS),
                in_line(f"{error}", MAX_CHARS),
            )
            raise wrong(f"{name}={shown!r} is no {name_of_type(kind)}: {why}") from None
    missing = [
        each.name
        for each in parameters
        if each.default is each.empty
        and each.kind != each.VAR_POSITIONAL
        and each.name not in values
    ]
    if missing:
        raise wrong(f"missing: {', '.join(missing)}")
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
    """Return a value as Python writes it, masked if its name is that of a secret."""
    try:
        return in_line(str(mask({name: repr(value)})[name]), 60)
    except Exception:  # noqa: BLE001 - a user's repr
        return "..."


def name_of_type(kind: Any) -> str:
    """Return a type as its user has written it."""
    if isinstance(kind, type) and not getattr(kind, "__args__", ()):
        return kind.__name__
    return in_line(str(kind).replace("typing.", ""), MAX_CHARS)


# --- the same fields in the chat


class FieldMissing(AnabranchError):
    """A job has not started, because one of its fields was not given."""


async def fill(
    fields: Sequence[Field], message: str, last: Mapping[str, Any], ask: AskLine | None
) -> dict[str, Any]:
    """Return values from the user's message, and ask the user for others until each is valid.

    The message is a JSON object of fields, or else the value of the first field that takes it:
    needed fields come before others. The user is asked if a needed field is missing, or if no field
    takes the message. An empty line takes the value of `last`, or the default. Raises
    `FieldMissing` if the user gives up, or if there is nobody to ask.
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
                f"{why}{each.name} was not given; say a JSON object with these: {takes}"
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
            raise FieldMissing(f"{field.name} was not given, and nothing has begun")
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
    """Return the values in a message, None if no field takes it; and which of them are wrong."""
    found: dict[str, Any] | None = None
    if message.lstrip().startswith("{"):  # so that it is an object, if it is JSON
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
    return in_line(f"{field.name!r}: {error}", MAX_CHARS)


def _describe_field(field: Field, last: Mapping[str, Any] | None = None) -> str:
    known = [name_of_type(field.hint)]
    if last is not None and field.name in last:
        known.append(f"now {_show(field.name, last[field.name])}")
    elif not field.needed:
        known.append(f"default {_show(field.name, field.default)}")
    about = f" - {in_line(field.about, MAX_CHARS)}" if field.about else ""
    return f"{field.name} ({', '.join(known)}){about}"
