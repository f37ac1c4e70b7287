"""What a call is told while it is made, `AgentCall.steer`, and which request had it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from ...backends import Backend
from ...commander.scope import Scope, scope_here
from ...messages import Message, Part, Request
from ._memory import json_value, read_records
from ._message import AgentMessage, copy_message

if TYPE_CHECKING:
    from ._agent import Agent

__all__ = ["STEERING", "Hearing", "Steering", "as_agent_message"]

STEERED = "steered"


def as_agent_message(message: AgentMessage | Message | Part | str) -> AgentMessage:
    """Return what an agent remembers of a message; raise `TypeError` for one that it did not hear.

    A model cannot be told by steering what it has said itself, nor what a tool gave.
    """
    if isinstance(message, Message) and message.role != "user":
        raise TypeError(f"a call is steered by messages of the user, not of the {message.role}")
    return copy_message(message)


class Heard:
    """Messages that one request had, of one call."""

    def __init__(self, steering: Steering, numbers: Sequence[int]) -> None:
        self._steering = steering
        self._numbers = numbers

    async def read(self) -> list[AgentMessage]:
        """Return them as the model reads them: through the hooks of the call."""
        return await self._steering.read(self._numbers)

    def give_back(self) -> None:
        """Let them wait again: nothing has come of that request."""
        self._steering.wait_again(self._numbers)


class Steering:
    """What one call was told on its way.

    What it is told in a durable run is a note of the call, and which of it a request had a note of
    that request: so each life asks the same, and none loses what was told before it.
    """

    def __init__(self) -> None:
        # The steering of the call that has made this one in its own `forward`.
        self.above: Steering | None = None
        self._hook: Callable[[AgentMessage], Awaitable[AgentMessage]] | None = None
        self._scope: Scope | None = None  # of the call, in a durable run
        self._begun = False
        # What it was told before it began, and who in the run did so.
        self._early: list[tuple[AgentMessage, str]] = []
        # All that it was told since, and the numbers of those that no request had.
        self._told: list[AgentMessage] = []
        self._waiting: list[int] = []
        # How many messages the code of each node of the run has told it: in an earlier life, and in
        # this one, in which that code runs again.
        self._before: Counter[str] = Counter()
        self._again: Counter[str] = Counter()

    @property
    def unheard(self) -> list[AgentMessage]:
        """What no request had so far, oldest first."""
        waiting = [self._told[number] for number in self._waiting]
        return [copy_message(each) for each in (*waiting, *(each for each, _ in self._early))]

    def tell(self, messages: Sequence[AgentMessage]) -> None:
        """Let the next request have these."""
        scope = scope_here()
        by = "" if scope is None else scope.place[1]
        for message in messages:
            if self._begun:
                self._add(message, by)
            else:
                self._early.append((message, by))

    def begin(self, hook: Callable[[AgentMessage], Awaitable[AgentMessage]]) -> None:
        """Begin an attempt of the call: what earlier lives were told waits again.

        `hook` sees each message before a model does.
        """
        scope, self._hook = scope_here(), hook
        early, self._early = self._early, []
        if scope is not None:
            again = self._scope is not None and self._scope.place == scope.place
            if not again:  # else what earlier attempts have remembered is forgotten
                early = [*((self._told[number], "") for number in self._waiting), *early]
            notes = scope.notes(STEERED)
            self._told = read_records([each["message"] for each in notes])
            self._waiting = [*range(len(notes))]
            if not again:
                self._before, self._again = Counter(each["by"] for each in notes), Counter()
        self._scope, self._begun = scope, True
        for message, by in early:
            self._add(message, by)

    @property
    def waits(self) -> bool:
        """Whether it was told something that no request had."""
        return bool(self._waiting)

    def noted(self) -> list[int] | None:
        """Return what this request had of it in an earlier life; None if it had nothing."""
        if self._scope is None or (scope := scope_here()) is None:
            return None
        notes = scope.notes(self._heard_by)
        return notes[-1]["heard"] if notes else None

    def hear(self, *, asked: bool) -> Heard | None:
        """Return what this request has of it, None if nothing.

        With `asked` an earlier life has asked it, with what is `noted` and nothing else.
        """
        numbers = self.noted()
        if numbers is None:
            numbers = [] if asked else self._waiting
            if numbers and self._scope is not None and (scope := scope_here()) is not None:
                scope.note(self._heard_by, {"heard": numbers, "of": self._scope.place[1]})
        if not numbers:
            return None
        heard = {*numbers}  # of perhaps thousands
        self._waiting = [each for each in self._waiting if each not in heard]
        return Heard(self, numbers)

    async def read(self, numbers: Sequence[int]) -> list[AgentMessage]:
        """Return messages as the hook has changed them."""
        assert self._hook is not None
        return [await self._hook(copy_message(self._told[each])) for each in numbers]

    @property
    def _heard_by(self) -> str:
        assert self._scope is not None
        return f"heard {self._scope.place[1]}"

    def wait_again(self, numbers: Sequence[int]) -> None:
        """Take back what a request had."""
        self._waiting = sorted({*self._waiting, *numbers})

    def _add(self, message: AgentMessage, by: str) -> None:
        if self._scope is not None:
            if by:
                self._again[by] += 1
                if self._again[by] <= self._before[by]:
                    return  # the same code has told it in an earlier life
            record = json_value({name: value for name, value in message if name != "usage"})
            (message,) = read_records([record])  # as each later life reads it
            of = self._scope.place[1]
            self._scope.note(STEERED, {"message": record, "by": by, "of": of})
        self._waiting.append(len(self._told))
        self._told.append(message)


STEERING: ContextVar[Steering | None] = ContextVar("anabranch_agents_steering", default=None)
"""What the call around was told; None below a request, whose tools are not steered."""


class Hearing:
    """What one answer's requests hear of that, and in which messages the model has read it."""

    def __init__(self, agent: Agent[Any], backend: Backend) -> None:
        self._agent = agent
        self._backend = backend
        self._steering = STEERING.get()
        self._heard: list[Heard] = []
        # By the message that the model reads, which is kept here so that no other has its id.
        self._read: dict[int, tuple[Message, list[AgentMessage]]] = {}

    async def hear(self, request: Request) -> list[Message]:
        """Return what the model hears with this request, of the calls around, outermost first."""
        agent = self._agent
        calls: list[Steering] = []  # the innermost first
        while (steering := calls[-1].above if calls else self._steering) is not None:
            calls.append(steering)
        asked = any(each.noted() is not None for each in calls) or (
            any(each.waits for each in calls) and self._backend.has_reply(request)
        )
        # All are noted before a hook runs, so that a kill leaves all of that or nothing.
        heard = [found for each in reversed(calls) if (found := each.hear(asked=asked)) is not None]
        try:
            told = [agent.receive_as(said) for each in heard for said in await each.read()]
        except BaseException:
            for each in heard:
                each.give_back()
            raise
        self._heard += heard
        read: list[Message] = []
        for message in told:
            agent.aggregator.append(read, message, agent.name, agent.output_format)
        if read:
            self._read[id(read[0])] = read[0], told
            self._read.update({id(each): (each, []) for each in read[1:]})
        return read

    def told_in(self, message: Message) -> list[AgentMessage] | None:
        """Return what the model was told by a message; None if that was something else."""
        found = self._read.get(id(message))
        return None if found is None else found[1]

    def give_back(self) -> None:
        """Let all wait again: nothing has come of these requests."""
        for each in self._heard:
            each.give_back()
