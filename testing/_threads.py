"""Detect idle threads: patches of `Event.wait` and of thread pools record which threads wait.

Frames of running threads would also show that. But a frame object keeps the thread's variables
alive, and an idle loop would read the frames in each turn.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import thread as pools
from functools import wraps
from queue import Queue
from typing import Any

from ..commander.thread import WAITING_THREADS

__all__ = ["is_at_work", "is_in_event", "note_waits"]

# Idents of the threads that wait for an event, and of those that run a call of a pool.
_in_events: set[int] = set()
_in_calls: set[int] = set()
# On a Python without these two private names, the threads of a pool count as being at work.
_Call: Any = getattr(pools, "_WorkItem", None)
_queues: Any = getattr(pools, "_threads_queues", {})
_wait = threading.Event.wait
_run: Any = getattr(_Call, "run", None)


@wraps(threading.Event.wait)
def _noted_wait(self: threading.Event, timeout: float | None = None) -> bool:
    thread = threading.get_ident()
    before = WAITING_THREADS.get(thread), thread in _in_events  # a finalizer may nest waits
    WAITING_THREADS[thread] = lambda: timeout is None and not self.is_set()
    _in_events.add(thread)
    try:
        return _wait(self, timeout)
    finally:
        if before[0] is None:
            del WAITING_THREADS[thread]
        else:
            WAITING_THREADS[thread] = before[0]
        if not before[1]:
            _in_events.discard(thread)


def _noted_run(self: Any, *args: Any) -> None:
    thread = threading.get_ident()
    _in_calls.add(thread)
    try:
        _run(self, *args)
    finally:
        _in_calls.discard(thread)


def note_waits() -> None:
    """Patch `Event.wait` and the calls of thread pools, so that all threads record their waits."""
    if threading.Event.wait is not _noted_wait:
        threading.Event.wait = _noted_wait
        os.register_at_fork(after_in_child=_forget)
        if _run is not None:
            _Call.run = _noted_run


def _forget() -> None:
    for noted in (WAITING_THREADS, _in_events, _in_calls):
        noted.clear()


def is_at_work(thread: threading.Thread) -> bool:
    """Return whether a thread can make progress before another thread acts.

    False for a thread that waits for an event without a timeout, and for a pool thread of asyncio
    or anyio that has no call to run.
    """
    ident = thread.ident or 0
    waits = WAITING_THREADS.get(ident)
    if waits is not None:
        return not waits()
    if type(thread).__name__ == "WorkerThread":  # anyio's: at work until its call is reported
        calls = getattr(thread, "queue", None)
        return not isinstance(calls, Queue) or calls.unfinished_tasks > 0
    queue = _queues.get(thread) if _run is not None else None
    return queue is None or ident in _in_calls or queue.qsize() > 0


def is_in_event(thread: threading.Thread) -> bool:
    """Return whether a thread waits for an event, with a timeout or without."""
    return thread.ident in _in_events
