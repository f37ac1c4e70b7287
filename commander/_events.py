"""One stream of what happens to the nodes of a tree (contract T11).

A commander that nobody watches pays for one check per event. A listener has a bounded buffer of
its own: a slow one loses the oldest events, is told how many, and never slows the tree.
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

# A listener keeps the fields of its events one after the other in a flat list: no object is made
# for an event before it is read, and the garbage collector has nothing to count.
WIDTH = len(Event._fields)

# So many seconds pass at least between two wakings of a listener: what happens meanwhile is read
# in one turn of the loop. After a longer silence it is woken at once.
BREATH = 0.001

# Event's own __new__ takes its fields one by one.
_new: Callable[[type[Event], Iterable[Any]], Event] = tuple.__new__  # pyright: ignore


class Batch:
    """Events that were taken: each is made when it is read, in whichever thread."""

    def __init__(self, fields: list[Any]) -> None:
        self._fields = fields

    def __len__(self) -> int:
        return len(self._fields) // WIDTH

    def __iter__(self) -> Iterator[Event]:
        if len(self._fields) == WIDTH:  # as it nearly always is for who takes each at once
            return iter((_new(Event, self._fields),))
        return _events_of(iter(self._fields))


def _events_of(fields: Iterator[Any]) -> Iterator[Event]:
    return map(_new, repeat(Event), zip(*[fields] * WIDTH, strict=True))


class _Text(list[str]):
    """The pieces of a node's text that nobody has read yet, as the data of one event."""


def _condense(fields: list[Any], room: int) -> list[Any]:
    """Return unread events with the text of each node merged, at most `room` fields if possible.

    Text does not move past another event of its node. Then the oldest events that are no text are
    left out.
    """
    events: list[tuple[Any, ...]] = []
    last: dict[int, _Text | None] = {}  # each node's last event, if it is text
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
    kept: list[Any] = []
    for event in events:
        if over > 0 and event[0] != "text":
            over -= 1
        else:
            kept += event
    return kept


