"""Branches and the gate between them and the source: buffers with limits in characters (F5).

All changes are made without waiting; `Channel.__anext__`, `Waiters.wait` and `Gate.wait` only add
the waiting. Everything here belongs to one loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, TypeVar

from ..commander import Node
from ..commander.waiting import Wait, begin_wait, sleeps, waits_for_tree

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

    async def wait(self) -> None:
        """Wait for the next `wake`."""
        future = begin_wait(self._pump)
        self.futures.append(future)
        loop = asyncio.get_running_loop()
        for gate in _holding.gates:
            loop.call_soon(gate.look_again)  # once this task is suspended
        await future

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
        # How many characters may lie here, and since when more do and nobody has read.
        self._allowed = gate.limit
        self._held_since: float | None = None
        gate.channels.append(self)

    def put(self, item: T) -> None:
        """Add an item. While nobody reads there is nobody to wake and nothing to measure."""
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
        if self._held_since is None or sleeps(reader.get_coro()):
            self._held_since = now
        elif now - self._held_since >= _PATIENCE:
            self._allowed = 2 * self._size
            self._held_since = None
            return False
        return True

    async def __anext__(self) -> T:
        if self._reader is None:
            self._size = sum(map(self._measure, self._items))
        self._reader = asyncio.current_task()
        while not self._items:
            if self._ended:
                await self._outcome()
                raise StopAsyncIteration
            await self._waiters.wait()
        item = self._items.popleft()
        self._size -= self._measure(item)
        self._allowed = self._gate.limit
        self._held_since = None
        if self._gate.held is not None and self._size <= self._allowed:
            self._gate.look_again()
        return item
