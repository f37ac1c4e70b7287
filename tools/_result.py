"""What a call of a tool gave, as the message that goes back to the model."""

from __future__ import annotations

from typing import Literal

from ..dispatch import Message, Role

__all__ = ["ToolResult"]


class ToolResult(Message):
    """The answer to one tool call; its `content` is what the model reads.

    `status` is "ok", "failed" (the tool raised, was too slow or was stopped) or "invalid" (the
    call itself was wrong, and the model may mend it).
    """

    role: Role = "tool"
    status: Literal["ok", "failed", "invalid"] = "ok"
