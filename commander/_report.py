"""Describes, annotates and logs users' exceptions. No function here raises.

Reading the `repr`, attributes or notes of an exception may run a user's code, and so may log
handlers and filters. Their errors must not stop the engine while it ends a node (contract T13). The
cost does not depend on the size of an exception group.
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

MAX_MESSAGE_CHARS = 200  # in a description

# The getters of the base classes. Plain attribute access would run a subclass's or a metaclass's
# overrides.
_name: Any = type.__dict__["__name__"].__get__
_args: Any = BaseException.__dict__["args"].__get__
_traceback: Any = BaseException.__dict__["__traceback__"].__get__


def is_a(error: BaseException, *kinds: type[BaseException]) -> bool:
    """Return whether `error` is an instance of `kinds`. Unlike `isinstance`, ignore `__class__`."""
    return issubclass(type(error), kinds)


def type_name(thing: object) -> str:
    """Return the name of the class of `thing`, without code of the class."""
    return _name(type(thing))


def describe(error: BaseException) -> str:
    """Return the class name and the message of `error`, without code of the exception.

    A first argument that is not a plain text or number is left out. Of a group, only its own
    message is used, not its exceptions.
    """
    first = next(iter(_args(error)), None)
    if type(first) not in (str, int, float) or first == "":
        return type_name(error)
    try:
        message = str(first)
    except ValueError:  # an integer of more digits than Python converts
        return type_name(error)
    cut = "..." if len(message) > MAX_MESSAGE_CHARS else ""
    return f"{type_name(error)}: {message[:MAX_MESSAGE_CHARS]}{cut}"


def notes_of(error: BaseException) -> list[str]:
    """Return the notes of `error` that are strings."""
    try:
        notes: Any = error.__notes__
    except BaseException:  # noqa: BLE001 - no notes, or a property that raises
        return []
    return [each for each in notes if type(each) is str] if type(notes) in (list, tuple) else []


def note(error: BaseException, text: str) -> None:
    """Add a note to `error`, also to a frozen one. Do nothing if its `__notes__` is not a list."""
    try:
        BaseException.add_note(error, text)
    except BaseException:  # noqa: BLE001 - its class overrides `__setattr__` or `__notes__`
        if "__notes__" not in BaseException.__dict__["__dict__"].__get__(error):
            with suppress(BaseException):  # a property of that name
                object.__setattr__(error, "__notes__", [text])


def group(message: str, errors: Sequence[BaseException]) -> BaseExceptionGroup[BaseException]:
    """Return a group of `errors`. An error that a group refuses is replaced by a `RuntimeError`."""
    try:
        return BaseExceptionGroup(message, errors)
    except BaseException:  # noqa: BLE001 - a `__class__` that raises
        accepted: list[BaseException] = []
        for error in errors:
            if not is_a(error, Exception):
                stand_in = RuntimeError(describe(error))
                stand_in.__cause__ = error
                error = stand_in
            accepted.append(error)
        return BaseExceptionGroup(message, accepted)


def log(level: int, message: str, *args: object, error: BaseException | None = None) -> None:
    """Log `message % args`, with the traceback of `error`.

    An error of a handler or a filter is written to standard error, as `logging` does. If it is an
    interrupt, it also stops the loop, after the current callback of the loop.
    """
    try:
        trace = None if error is None else (type(error), error, _traceback(error))
        logger.log(level, message, *args, exc_info=trace)
    except BaseException as fault:  # noqa: BLE001 - handlers and filters are users' code
        about = "" if error is None else f" ({describe(error)})"
        with suppress(BaseException):  # standard error is closed, or a replacement that raises
            if logging.raiseExceptions:
                text = f"--- Logging error: {describe(fault)} ---\n{message % args}{about}\n"
                sys.stderr.write(text)
        raise_soon(fault)


def raise_soon(error: BaseException) -> None:
    """If `error` is an interrupt, raise it from the running loop after the current callback.

    Raised at once, it would leave a node in the middle of its end.
    """
    if is_a(error, KeyboardInterrupt, SystemExit):

        def reraise() -> None:
            raise error

        try:
            asyncio.get_running_loop().call_soon(reraise)
        except RuntimeError:  # no loop runs in this thread
            return