class Listener:
    """What a tree keeps of a listener: the newest events, until they are read.

    `publish` writes to it: `buffer` holds the fields of the newest events, behind those of events
    that have been read; while it is no longer than `quiet`, a new event needs no attention. Where
    "text" is among the `kinds`, the text of a slow listener is merged and not dropped.
    """

    # Whether it may wait for text, and so merges it.
    _reads = True

    def __init__(self, tree: Tree, kinds: Collection[EventKind] | None, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"a listener needs room for at least one event, not {capacity!r}")
        self.kinds = None if kinds is None else frozenset(kinds)
        if unknown := sorted((self.kinds or frozenset()).difference(get_args(EventKind))):
            known = ", ".join(get_args(EventKind))
            raise ValueError(f"{kinds!r}: there are no events of kind {unknown[0]!r}, only {known}")
        self._tree = tree
        self._merges = self._reads and self.kinds is not None and "text" in self.kinds
        # How many fields were unread after text was merged, if there is more of that than room.
        self._merged = 0
        # At most `_room` of the unread are kept when they are looked at; in between there may be
        # more.
        self.buffer: list[Any] = []
        self._room = capacity * WIDTH
        # Nobody sleeps and not much is left over.
        self.quiet = 2 * self._room
        self._rewind()
        # How many events were dropped before those in the buffer, and ever.
        self._gap = 0
        self._missed = 0
        self._waiter: asyncio.Future[None] | None = None
        # Whether the next event has to see to it that the waiter is woken.
        self._asleep = False
        self._woken = float("-inf")  # when it was last woken, by the loop's clock
        self.closed = tree.root.state in DONE
        if not self.closed:
            # A new list: this may be called while an event is being told to those of the old one.
            tree.listeners = [*tree.listeners, self]
            if self.wants_waits:
                tree.publish_waits()

    def _rewind(self) -> None:
        # A list's iterator sees what is added later, until it has once come to the end.
        self._unread = iter(self.buffer)
        self._events = _events_of(self._unread)

    @property
    def wants_waits(self) -> bool:
        """Whether it has asked what nodes wait for."""
        return self.kinds is not None and "waiting" in self.kinds

    def trim(self) -> None:
        """Drop what was read, and the oldest of what is beyond the room."""
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
        """Drop what was read; merge text if there is twice as much as there should be.

        Not sooner, so that each event is looked at a few times only, however slow the reader is.
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
        """How many events this was too slow for."""
        self.trim()
        return self._missed

    def count_missed(self, number: int) -> None:
        """Count events that will not come; `missed` tells of them."""
        self._missed += number

    def next(self) -> Event | None:
        """Return the next event, or None if all are read."""
        if len(self.buffer) > self._room:
            self.trim()
        if self._gap and self.hears("missed"):
            return self._take_gap()
        for event in self._events:
            if self._merges and type(event[3]) is _Text:
                return event._replace(data="".join(event[3]))
            return event
        self._clear()
        return None

    def hears(self, kind: EventKind) -> bool:
        """Whether it has asked for events of this kind, by its name or for all."""
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
        """Wait for an event, or for the end."""
        self.quiet = 0
        self._asleep = True
        self._waiter = LocalFuture(loop=asyncio.get_running_loop())
        try:
            await self._waiter
        finally:
            self._waiter = None
            self._asleep = False

    def attend(self, clock: float) -> None:
        """See to a buffer that is longer than `quiet`."""
        if self._asleep:
            self._asleep = False
            if clock - self._woken < BREATH:
                self._tree.loop.call_later(BREATH, self.wake)
            else:
                self.wake()
        self.trim()

    def wake(self) -> None:
        """Let whoever waits look again."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            self._woken = self._tree.loop.time()
            waiter.set_result(None)

    def close(self) -> None:
        """Take no more events; what is buffered can still be read."""
        if not self.closed:
            self.closed = True
            others = [each for each in self._tree.listeners if each is not self]
            self._tree.listeners = others
            self.wake()

    def leave(self) -> None:
        """Close, as nobody can read on: at any moment, and in any thread."""
        if self.closed:
            return
        if not self._tree.root.tree:  # it has not begun
            self.close()
            return
        with suppress(RuntimeError):  # the loop is closed
            # Not at once: events may just be being told.
            self._tree.loop.call_soon_threadsafe(self.close)


class Events:
    """An async iterator over a commander's events, from its making to the commander's end.

    Read in the commander's own block, which has to end before the commander can, it ends once all
    nodes have ended.

    Each gap, of events that this listener was too slow for, is reported by an event of kind
    `missed` in its place, if that kind is asked for. A listener that waits learns of an event at
    once, and of those in the next millisecond together at its end. It lives as long as somebody
    holds this iterator: one that an `async for` was left early and nobody else holds costs nothing
    more; `close` ends it at once.
    """

    def __init__(self, tree: Tree, kinds: Collection[EventKind] | None, capacity: int) -> None:
        # The tree holds this and not the iterator: so it is seen when that is dropped.
        self._tree = tree
        self._listener = Listener(tree, kinds, capacity)
        # The end of some node, waited for by whoever reads in the block.
        self._end: asyncio.Future[None] | None = None

    def __del__(self) -> None:
        if hasattr(self, "_listener"):
            self._listener.leave()

    @property
    def missed(self) -> int:
        """How many events this listener was too slow for."""
        return self._listener.missed

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        listener = self._listener
        while (event := listener.next()) is None:
            if listener.closed:
                raise StopAsyncIteration
            listener.require_one_reader()
            if self._tree.in_block and not self._wake_at_an_end():
                raise StopAsyncIteration
            await listener.wait()
        return event

    def _wake_at_an_end(self) -> bool:
        """Wake the listener when some node has ended; False if there is none.

        A listener need not hear of the last node's end by an event.
        """
        listener = self._listener
        if self._end is None or self._end.done():
            self._end = self._tree.observe_newest()
            if self._end is None:
                return False
            self._end.add_done_callback(lambda _: listener.wake())
        return True

    def close(self) -> None:
        """Take no more events; what is buffered can still be read. Closing twice is harmless."""
        self._listener.close()


