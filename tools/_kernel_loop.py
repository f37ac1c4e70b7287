"""The event loop of the thread that talks to all Python kernels.

It outlives the loops of the callers, so a kernel can serve several `run_sync` calls and loops.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from ..commander.waiting import wait_shielded

__all__ = ["kernel_loop", "run_on_kernel_loop", "submit"]

T = TypeVar("T")


def kernel_loop() -> asyncio.AbstractEventLoop:
    """Return the running loop; the first call starts its thread, a daemon."""
    global _loop
    with _loop_lock:
        # A fork inherits the loop without its thread.
        if _loop is None or _loop[0] != os.getpid():
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="anabranch-kernels", daemon=True).start()
            _loop = os.getpid(), loop
        return _loop[1]


def submit(work: Coroutine[Any, Any, T]) -> Future[T]:
    """Run `work` on that loop, from any thread; the future cannot be cancelled."""
    return _start(work)[0]


async def run_on_kernel_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` on that loop and return its result. A cancel is passed on, and its end awaited."""
    future, task = _start(work)

    def cancel() -> None:
        kernel_loop().call_soon_threadsafe(lambda: task[0].cancel())

    outcome = asyncio.wrap_future(future)
    interrupted = await wait_shielded(outcome, cancel)
    if interrupted is not None:
        if not outcome.cancelled():
            outcome.exception()  # mark the error of the cancelled work as retrieved
        raise interrupted
    return outcome.result()


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
    # In an empty context: a kernel outlives the node that called it.
    loop.call_soon_threadsafe(begin, context=contextvars.Context())
    return future, task


# Reentrant, because a finalizer may run `submit` while this thread holds the lock.
_loop_lock = threading.RLock()
# The process that made the loop, and the loop.
_loop: tuple[int, asyncio.AbstractEventLoop] | None = None
