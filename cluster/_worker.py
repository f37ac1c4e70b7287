"""The worker's end: a Ray task that drives a job and all below it, and reports home.

The task is a plain generator in the worker's main thread, which only passes reports on. The tree
lives on an event loop in a thread of its own, kept from task to task. A cancel from home reaches
the main thread as an interrupt; the task ends after the tree, so home knows when it is over.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import threading
from collections import deque
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import Context
from functools import cache
from types import FrameType
from typing import Any

from ._ray import load
from ._report import Order
from ._tree import Tree

__all__ = ["awaiting", "work"]

# So many reports may lie between the tree and Ray; then the tree gathers more into the next one.
ROOM = 2
# In so many seconds a main thread that waits for another Ray task looks for reports.
SLICE = 0.01


def work(order: bytes) -> Generator[bytes, None, None]:
    """Drive the job of `order` to its end; yield reports, the last of which says how it ended."""
    line = Line()
    tree = Tree(_read(order), line)
    with _current(line), _interrupts(line):
        loop().call_soon_threadsafe(tree.start, context=Context())
        try:
            yield from _reports(line)
        finally:
            if (
                not line.ended
            ):  # a cancel, or Ray takes no more of it: the tree ends before the task
                loop().call_soon_threadsafe(tree.cancel)
                line.wait_for_end()


def _read(order: bytes) -> Order:
    return pickle.loads(order)  # noqa: S301 - the home of the job wrote it


def _reports(line: Line) -> Generator[bytes, None, None]:
    while not line.told:
        line.wait()
        while line.reports and not line.told:
            yield line.take()
        if line.ended:
            return


class Line:
    """Reports on their way from the tree's thread to the main thread, which an interrupt wakes."""

    def __init__(self) -> None:
        self.reports: deque[bytes] = deque()
        # Whether the tree is over; its last report has been put by then.
        self.ended = False
        # Whether home has told the task to stop.
        self.told = False
        # The Ray tasks that the tree itself waits for.
        self.awaited: set[Any] = set()
        self._drained: Any = None

    # --- the tree's side

    @property
    def full(self) -> bool:
        """Whether the next report has to wait."""
        return len(self.reports) >= ROOM

    def put(self, report: bytes) -> None:
        """Send a report."""
        self.reports.append(report)
        _knock()

    def when_drained(self, callback: Any) -> None:
        """Call `callback` on the tree's loop, once, as soon as there is room again."""
        self._drained = callback
        if not self.full:
            self._tell_drained()

    def end(self) -> None:
        """Say that the tree is over."""
        self.ended = True
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

    # --- the main thread's side

    def wait(self) -> None:
        """Wait until something has come; perhaps in vain.

        As long as the tree waits for Ray tasks of its own, the wait is one of Ray's, which lends
        out what this task holds: so tasks that wait for tasks never take up all there is.
        """
        if self.reports or self.ended or self.told:
            return
        if self.awaited:
            load().wait([*self.awaited], timeout=SLICE, fetch_local=False)
        else:
            os.read(_bell()[0], 4096)

    def take(self) -> bytes:
        """Take the oldest report."""
        report = self.reports.popleft()
        self._tell_drained()
        return report

    def _tell_drained(self) -> None:
        callback, self._drained = self._drained, None
        if callback is not None:
            loop().call_soon_threadsafe(callback)

    def wait_for_end(self) -> None:
        """Wait until the tree is over, whatever happens; its reports are for nobody.

        Ray lets a cancelled task wait for no other, so this is no wait of Ray's. A task that ended
        before its tree would leave that to the next one: test_ray_model.py found it.
        """
        while not self.ended:
            self.reports.clear()
            self._tell_drained()
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
