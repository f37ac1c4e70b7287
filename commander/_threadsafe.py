"""What other threads may ask of a commander, and the futures by which they are answered."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from ._failure import untake_failure
from ._record import DONE, record_of
from ._report import log, raise_soon
from .errors import NodeClosed
from .waiting import note_outside_wait

if TYPE_CHECKING:
    from ._commander import Tree
    from ._node import Node

__all__ = ["Requests"]

T = TypeVar("T")


class Requests:
    """The thread-safe calls of one commander, and those of their futures that are still open.

    None stays open for ever: what is left at the commander's end is answered there. There is no
    lock, so that a signal handler may call at any moment.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        # A request enters before it looks at `_over`, and `close` sets that before it goes through
        # them: so at least one of the two sees the other.
        self._open: dict[concurrent.futures.Future[Any], _Request[Any]] = {}
        self._over = False

    def put(
        self, put: Callable[..., object], node: Node[T], **options: Any
    ) -> concurrent.futures.Future[T]:
        """Let the loop call `put(node, **options)`; return a future of the node's outcome."""
        loop = self._loop()
        start = partial(put, node, **{**options, "claim": True})
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        request = self._open[future] = _Request(node, start, future, loop)
        # Before any callback of the caller's, which might raise.
        future.add_done_callback(lambda future: self._open.pop(future, None))
        future.add_done_callback(request.withdraw)
        try:
            loop.call_soon_threadsafe(request.begin, context=copy_context())
        except RuntimeError:
            self._over = True
        if self._over:
            self._open.pop(future, None)
            raise NodeClosed(self._tree.root.path, "belongs to a loop that is closed")
        return future

    def call(self, function: Callable[..., None], *args: Any) -> None:
        """Let the loop call `function`; after its end there is nothing left to call it for."""
        loop = self._loop()
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(function, *args)

    def _loop(self) -> asyncio.AbstractEventLoop:
        if self._tree.root.state == "pending":
            raise RuntimeError("the commander has not been entered yet: use async with")
        return self._tree.loop

    def close(self) -> None:
        """Answer what is left, and take no more."""
        self._over = True
        with suppress(KeyError):  # it is empty
            while True:
                _, request = self._open.popitem()
                try:
                    request.end(NodeClosed(self._tree.root.path))
                except BaseException as error:  # noqa: BLE001 - a callback of the future's raised
                    what = "a callback of a thread-safe future of %s raised"
                    log(logging.ERROR, what, self._tree.root.path, error=error)
                    raise_soon(error)


class _Request(Generic[T]):
    """One node that a thread has asked for."""

    def __init__(
        self,
        node: Node[T],
        start: Callable[[], object],
        future: concurrent.futures.Future[T],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._node = node
        self._start = start
        self._future = future
        self._loop = loop
        # By this the node knows that it is awaited, from its start on.
        self._waiter: asyncio.Future[None] | None = None

    def begin(self) -> None:
        if self._future.done():
            return  # cancelled, or too late
        try:
            self._start()
        except BaseException as error:
            self.end(error)
            if not isinstance(error, Exception):
                raise
        else:

            def node_ended(waiter: asyncio.Future[None]) -> None:
                if not waiter.cancelled():  # else the future was cancelled before the node's end
                    self._hand_over()

            self._waiter = self._loop.create_future()
            record = record_of(self._node)
            record.waiters = [*(record.waiters or ()), self._waiter]
            self._waiter.add_done_callback(node_ended)
            note_outside_wait(self._waiter)

    def end(self, failure: BaseException) -> None:
        """Answer with the outcome of the node if it has one, else with `failure`."""
        if self._waiter is not None and self._node.state in DONE:
            self._hand_over()
        else:
            # It may just have been cancelled.
            with suppress(concurrent.futures.InvalidStateError):
                self._future.set_exception(failure)

    def _hand_over(self) -> None:
        node = self._node
        try:
            if node.state == "completed":
                self._future.set_result(cast("T", node.result))
            else:
                self._future.set_exception(node.error)
        except concurrent.futures.InvalidStateError:
            if self._future.cancelled():
                untake_failure(record_of(node))  # in the moment of the node's end

    def withdraw(self, future: concurrent.futures.Future[T]) -> None:
        """See to a future that was cancelled, in the thread that did so."""

        def abandon() -> None:
            if self._waiter is not None:
                self._waiter.cancel()
                self._node.cancel("its future was cancelled")

        if future.cancelled():
            # Nobody else may say this, and only once: `wait` and `as_completed` wait for it.
            future.set_running_or_notify_cancel()
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(abandon)
