"""Messages, tool calls and usage, complete and as the deltas of a stream.

`Message.to_wire` and `Message.from_wire` write and read the JSON of the chat-completions wire.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

from pydantic import BaseModel, ConfigDict, Field

from ._item import ProviderItem, put_items
from ._part import Part
from .arguments import arguments_text, read_arguments
from .text import encodable

__all__ = ["Delta", "Message", "Role", "ToolCall", "ToolCallDelta", "Usage"]

Role = Literal["system", "developer", "user", "assistant", "tool"]


class Usage(BaseModel):
    """The tokens that a reply took. `a + b` and `sum` add them field by field."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

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

    def __radd__(self, other: int) -> Usage:
        return self if other == 0 else NotImplemented  # `sum` begins with 0

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Usage:
        """Read the wire's `usage` object. A missing or invalid count is 0."""
        return cls(
            input_tokens=_count(wire, "prompt_tokens"),
            output_tokens=_count(wire, "completion_tokens"),
            cached_input_tokens=_count(wire.get("prompt_tokens_details"), "cached_tokens"),
            reasoning_tokens=_count(wire.get("completion_tokens_details"), "reasoning_tokens"),
        )

    def to_wire(self) -> dict[str, Any]:
        """Return the wire's `usage` object."""
        return {
            "prompt_tokens": self.input_tokens,
            "completion_tokens": self.output_tokens,
            "total_tokens": self.total_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_input_tokens},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
        }


def _count(counts: object, key: str) -> int:
    """Return a count of tokens, rounded; servers send fractions, texts, nulls and worse."""
    found: object = cast("Any", counts).get(key) if isinstance(counts, Mapping) else None
    if isinstance(found, str) and len(found) < 20:
        with suppress(ValueError):
            found = float(found)
    return round(found) if isinstance(found, (int, float)) and 0 <= found <= _MAX_TOKENS else 0


_MAX_TOKENS = 2**53  # a larger count is invalid, and no float holds it exactly


class ToolCall(BaseModel):
    """One call of a tool, with its arguments parsed as a JSON object.

    `raw` is the text of the arguments as the model sent it. If that text is not a JSON object,
    `error` says why, and `arguments` is empty. Such a call never runs; it stays in the message so
    that a tool result can answer it. `repaired`: `arguments` come from a repair of an invalid
    `raw`.
    """

    id: str
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict[str, Any])
    index: int = 0
    raw: str | None = Field(default=None, repr=False)
    error: str | None = None
    repaired: bool = False

    @property
    def text(self) -> str:
        """The arguments as JSON text: `raw` if it is valid, so that it does not change."""
        if self.raw is not None and self.error is None and not self.repaired:
            return self.raw if self.raw.strip() else "{}"
        return json.dumps(self.arguments, ensure_ascii=False)

    def to_wire(self) -> dict[str, Any]:
        """Return the call as in an assistant message of the wire.

        The arguments are always a JSON object: servers refuse or fail on anything else.
        """
        function = {"name": self.name, "arguments": self.text}
        return {"id": self.id, "type": "function", "function": function}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any], index: int = 0) -> ToolCall:
        """Read a call. A missing id becomes `call_INDEX`; invalid arguments set `error`.

        Raises the same exceptions as `Message.from_wire`.
        """
        function: dict[str, Any] = wire["function"]
        sent = function.get("arguments")
        raw = arguments_text(sent if isinstance(sent, str) else sent or {})
        arguments, error = read_arguments(raw)
        name = _text(function.get("name")) or ""
        call_id = _text(wire.get("id")) or f"call_{index}"
        return cls(id=call_id, name=name, arguments=arguments, index=index, raw=raw, error=error)


