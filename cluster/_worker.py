"""A job on Ray, seen from its worker: a Ray task that drives the job and all below it.

The task's function only waits, in the worker's main thread. The tree lives on an event loop in a
thread of its own, kept from task to task, and reports home by the mailbox. A cancel from home
reaches the main thread as an interrupt; the task ends after the tree, so home knows when it is
over.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager, nullcontext, suppress
from contextvars import Context
from functools import cache
from types import FrameType
from typing import Any

from ..agents.remote import Scope, continue_scope
from ._payload import load, unpack_job
from ._protocol import Delivery, Outcome, TaskResult, TaskSpec
from ._ray import import_ray
from ._remote import REPORT_DELAY, RemoteCommander, Reporter, failure_outcome

__all__ = ["lend_while_waiting", "run_task"]

logger = logging.getLogger("anabranch.cluster")

# Seconds between two checks whether the tree is over, while the main thread is in `ray.wait`.
POLL = 0.01
# Seconds after which home learns that the job has begun, if there is nothing else to report.
BEGIN_REPORT = 0.02


def run_task(packed: bytes) -> TaskResult:
    """Drive the job of a `TaskSpec` to its end; return what home does not know by then."""
    global _main_thread
    loop, main = _worker_loop(), MainThread()
    tree = TaskTree(load(packed), main)
    _main_thread = main
    # Ray cancels a task by an interrupt: that sets a flag of `main` and raises nothing.
    before = signal.signal(signal.SIGINT, main.interrupt)
    woken = signal.set_wakeup_fd(_pipe()[1], warn_on_full_buffer=False)
    try:
        loop.call_soon_threadsafe(tree.start, context=Context())
        try:
            while main.result is None and not main.interrupted:
                main.wait()
        finally:
            # A task that ended before its tree would leave that to the next one, so it never does,
            # whatever happens: test_ray_model.py found it.
            if main.result is None:
                loop.call_soon_threadsafe(tree.cancel)
                while main.result is None:
                    os.read(_pipe()[0], 4096)
    finally:
        signal.set_wakeup_fd(woken)
        signal.signal(signal.SIGINT, before)
        _main_thread = None
    return main.result


# --- the main thread


class MainThread:
    """What the main thread waits for: the end of the tree, and an interrupt."""

    def __init__(self) -> None:
        # What is left to be reported, once the tree is over.
        self.result: TaskResult | None = None
        # Whether home has cancelled the task.
        self.interrupted = False
        # The Ray tasks that the tree itself waits for.
        self._awaited: set[Any] = set()

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal."""
        self.interrupted = True

    def end(self, result: TaskResult) -> None:
        """Say that the tree is over."""
        self.result = result
        self._wake()

    @contextmanager
    def lend_while_waiting(self, task: Any) -> Generator[None, None, None]:
        """Let Ray lend out this task's CPUs and GPUs while the tree waits for another task."""
        self._awaited.add(task)
        self._wake()
        try:
            yield
        finally:
            self._awaited.discard(task)

    def wait(self) -> None:
        """Wait until something has come; perhaps in vain.

        As long as the tree waits for Ray tasks of its own, the wait is one of Ray's, which lends
        out what this task holds: so tasks that wait for tasks never take up all there is.
        """
        if not self._awaited:
            os.read(_pipe()[0], 4096)
            return
        ray = import_ray()
        try:
            ray.wait([*self._awaited], timeout=POLL, fetch_local=False)
        except ray.exceptions.TaskCancelledError:  # a cancelled task may wait for no other
            self.interrupted = True

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # the pipe is full: the reader wakes anyway
            os.write(_pipe()[1], b"\0")


_main_thread: MainThread | None = None


def lend_while_waiting(task: Any) -> Any:
    """Lend out, inside a worker, what it holds while its tree waits for another Ray task."""
    return nullcontext() if _main_thread is None else _main_thread.lend_while_waiting(task)


@cache
def _pipe() -> tuple[int, int]:
    # An interrupt wakes no lock, but Python writes to a pipe when a signal comes.
    ends = os.pipe()
    os.set_blocking(ends[1], False)
    return ends


