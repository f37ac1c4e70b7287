"""The state that tools keep for each session of an agent or executor.

An agent or a `ToolExecutor` owns a `ToolSessions`, and enters one of its sessions in each node that
works for it. A tool keeps its state in a `PerSession`, which finds the current session. The state
is closed when the session is forgotten, when the owner or the toolkit is closed, and when the owner
is garbage-collected.
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

from ..commander.waiting import wait_shielded

__all__ = ["PerSession", "ToolSessions", "close_all", "do_all"]

T = TypeVar("T")

Closing: TypeAlias = "Future[None] | None"


class ToolSessions:
    """The state of tools for one owner, by session. A copy, pickled or not, starts empty."""

    def __init__(self) -> None:
        # A session gets an entry when a tool first keeps state for it: most sessions have none.
        self.states: dict[Hashable, dict[PerSession[Any], Any]] = {}

    def enter(self, session_id: Hashable) -> None:
        """Make tools that are called below here keep their state for a session.

        Call it at the start of a node's body: the node's context passes it on to its children.
        """
        CURRENT_SESSION.set((self, session_id))

    def forget(self, session_id: Hashable) -> None:
        """Drop the state of a session. Its processes begin to stop; this does not wait for them."""
        with STATES_LOCK:
            states = self.states.pop(session_id, {})
        do_all(partial(owner.close, state) for owner, state in states.items())

    async def aclose(self) -> None:
        """Close the state of all sessions and wait until it is closed. Twice is harmless.

        Sessions are not forgotten: a tool that is called again opens its state again.
        """
        await close_all(self.open_states())

    def open_states(self) -> list[OpenState]:
        """Return the states of all sessions, each with its `PerSession`."""
        with STATES_LOCK:
            return [pair for states in self.states.values() for pair in states.items()]

    def __reduce__(self) -> tuple[type[ToolSessions], tuple[()]]:
        return ToolSessions, ()


class PerSession(Generic[T]):
    """One `T` for each session in which a toolkit is used; an attribute of the toolkit.

        self.books = PerSession(list[str])      # in its __init__
        self.books.get().append(title)          # in a tool: the list of this session

    The sessions are those of an agent or a `ToolExecutor`. Without a session, and inside the
    toolkit's `async with` block, all callers share one `T`. `make` creates a `T` at the first
    `get`. `close`, a plain function, starts to close a `T`. It may return a
    `concurrent.futures.Future` that is done when the `T` is closed. A `T` that is used after that
    must open again.
    """

    def __init__(self, make: Callable[[], T], close: Callable[[T], Closing] | None = None) -> None:
        self.shared = False
        self._make = make
        self._close = close
        self._default_sessions = ToolSessions()
        self._owners: WeakSet[ToolSessions] = WeakSet()

    def get(self) -> T:
        """Return the state of the current session."""
        sessions, session_id = (None if self.shared else CURRENT_SESSION.get()) or (
            self._default_sessions,
            None,
        )
        with STATES_LOCK:
            states = sessions.states.setdefault(session_id, {})
            if self not in states:
                states[self] = self._make()
                self._owners.add(sessions)
            return states[self]

    def close(self, state: T) -> Closing:
        """Start to close one session's state; return a future for the end if it takes time."""
        return None if self._close is None else self._close(state)

    async def aclose(self) -> None:
        """Close the states of all sessions and wait until they are closed. Twice is harmless."""
        await close_all(self.open_states())

    def open_states(self) -> list[OpenState]:
        """Return the states of all sessions."""
        with STATES_LOCK:
            sessions = [states for each in self._owners for states in each.states.values()]
            return [(self, states[self]) for states in sessions if self in states]

    def __reduce__(self) -> tuple[Any, ...]:
        return PerSession, (self._make, self._close)


OpenState: TypeAlias = tuple[PerSession[Any], Any]


async def close_all(open_states: Iterable[OpenState]) -> None:
    """Close all states together, and wait; then raise the failures as `do_all` does.

    Neither a failure nor a cancel shortens the wait.
    """
    ends: list[asyncio.Future[None]] = []
    faults: list[BaseException] = []
    for owner, state in open_states:
        try:
            end = owner.close(state)
        except Exception as error:  # noqa: BLE001 - raised below, after the others are closed
            faults.append(error)
        else:
            ends += [] if end is None else [asyncio.wrap_future(end)]
    if ends:
        together = asyncio.gather(*ends, return_exceptions=True)
        interrupted = await wait_shielded(together)
        faults += [each for each in together.result() if each is not None]
        if interrupted is not None:
            raise interrupted
    _raise_together(faults)


def do_all(steps: Iterable[Callable[[], object]]) -> None:
    """Run all steps, even if some raise; then raise the failures, several as a group."""
    faults: list[BaseException] = []
    for step in steps:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - raised below, after the other steps
            faults.append(error)
    _raise_together(faults)


def _raise_together(faults: Sequence[BaseException]) -> None:
    if len(faults) > 1:
        raise BaseExceptionGroup("several failed to close", faults)
    if faults:
        raise faults[0]


# Nodes inherit the session from their parents by the context.
CURRENT_SESSION: ContextVar[tuple[ToolSessions, Hashable] | None] = ContextVar(
    "anabranch_tool_session", default=None
)

# Agents in different threads, each with its own loop, may share a toolkit.
STATES_LOCK = RLock()
