"""What all that belongs to one conversation shares: its limit of messages, and who listens."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias

from ..commander.errors import AnabranchError
from ._message import AgentMessage
from ._stream import LISTENER

__all__ = ["MAX_MESSAGES", "ConversationTooLong", "Listener", "Scope", "current_scope", "opened"]

MAX_MESSAGES = 100

Listener: TypeAlias = Callable[[AgentMessage], object]
"""Is told what is said: growing parts of a message ("begin", "streaming"), then the whole ("end").

A message that was not streamed comes as its "end" alone; one that broke off ends as "failed". The
parts have the text so far as `content`, and what is new as `extra["delta"]`.
"""


class ConversationTooLong(AnabranchError):
    """A conversation reached the limit of messages that it has. Attribute: `limit`.

    It ends every conversation inside the outermost, which takes it for its end and says so.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(f"the conversation was stopped after {limit} messages (max_messages)")
        self.limit = limit


class Scope:
    """The outermost conversation, as all conversations inside it see it.

    `left` is how many messages may still be said. An answer that has been given is counted and
    never refused, so those under way at the limit may exceed it.
    """

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"max_messages must be at least 1, not {limit!r}")
        self.limit = limit
        self.left = limit
        self.listeners: list[Listener] = []

    def spend(self) -> None:
        """Count a message that is about to be said; raise `ConversationTooLong` if none is left."""
        if self.left < 1:
            raise ConversationTooLong(self.limit)
        self.left -= 1

    def tell(self, part: AgentMessage) -> None:
        """Tell those who listen."""
        for listener in tuple(self.listeners):
            listener(part)

    @contextmanager
    def heard_by(self, listener: Listener | None) -> Generator[None]:
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

_ASIDE: ContextVar[bool] = ContextVar("anabranch.conversation.aside", default=False)


def current_scope() -> Scope | None:
    """Return the scope of the conversation in which this is called, None outside any.

    It follows the context, as `current_node` does. A handle of an agent elsewhere takes `left`
    from here, and gives `tell` the parts that come back.
    """
    return _SCOPE.get()


@contextmanager
def opened(limit: int) -> Generator[tuple[Scope, bool]]:
    """Give the scope that is open, or open one; say whether it was opened here.

    Who listened before to all that agents say (`Agent.stream`) listens to it too.
    """
    if (scope := _SCOPE.get()) is not None:
        yield scope, False
        return
    scope = Scope(limit)
    feed = LISTENER.get()
    token = _SCOPE.set(scope)
    try:
        with scope.heard_by(None if feed is None else feed.put):
            yield scope, True
    finally:
        _SCOPE.reset(token)


@contextmanager
def continued(limit: int, left: int, listener: Listener | None) -> Generator[Scope]:
    """Go on here with a conversation that another process has opened, of which `left` are left.

    For the other end of a handle: no conversation in the block is the outermost.
    """
    scope = Scope(limit)
    scope.left = left
    token = _SCOPE.set(scope)
    try:
        with scope.heard_by(listener):
            yield scope
    finally:
        _SCOPE.reset(token)


@contextmanager
def aside() -> Generator[None]:
    """Keep what is being said in the block, and below it, from those who listen."""
    token = _ASIDE.set(True)
    try:
        yield
    finally:
        _ASIDE.reset(token)


def listened_to() -> Scope | None:
    """Return the scope of which somebody hears what is said here, None if nobody does."""
    scope = _SCOPE.get()
    return scope if scope is not None and scope.listeners and not _ASIDE.get() else None
