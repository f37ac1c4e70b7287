"""Branches and the gate between them and the source: buffers with limits in characters (F5).

All changes are made without waiting; `Channel.__anext__`, `Waiters.wait` and `Gate.wait` only add
the waiting. Everything here belongs to one loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar, cast

from ..commander import Node
from ._speech import Sink

__all__ = ["Channel", "Gate", "Waiters"]

T = TypeVar("T")


class _Here(threading.local):
    """What the branches of this thread's loop know of each other."""

    def __init__(self) -> None:
        # Tasks that wait for a branch or a message: what they have read holds no source meanwhile.
        self.waiting: set[asyncio.Task[Any]] = set()
        # Gates that hold their source: they look again when one of these tasks begins to wait.
        self.holding: set[Gate] = set()


_here = _Here()

# How often, in seconds, a gate that holds looks whether a reader has ended or waits for a node.
_LOOK_AGAIN = 0.02

_NODE_WAIT = cast("Any", Node).__await__.__code__


class Waiters:
    """Tasks that wait for one thing."""

    __slots__ = ("futures",)

    def __init__(self) -> None:
        self.futures: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        """Wait for the next `wake`."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.futures.append(future)
        task = asyncio.current_task()
        assert task is not None
        _here.waiting.add(task)
        for gate in tuple(_here.holding):
            gate.look_again()
        try:
            await future
        finally:
            _here.waiting.discard(task)

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

    __slots__ = ("_channels", "_held", "limit", "pressed")

    def __init__(self, limit: int) -> None:
        self.limit = limit
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

    async def wait(self) -> None:
        """Wait until no channel holds the source back."""
        self.pressed = False
        while any(channel.holds for channel in self._channels):
            await self._next_look()

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
        "_ended",
        "_gate",
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
        super().__init__(self._items.append)
        self._size = 0  # of the items, in characters, once somebody reads
        self._ended = False
        self._reader: asyncio.Task[Any] | None = None  # the task that read it last
        self._waiters = Waiters()
        gate.add(self)

    def _begin_reading(self) -> None:
        self._size = sum(map(self._measure, self._items))
        self.put = self._put

    def _put(self, item: T) -> None:
        self._items.append(item)
        self._size = size = self._size + self._measure(item)
        if self._waiters.futures:
            self._waiters.wake()
        elif size > self._gate.limit:
            self._gate.pressed = True

    def end(self) -> None:
        """Nothing more comes."""
        self._ended = True
        self._waiters.wake()

    @property
    def holds(self) -> bool:
        """Whether the source has to wait for this branch (F5).

        It does not for one that nobody has read, nor for one whose last reader has ended or waits
        for something that may need the source itself.
        """
        reader = self._reader
        return (
            self._size > self._gate.limit
            and reader is not None
            and not reader.done()
            and reader not in _here.waiting
            and not _waits_for_node(reader)
        )

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
        if self._size <= self._gate.limit:
            self._gate.look_again()
        return item


def _waits_for_node(task: asyncio.Task[Any]) -> bool:
    waiting: Any = task.get_coro()
    while waiting is not None:
        if getattr(waiting, "gi_code", None) is _NODE_WAIT:
            return True
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "gi_yieldfrom", None)
    return False
