"""`Group`: participants who read each other's messages. `GroupChat`: a policy names the speaker."""

from __future__ import annotations

import logging
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from inspect import isawaitable
from typing import Any, TypeAlias, Unpack

from ...backends import Backend
from ...commander import Node, SyncOptions, current_node
from ...commander.durable import scope_here
from ...commander.kinds import checked
from ..errors import ConversationTooLong, UnknownAgent
from ..layers import AgentMessage, prompt
from ..layers._call import run_in_tree
from ..layers._memory import TemporarySession
from ._chat import Chat, ChatResult
from ._participant import (
    Answer,
    Directory,
    MessageLike,
    Participant,
    Status,
    as_message,
    is_termination,
    name_of,
)
from ._scope import (
    MAX_MESSAGES,
    current_scope,
    current_session,
    hold_within_limit,
    key_of,
    set_in_block,
    with_session,
)

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

CONTINUE_PROMPT = "Please go on."
NO_TURN = nullcontext()


class GroupConversation:
    """The conversation of a group in one session, started by one participant.

    `asker` is the name of that participant. `messages` has all messages, oldest first. `status`
    says how the conversation ended last. `last_speaker` gave the last message. `speaking` is the
    member whose turn it is, or None.
    """

    def __init__(self, group: Group, asker: str) -> None:
        self.group = group
        self.asker = asker
        self.messages: list[AgentMessage] = []
        self.status: Status = "no_answer"
        self.last_speaker: str | None = None
        self.speaking: str | None = None
        # By name: the messages that a present or removed member has not received yet.
        self._undelivered: dict[str, list[AgentMessage]] = {each: [] for each in group.members}
        self.on_message: Callable[[], object] | None = None
        # Replaces the group's members while these must not change, in a durable run.
        self.fixed_members: Mapping[str, Participant | str] | None = None
        self.is_active = False
        # The message that the members answer. It stays after a failure, for `receive_again`.
        self.failed: AgentMessage | None = None

    @property
    def members(self) -> Mapping[str, Participant | str]:
        """The members by their names."""
        return self.group.members if self.fixed_members is None else self.fixed_members

    @property
    def names(self) -> list[str]:
        """The members' names, in the order of the members."""
        return [*self.members]

    def undelivered(self, name: str) -> list[AgentMessage]:
        """Return the messages that a member has not received: all, for a new member."""
        if name not in self._undelivered:
            others = (each for each in self.messages if each.sender != name)
            self._undelivered[name] = [self._for_all(each) for each in others]
        return self._undelivered[name]

    def _for_all(self, message: AgentMessage) -> AgentMessage:
        return message.model_copy(update={"receiver": self.group.name})

    def add(self, message: AgentMessage) -> None:
        """Add a message, which all members but its sender will receive."""
        self.messages.append(message)
        for name, undelivered in self._undelivered.items():
            if name != message.sender:
                undelivered.append(self._for_all(message))
        if self.on_message is not None:
            self.on_message()

    def publish(self, message: AgentMessage) -> None:
        """Count a member's message against the limit, publish it to listeners, and add it."""
        scope = current_scope()
        assert scope is not None
        scope.spend()
        scope.publish(message)
        self.add(message)

    async def ask(
        self,
        name: str,
        nudge: str = CONTINUE_PROMPT,
        *,
        turn: AbstractAsyncContextManager[None] = NO_TURN,
    ) -> Answer:
        """Deliver the missing messages to a member, and return its answer to the last one.

        The block of `turn` decides which messages these are. A member without missing messages
        receives `nudge`.
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
        """Send a message of the group itself to a member."""
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
        self.talk = conversation  # not renamed: node identities in journals have this name
        self._message = message

    async def task(self) -> Answer:
        """Hold the conversation, then deliver the missing messages to each member."""
        conversation, group = self.talk, self.talk.group
        try:
            conversation.status = await hold_within_limit(
                self, group.max_messages, lambda _: group.hold(conversation, self)
            )
        except ConversationTooLong:
            conversation.status = "message_limit"
            raise
        for name in conversation.names:  # so that the histories of all members are complete
            while name in group.members and (undelivered := conversation.undelivered(name)):
                member = await group.find(name)
                await member.receive(undelivered.pop(0), request_reply=False)
        last = conversation.messages[-1]
        if conversation.asker in group.members or last is self._message:
            return Answer(status=conversation.status)  # the asker has received all messages
        return Answer(as_message(last, group.name, self._message.sender), conversation.status)


def _running_conversation(group: str) -> GroupConversation | None:
    """Return the conversation of `group` around this call, None outside of one."""
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
    """Return the member after the last speaker, in the order of the members."""
    names = conversation.names
    if conversation.last_speaker not in names:
        return names[0]
    return names[(names.index(conversation.last_speaker) + 1) % len(names)]


def random_speaker(seed: int | None = None) -> Callable[[GroupConversation], str]:
    """Make a policy that chooses any member but the last speaker.

    With a `seed`, it chooses the same in each program. Without one, each execution of a durable run
    chooses the same.
    """
    chance = random.Random(seed)  # noqa: S311 - not for secrets

    def choose(conversation: GroupConversation) -> str:
        if seed is None and (scope := scope_here()) is not None:
            chance.seed(scope.unique_name("speaker"))
        return chance.choice(_others(conversation))

    return choose


def choose_by_model(
    backend: Backend | str, **options: Any
) -> Callable[[GroupConversation], Awaitable[str]]:
    """Make a policy that lets a model choose, by the conversation and the members' `description`s.

        GroupChat("team", members, speaker=choose_by_model(backend))

    If the reply names none of them, or more than one, the next in turn speaks and a warning is
    logged.
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
        # The longest first, so that "anna" in the reply does not count as "ann" too.
        by_length = sorted(names, key=len, reverse=True)
        pattern = "|".join(rf"(?<!\w){re.escape(name)}(?!\w)" for name in by_length)
        found = {each.lower() for each in re.findall(pattern, reply, re.IGNORECASE)}
        mentioned = [name for name in names if name.lower() in found]
        if len(mentioned) == 1:
            return mentioned[0]
        name = round_robin(conversation)
        logger.warning("The model chose none of %s: %.200r. Next is %s.", names, reply, name)
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
"""Returns the next speaker's name, None to end the conversation; plain or async."""


