"""The fields of a job or a handler, filled from what a person says, and asked for one by one."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

from ...commander import AnabranchError
from ...messages.mask import mask
from ...serve.talk import BadQuestion, Field
from .._fields import name_of_type
from .._terminal import in_line

__all__ = ["AskLine", "FieldMissing", "fill"]

AskLine: TypeAlias = Callable[[str], Awaitable[str | None]]
"""Shows a prompt, which may have several lines, and gives what the person writes; None: nothing."""

MOST = 200  # characters of a default, of a description, and of what is wrong


class FieldMissing(AnabranchError):
    """A job has not begun, as one of its fields was not given."""


async def fill(
    fields: Sequence[Field], said: str, last: Mapping[str, Any], ask: AskLine | None
) -> dict[str, Any]:
    """Return values for fields: from what was said, and from the person, who is asked for others.

    What was said is a JSON object of fields, or the value of the first field that is needed and
    takes it, or else of the first one that takes any text. If that leaves one that is needed, or
    no field takes it, all others are asked for, each until it is right; an empty line takes the
    default, or what was given `last`. Raises `FieldMissing` if the person gives up, or if there is
    nobody to ask.
    """
    given, wrong = _read_said(fields, said)
    if (
        given is not None
        and not wrong
        and all(not each.needed or each.name in given for each in fields)
    ):
        return given
    values = given or {}
    for each in fields:
        if each.name in values:
            continue
        if ask is None:
            if each.needed:
                takes = ", ".join(map(_describe, fields))
                why = f"{wrong}; " if wrong else ""
                raise FieldMissing(
                    f"{why}{each.name} was not given; say a JSON object with these: {takes}"
                )
            continue
        value = await _ask_for(each, last, ask, wrong)
        wrong = ""
        if value is not _DEFAULT:
            values[each.name] = value
    return values


_DEFAULT = object()


async def _ask_for(field: Field, last: Mapping[str, Any], ask: AskLine, wrong: str) -> Any:
    """Ask until the value is right."""
    while True:
        asked = f"{_describe(field, last)}: "
        written = await ask(f"{wrong}\n{asked}" if wrong else asked)
        if written is None:
            raise FieldMissing(f"{field.name} was not given, and nothing has begun")
        if not written.strip() and field.name in last:
            return last[field.name]
        if not written.strip() and not field.needed:
            return _DEFAULT
        try:
            return field.read_text(written)
        except BadQuestion as error:
            wrong = in_line(error.text, MOST)


def _read_said(fields: Sequence[Field], said: str) -> tuple[dict[str, Any] | None, str]:
    """Return what was said as values, None if no field takes it; and what is wrong with it."""
    if (found := _object(said)) is not None and found.keys() <= {each.name for each in fields}:
        values, wrong = dict[str, Any](), list[str]()
        for each in fields:
            try:
                if each.name in found:
                    values[each.name] = each.read(found[each.name])
            except BadQuestion as error:
                wrong.append(in_line(error.text, MOST))
        return values, "; ".join(wrong)
    if not fields:
        return {}, ""
    needed = [each for each in fields if each.needed]
    texts = [each for each in fields if each.takes_text]
    for each in [
        *(e for e in needed if e.takes_text),
        *needed,
        *(e for e in texts if not e.needed),
    ]:
        try:
            return {each.name: each.read(said) if each.takes_text else each.read_text(said)}, ""
        except BadQuestion:
            continue
    return None, ""


def _object(said: str) -> dict[str, Any] | None:
    if not said.lstrip().startswith("{"):
        return None
    try:
        found: Any = json.loads(said)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else None


def _describe(field: Field, last: Mapping[str, Any] | None = None) -> str:
    """Return its name, type, default and what it is for, in a line."""
    known = [name_of_type(field.hint)]
    if last is not None and field.name in last:
        known.append(f"now {_shown(field.name, last[field.name])}")
    elif not field.needed:
        known.append(f"default {_shown(field.name, field.default)}")
    about = f" - {in_line(field.about, MOST)}" if field.about else ""
    return f"{field.name} ({', '.join(known)}){about}"


def _shown(name: str, value: Any) -> str:
    try:
        return in_line(str(mask({name: repr(value)})[name]), 60)
    except Exception:  # noqa: BLE001 - a user's repr
        return "..."
