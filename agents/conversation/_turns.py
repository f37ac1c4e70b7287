"""`GroupTalk`: all members read every message, and ask for their turn while others speak."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, cast

from ...commander import Node
from ...commander.durable import cancel_unrecorded, record_once, scope_here
from ..errors import ConversationTooLong
from ..layers import AgentMessage, prompt
from ._group import Group, GroupConversation
from ._participant import Answer, Directory, Participant, Status, is_termination
from ._scope import MAX_MESSAGES, mute

__all__ = ["GroupTalk", "role_prompt"]

logger = logging.getLogger("anabranch.agents")


class GroupTalk(Group):
    """A group of members that all think at the same time. One at a time has its turn.

        talk = GroupTalk("talk", [casperian, amelie], max_turns=6)
        await host.initiate_chat(talk, "It is a beautiful day. Introduce yourselves.")

    Each member reads new messages whenever it is free. It may answer with a request for a turn,
    which is a text that contains `request`. If no member has the turn, the group grants it and the
    member speaks. Otherwise the group names the current speaker, whose message the member reads
    next. An empty answer counts as none. Any other answer is a message out of turn, which counts if
    no member has the turn. So no member waits for another, even if one is a person
    (`UserProxyAgent`) who thinks for long.

    The conversation ends when no member has an answer, when a member ends it (`TERMINATE`), or
    after `max_turns`, which is logged. Members that still think are then cancelled. A durable run
    waits for them instead, because each execution must have the same memories. There, a change of
    `members` takes effect in the next conversation.
    """

    def __init__(
        self,
        name: str,
        members: Iterable[Participant | str],
        *,
        max_turns: int = 10,
        request: str = "Can I speak?",
        directory: Directory | None = None,
        max_messages: int = MAX_MESSAGES,
    ) -> None:
        super().__init__(
            name, members, max_turns=max_turns, directory=directory, max_messages=max_messages
        )
        self.request = request

    async def hold(self, conversation: GroupConversation, node: Node[Any]) -> Status:
        """Start a node below `node` for each member, and wait until the conversation ends."""
        turns = _Turns(self, conversation)
        conversation.on_message = turns.wake
        if turns.is_durable:  # each execution would see a change of members at another moment
            conversation.fixed_members = {**self.members}
        try:
            turns.add_members(node)
            turns.end_if_quiet()  # all members may have been removed
            await (turns.give_turns() if turns.is_durable else turns.add_newcomers(node))
            await turns.ended.wait()
        finally:
            conversation.on_message = conversation.fixed_members = None
        cancel_unrecorded(turns.nodes, "the conversation has ended")
        if turns.failure is not None:
            raise turns.failure
        if not turns.left:
            logger.info(
                "%s: the conversation stopped after %d messages (max_turns)",
                node.path,
                self.max_turns,
            )
        return cast("Status", turns.status)


class _Turns:
    """The members that take part in a conversation, and the order of their turns."""

    def __init__(self, group: GroupTalk, conversation: GroupConversation) -> None:
        conversation.speaking = None
        self.conversation = conversation
        self.left = group.max_turns
        self.request = group.request.lower()
        # The members that take part, and the part of them that reads or thinks.
        self.present = set[str]()
        self.busy = set[str]()
        self.status: Status | None = None  # why the conversation ended
        self.failure: Exception | None = None
        self.wakeups: dict[str, asyncio.Event] = {}  # one for each member that has a node
        self.nodes: list[_MemberNode] = []
        self.ended = asyncio.Event()
        # In a durable run: the members that wait for a turn. `changed` wakes the loops below.
        self.is_durable = scope_here() is not None
        self.waiting: dict[str, asyncio.Future[None]] = {}
        self.changed = asyncio.Event()
        self.turn_done = asyncio.Event()

    def add_members(self, node: Node[Any]) -> None:
        """Start a node below `node` for each member that has none."""
        names = [name for name in self.conversation.members if name not in self.wakeups]
        self.present |= {*names}
        self.busy |= {*names}
        self.wakeups |= {name: asyncio.Event() for name in names}
        self.nodes += [node.call_handler(_MemberNode(self, name)) for name in names]

    async def add_newcomers(self, node: Node[Any]) -> None:
        """Start nodes for new members too, until the conversation ends."""
        while not self.ended.is_set():
            self.add_members(node)
            await self._until(lambda: self.ended.is_set() or self.has_newcomers)

    @property
    def has_newcomers(self) -> bool:
        """Whether a member is without a node."""
        return not self.conversation.members.keys() <= self.wakeups.keys()

    def wake(self) -> None:
        """Wake all members that wait for messages, and the loops that wait for a change."""
        self.changed.set()
        for wakeup in self.wakeups.values():
            wakeup.set()

    def end(self, status: Status) -> None:
        """End the conversation, if it has not ended."""
        self.status = self.status or status
        self.ended.set()
        self.wake()

    def end_if_quiet(self) -> None:
        """End the conversation if no member thinks or has a message to read."""
        if self.busy or any(self.conversation.undelivered(name) for name in self.present):
            return
        if self.has_newcomers:
            self.changed.set()
        else:
            self.end("no_answer")

    async def wait_for_message(self, name: str) -> bool:
        """Wait until a member has a message to read; return False if the conversation has ended."""
        while self.status is None and not self.conversation.undelivered(name):
            self.wakeups[name].clear()
            await self.wakeups[name].wait()
        self.busy.add(name)
        return self.status is None

    def rest(self, name: str) -> None:
        """Note that a member is free to read more."""
        self.busy.discard(name)
        self.end_if_quiet()

    def leave(self, name: str) -> None:
        """Note that a member no longer takes part; twice is harmless."""
        self.present.discard(name)
        if name not in self.conversation.members:
            self.wakeups.pop(name, None)  # so that it gets a node if it becomes a member again
        self.changed.set()
        self.rest(name)

    def publish(self, name: str, message: AgentMessage) -> None:
        """Publish a member's message, unless the conversation has ended."""
        if self.status is None:
            self.conversation.publish(message)
            self.left -= 1
            if is_termination(message):
                self.end("terminated")
            elif not self.left:
                self.end("turn_limit")
        self.rest(name)

    async def read_and_answer(self, name: str) -> None:
        """Deliver the new messages to a member, and handle its answer."""
        conversation = self.conversation
        with mute():
            answer = await conversation.ask(name, turn=self.turn(name))
        async with self.turn(name):
            speaking, message = conversation.speaking, _non_empty(answer)
            if message is None:
                left = answer.status == "left" or name not in conversation.members
                return self.leave(name) if left else self.rest(name)
            if speaking is None and not self.is_request(message):
                return self.publish(name, message)
            if name not in conversation.members:
                return self.leave(name)
            conversation.speaking = speaking or name
        if speaking is not None:
            await conversation.send(name, f"No, {speaking} is speaking.", request_reply=False)
            async with self.turn(name):
                return self.rest(name)
        try:
            answer = await conversation.send(name, f"Yes, {name}, you have the floor: speak now.")
        except BaseException as error:
            # In a durable run a failed member keeps the turn: its node ends the conversation in the
            # next turn, and until then no other member may see a free turn.
            if not (self.is_durable and isinstance(error, Exception)):
                conversation.speaking = None
            raise
        async with self.turn(name):
            conversation.speaking, message = None, _non_empty(answer)
            if message is None or self.is_request(message):
                return self.rest(name)
            return self.publish(name, message)

    def is_request(self, message: AgentMessage) -> bool:
        """Return whether a message asks for a turn."""
        return self.request in message.text.lower()

    # --- the order of turns

    @asynccontextmanager
    async def turn(self, name: str) -> AsyncGenerator[None]:
        """Run the block, which must not wait, when it is the member's turn.

        The block does what other members can see. In a durable run each execution runs these blocks
        in the same order.
        """
        if not self.is_durable:
            yield
            return
        self.waiting[name] = granted = asyncio.get_running_loop().create_future()
        self.changed.set()
        await granted
        try:
            yield
        finally:
            self.turn_done.set()

    async def give_turns(self) -> None:
        """Give turns one after the other, in the order of the first execution."""
        while (name := await record_once("turn", self._first_waiting)) is not None:
            await self._until(lambda name=name: name in self.waiting)  # type: ignore[misc]
            self.turn_done.clear()
            self.waiting.pop(name).set_result(None)
            await self.turn_done.wait()
        # Members that still think finish here: a cancelled one would have another memory than in an
        # execution that let it finish.
        await self._until(lambda: self.present <= self.waiting.keys())

    async def _first_waiting(self) -> str | None:
        await self._until(lambda: self.waiting or self.ended.is_set())
        return None if self.ended.is_set() else next(iter(self.waiting))

    async def _until(self, condition: Callable[[], object]) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()


