"""Aggregators: an agent's memory becomes the messages of a request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from ...commander.kinds import passes_with, require
from ...messages import Message, Part, Role
from ._message import TOOLS, AgentMessage
from ._parsers import Parser

__all__ = ["Aggregator", "FewShotAggregator", "System", "ToolAggregator"]

# Where a message keeps what `as_said` made of it, and the row of messages that it is the last of;
# what is no field is neither saved nor compared.
SAID, JOINED = "_said", "_joined"

Wire: TypeAlias = Message | Mapping[str, Any]

System: TypeAlias = str | Wire | Sequence[Wire]
"""A system prompt: text, a message, or a list of messages; a mapping is a message of the wire."""


@passes_with("aggregate")
class Aggregator:
    """Makes a request's messages: the system prompt, what the parser asks for, the memory.

    Who sent a message decides its role: the agent's own are the assistant's, all others the
    user's. User messages in a row become one. A subclass changes `aggregate`, or a part of it.
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
        """Return what stands before the memory; one system message where there can be one."""
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
        """Add a message of the memory to what the model will read."""
        if message.sender == name:
            if message.type == TOOLS:
                request.extend(message.formatted)
            else:
                request.append(as_said(message, "assistant", message.text))
        else:
            follows = bool(request) and request[-1].role == "user"
            request.append(as_said(message, "user", self.render_received(message, name)))
            if follows and isinstance(request, _Growing):
                request.following[len(request) - 1] = message
            elif follows:
                request[-2:] = [_join(request[-2:], [message])]

    def render_received(self, message: AgentMessage, name: str) -> str:
        """Return what the model reads of a message that is another's."""
        return message.text


class FewShotAggregator(Aggregator):
    """The default, with worked examples after the system prompt: messages, or the wire's."""

    def __init__(self, examples: Iterable[Wire]) -> None:
        self.examples = [_read(example) for example in examples]

    def opening(self, parser: Parser[Any] | None, system: System | None) -> list[Message]:
        """Add the examples."""
        return [*super().opening(parser, system), *self.examples]


class ToolAggregator(FewShotAggregator):
    """For an agent whose calls are found in its text by a `ToolParser`.

    Messages of `users` are the user's. Those of anyone else (executors, mostly) are the
    environment's: they get `role`, stand alone, and are put between `begin` and `end`. A call
    whose end mark was a stop word, and so is missing, gets it back.
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
        self.users = frozenset(users)

    def append(
        self,
        request: list[Message],
        message: AgentMessage,
        name: str,
        parser: Parser[Any] | None,
    ) -> None:
        """Tell the user, the environment and the agent apart."""
        if message.sender == name and message.type != TOOLS and parser is not None:
            request.append(as_said(message, "assistant", parser.complete(message.text)))
        elif message.sender == name or message.sender in self.users:
            super().append(request, message, name, parser)
        else:
            content = f"{self.begin}{message.text}{self.end}"
            request.append(as_said(message, self.role, content))


def as_said(message: AgentMessage, role: Role, text: str) -> Message:
    """Return what the model reads of a message: the same object as long as that is the same.

    A memory is read for each request, and most of it was read for the one before.
    """
    return _made(message, SAID, role, text, message.parts)


class _Growing(list[Message]):
    """The messages of a request while an aggregator adds them.

    User messages in a row are joined once, at the end. To join each to the text before it would
    copy that text for every message, which takes quadratic time and memory.
    """

    def __init__(self, opening: Iterable[Message]) -> None:
        super().__init__(opening)
        # The messages that join the user message before them, by their place.
        self.following: dict[int, AgentMessage] = {}

    def joined(self) -> list[Message]:
        """Return the messages as a model reads them."""
        rows: list[tuple[list[Message], list[AgentMessage]]] = []
        for place, message in enumerate(self):
            source = self.following.get(place)
            if source is not None and rows and rows[-1][0][-1].role == message.role == "user":
                rows[-1][0].append(message)
                rows[-1][1].append(source)
            else:
                rows.append(([message], []))
        return [_join(row, sources) if sources else row[0] for row, sources in rows]


def _join(row: Sequence[Message], sources: Sequence[AgentMessage]) -> Message:
    """Return messages of the user in a row as one; the last of their `sources` caches it.

    The earlier ones drop what they cached: kept prefixes of a row that grows would be quadratic.
    """
    *earlier, last = sources
    for each in earlier:
        vars(each).pop(JOINED, None)
    text = "\n".join(each.content for each in row if each.content)
    return _made(last, JOINED, "user", text, [part for each in row for part in each.parts])


def _made(message: AgentMessage, key: str, role: Role, text: str, parts: list[Part]) -> Message:
    kept: dict[str, Any] = vars(message)
    said: Message | None = kept.get(key)
    own = role == "assistant"
    reasoning, items = (message.reasoning, message.provider_items) if own else (None, [])
    if said is None or (role, text, parts, reasoning, items) != (
        *(said.role, said.content, said.parts, said.reasoning, said.provider_items),
    ):
        said = kept[key] = Message(
            role=role, content=text, parts=[*parts], reasoning=reasoning, provider_items=[*items]
        )
    return said


def read_system(system: System | None) -> list[Message]:
    """Return a system prompt as messages; raise `TypeError` or `ValueError` for what is none."""
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
            f"a message has a 'role' and a 'content': {message!r:.200} ({error!r})"
        ) from error
