"""The message that a row of deltas makes: of a whole reply, and of one that broke off."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from ..commander.errors import BackendError, BadResponse
from ..dispatch import Format
from ..dispatch._speech import Sink
from ..dispatch.assembly import Assembly, Branches
from ..messages import Delta, Message

__all__ = ["assemble", "partial_message"]

_M = TypeVar("_M")


def _drop(_: object) -> None:
    """Take a part of a reply of which only the finished message is wanted."""


_NOBODY = Branches(Sink(_drop), Sink(_drop), Sink(_drop), Sink(_drop))


def assemble(deltas: Iterable[Delta], formats: Sequence[Format] = ()) -> Message:
    """Return the message that the endpoint would have given without streaming.

    Raises `BadResponse` for deltas that make none.
    """

    def whole() -> Message:
        assembly = _fed(deltas, formats)
        for call in assembly.end():
            assembly.refuse(call)
        return assembly.message()

    return _made(whole)


def partial_message(deltas: Iterable[Delta]) -> Message | None:
    """Return what the user was told before the reply broke off, None if that is nothing.

    Raises as `assemble` does.
    """

    def begun() -> Message | None:
        assembly = _fed(deltas)
        assembly.break_off()
        return assembly.partial()

    return _made(begun)


def _made(make: Callable[[], _M]) -> _M:
    try:
        return make()
    except BackendError:
        raise
    except Exception as error:  # noqa: BLE001 - a server may say anything
        kind = type(error).__name__
    raise BadResponse(f"what came makes no message ({kind})")


def _fed(deltas: Iterable[Delta], formats: Sequence[Format] = ()) -> Assembly:
    ignored = {each.branch: Sink(_drop) for each in formats if each.branch is not None}
    assembly = Assembly(replace(_NOBODY, others=ignored), formats=formats)
    for delta in deltas:
        assembly.feed((delta,))
    return assembly
