"""Steering: messages to a call while it runs, `AgentCall.steer`, and how requests deliver them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from ...backends import Backend
from ...commander.scope import Scope, scope_here
from ...messages import Message, Part, Request
from ._message import AgentMessage, copy_message
from ._state import json_value, read_records

if TYPE_CHECKING:
    from ._agent import Agent

__all__ = ["STEERING", "Deliveries", "Steering", "as_agent_message"]

NOTE = "steered"  # the name of a call's notes in a journal


def as_agent_message(message: AgentMessage | Message | Part | str) -> AgentMessage:
    """Return a steering message as an agent remembers it; raise `TypeError` if it is not a user's.

    A model's own replies and the results of tools cannot steer it.
    """
    if isinstance(message, Message) and message.role != "user":
        raise TypeError(f"a call is steered by messages of the user, not of the {message.role}")
    return copy_message(message)


class Delivery:
    """Messages of one call that one request delivers."""

    def __init__(self, steering: Steering, numbers: Sequence[int]) -> None:
        self._steering = steering
        self._numbers = numbers

    async def read(self) -> list[AgentMessage]:
        """Return them as the model reads them: through the hooks of the call."""
        return await self._steering.read(self._numbers)

    def take_back(self) -> None:
        """Let them wait again: the request had no effect."""
        self._steering.wait_again(self._numbers)


class Steering:
    """The steering messages of one call.

    In a durable run each message is a note of the call, and the messages that a request delivers
    are a note of that request. So each execution sends the same requests, and none loses messages
    that came before it.
    """

    def __init__(self) -> None:
        # The steering of the call that has made this one in its own `forward`.
        self.above: Steering | None = None
        self._hook: Callable[[AgentMessage], Awaitable[AgentMessage]] | None = None
        self._scope: Scope | None = None  # of the call, in a durable run
        self._begun = False
        # Messages that came before the call began, and the node of the run whose code sent each.
        self._early: list[tuple[AgentMessage, str]] = []
        # All messages since, and the numbers of those that no request has delivered.
        self._messages: list[AgentMessage] = []
        self._waiting: list[int] = []
        # How many messages the code of each node of the run has sent: in earlier executions, and in
        # this one, in which that code runs again.
        self._before: Counter[str] = Counter()
        self._again: Counter[str] = Counter()

    @property
    def undelivered(self) -> list[AgentMessage]:
        """The messages that no request has delivered so far, oldest first."""
        waiting = [self._messages[number] for number in self._waiting]
        return [copy_message(each) for each in (*waiting, *(each for each, _ in self._early))]

    def add(self, messages: Sequence[AgentMessage]) -> None:
        """Let the next request deliver these."""
        scope = scope_here()
        by = "" if scope is None else scope.place[1]
        for message in messages:
            if self._begun:
                self._add(message, by)
            else:
                self._early.append((message, by))

    def begin(self, hook: Callable[[AgentMessage], Awaitable[AgentMessage]]) -> None:
        """Begin an attempt of the call: the messages of earlier executions wait again.

        `hook` sees each message before a model does.
        """
        scope, self._hook = scope_here(), hook
        early, self._early = self._early, []
        if scope is not None:
            again = self._scope is not None and self._scope.place == scope.place
            if not again:  # else what earlier attempts have remembered is forgotten
                early = [*((self._messages[number], "") for number in self._waiting), *early]
            notes = scope.notes(NOTE)
            self._messages = read_records([each["message"] for each in notes])
            self._waiting = [*range(len(notes))]
            if not again:
                self._before, self._again = Counter(each["by"] for each in notes), Counter()
        self._scope, self._begun = scope, True
        for message, by in early:
            self._add(message, by)

    @property
    def waits(self) -> bool:
        """Whether a message waits for a request."""
        return bool(self._waiting)

    def noted(self) -> list[int] | None:
        """Return which messages this request delivered in an earlier execution; None if none."""
        if self._scope is None or (scope := scope_here()) is None:
            return None
        notes = scope.notes(self._note_of_request)
        return notes[-1]["heard"] if notes else None

    def deliver(self, *, asked: bool) -> Delivery | None:
        """Return what this request delivers, None if nothing.

        With `asked` an earlier execution has sent it, with what is `noted` and nothing else.
        """
        numbers = self.noted()
        if numbers is None:
            numbers = [] if asked else self._waiting
            if numbers and self._scope is not None and (scope := scope_here()) is not None:
                scope.note(self._note_of_request, {"heard": numbers, "of": self._scope.place[1]})
        if not numbers:
            return None
        delivered = {*numbers}  # of perhaps thousands
        self._waiting = [each for each in self._waiting if each not in delivered]
        return Delivery(self, numbers)

    async def read(self, numbers: Sequence[int]) -> list[AgentMessage]:
        """Return messages as the hook has changed them."""
        assert self._hook is not None
        return [await self._hook(copy_message(self._messages[each])) for each in numbers]

    @property
    def _note_of_request(self) -> str:
        assert self._scope is not None
        return f"heard {self._scope.place[1]}"

    def wait_again(self, numbers: Sequence[int]) -> None:
        """Take back what a request delivered."""
        self._waiting = sorted({*self._waiting, *numbers})

    def _add(self, message: AgentMessage, by: str) -> None:
        if self._scope is not None:
            if by:
                self._again[by] += 1
                if self._again[by] <= self._before[by]:
                    return  # the same code has sent it in an earlier execution
            record = json_value({name: value for name, value in message if name != "usage"})
            (message,) = read_records([record])  # as each later execution reads it
            of = self._scope.place[1]
            self._scope.note(NOTE, {"message": record, "by": by, "of": of})
        self._waiting.append(len(self._messages))
        self._messages.append(message)


STEERING: ContextVar[Steering | None] = ContextVar("anabranch_agents_steering", default=None)
"""The steering of the call around this; None below a request, whose tools are not steered."""


class Deliveries:
    """What the requests of one answer deliver, and the messages in which the model has read it."""

    def __init__(self, agent: Agent[Any], backend: Backend) -> None:
        self._agent = agent
        self._backend = backend
        self._steering = STEERING.get()
        self._delivered: list[Delivery] = []
        # By the message that the model reads, which is kept here so that no other has its id.
        self._read: dict[int, tuple[Message, list[AgentMessage]]] = {}

    async def deliver(self, request: Request) -> list[Message]:
        """Return the steering messages of the calls around for this request, outermost first."""
        agent = self._agent
        calls: list[Steering] = []  # the innermost first
        while (steering := calls[-1].above if calls else self._steering) is not None:
            calls.append(steering)
        asked = any(each.noted() is not None for each in calls) or (
            any(each.waits for each in calls) and self._backend.has_reply(request)
        )
        # All are noted before a hook runs, so that a kill leaves all of that or nothing.
        found = [made for each in reversed(calls) if (made := each.deliver(asked=asked))]
        try:
            messages = [agent.receive_as(said) for each in found for said in await each.read()]
        except BaseException:
            for each in found:
                each.take_back()
            raise
        self._delivered += found
        read: list[Message] = []
        for message in messages:
            agent.aggregator.append(read, message, agent.name, agent.output_format)
        if read:
            self._read[id(read[0])] = read[0], messages
            self._read.update({id(each): (each, []) for each in read[1:]})
        return read

    def messages_in(self, message: Message) -> list[AgentMessage] | None:
        """Return the steering messages that the model read in a message; None if it is another."""
        found = self._read.get(id(message))
        return None if found is None else found[1]

    def take_back(self) -> None:
        """Let all wait again: these requests had no effect."""
        for each in self._delivered:
            each.take_back()
