"""The message that a row of deltas makes: of a whole reply, and of one that broke off."""

from __future__ import annotations

from collections.abc import Iterable

from ..dispatch import Delta, Message
from ..dispatch._assembly import Assembly, Branches
from ..dispatch._speech import Sink

__all__ = ["assemble", "partial_message"]


def _drop(_: object) -> None:
    """Take a part of a reply of which only the finished message is wanted."""


_NOBODY = Branches(Sink(_drop), Sink(_drop), Sink(_drop), Sink(_drop))


def assemble(deltas: Iterable[Delta]) -> Message:
    """Return the message that the endpoint would have given without streaming."""
    assembly = _fed(deltas)
    for call in assembly.end():
        assembly.refuse(call)
    return assembly.message()


def partial_message(deltas: Iterable[Delta]) -> Message | None:
    """Return what the user was told before the reply broke off, None if that is nothing."""
    assembly = _fed(deltas)
    assembly.break_off()
    return assembly.partial()


def _fed(deltas: Iterable[Delta]) -> Assembly:
    assembly = Assembly(_NOBODY)
    for delta in deltas:
        assembly.feed((delta,))
    return assembly
