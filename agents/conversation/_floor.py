"""`GroupTalk`: everybody hears everything, and asks for the floor while others speak."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, cast

from ...commander import Node
from ...commander.scope import cancel_again, once, scope_here
from ..errors import ConversationTooLong
from ..layers import AgentMessage, prompt
from ._directory import Answer, Directory, Participant, Status
from ._group import Group
from ._messages import is_termination
from ._scope import MAX_MESSAGES, mute
from ._talk import Talk

__all__ = ["GroupTalk", "role_prompt"]

logger = logging.getLogger("anabranch.agents")


class GroupTalk(Group):
    """A group in which all are asked at once, and one at a time has the floor.

        talk = GroupTalk("talk", [casperian, amelie], max_turns=6)
        await host.initiate_chat(talk, "It is a beautiful day. Introduce yourselves.")

    Each member hears what is said as soon as it is free, and answers when it likes. An answer
    that contains `request` asks for the floor: if nobody has it, the member is told so and speaks,
    else it is told who is speaking, and hears that speech next. An empty answer is none; any other
    is a speech out of turn, which counts if the floor is free. So nobody waits for anybody: a
    person who thinks (a `UserProxyAgent`) holds up no one else.

    The talk ends when nobody has anything to say, when somebody ends it (`TERMINATE`), or after
    `max_turns`, which is logged; who still thinks then is cancelled, but waited for in a durable
    run, whose lives have to remember the same. There, a change of `members` counts from the next
    talk on.
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
        if max_turns < 1:
            raise ValueError(f"max_turns must be at least 1, not {max_turns!r}")
        super().__init__(name, members, directory=directory, max_messages=max_messages)
        self.max_turns = max_turns
        self.request = request

    async def hold(self, talk: Talk, node: Node[Any]) -> Status:
        """Give each member a seat, a child of `node`, and wait until the talk has ended."""
        floor = _Floor(self, talk)
        talk.on_news = floor.ring
        if floor.kept:  # each life would see changes at another moment
            talk.seated = {**self.members}
        try:
            floor.seat_members(node)
            floor.end_if_quiet()  # nobody is a member any more
            await (floor.give_turns() if floor.kept else floor.seat_newcomers(node))
            await floor.over.wait()
        finally:
            talk.on_news = talk.seated = None
        cancel_again(floor.seats, "the talk is over")
        if floor.fault is not None:
            raise floor.fault
        if not floor.left:
            logger.info(
                "%s: the talk was stopped after %d speeches (max_turns)",
                node.path,
                self.max_turns,
            )
        return cast("Status", floor.ending)


