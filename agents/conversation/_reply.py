"""The replies of a conversable agent: its reply functions, and one reply as a node."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from inspect import isawaitable
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, TypeVar, overload

from ...commander import act_as
from ...commander.durable import record_once
from ...commander.errors import ConfigurationError
from ...commander.kinds import require_awaitable
from ..layers import AgentMessage
from ..layers._call import OUTER_SESSION, CountedCall
from ._human import Transcript
from ._participant import Answer, MessageLike, Participant, Status, as_message, name_of
from ._scope import current_scope

if TYPE_CHECKING:
    from ._conversable import ConversableAgent


__all__ = [
    "NOT_MINE",
    "ReplyNode",
    "ReplyResult",
    "ReplyRule",
    "SenderFilter",
    "reply",
    "reply_rules",
]


class _Mark(enum.Enum):
    NOT_MINE = "not mine"


NOT_MINE: Final = _Mark.NOT_MINE
"""Returned by a reply function that leaves the message to the next one."""

ReplyResult: TypeAlias = "MessageLike | Literal[_Mark.NOT_MINE] | None"
"""The result of a reply function: an answer, None for "no answer", or `NOT_MINE`."""

Sender: TypeAlias = "Participant | str"
SenderFilter: TypeAlias = "Sender | Iterable[Sender] | Callable[[Any], Sender | Iterable[Sender]]"
"""The senders that a reply function sees: agents, names, or a function from the agent to them."""

F = TypeVar("F", bound=Callable[..., Any])

RULE_NUMBERS = count()


class Decorator(Protocol):
    """A decorator that returns the function itself."""

    def __call__(self, function: F, /) -> F:
        """Mark the function."""
        ...


@dataclass(frozen=True, slots=True)
class ReplyRule:
    """A reply function and the senders whose messages it sees; None means all."""

    function: Callable[..., Any]
    sender: SenderFilter | None = None
    number: int = 0  # the order of definition, also after cloudpickle has sorted the class by name

    async def __call__(self, agent: Any, message: AgentMessage) -> ReplyResult:
        """Return the function's answer to `message`, or `NOT_MINE` for another sender."""
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

    They are called in the order of their definitions, those of a subclass before those of its
    bases. A method that a subclass overrides keeps its place, and is called only if it is marked
    there again. Plain or async, each returns an answer, None for "handled without an answer", or
    `NOT_MINE`: then the next is called. With `sender` a function sees only messages of these
    agents, or of groups with these names.
    """

    def mark(function: F) -> F:
        function.__anabranch_reply__ = ReplyRule(function, sender, next(RULE_NUMBERS))  # pyright: ignore[reportFunctionMemberAccess]
        return function

    return mark if function is None else mark(function)


def reply_rules(agent: type[Any]) -> list[ReplyRule]:
    """Return the reply functions of a class, in the order of their calls."""
    rules: dict[str, ReplyRule | None] = {}  # None: a method without a mark overrides it
    for base in reversed(agent.__mro__):
        new_rules: dict[str, ReplyRule] = {}
        for name, member in vars(base).items():
            rule = getattr(member, "__anabranch_reply__", None)
            if name in rules:
                rules[name] = rule if isinstance(rule, ReplyRule) else None
            elif isinstance(rule, ReplyRule):
                new_rules[name] = rule
        # By number and not in the order of the class's dictionary, which cloudpickle sorts by name.
        rules = dict(sorted(new_rules.items(), key=lambda item: item[1].number)) | rules
    return [rule for rule in rules.values() if rule is not None]


logger = logging.getLogger("anabranch.agents")

EXIT_INPUT = "exit"


class ReplyNode(CountedCall[Answer], internal=True, name="Answering"):
    """One reply of `agent` to a message that its history with `partner` contains already.

    Attributes: `agent`, `partner`, `message`.
    """

    def __init__(self, agent: ConversableAgent, partner: str, message: AgentMessage) -> None:
        super().__init__(f"{agent.name}.reply")
        act_as(self, agent.name, agent.session_with(partner))
        self.agent = agent
        self.partner = partner
        self.message = message

    async def task(self) -> Answer:
        """Return an answer of the person, of a reply function or of the model, or the end."""
        agent, mode = self.agent, self.agent.human_input_mode
        if agent.journal is not None or OUTER_SESSION.get() is not None:
            raise ConfigurationError(
                f"{agent.name} cannot converse in the session of an agent with journal=, which does"
                " not store conversations. Use a Durable job instead."
            )
        session = agent.session_with(self.partner)
        self.begin(agent, session)
        self.message = await agent.admit(self.message, self.partner)
        ending = self._ending()
        if mode == "ALWAYS" or (mode == "TERMINATE" and ending is not None):
            scope = current_scope()
            listeners = () if scope is None else scope.listeners
            has_transcript = any(isinstance(each, Transcript) for each in listeners)
            # All messages since the agent's last one, because a group may have sent several.
            history = agent.memory.messages(session)
            own_places = [place for place, each in enumerate(history) if each.sender == agent.name]
            messages = "".join(
                f"{each.sender} (to {each.receiver or agent.name}):\n\n{each.text}\n\n"
                for each in history[own_places[-1] + 1 if own_places else 0 :] or [self.message]
            )
            enter = "to end" if ending == "terminated" else "for an automatic answer"
            question = (
                f"{'' if has_transcript else messages}Answer {self.partner} as {agent.name}"
                f" (Enter {enter}, '{EXIT_INPUT}' to leave): "
            )

            async def ask() -> str | None:
                return await require_awaitable(agent.human_input(question), agent, "human_input")

            text = await record_once("human input", ask)
            if text is None or text.strip() == EXIT_INPUT:
                return Answer(status="left")
            if text.strip():
                agent.auto_replies[session] = 0
                return await self._deliver(text)
            if ending == "terminated":
                return Answer(status=ending)
        elif ending is not None:
            return Answer(status=ending)
        agent.auto_replies[session] += 1
        try:
            for rule in agent.rules:
                if (reply := await rule(agent, self.message)) is not NOT_MINE:
                    return await self._deliver(reply)
            return await self._deliver(await agent.generate_reply(self.message))
        except BaseException:
            # A retry of a failed answer must not count twice. Not below 0: the person may have
            # answered, which resets the count, while this reply ran.
            agent.auto_replies[session] = max(0, agent.auto_replies[session] - 1)
            raise

    def _ending(self) -> Status | None:
        """Return the reason to end the conversation here, unless a person continues it."""
        agent, limit = self.agent, self.agent.max_consecutive_auto_reply
        if agent.is_termination(self.message):
            return "terminated"
        if limit is None or agent.auto_replies[agent.session_with(self.partner)] < limit:
            return None
        if limit and agent.human_input_mode == "NEVER":
            logger.warning(
                "%s: %s has answered %s %d times in a row. The conversation ends"
                " (max_consecutive_auto_reply).",
                self.path,
                agent.name,
                self.partner,
                limit,
            )
        return "auto_reply_limit"

    async def _deliver(self, reply: ReplyResult) -> Answer:
        if reply is None or reply is NOT_MINE:
            return Answer(status="no_answer")
        agent = self.agent
        message = as_message(reply, agent.name, self.partner)
        session = agent.session_with(self.partner)
        message = await agent.hooks_of("after_agent").run(agent, message, session)
        answer = as_message(message, agent.name, self.partner)
        answer.usage = self.usage
        return Answer(answer)
