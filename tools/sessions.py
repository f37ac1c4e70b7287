"""Whose state is it? What tools keep, for each session of whoever uses them.

Whoever has sessions (an agent, an executor) holds a `ToolSessions`, and enters one in each node
that works for it; a tool that keeps something does so in a `PerSession`, and so learns the session.
What it keeps ends with whoever opened it: when the session is forgotten, when the owner or the
toolkit is closed, and when the owner is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from functools import partial
from threading import RLock
from typing import Any, Generic, TypeAlias, TypeVar
from weakref import WeakSet

from ..commander.waiting import outlast

__all__ = ["PerSession", "ToolSessions", "close_all", "do_all"]

T = TypeVar("T")

Closing: TypeAlias = "Future[None] | None"


class ToolSessions:
    """What tools keep for one owner, session by session; it goes when its owner goes.

    A copy, pickled or not, keeps nothing yet.
    """

    def __init__(self) -> None:
        # An entry is made when a tool keeps something, not before: most sessions have none.
        self.kept: dict[Hashable, dict[PerSession[Any], Any]] = {}

    def enter(self, session_id: Hashable) -> None:
        """Let all tools that are called below here keep their state for a session.

        For the beginning of a node's body: its context is its own, and goes down to its children.
        """
        CURRENT.set((self, session_id))

    def forget(self, session_id: Hashable) -> None:
        """Drop all that tools keep for a session; processes begin to end, nobody waits for it."""
        with LOCK:
            kept = self.kept.pop(session_id, {})
        do_all(partial(where.close, state) for where, state in kept.items())

    async def aclose(self) -> None:
        """Close what the tools hold open, and wait for that; twice is harmless.

        The sessions are not forgotten: a tool that is called again opens what it needs anew.
        """
        await close_all(self.held())

    def held(self) -> list[Held]:
        """Return what is kept in any session, each with what keeps it."""
        with LOCK:
            return [pair for states in self.kept.values() for pair in states.items()]

    def __reduce__(self) -> tuple[type[ToolSessions], tuple[()]]:
        return ToolSessions, ()


class PerSession(Generic[T]):
    """Holds one `T` for each session in which a toolkit is used; an attribute of the toolkit.

        self.books = PerSession(list[str])      # in its __init__
        self.books.get().append(title)          # in a tool: the list of this session

    A session is one of an agent's or of a `ToolExecutor`'s. Where there is none, and while the
    toolkit is entered with `async with`, there is one `T` for all. `make` makes it when it is first
    asked for. `close`, a plain function, begins to close what it holds open and may return a
    `concurrent.futures.Future` that is done when that is over; used again, it has to open again.
    """

    def __init__(self, make: Callable[[], T], close: Callable[[T], Closing] | None = None) -> None:
        self.shared = False
        self._make = make
        self._close = close
        self._own = ToolSessions()
        self._owners: WeakSet[ToolSessions] = WeakSet()

    def get(self) -> T:
        """Return what belongs to the session in which this is called."""
        sessions, session_id = (None if self.shared else CURRENT.get()) or (self._own, None)
        with LOCK:
            kept = sessions.kept.setdefault(session_id, {})
            if self not in kept:
                kept[self] = self._make()
                self._owners.add(sessions)
            return kept[self]

    def close(self, state: T) -> Closing:
        """Begin to close what one session has; return a future of the end if it takes time."""
        return None if self._close is None else self._close(state)

    async def aclose(self) -> None:
        """Close what all sessions have, and wait for that; twice is harmless."""
        await close_all(self.held())

    def held(self) -> list[Held]:
        """Return what all sessions have."""
        with LOCK:
            kept = [states for each in self._owners for states in each.kept.values()]
            return [(self, states[self]) for states in kept if self in states]

    def __reduce__(self) -> tuple[Any, ...]:
        return PerSession, (self._make, self._close)


Held: TypeAlias = tuple[PerSession[Any], Any]


async def close_all(held: Iterable[Held]) -> None:
    """Begin to close all, wait until it is over, then raise what failed, as `do_all` does.

    Neither a failure nor a cancel meanwhile cuts that short.
    """
    ends: list[asyncio.Future[None]] = []
    faults: list[BaseException] = []
    for where, state in held:
        try:
            end = where.close(state)
        except Exception as error:  # noqa: BLE001 - raised below, when all are closed
            faults.append(error)
        else:
            ends += [] if end is None else [asyncio.wrap_future(end)]
    if ends:
        together = asyncio.gather(*ends, return_exceptions=True)
        interrupted = await outlast(together)
        faults += [each for each in together.result() if each is not None]
        if interrupted is not None:
            raise interrupted
    _raise_together(faults)


def do_all(steps: Iterable[Callable[[], object]]) -> None:
    """Take all steps, whatever one of them raises; then raise what failed, several as a group."""
    faults: list[BaseException] = []
    for step in steps:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - raised below, when all are taken
            faults.append(error)
    _raise_together(faults)


def _raise_together(faults: Sequence[BaseException]) -> None:
    if len(faults) > 1:
        raise BaseExceptionGroup("several could not be closed", faults)
    if faults:
        raise faults[0]


# The session in which tools are called here; nodes hand it down.
CURRENT: ContextVar[tuple[ToolSessions, Hashable] | None] = ContextVar(
    "anabranch_tool_session", default=None
)

# Sessions may be used from several threads, each with a loop of its own.
LOCK = RLock()
