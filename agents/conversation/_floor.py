"""`GroupTalk`: everybody hears everything, and asks for the floor while others speak."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, cast

from ...commander import Node
from ..errors import ConversationTooLong
from ..layers._message import AgentMessage
from ..layers._prompt import prompt
from ._directory import Answer, Directory, Participant, Status
from ._group import Group
from ._messages import as_message, is_termination
from ._scope import MAX_MESSAGES, mute

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
    `max_turns`, which is logged; who still thinks then is cancelled. `speaking` is who has the
    floor, None if nobody has.
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
        self.speaking: str | None = None
        self._left = 0
        # Who is at the talk, and who of them is being told something or thinks.
        self._present: set[str] = set()
        self._busy: set[str] = set()
        self._ending: Status | None = None
        self._fault: ConversationTooLong | None = None
        # One for each seat, rung when there is news, and one for the end.
        self._bells: dict[str, asyncio.Event] = {}
        self._over = asyncio.Event()

    async def talk(self, node: Node[Any]) -> Status:
        """Give each member a seat, a child of `node`, and wait until the talk has ended."""
        self._left, self._ending, self.speaking = self.max_turns, None, None
        self._present, self._busy, self._fault = set(self.members), set(), None
        self._bells = {name: asyncio.Event() for name in self.members}
        self._over = asyncio.Event()
        seats = [node.call_handler(_Seat(self, name)) for name in self.members]
        await self._over.wait()
        for seat in seats:
            seat.cancel("the talk is over")
        if self._fault is not None:
            raise self._fault
        if not self._left:
            logger.info(
                "%s: the talk was stopped after %d speeches (max_turns)",
                node.path,
                self.max_turns,
            )
        return cast("Status", self._ending)

    def hear(self, message: AgentMessage) -> None:
        """Note a message, and wake those who wait for one."""
        super().hear(message)
        for bell in self._bells.values():
            bell.set()

    async def _hear_next(self, name: str) -> bool:
        """Wait until a member has something to hear; False if the talk has ended."""
        self._busy.discard(name)
        self._end_if_quiet()
        while self._ending is None and not self._inbox[name]:
            self._bells[name].clear()
            await self._bells[name].wait()
        self._busy.add(name)
        return self._ending is None

    async def _turn(self, name: str) -> bool:
        """Let a member hear and answer; False if it leaves."""
        with mute():
            answer = await self.ask(name)
        message = answer.message
        if message is None or not message.text.strip():
            return answer.status != "left"
        if self.speaking is not None:
            await self._tell(name, f"No, {self.speaking} is speaking.", request_reply=False)
            return True
        if self._asks(message):
            self.speaking = name
            try:
                answer = await self._tell(name, f"Yes, {name}, you have the floor: speak now.")
            finally:
                self.speaking = None
            message = answer.message
            if message is None or not message.text.strip() or self._asks(message):
                return True
            message = as_message(message, name, self.name)
        if self._ending is None:
            self.say(message)
            self._left -= 1
            if is_termination(message):
                self._end("terminated")
            elif not self._left:
                self._end("turn_limit")
        return True

    async def _tell(self, name: str, text: str, *, request_reply: bool = True) -> Answer:
        member = await self._member(name)
        message = as_message(text, self.name, self.name)
        return await member.receive(message, request_reply=request_reply)

    def _asks(self, message: AgentMessage) -> bool:
        return self.request.lower() in message.text.lower()

    def _end_if_quiet(self) -> None:
        if not self._busy and not any(self._inbox[name] for name in self._present):
            self._end("no_answer")

    def _end(self, how: Status) -> None:
        self._ending = self._ending or how
        self._over.set()
        for bell in self._bells.values():
            bell.set()


class _Seat(Node[None], internal=True):
    def __init__(self, talk: GroupTalk, name: str) -> None:
        super().__init__(f"{name}.seat")
        self._talk = talk
        self._name = name

    async def task(self) -> None:
        talk, name = self._talk, self._name
        try:
            while await talk._hear_next(name) and await talk._turn(name):
                pass
        except ConversationTooLong as error:  # no more may be said in the outer conversation
            talk._fault = error
            talk._end("message_limit")
        finally:
            talk._present.discard(name)
            talk._busy.discard(name)
            talk._end_if_quiet()


@prompt
def role_prompt(name: str, character: str, request: str = "Can I speak?") -> None:
    """You are {name}, one of several people in a conversation. {character}

    Stay in this role. You hear what the others say, each line with its speaker's name before it.
    Think about whether you have something to add. If not, answer with nothing but a space.
    If you do, first ask for the floor, with exactly these words: {request}
    Wait for the answer. If you are told that somebody else is speaking, listen on. If you are told
    that you have the floor, say what you have to say, at once and in a few sentences.
    """