@cache
def _worker_loop() -> asyncio.AbstractEventLoop:
    """Return the loop on which this worker's trees live, one after the other."""
    loop = asyncio.new_event_loop()

    def run() -> None:
        while True:
            try:
                loop.run_forever()
            except (KeyboardInterrupt, SystemExit):
                continue  # a body raised it; it goes home as the failure that it is

    threading.Thread(target=run, name="anabranch", daemon=True).start()
    return loop


# --- the tree


class TaskTree:
    """The tree below one job; all but `__init__` runs on the worker's loop."""

    def __init__(self, spec: TaskSpec, main: MainThread) -> None:
        self._spec = spec
        self._main = main
        address = spec.context.reply_to
        assert address is not None
        self._address = address
        address.mailbox.locate_in_thread()
        self._commander = RemoteCommander(spec.context)
        self._reporter = Reporter(self._commander)
        self._cancelled = False
        self._timer: asyncio.TimerHandle | None = None
        # When home learns that the job has begun; None once it has learnt anything.
        self._begin_report: float | None = None
        # How many reports have arrived at home, and the one that is under way.
        self._received = 0
        self._pending: bytes | None = None
        self._sending: asyncio.Task[None] | None = None
        self._sent_at = 0.0
        self._scope: Scope | None = None
        self._left = 0 if spec.context.messages is None else spec.context.messages[1]

    def start(self) -> None:
        """Begin, in a task of its own."""
        self._task: asyncio.Task[None] | None = asyncio.get_running_loop().create_task(self._run())

    def cancel(self) -> None:
        """Cancel everything: home says so."""
        self._cancelled = True
        self._commander.cancel_all("cancelled from home")

    async def _run(self) -> None:
        try:
            if self._spec.context.messages is None:
                outcome = await self._drive()
            else:  # it goes on with the conversation in which it was put
                with continue_scope(*self._spec.context.messages, None) as self._scope:
                    outcome = await self._drive()
        except BaseException as error:  # noqa: BLE001 - nobody else is there to report it
            outcome = failure_outcome(error)
        if self._timer is not None:
            self._timer.cancel()
        self._main.end((self._received, self._pending, self._report(outcome)))
        for task in asyncio.all_tasks() - {self._task}:
            task.cancel()  # what bodies have left behind, as the end of a program would
        self._task = None  # with it the task goes at once, and needs no garbage collector

    async def _drive(self) -> Outcome:
        async with self._commander as commander:
            self._begin_report = asyncio.get_running_loop().time() + BEGIN_REPORT
            self._reporter.listen(self._report_soon)
            try:
                job = unpack_job(self._spec.job)
            except Exception as error:  # noqa: BLE001 - whatever importing a module raises
                return ("refused", f"{type(error).__name__}: {error}")
            commander.put_root(job)
            if self._cancelled:
                self.cancel()
        return commander.outcome()

    # --- reports

    def _report_soon(self) -> None:
        """See to it that what has happened is reported soon."""
        if self._pending is not None:
            return
        loop = asyncio.get_running_loop()
        if self._timer is None or self._timer.when() > loop.time() + REPORT_DELAY:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_later(REPORT_DELAY, self._flush)

    def _flush(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        begin = self._begin_report
        if self._reporter.gather() or (begin is not None and loop.time() >= begin):
            self._begin_report = None
            self._pending, self._sent_at = self._report(None), loop.time()
            self._sending = loop.create_task(self._send(self._pending))
        elif begin is not None:
            self._timer = loop.call_at(begin, self._flush)

    async def _send(self, report: bytes) -> None:
        mailbox, inbox, call = self._address
        try:
            await mailbox.deliver(Delivery(inbox, call, self._received + 1, report))
        except Exception as error:  # noqa: BLE001 - whatever it is, the job goes on
            logger.warning("no more reports to home before the end of this job: %r", error)
        else:
            self._received, self._pending = self._received + 1, None
            loop = asyncio.get_running_loop()
            due = max(loop.time(), self._sent_at + REPORT_DELAY)
            self._timer = loop.call_at(due, self._flush)

    def _report(self, outcome: Outcome | None) -> bytes:
        left, self._left = self._left, 0 if self._scope is None else self._scope.left
        return self._reporter.report(left - self._left, outcome)
