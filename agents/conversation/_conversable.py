"""`ConversableAgent`: an agent that converses. `UserProxyAgent`: a person as an agent."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable
from contextlib import aclosing
from functools import partial
from typing import Any, Literal, TypeAlias, Unpack, cast

from ...backends import Backend
from ...commander import current_node, emit
from ...commander.errors import ConfigurationError
from ...commander.kinds import checked, require_awaitable
from ...messages import Usage
from ..layers import TOOLS, Agent, AgentMessage, Aggregator, Instructions, SessionId
from ..layers._call import add_usage, names_sync_form, run_in_tree
from ..layers._memory import TemporarySession
from ..layers._override import BACKEND_OR_NONE, backend_of
from ..layers._stream import MESSAGE_FEED, StreamedReply, mute_voice
from ._chat import Chat, ChatOptions, ChatResult, ChatStream
from ._human import HumanInput, TerminalInput, Transcript
from ._participant import Answer, Directory, MessageLike, Participant, is_termination, name_of
from ._reply import ReplyNode, ReplyResult, ReplyRule, SenderFilter, reply_rules
from ._scope import Listener, ScopeFeed, current_session, is_with, key_of, set_in_block

__all__ = ["ConversableAgent", "GroupAggregator", "HumanInputMode", "UserProxyAgent"]

HumanInputMode: TypeAlias = Literal["NEVER", "TERMINATE", "ALWAYS"]

DEFAULT_INPUT = TerminalInput()


class ConversableAgent(Agent[Any]):
    """An agent that receives messages and answers them. It keeps a history for each partner.

        class Bob(ConversableAgent):
            @reply
            async def introduce(self, message: AgentMessage) -> ReplyResult:
                return "I am Bob."

        await alice.initiate_chat("bob", "Who are you?")

    It looks for an answer in this order:

    1. The conversation ends without an answer if the message ends it (`TERMINATE`, or the predicate
    `is_termination`), or after `max_consecutive_auto_reply` automatic answers in a row to this
    partner (None: no limit). 2. `human_input` asks a person: with `human_input_mode` "TERMINATE" in
    these two cases, with "ALWAYS" for each message. An empty line leaves the answer to the agent,
    "exit" and None end the conversation. 3. The reply functions, in the order of their definitions
    (see `reply`). 4. The model if there is a `backend`, as in `Agent`; else `default_auto_reply`.

    The messages with a partner, or in a group, are a session of the memory. It has the partner's
    name if one of the two began the conversation. Otherwise there is one for each session of the
    conversations in which they have met (see `Chat` and `session_with`). `directory` finds others
    by name, and the agent adds itself to it. The other options are those of `Agent`.
    """

    hands_off = False
    _reserved_names = ()  # a person who takes part may be called "user"

    @checked(backend=BACKEND_OR_NONE)
    def __init__(
        self,
        name: str,
        backend: Backend | str | None = None,
        instructions: Instructions | None = None,
        *,
        directory: Directory | None = None,
        human_input_mode: HumanInputMode = "NEVER",
        human_input: HumanInput = DEFAULT_INPUT,
        max_consecutive_auto_reply: int | None = 10,
        is_termination: Callable[[AgentMessage], bool] = is_termination,
        default_auto_reply: MessageLike | None = None,
        aggregator: Aggregator | None = None,
        **options: Any,
    ) -> None:
        if options.get("guards"):
            raise ConfigurationError(
                f"{name} takes part in conversations, which do not run guards=. Write a reply"
                " function that refuses the message"
            )
        aggregator = aggregator or GroupAggregator()
        super().__init__(backend, instructions, name=name, aggregator=aggregator, **options)
        # The session of conversations that it begins. It depends on the name alone, so that another
        # agent of this name, as after a restart, continues it.
        self.identity: str = f"@{key_of(name)}"
        self.directory = directory
        self.human_input_mode: HumanInputMode = human_input_mode
        self.human_input = human_input
        self.max_consecutive_auto_reply = max_consecutive_auto_reply
        self.is_termination = is_termination
        self.default_auto_reply = default_auto_reply
        self.rules: list[ReplyRule] = reply_rules(type(self))
        self.auto_replies: Counter[str] = Counter()
        # By session: messages that have not passed the hooks, and so must not reach the memory.
        # `admit` of an arrived message passes it; an abandoned one passes with the next message.
        self._arrived: dict[SessionId, list[AgentMessage]] = {}
        self._abandoned: dict[SessionId, list[AgentMessage]] = {}
        if directory is not None:
            directory.add(self)

    # --- conversations

    @names_sync_form(
        "await agent.initiate_chat(...); in a program without a loop use"
        " Chat(agent, recipient, message).run_sync()"
    )
    async def initiate_chat(
        self,
        recipient: Participant | str,
        message: MessageLike,
        *,
        clear_history: bool = True,
        transcript: bool | Transcript = False,
        **options: Unpack[ChatOptions],
    ) -> ChatResult:
        """Hold a new conversation, by default without earlier history; return it at its end.

        With `transcript` the terminal shows all messages, also those of agents that take part on
        the way. `Chat` has the other options and the errors. Cancelling this call cancels the
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
        """Send a message, and return the conversation that follows at its end.

        Mostly called by reply functions. With `request_reply=False` the message is delivered and
        not answered, with `max_turns=1` answered once. `Chat` has the options and the errors.
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
    ) -> ChatStream:
        """Hold a new conversation, as `initiate_chat` does, and yield its messages while they grow.

            async with alice.stream_chat("bob", "Hello") as messages:
                async for message in messages:
                    print(message.extra.get("delta", ""), end="")
            result = await messages.result()

        Parts of a message have the text so far, and the new text as `extra["delta"]`. Each message
        comes complete at its end. The conversation's failure is raised at the end. Leaving the
        block cancels the conversation.
        """
        chat = Chat(self, recipient, message, clear_history=clear_history, **options)
        return ChatStream(chat)

    async def stream_reply(
        self, texts: AsyncIterable[str] | Iterable[str], **extra: Any
    ) -> AgentMessage:
        """Publish an answer while it arrives, and return it as a message.

            return await self.stream_reply(texts)

        Each text goes at once to the listeners of the conversation and is an event of kind `text`.
        Only for reply functions. `extra` is the message's. If `texts` fails, the listeners receive
        the end of a failed message, and the error is raised.
        """
        node = current_node()
        for reply_node in (node, *node.ancestors):
            if isinstance(reply_node, ReplyNode) and reply_node.agent is self:
                break
        else:
            raise RuntimeError(
                f"{self.name} is not answering a message. Call stream_reply in a reply function."
            )
        feed, streamed = ScopeFeed(reply_node.partner), StreamedReply(self.name)
        try:
            async with aclosing(_iterate(texts)) as each:
                async for text in each:
                    emit(reply_node, "text", text)
                    feed.grow(streamed, text)
        except BaseException:
            if streamed.begun:
                feed.fail(streamed)
            raise
        return AgentMessage(content=streamed.text, sender=self.name, extra=extra)

    # --- history

    @property
    def chat_messages(self) -> dict[str, list[AgentMessage]]:
        """The messages with each partner, oldest first, in new lists.

        Inside a conversation these are the messages in its session, outside they are the messages
        in all sessions.
        """
        histories: dict[str, list[AgentMessage]] = {}
        for session in self.memory.sessions:
            messages = self.memory.messages(session)
            history = [
                each for each in messages if each.type != TOOLS and each.stream_state == "end"
            ]
            partner = self._partner(history[0]) if history else ""
            is_other_session = current_session() is not None and session != self.session_with(
                partner
            )
            if is_with(session, key_of(partner)) and not is_other_session:
                histories.setdefault(partner, []).extend(history)
        return histories

    def usage(self, session_id: SessionId | None = None) -> dict[str, Usage]:
        """Return the usage of all its calls, of those in one session, or of those with one partner.

        Name a session as `session_with` returns it. A partner's name, in quotes if it contains `#`
        or `@`, stands for all sessions with that partner. The rest is as in `Agent`.
        """
        if not isinstance(session_id, str):
            return super().usage(session_id)
        total: dict[str, Usage] = {}
        for session, used in self.usage_totals.sessions.items():
            if is_with(session, session_id):
                add_usage(total, used)
        return total

    def last_message(self, partner: Participant | str | None = None) -> AgentMessage | None:
        """Return the last message with `partner`, or with the only partner there is.

        Returns None without messages. Raises `ValueError` if there are several partners and none is
        named.
        """
        conversations = self.chat_messages
        if partner is not None:
            return conversations.get(name_of(partner), [None])[-1]
        if len(conversations) > 1:
            raise ValueError(f"{self.name} has several partners: name one of {[*conversations]}")
        return next((history[-1] for history in conversations.values()), None)

    def session_with(self, partner: Participant | str, session_id: SessionId | None = None) -> str:
        """Return the memory's session for the messages with `partner`.

        It belongs to the conversation around this call, or to conversations with that `session_id`.
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
        """Forget the messages with `partner`, in the session of `session_with`."""
        self.forget(self.session_with(partner, session_id))

    def remember(self, message: AgentMessage, partner: str) -> None:
        """Add a message to the history with `partner`, without waiting.

        If there are `before_agent` hooks, `admit` adds a received message later: the memory, and so
        the model, never has a message that the hooks have not seen.
        """
        session, memory_session = current_session(), self.session_with(partner)
        if isinstance(session, TemporarySession) and session is not self.identity:
            session.forget[self, memory_session] = partial(self._forget_session, memory_session)
        if message.sender != self.name and self.hooks_of("before_agent"):
            self._arrived.setdefault(memory_session, []).append(message)
        else:
            self.memory.add(message, session_id=memory_session)

    def forget(self, session_id: SessionId) -> None:
        """Forget a session, and its messages that have not passed the hooks; see `Agent`."""
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
        """Answer a message that the history has without an answer, or else `receive` it."""
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
        """Make a message without an answer pending again; return False if there is none.

        The text that this agent had begun to answer is forgotten, but not calls that have run.
        """
        session = self.session_with(partner)
        abandoned = self._abandoned.get(session, [])
        for place, each in enumerate(abandoned):
            if each == message:  # by value: a message from another process is another object
                del abandoned[place]
                self._arrived.setdefault(session, []).append(message)
                return True
        since: list[AgentMessage] = []  # the messages after this agent's last complete one
        for each in reversed(self.memory.messages(session)):
            is_own = each.sender == self.name
            if is_own and each.type != TOOLS and each.stream_state == "end":
                break
            since.append(each)
        incomplete = [each for each in since if each.sender == self.name and each.type != TOOLS]
        self.memory.retract(incomplete, session)
        return any(each.sender == message.sender for each in since)

    async def begin_chat(self, partner: str, *, clear_history: bool = False) -> None:
        """Count automatic answers from 0 again, and forget the history if asked to."""
        self.auto_replies[self.session_with(partner)] = 0
        if clear_history:
            self.clear_history(partner)

    async def answer(self, message: AgentMessage) -> Answer:
        """Answer a message that is in the history already. The answer is not added to it."""
        partner = self._partner(message)
        try:
            return await run_in_tree(ReplyNode(self, partner, message))
        finally:
            self.abandon(message, partner)

    async def admit(self, message: AgentMessage, partner: str) -> AgentMessage:
        """Pass a received message through the hooks, then remember and return the result.

        Abandoned messages pass first, in their order. If a hook fails or is cancelled, the messages
        that have not passed stay abandoned.
        """
        session = self.session_with(partner)
        waiting = [*self._abandoned.pop(session, ()), message]
        has_arrived = self._take(message, session)
        hooks = self.hooks_of("before_agent")
        try:
            while len(waiting) > 1:
                self.memory.add(await hooks.run(self, waiting[0], session), session_id=session)
                del waiting[0]
            admitted = await hooks.run(self, message, session)
        except BaseException:
            waiting_still = waiting if has_arrived else waiting[:-1]
            self._abandoned[session] = [*waiting_still, *self._abandoned.get(session, ())]
            raise
        if has_arrived:
            self.memory.add(admitted, session_id=session)
        return admitted

    def abandon(self, message: AgentMessage, partner: str) -> None:
        """Let the next `admit` pass this message through the hooks, unless it has passed."""
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
        """Return the answer to a message that no reply function answers.

        The model reads the whole history with the partner, and its text streams to the listeners.
        Reply functions may call it too.
        """
        if backend_of(self) is None:
            return self.default_auto_reply
        partner = self._partner(message)
        with mute_voice(), set_in_block(MESSAGE_FEED, ScopeFeed(partner)):
            forwarding = self.forward(message, session_id=self.session_with(partner))
            return await require_awaitable(forwarding, self, "forward")

    def register_reply(
        self, function: Callable[..., Any], *, sender: SenderFilter | None = None
    ) -> None:
        """Add a reply function `function(agent, message)`; it is tried before all others."""
        self.rules.insert(0, ReplyRule(function, sender))

    def _partner(self, message: AgentMessage) -> str:
        """Return the partner of a message: its sender, or the group that it came through."""
        if not isinstance(message, AgentMessage):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"{self.name} must receive an AgentMessage, not {message!r:.200}")
        return message.sender if message.receiver in (None, self.name) else message.receiver


class UserProxyAgent(ConversableAgent):
    """A person as an agent, by default asked on the terminal for each answer.

        user = UserProxyAgent("user")
        await user.initiate_chat(assistant, "Which is the longest river?")

    Without a person (`human_input_mode="NEVER"`, `max_consecutive_auto_reply=0`) it only asks
    questions for a program.

    Without a name it is called "user". Such an agent shares no history with another: its
    conversations have a separate session, which the others forget when this agent is collected.
    """

    def __init__(
        self,
        name: str | None = None,
        backend: Backend | str | None = None,
        instructions: Instructions | None = None,
        *,
        human_input_mode: HumanInputMode = "ALWAYS",
        **options: Any,
    ) -> None:
        super().__init__(
            name or "user", backend, instructions, human_input_mode=human_input_mode, **options
        )
        if name is None:
            session = TemporarySession("@")
            session.end_with(self)
            self.identity: str = session


class GroupAggregator(Aggregator):
    """The default aggregator of conversable agents.

    A message in a group begins with its speaker's name, so that the model can tell the members
    apart.
    """

    def render_received(self, message: AgentMessage, name: str) -> str:
        """Return the text, with the speaker's name before it if others receive the message too."""
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
