"""The thread-safe calls of a commander, and their futures."""

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
    """The thread-safe calls of one commander, and their futures that are not done.

    Invariant: each future is completed, at the latest at the commander's end. There cannot be a
    lock: a signal handler may call at any moment, also while its own thread holds it.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        # The race of `put` with `close`: a request enters `_open` before it reads `_over`, and
        # `close` sets `_over` before it empties `_open`. So at least one of them sees the other.
        self._open: dict[concurrent.futures.Future[Any], _Request[Any]] = {}
        self._over = False

    def put(
        self, put: Callable[..., object], node: Node[T], **options: Any
    ) -> concurrent.futures.Future[T]:
        """Call `put(node, **options)` on the loop; return a future of the node's outcome."""
        loop = self._loop()
        start = partial(put, node, **{**options, "claim": True})
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        request = self._open[future] = _Request(node, start, future, loop)
        # Before the caller's callbacks, which may raise.
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
        """Call `function` on the loop; do nothing if the loop is closed."""
        loop = self._loop()
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(function, *args)

    def _loop(self) -> asyncio.AbstractEventLoop:
        if self._tree.root.state == "pending":
            raise RuntimeError("the commander has not been entered yet: use async with")
        return self._tree.loop

    def close(self) -> None:
        """Complete the remaining futures with `NodeClosed`; refuse further requests."""
        self._over = True
        with suppress(KeyError):  # it is empty
            while True:
                _, request = self._open.popitem()
                try:
                    request.end(NodeClosed(self._tree.root.path))
                except BaseException as error:  # noqa: BLE001 - a callback of the future raised
                    what = "a callback of a thread-safe future of %s raised"
                    log(logging.ERROR, what, self._tree.root.path, error=error)
                    raise_soon(error)


class _Request(Generic[T]):
    """The put of one node by a thread."""

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
        # The future as an awaiter of the node, from the node's start on.
        self._waiter: asyncio.Future[None] | None = None

    def begin(self) -> None:
        if self._future.done():
            return  # it was cancelled, or `close` completed it
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
        """Complete the future with the node's outcome if it has one, else with `failure`."""
        if self._waiter is not None and self._node.state in DONE:
            self._hand_over()
        else:
            # Another thread may cancel the future at this moment.
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
                # Another thread cancelled it as the node ended, so it did not receive the failure.
                untake_failure(record_of(node))

    def withdraw(self, future: concurrent.futures.Future[T]) -> None:
        """Cancel the node of a cancelled future; runs in the thread that cancelled it."""

        def abandon() -> None:
            if self._waiter is not None:
                self._waiter.cancel()
                self._node.cancel("its future was cancelled")

        if future.cancelled():
            # Exactly once: `concurrent.futures.wait` and `as_completed` wait for this state.
            future.set_running_or_notify_cancel()
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(abandon)
