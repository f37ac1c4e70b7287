"""One stream of what happens to the nodes of a tree (contract T11).

A commander that nobody watches pays for one check per event. A listener has a bounded buffer of
its own: a slow one loses the oldest events, is told how many, and never slows the tree.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeAlias

from ._record import DONE, node_name

if TYPE_CHECKING:
    from ._commander import Commander
    from ._node import Node

__all__ = ["Event", "EventKind", "Events", "emit", "publish"]

EventKind: TypeAlias = Literal[
    "put",
    "started",
    "joining",
    "completed",
    "failed",
    "cancelled",
    "retried",
    "text",
    "tool_call",
    "tool_result",
    "missed",
]


class Event(NamedTuple):
    """Something that happened to a node.

    `time` is in seconds since the epoch, `clock` in seconds of the loop's own monotonic clock, from
    which the other is reckoned. `data` holds what the kind brings: the exception of `failed`, the
    reason of `cancelled`, a piece of `text`, the number of events `missed` by this listener.
    """

    kind: EventKind
    node_id: int
    parent_id: int | None
    name: str
    time: float
    clock: float
    data: Any = None

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name}#{self.node_id}>"


# What a listener keeps of an event until it is read, without its `time`: a plain tuple is made in
# half the time, and the garbage collector leaves it alone as long as it holds no containers.
Raw: TypeAlias = "tuple[EventKind, int, int | None, str, float, Any]"


class Events:
    """An async iterator over a commander's events, from its making to the commander's end.

    `missed` counts the events that this listener was too slow for; each gap is also reported by an
    event of kind `missed` in its place. Leaving the `async for` early is harmless; `close` frees
    the buffer at once.
    """

    def __init__(
        self, commander: Commander, kinds: Collection[EventKind] | None, capacity: int
    ) -> None:
        if capacity < 1:
            raise ValueError(f"a listener needs room for at least one event, not {capacity!r}")
        self.missed = 0
        self._kinds = None if kinds is None else frozenset(kinds)
        self._capacity = capacity
        self._commander = commander
        # The newest events, at most `capacity`; `_gap` counts those dropped before its first.
        self._buffer: deque[Raw] = deque()
        self._gap = 0
        # What the loop's clock lacks to the time of day; known from the first reading on.
        self._epoch: float | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._closed = commander._n_state in DONE
        if not self._closed:
            commander._n_listeners.append(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        if self._epoch is None:
            self._epoch = time.time() - asyncio.get_running_loop().time()
        while True:
            if self._gap:
                return self._report_gap(self._epoch)
            if self._buffer:
                kind, node_id, parent_id, name, clock, data = self._buffer.popleft()
                return Event(kind, node_id, parent_id, name, self._epoch + clock, clock, data)
            if self._closed:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def _report_gap(self, epoch: float) -> Event:
        gap, self._gap = self._gap, 0
        commander = self._commander
        clock = commander._n_loop.time()
        return Event("missed", commander._n_id, None, "events", epoch + clock, clock, gap)

    def _drop_oldest(self) -> None:
        self._buffer.popleft()
        self._gap += 1
        self.missed += 1

    def close(self) -> None:
        """Take no more events; what is buffered can still be read. Closing twice is harmless."""
        if not self._closed:
            self._closed = True
            self._commander._n_listeners.remove(self)
            self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


def publish(node: Node[Any], kind: EventKind, data: object = None) -> None:
    """Tell those who listen to the node's commander; nobody listening, it does nothing."""
    commander = node._n_commander
    event: Raw | None = None
    for listener in commander._n_listeners:
        if listener._kinds is None or kind in listener._kinds:
            event = event or _raw(node, kind, data)
            # Written out here: with a listener, every node comes by three or four times.
            buffer = listener._buffer
            if len(buffer) == listener._capacity:
                listener._drop_oldest()
            buffer.append(event)
            if listener._waiter is not None:
                listener._wake()


def _raw(node: Node[Any], kind: EventKind, data: object) -> Raw:
    if data is None:
        data = node._n_cancel if kind == "cancelled" else node._n_error
    parent = node._n_parent
    parent_id = None if parent is None else parent._n_id
    name = node._n_name or node_name(node)
    return (kind, node._n_id, parent_id, name, node._n_commander._n_loop.time(), data)


def emit(node: Node[Any], kind: EventKind, data: object) -> None:
    """Publish what a node produced (text, tool calls); costs one check if nobody listens."""
    if node._n_commander._n_listeners:
        publish(node, kind, data)
