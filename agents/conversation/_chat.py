"""`Chat`: a conversation of two participants, message by message, as a node of the tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from ...commander import Node, SyncOptions, run
from ...commander.context import INHERITED, set_context
from ...commander.durable import scope_here
from ...commander.kinds import require_no_loop
from ...handlers import handler
from ..layers import AgentMessage, SessionId
from ..layers._agent_stream import MessageStream
from ._participant import Answer, MessageLike, Participant, Status, as_message, name_of
from ._scope import (
    MAX_MESSAGES,
    ConversationScope,
    Listener,
    converse_in,
    current_session,
    hold_within_limit,
)

if TYPE_CHECKING:
    from ._conversable import ConversableAgent

__all__ = ["Chat", "ChatOptions", "ChatResult", "ChatStream"]


@dataclass(frozen=True, slots=True)
class ChatResult:
    """The messages of one conversation of two, oldest first, and why it ended.

    result = await alice.initiate_chat("bob", "Hello")
    print(result.status, result.text)
    """

    status: Status
    messages: tuple[AgentMessage, ...]

    @property
    def last(self) -> AgentMessage:
        """The last message, of either participant."""
        return self.messages[-1]

    @property
    def text(self) -> str:
        """The text of the last message."""
        return self.last.text


class ChatStream(MessageStream[ChatResult]):
    """The messages of one conversation while they grow, as `stream_chat` returns them.

    The conversation begins with the first read. A stream has one reader. As a context manager it
    cancels the conversation when the block is left early.
    """

    async def result(self) -> ChatResult:
        """Return the conversation at its end, or raise its failure.

        It can be called without any reading, after it, and while another task reads. Cancelling it
        closes the stream. Raises `RuntimeError` if the stream was closed before the end.
        """
        return await self._result()


class ChatOptions(TypedDict, total=False):
    """The limits of a conversation; see `Chat`."""

    request_reply: bool
    max_turns: int | None
    max_messages: int
    session_id: SessionId | None
    timeout: float | None
    context: object


@dataclass(slots=True)
class _Progress:
    """The current message of the sender, and the partner's answer to it."""

    message: AgentMessage
    begun: bool = False
    delivered: bool = False
    answer: AgentMessage | None = None
    heard: bool = False
    turn: int = 0

    def go_on(self, message: AgentMessage) -> None:
        """Replace the message by the sender's next one."""
        self.message, self.delivered, self.answer, self.heard = message, False, None, False


