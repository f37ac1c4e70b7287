"""Groups: participants who read each other's messages, one speaking at a time."""

from __future__ import annotations

import logging
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from contextvars import ContextVar
from functools import partial
from inspect import isawaitable
from typing import Any, TypeAlias

from ...backends import Backend
from ...commander import Node, current_node
from ...commander.kinds import checked
from ...commander.scope import scope_here
from ..errors import ConversationTooLong, UnknownAgent
from ..layers import AgentMessage, prompt
from ..layers._call import run_in_tree
from ..layers._memory import TemporarySession
from ._participant import (
    Answer,
    Directory,
    Participant,
    Status,
    as_message,
    is_termination,
    name_of,
)
from ._scope import MAX_MESSAGES, current_scope, current_session, open_scope, with_session

__all__ = [
    "Group",
    "GroupChat",
    "GroupConversation",
    "SpeakerPolicy",
    "choose_by_model",
    "random_speaker",
    "round_robin",
]

logger = logging.getLogger("anabranch.agents")

GO_ON = "Please go on."
FREE = nullcontext()


class GroupConversation:
    """The conversation of a group with one asker, in one session.

    `asker` is the name of who started it. `messages` has all messages, oldest first; `status` is
    how it ended last. `last_speaker` spoke last, and `speaking` has its turn now, None if nobody.
    """

    def __init__(self, group: Group, asker: str) -> None:
        self.group = group
        self.asker = asker
        self.messages: list[AgentMessage] = []
        self.status: Status = "no_answer"
        self.last_speaker: str | None = None
        self.speaking: str | None = None
        # The messages that each one who was a member so far has not received yet.
        self._undelivered: dict[str, list[AgentMessage]] = {each: [] for each in group.members}
        self.on_message: Callable[[], object] | None = None
        # The members while these must not change.
        self.fixed_members: Mapping[str, Participant | str] | None = None
        self.is_active = False
        # The message that the members answer, or answered when the conversation failed.
        self.failed: AgentMessage | None = None

    @property
    def members(self) -> Mapping[str, Participant | str]:
        """The members by their names."""
        return self.group.members if self.fixed_members is None else self.fixed_members

    @property
    def names(self) -> list[str]:
        """The members' names, in the order in which they were given."""
        return [*self.members]

    def undelivered(self, name: str) -> list[AgentMessage]:
        """Return the messages that a member has not received: all, if it has just been added."""
        if name not in self._undelivered:
            own = (each for each in self.messages if each.sender != name)
            self._undelivered[name] = [self._for_all(each) for each in own]
        return self._undelivered[name]

    def _for_all(self, message: AgentMessage) -> AgentMessage:
        return message.model_copy(update={"receiver": self.group.name})

    def add(self, message: AgentMessage) -> None:
        """Add a message, which all but its sender will receive."""
        self.messages.append(message)
        for name, undelivered in self._undelivered.items():
            if name != message.sender:
                undelivered.append(self._for_all(message))
        if self.on_message is not None:
            self.on_message()

    def publish(self, message: AgentMessage) -> None:
        """Count a member's message against the limit, and add it."""
        scope = current_scope()
        assert scope is not None
        scope.spend()
        scope.tell(message)
        self.add(message)

    async def ask(
        self,
        name: str,
        nudge: str = GO_ON,
        *,
        turn: AbstractAsyncContextManager[None] = FREE,
    ) -> Answer:
        """Deliver to a member what it has not received, and let it answer the last message.

        The block of `turn` decides which messages these are.
        """
        member = await self.group.find(name, self.members)
        async with turn:
            undelivered, self._undelivered[name] = self.undelivered(name), []
        if not undelivered:
            return await self.send(name, nudge)
        for message in undelivered[:-1]:
            await member.receive(message, request_reply=False)
        return self._answer(name, await member.receive(undelivered[-1]))

    async def send(self, name: str, text: str, *, request_reply: bool = True) -> Answer:
        """Send a member a message of the group itself."""
        message = as_message(text, self.group.name, self.group.name)
        member = await self.group.find(name, self.members)
        return self._answer(name, await member.receive(message, request_reply=request_reply))

    def _answer(self, name: str, answer: Answer) -> Answer:
        if answer.message is None:
            return answer
        return Answer(as_message(answer.message, name, self.group.name))


