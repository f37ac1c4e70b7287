"""Branches and the gate between them and the source: buffers with limits in characters (F5).

All changes are made without waiting; `Channel.__anext__`, `Waiters.wait` and `Gate.wait` only add
the waiting. Everything here belongs to one loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from ..commander import Node
from ..commander.waiting import Wait, begin_wait, sleeps, waits_for_tree
from ._speech import Sink

__all__ = ["Channel", "Gate", "Waiters"]

T = TypeVar("T")


class _Here(threading.local):
    """What the branches of this thread's loop know of each other."""

    def __init__(self) -> None:
        # Gates that hold their source: they look again when a task begins to wait for a branch.
        self.holding: set[Gate] = set()


_here = _Here()

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
        for gate in _here.holding:
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

    `limit` is in characters, for each branch. `pressed` says that it is worth asking `wait`.
    """

    __slots__ = ("_channels", "_held", "limit", "pressed", "pump")

    def __init__(self, limit: int, pump: Node[Any]) -> None:
        self.limit = limit
        self.pump = pump
        self.pressed = False
        self._channels: list[Channel[Any]] = []
        self._held: asyncio.Future[None] | None = None

    def add(self, channel: Channel[Any]) -> None:
        """Let `channel` hold the source back."""
        self._channels.append(channel)

    def look_again(self) -> None:
        """Let the source go on if nothing holds it any more."""
        if self._held is not None and not self._held.done():
            self._held.set_result(None)

    async def wait(self) -> bool:
        """Wait until no channel holds the source back; return whether any did."""
        self.pressed = held = False
        while any(channel.holds() for channel in self._channels):
            held = True
            await self._next_look()
        return held

    async def _next_look(self) -> None:
        loop = asyncio.get_running_loop()
        self._held = loop.create_future()
        timer = loop.call_later(_LOOK_AGAIN, self.look_again)
        _here.holding.add(self)
        try:
            await self._held
        finally:
            _here.holding.discard(self)
            timer.cancel()
            self._held = None


class Channel(Sink[T], AsyncIterator[T]):
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

    put: Callable[[T], None]
    """Adds an item. While nobody reads there is nobody to wake and nothing to measure."""

    def __init__(
        self, gate: Gate, measure: Callable[[T], int], outcome: Callable[[], Awaitable[object]]
    ) -> None:
        self._gate = gate
        self._measure = measure
        self._outcome = outcome
        self._items: deque[T] = deque()
        # While nobody reads there is nobody to wake and nothing to measure.
        super().__init__(self._items.append, self._items.extend)
        self._size = 0  # of the items, in characters, once somebody reads
        self._ended = False
        self._reader: asyncio.Task[Any] | None = None  # the task that read it last
        self._waiters = Waiters(gate.pump)
        # How many characters may lie here, and since when more do and nobody has read.
        self._allowed = gate.limit
        self._held_since: float | None = None
        gate.add(self)

    def _begin_reading(self) -> None:
        self._size = sum(map(self._measure, self._items))
        self.put, self.put_all = self._put, self._put_each

    def _put(self, item: T) -> None:
        self._items.append(item)
        self._size = size = self._size + self._measure(item)
        if self._waiters.futures:
            self._waiters.wake()
        if size > self._gate.limit:
            self._gate.pressed = True

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
            self._begin_reading()
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
        if self._size <= self._allowed:
            self._gate.look_again()
        return item
