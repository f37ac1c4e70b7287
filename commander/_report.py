"""The one place that says something about a user's exception: a note, a description, a log entry.

An exception's `repr`, its attributes and its notes are a user's code, and so are log handlers and
filters. Nothing here raises whatever they do, so that nothing stops the engine in the middle of an
end (contract T13); and nothing here costs more for an exception that holds many others.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

__all__ = ["describe", "group", "is_a", "log", "note", "notes_of", "raise_soon", "type_name"]

logger = logging.getLogger("anabranch")

LONGEST = 200  # characters of a message in a description

# As Python itself gets at them: a subclass, or its metaclass, may have put code in their place.
_name: Any = type.__dict__["__name__"].__get__
_args: Any = BaseException.__dict__["args"].__get__
_traceback: Any = BaseException.__dict__["__traceback__"].__get__


def is_a(error: BaseException, *kinds: type[BaseException]) -> bool:
    """Say whether `error` is one of `kinds`, by its type: its `__class__` may raise or be wrong."""
    return issubclass(type(error), kinds)


def type_name(thing: object) -> str:
    """Return the name of a thing's type."""
    return _name(type(thing))


def describe(error: BaseException) -> str:
    """Return the type of `error` and, if that is plain text, its message. Runs no code of its own.

    A group is described by its own message, and not by what is in it.
    """
    first = next(iter(_args(error)), None)
    if type(first) not in (str, int, float) or first == "":
        return type_name(error)
    try:
        message = str(first)
    except ValueError:  # an integer of more digits than Python converts
        return type_name(error)
    return f"{type_name(error)}: {message[:LONGEST]}{'...' if len(message) > LONGEST else ''}"


def notes_of(error: BaseException) -> list[str]:
    """Return the notes of `error` that are strings."""
    try:
        notes: Any = error.__notes__
    except BaseException:  # noqa: BLE001 - none, or a property that raises
        return []
    return [each for each in notes if type(each) is str] if type(notes) in (list, tuple) else []


def note(error: BaseException, text: str) -> None:
    """Add a note to `error`, frozen or not; one whose `__notes__` is no list stays as it is."""
    try:
        BaseException.add_note(error, text)
    except BaseException:  # noqa: BLE001 - a `__setattr__` or a `__notes__` of its own
        if "__notes__" not in BaseException.__dict__["__dict__"].__get__(error):
            with suppress(BaseException):  # a property of that name
                object.__setattr__(error, "__notes__", [text])


def group(message: str, errors: Sequence[BaseException]) -> BaseExceptionGroup[BaseException]:
    """Return a group of `errors`; one that no group can hold is replaced by what describes it."""
    try:
        return BaseExceptionGroup(message, errors)
    except BaseException:  # noqa: BLE001 - a `__class__` that raises
        held: list[BaseException] = []
        for error in errors:
            if not is_a(error, Exception):
                stand_in = RuntimeError(describe(error))
                stand_in.__cause__ = error
                error = stand_in
            held.append(error)
        return BaseExceptionGroup(message, held)


def log(level: int, message: str, *args: object, error: BaseException | None = None) -> None:
    """Log `message % args`, with the traceback of `error`.

    What a handler or a filter raises is written to standard error, as `logging` itself does; an
    interrupt among it stops the loop, once what is under way has ended.
    """
    try:
        trace = None if error is None else (type(error), error, _traceback(error))
        logger.log(level, message, *args, exc_info=trace)
    except BaseException as fault:  # noqa: BLE001 - handlers and filters are a user's
        about = "" if error is None else f" ({describe(error)})"
        with suppress(BaseException):  # standard error is closed, or somebody else's
            if logging.raiseExceptions:
                said = f"--- Logging error: {describe(fault)} ---\n{message % args}{about}\n"
                sys.stderr.write(said)
        raise_soon(fault)


def raise_soon(error: BaseException) -> None:
    """Let an interrupt stop the running loop, once what is under way has ended; else do nothing."""
    if is_a(error, KeyboardInterrupt, SystemExit):

        def reraise() -> None:
            raise error

        try:
            asyncio.get_running_loop().call_soon(reraise)
        except RuntimeError:  # no loop runs in this thread
            return
