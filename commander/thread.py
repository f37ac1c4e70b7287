"""Threads that work for a node: how they learn of its cancellation, and where they are at work.

`check_cancelled()` is for a function that polls. One that waits in a loop of its own, as `run` and
`Backend.stream_sync` do, registers a callback with `at_cancel` instead.
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
"""By ident, threads that wait for another one, and whether that may take any time.

A loop of tests asks: it may not read the frames of a running thread.
"""


class CancelNotice:
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


CANCEL_NOTICE: ContextVar[CancelNotice | None] = ContextVar("anabranch_thread", default=None)
"""The notice of the `in_thread` in whose thread this runs."""


@contextmanager
def at_cancel(loop: AbstractEventLoop, callback: Callable[[], object]) -> Generator[None]:
    """Call `callback` in `loop` if the node for which this thread works is cancelled.

    As long as the block lasts; outside a thread of `in_thread` never.
    """
    notice = CANCEL_NOTICE.get()
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


# --- the frames of a running thread


def frames_of_thread(ident: int) -> tuple[FrameType, ...]:
    """Return the frames of a running thread, innermost first; none if the thread has ended.

    All are of the same moment. The thread may leave them at once: a frame that it has left keeps
    its variables until the caller drops it, so drop them soon.
    """
    innermost = _uninterrupted(sys._current_frames).get(ident)
    if innermost is None:
        return ()
    # Written in C, unlike a loop: no other thread can run between two frames.
    frames: Any = takewhile(bool, accumulate(repeat("f_back"), getattr, initial=innermost))
    return _uninterrupted(partial(tuple[FrameType, ...], frames))


def local_in(frame: FrameType, name: str) -> Any:
    """Return the value of a local variable in a frame of `frames_of_thread`; None if it is unset.

    For functions of this package and of Python alone: before Python 3.13, a second read of a frame
    replaces the values that the first one found, and so may run the finalizer of one of them, in
    which the thread could leave the frame.
    """
    return _uninterrupted(partial(getattr, frame, "f_locals")).get(name)


def _uninterrupted(read: Callable[[], T]) -> T:
    """Call `read`, a function written in C, so that no other thread can run during the call.

    A thread runs its frames on a stack of its own, and CPython makes a frame object only when one
    is asked for, from a pointer into that stack. It holds the GIL then. But up to Python 3.11 the
    allocation of that object may start the garbage collector, and a finalizer may release the GIL:
    the thread runs on, the pointer leads to memory that is used again, and the process crashes; in
    `sys._current_frames` it also hangs, by a lock held at that time. So the collector is off.
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
