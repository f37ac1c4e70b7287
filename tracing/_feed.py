"""From a tree to a thread: events in order, none lost unless the thread is far behind.

The tree pays for a listener and for handing over batches. A thread writes them or makes spans of
them, so a slow disk or exporter delays no node (S7).
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

__all__ = ["FLUSH_SECONDS", "Feed", "Gap", "Handle", "Sink"]

logger = logging.getLogger("anabranch.tracing")

# Events are gathered for so many seconds, or until there are so many.
GATHER_SECONDS = 0.05
MAX_GATHERED = 4096
# Events per call of the sink: few, so that the event loop soon gets the GIL back.
SLICE = 256
# With more events between the tree and the thread, new ones are dropped.
MAX_QUEUED = 500_000
# The end of the program waits so long for the threads.
FLUSH_SECONDS = 5.0


class Gap(NamedTuple):
    """Replaces `missed` events: the tree's open nodes, and the usage so far."""

    missed: int
    tree: TreeSnapshot
    usage: dict[str, Any]
    clock: float


class Sink(Protocol):
    """Consumes the events. All methods are called in one thread, one at a time."""

    def take(self, events: list[Event]) -> None:
        """Consume the next events, in order."""
        ...

    def take_gap(self, gap: Gap) -> None:
        """Continue from the current tree, as events were lost."""
        ...

    def end(self, usage: dict[str, Any] | None) -> None:
        """Finish: the tree has ended with this `usage`, or the feed was closed."""
        ...


class _End(NamedTuple):
    usage: dict[str, Any] | None


class Feed:
    """Passes the events of `commander`, which has been entered, to `sink` until the tree ends.

    The end of the tree waits at most `wait` seconds for the sink. A sink that raises gets no more
    events: that is logged once and affects no node. `error` is the exception.
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
        # The loop writes `_given`, the thread writes `_taken`: neither needs a lock.
        self._given = 0
        self._taken = 0
        # Dropped events that no gap has reported yet; events that the tap reported as missed.
        self._missed = 0
        self._lost = 0
        self._leaving = False  # it ends when the tree is empty
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._tap = Tap(commander, MAX_GATHERED, self._on_news, kinds, self._on_close)
        self._thread = threading.Thread(target=self._run, name="anabranch-tracing", daemon=True)
        self.start = self._tap.now()  # by the clock of the events
        self.epoch = self._tap.epoch  # the time of day at the zero of that clock
        self._thread.start()
        _open.add(self)
        # Register it again each time. The last registered function runs first, and this one must
        # run before the sink's target ends, such as a tracer provider that was made since.
        atexit.unregister(_finish_all)
        atexit.register(_finish_all)

    @property
    def closed(self) -> bool:
        """Whether it takes no more events from the tree."""
        return self._tap.closed

    def close(self) -> None:
        """Take no more events. Any thread may call it; closing twice is harmless.

        In the tree's own thread it waits for the sink as long as the end of the tree does.
        """
        if self._tap.closed:
            return
        if self._is_inside():
            self._tap.close()
        else:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._tap.close)

    def leave(self) -> None:
        """Close when nothing runs in the tree any more."""
        self._leaving = True
        self._end_if_empty()

    def flush(self, timeout: float = FLUSH_SECONDS) -> bool:
        """Wait until the sink has all earlier events; return whether it has."""
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

    def _on_news(self) -> None:
        if self._tap.full:
            self._drain()
        elif self._timer is None:
            self._timer = self._loop.call_later(GATHER_SECONDS, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self._drain()
        # Not in `_on_news`: the tree may be in the middle of a change there.
        if self._missed:
            if self._given - self._taken > MAX_QUEUED // 2:
                self._timer = self._loop.call_later(GATHER_SECONDS, self._on_time)
            else:
                self._put_gap()
        self._end_if_empty()

    def _drain(self) -> None:
        """Queue the events so far; after a loss none, until the gap is queued."""
        events = self._tap.take()
        if self.error is not None:
            return
        if self._missed or self._given - self._taken + len(events) > MAX_QUEUED:
            self._missed += len(events)
        elif events:
            self._given += len(events)
            self._queue.put(events)
        lost, self._lost = self._tap.missed - self._lost, self._tap.missed  # on another machine
        self._missed += lost

    def _put_gap(self) -> None:
        commander, missed = self._commander, self._missed
        self._missed = 0
        self._queue.put(Gap(missed, commander.tree(), commander.usage(), self._tap.now()))

    def _end_if_empty(self) -> None:
        if self._leaving and not self._tap.closed and not self._commander.children:
            self._tap.close()

    def _on_close(self) -> None:
        self._leaving = False
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
        _open.discard(self)
        while not self._queue.empty():  # late flushes
            if isinstance(item := self._queue.get(), threading.Event):
                item.set()

    def _take_next(self) -> bool:
        """Pass on the next item and keep no reference to it; return whether more can come."""
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
                while some := list(islice(events, SLICE)):
                    self._sink.take(some)
                    self._taken += len(some)

    def finish(self, timeout: float) -> None:
        """Wait for the thread at the end of the program."""
        if self._tap.closed:
            self._thread.join(timeout)
        else:  # the program ends without closing the tree
            self.flush(timeout)


_open: WeakSet[Feed] = WeakSet()


def _finish_all() -> None:
    until = time.monotonic() + FLUSH_SECONDS
    for feed in tuple(_open):
        feed.finish(max(0.0, until - time.monotonic()))


class Handle:
    """Follows a tree until the tree ends or `close` is called; also a block, sync or async.

    The end of the block closes it as soon as nothing runs in the tree.
    """

    _feed: Feed

    @property
    def error(self) -> BaseException | None:
        """The exception that ended it before the tree; None if there is none."""
        return self._feed.error

    def close(self) -> None:
        """Stop following. Any thread may call it; closing twice is harmless."""
        self._feed.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._feed.leave()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._feed.leave()
