"""Models in this process: an engine with a thread of its own, shared by all who ask for the same.

A request is a ticket. The engine's thread puts what the model says into it; the event loop that
asked, whichever it is, takes it out.
"""

from __future__ import annotations

import asyncio
import json
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Hashable
from concurrent.futures import Future
from typing import Any, ClassVar, Generic, Self, TypeVar

from ..commander.errors import BackendUnavailable
from ..messages import Delta, Request
from ._model import ModelBackend
from ._per_loop import PerLoop

__all__ = ["EngineBackend", "SharedEngine", "Ticket"]

_A = TypeVar("_A")
_W = TypeVar("_W")
_E = TypeVar("_E", bound="SharedEngine[Any, Any]")
_Item = Delta | BaseException | None  # None: the end


class _Mailbox:
    """The way from an engine's thread to one loop.

    A wake-up is sent only if none is under way, so that deltas made faster than the loop turns, or
    in one step for many requests, cross together, in order.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._items: deque[tuple[Ticket[Any], _Item]] = deque()
        self._waking = False

    def put(self, ticket: Ticket[Any], item: _Item) -> None:
        """Hand an item to the loop; called in the engine's thread. Raises if the loop is closed."""
        if self._loop.is_closed():
            raise RuntimeError("the loop is closed")  # also if a wake-up was under way
        self._items.append((ticket, item))
        if not self._waking:
            self._waking = True
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        # Before the items are read: one that is appended after this sends a wake-up of its own.
        self._waking = False
        while self._items:
            ticket, item = self._items.popleft()
            ticket.deliver(item)


class Ticket(Generic[_W]):
    """One request: its work, and what was made for it and not yet read.

    `left` says that nobody waits for it any more: the work is to stop.
    """

    __slots__ = ("_items", "_mailbox", "_ready", "begun", "left", "over", "work")

    def __init__(self, work: _W, mailbox: _Mailbox) -> None:
        self.work = work
        self.left = False  # written by either side, read by the engine's thread between two deltas
        self.begun = False  # the engine's thread has made something
        self.over = False  # nothing more will come; written by the loop
        self._mailbox = mailbox
        self._items: deque[_Item] = deque()
        self._ready = asyncio.Event()

    def put(self, item: _Item) -> None:
        """Hand a delta to the reader, or the end: None, or an error. For the engine's thread."""
        self.begun = True
        try:
            self._mailbox.put(self, item)
        except RuntimeError:  # the reader's loop is closed: nobody can be waiting
            self.left = True

    def deliver(self, item: _Item) -> None:
        """Take in an item that has reached the reader's loop."""
        self._items.append(item)
        self.over = not isinstance(item, Delta)
        self._ready.set()

    async def take(self) -> Delta | None:
        """Wait for the next delta; None is the end. Raises the error that ended it."""
        while not self._items:
            self._ready.clear()
            await self._ready.wait()
        item = self._items.popleft()
        if isinstance(item, BaseException):
            raise item
        return item

    async def ended(self) -> None:
        """Wait until nothing more will come."""
        while not self.over:
            self._ready.clear()
            await self._ready.wait()


class SharedEngine(ABC, Generic[_A, _W]):
    """A model with a thread of its own. Get it with `open`, give it back with `close`.

    All who open one with the same arguments share it, whatever event loop they run in; the last to
    close it ends the thread and frees the model.
    """

    thread_name: ClassVar[str]

    _shared: ClassVar[dict[Hashable, SharedEngine[Any, Any]]] = {}  # process-wide on purpose
    _lock: ClassVar = threading.RLock()

    def __init__(self, key: Hashable, arguments: _A) -> None:
        self.arguments = arguments
        self._key = key
        self._users = 0
        self._mailboxes = PerLoop(_Mailbox)
        self._tickets: set[Ticket[_W]] = set()  # those that have a reader
        self._ended: Future[None] = Future()
        self._ended.set_running_or_notify_cancel()  # so that no waiter can cancel it for all
        # A daemon: a program that ends without closing its backend does not wait for the model.
        self._thread = threading.Thread(target=self._live, name=self.thread_name, daemon=True)

    @classmethod
    def open(cls, arguments: _A) -> Self:
        """Return the engine with these arguments, made now if there is none, with one user more."""
        key = cls, json.dumps(arguments, sort_keys=True, default=repr)
        with cls._lock:
            engine = cls._shared.get(key)
            if not isinstance(engine, cls):
                engine = cls._shared[key] = cls(key, arguments)
                engine._thread.start()
            engine._users += 1
            return engine

    async def close(self) -> None:
        """Give the engine back; the last user's call waits until its thread has ended.

        A reply that is still being given there breaks off.
        """
        with self._lock:
            self._users -= 1
            if self._users:
                return
            self.retire()
        await asyncio.wrap_future(self._ended)
        self._thread.join()  # it has nothing left to do

    def retire(self) -> None:
        """Serve nobody new, and end, although there are users."""
        with self._lock:
            if self._shared.get(self._key) is self:
                del self._shared[self._key]
        self.stop()

    async def run(self, work: _W) -> AsyncGenerator[Delta, None]:
        """Do `work` in the engine's thread and yield what it makes.

        Closing the generator stops the work and waits for that, see `leave`. Raises
        `BackendUnavailable` if the engine ends before the work does.
        """
        ticket = Ticket(work, self._mailboxes.get())
        with self._lock:
            if self._ended.done():
                raise BackendUnavailable("the engine was closed")
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
                for ticket in tuple(self._tickets):  # the first end counts, if one has it already
                    ticket.put(BackendUnavailable("the engine was closed while it answered"))

    @abstractmethod
    def begin(self, ticket: Ticket[_W]) -> None:
        """Let the thread know of a new ticket."""

    @abstractmethod
    async def leave(self, ticket: Ticket[_W]) -> None:
        """Stop the work on a ticket that nobody waits for."""

    @abstractmethod
    def stop(self) -> None:
        """Let `serve` come to its end; called once or more, in any thread."""

    @abstractmethod
    def serve(self) -> None:
        """Do the work of the tickets, in the engine's thread, until `stop`."""


class EngineBackend(ModelBackend, Generic[_E]):
    """A backend with a `SharedEngine`, opened when it is entered or first used."""

    _engine: _E | None = None

    @abstractmethod
    async def prepare(self) -> None:
        """Open the engine if there is none, and wait until its model is loaded."""

    async def warm(self, request: Request) -> None:
        """Load the model."""
        await self.prepare()

    async def aclose(self) -> None:
        """Give the engine back; the last backend to do so ends its thread and frees the model.

        A reply that is still being given there breaks off. The backend may be used again.
        """
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.close()