class ConversationNode(Node[Answer], internal=True, name="TalkNode"):
    """Lets the members of a group answer a message."""

    def __init__(self, conversation: GroupConversation, message: AgentMessage) -> None:
        super().__init__(f"{conversation.group.name}.talk")
        self.talk = conversation  # journals have the names of attributes
        self._message = message

    async def task(self) -> Answer:
        """Hold the conversation, then deliver to each member what it has not received."""
        conversation, group = self.talk, self.talk.group
        with open_scope(group.max_messages) as (_, is_outermost):
            try:
                conversation.status = await group.hold(conversation, self)
            except ConversationTooLong as error:
                conversation.status = "message_limit"
                if not is_outermost:
                    raise
                logger.warning("%s: %s", self.path, error)
        for name in conversation.names:  # so that all histories are complete
            while name in group.members and (undelivered := conversation.undelivered(name)):
                member = await group.find(name)
                await member.receive(undelivered.pop(0), request_reply=False)
        last = conversation.messages[-1]
        if conversation.asker in group.members or last is self._message:
            return Answer(status=conversation.status)  # the asker has all messages
        return Answer(as_message(last, group.name, self._message.sender), conversation.status)


def _running_conversation(group: str) -> GroupConversation | None:
    """Return the conversation of `group` in which this is called, None outside of one."""
    try:
        node: Node[Any] = current_node()
    except LookupError:
        return None
    for each in (node, *node.ancestors):
        if isinstance(each, ConversationNode) and each.talk.group.name == group:
            return each.talk
    return None


# --- speaker policies


def round_robin(conversation: GroupConversation) -> str:
    """Name the member after the last speaker, in the order of the members."""
    names = conversation.names
    if conversation.last_speaker not in names:
        return names[0]
    return names[(names.index(conversation.last_speaker) + 1) % len(names)]


def random_speaker(seed: int | None = None) -> Callable[[GroupConversation], str]:
    """Make a policy that names any member but the last speaker, always the same with a `seed`.

    Without one, each execution of a durable run names the same.
    """
    chance = random.Random(seed)  # noqa: S311 - not for secrets

    def choose(conversation: GroupConversation) -> str:
        if seed is None and (scope := scope_here()) is not None:
            chance.seed(scope.own_name("speaker"))
        return chance.choice(_others(conversation))

    return choose


def choose_by_model(
    backend: Backend, **options: Any
) -> Callable[[GroupConversation], Awaitable[str]]:
    """Make a policy that lets a model choose by the conversation and members' `description`s.

    If it names none of them, or more than one, the next in turn speaks, which is logged.
    """
    ask = choose_speaker.with_backend(backend, **options)

    async def choose(conversation: GroupConversation) -> str:
        names = _others(conversation)
        if len(names) == 1:
            return names[0]
        roles = (
            f"{name}: {getattr(member, 'description', '') or 'a member'}"
            for name, member in conversation.members.items()
        )
        lines = (f"{message.sender}: {message.text}" for message in conversation.messages)
        reply = await ask("\n".join(roles), "\n".join(lines), ", ".join(names))
        # The longest first: a longer name is not also the shorter one in it.
        by_length = sorted(names, key=len, reverse=True)
        pattern = "|".join(rf"(?<!\w){re.escape(name)}(?!\w)" for name in by_length)
        found = {each.lower() for each in re.findall(pattern, reply, re.IGNORECASE)}
        mentioned = [name for name in names if name.lower() in found]
        if len(mentioned) == 1:
            return mentioned[0]
        name = round_robin(conversation)
        logger.warning("the model named no speaker of %s: %.200r; %s is next", names, reply, name)
        return name

    return choose


@prompt
def choose_speaker(roles: str, talk: str, names: str) -> None:
    """Several people talk with each other:
    {roles}

    This was said so far:
    {talk}

    Who should speak next: {names}? Answer with the name alone.
    """


def _others(conversation: GroupConversation) -> list[str]:
    return [
        name for name in conversation.names if name != conversation.last_speaker
    ] or conversation.names


SpeakerPolicy: TypeAlias = Callable[[GroupConversation], str | Awaitable[str | None] | None]
"""Names the next speaker of a conversation, None to end it; plain or async."""


# The groups that tell each other, as their members, that a conversation begins.
_ASKING: ContextVar[tuple[str, ...]] = ContextVar("anabranch.conversation.asking", default=())


