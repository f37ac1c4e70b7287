"""Publish events to the listeners of a tree (contract T11 of docs/contracts.md).

`publish` writes each event into the buffer of each `Listener` of the tree. Without listeners it
costs one check. There are two kinds: `Events` is the async iterator for users; `Tap` calls a
function and is for recorders, which must not lose events. A buffer is bounded: a slow listener
loses the oldest events, gets their number, and never delays the tree.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from itertools import repeat
from operator import length_hint
from typing import TYPE_CHECKING, Any, Self, get_args

from ._event import Event, EventKind, EventSource
from ._record import DONE, Actor, NodeBase, Record, record_of, require_loop
from ._task_waits import LocalFuture
from .private import running_loop

if TYPE_CHECKING:
    from ._commander import Tree

__all__ = [
    "Batch",
    "Events",
    "Listener",
    "Tap",
    "act_as",
    "actor_of",
    "emit",
    "is_watched",
    "publish",
    "publish_asked",
    "relay",
]

# A buffer is a flat list of the events' fields. So `publish` creates no object that the garbage
# collector counts, and an `Event` is created only when it is read.
WIDTH = len(Event._fields)

# Seconds between two wake-ups of a listener. It reads all events of that time in one turn of the
# loop. After a longer pause the first event wakes it at once.
MIN_WAKE_INTERVAL_SECONDS = 0.001

# Takes the fields as one iterable; Event's own __new__ takes them one by one.
_new: Callable[[type[Event], Iterable[Any]], Event] = tuple.__new__  # pyright: ignore


class Batch:
    """A batch of events from `Tap.take`. Iterating creates them, in any thread."""

    def __init__(self, fields: list[Any]) -> None:
        self._fields = fields

    def __len__(self) -> int:
        return len(self._fields) // WIDTH

    def __iter__(self) -> Iterator[Event]:
        if len(self._fields) == WIDTH:  # the usual case of a tap that takes each event at once
            return iter((_new(Event, self._fields),))
        return _events_of(iter(self._fields))


def _events_of(fields: Iterator[Any]) -> Iterator[Event]:
    return map(_new, repeat(Event), zip(*[fields] * WIDTH, strict=True))


class _Text(list[str]):
    """Unread pieces of a node's text, merged into the data of one event."""


def _condense(fields: list[Any], room: int) -> list[Any]:
    """Return unread events with the text of each node merged, at most `room` fields if possible.

    Text does not move past another event of its node. If there are still too many events, the
    oldest that are not text are dropped.
    """
    events: list[tuple[Any, ...]] = []
    last: dict[int, _Text | None] = {}  # the last event of each node if it is text, else None
    for kind, source, clock, data, cpu in zip(*[iter(fields)] * WIDTH, strict=True):
        node = source.id
        pieces: _Text | None = None
        if kind == "text":
            pieces = data if type(data) is _Text else _Text([data])
            if (before := last.get(node)) is not None:
                before += pieces
                continue
        last[node] = pieces
        events.append((kind, source, clock, data if pieces is None else pieces, cpu))
    over = len(events) - room // WIDTH
    condensed: list[Any] = []
    for event in events:
        if over > 0 and event[0] != "text":
            over -= 1
        else:
            condensed += event
    return condensed


