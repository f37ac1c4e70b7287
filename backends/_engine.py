"""Engines for models in this process: one thread, shared by all event loops.

Each request is a ticket. The engine's thread puts the deltas into it, and the event loop of the
request takes them out.
"""

from __future__ import annotations

import asyncio
import json
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Hashable, Sequence
from concurrent.futures import Future
from typing import Any, ClassVar, Generic, Self, TypeVar

from ..commander.errors import BackendUnavailable
from ..messages import Delta, OutputMode, Request
from ._model import ModelBackend
from ._per_loop import PerLoop

__all__ = ["EngineBackend", "SharedEngine", "Ticket"]

_A = TypeVar("_A")
_W = TypeVar("_W")
_E = TypeVar("_E", bound="SharedEngine[Any, Any]")
_Item = Delta | BaseException | None  # None is the end


class _Mailbox:
    """A channel from an engine's thread to one loop.

    It sends a wake-up only if none is pending. So deltas that are made faster than the loop turns,
    or for many requests in one step, cross together and in order.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._items: deque[tuple[Ticket[Any], _Item]] = deque()
        self._waking = False

    def put(self, ticket: Ticket[Any], item: _Item) -> None:
        """Send an item to the loop, from the engine's thread; `RuntimeError` if it is closed."""
        if self._loop.is_closed():
            # no wake-up is sent below while one is pending, so check here
            raise RuntimeError("the loop is closed")
        self._items.append((ticket, item))
        if not self._waking:
            self._waking = True
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        # Reset before reading: an item that is appended later then sends its own wake-up.
        self._waking = False
        while self._items:
            ticket, item = self._items.popleft()
            ticket.deliver(item)


class Ticket(Generic[_W]):
    """A request to an engine: its work, and the items that its reader has not taken yet.

    `left` means that the reader has stopped reading, so the work must stop. `over` means that the
    last item has arrived in the reader's loop.
    """

    __slots__ = ("_items", "_mailbox", "_ready", "begun", "left", "over", "work")

    def __init__(self, work: _W, mailbox: _Mailbox) -> None:
        self.work = work
        self.left = False  # written by either thread; the engine reads it between two deltas
        self.begun = False  # the engine's thread has put an item
        self.over = False  # the last item has arrived; written by the loop
        self._mailbox = mailbox
        self._items: deque[_Item] = deque()
        self._ready = asyncio.Event()

    def put(self, item: _Item) -> None:
        """Send the reader a delta, None at the end, or an error. For the engine's thread."""
        self.begun = True
        try:
            self._mailbox.put(self, item)
        except RuntimeError:  # the reader's loop is closed
            self.left = True

    def deliver(self, item: _Item) -> None:
        """Store an item that has reached the reader's loop."""
        self._items.append(item)
        self.over = not isinstance(item, Delta)
        self._ready.set()

    async def take(self) -> Delta | None:
        """Wait for the next delta; None is the end. Raises the error that ended the work."""
        while not self._items:
            self._ready.clear()
            await self._ready.wait()
        item = self._items.popleft()
        if isinstance(item, BaseException):
            raise item
        return item

    async def ended(self) -> None:
        """Wait until the last item has arrived."""
        while not self.over:
            self._ready.clear()
            await self._ready.wait()


class SharedEngine(ABC, Generic[_A, _W]):
    """A model with a thread. Get it with `open`, give it back with `close`.

    All callers of `open` with equal arguments share one engine, in whatever event loop they run.
    The last `close` ends the thread and frees the model.
    """

    thread_name: ClassVar[str]

    _shared: ClassVar[dict[Hashable, SharedEngine[Any, Any]]] = {}  # shared by the whole process
    _lock: ClassVar = threading.RLock()

    def __init__(self, key: Hashable, arguments: _A) -> None:
        self.arguments = arguments
        self._key = key
        self._users = 0
        self._mailboxes = PerLoop(_Mailbox)
        self._tickets: set[Ticket[_W]] = set()  # those with a reader
        self._ended: Future[None] = Future()
        # A running future cannot be cancelled: a cancelled `close` must not end the others' wait.
        self._ended.set_running_or_notify_cancel()
        # A daemon thread, so that a program can end without closing its backend.
        self._thread = threading.Thread(target=self._live, name=self.thread_name, daemon=True)

    @classmethod
    def open(cls, arguments: _A) -> Self:
        """Return the engine with these arguments, and start it if there is none."""
        key = cls, json.dumps(arguments, sort_keys=True, default=repr)
        with cls._lock:
            engine = cls._shared.get(key)
            if not isinstance(engine, cls):
                engine = cls._shared[key] = cls(key, arguments)
                engine._thread.start()
            engine._users += 1
            return engine

    async def close(self) -> None:
        """Give the engine back. The last user's call waits until the thread has ended.

        Replies that are still running break off.
        """
        with self._lock:
            self._users -= 1
            if self._users:
                return
            self.retire()
        await asyncio.wrap_future(self._ended)
        self._thread.join()  # short: after `_ended` the thread only notifies tickets

    def retire(self) -> None:
        """Accept no new users, and stop the thread although there are users."""
        with self._lock:
            if self._shared.get(self._key) is self:
                del self._shared[self._key]
        self.stop()

    async def run(self, work: _W) -> AsyncGenerator[Delta, None]:
        """Do `work` in the engine's thread and yield its deltas.

        Closing the generator stops the work, and waits until it has stopped if it has begun. Raises
        `BackendUnavailable` if the engine ends before the work.
        """
        ticket = Ticket(work, self._mailboxes.get())
        with self._lock:
            if self._ended.done():
                raise BackendUnavailable("the engine of the model was closed")
            self._tickets.add(ticket)
        try:
            self.begin(ticket)
            while (delta := await ticket.take()) is not None:
                yield delta
        finally:
            ticket.left = True
            try:
                if not ticket.over:
                    await self.leave(ticket)
            finally:
                self._tickets.discard(ticket)

    def _live(self) -> None:
        try:
            self.serve()
        finally:
            with self._lock:
                self._ended.set_result(None)
                for ticket in tuple(self._tickets):  # no effect if the last item was put before
                    ticket.put(
                        BackendUnavailable("the engine of the model was closed during the reply")
                    )

    @abstractmethod
    def begin(self, ticket: Ticket[_W]) -> None:
        """Hand a new ticket to the thread."""

    @abstractmethod
    async def leave(self, ticket: Ticket[_W]) -> None:
        """Stop the work on a ticket without a reader; wait until it has stopped if it has begun."""

    @abstractmethod
    def stop(self) -> None:
        """Make `serve` return. Can be called several times, from any thread."""

    @abstractmethod
    def serve(self) -> None:
        """Do the work of the tickets until `stop`, in the engine's thread."""


class EngineBackend(ModelBackend, Generic[_E]):
    """A backend with a `SharedEngine`, which it opens when entered or first used."""

    _engine: _E | None = None

    @property
    def output_modes(self) -> Sequence[OutputMode]:
        """A grammar; with tools, a call, because the engine constrains calls as well."""
        return ("grammar", "tool", "text")

    @abstractmethod
    async def prepare(self) -> None:
        """Open the engine if there is none, and wait until its model is loaded."""

    async def warm(self, request: Request) -> None:
        """Load the model."""
        await self.prepare()

    async def aclose(self) -> None:
        """Give the engine back. The last backend that does ends its thread and frees the model.

        Replies that are still running break off. The backend can be used again.
        """
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.close()
