"""An actor with one tenant, an agent or a backend, and the streams that it gives.

A stream is pulled: its reader asks for the next batch and gets all there is, at once or as soon as
there is something. So a slow reader holds the tenant back, and one who leaves, or is gone, ends it:
neither holds of Ray's own streams.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol, TypeAlias

from ..commander.errors import WorkerLost
from ._pack import Outcome, unpack, unpack_code
from ._ray import this_host

__all__ = ["Actor", "Ask", "Drop", "Outlet", "Tenant"]

Batch: TypeAlias = tuple[bytes, bool]
"""What came of a part of a stream, packed: its items and a failure; and whether it is the last."""

ROOM = 256
"""How many items a stream holds before its producer waits."""


@dataclass(frozen=True, slots=True)
class Ask:
    """An item by which a tenant asks its reader something; the reader answers by the number."""

    number: int
    question: Any


@dataclass(frozen=True, slots=True)
class Drop:
    """An item that takes an `Ask` back."""

    number: int


class Tenant(Protocol):
    """What lives in an actor."""

    async def play(self, outlet: Outlet, request: Any) -> None:
        """Answer `request` by items to `outlet`; cancelled when nobody reads them any more."""
        ...

    async def aclose(self) -> None:
        """Free what it holds."""
        ...


class Outlet:
    """One stream, as its producer sees it. It belongs to the loop in which it is made."""

    def __init__(self, produce: Callable[[Outlet], Awaitable[None]]) -> None:
        self._items: deque[Any] = deque()
        self._news = asyncio.Event()
        self._space = asyncio.Event()
        self._numbers = count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._why: Exception = RuntimeError("the stream was cancelled in its actor")
        self._task = asyncio.ensure_future(produce(self))
        self._task.add_done_callback(lambda _: self._news.set())

    @property
    def last(self) -> Any:
        """The item that was sent last and not read yet, None if there is none."""
        return self._items[-1] if self._items else None

    def send_nowait(self, item: Any) -> None:
        """Add an item, however many there are."""
        self._items.append(item)
        self._news.set()

    def send_instead(self, item: Any) -> None:
        """Put an item in the place of `last`."""
        self._items[-1] = item

    async def send(self, item: Any) -> None:
        """Wait until there is room, then add an item."""
        await self.room()
        self.send_nowait(item)

    async def room(self) -> None:
        """Wait until there is room."""
        while len(self._items) >= ROOM:
            self._space.clear()
            await self._space.wait()

    async def deliver(self, item: Any) -> None:
        """Add an item, and wait until the reader has taken it."""
        self.send_nowait(item)
        self._space.clear()
        await self._space.wait()

    async def ask(self, question: Any) -> Any:
        """Ask the reader; return the answer, or raise its failure. Cancelling it tells the reader.

        Raises `RuntimeError` if the stream is over.
        """
        if self._task.done():
            raise RuntimeError(
                "who could answer has gone: the call in which this was asked is over"
            )
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        self.send_nowait(Ask(number, question))
        try:
            return await answer
        except asyncio.CancelledError:
            self.send_nowait(Drop(number))
            raise
        finally:
            del self._asked[number]

    def answered(self, number: int, outcome: Outcome) -> None:
        """Give the answer of the reader; one that nobody waits for any more is dropped."""
        waiting = self._asked.get(number)
        if waiting is not None and not waiting.done():
            outcome.settle(waiting)

    async def take(self) -> Batch:
        """Wait until there is something, or the end; return all there is."""
        await self._news.wait()
        items, last = [*self._items], self._task.done()
        self._items.clear()
        self._space.set()
        if not last:
            self._news.clear()
        failure = self._failure() if last else None
        return Outcome(items, failure).packed(), last

    def _failure(self) -> BaseException | None:
        return self._why if self._task.cancelled() else self._task.exception()

    async def end(self, why: Exception) -> None:
        """Cancel the producer and wait for its end; who still reads is told why."""
        self._why = why
        self._task.cancel()
        await asyncio.wait((self._task,))
        if not self._task.cancelled():
            self._task.exception()  # nobody reads it


class Actor:
    """The actor. All its methods are called by `_resident` alone."""

    def __init__(self) -> None:
        self._tenant: Tenant | None = None
        self._outlets: dict[str, Outlet] = {}
        self._leashes: dict[str, asyncio.TimerHandle] = {}
        # Calls may overtake each other: streams that were closed before they were opened.
        self._closed: deque[str] = deque(maxlen=10_000)
        self._ending: set[asyncio.Task[None]] = set()
        # What is told to one who reads on where a stream was ended.
        self._why: Exception = TimeoutError(
            "the stream was ended: its reader had not been heard of for too long"
        )

    async def host(self) -> str:
        """Return the name of the machine."""
        return this_host()

    async def start(self, packed: bytes) -> bytes:
        """Make the tenant with an async function; return the outcome, packed."""
        try:
            self._tenant = await unpack_code(packed)()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told at home
            return Outcome(failure=error).packed()
        return Outcome().packed()

    async def stop(self) -> None:
        """End all streams, then let the tenant free what it holds."""
        self._why = WorkerLost("a stream from another process", "what gave it was closed")
        await asyncio.gather(*(self.close(key) for key in [*self._outlets]))
        if self._tenant is not None:
            await self._tenant.aclose()

    async def open(self, key: str, packed: bytes, patience: float) -> Batch:
        """Begin a stream and return its first batch; it ends when not asked for so many seconds."""
        if key in self._closed:
            return Outcome([]).packed(), True
        self._outlets[key] = Outlet(lambda outlet: self._play(outlet, packed))
        return await self.next(key, patience)

    async def next(self, key: str, patience: float) -> Batch:
        """Return the next batch of a stream."""
        outlet = self._outlets.get(key)
        if outlet is None:
            return Outcome([], self._why).packed(), True
        await self.keep(key, patience)
        batch, last = await outlet.take()
        if last:
            self._forget(key)
        return batch, last

    async def keep(self, key: str, patience: float) -> None:
        """Take note that the reader of a stream is still there."""
        if key in self._outlets:
            self._loosen(key)
            loop = asyncio.get_running_loop()
            self._leashes[key] = loop.call_later(patience, self._abandon, key)

    async def answer(self, key: str, number: int, packed: bytes) -> None:
        """Pass on what the reader of a stream was asked."""
        if (outlet := self._outlets.get(key)) is not None:
            outlet.answered(number, Outcome.unpacked(packed))

    async def close(self, key: str) -> None:
        """End a stream, and return when its producer has ended."""
        self._closed.append(key)
        if (outlet := self._forget(key)) is not None:
            await outlet.end(self._why)

    async def _play(self, outlet: Outlet, packed: bytes) -> None:
        assert self._tenant is not None
        await self._tenant.play(outlet, unpack(packed))

    def _abandon(self, key: str) -> None:
        ending = asyncio.ensure_future(self.close(key))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    def _forget(self, key: str) -> Outlet | None:
        self._loosen(key)
        return self._outlets.pop(key, None)

    def _loosen(self, key: str) -> None:
        if (leash := self._leashes.pop(key, None)) is not None:
            leash.cancel()
