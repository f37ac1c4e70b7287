"""What is said: messages, tool calls and usage, in the wire's own terms.

`Message.to_wire` and `Message.from_wire` speak the chat-completions JSON that every hosted model
and every compatible server understands.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Message", "Role", "ToolCall", "Usage"]

Role = Literal["system", "developer", "user", "assistant", "tool"]


class Usage(BaseModel):
    """What a reply cost, in tokens. `a + b` adds field by field."""

    model_config = ConfigDict(frozen=True)

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Input and output tokens together."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_input_tokens=self.cached_input_tokens + other.cached_input_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
        )

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> Usage:
        """Read the wire's `usage` object; counts that are missing or null are 0."""
        prompt: dict[str, Any] = wire.get("prompt_tokens_details") or {}
        completion: dict[str, Any] = wire.get("completion_tokens_details") or {}
        return cls(
            input_tokens=wire.get("prompt_tokens") or 0,
            output_tokens=wire.get("completion_tokens") or 0,
            cached_input_tokens=prompt.get("cached_tokens") or 0,
            reasoning_tokens=completion.get("reasoning_tokens") or 0,
        )


class ToolCall(BaseModel):
    """One call of a tool, whole: its arguments are a JSON object, already parsed.

    `raw` is the text of the arguments as the model sent it; it goes back to the model unchanged.
    """

    id: str
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict[str, Any])
    index: int = 0
    raw: str | None = Field(default=None, repr=False)

    def to_wire(self) -> dict[str, Any]:
        """Return the call as the wire writes it inside an assistant message."""
        text = self.raw if self.raw is not None else json.dumps(self.arguments, ensure_ascii=False)
        function = {"name": self.name, "arguments": text}
        return {"id": self.id, "type": "function", "function": function}


class Message(BaseModel):
    """One message of a conversation, field for field as the non-streaming endpoint gives it."""

    role: Role
    content: str | None = None
    tool_calls: list[ToolCall] = Field(default_factory=list[ToolCall])
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    usage: Usage | None = None
    finish_reason: str | None = None