class Tap(Listener):
    """A listener that does not wait: `notify` is called with the first event after each `take`.

    It is called again when events would be dropped: if it takes them then, none is ever lost.
    `on_close` is called when no more events come. Neither may raise. Gaps are told whatever kinds
    it asks for.
    """

    _reads = False

    def __init__(
        self,
        tree: Tree,
        capacity: int,
        notify: Callable[[], None],
        kinds: Collection[EventKind] | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self._notify = notify
        self._on_close = on_close
        super().__init__(tree, kinds, capacity)
        self.quiet = 0

    @property
    def missed(self) -> int:
        """How many events this has lost, here or on another machine."""
        return self._missed

    @property
    def full(self) -> bool:
        """Whether events are dropped now unless they are taken."""
        return len(self.buffer) > 2 * self._room

    def take(self) -> Batch:
        """Return all that has come since the last call."""
        # Without a trim: what is beyond the room has not been dropped yet.
        taken, self.buffer = self.buffer, []
        if self._gap:
            taken[:0] = self._take_gap()
        self.quiet = 0
        return Batch(taken)

    def _rewind(self) -> None:
        """Hold nothing beside the buffer: what is taken is gone from there, and is the taker's."""

    def _count_unread(self) -> int:
        return len(self.buffer)

    def attend(self, clock: float) -> None:
        """Call `notify`."""
        if self.closed:  # at this very event, by another listener
            return
        self.quiet = 2 * self._room
        self._notify()
        if self.buffer:
            super().attend(clock)
        else:
            self.quiet = 0

    def close(self) -> None:
        """Take no more events; what is buffered can still be taken."""
        was_closed = self.closed
        super().close()
        if self._on_close is not None and not was_closed:
            self._on_close()


def publish(record: Record, kind: EventKind, data: object = None) -> None:
    """Tell those who listen to the node's tree; nobody listening, it does nothing."""
    # One long function: with a listener, every node comes by three or four times.
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
    """Tell those who listen to `tree` of what happened on another machine, in the past.

    Of what was missed there, all are told.
    """
    missed = event.kind == "missed"
    for listener in tree.listeners:
        if missed:
            listener.count_missed(event.data)
        if listener.hears(event.kind) or (missed and isinstance(listener, Tap)):
            listener.buffer += event
            if len(listener.buffer) > listener.quiet:
                listener.attend(tree.clock())


def publish_asked(record: Record, kind: EventKind, data: object) -> None:
    """Tell those who have named `kind`."""
    clock = record.tree.clock()
    for listener in record.tree.listeners:
        if listener.kinds is not None and kind in listener.kinds:
            listener.buffer += (kind, record, clock, data, record.cpu)
            if len(listener.buffer) > listener.quiet:
                listener.attend(clock)


def emit(node: NodeBase, kind: EventKind, data: object) -> None:
    """Publish what a node does (text, calls, requests); costs one check if nobody listens.

    From a thread that works for the node it is told a moment later.
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
    """Say whether anybody listens to the tree of `node`, and to one of `kinds` if any are given."""
    record = node._node_record or record_of(node)
    listeners = record.tree.listeners if record.tree else ()
    if not kinds:
        return bool(listeners)
    return any(each.kinds is None or not each.kinds.isdisjoint(kinds) for each in listeners)


def act_as(node: NodeBase, agent: str, session_id: int | str | None = None) -> None:
    """Say whose work a node does that has not started, and with it all below; see `Event.agent`."""
    node._node_actor = Actor(agent, session_id)
    node._node_is_plain = node._node_has_defaults = False  # type: ignore[misc] - of this one


def actor_of(node: NodeBase) -> Actor | None:
    """Return whose work a node does, as `act_as` has said of it or of the nearest above."""
    return record_of(node).actor
