"""The message that a row of deltas makes: of a whole reply, and of one that broke off."""

from __future__ import annotations

from collections.abc import Iterable

from ..dispatch import Delta, Message, ToolCall
from ..dispatch._message import read_arguments

__all__ = ["assemble", "partial_message"]


def assemble(deltas: Iterable[Delta]) -> Message:
    """Put deltas together."""
    message = Message(role="assistant")
    calls: dict[int, ToolCall] = {}
    texts: list[str] = []
    for delta in deltas:
        texts.append(delta.text)
        for piece in delta.tool_calls:
            call = calls.setdefault(piece.index, ToolCall(id="", name="", raw=""))
            call.id, call.name = piece.id or call.id, piece.name or call.name
            call.raw = (call.raw or "") + piece.arguments
        message.usage = delta.usage or message.usage
        message.finish_reason = delta.finish_reason or message.finish_reason
    for call in calls.values():
        call.arguments = read_arguments(call.raw or "{}")[0]
    message.content = "".join(texts) or None
    message.tool_calls = list(calls.values())
    return message


def partial_message(deltas: Iterable[Delta]) -> Message | None:
    """Return what came of a reply that broke off."""
    return assemble(deltas)
