"""Groups: several participants who hear each other, one speaking at a time (`_speakers`: who)."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from inspect import isawaitable
from typing import Any, TypeAlias

from ...commander import Node
from ..errors import ConversationTooLong, UnknownAgent
from ..layers import AgentMessage
from ..layers._call import run_in_tree
from ._directory import Answer, Directory, Participant, Status, name_of
from ._messages import as_message, is_termination
from ._scope import MAX_MESSAGES, current_scope, open_scope
from ._speakers import round_robin

__all__ = ["Group", "GroupChat", "SpeakerPolicy"]

logger = logging.getLogger("anabranch.agents")

SpeakerPolicy: TypeAlias = "Callable[[GroupChat], str | Awaitable[str | None] | None]"
"""Names the next speaker of a group, None to end the talk; plain or async."""

GO_ON = "Please go on."


class Group(ABC):
    """Several participants under one name, itself a participant: what all groups share.

    A message to the group starts a talk; the talk's last message is the group's answer. What a
    member says goes into every member's history with the group, under the speaker's name. `members`
    are participants, or names that `directory` knows. A subclass writes `talk`, which calls `ask`
    and `say`.

    `messages` is all that was said, oldest first; `status` is how the last talk ended.
    """

    def __init__(
        self,
        name: str,
        members: Iterable[Participant | str],
        *,
        directory: Directory | None = None,
        max_messages: int = MAX_MESSAGES,
    ) -> None:
        self.name = name
        self.members = {name_of(member): member for member in members}
        if not self.members:
            raise ValueError(f"the group {name!r} has no members")
        self.messages: list[AgentMessage] = []
        self.status: Status = "no_answer"
        self._directory = directory
        self._talking = False
        self._max_messages = max_messages
        # What each member has not heard yet.
        self._inbox: dict[str, list[AgentMessage]] = {each: [] for each in self.members}
        if directory is not None:
            directory.add(self)

    @property
    def names(self) -> list[str]:
        """The members' names, in the order in which they were given."""
        return [*self.members]

    async def receive(self, message: AgentMessage, *, request_reply: bool = True) -> Answer:
        """Hear a message from outside, or from a member, and let the group talk about it.

        A message that comes while the group talks is part of that talk.
        """
        self.hear(message)
        if not request_reply or self._talking:
            return Answer(status="delivered")
        self._talking = True
        try:
            return await run_in_tree(_Talk(self, message))
        finally:
            self._talking = False

    async def begin_chat(self, partner: str, *, clear_history: bool = False) -> None:
        """Begin a conversation with the group, and so with all its members."""
        if clear_history:
            self.messages.clear()
            for inbox in self._inbox.values():
                inbox.clear()
        for name in self.members:
            if name != partner:
                await (await self._member(name)).begin_chat(self.name, clear_history=clear_history)

    @abstractmethod
    async def talk(self, node: Node[Any]) -> Status:
        """Let the members speak until the talk ends, below `node`; return how it did."""

    def hear(self, message: AgentMessage) -> None:
        """Note a message that all but its sender are to be told."""
        self.messages.append(message)
        for name, inbox in self._inbox.items():
            if name != message.sender:
                inbox.append(message.model_copy(update={"receiver": self.name}))

    def say(self, message: AgentMessage) -> None:
        """Count what a member has said, and let all hear it."""
        scope = current_scope()
        assert scope is not None
        scope.spend()
        scope.tell(message)
        self.hear(message)

    async def ask(self, name: str, nudge: str = GO_ON) -> Answer:
        """Tell a member what it has not heard yet, and let it answer the last of that."""
        member = await self._member(name)
        unheard, self._inbox[name] = self._inbox[name], []
        if not unheard:
            unheard = [as_message(nudge, self.name, self.name)]
        for message in unheard[:-1]:
            await member.receive(message, request_reply=False)
        answer = await member.receive(unheard[-1])
        if answer.message is None:
            return answer
        return Answer(as_message(answer.message, name, self.name))

    async def _member(self, name: str) -> Participant:
        if name not in self.members:
            raise UnknownAgent(name, self.names)
        member = self.members[name]
        if not isinstance(member, str):
            return member
        return await (self._directory or Directory()).find(member)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {', '.join(self.names)}>"


class _Talk(Node[Answer], internal=True):
    def __init__(self, group: Group, message: AgentMessage) -> None:
        super().__init__(f"{group.name}.talk")
        self._group = group
        self._message = message

    async def task(self) -> Answer:
        group = self._group
        with open_scope(group._max_messages) as (_, is_outermost):
            try:
                group.status = await group.talk(self)
            except ConversationTooLong as error:
                group.status = "message_limit"
                if not is_outermost:
                    raise
                logger.warning("%s: %s", self.path, error)
        for name, inbox in group._inbox.items():  # so that all histories are complete
            member = await group._member(name)
            while inbox:
                await member.receive(inbox.pop(0), request_reply=False)
        last, asker = group.messages[-1], self._message.sender
        if asker in group.members or last is self._message:
            return Answer(status=group.status)  # nothing that the asker has not heard
        return Answer(as_message(last, group.name, asker), group.status)


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
        super().__init__(name, members, directory=directory, max_messages=max_messages)
        self.speaker = speaker
        self.max_turns = max_turns
        self.is_termination = is_termination
        self.last_speaker: str | None = None

    async def talk(self, node: Node[Any]) -> Status:
        """Ask one after the other."""
        said = silent = 0
        self.last_speaker = self.messages[-1].sender
        while said < self.max_turns:
            chosen = self.speaker(self)
            name = await chosen if isawaitable(chosen) else chosen
            if name is None:
                return "no_answer"
            answer = await self.ask(name)
            self.last_speaker = name
            if answer.message is None:
                silent += 1
                if answer.status == "left" or silent == len(self.members):
                    return answer.status
                continue
            self.say(answer.message)
            said, silent = said + 1, 0
            if self.is_termination(answer.message):
                return "terminated"
        logger.info("%s: the group was stopped after %d messages (max_turns)", node.path, said)
        return "turn_limit"
