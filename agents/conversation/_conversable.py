"""`ConversableAgent`: an agent that talks with others, and `UserProxyAgent`, which is a person."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable
from contextlib import aclosing
from functools import partial
from typing import Any, Literal, TypeAlias, Unpack, cast

from ...backends import Backend
from ...commander import current_node, emit
from ...commander.awaitable import require_awaitable
from ...commander.kinds import checked
from ...messages import Usage
from ..layers import TOOLS, Agent, AgentMessage, Aggregator, SessionId, System
from ..layers._call import add_usage, run_in_tree, stream_call
from ..layers._memory import TemporarySession
from ..layers._stream import MESSAGE_FEED, StreamedReply
from ._chat import Chat, ChatOptions, ChatResult
from ._human import HumanInput, TerminalInput, Transcript
from ._participant import Answer, Directory, MessageLike, Participant, is_termination, name_of
from ._reply import ReplyNode, ReplyResult, ReplyRule, SenderFilter, reply_rules
from ._scope import Listener, ScopeFeed, current_session, is_with, key_of

__all__ = ["ConversableAgent", "GroupAggregator", "HumanInputMode", "UserProxyAgent"]

HumanInputMode: TypeAlias = Literal["NEVER", "TERMINATE", "ALWAYS"]

TERMINAL = TerminalInput()


class ConversableAgent(Agent[Any]):
    """An agent that receives messages and answers them, each partner's history for itself.

        class Bob(ConversableAgent):
            @reply
            async def introduce(self, message: AgentMessage) -> ReplyResult:
                return "I am Bob."

        await alice.initiate_chat("bob", "Who are you?")

    A message is answered by the first of these that has something to say:

    1. Nobody, if it ends the conversation (`TERMINATE`, or the predicate `is_termination`), or
       after `max_consecutive_auto_reply` answers in a row to this partner (None: no such limit).
    2. A person, asked by `human_input`: with `human_input_mode` "TERMINATE" in these two cases,
       with "ALWAYS" for each message. An empty line lets the agent answer by itself, "exit" and
       None end the conversation.
    3. The reply functions, in the order in which they are written (see `reply`).
    4. The model, if there is a `backend`, as `Agent` does it; else `default_auto_reply`.

    What was said with a partner, or in a group, is a session of the memory: that of its name where
    one of the two began the conversation, else one for each session of the conversations in which
    they have met (see `Chat` and `session_with`). `directory` is where others are found by name,
    and where this agent is entered. The other options are those of `Agent`.
    """

    _reserved_names = ()  # a person who takes part may be called "user"

    @checked
    def __init__(
        self,
        name: str,
        backend: Backend | None = None,
        system: System | None = None,
        *,
        directory: Directory | None = None,
        human_input_mode: HumanInputMode = "NEVER",
        human_input: HumanInput = TERMINAL,
        max_consecutive_auto_reply: int | None = 10,
        is_termination: Callable[[AgentMessage], bool] = is_termination,
        default_auto_reply: MessageLike | None = None,
        aggregator: Aggregator | None = None,
        **options: Any,
    ) -> None:
        aggregator = aggregator or GroupAggregator()
        super().__init__(backend, system, name=name, aggregator=aggregator, **options)
        # The session of what it begins: another agent of this name continues it.
        self.identity = f"@{key_of(name)}"
        self.directory = directory
        self.human_input_mode: HumanInputMode = human_input_mode
        self.human_input = human_input
        self.max_consecutive_auto_reply = max_consecutive_auto_reply
        self.is_termination = is_termination
        self.default_auto_reply = default_auto_reply
        self.rules = reply_rules(type(self))
        self.auto_replies: Counter[str] = Counter()
        # By session: messages that have not passed the hooks, whose text nobody may read before.
        # Those that arrived wait for their own answer, the abandoned ones for that of another.
        self._arrived: dict[SessionId, list[AgentMessage]] = {}
        self._abandoned: dict[SessionId, list[AgentMessage]] = {}
        if directory is not None:
            directory.add(self)

    # --- talking

    async def initiate_chat(
        self,
        recipient: Participant | str,
        message: MessageLike,
        *,
        clear_history: bool = True,
        transcript: bool | Transcript = False,
        **options: Unpack[ChatOptions],
    ) -> ChatResult:
        """Begin a conversation, by default without what was said before; return it at its end.

        With `transcript` all that is said, also by others on the way, is written to the terminal.
        The other options, and what it raises, are those of `Chat`. Cancelling it cancels the
        conversation.
        """
        listener = Transcript() if transcript is True else transcript or None
        return await self.send(
            message, recipient, clear_history=clear_history, listener=listener, **options
        )

    async def send(
        self,
        message: MessageLike,
        recipient: Participant | str,
        *,
        clear_history: bool = False,
        listener: Listener | None = None,
        **options: Unpack[ChatOptions],
    ) -> ChatResult:
        """Say something; return the conversation that came of it, at its end.

        Mostly called by reply functions. With `request_reply=False` the message is delivered and
        not answered, with `max_turns=1` answered once. The options, and what it raises, are those
        of `Chat`.
        """
        chat = Chat(
            self, recipient, message, clear_history=clear_history, listener=listener, **options
        )
        return await run_in_tree(chat)

    def stream_chat(
        self,
        recipient: Participant | str,
        message: MessageLike,
        *,
        clear_history: bool = True,
        **options: Unpack[ChatOptions],
    ) -> AsyncGenerator[AgentMessage, None]:
        """Begin a conversation, as `initiate_chat` does, and give all that is said as it grows.

        Parts of a message have the text so far, and what is new as `extra["delta"]`; each message
        comes whole at its end. The conversation's failure is raised at the end. Closing the
        generator cancels the conversation: use `contextlib.aclosing` if you may leave early.
        """
        chat = Chat(self, recipient, message, clear_history=clear_history, **options)
        return stream_call(chat)

    async def stream_reply(
        self, texts: AsyncIterable[str] | Iterable[str], **extra: Any
    ) -> AgentMessage:
        """Give an answer while it arrives: `return await self.stream_reply(texts)`.

        Each text goes at once to those who listen to the conversation and is an event of kind
        `text`. Only for reply functions; `extra` is the message's. If `texts` fails, so does this,
        and who listens is told.
        """
        node = current_node()
        for answering in (node, *node.ancestors):
            if isinstance(answering, ReplyNode) and answering.agent is self:
                break
        else:
            raise RuntimeError(f"{self.name} is not answering: stream_reply is for reply functions")
        feed, speech = ScopeFeed(answering.partner), StreamedReply(self.name)
        try:
            async with aclosing(_iterate(texts)) as each:
                async for text in each:
                    emit(answering, "text", text)
                    feed.grow(speech, text)
        except BaseException:
            if speech.begun:
                feed.fail(speech)
            raise
        return AgentMessage(content=speech.text, sender=self.name, extra=extra)

    # --- what was said

    @property
    def chat_messages(self) -> dict[str, list[AgentMessage]]:
        """What was said with each partner, oldest first, in new lists.

        Inside a conversation it is what was said in its session, outside it is that of all.
        """
        said: dict[str, list[AgentMessage]] = {}
        for session in self.memory.sessions:
            kept = self.memory.messages(session)
            history = [each for each in kept if each.type != TOOLS and each.stream_state == "end"]
            partner = self._partner(history[0]) if history else ""
            elsewhere = current_session() is not None and session != self.session_with(partner)
            if is_with(session, key_of(partner)) and not elsewhere:
                said.setdefault(partner, []).extend(history)
        return said

    def usage(self, session_id: SessionId | None = None) -> dict[str, Usage]:
        """Return what all its calls have taken, those of one session, or those with one partner.

        A session is as `session_with` gives it, and a partner's name, in quotes if there is a `#`
        or an `@` in it, stands for all sessions with it. The rest is as in `Agent`.
        """
        if not isinstance(session_id, str):
            return super().usage(session_id)
        total: dict[str, Usage] = {}
        for session, spent in self.usage_totals.sessions.items():
            if is_with(session, session_id):
                add_usage(total, spent)
        return total

    def last_message(self, partner: Participant | str | None = None) -> AgentMessage | None:
        """Return what was last said with `partner`, or with the only partner there is.

        None if nothing was. Raises `ValueError` if there are several and none is named.
        """
        conversations = self.chat_messages
        if partner is not None:
            return conversations.get(name_of(partner), [None])[-1]
        if len(conversations) > 1:
            raise ValueError(f"{self.name} talks with several: name one of {[*conversations]}")
        return next((said[-1] for said in conversations.values()), None)

    def session_with(self, partner: Participant | str, session_id: SessionId | None = None) -> str:
        """Return the memory's session for what is said with `partner`.

        It is that of the conversation in which this is called, or of those in `session_id`.
        """
        session, key = current_session(), key_of(name_of(partner))
        if session_id is not None:
            session = f"#{session_id!r}"
        if session in (None, f"@{key}", self.identity):
            return key
        return f"{key}{session}"

    def clear_history(
        self, partner: Participant | str, session_id: SessionId | None = None
    ) -> None:
        """Forget what was said with `partner`, in the session of `session_with`."""
        self.forget(self.session_with(partner, session_id))

    def remember(self, message: AgentMessage, partner: str) -> None:
        """Add to the history with `partner`; it never waits.

        If there are `before_agent` hooks, a message that comes is added by `admit`: the memory, and
        so the model, never has what they have not seen.
        """
        session, kept_in = current_session(), self.session_with(partner)
        if isinstance(session, TemporarySession) and session is not self.identity:
            session.forget[self, kept_in] = partial(self._forget_session, kept_in)
        if message.sender != self.name and self.hooks_of("before_agent"):
            self._arrived.setdefault(kept_in, []).append(message)
        else:
            self.memory.add(message, session_id=kept_in)

    def forget(self, session_id: SessionId) -> None:
        """Forget a session, with what has not passed the hooks; see `Agent`."""
        self._arrived.pop(session_id, None)
        self._abandoned.pop(session_id, None)
        super().forget(session_id)

    def _forget_session(self, session: str) -> None:
        self.auto_replies.pop(session, None)
        self.forget(session)

    # --- being a participant

    async def find(self, partner: Participant | str) -> Participant:
        """Return a partner, by name from the directory; raise `UnknownAgent` if it has none."""
        if not isinstance(partner, str):
            return partner
        return await (self.directory or Directory()).find(partner)

    async def receive(self, message: AgentMessage, *, request_reply: bool = True) -> Answer:
        """Remember a message and answer it; see `Participant`."""
        self.remember(message, self._partner(message))
        return await self._respond(message, request_reply)

    async def receive_again(self, message: AgentMessage, *, request_reply: bool = True) -> Answer:
        """Answer a message that is in the history without an answer, or else `receive` it."""
        if self.reopen(message, self._partner(message)):
            return await self._respond(message, request_reply)
        return await self.receive(message, request_reply=request_reply)

    async def _respond(self, message: AgentMessage, request_reply: bool) -> Answer:
        partner = self._partner(message)
        if not request_reply:
            await self.admit(message, partner)
            return Answer(status="delivered")
        answer = await self.answer(message)
        if answer.message is not None:
            self.remember(answer.message, partner)
        return answer

    def reopen(self, message: AgentMessage, partner: str) -> bool:
        """Let a message without an answer be heard as if it had just come; False if there is none.

        What this agent had begun to say to it is forgotten, but for the calls that have run.
        """
        session = self.session_with(partner)
        left = self._abandoned.get(session, [])
        for place, each in enumerate(left):
            if each == message:  # not the same object if it came from another process
                del left[place]
                self._arrived.setdefault(session, []).append(message)
                return True
        since: list[AgentMessage] = []  # this agent spoke last
        for each in reversed(self.memory.messages(session)):
            own = each.sender == self.name
            if own and each.type != TOOLS and each.stream_state == "end":
                break
            since.append(each)
        broken = [each for each in since if each.sender == self.name and each.type != TOOLS]
        self.memory.retract(broken, session)
        return any(each.sender == message.sender for each in since)

    async def begin_chat(self, partner: str, *, clear_history: bool = False) -> None:
        """Start counting again, and forget if asked to; see `Participant`."""
        self.auto_replies[self.session_with(partner)] = 0
        if clear_history:
            self.clear_history(partner)

    async def answer(self, message: AgentMessage) -> Answer:
        """Answer a message that is part of the history already; the answer is not yet."""
        partner = self._partner(message)
        try:
            return await run_in_tree(ReplyNode(self, partner, message))
        finally:
            self.abandon(message, partner)

    async def admit(self, message: AgentMessage, partner: str) -> AgentMessage:
        """Pass a message that came through the hooks; remember and return what they make of it.

        Messages that were abandoned before it pass first. If a hook fails or is cancelled, those
        that have not passed are abandoned.
        """
        session = self.session_with(partner)
        waiting = [*self._abandoned.pop(session, ()), message]
        came = self._take(message, session)
        hooks = self.hooks_of("before_agent")
        try:
            while len(waiting) > 1:
                self.memory.add(await hooks.run(self, waiting[0], session), session_id=session)
                del waiting[0]
            heard = await hooks.run(self, message, session)
        except BaseException:
            left = waiting if came else waiting[:-1]
            self._abandoned[session] = [*left, *self._abandoned.get(session, ())]
            raise
        if came:
            self.memory.add(heard, session_id=session)
        return heard

    def abandon(self, message: AgentMessage, partner: str) -> None:
        """Let a message that has not been heard pass the hooks before the next one that is."""
        session = self.session_with(partner)
        if self._take(message, session):
            self._abandoned.setdefault(session, []).append(message)

    def _take(self, message: AgentMessage, session: SessionId) -> bool:
        """Remove a message from those that arrived; return whether it was one of them."""
        arrived = self._arrived.get(session, [])
        found = [place for place, each in enumerate(arrived) if each is message]
        for place in found[:1]:
            del arrived[place]
        if not arrived:
            self._arrived.pop(session, None)
        return bool(found)

    async def generate_reply(self, message: AgentMessage) -> ReplyResult:
        """Return what the agent says if no reply function does; they may call it too.

        The model is asked about the whole history with the partner, and its text streams to those
        who listen.
        """
        if self.backend is None:
            return self.default_auto_reply
        partner = self._partner(message)
        token = MESSAGE_FEED.set(ScopeFeed(partner))
        try:
            saying = self.forward(message, session_id=self.session_with(partner))
            return await require_awaitable(saying, self, "forward")
        finally:
            MESSAGE_FEED.reset(token)

    def register_reply(
        self, function: Callable[..., Any], *, sender: SenderFilter | None = None
    ) -> None:
        """Add a reply function `function(agent, message)`; it is tried before those there are."""
        self.rules.insert(0, ReplyRule(function, sender))

    def _partner(self, message: AgentMessage) -> str:
        """Return with whom a message is: a message to somebody else came through a group."""
        if not isinstance(message, AgentMessage):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"{self.name} receives AgentMessages, not {message!r:.200}")
        return message.sender if message.receiver in (None, self.name) else message.receiver


class UserProxyAgent(ConversableAgent):
    """A person among the agents: by default asked for each answer, on the terminal.

    Without a person (`human_input_mode="NEVER"`, `max_consecutive_auto_reply=0`) it only asks
    questions for a program.

    One without a name is called "user" and is nobody else: the conversations that it begins have a
    session of their own, which others forget when this agent is gone.
    """

    def __init__(
        self,
        name: str | None = None,
        backend: Backend | None = None,
        system: System | None = None,
        *,
        human_input_mode: HumanInputMode = "ALWAYS",
        **options: Any,
    ) -> None:
        super().__init__(
            name or "user", backend, system, human_input_mode=human_input_mode, **options
        )
        if name is None:
            session = TemporarySession("@")
            session.end_with(self)
            self.identity = session


class GroupAggregator(Aggregator):
    """The default of conversable agents: what was said in a group has its speaker's name before it.

    So the model can tell its members apart.
    """

    def render_received(self, message: AgentMessage, name: str) -> str:
        """Name the speaker of what was said to more than this agent."""
        if message.receiver in (None, name, message.sender):
            return message.text
        return f"{message.sender}: {message.text}"


async def _iterate(texts: AsyncIterable[str] | Iterable[str]) -> AsyncGenerator[str, None]:
    if isinstance(texts, AsyncGenerator):
        async with aclosing(cast("AsyncGenerator[str, None]", texts)) as each:
            async for text in each:
                yield text
    elif isinstance(texts, AsyncIterable):
        async for text in texts:
            yield text
    else:
        for text in texts:
            yield text
