"""State that nested conversations share: session, limit of messages, listeners."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias, TypeVar

from ...commander import Node
from ..errors import ConversationTooLong
from ..layers import AgentMessage, SessionId
from ..layers._stream import MESSAGE_FEED, Feed, StreamedReply
from ._participant import Status

__all__ = [
    "MAX_MESSAGES",
    "ConversationScope",
    "Listener",
    "ScopeFeed",
    "audible_scope",
    "continue_scope",
    "converse_in",
    "current_scope",
    "current_session",
    "hold_within_limit",
    "is_with",
    "key_of",
    "mute",
    "open_scope",
    "set_in_block",
    "with_session",
]

logger = logging.getLogger("anabranch.agents")

T = TypeVar("T")

MAX_MESSAGES = 100

Listener: TypeAlias = Callable[[AgentMessage], object]
"""Receives messages while they grow ("begin", "streaming"), then each complete one ("end").

A message that was not streamed comes only as its "end". One that broke off ends as "failed". The
parts have the text so far as `content`, and the new text as `extra["delta"]`.
"""


_SESSION: ContextVar[str | None] = ContextVar("anabranch.conversation.session", default=None)


def current_session() -> str | None:
    """Return the session of the conversation around this call, as memories mark it.

    `#7` is the session 7 of the user, `@ann` the session of all conversations that ann began. None
    outside of a conversation.
    """
    return _SESSION.get()


@contextmanager
def set_in_block(variable: ContextVar[T], value: T) -> Generator[T]:
    """Set a context variable for the block, and for nodes that it starts."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)


def converse_in(session: str | None) -> AbstractContextManager[str | None]:
    """Run the block, and the nodes that it starts, in a session."""
    return set_in_block(_SESSION, session)


def with_session(partner: str) -> str:
    """Return the key of the messages with `partner` in the current session."""
    session, key = current_session(), key_of(partner)
    return key if session in (None, f"@{key}") else f"{key}{session}"


def key_of(name: str) -> str:
    """Return a name as sessions contain it: quoted if it contains their marks.

    So the messages of a partner called "ann#7" do not mix with those of ann in session 7.
    """
    marked = name.startswith(("'", '"')) or "#" in name or "@" in name
    return repr(name) if marked else name


def is_with(session: SessionId, key: str) -> bool:
    """Return whether a session is one with a partner, in any conversation.

    `key` is the partner's, see `key_of`.
    """
    return session == key or f"{session}".startswith((f"{key}#", f"{key}@"))


class ConversationScope:
    """The outermost conversation, shared by all conversations inside it.

    `left` is the number of messages until the limit. An answer that exists counts and is never
    refused, so answers that run at the limit may exceed it. A `feed` gets only new text, so its
    reader may be slow. Each of the `listeners` gets all the text so far with each part.
    """

    def __init__(self, limit: int, feed: Feed | None = None) -> None:
        if limit < 1:
            raise ValueError(f"max_messages must be at least 1, not {limit!r}")
        self.limit = limit
        self.left: int = limit
        self.listeners: list[Listener] = []
        self.feed = feed
        # Growing replies of remote agents, by sender and receiver.
        self._growing: dict[tuple[str, str | None], StreamedReply] = {}

    def spend(self) -> None:
        """Count a message before it is sent; raise `ConversationTooLong` at the limit."""
        if self.left < 1:
            raise ConversationTooLong(self.limit)
        self.left -= 1

    def publish(self, part: AgentMessage) -> None:
        """Publish a part of a message to all listeners and the feed."""
        self.call_listeners(part)
        if self.feed is None:
            return
        key, delta = (part.sender, part.receiver), part.extra.get("delta")
        streamed = None if part.stream_state == "begin" else self._growing.pop(key, None)
        if part.stream_state in ("begin", "streaming") and isinstance(delta, str):
            text = part.text.removesuffix(delta)
            self._growing[key] = streamed = streamed or StreamedReply(
                part.sender, part.receiver, text
            )
            self.feed.grow(streamed, delta)
        elif part.stream_state == "failed" and streamed is not None:
            self.feed.fail(streamed)
        else:
            self.feed.put(part)

    def call_listeners(self, part: AgentMessage) -> None:
        """Publish a part of a message to the listeners that are functions."""
        for listener in tuple(self.listeners):
            listener(part)

    @contextmanager
    def listen(self, listener: Listener | None) -> Generator[None]:
        """Add a listener for the block."""
        if listener is None:
            yield
            return
        self.listeners.append(listener)
        try:
            yield
        finally:
            self.listeners.remove(listener)


