"""The message that a row of deltas makes: of a whole reply, and of one that broke off."""

from __future__ import annotations

from collections.abc import Iterable

from ..dispatch import Delta, Message, ToolCall, ToolCallDelta, ToolCallError
from ..dispatch._assembly import Assembly

__all__ = ["assemble", "partial_message"]


class _Nobody:
    """Takes the parts of a reply that only the finished message is wanted of."""

    def text(self, text: str) -> None:
        pass

    def reasoning(self, text: str) -> None:
        pass

    def call(self, call: ToolCall | ToolCallError) -> None:
        pass

    def piece(self, piece: ToolCallDelta) -> None:
        pass


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
    assembly = Assembly(_Nobody())
    for delta in deltas:
        assembly.feed(delta)
    return assembly
