"""An event loop for tests: a seed orders the wake-ups of its tasks, and its clock jumps.

It is asyncio's own selector loop with two parts exchanged: the queue of what is ready, and the
selector, which instead of waiting lets the clock jump or finds that nothing can ever happen.
"""

from __future__ import annotations

import asyncio
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

# How often, in real seconds, a loop that waits for threads looks whether they are still at work.
LOOK = 0.02
# The engine's watch over slow bodies, and what writes recordings and spans: these never bring a
# loop anything to do.
WATCHERS = ("anabranch", "anabranch-tracing")
# How often the timers that only look at a tree fire with nothing else to come, before it is a
# deadlock: they may still tell somebody who acts on it.
LOOKS = 40


class VirtualClock:
    """The time of a `SeededLoop`, in seconds from 0. It moves only when the loop is idle."""

    def __init__(self) -> None:
        self.now = 0.0

    def advance(self, seconds: float) -> None:
        """Move the clock on at once, as a body does that computes for so long.

        Timers that fall due run in the order of their times, from the loop's next turn.
        """
        if seconds < 0:
            raise ValueError(f"a clock goes forward only, not by {seconds!r} s")
        self.now += seconds


class SeededLoop(asyncio.SelectorEventLoop):
    """An event loop whose `seed` decides the order in which ready tasks are stepped.

    Tasks that are ready in the same turn and stand next to each other in the queue are stepped in
    any order. All else keeps its place, as asyncio promises: a callback runs after whatever was
    ready before it and before whatever became ready after it, and what becomes ready in one turn
    runs in the next. So each order is one in which the wake-ups might have come in reality. With
    None for a seed the order is asyncio's own, and only the clock is virtual.

    `time()` is that of `clock`. When nothing is ready the clock jumps to the next timer; when
    there is none either, `Deadlock` is raised out of the run. `turns` is the number of turns after
    which a run is given up with a `TimeoutError`.

    Threads and files are real. What comes from another thread by `call_soon_threadsafe` runs at
    the beginning of a turn and changes no order among the others, but its moment is not the seed's
    to choose. While a thread that was started since the loop was made is at work, or files are
    watched, an idle loop waits for them as long as a timer would in reality, but at most
    `patience` real seconds, before it lets the clock jump or calls a deadlock. The waiting threads
    of a pool are not at work, nor is one that waits for an event for as long as it takes, as that
    of a journal does.
    """

    def __init__(
        self, seed: int | None = 0, *, patience: float = 10.0, turns: int | None = 1_000_000
    ) -> None:
        self.seed = seed
        self.clock = VirtualClock()
        self.choices = Choices(seed or 0)
        self.random = self.choices.random
        self.patience = patience
        self._turns = self._turns_left = turns
        # What other threads have handed in since the last turn.
        self._inbox: deque[asyncio.Handle] = deque()
        # What this loop has handed to pools of threads, and has not been answered yet.
        self._in_pools: list[asyncio.Future[Any]] = []
        self._threads_before = frozenset(threading.enumerate())
        note_waits()
        self._polled = _Selector(self)
        super().__init__(self._polled)
        _require_private(self)
        self._ready = cast("deque[asyncio.Handle]", _Ready(None if seed is None else self.choices))

    def time(self) -> float:
        """Return the virtual time, in seconds since the loop was made."""
        return self.clock.now

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Call back at the beginning of the next turn; from the loop's own thread, `call_soon`."""
        if not self.is_running() or running_loop() is self:
            return super().call_soon_threadsafe(callback, *args, context=context)
        handle = asyncio.Handle(callback, args, self, context)
        self._inbox.append(handle)
        # Without this name an idle loop looks into its inbox every LOOK seconds.
        getattr(self, "_write_to_self", _nothing)()
        return handle

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """Run a function in a thread of a pool."""
        future = super().run_in_executor(executor, func, *args)
        self._in_pools = [each for each in self._in_pools if not each.done()]
        self._in_pools.append(future)
        return future

    def allow_more(self) -> None:
        """Begin to count the turns anew."""
        self._turns_left = self._turns

    def _take_inbox(self) -> bool:
        came = len(self._inbox)
        for handle in [self._inbox.popleft() for _ in range(came)][::-1]:
            self._ready.appendleft(handle)
        return came > 0

    def _may_be_called(self) -> bool:
        """Say whether anything outside this thread may still call in."""
        if len(self._polled.get_map()) > 1 or self._working():  # one is the loop's own pipe
            return True
        # A pool's thread that has taken a call off its queue looks idle until it begins the call.
        unanswered = sum(not each.done() for each in self._in_pools)
        return unanswered > sum(map(is_in_event, self._own_threads()))

    def _only_looks(self) -> bool:
        """Say whether no timer is set but those that look what trees wait for, again and again."""
        timers: list[Any] = cast("Any", self)._scheduled
        return bool(timers) and all(
            each.cancelled()
            or getattr(getattr(each._callback, "__self__", None), "only_looks", False)
            for each in timers
        )

    def _working(self) -> list[threading.Thread]:
        """Return the threads that are at work and may still call in."""
        return [each for each in self._own_threads() if is_at_work(each)]

    def _own_threads(self) -> list[threading.Thread]:
        return [
            thread
            for thread in threading.enumerate()
            if thread not in self._threads_before and thread.name not in WATCHERS
        ]


def _require_private(loop: asyncio.AbstractEventLoop) -> None:
    """Refuse a Python on which no seed would order anything, or no deadlock be found."""
    handle = asyncio.Handle(_nothing, (), loop)
    for owner, name in ((loop, "_ready"), (loop, "_scheduled"), (handle, "_callback")):
        if not hasattr(owner, name):
            raise NotImplementedError(
                f"{type(owner).__name__} has no {name} on this Python ({sys.version.split()[0]}): "
                "run the test with asyncio.run, or on a Python that this version was tested with"
            )


def _nothing() -> None: ...


class _Ready(deque[asyncio.Handle]):
    """What is ready, in asyncio's order but, given `choices`, for neighbouring tasks of a turn."""

    def __init__(self, choices: Choices | None) -> None:
        super().__init__()
        self._choices = choices
        # How many handles of this turn are still in the queue; `_drawn` are those beside it.
        self._turn = 0
        self._drawn: list[asyncio.Handle] = []

    def begin_turn(self) -> None:
        self._turn = 0

    def __len__(self) -> int:
        return super().__len__() + len(self._drawn)

    def popleft(self) -> asyncio.Handle:
        if self._choices is None:
            return super().popleft()
        if not self._drawn:  # take the next callback, or all tasks up to the next callback
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
    """Return the task that a handle steps; anything else steps none."""
    return getattr(cast("Any", handle)._callback, "__self__", None)


def _is_step(handle: asyncio.Handle) -> bool:
    return isinstance(_task(handle), asyncio.Task)


class _Selector(selectors.DefaultSelector):
    """Waits for nothing that the virtual clock can bring about."""

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
            # Counted in looks: a process that was stopped for a while has not waited for anybody.
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