def _non_empty(answer: Answer) -> AgentMessage | None:
    message = answer.message
    return message if message is not None and message.text.strip() else None


class _MemberNode(Node[None], internal=True, name="_Seat"):
    """One member during one conversation."""

    def __init__(self, turns: _Turns, name: str) -> None:
        super().__init__(f"{name}.seat")
        self._floor = turns  # not renamed: node identities in journals have this name
        self._name = name

    async def task(self) -> None:
        turns, name = self._floor, self._name
        turns.rest(name)
        try:
            while name in turns.present and await turns.wait_for_message(name):
                if name not in turns.conversation.members:
                    break
                await turns.read_and_answer(name)
        except Exception as error:
            # Raise here, unless the outer conversation reached its limit, or the run is durable:
            # there a failure would cancel the other members, which would then miss turns that the
            # journal has. `hold` raises it after they have finished.
            if not (turns.is_durable or isinstance(error, ConversationTooLong)):
                raise
            async with turns.turn(name):
                turns.failure = turns.failure or error
                turns.end("message_limit")
        finally:
            turns.leave(name)


@prompt
def role_prompt(name: str, character: str, request: str = "Can I speak?") -> None:
    """You are {name}, one of several people in a conversation. {character}

    Stay in this role. You hear what the others say, each line with its speaker's name before it.
    Think about whether you have something to add. If not, answer with nothing but a space.
    If you do, first ask for the floor, with exactly these words: {request}
    Wait for the answer. If you are told that somebody else is speaking, listen on. If you are told
    that you have the floor, say what you have to say, at once and in a few sentences.
    """