class Chat(Node[ChatResult], internal=True):
    """A conversation that `sender` begins. `send` and `initiate_chat` create and await one.

        chat = node.call_handler(Chat(alice, "bob", "Hello"), timeout=60)

    The two answer in turn until one gives no answer. Each message and each answer is a child. The
    chat raises an unknown name, and the failure or timeout of a partner. A limit is a result with
    its `status`. `max_turns` limits the partner's answers. `max_messages` limits the messages of
    the outermost chat and of all conversations inside it. `timeout`, in seconds, holds for each
    answer of the partner. `context` is a value that the tools, hooks and instructions of all
    participants can read, see `Context`.

    A conversation belongs to a session, and so do all conversations inside it. Agents remember each
    session separately. The session is `session_id`, else that of the conversation around this one,
    else the sender's own.

    However it ends, both have the same history of it: a message is in both or in neither. With
    `retry` the next attempt continues at the message without an answer, and no agent or group
    receives it twice. In a durable run the next attempt starts from the beginning, and the messages
    of the attempt before are forgotten.
    """

    # The progress of all attempts. Named like the engine's attributes, because the identity of a
    # node contains all others.
    _node_progress: _Progress | None = None

    def __init__(
        self,
        sender: ConversableAgent,
        recipient: Participant | str,
        message: MessageLike,
        *,
        clear_history: bool = False,
        request_reply: bool = True,
        max_turns: int | None = None,
        max_messages: int = MAX_MESSAGES,
        session_id: SessionId | None = None,
        timeout: float | None = None,
        listener: Listener | None = None,
        context: object = INHERITED,
    ) -> None:
        if name_of(recipient) == sender.name:
            raise ValueError(f"{sender.name} cannot talk to itself")
        if max_turns is not None and max_turns < 1:
            raise ValueError(f"max_turns must be at least 1 or None, not {max_turns!r}")
        super().__init__(f"{sender.name}-to-{name_of(recipient)}")
        self._sender = sender
        self._recipient = recipient
        self._first = as_message(message, sender.name, name_of(recipient))
        self._clear = clear_history
        self._request_reply = request_reply
        self._max_turns = max_turns
        self._max_messages = max_messages
        self._session_id = session_id
        self._timeout = timeout
        self._listener = listener
        self._node_context: object = context
        self._messages: list[AgentMessage] = []

    def run_sync(self, **options: Unpack[SyncOptions]) -> ChatResult:
        """Hold the conversation in a program without a loop, and block until its end.

            result = Chat(alice, bob, "Hello").run_sync(timeout=60)

        `options` are `timeout=`, `limits=` and `context=`, as in `run`. They hold for the complete
        conversation.
        """
        require_no_loop("run_sync", "await alice.initiate_chat(bob, ...)")
        return run(self, **options)

    async def task(self) -> ChatResult:
        """Exchange messages. For the outermost chat, the limit of messages is an end."""
        set_context(self, self._node_context)
        if self._node_progress is None or scope_here() is not None:
            self._node_progress, self._messages = _Progress(self._first), []
        session = current_session() or self._sender.identity
        if self._session_id is not None:
            session = f"#{self._session_id!r}"
        with converse_in(session):
            try:
                status = await hold_within_limit(self, self._max_messages, self._exchange)
            finally:
                if self._messages:
                    self._sender.abandon(self._messages[-1], name_of(self._recipient))
        return ChatResult(status, tuple(self._messages))

    async def _exchange(self, scope: ConversationScope) -> Status:
        progress = self._node_progress
        assert progress is not None
        with scope.listen(self._listener):
            return await self._take_turns(scope, progress)

    async def _take_turns(self, scope: ConversationScope, progress: _Progress) -> Status:
        partner, sender = await self._sender.find(self._recipient), self._sender
        if not progress.begun:
            await self.call_handler(self.begin(partner), timeout=self._timeout, claim=True)
            progress.begun = True
        while True:
            if progress.answer is None:
                scope.spend()
                try:
                    node = self.deliver(scope, partner, progress.message)
                    answer = await self.call_handler(node, timeout=self._timeout, claim=True)
                except Exception as error:
                    error.add_note(f"while {partner.name} answered {sender.name}")
                    raise
                if answer.message is None:
                    return answer.status
            assert progress.answer is not None
            if progress.heard:
                sender.reopen(progress.answer, partner.name)
            progress.heard = True
            if progress.turn == self._max_turns:
                await sender.admit(progress.answer, partner.name)
                return "turn_limit"
            next_message = await sender.answer(progress.answer)
            if next_message.message is None:
                return next_message.status
            progress.go_on(next_message.message)

    @handler
    async def begin(self, node: Node[Any], partner: Participant) -> None:
        """Announce the conversation to both participants."""
        await self._sender.begin_chat(partner.name, clear_history=self._clear)
        await partner.begin_chat(self._sender.name, clear_history=self._clear)

    @handler
    async def deliver(
        self, node: Node[Any], scope: ConversationScope, partner: Participant, message: AgentMessage
    ) -> Answer:
        """Deliver one message to the partner, and return its answer."""
        progress = self._node_progress
        assert progress is not None
        # No await between the sender's `_add` and the partner's `receive`, which stores the message
        # before it first waits. So a cancel finds a message in both histories or in neither.
        if not progress.delivered:
            self._add(scope, message)
        receive: Any = partner.receive
        if progress.delivered:
            receive = getattr(partner, "receive_again", receive)
        progress.delivered = True
        answer = await receive(message, request_reply=self._request_reply)
        if not isinstance(answer, Answer):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"receive() of {partner.name} must return an Answer, not {answer!r:.200}"
            )
        if answer.message is not None:
            # Counted and not refused at the limit, because the partner remembers it already.
            scope.left -= 1
            self._add(scope, answer.message)
            progress.answer = answer.message
            progress.turn += 1
        return answer

    def _add(self, scope: ConversationScope, message: AgentMessage) -> None:
        self._sender.remember(message, name_of(self._recipient))
        self._messages.append(message)
        scope.publish(message)
