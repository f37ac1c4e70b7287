"""`AgentMessage`: what agents and tool executors hand to each other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, Literal, TypeAlias, cast

from pydantic import BaseModel, Field
from typing_extensions import TypeVar

from ...messages import Message, Part, ProviderItem, Usage
from ...messages.text import quote
from ...tools import ToolResult, result_text

__all__ = ["TOOLS", "AgentMessage", "StreamState", "copy_message", "has_run", "read_inputs"]

F = TypeVar("F", default=Any)

StreamState: TypeAlias = Literal["begin", "streaming", "end", "failed"]

TOOLS = "tools"
"""The `type` of a message that holds one reply with tool calls and their results, inseparable.

Its `formatted` is the list of `Message`s as a model reads them, so that no limit and no filter can
part a call from its result.
"""


class AgentMessage(BaseModel, Generic[F]):
    """Something that one agent says to another, to a tool executor or to a person.

    `content` is what was said, mostly text, `parts` are images and files beside it. `formatted` is
    what a parser or an executor made of it, so that nobody has to read the text again; None if
    nobody has. `sender` and `receiver` are names; `type` and `extra` are the application's.
    `stream_state` is "begin" or "streaming" for a message that is still growing, "end" for a whole
    one, "failed" for one that broke off. `usage`, of an agent's answer to a call, is what all of
    that call took; no memory keeps it. Of an agent's answer, `reasoning` is what its model reasoned
    before it, and `provider_items` are what the model's provider wants back with it.
    """

    content: Any = None
    parts: list[Part] = Field(default_factory=list[Part])
    sender: str = "user"
    formatted: F = cast("Any", None)
    extra: dict[str, Any] = Field(default_factory=dict[str, Any])
    type: str | None = None
    receiver: str | None = None
    stream_state: StreamState = "end"
    usage: Usage = Usage()
    reasoning: str | None = None
    provider_items: list[ProviderItem] = Field(default_factory=list[ProviderItem])

    @property
    def text(self) -> str:
        """All that a person, or a model, would read of it: tool calls and their results too."""
        if self.type != TOOLS:
            return result_text(self.content)
        lines: list[str] = []
        for part in cast("list[Message]", self.formatted):
            if part.role == "tool":
                lines.append(f"[{part.name} gave: {part.content}]")
            elif part.content:
                lines.append(part.content)
            lines += [f"[calls {call.name}({call.text})]" for call in part.tool_calls]
        return "\n".join(lines)

    def __reduce__(self) -> tuple[Any, ...]:
        # `AgentMessage[City]` is made where it is written, and found by no name elsewhere.
        kind = type(self).__pydantic_generic_metadata__["origin"] or type(self)
        state = self.__getstate__()
        state["__dict__"] = dict(self)  # the fields, and not what else is kept beside them
        return _restore, (kind, state)


def has_run(message: AgentMessage) -> bool:
    """Return whether a message has calls of tools that have run, or what they gave."""
    if message.type == TOOLS:
        return True
    results = message.formatted
    return isinstance(results, list) and any(
        isinstance(each, ToolResult) for each in cast("list[Any]", results)
    )


def _restore(kind: type[AgentMessage], state: dict[Any, Any]) -> AgentMessage:
    message = kind.__new__(kind)
    message.__setstate__(state)
    return message


def copy_message(message: AgentMessage | Message | Part | str) -> AgentMessage:
    """Return a message that its keeper alone can change; a string or a part is the user's.

    Raises `TypeError` for anything else, as for a `Message` that is not the user's.
    """
    if isinstance(message, str):
        return AgentMessage(content=message)
    if isinstance(message, Part):
        return AgentMessage(content="", parts=[message])
    if isinstance(message, Message) and message.role == "user":
        text, sender = message.content or "", message.name or "user"
        return AgentMessage(content=text, parts=message.parts, sender=sender)
    if not isinstance(message, AgentMessage):  # pyright: ignore[reportUnnecessaryIsInstance]
        kinds = "strings, Parts, AgentMessages and Messages of the user"
        raise TypeError(f"agents take {kinds}, not {quote(message)}")
    return message.model_copy(
        update={
            "extra": dict(message.extra),
            "parts": list(message.parts),
            "provider_items": list(message.provider_items),
            "usage": Usage(),
        }
    )


def read_inputs(
    messages: Iterable[AgentMessage | Message | Part | str], name: str
) -> list[AgentMessage]:
    """Return the messages of a call as the agent called `name` remembers them.

    A `Message` of the assistant is one that the agent has said earlier; its tool calls become one
    message with the results, which have to follow. Raises `TypeError` for what is no message of
    either and if the last is the assistant's, `ValueError` for calls and results that do not belong
    together.
    """
    taken: list[AgentMessage] = []
    open_calls: list[str] = []  # of the message that was taken last
    message = None
    for message in messages:
        role = message.role if isinstance(message, Message) else None
        if open_calls and role != "tool":
            break
        if not isinstance(message, Message) or role == "user":
            given = copy_message(message)
            if role == "user" and given.sender == name:
                given.sender = "user"
            taken.append(given)
        elif role == "assistant":
            own = AgentMessage(
                content=message.content or message.refusal or "",
                parts=message.parts,
                sender=name,
                receiver="user",
            )
            if message.tool_calls:
                open_calls = [call.id for call in message.tool_calls]
                own = own.model_copy(update={"formatted": [message], "type": TOOLS, "parts": []})
            taken.append(own)
        elif role == "tool":
            if message.tool_call_id not in open_calls:
                raise ValueError(f"this result follows no call of it: {quote(message)}")
            open_calls.remove(message.tool_call_id)
            taken[-1].formatted.append(ToolResult.model_validate(message.model_dump()))
        else:
            raise TypeError(
                f"a system prompt is given to the agent, Agent(system=...): {quote(message)}"
            )
    if open_calls:
        raise ValueError(f"the results of the calls {open_calls} have to follow them")
    if isinstance(message, Message) and message.role == "assistant":
        raise TypeError(
            "agents answer strings, Parts, AgentMessages and Messages of the user:"
            f" {quote(message)}"
            " can only stand before such, as what the agent has said"
        )
    return taken
