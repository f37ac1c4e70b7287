"""The loop of the thread that talks to all Python kernels: it outlives the loops that ask.

So a kernel can be used from one `run_sync` and the next, and from several loops at once.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from ..commander.waiting import outlast

__all__ = ["ask", "kernel_loop", "submit"]

T = TypeVar("T")


def kernel_loop() -> asyncio.AbstractEventLoop:
    """Return the loop, running; its thread is a daemon and is made by the first call."""
    global _loop
    with _lock:
        # A fork has the loop, and not its thread.
        if _loop is None or _loop[0] != os.getpid():
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="anabranch-kernels", daemon=True).start()
            _loop = os.getpid(), loop
        return _loop[1]


def submit(work: Coroutine[Any, Any, T]) -> Future[T]:
    """Do `work` on that loop, whoever asks; the future has its outcome and cannot be cancelled."""
    return _start(work)[0]


async def ask(work: Coroutine[Any, Any, T]) -> T:
    """Do `work` on that loop and wait for it; a cancel reaches it, and its end is awaited."""
    future, task = _start(work)

    def cancel() -> None:
        kernel_loop().call_soon_threadsafe(lambda: task[0].cancel())

    ended = asyncio.wrap_future(future)
    interrupted = await outlast(ended, cancel)
    if interrupted is not None:
        if not ended.cancelled():
            ended.exception()  # what it raised when it was cancelled is nobody's news
        raise interrupted
    return ended.result()


def _start(work: Coroutine[Any, Any, T]) -> tuple[Future[T], list[asyncio.Task[T]]]:
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()
    task: list[asyncio.Task[T]] = []

    def settle(done: asyncio.Task[T]) -> None:
        if done.cancelled():
            future.set_exception(asyncio.CancelledError())
        elif (error := done.exception()) is not None:
            future.set_exception(error)
        else:
            future.set_result(done.result())

    def begin() -> None:
        task.append(loop.create_task(work))
        task[0].add_done_callback(settle)

    loop = kernel_loop()
    # In a context of its own: a kernel lives longer than the node that asks.
    loop.call_soon_threadsafe(begin, context=contextvars.Context())
    return future, task


# A finalizer may come while it is held.
_lock = threading.RLock()
# The process that made it, and the loop.
_loop: tuple[int, asyncio.AbstractEventLoop] | None = None
