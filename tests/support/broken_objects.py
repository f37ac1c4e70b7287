"""Misbehaving objects that a user's program may have: exceptions, log handlers, task factories."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

__all__ = [
    "ERRORS",
    "FACTORIES",
    "FATAL_ERRORS",
    "Broken",
    "broken_log",
    "make_error",
    "retry_predicate",
]


class Broken(Exception):
    """The exception that the misbehaving objects raise."""


def broken(*_: Any, **__: Any) -> Any:
    raise Broken


@dataclass(frozen=True)
class Frozen(Exception):
    text: str = ""


class Slotted(Exception):
    __slots__ = ("text",)

    def __setattr__(self, name: str, value: object) -> None:
        raise Broken


class Mute(Exception):
    __repr__ = __str__ = __format__ = broken


class Unhashable(Exception):
    __hash__ = __eq__ = __bool__ = __len__ = __ne__ = broken  # type: ignore[assignment]


class Empty(Exception):
    def __len__(self) -> int:
        return 0


class NotesProperty(Exception):
    __notes__ = property(broken)  # type: ignore[assignment]


class NotesTuple(Exception):
    __notes__ = ("one", 2)  # type: ignore[assignment]


class NotesNumber(Exception):
    __notes__ = 7  # type: ignore[assignment]


class NotesEndless(Exception):
    @property
    def __notes__(self) -> Iterator[str]:  # type: ignore[override]
        while True:
            yield "note"


class NotesOdd(Exception):
    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.__notes__: list[Any] = [None, 3, b"x"]


class NoNotes(Exception):
    add_note = with_traceback = broken


class Untraced(Exception):
    __traceback__ = property(broken, broken)  # type: ignore[assignment]
    __cause__ = property(broken, broken)  # type: ignore[assignment]


class Liar(Exception):
    __class__ = asyncio.CancelledError  # type: ignore[assignment]


class Masked(Exception):
    __class__ = property(broken)  # type: ignore[assignment]


class MaskedBase(BaseException):
    __class__ = property(broken)  # type: ignore[assignment]


class Closed(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise Broken


class Meta(type):
    __name__ = property(broken)  # type: ignore[assignment]
    __repr__ = __instancecheck__ = broken  # type: ignore[assignment]


class Nameless(Exception, metaclass=Meta):
    pass


class Underived(ExceptionGroup[Exception]):
    derive = split = subgroup = __str__ = __repr__ = broken  # type: ignore[assignment]


class Own(BaseException):
    pass


# Each returns one error for any text.
ERRORS: dict[str, Callable[[str], BaseException]] = {
    kind.__name__ if kind is not Nameless else "Nameless": kind
    for kind in (
        Frozen, Slotted, Mute, Unhashable, Empty, NotesProperty, NotesTuple, NotesNumber,
        NotesEndless, NotesOdd, NoNotes, Untraced, Liar, Masked, Closed, Nameless,
    )
} | {
    "Underived": lambda text: Underived(text or "group", [ValueError(text)]),
    "Group": lambda text: BaseExceptionGroup("group", [Own(text), Mute(text)]),
    "Nested": lambda text: ValueError(Mute(text)),
    "Digits": lambda text: ValueError(10**5000, text),
    "Recursion": lambda text: RecursionError(text),
}  # fmt: skip
# These are not subclasses of `Exception`.
FATAL_ERRORS: dict[str, Callable[[str], BaseException]] = {
    "Own": Own,
    "MaskedBase": MaskedBase,
    "GeneratorExit": GeneratorExit,
}


def make_error(name: str, text: str = "odd") -> BaseException:
    """Return an error of the kind `name`."""
    return (ERRORS | FATAL_ERRORS)[name](text)


def retry_predicate(name: str) -> Callable[[BaseException], Any]:
    """Return a predicate for `Retry(on=...)` that raises or does not return a bool."""

    def predicate(error: BaseException) -> Any:
        match name:
            case "true":
                return "yes"
            case "false":
                return ""
            case "odd":
                return Unhashable()
            case _:
                raise make_error(name)

    return predicate


class _Raising(logging.Handler):
    def __init__(self, error: Callable[[], BaseException]) -> None:
        super().__init__()
        self.error = error

    def emit(self, record: logging.LogRecord) -> None:
        raise self.error()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno == logging.WARNING:
            raise self.error()
        return True


@contextmanager
def broken_log(error: Callable[[], BaseException] = Broken) -> Iterator[None]:
    """Add a handler that raises to the tree's logger, and after it one that formats records."""
    handler = _Raising(error)
    logger = logging.getLogger("anabranch")
    logger.addHandler(handler)
    raises, logging.raiseExceptions = logging.raiseExceptions, False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logging.raiseExceptions = raises