class Listener:
    """A bounded buffer of a tree's newest events, until they are read.

    `publish` appends to `buffer` directly and calls `attend` only when the buffer is longer than
    `quiet`. The buffer begins with events that were read and not removed yet. If "text" is among
    the `kinds`, the text of a slow listener is merged and not dropped.
    """

    # Whether unread text may be merged. A tap takes its events before any must be dropped.
    _reads = True

    def __init__(self, tree: Tree, kinds: Collection[EventKind] | None, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity!r}")
        self.kinds: frozenset[EventKind] | None = None if kinds is None else frozenset(kinds)
        if unknown := sorted((self.kinds or frozenset()).difference(get_args(EventKind))):
            known = ", ".join(get_args(EventKind))
            raise ValueError(f"unknown kind of event {unknown[0]!r}; the kinds are {known}")
        self._tree = tree
        self._merges = self._reads and self.kinds is not None and "text" in self.kinds
        # How many unread fields the last merge left.
        self._merged = 0
        # `trim` drops all but the newest `_room` unread fields. Between two calls there may be up
        # to twice as many, so that the cost of the deletion is spread.
        self.buffer: list[Any] = []
        self._room = capacity * WIDTH
        # The length of the buffer above which `publish` calls `attend`; 0 while a task waits.
        self.quiet: int = 2 * self._room
        self._rewind()
        # How many events were dropped just before those in the buffer, and in all.
        self._gap = 0
        self._missed = 0
        self._waiter: asyncio.Future[None] | None = None
        # Whether the next event must schedule the waiter's wake-up.
        self._must_wake = False
        self._woken_at = float("-inf")  # the last wake-up, by the loop's clock
        self.closed: bool = tree.root.state in DONE
        if not self.closed:
            # A new list, because `publish` may be iterating over the old one.
            tree.listeners = [*tree.listeners, self]
            if self.wants_waits:
                tree.publish_waits()

    def _rewind(self) -> None:
        # A list's iterator also yields later additions, but not after it once reached the end.
        self._unread = iter(self.buffer)
        self._events = _events_of(self._unread)

    @property
    def wants_waits(self) -> bool:
        """Whether its `kinds` include "waiting"."""
        return self.kinds is not None and "waiting" in self.kinds

    def trim(self) -> None:
        """Drop the events that were read, and the oldest beyond the capacity."""
        buffer, unread = self.buffer, self._count_unread()
        if self._merges:
            self._merge(unread)
            return
        dropped = max(0, unread - self._room)
        if dropped or len(buffer) > 2 * self._room:
            del buffer[: len(buffer) - unread + dropped]
            self._rewind()
        self.count_missed(dropped // WIDTH)
        self._gap += dropped // WIDTH
        self.quiet = 2 * self._room

    def _merge(self, unread: int) -> None:
        """Drop the events that were read; merge text if there are twice as many as the capacity.

        Not sooner, so that each event is merged a few times only, however slow the reader is.
        """
        buffer = self.buffer
        if unread > 2 * max(self._room, self._merged):
            fields = buffer[len(buffer) - unread :]
            texts = fields[::WIDTH].count("text")
            buffer[:] = _condense(fields, self._room)
            self._rewind()
            self._merged = len(buffer)
            dropped = (unread - len(buffer)) // WIDTH - (texts - buffer[::WIDTH].count("text"))
            self.count_missed(dropped)
            self._gap += dropped
        elif len(buffer) > 2 * max(unread, self._room):
            del buffer[: len(buffer) - unread]
            self._rewind()
        self.quiet = len(buffer) + self._room

    def _count_unread(self) -> int:
        return length_hint(self._unread)

    @property
    def missed(self) -> int:
        """How many events were dropped because the reader was too slow."""
        self.trim()
        return self._missed

    def count_missed(self, number: int) -> None:
        """Add to `missed`."""
        self._missed += number

    def next(self) -> Event | None:
        """Return the next event; None if all are read."""
        if len(self.buffer) > self._room:
            self.trim()
        if self._gap and self.wants("missed"):
            return self._take_gap()
        for event in self._events:
            if self._merges and type(event[3]) is _Text:
                return event._replace(data="".join(event[3]))
            return event
        self._clear()
        return None

    def wants(self, kind: EventKind) -> bool:
        """Return whether it receives events of this kind."""
        return self.kinds is None or kind in self.kinds

    def _clear(self) -> None:
        self.buffer.clear()
        self._rewind()
        self._merged = 0

    def _take_gap(self) -> Event:
        gap, self._gap = self._gap, 0
        tree = self._tree
        source = EventSource(tree.root.id, None, "events", tree.origin, "events")
        return Event("missed", source, tree.clock(), gap)

    def require_one_reader(self) -> None:
        """Raise `RuntimeError` if another task waits for the next event, or on another loop."""
        if self._waiter is not None:
            raise RuntimeError("another task waits for this listener's next event already")
        require_loop(self._tree.root, "a listener on that loop")

    async def wait(self) -> None:
        """Wait for an event or for `close`."""
        self.quiet = 0
        self._must_wake = True
        self._waiter = LocalFuture(loop=asyncio.get_running_loop())
        try:
            await self._waiter
        finally:
            self._waiter = None
            self._must_wake = False

    def attend(self, clock: float) -> None:
        """Wake the waiter and trim the buffer, which is longer than `quiet`."""
        if self._must_wake:
            self._must_wake = False
            if clock - self._woken_at < MIN_WAKE_INTERVAL_SECONDS:
                self._tree.loop.call_later(MIN_WAKE_INTERVAL_SECONDS, self.wake)
            else:
                self.wake()
        self.trim()

    def wake(self) -> None:
        """Wake the waiter, which then looks for events again."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            self._woken_at = self._tree.loop.time()
            waiter.set_result(None)

    def close(self) -> None:
        """Stop receiving events. Those in the buffer can still be read."""
        if not self.closed:
            self.closed = True
            others = [each for each in self._tree.listeners if each is not self]
            self._tree.listeners = others
            self.wake()

    def close_soon(self) -> None:
        """Close on the next turn of the loop: a finalizer runs at any time, in any thread."""
        if self.closed:
            return
        if not self._tree.root.tree:  # the commander has not been entered
            self.close()
            return
        with suppress(RuntimeError):  # the loop is closed
            self._tree.loop.call_soon_threadsafe(self.close)


class Events:
    """An async iterator over a commander's events, from its creation to the commander's end.

        async for event in commander.events(["failed"]):
            print(event.path, event.data)

    In the commander's own block it ends once all nodes have ended, because the commander can only
    end after the block.

    If events were dropped, an event of kind `missed` takes their place, unless the kinds exclude
    it. A waiting reader gets an event at once, and those of the next millisecond together. Dropping
    the iterator, as by leaving the `async for`, ends the listener; `close` ends it at once.
    """

    def __init__(self, tree: Tree, kinds: Collection[EventKind] | None, capacity: int) -> None:
        self._tree = tree
        # The tree refers to the listener and not to the iterator, so that `__del__` runs when the
        # user drops the iterator.
        self._listener = Listener(tree, kinds, capacity)
        # Done when the newest top-level node has ended. A reader in the block is woken by it too,
        # because the iterator ends there when all nodes have ended.
        self._end: asyncio.Future[None] | None = None

    def __del__(self) -> None:
        if hasattr(self, "_listener"):
            self._listener.close_soon()

    @property
    def missed(self) -> int:
        """How many events were dropped because the reader was too slow."""
        return self._listener.missed

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        listener = self._listener
        while (event := listener.next()) is None:
            if listener.closed:
                raise StopAsyncIteration
            listener.require_one_reader()
            if self._tree.in_block and not self._wake_at_node_end():
                raise StopAsyncIteration
            await listener.wait()
        return event

    def _wake_at_node_end(self) -> bool:
        """Wake the listener when the newest node has ended; return False without nodes.

        Events alone do not suffice: the listener's kinds may exclude the end of nodes.
        """
        listener = self._listener
        if self._end is None or self._end.done():
            self._end = self._tree.observe_newest()
            if self._end is None:
                return False
            self._end.add_done_callback(lambda _: listener.wake())
        return True

    def close(self) -> None:
        """Stop receiving events. Those in the buffer can still be read. May be called twice."""
        self._listener.close()


class Tap(Listener):
    """A listener for recorders: calls `notify` at the first event after each `take`.

    Calls it again before events are dropped. No event is lost if it takes them then. `on_close` is
    called after the last event. Neither may raise. A `missed` event is given for any `kinds`.
    `capacity` and `kinds` are as in `commander.events`. The commander must have been entered.
    """

    _reads = False

    def __init__(
        self,
        commander: NodeBase,
        capacity: int,
        notify: Callable[[], None],
        kinds: Collection[EventKind] | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self._notify = notify
        self._on_close = on_close
        super().__init__(record_of(commander).tree, kinds, capacity)
        self.quiet: int = 0

    def now(self) -> float:
        """Return the time of the events' clock."""
        return self._tree.clock()

    @property
    def epoch(self) -> float:
        """The time of day, in seconds since 1970, at the zero of the events' clock."""
        return self._tree.origin.epoch

    @property
    def missed(self) -> int:
        """How many events were lost, here or on another machine."""
        return self._missed

    @property
    def full(self) -> bool:
        """Whether the next `trim` drops events."""
        return len(self.buffer) > 2 * self._room

    def take(self) -> Batch:
        """Return the events since the last call."""
        # No trim first: events beyond the capacity have not been dropped yet.
        fields = self.buffer
        self.buffer: list[Any] = []
        if self._gap:
            fields[:0] = self._take_gap()
        self.quiet = 0
        return Batch(fields)

    def _rewind(self) -> None:
        """Do nothing: `take` replaces the whole buffer, so a tap needs no read position."""

    def _count_unread(self) -> int:
        return len(self.buffer)

    def attend(self, clock: float) -> None:
        """Call `notify`."""
        if self.closed:  # another listener closed it at this event
            return
        # Before `notify`, which may publish events itself.
        self.quiet = 2 * self._room
        self._notify()
        if self.buffer:
            super().attend(clock)
        else:
            self.quiet = 0

    def close(self) -> None:
        """Stop receiving events, and call `on_close`. `take` still returns those in the buffer."""
        was_closed = self.closed
        super().close()
        if self._on_close is not None and not was_closed:
            self._on_close()


def publish(record: Record, kind: EventKind, data: object = None) -> None:
    """Publish an event of a node to the listeners of its tree.

    Callers check `tree.listeners` first, so that a tree without listeners pays for that check only.
    """
    # Inlined down to the buffer, because each node passes here three or four times: 3.8 -> 1.8 us
    # for each event (benchmarks/NOTES.md).
    tree = record.tree
    clock = tree.clock()
    event = (kind, record, clock, data, record.cpu if record.is_special else None)
    for listener in tree.listeners:
        if listener.kinds is None or kind in listener.kinds:
            buffer = listener.buffer
            buffer += event
            if len(buffer) > listener.quiet:
                listener.attend(clock)


def relay(tree: Tree, event: Event) -> None:
    """Publish an event from another machine, with its own time, to the listeners of `tree`.

    Events that were missed there count as missed for all listeners.
    """
    missed = event.kind == "missed"
    for listener in tree.listeners:
        if missed:
            listener.count_missed(event.data)
        if listener.wants(event.kind) or (missed and isinstance(listener, Tap)):
            listener.buffer += event
            if len(listener.buffer) > listener.quiet:
                listener.attend(tree.clock())


def publish_asked(record: Record, kind: EventKind, data: object) -> None:
    """Publish an event to the listeners that name its kind, but not to listeners of all kinds."""
    clock = record.tree.clock()
    for listener in record.tree.listeners:
        if listener.kinds is not None and kind in listener.kinds:
            listener.buffer += (kind, record, clock, data, record.cpu)
            if len(listener.buffer) > listener.quiet:
                listener.attend(clock)


def emit(node: NodeBase, kind: EventKind, data: object) -> None:
    """Publish an event of a node, such as text or a request. Without listeners it costs one check.

        emit(current_node(), "text", "Hello")

    In a thread that works for the node, the event is published on a later turn of the loop.
    """
    record = node._node_record or record_of(node)
    tree = record.tree
    if not tree or not tree.listeners:
        return
    if tree.loop is running_loop():
        publish(record, kind, data)
    else:
        with suppress(RuntimeError):  # the loop is closed
            tree.loop.call_soon_threadsafe(publish, record, kind, data)


def is_watched(node: NodeBase, *kinds: EventKind) -> bool:
    """Return whether the tree of `node` has listeners, for one of `kinds` if any are given."""
    record = node._node_record or record_of(node)
    listeners = record.tree.listeners if record.tree else ()
    if not kinds:
        return bool(listeners)
    return any(each.kinds is None or not each.kinds.isdisjoint(kinds) for each in listeners)


def act_as(
    node: NodeBase,
    agent: str,
    session_id: int | str | None = None,
    answers_for: str | None = None,
) -> None:
    """Set the agent whose work a node and all nodes below it do; see `Event.agent`.

    With `answers_for` its text is a part of the answer of that agent. The node must not have
    started.
    """
    node._node_actor = Actor(agent, session_id, answers_for)
    # `enter` skips the options of a node with these flags, and with them the actor.
    node._node_is_plain = node._node_has_defaults = False  # type: ignore[misc]


def actor_of(node: NodeBase) -> Actor | None:
    """Return the actor that `act_as` set for the node or the nearest node above; else None."""
    return record_of(node).actor
