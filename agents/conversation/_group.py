"""Groups: several participants who hear each other, one speaking at a time (`_speakers`: who)."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from functools import partial
from inspect import isawaitable
from typing import Any, TypeAlias

from ...commander import Node
from ...commander.kinds import require
from ..errors import UnknownAgent
from ..layers import AgentMessage
from ..layers._call import run_in_tree
from ..layers._memory import OwnSession
from ._directory import Answer, Directory, Participant, Status, name_of
from ._messages import is_termination
from ._scope import MAX_MESSAGES, current_session, with_session
from ._speakers import round_robin
from ._talk import Talk, TalkNode, find_talk

__all__ = ["Group", "GroupChat", "SpeakerPolicy"]

logger = logging.getLogger("anabranch.agents")

SpeakerPolicy: TypeAlias = Callable[[Talk], str | Awaitable[str | None] | None]
"""Names the next speaker of a talk, None to end it; plain or async."""


# The groups that tell each other, as their members, that a conversation begins.
_ASKING: ContextVar[tuple[str, ...]] = ContextVar("anabranch.conversation.asking", default=())


class Group(ABC):
    """Several participants under one name, itself a participant: what all groups share.

    A message to the group starts a talk; the talk's last message is the group's answer. What a
    member says goes into every member's history of this talk, under the speaker's name. `members`
    are participants, or names that `directory` knows. A subclass writes `hold`.

    The attribute `members`, by name, may be changed at any time, also during a talk. A member that
    is added hears what was said in the talk before; one that is removed is not asked any more.

    `talks` has the talk of each who asked, by its name and, if the conversation is another's or
    its session was named, that: "ann", "ann#7", "alice@ann". A name with such a mark in it stands
    there as Python writes it, in quotes. They know nothing of each other, and
    may be held at once; what members remember of them is apart as their sessions are (see `Chat`).
    """

    def __init__(
        self,
        name: str,
        members: Iterable[Participant | str],
        *,
        directory: Directory | None = None,
        max_messages: int = MAX_MESSAGES,
    ) -> None:
        require(name, str, "name must be a text")
        require(members, Iterable, "members must be a list of participants and names")
        require(directory, Directory | None, "directory must be a Directory or None")
        self.name = name
        self.members: dict[str, Participant | str] = {}
        for member in members:
            if name_of(member) == name:
                raise ValueError(f"the group {name!r} cannot be a member of itself")
            if name_of(member) in self.members:
                raise ValueError(f"the group {name!r} has two members called {name_of(member)!r}")
            self.members[name_of(member)] = member
        if not self.members:
            raise ValueError(f"the group {name!r} has no members")
        self.talks: dict[str, Talk] = {}
        self.max_messages = max_messages
        self._directory = directory
        if directory is not None:
            directory.add(self)

    @property
    def chat_messages(self) -> dict[str, list[AgentMessage]]:
        """What was said in each talk, oldest first, in new lists."""
        return {key: list(talk.messages) for key, talk in self.talks.items()}

    async def receive(self, message: AgentMessage, *, request_reply: bool = True) -> Answer:
        """Hear a message from outside, or from a member, and let the group talk about it.

        A message that comes while this talk is held, or from within it, is part of it.
        """
        talk = self._talk(message)
        talk.hear(message)
        if not request_reply or talk.held:
            return Answer(status="delivered")
        return await self._hold(talk, message)

    async def receive_again(self, message: AgentMessage, *, request_reply: bool = True) -> Answer:
        """Let the group go on about a message about which its talk has failed, or `receive` it."""
        talk = self._talk(message)
        if request_reply and talk.failed == message and not talk.held:
            return await self._hold(talk, message)
        return await self.receive(message, request_reply=request_reply)

    async def _hold(self, talk: Talk, message: AgentMessage) -> Answer:
        talk.held, talk.failed = True, message
        try:
            answer = await run_in_tree(TalkNode(talk, message))
        finally:
            talk.held = False
        talk.failed = None
        return answer

    def _talk(self, message: AgentMessage) -> Talk:
        """Return the talk of which a message is, a new one if there is none."""
        # A message to another group comes from that, of which this one is a member.
        asker = message.sender if message.receiver in (None, self.name) else message.receiver
        talk, key = find_talk(self.name), with_session(asker)
        if talk is None:
            talk = self.talks.get(key)
        if talk is None:
            talk = self.talks[key] = Talk(self, asker)
            if isinstance(session := current_session(), OwnSession):
                session.forget[self, key] = partial(self.talks.pop, key, None)
        return talk

    async def begin_chat(self, partner: str, *, clear_history: bool = False) -> None:
        """Begin a talk with `partner`, and so with all the members."""
        asking = _ASKING.get()
        if self.name in asking:
            circle = " > ".join((*asking[asking.index(self.name) :], self.name))
            raise ValueError(f"the group {self.name!r} is a member of itself: {circle}")
        if clear_history:
            self.talks.pop(with_session(partner), None)
        token = _ASKING.set((*asking, self.name))
        try:
            for name in [*self.members]:  # which may change meanwhile
                if name != partner or name in asking:  # a group is told, and refuses the circle
                    member = await self.find(name)
                    await member.begin_chat(self.name, clear_history=clear_history)
        finally:
            _ASKING.reset(token)

    @abstractmethod
    async def hold(self, talk: Talk, node: Node[Any]) -> Status:
        """Let the members speak, by `talk.ask` and `talk.say`, below `node`, until the talk ends.

        Returns how it did. Several talks may be held at once.
        """

    async def find(
        self, name: str, members: Mapping[str, Participant | str] | None = None
    ) -> Participant:
        """Return a member; raise `UnknownAgent` for another name, or one that nobody has.

        `members` are those to look among, by default those of the group.
        """
        members = self.members if members is None else members
        if name not in members:
            raise UnknownAgent(name, [*members], f"the group {self.name!r}")
        member = members[name]
        if not isinstance(member, str):
            return member
        return await (self._directory or Directory()).find(member)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {', '.join(self.members)}>"


class GroupChat(Group):
    """A group in which one speaks at a time, and `speaker` says who: by default, in turn.

        team = GroupChat("team", [planner, writer, critic], speaker=choose_by_model(backend))
        result = await user.initiate_chat(team, "Write a poem about a river.")

    A talk ends when somebody says so (`TERMINATE`, or the predicate `is_termination`), when a
    person leaves, when `speaker` names nobody, when all have been asked in a row and none had an
    answer, or after `max_turns` messages, which is logged.
    """

    def __init__(
        self,
        name: str,
        members: Iterable[Participant | str],
        *,
        speaker: SpeakerPolicy = round_robin,
        max_turns: int = 10,
        is_termination: Callable[[AgentMessage], bool] = is_termination,
        directory: Directory | None = None,
        max_messages: int = MAX_MESSAGES,
    ) -> None:
        if max_turns < 1:
            raise ValueError(f"max_turns must be at least 1, not {max_turns!r}")
        if not callable(speaker):
            raise TypeError(f"speaker is a function, such as round_robin, not {speaker!r}")
        super().__init__(name, members, directory=directory, max_messages=max_messages)
        self.speaker = speaker
        self.max_turns = max_turns
        self.is_termination = is_termination

    async def hold(self, talk: Talk, node: Node[Any]) -> Status:
        """Ask one after the other."""
        said = silent = 0
        talk.last_speaker = talk.messages[-1].sender
        while said < self.max_turns:
            names = talk.names
            if not names:
                return "no_answer"
            chosen = self.speaker(talk)
            name = await chosen if isawaitable(chosen) else chosen
            if name is None:
                return "no_answer"
            if name in names and name not in self.members:
                continue  # it was removed while it was chosen
            answer = await talk.ask(name)
            talk.last_speaker = name
            if answer.message is None:
                silent += 1
                if answer.status == "left" or silent >= len(self.members):
                    return answer.status
                continue
            talk.say(answer.message)
            said, silent = said + 1, 0
            if self.is_termination(answer.message):
                return "terminated"
        logger.info("%s: the group was stopped after %d messages (max_turns)", node.path, said)
        return "turn_limit"
