"""An event loop for tests: a seed orders the steps of its tasks, and its clock is virtual.

It is asyncio's selector loop with two parts replaced: the queue of ready handles, and the selector.
Instead of waiting, the selector advances the clock or reports a deadlock.
"""

from __future__ import annotations

import asyncio
import random
import selectors
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any, cast

from ..commander.private import running_loop
from ._choices import Choices
from ._deadlock import Deadlock, describe
from ._threads import is_at_work, is_in_event, note_waits

__all__ = ["SeededLoop", "VirtualClock"]

# Seconds of real time between two checks of an idle loop for work of other threads.
LOOK = 0.02
# The threads that watch slow bodies, and those that write recordings and spans. They never call
# into a loop, so the clock does not wait for them.
WATCHERS = ("anabranch", "anabranch-tracing")
# Timers that only inspect trees may fire this many times in a row before the loop reports a
# deadlock. Not at the first time, because a listener may act on the result.
LOOKS = 40


class VirtualClock:
    """The time of a `SeededLoop`, in seconds from 0.

    It jumps when the loop is idle.
    """

    def __init__(self) -> None:
        self.now: float = 0.0

    def advance(self, seconds: float) -> None:
        """Advance the clock at once, like a body that computes for this long.

        Timers that become due run in the order of their times, from the loop's next turn. Raises
        `ValueError` for a negative number.
        """
        if seconds < 0:
            raise ValueError(f"a clock goes forward only, not by {seconds!r} s")
        self.now += seconds


class SeededLoop(asyncio.SelectorEventLoop):
    """An event loop whose `seed` decides the order of the steps of ready tasks.

        loop = SeededLoop(seed=7)
        result = loop.run_until_complete(main())

    Most tests call `run_seeded` or `explore` instead.

    Tasks that are ready in the same turn and adjacent in the queue are stepped in any order. All
    other handles keep their order, as asyncio promises: a callback runs after all that was ready
    before it and before all that became ready after it. A handle that becomes ready in one turn
    runs in the next. So each order could also occur in production. With `seed=None` the order is
    asyncio's, and only the clock is virtual.

    `time()` returns the time of `clock`. When no handle is ready, the clock jumps to the next
    timer. Without a timer, the loop raises `Deadlock`. After `turns` turns, it raises
    `TimeoutError`.

    Threads and files are real. A callback that another thread adds with `call_soon_threadsafe` runs
    at the start of a turn. The seed does not control which turn that is. The other handles keep
    their order. An idle loop waits for threads that are at work and were started after the
    loop was created, and for watched files. It waits until the next timer would be due in real
    time, but at most `patience` seconds. Then it advances the clock or raises `Deadlock`. Idle
    threads of a pool are not at work. Neither are threads that wait for an event without a timeout,
    such as a journal's.
    """

    def __init__(
        self, seed: int | None = 0, *, patience: float = 10.0, turns: int | None = 1_000_000
    ) -> None:
        self.seed = seed
        self.clock: VirtualClock = VirtualClock()
        self.choices: Choices = Choices(seed or 0)
        self.random: random.Random = self.choices.random
        self.patience = patience
        self._turns = self._turns_left = turns
        # Handles that other threads have added since the last turn.
        self._inbox: deque[asyncio.Handle] = deque()
        # Calls in thread pools that have not ended yet.
        self._in_pools: list[asyncio.Future[Any]] = []
        self._threads_before = frozenset(threading.enumerate())
        note_waits()
        self._polled = _Selector(self)
        super().__init__(self._polled)
        _require_private(self)
        self._ready = cast("deque[asyncio.Handle]", _Ready(None if seed is None else self.choices))

    def time(self) -> float:
        """Return the virtual time in seconds. It starts at 0."""
        return self.clock.now

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Run `callback` at the start of the next turn; in the loop's thread, like `call_soon`."""
        if not self.is_running() or running_loop() is self:
            return super().call_soon_threadsafe(callback, *args, context=context)
        handle = asyncio.Handle(callback, args, self, context)
        self._inbox.append(handle)
        # On a Python without this method, an idle loop still checks its inbox every LOOK seconds.
        getattr(self, "_write_to_self", _nothing)()
        return handle

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """Run `func` in a thread of a pool, and record the call as pending."""
        future = super().run_in_executor(executor, func, *args)
        self._in_pools = [each for each in self._in_pools if not each.done()]
        self._in_pools.append(future)
        return future

    def allow_more(self) -> None:
        """Allow the loop its full number of turns again."""
        self._turns_left = self._turns

    def _take_inbox(self) -> bool:
        came = len(self._inbox)
        for handle in [self._inbox.popleft() for _ in range(came)][::-1]:
            self._ready.appendleft(handle)
        return came > 0

    def _may_be_called(self) -> bool:
        """Return whether anything outside this thread may still call into the loop."""
        if len(self._polled.get_map()) > 1 or self._working():  # the loop's self-pipe is one
            return True
        # A pool thread looks idle between taking a call off its queue and starting it. So count the
        # calls that have not ended, without those that may wait for an event.
        unanswered = sum(not each.done() for each in self._in_pools)
        return unanswered > sum(map(is_in_event, self._own_threads()))

    def _only_looks(self) -> bool:
        """Return whether timers are set, and all of them only inspect trees, to publish waits."""
        timers: list[Any] = cast("Any", self)._scheduled
        return bool(timers) and all(
            each.cancelled()
            or getattr(getattr(each._callback, "__self__", None), "only_looks", False)
            for each in timers
        )

    def _working(self) -> list[threading.Thread]:
        """Return the threads that are at work and may still call into the loop."""
        return [each for each in self._own_threads() if is_at_work(each)]

    def _own_threads(self) -> list[threading.Thread]:
        return [
            thread
            for thread in threading.enumerate()
            if thread not in self._threads_before and thread.name not in WATCHERS
        ]


