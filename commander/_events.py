"""One stream of what happens to the nodes of a tree (contract T11).

A commander that nobody watches pays for one check per event. A listener has a bounded buffer of
its own: a slow one loses the oldest events, is told how many, and never slows the tree.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeAlias, cast

from ._record import DONE, node_name

if TYPE_CHECKING:
    from ._commander import Commander
    from ._node import Node

__all__ = ["Event", "EventKind", "Events", "Raw", "emit", "publish", "relay"]

EventKind: TypeAlias = Literal[
    "put",
    "started",
    "joining",
    "completed",
    "failed",
    "cancelled",
    "retried",
    "placed",
    "text",
    "tool_call",
    "tool_result",
    "missed",
]


class Event(NamedTuple):
    """Something that happened to a node.

    `time` is in seconds since the epoch, `clock` in seconds of the loop's own monotonic clock, from
    which the other is reckoned. `data` holds what the kind brings: the exception of `failed`, the
    reason of `cancelled`, a piece of `text`, the machine of `placed` (where the body of a job that
    was put elsewhere has begun), the number of events `missed` by this listener.
    """

    kind: EventKind
    node_id: int
    parent_id: int | None
    name: str
    time: float
    clock: float
    data: Any = None

    @property
    def host(self) -> str | None:
        """The machine on which it happened, if that is another one."""
        # An eighth field, which only events from elsewhere have.
        return cast("tuple[Any, ...]", self)[7] if len(self) > 7 else None

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name}#{self.node_id}>"


# What a listener keeps of an event until it is read, the fields of `Event` in their order: a plain
# tuple is made in half the time, and the garbage collector leaves it alone as long as it holds no
# containers.
Raw: TypeAlias = "tuple[EventKind, int, int | None, str, float, float, Any]"

# So many seconds pass at least between two wakings of a listener: what happens meanwhile is read
# in one turn of the loop. After a longer silence it is woken at once.
BREATH = 0.001

# Event's own __new__ takes its fields one by one.
_new: Callable[[type[Event], Raw], Event] = tuple.__new__  # pyright: ignore


class Events:
    """An async iterator over a commander's events, from its making to the commander's end.

    `missed` counts the events that this listener was too slow for; each gap is also reported by an
    event of kind `missed` in its place. A listener that waits learns of an event at once, and of
    those in the next millisecond together at its end. Leaving the `async for` early is harmless;
    `close` frees the buffer at once.
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
        self._waiter: asyncio.Future[None] | None = None
        # Whether the next event has to see to it that the waiter is woken.
        self._asleep = False
        self._woken = float("-inf")  # when it was last woken, by the loop's clock
        self._closed = commander._n_state in DONE
        if not self._closed:
            commander._n_listeners.append(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._buffer:
            if self._closed:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            self._asleep = True
            try:
                await self._waiter
            finally:
                self._waiter = None
                self._asleep = False
        if self._gap:
            return self._report_gap()
        return _new(Event, self._buffer.popleft())

    def _report_gap(self) -> Event:
        gap, self._gap = self._gap, 0
        commander = self._commander
        clock = commander._n_loop.time()
        time = commander._n_epoch + clock
        return Event("missed", commander._n_id, None, "events", time, clock, gap)

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

    def _rouse(self, clock: float) -> None:
        self._asleep = False
        if clock - self._woken < BREATH:
            self._commander._n_loop.call_later(BREATH, self._wake)
        else:
            self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            self._woken = self._commander._n_loop.time()
            waiter.set_result(None)


def publish(node: Node[Any], kind: EventKind, data: object = None) -> None:
    """Tell those who listen to the node's commander; nobody listening, it does nothing."""
    # One long function: with a listener, every node comes by three or four times.
    commander = node._n_commander
    if data is None:
        data = node._n_cancel if kind == "cancelled" else node._n_error
    parent = node._n_parent
    clock = commander._n_clock()
    event: Raw = (
        kind,
        node._n_id,
        None if parent is None else parent._n_id,
        node._n_name or node_name(node),
        commander._n_epoch + clock,
        clock,
        data,
    )
    for listener in commander._n_listeners:
        if listener._kinds is None or kind in listener._kinds:
            buffer = listener._buffer
            if len(buffer) == listener._capacity:
                listener._drop_oldest()
            buffer.append(event)
            if listener._asleep:
                listener._rouse(clock)


def relay(commander: Commander, event: Raw, host: str) -> None:
    """Tell those who listen to `commander` of what happened on another machine, in the past.

    Of what was missed there, all are told.
    """
    away: Any = (*event, host)
    missed = event[0] == "missed"
    for listener in commander._n_listeners:
        if missed:
            listener.missed += event[6]
        if missed or listener._kinds is None or event[0] in listener._kinds:
            if len(listener._buffer) == listener._capacity:
                listener._drop_oldest()
            listener._buffer.append(away)
            if listener._asleep:
                listener._rouse(commander._n_clock())


def emit(node: Node[Any], kind: EventKind, data: object) -> None:
    """Publish what a node produced (text, tool calls); costs one check if nobody listens."""
    if node._n_commander._n_listeners:
        publish(node, kind, data)
