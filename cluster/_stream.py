"""Streams from a Ray actor: `StreamWriter` in the actor, `StreamReader` in the calling process.

The reader pulls: it requests the next batch and gets all items so far, or waits for the first. So a
slow reader slows down the producer, and a reader that leaves or dies ends the stream. Ray's own
streaming generators take forty times as long for an item, and continue after their reader has left.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol, Self
from uuid import uuid4

from ..commander.errors import WorkerLost
from ..commander.waiting import wait_shielded
from ._cluster import Monitor
from ._payload import Result, describe_error, unpack
from ._protocol import Ask, Batch, CancelAsk
from ._ray import this_host

if TYPE_CHECKING:
    from ._actor import ActorHandle

__all__ = [
    "CLOSE_SECONDS",
    "STREAM_CAPACITY",
    "Service",
    "ServiceActor",
    "StreamReader",
    "StreamWriter",
]

logger = logging.getLogger("anabranch.cluster")

# Seconds in which a cancelled call or a closed service in an actor must end.
CLOSE_SECONDS = 20.0

STREAM_CAPACITY = 256
"""Unread items of a stream at which its producer waits."""


class Service(Protocol):
    """The object in an actor: an agent, a backend or a mailbox."""

    async def serve(self, writer: StreamWriter, request: Any) -> None:
        """Answer `request` with items to `writer`; cancelled when the reader leaves."""
        ...

    async def aclose(self) -> None:
        """Release the resources of the service."""
        ...


class StreamWriter:
    """One stream, as its producer sees it. It belongs to the event loop that created it."""

    def __init__(self, produce: Callable[[StreamWriter], Awaitable[None]]) -> None:
        self._items: deque[Any] = deque()
        self._news = asyncio.Event()
        self._space = asyncio.Event()
        self._ask_numbers = count(1)
        self._asks: dict[int, asyncio.Future[Any]] = {}
        # Raised in a reader that calls `take` again after `cancel`.
        self._cancel_error: Exception = RuntimeError("the stream was cancelled in its actor")
        self._task = asyncio.ensure_future(produce(self))
        self._task.add_done_callback(lambda _: self._news.set())

    @property
    def last(self) -> Any:
        """The last item if it is unread, else None."""
        return self._items[-1] if self._items else None

    def send_nowait(self, item: Any) -> None:
        """Add an item without waiting, even if the reader is behind."""
        self._items.append(item)
        self._news.set()

    def replace_last(self, item: Any) -> None:
        """Replace `last`."""
        self._items[-1] = item

    async def send(self, item: Any) -> None:
        """Wait for room, then add an item."""
        await self.wait_for_room()
        self.send_nowait(item)

    async def wait_for_room(self) -> None:
        """Wait until there is room for an item."""
        while len(self._items) >= STREAM_CAPACITY:
            self._space.clear()
            await self._space.wait()

    async def deliver(self, item: Any) -> None:
        """Add an item, and wait until the reader has taken it."""
        self.send_nowait(item)
        self._space.clear()
        await self._space.wait()

    async def ask(self, question: Any) -> Any:
        """Ask the reader; return the answer or raise its failure. A cancel withdraws the question.

        Raises `RuntimeError` if the stream is over.
        """
        if self._task.done():
            raise RuntimeError("cannot ask the caller, because its call is over")
        number = next(self._ask_numbers)
        answer = self._asks[number] = asyncio.get_running_loop().create_future()
        self.send_nowait(Ask(number, question))
        try:
            return await answer
        except asyncio.CancelledError:
            self.send_nowait(CancelAsk(number))
            raise
        finally:
            del self._asks[number]

    def resolve(self, number: int, result: Result) -> None:
        """Set the reader's answer to an `ask`; ignore it if the question was withdrawn."""
        answer = self._asks.get(number)
        if answer is not None and not answer.done():
            result.settle(answer)

    async def take(self) -> Batch:
        """Wait for an item or the end, and return all items."""
        await self._news.wait()
        items, last = [*self._items], self._task.done()
        self._items.clear()
        self._space.set()
        failure: BaseException | None = None
        if not last:
            self._news.clear()
        elif self._task.cancelled():
            failure = self._cancel_error
        else:
            failure = self._task.exception()
        return Result(items, failure).dump(), last

    async def cancel(self, error: Exception) -> None:
        """Cancel the producer and wait for its end; a reader that continues gets `error`."""
        self._cancel_error = error
        self._task.cancel()
        await asyncio.wait((self._task,))
        if not self._task.cancelled():
            self._task.exception()  # mark as retrieved