# --- task factories

Body = Coroutine[Any, Any, Any]
Loop = asyncio.AbstractEventLoop


def plain(loop: Loop, body: Body, **options: Any) -> Any:
    return asyncio.Task(body, loop=loop, **options)


def old(loop: Loop, body: Body) -> Any:
    """A factory from before Python 3.11, without the argument `context`."""
    return asyncio.Task(body, loop=loop)


def pure(loop: Loop, body: Body, **options: Any) -> Any:
    return asyncio.tasks._PyTask(body, loop=loop, **options)  # type: ignore[attr-defined]


def wrapping(loop: Loop, body: Body, **options: Any) -> Any:
    """A factory that wraps the body, as a tracer that notes the start and end of tasks."""

    async def traced() -> Any:
        try:
            return await body
        finally:
            body.close()

    return asyncio.Task(traced(), loop=loop, **options)


def inner(loop: Loop, body: Body, **options: Any) -> Any:
    """A factory that runs the body in another task than the one it returns."""

    async def outer() -> Any:
        return await asyncio.Task(body, loop=loop, **options)

    return asyncio.Task(outer(), loop=loop, **options)


def deaf(loop: Loop, body: Body, **options: Any) -> Any:
    """A factory that never runs the body."""

    async def nothing() -> None:
        body.close()

    return asyncio.Task(nothing(), loop=loop, **options)


def leaving(loop: Loop, body: Body, **options: Any) -> Any:
    """A factory that abandons the body after three steps."""

    async def some() -> None:
        for _ in range(3):
            try:
                body.send(None)
            except StopIteration:
                return
            await asyncio.sleep(0)

    return asyncio.Task(some(), loop=loop, **options)


def raising(loop: Loop, body: Body, **options: Any) -> Any:
    raise Broken


def future(loop: Loop, body: Body, **options: Any) -> Any:
    return loop.create_future()


def nothing(loop: Loop, body: Body, **options: Any) -> Any:
    return None


def eager(loop: Loop, body: Body, **options: Any) -> Any:
    """A factory that runs the first step at once, as `asyncio.eager_task_factory` does (3.12)."""
    if sys.version_info >= (3, 12):
        return asyncio.eager_task_factory(loop, body, **options)

    assert body.send(None) is None
    return asyncio.Task(_Resumed(body), loop=loop, **options)


class _Resumed(Coroutine[Any, Any, Any]):
    """A wrapper of a started coroutine, for a task to continue."""

    def __init__(self, body: Body) -> None:
        self.send, self.throw, self.close = body.send, body.throw, body.close  # type: ignore[method-assign]

    def send(self, value: Any) -> Any:
        raise NotImplementedError

    def throw(self, *error: Any) -> Any:
        raise NotImplementedError

    def __await__(self) -> Any:
        raise NotImplementedError


# Bodies run normally under all of these, though from "inner" on the task is not the body's.
FACTORIES: dict[str, Callable[..., Any]] = {
    each.__name__: each
    for each in (plain, old, pure, wrapping, eager, inner, deaf, raising, future, nothing)
}