class Group(ABC):
    """Several participants under one name, itself a participant: what all groups share.

    A message to the group starts a conversation of its members, whose last message is the group's
    answer. All members receive each message, under its sender's name. `members` are participants,
    or names that `directory` knows. A subclass writes `hold`.

    The attribute `members`, by name, may be changed at any time, also during a conversation. A new
    member first receives the earlier messages; a member that is removed is not asked any more.

    `talks` has one conversation for each asker and session: "ann", "ann#7" for the session 7, and
    "alice@ann" if alice asks in a conversation that ann began. A name with such a mark in it is in
    quotes, as Python writes it. They are separate and may be active at once. Members remember them
    separately too, as their sessions are (see `Chat`).
    """

    @checked
    def __init__(
        self,
        name: str,
        members: Iterable[Participant | str],
        *,
        max_turns: int = 10,
        directory: Directory | None = None,
        max_messages: int = MAX_MESSAGES,
    ) -> None:
        if max_turns < 1:
            raise ValueError(f"max_turns must be at least 1, not {max_turns!r}")
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
        self.talks: dict[str, GroupConversation] = {}
        self.max_turns = max_turns
        self.max_messages = max_messages
        self._directory = directory
        if directory is not None:
            directory.add(self)

    @property
    def chat_messages(self) -> dict[str, list[AgentMessage]]:
        """The messages of each conversation, oldest first, in new lists."""
        return {key: list(each.messages) for key, each in self.talks.items()}

    async def receive(self, message: AgentMessage, *, request_reply: bool = True) -> Answer:
        """Take a message from outside, or from a member, and let the members answer it.

        A message from within a conversation, or during it, becomes a part of it.
        """
        conversation = self._conversation_of(message)
        conversation.add(message)
        if not request_reply or conversation.is_active:
            return Answer(status="delivered")
        return await self._hold(conversation, message)

    async def receive_again(self, message: AgentMessage, *, request_reply: bool = True) -> Answer:
        """Continue the conversation that failed with this message, or `receive` the message."""
        conversation = self._conversation_of(message)
        if request_reply and conversation.failed == message and not conversation.is_active:
            return await self._hold(conversation, message)
        return await self.receive(message, request_reply=request_reply)

    async def _hold(self, conversation: GroupConversation, message: AgentMessage) -> Answer:
        conversation.is_active, conversation.failed = True, message
        try:
            answer = await run_in_tree(ConversationNode(conversation, message))
        finally:
            conversation.is_active = False
        conversation.failed = None
        return answer

    def _conversation_of(self, message: AgentMessage) -> GroupConversation:
        """Return the conversation that a message belongs to, a new one if there is none."""
        # A message to another group comes from that, of which this one is a member.
        asker = message.sender if message.receiver in (None, self.name) else message.receiver
        key = with_session(asker)
        found = _running_conversation(self.name) or self.talks.get(key)
        if found is None:
            found = self.talks[key] = GroupConversation(self, asker)
            if isinstance(session := current_session(), TemporarySession):
                session.forget[self, key] = partial(self.talks.pop, key, None)
        return found

    async def begin_chat(self, partner: str, *, clear_history: bool = False) -> None:
        """Begin a conversation with `partner`, and so with all the members."""
        asking = _ASKING.get()
        if self.name in asking:
            circle = " > ".join((*asking[asking.index(self.name) :], self.name))
            raise ValueError(f"the group {self.name!r} is a member of itself: {circle}")
        if clear_history:
            self.talks.pop(with_session(partner), None)
        token = _ASKING.set((*asking, self.name))
        try:
            for name in [*self.members]:  # they may change during this
                if name != partner or name in asking:  # a group is told, and refuses the circle
                    member = await self.find(name)
                    await member.begin_chat(self.name, clear_history=clear_history)
        finally:
            _ASKING.reset(token)

    @abstractmethod
    async def hold(self, conversation: GroupConversation, node: Node[Any]) -> Status:
        """Let the members speak below `node`, by `conversation.ask` and `conversation.publish`.

        Returns how the conversation ended. Several may be active at once.
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

    A conversation ends when a message says so (`TERMINATE`, or the predicate `is_termination`),
    when a person leaves, when `speaker` names nobody, when all members in a row had no answer, or
    after `max_turns` messages, which is logged.
    """

    @checked(speaker="a function, such as round_robin")
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
        super().__init__(
            name, members, max_turns=max_turns, directory=directory, max_messages=max_messages
        )
        self.speaker = speaker
        self.is_termination = is_termination

    async def hold(self, conversation: GroupConversation, node: Node[Any]) -> Status:
        """Ask one after the other."""
        said = silent = 0
        conversation.last_speaker = conversation.messages[-1].sender
        while said < self.max_turns:
            names = conversation.names
            if not names:
                return "no_answer"
            chosen = self.speaker(conversation)
            name = await chosen if isawaitable(chosen) else chosen
            if name is None:
                return "no_answer"
            if name in names and name not in self.members:
                continue  # it was removed while it was chosen
            answer = await conversation.ask(name)
            conversation.last_speaker = name
            if answer.message is None:
                silent += 1
                if answer.status == "left" or silent >= len(self.members):
                    return answer.status
                continue
            conversation.publish(answer.message)
            said, silent = said + 1, 0
            if self.is_termination(answer.message):
                return "terminated"
        logger.info("%s: the group was stopped after %d messages (max_turns)", node.path, said)
        return "turn_limit"
