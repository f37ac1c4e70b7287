"""The worker's end: a Ray task that drives a job and all below it.

The task's function only waits, in the worker's main thread. The tree lives on an event loop in a
thread of its own, kept from task to task, and tells home by the desk what happens. A cancel from
home reaches the main thread as an interrupt; the task ends after the tree, so home knows when it is
over.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import threading
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import Context
from functools import cache
from types import FrameType
from typing import Any

from ._ray import load
from ._report import Order, Rest
from ._tree import Tree

__all__ = ["awaiting", "work"]

# In so many seconds a main thread that waits for another Ray task sees that the tree is over.
SLICE = 0.01


def work(order: bytes) -> Rest:
    """Drive the job of `order` to its end; return what home has not been told by then."""
    line = Line()
    tree = Tree(_read(order), line)
    with _current(line), _interrupts(line):
        loop().call_soon_threadsafe(tree.start, context=Context())
        try:
            while line.rest is None and not line.told:
                line.wait()
        finally:
            # A task that ended before its tree would leave that to the next one, so it never does,
            # whatever happens: test_ray_model.py found it.
            if line.rest is None:
                loop().call_soon_threadsafe(tree.cancel)
                line.wait_for_end()
    assert line.rest is not None
    return line.rest


def _read(order: bytes) -> Order:
    return pickle.loads(order)  # noqa: S301 - the home of the job wrote it


class Line:
    """What the main thread waits for: the end of the tree, and an interrupt."""

    def __init__(self) -> None:
        # What is left to be told, once the tree is over.
        self.rest: Rest | None = None
        # Whether home has told the task to stop.
        self.told = False
        # The Ray tasks that the tree itself waits for.
        self.awaited: set[Any] = set()

    def end(self, rest: Rest) -> None:
        """Say that the tree is over."""
        self.rest = rest
        _knock()

    @contextmanager
    def awaiting(self, task: Any) -> Generator[None, None, None]:
        """Lend out what this Ray task holds while the tree waits for another one."""
        self.awaited.add(task)
        _knock()
        try:
            yield
        finally:
            self.awaited.discard(task)

    def wait(self) -> None:
        """Wait until something has come; perhaps in vain.

        As long as the tree waits for Ray tasks of its own, the wait is one of Ray's, which lends
        out what this task holds: so tasks that wait for tasks never take up all there is.
        """
        if not self.awaited:
            os.read(_bell()[0], 4096)
            return
        try:
            load().wait([*self.awaited], timeout=SLICE, fetch_local=False)
        except load().exceptions.TaskCancelledError:  # a cancelled task may wait for no other
            self.told = True

    def wait_for_end(self) -> None:
        """Wait until the tree is over."""
        while self.rest is None:
            os.read(_bell()[0], 4096)


_line: Line | None = None


@contextmanager
def _current(line: Line) -> Generator[None, None, None]:
    global _line
    _line = line
    try:
        yield
    finally:
        _line = None


def awaiting(task: Any) -> AbstractContextManager[None]:
    """Say, inside a worker, that its tree waits for another Ray task; elsewhere it is nothing."""
    return nullcontext() if _line is None else _line.awaiting(task)


@cache
def _bell() -> tuple[int, int]:
    # A pipe, since an interrupt wakes no lock: Python writes to it when a signal comes.
    ends = os.pipe()
    os.set_blocking(ends[1], False)
    return ends


def _knock() -> None:
    with suppress(BlockingIOError):  # so much lies there that it is not needed
        os.write(_bell()[1], b"\0")


@contextmanager
def _interrupts(line: Line) -> Generator[None, None, None]:
    """Take the interrupt by which Ray cancels a task as a word to `line`, not as an exception."""

    def tell(number: int, frame: FrameType | None) -> None:
        line.told = True

    before = signal.signal(signal.SIGINT, tell)
    woken = signal.set_wakeup_fd(_bell()[1], warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(woken)
        signal.signal(signal.SIGINT, before)


@cache
def loop() -> asyncio.AbstractEventLoop:
    """Return the loop on which this worker's trees live, one after the other."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=_run_forever, args=(loop,), name="anabranch", daemon=True).start()
    return loop


def _run_forever(loop: asyncio.AbstractEventLoop) -> None:
    while True:
        try:
            loop.run_forever()
        except (KeyboardInterrupt, SystemExit):
            continue  # a body raised it; it goes home as the failure that it is
