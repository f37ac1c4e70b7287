"""Aggregators: make the messages of a request from an agent's memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from ...commander.kinds import passes_with, require
from ...messages import Message, Part, Role
from ._message import TOOLS, AgentMessage
from ._parsers import Parser

__all__ = ["Aggregator", "FewShotAggregator", "System", "ToolAggregator"]

# Attributes in which an `AgentMessage` caches request messages: the one that `as_read` makes of it,
# and the one that joins it with the user messages before it. They are not pydantic fields, so they
# are neither saved nor compared.
READ_CACHE, JOINED_CACHE = "_said", "_joined"

Wire: TypeAlias = Message | Mapping[str, Any]

System: TypeAlias = str | Wire | Sequence[Wire]
"""A system prompt: text, a message, or a list of messages; a mapping is a message of the wire."""


@passes_with("aggregate")
class Aggregator:
    """Makes a request's messages: system prompt, the parser's instruction, the memory.

    The sender decides the role: the agent's own messages are the assistant's, all others the
    user's. Consecutive user messages become one. A subclass overrides `aggregate`, or one of the
    methods that it calls.
    """

    def aggregate(
        self,
        messages: Sequence[AgentMessage],
        name: str,
        parser: Parser[Any] | None = None,
        system: System | None = None,
    ) -> list[Message]:
        """Return the messages for the model of the agent called `name`."""
        request = _Growing(self.opening(parser, system))
        for message in messages:
            self.append(request, message, name, parser)
        return request.joined()

    def opening(self, parser: Parser[Any] | None, system: System | None) -> list[Message]:
        """Return the messages before the memory: one system message if possible."""
        opening = read_system(system)
        instruction = parser.instruction() if parser is not None else ""
        if not instruction:
            return opening
        if len(opening) == 1 and opening[0].role == "system":
            return [Message(role="system", content=f"{opening[0].content}\n\n{instruction}")]
        return [*opening, Message(role="system", content=instruction)]

    def append(
        self,
        request: list[Message],
        message: AgentMessage,
        name: str,
        parser: Parser[Any] | None,
    ) -> None:
        """Add a message of the memory to the request."""
        if message.sender == name:
            if message.type == TOOLS:
                request.extend(message.output)
            else:
                request.append(as_read(message, "assistant", message.text))
        else:
            follows = bool(request) and request[-1].role == "user"
            request.append(as_read(message, "user", self.render_received(message, name)))
            if follows and isinstance(request, _Growing):
                request.following[len(request) - 1] = message
            elif follows:
                request[-2:] = [_join(request[-2:], [message])]

    def render_received(self, message: AgentMessage, name: str) -> str:
        """Return the text that the model reads of a message from another sender."""
        return message.text


class FewShotAggregator(Aggregator):
    """Adds worked examples after the system prompt, as messages.

    FewShotAggregator([{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "4"}])
    """

    def __init__(self, examples: Iterable[Wire]) -> None:
        self.examples: list[Message] = [_read(example) for example in examples]

    def opening(self, parser: Parser[Any] | None, system: System | None) -> list[Message]:
        """Return the opening with the examples."""
        return [*super().opening(parser, system), *self.examples]


class ToolAggregator(FewShotAggregator):
    """An aggregator for an agent with a `ToolParser`, which finds tool calls in the agent's text.

    Senders in `users` have the role "user". Messages of other senders, mostly results of a
    `ToolExecutor`, get `role`, stay separate, and are put between `begin` and `end`. If a stop word
    cut off the end mark of a call, the mark is added again.
    """

    def __init__(
        self,
        begin: str = "",
        end: str = "",
        *,
        role: Role = "user",
        users: Iterable[str] = ("user",),
        examples: Iterable[Wire] = (),
    ) -> None:
        super().__init__(examples)
        self.begin = begin
        self.end = end
        self.role: Role = role
        self.users: frozenset[str] = frozenset(users)

    def append(
        self,
        request: list[Message],
        message: AgentMessage,
        name: str,
        parser: Parser[Any] | None,
    ) -> None:
        """Add a message of the user, of a tool or of the agent."""
        if message.sender == name and message.type != TOOLS and parser is not None:
            request.append(as_read(message, "assistant", parser.complete(message.text)))
        elif message.sender == name or message.sender in self.users:
            super().append(request, message, name, parser)
        else:
            content = f"{self.begin}{message.text}{self.end}"
            request.append(as_read(message, self.role, content))


def as_read(message: AgentMessage, role: Role, text: str) -> Message:
    """Return the request message for a message of the memory; cached until the text changes.

    A request repeats most messages of the request before it, so the cache saves most of the work.
    """
    return _cached(message, READ_CACHE, role, text, message.parts)


class _Growing(list[Message]):
    """The messages of a request while an aggregator adds them.

    Consecutive user messages are joined once, at the end. Joining each to the previous text would
    copy that text for every message, which takes quadratic time and memory.
    """

    def __init__(self, opening: Iterable[Message]) -> None:
        super().__init__(opening)
        # By index in this list: the sources of user messages that directly follow a user message.
        self.following: dict[int, AgentMessage] = {}

    def joined(self) -> list[Message]:
        """Return the messages, with consecutive user messages joined."""
        rows: list[tuple[list[Message], list[AgentMessage]]] = []
        for place, message in enumerate(self):
            source = self.following.get(place)
            if source is not None and rows and rows[-1][0][-1].role == message.role == "user":
                rows[-1][0].append(message)
                rows[-1][1].append(source)
            else:
                rows.append(([message], []))
        return [_join(row, sources) if sources else row[0] for row, sources in rows]


def _join(messages: Sequence[Message], sources: Sequence[AgentMessage]) -> Message:
    """Return consecutive user messages as one; the last of their `sources` caches it.

    The earlier sources drop their caches: cached prefixes of growing text would take quadratic
    memory.
    """
    *earlier, last = sources
    for message in earlier:
        vars(message).pop(JOINED_CACHE, None)
    text = "\n".join(message.content for message in messages if message.content)
    return _cached(
        last, JOINED_CACHE, "user", text, [part for message in messages for part in message.parts]
    )


def _cached(message: AgentMessage, key: str, role: Role, text: str, parts: list[Part]) -> Message:
    attributes: dict[str, Any] = vars(message)
    cached: Message | None = attributes.get(key)
    is_assistant = role == "assistant"
    reasoning, items = (message.reasoning, message.provider_items) if is_assistant else (None, [])
    if cached is None or (role, text, parts, reasoning, items) != (
        *(cached.role, cached.content, cached.parts, cached.reasoning, cached.provider_items),
    ):
        cached = attributes[key] = Message(
            role=role, content=text, parts=[*parts], reasoning=reasoning, provider_items=[*items]
        )
    return cached


def read_system(system: System | None) -> list[Message]:
    """Return a system prompt as messages; raise `TypeError` or `ValueError` for another value."""
    if system is None:
        return []
    if isinstance(system, str):
        return [Message(role="system", content=system)]
    return [_read(each) for each in ([system] if isinstance(system, Message | Mapping) else system)]


def _read(message: Wire) -> Message:
    if isinstance(message, Message):
        return message
    require(message, Mapping, "a message must be a Message or a mapping with 'role' and 'content'")
    try:
        return Message.from_wire(message)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"a message must have a 'role' and a 'content', not {message!r:.200} ({error!r})"
        ) from error
