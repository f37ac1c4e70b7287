"""Aggregators: an agent's memory becomes the messages of a request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from ..messages import Message, Role
from ..tools import result_text
from ._memory import TOOLS
from ._message import AgentMessage
from ._parser import Parser

__all__ = ["Aggregator", "FewShotAggregator", "System", "ToolAggregator"]

Wire: TypeAlias = Message | Mapping[str, Any]

System: TypeAlias = str | Wire | Sequence[Wire]
"""A system prompt: text, a message, or a list of messages; a mapping is a message of the wire."""


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
        said = self.opening(parser, system)
        for message in messages:
            self.append(said, message, name, parser)
        return said

    def opening(self, parser: Parser[Any] | None, system: System | None) -> list[Message]:
        """Return what stands before the memory; one system message where there can be one."""
        said = read_system(system)
        instruction = parser.instruction() if parser is not None else ""
        if not instruction:
            return said
        if len(said) == 1 and said[0].role == "system":
            return [Message(role="system", content=f"{said[0].content}\n\n{instruction}")]
        return [*said, Message(role="system", content=instruction)]

    def append(
        self, said: list[Message], message: AgentMessage, name: str, parser: Parser[Any] | None
    ) -> None:
        """Add a message of the memory to what the model will read."""
        if message.sender != name:
            _append_user(said, result_text(message.content))
        elif message.type == TOOLS:
            said.extend(message.formatted)
        else:
            said.append(Message(role="assistant", content=result_text(message.content)))


class FewShotAggregator(Aggregator):
    """The default, with worked examples after the system prompt: messages, or the wire's."""

    def __init__(self, examples: Iterable[Wire]) -> None:
        self.examples = [_message(example) for example in examples]

    def opening(self, parser: Parser[Any] | None, system: System | None) -> list[Message]:
        """Add the examples."""
        return [*super().opening(parser, system), *self.examples]


class ToolAggregator(Aggregator):
    """For an agent that writes its calls as text, read by a `ToolParser`.

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
        self.begin = begin
        self.end = end
        self.role: Role = role
        self.users = frozenset(users)
        self.examples = [_message(example) for example in examples]

    def opening(self, parser: Parser[Any] | None, system: System | None) -> list[Message]:
        """Add the examples."""
        return [*super().opening(parser, system), *self.examples]

    def append(
        self, said: list[Message], message: AgentMessage, name: str, parser: Parser[Any] | None
    ) -> None:
        """Tell the user, the environment and the agent apart."""
        if message.sender == name and message.type != TOOLS and parser is not None:
            whole = parser.whole(result_text(message.content))
            said.append(Message(role="assistant", content=whole))
        elif message.sender == name or message.sender in self.users:
            super().append(said, message, name, parser)
        else:
            content = f"{self.begin}{result_text(message.content)}{self.end}"
            said.append(Message(role=self.role, content=content))


def read_system(system: System | None) -> list[Message]:
    """Return a system prompt as messages; raise `TypeError` or `ValueError` for what is none."""
    if system is None:
        return []
    if isinstance(system, str):
        return [Message(role="system", content=system)]
    if isinstance(system, (Message, Mapping)):
        return [_message(system)]
    return [_message(each) for each in system]


def _message(given: Wire) -> Message:
    if isinstance(given, Message):
        return given
    try:
        return Message.from_wire(given)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"a message has a 'role' and a 'content': {given!r:.200} ({error!r})"
        ) from error


def _append_user(said: list[Message], content: str) -> None:
    if said and said[-1].role == "user":
        said[-1] = Message(role="user", content=f"{said[-1].content}\n{content}")
    else:
        said.append(Message(role="user", content=content))
