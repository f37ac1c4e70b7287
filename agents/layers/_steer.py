"""Steering: messages to a call while it runs, `AgentCall.steer`, and their delivery by requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from ...backends import Backend
from ...commander.durable import DurableScope, scope_here
from ...messages import Message, Part, Request
from ._message import AgentMessage, copy_message
from ._state import json_value, read_records

if TYPE_CHECKING:
    from ._agent import Agent

__all__ = ["STEERING", "Deliveries", "Steering", "as_agent_message"]

STEERING_NOTE = "steered"  # the name of a call's notes in a journal


def as_agent_message(message: AgentMessage | Message | Part | str) -> AgentMessage:
    """Return a steering message for the memory; raise `TypeError` unless it is a user's.

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
        """Return the messages for the model, after the hooks of the call."""
        return await self._steering.read(self._numbers)

    def take_back(self) -> None:
        """Make the messages wait again, because the request had no effect."""
        self._steering.wait_again(self._numbers)


class Steering:
    """The steering messages of one call.

    In a durable run each message is a note of the call, and the messages that a request delivers
    are a note of that request. So each execution sends the same requests, and none loses messages
    of an earlier execution.
    """

    def __init__(self) -> None:
        # The steering of the call whose `forward` has made this call.
        self.above: Steering | None = None
        self._hook: Callable[[AgentMessage], Awaitable[AgentMessage]] | None = None
        self._scope: DurableScope | None = None  # the call's scope in a durable run
        self._begun = False
        # Messages from before the beginning of the call, and the node whose code sent each.
        self._early: list[tuple[AgentMessage, str]] = []
        # All messages since, and the numbers of those that no request has delivered.
        self._messages: list[AgentMessage] = []
        self._waiting: list[int] = []
        # The number of messages from the code of each node: in earlier executions, and in this one,
        # where the same code runs again and sends the same messages again.
        self._recorded: Counter[str] = Counter()
        self._repeated: Counter[str] = Counter()

    @property
    def undelivered(self) -> list[AgentMessage]:
        """The messages that no request has delivered so far, oldest first."""
        waiting = [self._messages[number] for number in self._waiting]
        return [copy_message(each) for each in (*waiting, *(each for each, _ in self._early))]

    def add(self, messages: Sequence[AgentMessage]) -> None:
        """Add messages for the next request."""
        scope = scope_here()
        sender_node = "" if scope is None else scope.identity[1]
        for message in messages:
            if self._begun:
                self._add(message, sender_node)
            else:
                self._early.append((message, sender_node))

    def begin(self, hook: Callable[[AgentMessage], Awaitable[AgentMessage]]) -> None:
        """Begin an attempt of the call: the messages of earlier executions wait again.

        `hook` sees each message before a model does.
        """
        scope, self._hook = scope_here(), hook
        early, self._early = self._early, []
        if scope is not None:
            again = self._scope is not None and self._scope.identity == scope.identity
            # Another place in the run has no notes of the messages that already wait, so they are
            # added again below. At the same place the notes have all of them.
            if not again:
                early = [*((self._messages[number], "") for number in self._waiting), *early]
            notes = scope.notes(STEERING_NOTE)
            self._messages = read_records([each["message"] for each in notes])
            self._waiting = [*range(len(notes))]
            if not again:
                self._recorded, self._repeated = Counter(each["by"] for each in notes), Counter()
        self._scope, self._begun = scope, True
        for message, sender_node in early:
            self._add(message, sender_node)

    @property
    def waits(self) -> bool:
        """Whether a message waits for a request."""
        return bool(self._waiting)

    def recorded_delivery(self) -> list[int] | None:
        """Return the messages that this request delivered in an earlier execution; None if none."""
        if self._scope is None or (scope := scope_here()) is None:
            return None
        notes = scope.notes(self._note_of_request)
        return notes[-1]["heard"] if notes else None

    def deliver(self, *, has_reply: bool) -> Delivery | None:
        """Return the messages that this request delivers, None without messages.

        With `has_reply` an earlier execution has sent the request. Then it delivers only recorded
        messages.
        """
        numbers = self.recorded_delivery()
        if numbers is None:
            numbers = [] if has_reply else self._waiting
            if numbers and self._scope is not None and (scope := scope_here()) is not None:
                scope.note(self._note_of_request, {"heard": numbers, "of": self._scope.identity[1]})
        if not numbers:
            return None
        delivered = {*numbers}  # a set, because there may be thousands
        self._waiting = [each for each in self._waiting if each not in delivered]
        return Delivery(self, numbers)

    async def read(self, numbers: Sequence[int]) -> list[AgentMessage]:
        """Return messages as the hook has changed them."""
        assert self._hook is not None
        return [await self._hook(copy_message(self._messages[each])) for each in numbers]

    @property
    def _note_of_request(self) -> str:
        assert self._scope is not None
        return f"heard {self._scope.identity[1]}"

    def wait_again(self, numbers: Sequence[int]) -> None:
        """Make messages wait for another request."""
        self._waiting = sorted({*self._waiting, *numbers})

    def _add(self, message: AgentMessage, sender_node: str) -> None:
        if self._scope is not None:
            if sender_node:
                self._repeated[sender_node] += 1
                if self._repeated[sender_node] <= self._recorded[sender_node]:
                    return  # the same code sent it in an earlier execution: the notes have it
            record = json_value({name: value for name, value in message if name != "usage"})
            (message,) = read_records([record])  # the form that each later execution reads
            of = self._scope.identity[1]
            self._scope.note(STEERING_NOTE, {"message": record, "by": sender_node, "of": of})
        self._waiting.append(len(self._messages))
        self._messages.append(message)


STEERING: ContextVar[Steering | None] = ContextVar("anabranch_agents_steering", default=None)
"""The steering of the call around this. None below a request, because it does not steer tools."""


class Deliveries:
    """The deliveries of one answer's requests, and the messages that the model read."""

    def __init__(self, agent: Agent[Any], backend: Backend) -> None:
        self._agent = agent
        self._backend = backend
        self._steering = STEERING.get()
        self._delivered: list[Delivery] = []
        # By the id of the message that the model reads. The reference prevents a reuse of the id.
        self._read: dict[int, tuple[Message, list[AgentMessage]]] = {}

    async def deliver(self, request: Request) -> list[Message]:
        """Return the steering messages for this request, those of the outermost call first."""
        agent = self._agent
        calls: list[Steering] = []  # the innermost first
        while (steering := calls[-1].above if calls else self._steering) is not None:
            calls.append(steering)
        has_reply = any(each.recorded_delivery() is not None for each in calls) or (
            any(each.waits for each in calls) and self._backend.has_reply(request)
        )
        # All calls make their notes before a hook can wait, so that a kill leaves all or none.
        deliveries = [
            delivery for each in reversed(calls) if (delivery := each.deliver(has_reply=has_reply))
        ]
        try:
            messages = [
                agent.receive_as(message) for each in deliveries for message in await each.read()
            ]
        except BaseException:
            for each in deliveries:
                each.take_back()
            raise
        self._delivered += deliveries
        read: list[Message] = []
        for message in messages:
            agent.aggregator.append(read, message, agent.name, agent.output_format)
        if read:
            self._read[id(read[0])] = read[0], messages
            self._read.update({id(each): (each, []) for each in read[1:]})
        return read

    def messages_in(self, message: Message) -> list[AgentMessage] | None:
        """Return the steering messages in a message to the model; None if it has none."""
        found = self._read.get(id(message))
        return None if found is None else found[1]

    def take_back(self) -> None:
        """Make all messages wait again, because these requests had no effect."""
        for each in self._delivered:
            each.take_back()