# The groups whose `begin_chat` is running around this call, to find a group that contains itself.
_BEGINNING: ContextVar[tuple[str, ...]] = ContextVar("anabranch.conversation.asking", default=())


class Group(ABC):
    """Several participants under one name, themselves a participant: the base of groups.

    A message to the group starts a conversation of its members. Their last message is the group's
    answer. Each member receives each message, under its sender's name. `members` are participants,
    or names that `directory` knows. A subclass writes `hold`.

    The attribute `members`, by name, may change at any time, also during a conversation. A new
    member first receives the earlier messages. A removed member is not asked again.

    `talks` has one conversation for each asker and session: "ann", "ann#7" for session 7, and
    "alice@ann" if alice asks in a conversation that ann began. A name that contains such a mark is
    quoted as in Python. Conversations are separate, also in the members' memories, and may run at
    once (see `Chat`).
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

    def run_sync(
        self,
        message: MessageLike,
        *,
        sender: str = "user",
        **options: Unpack[SyncOptions],
    ) -> ChatResult:
        """Let the members answer a message in a program without a loop; block until their end.

            result = GroupChat("team", [planner, writer]).run_sync("Write a poem.", timeout=60)
            print(result.text)

        The message is from `sender`, who takes no further part. The result has the message, the
        group's answer and the status of the members' conversation, which is in
        `chat_messages[sender]`. A repetition continues it. `options` are those of `Chat.run_sync`.
        In a loop, use `await user.initiate_chat(group, message)`.
        """
        from ._conversable import ConversableAgent  # which imports this module

        chat = Chat(ConversableAgent(sender), self, message, max_turns=1)
        result = chat.run_sync(**options)
        return replace(result, status=self.talks[key_of(sender)].status)

    async def receive(self, message: AgentMessage, *, request_reply: bool = True) -> Answer:
        """Take a message from outside or from a member, and let the members answer it.

        A message that arrives during the conversation, or from within it, becomes a part of it.
        """
        conversation = self._conversation_of(message)
        conversation.add(message)
        if not request_reply or conversation.is_active:
            return Answer(status="delivered")
        return await self._hold(conversation, message)

    async def receive_again(self, message: AgentMessage, *, request_reply: bool = True) -> Answer:
        """Continue the conversation that failed at this message, or `receive` the message."""
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
        # A message to another group comes through that group, which has this one as a member.
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
        beginning = _BEGINNING.get()
        if self.name in beginning:
            circle = " > ".join((*beginning[beginning.index(self.name) :], self.name))
            raise ValueError(f"the group {self.name!r} is a member of itself: {circle}")
        if clear_history:
            self.talks.pop(with_session(partner), None)
        with set_in_block(_BEGINNING, (*beginning, self.name)):
            for name in [*self.members]:  # a copy: members may change during the awaits
                # The partner knows already. But a partner in `beginning` is a group that contains
                # itself, and its `begin_chat` raises the error.
                if name != partner or name in beginning:
                    member = await self.find(name)
                    await member.begin_chat(self.name, clear_history=clear_history)

    @abstractmethod
    async def hold(self, conversation: GroupConversation, node: Node[Any]) -> Status:
        """Let the members speak below `node`, and return how the conversation ended.

        Use `conversation.ask` and `conversation.publish`. Several conversations may run at once.
        """

    async def find(
        self, name: str, members: Mapping[str, Participant | str] | None = None
    ) -> Participant:
        """Return a member; raise `UnknownAgent` for another name, or one without an agent.

        It looks among `members`, by default those of the group.
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
    """A group with one speaker at a time, which `speaker` chooses. By default, the next in order.

        team = GroupChat("team", [planner, writer, critic], speaker=choose_by_model(backend))
        result = await user.initiate_chat(team, "Write a poem about a river.")

    A conversation ends when a message ends it (`TERMINATE`, or the predicate `is_termination`),
    when a person leaves, when `speaker` returns None, when all members in a row give no answer, or
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
        """Ask one member after the other."""
        count = silent = 0
        conversation.last_speaker = conversation.messages[-1].sender
        while count < self.max_turns:
            names = conversation.names
            if not names:
                return "no_answer"
            chosen = self.speaker(conversation)
            name = await chosen if isawaitable(chosen) else chosen
            if name is None:
                return "no_answer"
            if name in names and name not in self.members:
                continue  # removed while `speaker` waited
            answer = await conversation.ask(name)
            conversation.last_speaker = name
            if answer.message is None:
                silent += 1
                if answer.status == "left" or silent >= len(self.members):
                    return answer.status
                continue
            conversation.publish(answer.message)
            count, silent = count + 1, 0
            if self.is_termination(answer.message):
                return "terminated"
        logger.info("%s: the group stopped after %d messages (max_turns)", node.path, count)
        return "turn_limit"