class _Floor:
    """Who is at a talk, and who has its floor."""

    def __init__(self, group: GroupTalk, talk: Talk) -> None:
        talk.speaking = None
        self.talk = talk
        self.left = group.max_turns
        self.request = group.request.lower()
        # Who is at the talk, and who of them is being told something or thinks.
        self.present = set[str]()
        self.busy = set[str]()
        self.ending: Status | None = None
        self.fault: Exception | None = None
        # One for each seat, rung when there is news, and one for the end.
        self.bells: dict[str, asyncio.Event] = {}
        self.seats: list[_Seat] = []
        self.over = asyncio.Event()
        # In a durable run: who waits for a turn, and whether somebody came, or has had it.
        self.kept = scope_here() is not None
        self.waiting: dict[str, asyncio.Future[None]] = {}
        self.came = asyncio.Event()
        self.done = asyncio.Event()

    def seat_members(self, node: Node[Any]) -> None:
        """Give each member that has none a seat, a child of `node`."""
        names = [name for name in self.talk.members if name not in self.bells]
        self.present |= {*names}
        self.busy |= {*names}
        self.bells |= {name: asyncio.Event() for name in names}
        self.seats += [node.call_handler(_Seat(self, name)) for name in names]

    async def seat_newcomers(self, node: Node[Any]) -> None:
        """Give those a seat who become members during the talk, until its end."""
        while not self.over.is_set():
            self.seat_members(node)
            await self._until(lambda: self.over.is_set() or self.has_newcomers)

    @property
    def has_newcomers(self) -> bool:
        """Whether a member has no seat yet."""
        return not self.talk.members.keys() <= self.bells.keys()

    def ring(self) -> None:
        """Wake those who wait for something to hear."""
        self.came.set()
        for bell in self.bells.values():
            bell.set()

    def end(self, how: Status) -> None:
        """End the talk, if it has not ended."""
        self.ending = self.ending or how
        self.over.set()
        self.came.set()
        self.ring()

    def end_if_quiet(self) -> None:
        """End the talk if nobody thinks and nobody has anything to hear."""
        if self.busy or any(self.talk.unheard(name) for name in self.present):
            return
        if self.has_newcomers:
            self.came.set()
        else:
            self.end("no_answer")

    async def hear_next(self, name: str) -> bool:
        """Wait until a member has something to hear; False if the talk has ended."""
        while self.ending is None and not self.talk.unheard(name):
            self.bells[name].clear()
            await self.bells[name].wait()
        self.busy.add(name)
        return self.ending is None

    def rest(self, name: str) -> None:
        """Take note that a member is free to hear more."""
        self.busy.discard(name)
        self.end_if_quiet()

    def leave(self, name: str) -> None:
        """Take note that a member is at the talk no more; twice is harmless."""
        self.present.discard(name)
        if name not in self.talk.members:
            self.bells.pop(name, None)  # so that it gets a seat if it becomes one again
        self.came.set()
        self.rest(name)

    def say(self, name: str, message: AgentMessage) -> None:
        """Let all hear a member's speech, unless the talk has ended."""
        if self.ending is None:
            self.talk.say(message)
            self.left -= 1
            if is_termination(message):
                self.end("terminated")
            elif not self.left:
                self.end("turn_limit")
        self.rest(name)

    async def hear_and_answer(self, name: str) -> None:
        """Let a member hear and answer, once."""
        talk = self.talk
        with mute():
            answer = await talk.ask(name, turn=self.turn(name))
        async with self.turn(name):
            speaking = talk.speaking
            if not (said := _speech(answer)):
                left = answer.status == "left" or name not in talk.members
                return self.leave(name) if left else self.rest(name)
            if speaking is None and not self.asks(said):
                return self.say(name, said)
            if name not in talk.members:
                return self.leave(name)
            talk.speaking = speaking or name
        if speaking is not None:
            await talk.tell(name, f"No, {speaking} is speaking.", request_reply=False)
            async with self.turn(name):
                return self.rest(name)
        try:
            answer = await talk.tell(name, f"Yes, {name}, you have the floor: speak now.")
        except BaseException as error:
            if not (self.kept and isinstance(error, Exception)):  # else the talk ends in a turn
                talk.speaking = None
            raise
        async with self.turn(name):
            talk.speaking, said = None, _speech(answer)
            return self.rest(name) if said is None or self.asks(said) else self.say(name, said)

    # --- turns

    @asynccontextmanager
    async def turn(self, name: str) -> AsyncGenerator[None]:
        """Let a member do what others see; the block does not wait.

        In a durable run that is done in the same order in each life.
        """
        if not self.kept:
            yield
            return
        self.waiting[name] = mine = asyncio.get_running_loop().create_future()
        self.came.set()
        await mine
        try:
            yield
        finally:
            self.done.set()

    async def give_turns(self) -> None:
        """Let one after the other have its turn: whoever came first in the first life."""
        while (name := await once("turn", self._first_waiting)) is not None:
            await self._until(lambda name=name: name in self.waiting)  # type: ignore[misc]
            self.done.clear()
            self.waiting.pop(name).set_result(None)
            await self.done.wait()
        # Who thinks comes to an end with it, or would remember other things in another life.
        await self._until(lambda: self.present <= self.waiting.keys())

    async def _first_waiting(self) -> str | None:
        await self._until(lambda: self.waiting or self.over.is_set())
        return None if self.over.is_set() else next(iter(self.waiting))

    async def _until(self, condition: Callable[[], object]) -> None:
        while not condition():
            self.came.clear()
            await self.came.wait()

    def asks(self, message: AgentMessage) -> bool:
        """Say whether a message asks for the floor."""
        return self.request in message.text.lower()


def _speech(answer: Answer) -> AgentMessage | None:
    """Return what was said, if that was anything."""
    message = answer.message
    return message if message is not None and message.text.strip() else None


class _Seat(Node[None], internal=True):
    def __init__(self, floor: _Floor, name: str) -> None:
        super().__init__(f"{name}.seat")
        self._floor = floor
        self._name = name

    async def task(self) -> None:
        floor, name = self._floor, self._name
        floor.rest(name)
        try:
            while name in floor.present and await floor.hear_next(name):
                if name not in floor.talk.members:
                    break
                await floor.hear_and_answer(name)
        except Exception as error:
            # No more may be said in the outer conversation. Or a member has failed in a durable
            # run: whoever is cancelled for that would not come to its turns in a later life.
            if not (floor.kept or isinstance(error, ConversationTooLong)):
                raise
            async with floor.turn(name):
                floor.fault = floor.fault or error
                floor.end("message_limit")
        finally:
            floor.leave(name)


@prompt
def role_prompt(name: str, character: str, request: str = "Can I speak?") -> None:
    """You are {name}, one of several people in a conversation. {character}

    Stay in this role. You hear what the others say, each line with its speaker's name before it.
    Think about whether you have something to add. If not, answer with nothing but a space.
    If you do, first ask for the floor, with exactly these words: {request}
    Wait for the answer. If you are told that somebody else is speaking, listen on. If you are told
    that you have the floor, say what you have to say, at once and in a few sentences.
    """
