"""The branches of a reply, and the gate that holds the source back while one is too full.

Limits are in characters. Each change of state completes without an `await`, so no other task sees
half of it. Everything here belongs to one event loop. Contract F5 states the guarantees.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextvars import copy_context
from inspect import isawaitable
from typing import Any, TypeVar

from ..commander import Node
from ..commander.waiting import Wait, begin_wait, is_sleeping, waits_for_tree

__all__ = ["Channel", "Gate", "Waiters"]

T = TypeVar("T")


class _ClosedGates(threading.local):
    """The gates of this thread's loop that are holding their source back.

    Each checks its readers again when a task begins to wait for a branch.
    """

    def __init__(self) -> None:
        self.gates: set[Gate] = set()


_closed_gates = _ClosedGates()

# How often a closed gate checks its readers: nothing signals that one has ended, or that it waits
# for another node.
_READER_POLL_SECONDS = 0.02
# How long a gate stays closed for a reader that takes nothing. Then it opens anyway: the reader may
# depend on the source in a way that the gate cannot see, which would be a deadlock.
_STALLED_READER_SECONDS = 1.0


class Waiters:
    """Tasks that wait for the same event of `pump`."""

    __slots__ = ("_pump", "futures")

    def __init__(self, pump: Node[Any]) -> None:
        self._pump = pump
        self.futures: list[Wait] = []

    def begin(self) -> Wait:
        """Return a future for the current task to await at once; the next `wake` completes it."""
        future = begin_wait(self._pump)
        self.futures.append(future)
        for gate in _closed_gates.gates:
            # This task may be the reader that holds the gate closed. Only in the loop's next turn
            # is it suspended, so that the gate sees it wait.
            asyncio.get_running_loop().call_soon(gate.check_again)
        return future

    async def wait(self) -> None:
        """Wait for the next `wake`."""
        await self.begin()

    def forget(self, wait: Wait) -> None:
        """Remove a future that something else has completed or cancelled."""
        if wait in self.futures:
            self.futures.remove(wait)

    def wake(self) -> None:
        """Wake all waiting tasks."""
        futures, self.futures = self.futures, []
        for future in futures:
            if not future.done():  # a cancelled task has cancelled its future
                future.set_result(None)


class Gate:
    """Holds the source of one reply back while a branch that is being read is too full.

    `limit` is the number of characters for each of the `channels`. A channel that exceeds it sets
    `is_over_limit`, so that the pump tests one flag per delta and calls `wait` only then. While the
    source waits, `wake_up` is the future that it waits for.
    """

    __slots__ = ("channels", "is_over_limit", "limit", "pump", "wake_up")

    def __init__(self, limit: int, pump: Node[Any]) -> None:
        self.limit: int = limit
        self.pump: Node[Any] = pump
        self.is_over_limit: bool = False
        self.channels: list[Channel[Any]] = []
        self.wake_up: asyncio.Future[None] | None = None

    def check_again(self) -> None:
        """Make a waiting source check its channels again."""
        if self.wake_up is not None and not self.wake_up.done():
            self.wake_up.set_result(None)

    async def wait(self) -> bool:
        """Wait until no channel holds the source back; return whether any did."""
        # Clear the flag before waiting. The pump feeds its pending deltas when it suspends below;
        # if these fill a branch, the flag must be set again afterwards.
        self.is_over_limit = has_waited = False
        loop = asyncio.get_running_loop()
        while any(channel.holds_source() for channel in self.channels):
            has_waited = True
            self.wake_up = loop.create_future()
            timer = loop.call_later(_READER_POLL_SECONDS, self.check_again)
            _closed_gates.gates.add(self)
            try:
                await self.wake_up
            finally:
                _closed_gates.gates.discard(self)
                timer.cancel()
                self.wake_up = None
        return has_waited


class Channel(AsyncIterator[T]):
    """One branch: an async iterator of the items that the pump puts into it.

    Several tasks may read it; each item goes to one of them. After the last item the iteration
    ends, or raises the reply's failure. `measure` returns the length of an item in characters.
    `outcome` raises if the reply failed.
    """

    __slots__ = (
        "_allowed",
        "_ended",
        "_gate",
        "_items",
        "_measure",
        "_outcome",
        "_reader",
        "_size",
        "_stalled_since",
        "_taker",
        "_waiters",
    )

    def __init__(
        self, gate: Gate, measure: Callable[[T], int], outcome: Callable[[], Awaitable[object]]
    ) -> None:
        self._gate = gate
        self._measure = measure
        self._outcome = outcome
        self._items: deque[T] = deque()
        self._size = 0  # of the items, in characters; 0 before the first read
        self._ended = False
        self._reader: asyncio.Task[Any] | None = None  # the task that read it last
        self._waiters = Waiters(gate.pump)
        # Set while a reader waits in `pour`: handles an item at once, or returns False.
        self._taker: Callable[[T], bool] | None = None
        # The characters that may wait here, and the time since when there are more and no read.
        self._allowed = gate.limit
        self._stalled_since: float | None = None
        gate.channels.append(self)

    def put(self, item: T) -> None:
        """Add an item."""
        # First the reader in `pour`: it has drained the buffer, so the order stays. Once it
        # declines, it declines all items until it has drained the buffer again.
        if self._taker is not None and self._taker(item):
            return
        self._items.append(item)
        # A branch without a reader never holds the source back: its items need no measuring.
        if self._reader is not None:
            self._size = size = self._size + self._measure(item)
            if self._waiters.futures:
                self._waiters.wake()
            if size > self._gate.limit:
                self._gate.is_over_limit = True

    def put_all(self, items: Iterable[T]) -> None:
        """Add several items."""
        if self._reader is None:
            self._items.extend(items)
        else:
            for item in items:
                self.put(item)

    def end(self) -> None:
        """End the branch after the items that it has."""
        self._ended = True  # before the wake-up: readers check it when they find no item
        self._waiters.wake()

    def holds_source(self) -> bool:
        """Return whether the source must wait for this branch.

        It never waits for an unread branch, nor for one whose last reader has ended or waits for
        another node, which may itself need this source: both would be deadlocks. If a reader takes
        nothing for long and does not merely sleep, the allowance doubles.
        """
        reader = self._reader
        # Cheapest test first: most calls end at the size.
        if self._size <= self._allowed or reader is None or reader.done() or waits_for_tree(reader):
            self._stalled_since = None
            return False
        now = reader.get_loop().time()
        if self._stalled_since is None or is_sleeping(reader.get_coro()):
            self._stalled_since = now  # a timer wakes the reader: no deadlock is possible
        elif now - self._stalled_since >= _STALLED_READER_SECONDS:
            self._allowed = 2 * self._size
            self._stalled_since = None
            return False
        return True

    async def pour(self, take: Callable[[T], object]) -> None:
        """Call `take`, plain or async, with each item until the end; raises as reading does.

        While this waits, `put` calls `take` itself, with this task's context variables. It wakes
        this task only if `take` raised or returned an awaitable.
        """
        context = copy_context()
        future: Wait
        value: object = None
        failure: BaseException | None = None

        def take_directly(item: T) -> bool:
            nonlocal value, failure
            if future.done():  # the reader is about to run: it takes this item from the buffer
                return False
            try:
                value = context.run(take, item)
            except BaseException as error:  # noqa: BLE001 - the reader raises it
                failure = error
            if failure is None and (value is None or not isawaitable(value)):
                return True
            if not future.done():  # `take` may have cancelled its own reader
                future.set_result(None)
            return True

        while True:
            self._begin_reading()
            while self._items:
                if isawaitable(result := context.run(take, self._next())):
                    await result
            if self._ended:
                await self._outcome()
                return
            # The buffer is empty and nothing has suspended since: no item can come in between.
            future, self._taker = self._waiters.begin(), take_directly
            try:
                await future
            except asyncio.CancelledError:
                if failure is None:  # a failure of `take` came before the cancellation
                    _discard(value)
                    raise
            finally:
                # `take_directly` completes the future without `wake`, so it may still be listed.
                self._taker = None
                self._waiters.forget(future)
            if failure is not None:
                try:
                    raise failure
                finally:
                    failure = None  # its traceback refers to this frame: avoid the cycle
            if isawaitable(value):
                await value
            value = None

    async def __anext__(self) -> T:
        self._begin_reading()
        while not self._items:  # again after each wait: another reader may have been faster
            if self._ended:
                await self._outcome()
                raise StopAsyncIteration
            await self._waiters.wait()
        return self._next()

    def _begin_reading(self) -> None:
        if self._reader is None:  # `put` has not measured these
            self._size = sum(map(self._measure, self._items))
        self._reader = asyncio.current_task()

    def _next(self) -> T:
        item = self._items.popleft()
        self._size -= self._measure(item)
        # The reader makes progress: the normal limit applies again.
        self._allowed = self._gate.limit
        self._stalled_since = None
        if self._gate.wake_up is not None and self._size <= self._allowed:
            self._gate.check_again()
        return item


def _discard(value: object) -> None:
    """Cancel or close the result of `take` that the cancelled reader will not await."""
    if isinstance(value, asyncio.Future):
        value.cancel()
    elif isinstance(value, Coroutine):
        value.close()
