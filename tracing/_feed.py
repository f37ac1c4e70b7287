"""The way from a tree to a thread: events in order, none lost unless the thread is far behind.

The tree pays for a listener and a hand-over of whole batches. What is done with them (written,
made into spans) is done in a thread, so that a slow disk or exporter holds up no node (S7).
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
from typing import Any, NamedTuple, Protocol
from weakref import WeakSet

from ..commander import Commander, Event, EventKind, TreeSnapshot
from ..commander.tap import Batch, Tap

__all__ = ["Feed", "Gap", "Sink"]

logger = logging.getLogger("anabranch.tracing")

# Seconds for which events are gathered; and how many at most, before they go at once.
DELAY = 0.05
BATCH = 4096
# Events that the sink takes at once: few, so that the loop soon has its turn.
SOME = 256
# So many events may lie between the tree and the thread: beyond it they are dropped.
MOST = 500_000
# Seconds that the end of the program waits for what is still to be written.
PATIENCE = 5.0


class Gap(NamedTuple):
    """What takes the place of `missed` events: the unfinished nodes, and what was spent so far."""

    missed: int
    tree: TreeSnapshot
    usage: dict[str, Any]
    clock: float


class Sink(Protocol):
    """What is done with the events; all of it is called in one thread, one after the other."""

    def take(self, events: list[Event]) -> None:
        """Take the next events, in order."""
        ...

    def take_gap(self, gap: Gap) -> None:
        """Events were lost: go on from what the tree is now."""
        ...

    def end(self, usage: dict[str, Any] | None) -> None:
        """No more comes: the tree has ended, with `usage` spent in all, or nobody wants more."""
        ...


class _End(NamedTuple):
    usage: dict[str, Any] | None


class Feed:
    """Hands the events of `commander`, which has been entered, to `sink` until its end.

    `wait` is for how many seconds the end of the tree waits for the sink at most. A sink that
    raises gets no more; that is logged once and concerns no node. `error` is what it raised.
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
        # Events handed over, and those taken: each has one writer.
        self._given = 0
        self._taken = 0
        # Events of which the sink is to be told that they are missed; those that the tap has lost.
        self._missed = 0
        self._lost = 0
        # The block was left: it ends when nothing runs any more.
        self._leaving = False
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._tap = Tap(commander, BATCH, self._on_news, kinds, self._on_close)
        self._thread = threading.Thread(target=self._run, name="anabranch-tracing", daemon=True)
        self.start = self._tap.now()  # by the clock of the events
        self.epoch = self._tap.epoch  # the time of day at the zero of that clock
        self._thread.start()
        _open.add(self)
        # Anew each time: it has to come before the end of what the sink writes to, such as a
        # provider of tracers, which may have been made since; the last that is registered is first.
        atexit.unregister(_finish_all)
        atexit.register(_finish_all)

    @property
    def closed(self) -> bool:
        """Whether nothing more is taken from the tree."""
        return self._tap.closed

    def close(self) -> None:
        """Take nothing more; in any thread. Closing twice is harmless.

        In the tree's own thread it waits for the sink, for as long as the end does.
        """
        if self._tap.closed:
            return
        if self._is_inside():
            self._tap.close()
        else:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._tap.close)

    def leave(self) -> None:
        """Go on until nothing runs in the tree, and end then."""
        self._leaving = True
        self._end_if_empty()

    def flush(self, timeout: float = PATIENCE) -> bool:
        """Wait until the sink has had all that happened before this call; say whether it has."""
        done = threading.Event()

        def mark() -> None:
            self._drain()
            if self._missed:
                self._tell_gap()
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
            self._timer = self._loop.call_later(DELAY, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self._drain()
        # Not while an event is being told: the tree may then be halfway through a change.
        if self._missed:
            if self._given - self._taken > MOST // 2:
                self._timer = self._loop.call_later(DELAY, self._on_time)
            else:
                self._tell_gap()
        self._end_if_empty()

    def _drain(self) -> None:
        """Hand over what has happened; after a loss nothing, until the gap has been told."""
        events = self._tap.take()
        if self.error is not None:
            return
        if self._missed or self._given - self._taken + len(events) > MOST:
            self._missed += len(events)
        elif events:
            self._given += len(events)
            self._queue.put(events)
        lost, self._lost = self._tap.missed - self._lost, self._tap.missed  # on another machine
        self._missed += lost

    def _tell_gap(self) -> None:
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
            self._tell_gap()
        self._queue.put(_End(self._commander.usage()))
        if self._wait:
            self._thread.join(self._wait)

    # --- in the thread

    def _run(self) -> None:
        while self._take_next():
            pass
        _open.discard(self)
        while not self._queue.empty():  # who waits for a flush
            if isinstance(item := self._queue.get(), threading.Event):
                item.set()

    def _take_next(self) -> bool:
        """Wait for what comes next, which nothing keeps afterwards; return whether more comes."""
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
                while some := list(islice(events, SOME)):
                    self._sink.take(some)
                    self._taken += len(some)

    def finish(self, timeout: float) -> None:
        """Wait for the thread, as the program ends."""
        if self._tap.closed:
            self._thread.join(timeout)
        else:  # the program leaves without having closed the tree
            self.flush(timeout)


_open: WeakSet[Feed] = WeakSet()


def _finish_all() -> None:
    until = time.monotonic() + PATIENCE
    for feed in tuple(_open):
        feed.finish(max(0.0, until - time.monotonic()))
