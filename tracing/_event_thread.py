"""`EventThread`: pass a tree's events to a thread, in order; none is lost unless it is far behind.

The thread writes the events or makes spans of them, so a slow disk or exporter delays no node (S7).
The tree pays for a listener, and for a queue of batches.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from itertools import islice
from queue import SimpleQueue
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self
from weakref import WeakSet

from ..commander import Commander, Event, EventKind, TreeSnapshot
from ..commander.tap import Batch, Tap

__all__ = ["FLUSH_SECONDS", "EventThread", "Gap", "Sink", "TreeFollower"]

logger = logging.getLogger("anabranch.tracing")

# A batch has the events of this time, or this number of events.
BATCH_SECONDS = 0.05
MAX_BATCH_EVENTS = 4096
# Events per call of the sink. Small calls give the event loop the GIL back soon.
EVENTS_PER_CALL = 256
# With more events between the tree and the thread, new ones are dropped.
MAX_QUEUED_EVENTS = 500_000
# The time that the end of the program waits for the threads.
FLUSH_SECONDS = 5.0


class Gap(NamedTuple):
    """Replaces `missed` events: the open nodes of the tree, and the usage so far."""

    missed: int
    tree: TreeSnapshot
    usage: dict[str, Any]
    clock: float


class Sink(Protocol):
    """Consumes the events. One thread calls all methods, one at a time."""

    def take(self, events: list[Event]) -> None:
        """Consume the next events, in order."""
        ...

    def take_gap(self, gap: Gap) -> None:
        """Continue from the current tree after lost events."""
        ...

    def end(self, usage: dict[str, Any] | None) -> None:
        """Finish: the tree has ended with this `usage`, or the event thread was closed."""
        ...


class _End(NamedTuple):
    usage: dict[str, Any] | None


class EventThread:
    """Passes the events of `commander`, which has been entered, to `sink` until the tree ends.

    The end of the tree waits at most `wait` seconds for the sink. A sink that raises gets no more
    events: this is logged once and affects no node. `error` is the exception.
    """

    def __init__(
        self,
        commander: Commander,
        sink: Sink,
        kinds: Collection[EventKind],
        *,
        name: str,
        wait: float = 0.0,
    ) -> None:
        self._commander = commander
        self._sink = sink
        self._name = name
        self._wait = wait
        self.error: BaseException | None = None
        self._queue: SimpleQueue[Batch | Gap | _End | threading.Event] = SimpleQueue()
        # Numbers of events. Only the loop writes `_queued` and only the thread writes `_taken`, so
        # neither needs a lock.
        self._queued = 0
        self._taken = 0
        # Dropped events that no gap has reported yet, and the part of the tap's own missed events
        # that is counted there.
        self._missed = 0
        self._counted_tap_misses = 0
        self._ends_when_empty = False
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._tap = Tap(commander, MAX_BATCH_EVENTS, self._on_event, kinds, self._on_close)
        self._thread = threading.Thread(target=self._run, name="anabranch-tracing", daemon=True)
        self.start = self._tap.now()  # by the clock of the events
        self.epoch = self._tap.epoch  # the time of day at the zero of that clock
        self._thread.start()
        _open_threads.add(self)
        # Register it again each time, because the last registered function runs first. This one
        # must run before the functions of the sinks' targets, such as a later tracer provider.
        atexit.unregister(_finish_all)
        atexit.register(_finish_all)

    @property
    def closed(self) -> bool:
        """Whether it takes no more events from the tree."""
        return self._tap.closed

    def close(self) -> None:
        """Take no more events. Any thread may call it; closing twice is harmless.

        In the tree's thread it waits for the sink, as the end of the tree does.
        """
        if self._tap.closed:
            return
        if self._is_inside():
            self._tap.close()
        else:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._tap.close)

    def close_when_empty(self) -> None:
        """Close as soon as no node runs in the tree."""
        self._ends_when_empty = True
        self._close_if_empty()

    def flush(self, timeout: float = FLUSH_SECONDS) -> bool:
        """Wait until the sink has all earlier events; return False after `timeout` seconds."""
        done = threading.Event()

        def mark() -> None:
            self._drain()
            if self._missed:
                self._put_gap()
            self._queue.put(done)

        if self._tap.closed or self._is_inside() or not self._loop.is_running():
            mark()
        else:
            try:
                self._loop.call_soon_threadsafe(mark)
            except RuntimeError:  # the loop is closed
                mark()
        until = time.monotonic() + timeout
        while not done.wait(0.02) and self._thread.is_alive():
            if time.monotonic() > until:
                return False
        return True

    def _is_inside(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    # --- in the loop

    def _on_event(self) -> None:
        if self._tap.full:
            self._drain()
        elif self._timer is None:
            self._timer = self._loop.call_later(BATCH_SECONDS, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._drain()
        # Not in `_on_event`: the tree may be in the middle of a change there, and a gap shows it.
        if self._missed:
            # Wait until half of the queue is free: else the next events would be lost at once.
            if self._queued - self._taken > MAX_QUEUED_EVENTS // 2:
                self._timer = self._loop.call_later(BATCH_SECONDS, self._on_timer)
            else:
                self._put_gap()
        self._close_if_empty()

    def _drain(self) -> None:
        """Queue the events so far. After a loss, drop them until the gap is queued."""
        events = self._tap.take()
        if self.error is not None:
            return
        if self._missed or self._queued - self._taken + len(events) > MAX_QUEUED_EVENTS:
            self._missed += len(events)
        elif events:
            self._queued += len(events)
            self._queue.put(events)
        # Another machine may have lost events too.
        self._missed += self._tap.missed - self._counted_tap_misses
        self._counted_tap_misses = self._tap.missed

    def _put_gap(self) -> None:
        commander, missed = self._commander, self._missed
        self._missed = 0
        self._queue.put(Gap(missed, commander.tree(), commander.usage(), self._tap.now()))

    def _close_if_empty(self) -> None:
        if self._ends_when_empty and not self._tap.closed and not self._commander.children:
            self._tap.close()

    def _on_close(self) -> None:
        self._ends_when_empty = False
        if self._timer is not None:
            self._timer.cancel()
        self._drain()
        if self._missed:
            self._put_gap()
        self._queue.put(_End(self._commander.usage()))
        if self._wait:
            self._thread.join(self._wait)

    # --- in the thread

    def _run(self) -> None:
        while self._take_next():
            pass
        _open_threads.discard(self)
        while not self._queue.empty():  # a `flush` may have come late; it must not wait for ever
            if isinstance(item := self._queue.get(), threading.Event):
                item.set()

    def _take_next(self) -> bool:
        """Handle the next item, without a reference to it afterwards; return False for the last."""
        item = self._queue.get()
        if isinstance(item, threading.Event):
            item.set()
        elif self.error is None:
            try:
                self._hand_over(item)
            except BaseException as error:
                self.error = error
                logger.warning("%s ends here: %s", self._name, error, exc_info=error)
                self.close()
        return not isinstance(item, _End)

    def _hand_over(self, item: Batch | Gap | _End) -> None:
        match item:
            case Gap():
                self._sink.take_gap(item)
            case _End():
                self._sink.end(item.usage)
            case _:
                events = iter(item)
                while part := list(islice(events, EVENTS_PER_CALL)):
                    self._sink.take(part)
                    self._taken += len(part)

    def finish(self, timeout: float) -> None:
        """Wait for the thread at the end of the program."""
        if self._tap.closed:
            self._thread.join(timeout)
        else:  # the program ends without closing the tree
            self.flush(timeout)


_open_threads: WeakSet[EventThread] = WeakSet()


def _finish_all() -> None:
    until = time.monotonic() + FLUSH_SECONDS
    for thread in tuple(_open_threads):
        thread.finish(max(0.0, until - time.monotonic()))


class TreeFollower:
    """Follows a tree until the tree ends or `close` is called; also a block, sync or async.

    The end of the block lets it continue until no node runs in the tree.
    """

    _thread: EventThread

    @property
    def error(self) -> BaseException | None:
        """The exception that ended it before the tree, or None."""
        return self._thread.error

    def close(self) -> None:
        """Stop following. Any thread may call it; closing twice is harmless."""
        self._thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._thread.close_when_empty()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._thread.close_when_empty()