def _require_private(loop: asyncio.AbstractEventLoop) -> None:
    """Raise `NotImplementedError` if this Python lacks a private attribute that the loop needs."""
    handle = asyncio.Handle(_nothing, (), loop)
    for owner, name in ((loop, "_ready"), (loop, "_scheduled"), (handle, "_callback")):
        if not hasattr(owner, name):
            raise NotImplementedError(
                f"{type(owner).__name__} has no {name} on this Python ({sys.version.split()[0]}): "
                "run the test with asyncio.run, or on a Python that this version was tested with"
            )


def _nothing() -> None: ...


class _Ready(deque[asyncio.Handle]):
    """The queue of ready handles: FIFO, but `choices` reorders adjacent tasks of a turn."""

    def __init__(self, choices: Choices | None) -> None:
        super().__init__()
        self._choices = choices
        # The number of this turn's handles that are still in the queue, without those in `_drawn`.
        self._turn = 0
        self._drawn: list[asyncio.Handle] = []

    def begin_turn(self) -> None:
        self._turn = 0

    def __len__(self) -> int:
        return super().__len__() + len(self._drawn)

    def popleft(self) -> asyncio.Handle:
        if self._choices is None:
            return super().popleft()
        if not self._drawn:  # draw the next callback, or all tasks before the next callback
            self._turn = self._turn or len(self)
            more = True
            while more:
                self._drawn.append(super().popleft())
                self._turn -= 1
                more = self._turn > 0 and _is_step(self._drawn[-1]) and _is_step(self[0])
        last = len(self._drawn) - 1
        at = self._choices.task([_task(each) for each in self._drawn]) if last else 0
        self._drawn[at], self._drawn[last] = self._drawn[last], self._drawn[at]
        return self._drawn.pop()


def _task(handle: asyncio.Handle) -> Any:
    """Return the task that a handle steps, or another object or None if it steps no task."""
    return getattr(cast("Any", handle)._callback, "__self__", None)


def _is_step(handle: asyncio.Handle) -> bool:
    return isinstance(_task(handle), asyncio.Task)


class _Selector(selectors.DefaultSelector):
    """A selector that advances the virtual clock instead of waiting for a timer."""

    def __init__(self, loop: SeededLoop) -> None:
        super().__init__()
        self._loop = loop
        self._looks = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        loop = self._loop
        if loop._turns_left is not None:
            loop._turns_left -= 1
            if loop._turns_left < 0:
                raise TimeoutError(
                    f"seed {loop.seed}: still running at {loop.clock.now:g} s of virtual time, "
                    f"after {loop._turns} turns of the loop"
                )
        events = super().select(0)
        if not (loop._take_inbox() or events or (timeout is not None and timeout <= 0)):
            self._looks = self._looks + 1 if loop._only_looks() else 0
            if self._looks > LOOKS:
                timeout = None
            left = loop.patience if timeout is None else min(timeout, loop.patience)
            came = False
            # Count checks instead of real time: while the process was suspended, no thread could
            # make progress.
            while not came and left > 0 and loop._may_be_called():
                events = super().select(min(left, LOOK))
                came = loop._take_inbox() or bool(events)
                left -= LOOK
            if not came and not loop._take_inbox():
                if timeout is None:
                    raise Deadlock(describe(loop, loop._working()))
                loop.clock.now += timeout
        cast("_Ready", loop._ready).begin_turn()
        return events