_SCOPE: ContextVar[ConversationScope | None] = ContextVar("anabranch.conversation", default=None)

_MUTED: ContextVar[bool] = ContextVar("anabranch.conversation.muted", default=False)


def current_scope() -> ConversationScope | None:
    """Return the scope of the conversation around this call, None outside of one.

    It follows the context, as `current_node` does.
    """
    return _SCOPE.get()


@contextmanager
def open_scope(limit: int) -> Generator[tuple[ConversationScope, bool]]:
    """Yield the current scope, or a new one, and whether it is new.

    A feed of all agents below (`Agent.stream`) receives the messages of a new scope too.
    """
    if (scope := _SCOPE.get()) is not None:
        yield scope, False
        return
    scope = ConversationScope(limit, MESSAGE_FEED.get())
    with set_in_block(_SCOPE, scope):
        yield scope, True


async def hold_within_limit(
    node: Node[Any], limit: int, hold: Callable[[ConversationScope], Awaitable[Status]]
) -> Status:
    """Hold a conversation in the current scope, or in a new one; return how it ended.

    The limit of messages is an end of the outermost conversation. An inner one passes the error on.
    """
    with open_scope(limit) as (scope, is_outermost):
        try:
            return await hold(scope)
        except ConversationTooLong as error:
            if not is_outermost:
                raise
            logger.warning("%s: %s", node.path, error)
            return "message_limit"


@contextmanager
def continue_scope(
    limit: int, left: int, session: str | None, listener: Listener | None
) -> Generator[ConversationScope]:
    """Continue a conversation of another process, with `left` messages until the limit.

    No conversation in the block is the outermost: `ConversationTooLong` leaves the block.
    """
    scope = ConversationScope(limit)
    scope.left = left
    with set_in_block(_SCOPE, scope), converse_in(session), scope.listen(listener):
        yield scope


def mute() -> AbstractContextManager[bool]:
    """Publish no messages of the block, and of nodes that it starts, to listeners."""
    return set_in_block(_MUTED, value=True)


def audible_scope() -> ConversationScope | None:
    """Return the scope if it has listeners and is not muted here, else None."""
    scope = _SCOPE.get()
    if scope is None or _MUTED.get():
        return None
    return scope if scope.listeners or scope.feed is not None else None


class ScopeFeed(Feed):
    """Passes each part of an answer to `partner` to the listeners of the conversation.

    It leaves out the complete answer: `ConversationScope.publish` gets that at its delivery.
    """

    def __init__(self, partner: str) -> None:
        self._scope = audible_scope()
        super().__init__(None if self._scope is None else self._scope.feed)
        self._partner = partner

    def put(self, message: AgentMessage) -> None:
        """Publish a tool call or its result."""
        if self._scope is not None and message.type is not None:
            self._scope.publish(message)

    def grow(self, reply: StreamedReply, text: str) -> None:
        """Publish new text."""
        reply.receiver = self._partner
        self._grow_outer(reply, text)
        reply.pending.append(text)
        if self._scope is not None and self._scope.listeners:
            self._scope.call_listeners(reply.message())

    def fail(self, reply: StreamedReply) -> None:
        """Publish that a reply broke off."""
        self._fail_outer(reply)
        if self._scope is not None and self._scope.listeners:
            self._scope.call_listeners(reply.message("failed"))
