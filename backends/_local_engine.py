"""The thread that owns a local model: one request at a time, first come, first served."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import Future

from ..commander.errors import AnabranchError, BackendError
from ..messages import Delta
from ._local_model import Model, Source
from ._weights import Progress

__all__ = ["Engine", "Work"]

Work = Callable[[Model], Generator[Delta | None, None, None]]


class _Abandoned(BaseException):
    """Unwinds the owner thread's work on a ticket that nobody waits for; not an error."""


class _Ticket:
    """One request's place in the queue, and the way its deltas take to the event loop.

    `_items` is filled by the owner thread and emptied by the loop; a wake-up is sent only if none
    is under way, so that deltas made faster than the loop turns cross together, in order.
    """

    def __init__(self, work: Work) -> None:
        self.work = work
        self.abandoned = False  # written by the loop, read by the owner thread between two tokens
        self.speaking = False  # a delta has been made, so the thread looks up soon
        self._loop = asyncio.get_running_loop()
        self._items: deque[Delta | BaseException | None] = deque()  # None: the end
        self._waking = False
        self._ready = asyncio.Event()
        self.over = asyncio.Event()

    def put(self, item: Delta | BaseException | None) -> None:
        """Hand an item to the loop; called by the owner thread."""
        self._items.append(item)
        if not self._waking:
            self._waking = True
            self._call(self._wake)

    def end(self, error: BaseException | None) -> None:
        """Say that nothing more will come; called by the owner thread."""
        self.put(error)
        self._call(self.over.set)

    async def take(self) -> Delta | None:
        """Wait for the next delta; None is the end."""
        while not self._items:
            self._ready.clear()
            await self._ready.wait()
        item = self._items.popleft()
        if isinstance(item, BaseException):
            raise item
        return item

    def check(self) -> None:
        """Leave the work if nobody waits for it any more; called by the owner thread."""
        if self.abandoned:
            raise _Abandoned

    def _wake(self) -> None:
        # Before the items are read: one that is appended after this sends a wake-up of its own.
        self._waking = False
        self._ready.set()

    def _call(self, fn: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(fn)
        except RuntimeError:  # the loop is closed: nobody can be waiting
            self.abandoned = True


class Engine:
    """A model, its thread, and the queue before it, shared by all who asked for the same source.

    Get one with `Engine.open`, give it back with `close`; the last to do so ends the thread and
    frees the model. The model is loaded for the first request. It serves any number of loops.
    """

    _open: dict[Source, Engine] = {}  # noqa: RUF012 - process-wide on purpose
    _lock = threading.Lock()

    def __init__(self, source: Source) -> None:
        self._source = source
        self._users = 0
        self.loaded = False  # written by the owner thread
        self._queue: queue.SimpleQueue[tuple[_Ticket, Callable[[Progress], None]] | None]
        self._queue = queue.SimpleQueue()
        self._tickets: set[_Ticket] = set()
        self._ended: Future[None] = Future()
        # A daemon: a program that ends without closing its backend does not wait for the model.
        self._thread = threading.Thread(target=self._serve, name="anabranch-local", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, source: Source) -> Engine:
        """Return the engine for `source`, with one user more."""
        with cls._lock:
            engine = cls._open.get(source)
            if engine is None:
                engine = cls._open[source] = cls(source)
            engine._users += 1
            return engine

    async def close(self) -> None:
        """Give the engine back; the last user's call waits for the thread to end."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            del self._open[self._source]
        for ticket in list(self._tickets):
            ticket.abandoned = True
        self._queue.put(None)
        await asyncio.wrap_future(self._ended)
        self._thread.join()

    async def run(
        self, work: Work, progress: Callable[[Progress], None]
    ) -> AsyncGenerator[Delta, None]:
        """Do `work` in the owner thread when its turn comes and yield what it makes.

        Work that yields None offers to be stopped. Closing the generator stops the work: not
        started if it was waiting, at the next token if it was speaking, which is waited for. A
        prompt that is being read cannot be interrupted; it is not waited for, what follows is.
        """
        ticket = _Ticket(work)
        self._tickets.add(ticket)
        self._queue.put((ticket, progress))
        try:
            while (delta := await ticket.take()) is not None:
                yield delta
        finally:
            ticket.abandoned = True
            self._tickets.discard(ticket)
            if ticket.speaking:
                await ticket.over.wait()

    def _serve(self) -> None:
        model: Model | None = None
        while (entry := self._queue.get()) is not None:
            model = self._do(*entry, model)
        del model
        self._ended.set_result(None)

    def _do(
        self, ticket: _Ticket, progress: Callable[[Progress], None], model: Model | None
    ) -> Model | None:
        """Serve one ticket; return the model, loaded now if it was not."""
        error: BaseException | None = None
        try:
            ticket.check()
            model = model or Model(self._source, _interruptible(progress, ticket))
            self.loaded = True
            _carry_out(ticket, model)
        except _Abandoned:
            error = BackendError("the local model was closed while it answered")
        except AnabranchError as raised:
            error = raised
        except BaseException as raised:  # noqa: BLE001 - whatever it is, the waiter is told
            error = BackendError(f"the local model failed: {type(raised).__name__}: {raised}")
            error.__cause__ = raised
        ticket.end(error)
        return model


def _carry_out(ticket: _Ticket, model: Model) -> None:
    steps = ticket.work(model)
    try:
        for delta in steps:
            ticket.check()
            if delta is not None:
                ticket.speaking = True
                ticket.put(delta)
    finally:
        steps.close()  # stops the model: the iterator over its tokens is dropped


def _interruptible(
    progress: Callable[[Progress], None], ticket: _Ticket
) -> Callable[[Progress], None]:
    def report(state: Progress) -> None:
        ticket.check()
        progress(state)

    return report
