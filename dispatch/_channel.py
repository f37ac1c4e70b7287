"""Branches and the gate between them and the source: buffers with limits in characters (F5).

All changes are made without waiting; `Channel.__anext__`, `Waiters.wait` and `Gate.wait` only add
the waiting. Everything here belongs to one loop.
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


class _Holding(threading.local):
    """The gates of this thread's loop that hold their source.

    They look again when a task begins to wait for a branch.
    """

    def __init__(self) -> None:
        self.gates: set[Gate] = set()


_holding = _Holding()

# How often, in seconds, a gate that holds looks whether a reader has ended or waits for the tree.
_LOOK_AGAIN = 0.02
# How long, in seconds, it holds for a reader who takes nothing before it lets more in all the same:
# he may wait for the source in a way that cannot be seen.
_PATIENCE = 1.0


class Waiters:
    """Tasks that wait for one thing that `pump` brings."""

    __slots__ = ("_pump", "futures")

    def __init__(self, pump: Node[Any]) -> None:
        self._pump = pump
        self.futures: list[Wait] = []

    def begin(self) -> Wait:
        """Return a future for the current task to await at once: it is done at the next `wake`."""
        future = begin_wait(self._pump)
        self.futures.append(future)
        for gate in _holding.gates:
            # Once this task is suspended.
            asyncio.get_running_loop().call_soon(gate.look_again)
        return future

    async def wait(self) -> None:
        """Wait for the next `wake`."""
        await self.begin()

    def forget(self, wait: Wait) -> None:
        """Wake one no more: it has ended by itself."""
        if wait in self.futures:
            self.futures.remove(wait)

    def wake(self) -> None:
        """Wake all that wait."""
        futures, self.futures = self.futures, []
        for future in futures:
            if not future.done():
                future.set_result(None)


class Gate:
    """Holds the source of one reply back while a branch that is being read is too full.

    `limit` is in characters, for each of the `channels`. `pressed` says that it is worth asking
    `wait`, `held` is what a source that is held waits for.
    """

    __slots__ = ("channels", "held", "limit", "pressed", "pump")

    def __init__(self, limit: int, pump: Node[Any]) -> None:
        self.limit = limit
        self.pump = pump
        self.pressed = False
        self.channels: list[Channel[Any]] = []
        self.held: asyncio.Future[None] | None = None

    def look_again(self) -> None:
        """Let the source go on if nothing holds it any more."""
        if self.held is not None and not self.held.done():
            self.held.set_result(None)

    async def wait(self) -> bool:
        """Wait until no channel holds the source back; return whether any did."""
        self.pressed = held = False
        loop = asyncio.get_running_loop()
        while any(channel.holds() for channel in self.channels):
            held = True
            self.held = loop.create_future()
            timer = loop.call_later(_LOOK_AGAIN, self.look_again)
            _holding.gates.add(self)
            try:
                await self.held
            finally:
                _holding.gates.discard(self)
                timer.cancel()
                self.held = None
        return held


class Channel(AsyncIterator[T]):
    """One branch: an async iterator of what the pump puts there, each item once.

    Several tasks may read it; each item goes to one of them. After the last item it ends, or
    raises what the reply failed with. `measure` gives the characters of an item; `outcome` returns
    if the reply ended well and raises its failure if not.
    """

    __slots__ = (
        "_allowed",
        "_ended",
        "_gate",
        "_held_since",
        "_items",
        "_measure",
        "_outcome",
        "_reader",
        "_size",
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
        self._size = 0  # of the items, in characters; 0 until somebody reads
        self._ended = False
        self._reader: asyncio.Task[Any] | None = None  # the task that read it last
        self._waiters = Waiters(gate.pump)
        # Of a reader that waits in `pour`: takes an item, or leaves it to the reader.
        self._taker: Callable[[T], bool] | None = None
        # How many characters may lie here, and since when more do and nobody has read.
        self._allowed = gate.limit
        self._held_since: float | None = None
        gate.channels.append(self)

    def put(self, item: T) -> None:
        """Add an item. While nobody reads there is nobody to wake and nothing to measure."""
        if self._taker is not None and self._taker(item):
            return
        self._items.append(item)
        if self._reader is not None:
            self._size = size = self._size + self._measure(item)
            if self._waiters.futures:
                self._waiters.wake()
            if size > self._gate.limit:
                self._gate.pressed = True

    def put_all(self, items: Iterable[T]) -> None:
        """Add several items."""
        if self._reader is None:
            self._items.extend(items)
        else:
            for item in items:
                self.put(item)

    def end(self) -> None:
        """Nothing more comes."""
        self._ended = True
        self._waiters.wake()

    def holds(self) -> bool:
        """Say whether the source has to wait for this branch (F5).

        It does not for one that nobody has read, nor for one whose last reader has ended or waits
        for something that may need the source itself. If a reader takes nothing for long, though
        he does not merely sleep, twice as much is let in, and so on.
        """
        reader = self._reader
        if self._size <= self._allowed or reader is None or reader.done() or waits_for_tree(reader):
            self._held_since = None
            return False
        now = reader.get_loop().time()
        if self._held_since is None or is_sleeping(reader.get_coro()):
            self._held_since = now
        elif now - self._held_since >= _PATIENCE:
            self._allowed = 2 * self._size
            self._held_since = None
            return False
        return True

    async def pour(self, take: Callable[[T], object]) -> None:
        """Give each item to `take`, plain or async, until the end; raises as reading does.

        While this waits, `take` is called where the item is put, in the context of this task, and
        no task is woken for it: only if it has raised, or its result has to be awaited.
        """
        context = copy_context()
        future: Wait
        taken: object = None
        failure: BaseException | None = None

        def take_there(item: T) -> bool:
            nonlocal taken, failure
            if future.done():
                return False
            try:
                taken = context.run(take, item)
            except BaseException as error:  # noqa: BLE001 - it is the reader's
                failure = error
            if failure is None and (taken is None or not isawaitable(taken)):
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
            future, self._taker = self._waiters.begin(), take_there
            try:
                await future
            except asyncio.CancelledError:
                if failure is None:
                    _let_go(taken)
                    raise
            finally:
                self._taker = None
                self._waiters.forget(future)
            if failure is not None:
                try:
                    raise failure
                finally:
                    failure = None  # its traceback leads to this frame
            if isawaitable(taken):
                await taken
            taken = None

    async def __anext__(self) -> T:
        self._begin_reading()
        while not self._items:
            if self._ended:
                await self._outcome()
                raise StopAsyncIteration
            await self._waiters.wait()
        return self._next()

    def _begin_reading(self) -> None:
        if self._reader is None:
            self._size = sum(map(self._measure, self._items))
        self._reader = asyncio.current_task()

    def _next(self) -> T:
        item = self._items.popleft()
        self._size -= self._measure(item)
        self._allowed = self._gate.limit
        self._held_since = None
        if self._gate.held is not None and self._size <= self._allowed:
            self._gate.look_again()
        return item


def _let_go(taken: object) -> None:
    """End what nobody awaits any more, as it was cancelled before it began."""
    if isinstance(taken, asyncio.Future):
        taken.cancel()
    elif isinstance(taken, Coroutine):
        taken.close()
