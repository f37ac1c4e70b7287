"""`Chat`: a conversation of two, message by message, as a node of the tree."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from ...commander import Node
from ...commander.scope import scope_here
from ...handlers import handler
from ..errors import ConversationTooLong
from ..layers import AgentMessage, SessionId
from ._participant import Answer, MessageLike, Participant, Status, as_message, name_of
from ._scope import (
    MAX_MESSAGES,
    ConversationScope,
    Listener,
    converse_in,
    current_session,
    open_scope,
)

if TYPE_CHECKING:
    from ._conversable import ConversableAgent

__all__ = ["Chat", "ChatOptions", "ChatResult"]

logger = logging.getLogger("anabranch.agents")


@dataclass(frozen=True, slots=True)
class ChatResult:
    """What was said between two in one conversation, oldest first, and why it ended."""

    status: Status
    messages: tuple[AgentMessage, ...]

    @property
    def last(self) -> AgentMessage:
        """The last message, whoever said it."""
        return self.messages[-1]

    @property
    def text(self) -> str:
        """The text of the last message."""
        return self.last.text


class ChatOptions(TypedDict, total=False):
    """The limits of a conversation, see `Chat`."""

    request_reply: bool
    max_turns: int | None
    max_messages: int
    session_id: SessionId | None
    timeout: float | None


@dataclass(slots=True)
class _Progress:
    """How far a conversation came: the message of its sender, and the partner's answer to it."""

    message: AgentMessage
    begun: bool = False
    delivered: bool = False
    answer: AgentMessage | None = None
    heard: bool = False
    turn: int = 0

    def go_on(self, message: AgentMessage) -> None:
        """Take the sender's next message."""
        self.message, self.delivered, self.answer, self.heard = message, False, None, False


class Chat(Node[ChatResult], internal=True):
    """A conversation that `sender` begins; `send` and `initiate_chat` make one and await it.

        chat = node.call_handler(Chat(alice, "bob", "Hello"), timeout=60)

    The two answer in turn until one has no answer. Each message and each answer is a child. A
    fault (an unknown name, a partner that fails or does not answer in time) is the chat's own; a
    limit is a result with its `status`. `max_turns` limits the partner's answers. The outermost
    chat, with all that is said inside it, has at most `max_messages` messages. `timeout` is in
    seconds for each answer of the partner.

    A conversation, with all inside it, belongs to a session: agents remember what was said in one
    apart from what was said in another. It is `session_id`, else that of the conversation in which
    this one begins, else the sender's own.

    However it ends, both have the same history of it: a message is in both or in neither. With
    `retry` the next attempt goes on with the message that has no answer yet, and no agent or group
    hears it twice. In a durable run it begins again instead, and what the attempt before it has
    said is forgotten.
    """

    # How far all attempts came; of an engine's name, as it is no part of what was called.
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
        self._messages: list[AgentMessage] = []

    async def task(self) -> ChatResult:
        """Talk; the outermost chat takes the limit of messages for its end."""
        if self._node_progress is None or scope_here() is not None:
            self._node_progress, self._messages = _Progress(self._first), []
        session = current_session() or self._sender.identity
        if self._session_id is not None:
            session = f"#{self._session_id!r}"
        with (
            converse_in(session),
            open_scope(self._max_messages) as (scope, is_outermost),
            scope.listen(self._listener),
        ):
            try:
                status = await self._talk(scope, self._node_progress)
            except ConversationTooLong as error:
                if not is_outermost:
                    raise
                logger.warning("%s: %s", self.path, error)
                status = "message_limit"
            finally:
                if self._messages:
                    self._sender.abandon(self._messages[-1], name_of(self._recipient))
        return ChatResult(status, tuple(self._messages))

    async def _talk(self, scope: ConversationScope, at: _Progress) -> Status:
        partner, sender = await self._sender.find(self._recipient), self._sender
        if not at.begun:
            await self.call_handler(self.begin(partner), timeout=self._timeout, claim=True)
            at.begun = True
        while True:
            if at.answer is None:
                scope.spend()
                try:
                    node = self.deliver(scope, partner, at.message)
                    answer = await self.call_handler(node, timeout=self._timeout, claim=True)
                except Exception as error:
                    error.add_note(f"{partner.name} was to answer {sender.name}")
                    raise
                if answer.message is None:
                    return answer.status
            assert at.answer is not None
            if at.heard:
                sender.reopen(at.answer, partner.name)
            at.heard = True
            if at.turn == self._max_turns:
                await sender.admit(at.answer, partner.name)
                return "turn_limit"
            own = await sender.answer(at.answer)
            if own.message is None:
                return own.status
            at.go_on(own.message)

    @handler
    async def begin(self, node: Node[Any], partner: Participant) -> None:
        """Tell both that a conversation begins."""
        await self._sender.begin_chat(partner.name, clear_history=self._clear)
        await partner.begin_chat(self._sender.name, clear_history=self._clear)

    @handler
    async def deliver(
        self, node: Node[Any], scope: ConversationScope, partner: Participant, message: AgentMessage
    ) -> Answer:
        """Say one message to the partner, and return its answer."""
        at = self._node_progress
        assert at is not None
        # No wait parts what the two remember: a cancel finds a message in both or in neither.
        if not at.delivered:
            self._add(scope, message)
        receive: Any = partner.receive
        if at.delivered:
            receive = getattr(partner, "receive_again", receive)
        at.delivered = True
        answer = await receive(message, request_reply=self._request_reply)
        if not isinstance(answer, Answer):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"{partner.name} gave {answer!r:.200} for an Answer")
        if answer.message is not None:
            scope.left -= 1  # it has been given: it is counted, never refused
            self._add(scope, answer.message)
            at.answer = answer.message
            at.turn += 1
        return answer

    def _add(self, scope: ConversationScope, message: AgentMessage) -> None:
        self._sender.remember(message, name_of(self._recipient))
        self._messages.append(message)
        scope.tell(message)