class ServiceActor:
    """The Ray actor of a service. `_actor` and `StreamReader` call its methods."""

    def __init__(self, service: Service | None = None) -> None:
        self._service = service
        self._writers: dict[str, StreamWriter] = {}
        # The timers that end streams whose readers do not renew their leases.
        self._leases: dict[str, asyncio.TimerHandle] = {}
        # Streams that were closed. Calls may overtake each other, so `close` may arrive before
        # `open`.
        self._closed: deque[str] = deque(maxlen=10_000)
        self._closing_expired: set[asyncio.Task[None]] = set()
        # Raised in a reader that requests a batch after the actor has ended its stream.
        self._end_error: Exception = TimeoutError(
            "the stream was ended, because its reader did not renew its lease"
        )

    async def host(self) -> str:
        """Return the name of the machine."""
        return this_host()

    async def start(self, packed: bytes) -> bytes:
        """Create the service with an async function; return the packed outcome."""
        try:
            self._service = await unpack(packed)()
        except BaseException as error:  # noqa: BLE001 - raised in the caller
            return Result(failure=error).dump()
        return Result().dump()

    async def stop(self) -> None:
        """End all streams, then close the service."""
        self._end_error = WorkerLost("a stream from another process", "its actor was closed")
        await asyncio.gather(*(self.close(key) for key in [*self._writers]))
        if self._service is not None:
            await self._service.aclose()

    async def open(self, key: str, packed: bytes, lease: float) -> Batch:
        """Start a stream and return its first batch; `lease` is the reader's, in seconds."""
        if key in self._closed:
            return Result([]).dump(), True

        async def produce(writer: StreamWriter) -> None:
            assert self._service is not None
            try:
                await self._service.serve(writer, unpack(packed))
            except (
                SystemExit,
                KeyboardInterrupt,
            ) as error:  # either would stop the actor's event loop
                raise RuntimeError(describe_error(error)) from error

        self._writers[key] = StreamWriter(produce)
        return await self.next(key, lease)

    async def next(self, key: str, lease: float) -> Batch:
        """Return the next batch of a stream."""
        writer = self._writers.get(key)
        if writer is None:
            return Result([], self._end_error).dump(), True
        await self.keep(key, lease)
        batch, last = await writer.take()
        if last:
            self._remove(key)
        return batch, last

    async def keep(self, key: str, lease: float) -> None:
        """Renew the lease of a stream's reader."""

        def expire() -> None:
            closing = asyncio.ensure_future(self.close(key))
            self._closing_expired.add(closing)
            closing.add_done_callback(self._closing_expired.discard)

        if key in self._writers:
            self._end_lease(key)
            self._leases[key] = asyncio.get_running_loop().call_later(lease, expire)

    async def answer(self, key: str, number: int, packed: bytes) -> None:
        """Forward the reader's answer to an `Ask`."""
        if (writer := self._writers.get(key)) is not None:
            writer.resolve(number, Result.load(packed))

    async def close(self, key: str) -> None:
        """End a stream, and return when its producer has ended."""
        self._closed.append(key)
        if (writer := self._remove(key)) is not None:
            await writer.cancel(self._end_error)

    def _remove(self, key: str) -> StreamWriter | None:
        self._end_lease(key)
        return self._writers.pop(key, None)

    def _end_lease(self, key: str) -> None:
        if (lease := self._leases.pop(key, None)) is not None:
            lease.cancel()


class StreamReader:
    """A stream from an actor. The end of the block ends the producer in the actor and waits for it.

        async with StreamReader(handle, request) as reader:
            while (items := await reader.take()) is not None:
                ...

    `request` is packed. Each `take` is one call of the actor; nothing is fetched in advance.
    """

    def __init__(self, handle: ActorHandle, request: bytes) -> None:
        self._handle = handle
        self._request = request
        self._key = uuid4().hex
        self._opened = False
        self._ended = False
        self._failure: BaseException | None = None
        self._heartbeat: asyncio.TimerHandle | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._cluster, self._actor = await self._handle.locate()
        monitor = Monitor(self._cluster, self._handle.path)
        self._monitor = await self._stack.enter_async_context(monitor)
        return self

    async def take(self) -> list[Any] | None:
        """Wait for items, and return all that have arrived; None at the end.

        Raises the stream's failure after its items, and `WorkerLost` if the actor is lost.
        """
        if not self._ended:
            method, request = self._actor.next, ()
            if not self._opened:
                method, request = self._actor.open, (self._request,)
                self._opened = True
                self._beat_later()
            try:
                packed, self._ended = await self._monitor.call(
                    method,
                    self._key,
                    *request,
                    self._handle.lease,
                    lending=self._handle.may_put_jobs,
                )
            except WorkerLost:
                self._ended = True
                self._handle.forget()
                raise
            result = Result.load(packed)
            self._failure = result.failure
            if result.value:
                return result.value
        if self._failure is not None:
            raise self._failure
        return None

    def _beat_later(self) -> None:
        """Renew the lease while this process lives, so that a slow reader keeps its stream."""

        def beat() -> None:
            if self._cluster.is_usable:
                self._actor.keep.remote(self._key, self._handle.lease)
                self._beat_later()

        loop = asyncio.get_running_loop()
        self._heartbeat = loop.call_later(self._handle.lease / 3, beat)

    async def answer(self, number: int, result: Result) -> None:
        """Send the answer to an `Ask`, which arrived as an item of the stream."""
        await self._monitor.call(self._actor.answer, self._key, number, result.dump())

    async def __aexit__(self, *_: object) -> None:
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        async with self._stack:
            if not self._opened or self._ended:
                return

            async def close() -> None:
                with suppress(WorkerLost):
                    async with asyncio.timeout(CLOSE_SECONDS):
                        await self._monitor.call(self._actor.close, self._key)

            closing = asyncio.ensure_future(close())
            interrupted = await wait_shielded(closing)
            try:
                closing.result()
            except TimeoutError:  # its process is blocked; the lease ends the stream later
                logger.warning(
                    "%r did not end a cancelled call within %g s", self._handle, CLOSE_SECONDS
                )
            if interrupted is not None:
                raise interrupted