class Message(BaseModel):
    """One message of a conversation, with the fields of the chat-completions wire.

    `parts` are images and files beside the text. `provider_items` are data that the provider of a
    reply wants back unchanged.

        Message(role="user", content="Hello")
    """

    role: Role
    content: str | None = None
    parts: list[Part] = Field(default_factory=list[Part])
    tool_calls: list[ToolCall] = Field(default_factory=list[ToolCall])
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    usage: Usage | None = None
    finish_reason: str | None = None
    provider_items: list[ProviderItem] = Field(default_factory=list[ProviderItem])

    @property
    def whole_text(self) -> str | None:
        """The text that a model reads: the content, followed by each text file."""
        if not self.parts or self.role == "tool":
            return self.content
        texts = [self.content, *(part.text for part in self.parts)]
        return "\n\n".join(filter(None, texts)) or self.content

    def in_order(self) -> Iterator[str | ToolCall | ProviderItem]:
        """Yield the text in pieces, the tool calls and the items, in the order of the reply.

        An item of a call follows the call. Without items between them, all text comes before the
        calls.
        """
        text, calls = self.content or "", list(self.tool_calls)
        of_calls: dict[str, list[ProviderItem]] = {}
        for item in self.provider_items:
            if item.call is not None:
                of_calls.setdefault(item.call, []).append(item)
        said = called = 0
        alone = (item for item in self.provider_items if item.call is None)
        for item in (*alone, None):
            until = (len(text), len(calls)) if item is None else (item.after_text, item.after_calls)
            if piece := text[said : until[0]]:
                said += len(piece)
                yield piece
            for call in calls[called : until[1]]:
                called += 1
                yield call
                yield from of_calls.pop(call.id, ())
            if item is not None:
                yield item

    def to_wire(self, provider: str | None = None) -> dict[str, Any]:
        """Return the message for a request to `provider`, with only that provider's items.

        Reasoning, usage and finish reason are left out. So are the parts of a tool message, where
        the wire allows only text (see `request_body`).
        """
        text = self.whole_text
        wire: dict[str, Any] = {"role": self.role, "content": text}
        if self.tool_calls:
            wire["tool_calls"] = [call.to_wire() for call in self.tool_calls]
        elif text is None:
            wire["content"] = self.refusal or ""
        others = [part.to_wire() for part in self.parts if part.kind != "text"]
        if others and self.role != "tool":
            wire["content"] = [{"type": "text", "text": text}, *others] if text else others
        for key in ("tool_call_id", "name"):
            if (value := getattr(self, key)) is not None:
                wire[key] = value
        if provider is not None and self.provider_items and self.role == "assistant":
            put_items(wire, (item for item in self.provider_items if item.is_from(provider)))
        return wire

    def to_record(self) -> dict[str, Any]:
        """Return all fields under the wire's names; `from_wire` reads them."""
        content: Any = self.content
        if self.parts:
            text = [] if content is None else [{"type": "text", "text": content}]
            content = [*text, *(part.to_record() for part in self.parts)]
        record = self.to_wire() | {"content": content}
        for wire, call in zip(record.get("tool_calls", ()), self.tool_calls, strict=True):
            if call.error is not None:
                wire["function"]["arguments"] = call.raw
        rest = {
            "reasoning_content": self.reasoning,
            "refusal": self.refusal,
            "usage": self.usage and self.usage.to_wire(),
            "finish_reason": self.finish_reason,
            "provider_items": [
                item.model_dump(exclude_defaults=True) for item in self.provider_items
            ]
            or None,
        }
        return record | {key: value for key, value in rest.items() if value is not None}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Message:
        """Read a message of the wire, or one that `to_record` wrote.

        Raises `KeyError`, `TypeError`, `AttributeError` or `ValueError` (such as pydantic's
        `ValidationError`) for anything else.
        """
        usage = wire.get("usage")
        thought = content_reasoning(wire.get("content")) or None
        calls = wire.get("tool_calls") or ()
        if not calls and (legacy := wire.get("function_call")):
            calls = ({"function": legacy},)
        return cls(
            role=wire["role"],
            content=content_text(wire.get("content")),
            parts=content_parts(wire.get("content")),
            tool_calls=[ToolCall.from_wire(call, index) for index, call in enumerate(calls)],
            tool_call_id=_text(wire.get("tool_call_id")),
            name=_text(wire.get("name")),
            reasoning=_text(wire.get("reasoning_content") or wire.get("reasoning") or thought),
            refusal=_text(wire.get("refusal")),
            usage=usage and Usage.from_wire(usage),
            finish_reason=_text(wire.get("finish_reason")),
            provider_items=wire.get("provider_items") or [],
        )


@dataclass(slots=True)
class ToolCallDelta:
    """A piece of one tool call. Pieces with the same `index` belong to the same call.

    `arguments` is a piece of JSON text; `id` and `name` come with the first piece. Without an index
    from the server, `index` is -1: the piece belongs to the call with the same `id`, or else to the
    last call, unless it has a name. `item` is data about the call that its provider wants back.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""
    item: ProviderItem | None = None


@dataclass(slots=True)
class Delta:
    """A piece of a streamed reply, in the order of the model.

    A reply is complete once a delta has a `finish_reason` or `done`, the end mark of the wire
    (`[DONE]`). Any delta may have the `usage`; the last one counts. `items`, data that the provider
    wants back, come after the text and before the calls of their delta.
    """

    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    tool_calls: Sequence[ToolCallDelta] = ()
    usage: Usage | None = None
    finish_reason: str | None = None
    done: bool = False
    items: Sequence[ProviderItem] = ()


def _text(value: Any) -> Any:
    return encodable(value) if isinstance(value, str) else value  # pydantic refuses the others


def content_text(content: object) -> str | None:
    """Return the text of a `content` that is a string, null, or a list of parts."""
    if content is None:
        return None
    if isinstance(content, str):
        return encodable(content)
    parts = cast("list[dict[str, Any]]", content)
    texts = [encodable(part["text"]) for part in parts if part.get("type") == "text"]
    return "".join(texts) if texts or not parts else None


def content_reasoning(content: object) -> str:
    """Return the reasoning in a `content`: Mistral sends it as parts of type `thinking`."""
    if content is None or isinstance(content, str):
        return ""
    parts = cast("list[dict[str, Any]]", content)
    thoughts = [part["thinking"] for part in parts if part.get("type") == "thinking"]
    return "".join(content_text(thought) or "" for thought in thoughts)


def content_parts(content: object) -> list[Part]:
    """Return the images and files in a `content`."""
    if content is None or isinstance(content, str):
        return []
    parts = cast("list[dict[str, Any]]", content)
    return [part for each in parts if (part := Part.from_wire(each)) is not None]
