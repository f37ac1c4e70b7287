"""What all that belongs to one conversation shares: its limit of messages, and who listens."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias

from ..errors import ConversationTooLong
from ..layers import AgentMessage, SessionId
from ..layers._stream import LISTENER, Feed, Speech

__all__ = [
    "MAX_MESSAGES",
    "Listener",
    "Scope",
    "ScopeFeed",
    "audible_scope",
    "continue_scope",
    "converse_in",
    "current_scope",
    "current_session",
    "is_with",
    "key_of",
    "mute",
    "open_scope",
    "with_session",
]

MAX_MESSAGES = 100

Listener: TypeAlias = Callable[[AgentMessage], object]
"""Is told what is said: growing parts of a message ("begin", "streaming"), then the whole ("end").

A message that was not streamed comes as its "end" alone; one that broke off ends as "failed". The
parts have the text so far as `content`, and what is new as `extra["delta"]`.
"""


_SESSION: ContextVar[str | None] = ContextVar("anabranch.conversation.session", default=None)


def current_session() -> str | None:
    """Return the session of the conversation in which this is called, as memories mark it.

    `#7` is one that was named; `@ann` that of all conversations which ann began. None outside any.
    """
    return _SESSION.get()


@contextmanager
def converse_in(session: str | None) -> Generator[None]:
    """Let all that is said in the block, and in nodes that it starts, belong to a session."""
    token = _SESSION.set(session)
    try:
        yield
    finally:
        _SESSION.reset(token)


def with_session(partner: str) -> str:
    """Return a name for what is said with `partner` in the session of the conversation."""
    session, key = current_session(), key_of(partner)
    return key if session in (None, f"@{key}") else f"{key}{session}"


def key_of(name: str) -> str:
    """Return a name as it stands in sessions: as Python writes it, if it has their marks in it.

    So what somebody called "ann#7" says is not what ann says in session 7.
    """
    marked = name.startswith(("'", '"')) or "#" in name or "@" in name
    return repr(name) if marked else name


def is_with(session: SessionId, key: str) -> bool:
    """Whether a session is one of what is said with a partner, in whatever conversation.

    `key` is the partner's, see `key_of`.
    """
    return session == key or f"{session}".startswith((f"{key}#", f"{key}@"))


class Scope:
    """The outermost conversation, as all conversations inside it see it.

    `left` is how many messages may still be said. An answer that has been given is counted and
    never refused, so those under way at the limit may exceed it. `feed` is read by somebody who may
    be slow: it has new text alone, where each part for the `listeners` has all the text so far.
    """

    def __init__(self, limit: int, feed: Feed | None = None) -> None:
        if limit < 1:
            raise ValueError(f"max_messages must be at least 1, not {limit!r}")
        self.limit = limit
        self.left = limit
        self.listeners: list[Listener] = []
        self.feed = feed
        # Of replies from elsewhere that grow, by the names of who says it to whom.
        self._speeches: dict[tuple[str, str | None], Speech] = {}

    def spend(self) -> None:
        """Count a message that is about to be said; raise `ConversationTooLong` if none is left."""
        if self.left < 1:
            raise ConversationTooLong(self.limit)
        self.left -= 1

    def tell(self, part: AgentMessage) -> None:
        """Tell those who listen."""
        self.tell_listeners(part)
        if self.feed is None:
            return
        key, delta = (part.sender, part.receiver), part.extra.get("delta")
        speech = None if part.stream_state == "begin" else self._speeches.pop(key, None)
        if part.stream_state in ("begin", "streaming") and isinstance(delta, str):
            said = part.text.removesuffix(delta)
            self._speeches[key] = speech = speech or Speech(part.sender, part.receiver, said)
            self.feed.grow(speech, delta)
        elif part.stream_state == "failed" and speech is not None:
            self.feed.fail(speech)
        else:
            self.feed.put(part)

    def tell_listeners(self, part: AgentMessage) -> None:
        """Tell those who listen by a function."""
        for listener in tuple(self.listeners):
            listener(part)

    @contextmanager
    def listen(self, listener: Listener | None) -> Generator[None]:
        """Let one more listen as long as the block lasts."""
        if listener is None:
            yield
            return
        self.listeners.append(listener)
        try:
            yield
        finally:
            self.listeners.remove(listener)


_SCOPE: ContextVar[Scope | None] = ContextVar("anabranch.conversation", default=None)

_MUTED: ContextVar[bool] = ContextVar("anabranch.conversation.muted", default=False)


def current_scope() -> Scope | None:
    """Return the scope of the conversation in which this is called, None outside any.

    It follows the context, as `current_node` does.
    """
    return _SCOPE.get()


@contextmanager
def open_scope(limit: int) -> Generator[tuple[Scope, bool]]:
    """Give the scope that is open, or open one; say whether it was opened here.

    Who listens to all that agents say (`Agent.stream`) listens to a new scope too.
    """
    if (scope := _SCOPE.get()) is not None:
        yield scope, False
        return
    scope = Scope(limit, LISTENER.get())
    token = _SCOPE.set(scope)
    try:
        yield scope, True
    finally:
        _SCOPE.reset(token)


@contextmanager
def continue_scope(
    limit: int, left: int, session: str | None, listener: Listener | None
) -> Generator[Scope]:
    """Continue a conversation of another process here; `left` messages may still be said.

    No conversation in the block is the outermost: `ConversationTooLong` leaves the block.
    """
    scope = Scope(limit)
    scope.left = left
    token = _SCOPE.set(scope)
    try:
        with converse_in(session), scope.listen(listener):
            yield scope
    finally:
        _SCOPE.reset(token)


@contextmanager
def mute() -> Generator[None]:
    """Keep what is said in the block, and in nodes that it starts, from those who listen."""
    token = _MUTED.set(True)
    try:
        yield
    finally:
        _MUTED.reset(token)


def audible_scope() -> Scope | None:
    """Return the scope if somebody listens to what is said here, else None."""
    scope = _SCOPE.get()
    if scope is None or _MUTED.get():
        return None
    return scope if scope.listeners or scope.feed is not None else None


class ScopeFeed(Feed):
    """Passes each part of an answer to `partner` at once to those who listen to the conversation.

    The whole answer is not passed on: `Scope.tell` gets it when it is delivered.
    """

    def __init__(self, partner: str) -> None:
        self._scope = audible_scope()
        super().__init__(None if self._scope is None else self._scope.feed)
        self._partner = partner

    def put(self, message: AgentMessage) -> None:
        """Pass on a call of a tool, or its result."""
        if self._scope is not None and message.type is not None:
            self._scope.tell(message)

    def grow(self, speech: Speech, text: str) -> None:
        """Pass on text that is new."""
        speech.receiver = self._partner
        self._grow_outer(speech, text)
        speech.fresh.append(text)
        if self._scope is not None and self._scope.listeners:
            self._scope.tell_listeners(speech.message())

    def fail(self, speech: Speech) -> None:
        """Tell that an answer which has begun broke off."""
        self._fail_outer(speech)
        if self._scope is not None and self._scope.listeners:
            self._scope.tell_listeners(speech.message("failed"))
