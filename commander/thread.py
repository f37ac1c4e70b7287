"""Threads that work for a node: notice of its cancellation, and the frames of a running thread.

A function that polls uses `check_cancelled()`. A function that runs an event loop in its thread, as
`run` and `Backend.stream_sync` do, registers a callback with `at_cancel`.
"""

from __future__ import annotations

import gc
import sys
from asyncio import AbstractEventLoop
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from itertools import accumulate, repeat, takewhile
from operator import call
from threading import Lock
from types import FrameType
from typing import Any, TypeVar

__all__ = [
    "CANCEL_NOTICE",
    "WAITING_THREADS",
    "CancelNotice",
    "at_cancel",
    "frames_of_thread",
    "local_in",
]

T = TypeVar("T")

WAITING_THREADS: dict[int, Callable[[], bool]] = {}
"""By ident, the threads that wait for another one, with a function: may that take any time?

The event loop for tests calls it, because it cannot read the frames of a running thread.
"""


class CancelNotice:
    """The notice to a thread that its node is cancelled, and the callbacks for it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._is_sent = False
        self._callbacks: list[Callable[[], object]] = []

    def send(self) -> None:
        """Call the callbacks, in the thread that calls this."""
        with self._lock:
            self._is_sent = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def add(self, callback: Callable[[], object]) -> None:
        """Call `callback` when the notice is sent; at once if it was."""
        with self._lock:
            if not self._is_sent:
                self._callbacks.append(callback)
                return
        callback()

    def remove(self, callback: Callable[[], object]) -> None:
        """Remove `callback`. It is not called any more, unless a call has begun."""
        with self._lock:
            if callback in self._callbacks:
                self._callbacks.remove(callback)


CANCEL_NOTICE: ContextVar[CancelNotice | None] = ContextVar("anabranch_thread", default=None)
"""The notice for the thread of `in_thread` in which this runs."""


@contextmanager
def at_cancel(loop: AbstractEventLoop, callback: Callable[[], object]) -> Generator[None]:
    """Call `callback` in `loop` if the node of this thread is cancelled during the block.

    Outside of a thread of `in_thread` it is never called.
    """
    notice = CANCEL_NOTICE.get()
    if notice is None:
        yield
        return

    def call_soon() -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(callback)

    notice.add(call_soon)
    try:
        yield
    finally:
        notice.remove(call_soon)


# --- the frames of a running thread


def frames_of_thread(ident: int) -> tuple[FrameType, ...]:
    """Return the frames of a running thread, innermost first; none if the thread has ended.

    All are of the same moment. The thread may leave them at once: a frame that it has left keeps
    its variables until the caller drops it, so drop them soon.
    """
    innermost = _uninterrupted(sys._current_frames).get(ident)
    if innermost is None:
        return ()
    # All of it in C, unlike a Python loop, so that no other thread can run between two frames.
    frames: Any = takewhile(bool, accumulate(repeat("f_back"), getattr, initial=innermost))
    return _uninterrupted(partial(tuple[FrameType, ...], frames))


def local_in(frame: FrameType, name: str) -> Any:
    """Return the value of a local variable in a frame of `frames_of_thread`; None if it is unset.

    Use it only for frames of Anabranch and of Python. Before Python 3.13, a second read of a frame
    replaces the values of the first, which may run a user's finalizer. During that, the other
    thread could leave the frame.
    """
    return _uninterrupted(partial(getattr, frame, "f_locals")).get(name)


def _uninterrupted(read: Callable[[], T]) -> T:
    """Call `read`, a function written in C, so that no other thread can run during the call.

    CPython creates the frame objects of a thread on demand, from a pointer into the thread's stack,
    and holds the GIL. But up to Python 3.11 the allocation of that object may start the garbage
    collector, and a finalizer may release the GIL. Then the thread continues, the pointer leads to
    reused memory, and the process crashes. In `sys._current_frames` it may also hang, because that
    holds a lock. So the collector is off during the call.
    """
    restore = gc.enable if gc.isenabled() else gc.disable
    reads: Any = (gc.disable, read)
    try:
        # Both are called from C. Between two calls from Python, another thread could run and
        # enable the collector.
        _, found = map(call, reads)
        return found
    finally:
        restore()
