"""A thread that works for a node, and what is to be done there at once when the node is cancelled.

`check_cancelled()` is for a function that comes by now and then. One that waits in a loop of its
own, as `run` and `Backend.stream_sync` do, asks to be called there instead.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from threading import Lock

__all__ = ["WAITING", "WORKING_FOR", "Notice", "at_cancel"]

WAITING: dict[int, Callable[[], bool]] = {}
"""By ident, threads that wait for another one, and whether that may take any time.

A loop of tests asks: it may not read the frames of a running thread.
"""


class Notice:
    """Whether a thread has been told that its node is cancelled, and whom that is passed on to."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._told = False
        self._callbacks: list[Callable[[], object]] = []

    def tell(self) -> None:
        """Pass it on, in the thread that calls this."""
        with self._lock:
            self._told = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def add(self, callback: Callable[[], object]) -> None:
        """Call `callback` when the thread is told, at once if it has been."""
        with self._lock:
            if not self._told:
                self._callbacks.append(callback)
                return
        callback()

    def remove(self, callback: Callable[[], object]) -> None:
        """Forget it; it is not called from now on, unless it is being called already."""
        with self._lock:
            if callback in self._callbacks:
                self._callbacks.remove(callback)


WORKING_FOR: ContextVar[Notice | None] = ContextVar("anabranch_thread", default=None)
"""The notice of the `in_thread` in whose thread this runs."""


@contextmanager
def at_cancel(loop: AbstractEventLoop, callback: Callable[[], object]) -> Generator[None]:
    """Call `callback` in `loop` if the node for which this thread works is cancelled.

    As long as the block lasts; outside a thread of `in_thread` never.
    """
    notice = WORKING_FOR.get()
    if notice is None:
        yield
        return

    def call_soon() -> None:
        with suppress(RuntimeError):  # the loop is closed: nothing waits in it any more
            loop.call_soon_threadsafe(callback)

    notice.add(call_soon)
    try:
        yield
    finally:
        notice.remove(call_soon)
