"""`@reply`: the functions by which an agent answers, tried in the order they are written in."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from inspect import isawaitable
from itertools import count
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar, overload

from ..layers import AgentMessage
from ._directory import Participant, name_of
from ._messages import MessageLike

__all__ = ["NOT_MINE", "ReplyResult", "ReplyRule", "SenderFilter", "reply", "reply_rules"]


class _Mark(enum.Enum):
    NOT_MINE = "not mine"


NOT_MINE: Final = _Mark.NOT_MINE
"""A reply function returns this to leave the message to the next one."""

ReplyResult: TypeAlias = "MessageLike | Literal[_Mark.NOT_MINE] | None"
"""What a reply function returns: an answer, None for "done, no answer", or `NOT_MINE`."""

Sender: TypeAlias = "Participant | str"
SenderFilter: TypeAlias = "Sender | Iterable[Sender] | Callable[[Any], Sender | Iterable[Sender]]"
"""Whose messages a reply function sees: agents or names, or a function from the agent to them."""

F = TypeVar("F", bound=Callable[..., Any])

NUMBERS = count()


class Decorator(Protocol):
    """Marks a function and gives it back."""

    def __call__(self, function: F, /) -> F:
        """Mark it."""
        ...


@dataclass(frozen=True, slots=True)
class ReplyRule:
    """A reply function and whose messages it sees; None is everybody's."""

    function: Callable[..., Any]
    sender: SenderFilter | None = None
    number: int = 0  # of the mark: the order in which they were written, whoever sorted the class

    async def __call__(self, agent: Any, message: AgentMessage) -> ReplyResult:
        """Answer `message`, or say that it is another's."""
        if self.sender is not None:
            sender: Any = self.sender
            if callable(sender) and not isinstance(sender, Participant):
                sender = sender(agent)
            senders = (sender,) if isinstance(sender, (str, Participant)) else sender
            if not {message.sender, message.receiver} & {name_of(each) for each in senders}:
                return NOT_MINE
        answer = self.function(agent, message)
        return await answer if isawaitable(answer) else answer


@overload
def reply(function: F, /) -> F: ...
@overload
def reply(*, sender: SenderFilter | None = None) -> Decorator: ...
def reply(
    function: Callable[..., Any] | None = None, /, *, sender: SenderFilter | None = None
) -> Any:
    """Make a method of a `ConversableAgent` one of its reply functions.

        @reply(sender=lambda self: [self.bob])
        async def to_bob(self, message: AgentMessage) -> ReplyResult:
            return None

    They are tried in the order in which they are written, those that a subclass adds before those
    of its bases. One that a subclass overrides keeps its place, and is tried only if it is marked
    there again. Plain or async, each returns an answer, None for "done, no answer", or `NOT_MINE`,
    and the next is tried. With `sender` it sees only messages of these agents, or of groups of
    these names.
    """

    def mark(function: F) -> F:
        function.__anabranch_reply__ = ReplyRule(function, sender, next(NUMBERS))  # pyright: ignore[reportFunctionMemberAccess]
        return function

    return mark if function is None else mark(function)


def reply_rules(agent: type[Any]) -> list[ReplyRule]:
    """Return the reply functions of a class, in the order in which they are tried."""
    rules: dict[str, ReplyRule | None] = {}  # None: overridden by a method without a mark
    for base in reversed(agent.__mro__):
        own: dict[str, ReplyRule] = {}
        for name, member in vars(base).items():
            rule = getattr(member, "__anabranch_reply__", None)
            if name in rules:
                rules[name] = rule if isinstance(rule, ReplyRule) else None
            elif isinstance(rule, ReplyRule):
                own[name] = rule
        # Not in the order of the class's dictionary: cloudpickle sorts it by name.
        rules = dict(sorted(own.items(), key=lambda item: item[1].number)) | rules
    return [rule for rule in rules.values() if rule is not None]
