"""A job on Ray, seen from its worker: a Ray task that drives the job and all below it.

The task's function only waits, in the worker's main thread. The tree lives on an event loop in a
thread of its own, kept from task to task, and reports home by the mailbox. The task ends after the
tree, so home knows when it is over.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable
from contextvars import Context
from functools import cache, partial
from typing import Any

from ..agents.remote import Scope, continue_scope
from ..commander import Node
from ._main_thread import MainThread
from ._payload import load, unpack_job
from ._protocol import Delivery, Outcome, TaskResult, TaskSpec
from ._ray import import_ray
from ._remote import REPORT_DELAY, RemoteCommander, Reporter, failure_outcome

__all__ = ["run_task"]

logger = logging.getLogger("anabranch.cluster")

# Seconds after which home learns that the job has begun, if there is nothing else to report.
BEGIN_REPORT = 0.02


def run_task(packed: bytes, references: list[Any], *large: Any) -> TaskResult:
    """Drive the job of a `TaskSpec` to its end; return what home does not know by then.

    `references` and `large` are what Ray itself has sent of its fields.
    """
    loop, main = _worker_loop(), MainThread()
    spec: TaskSpec = load(packed)
    tree = TaskTree(spec, main, partial(unpack_job, spec.job, large, references))
    # Ray cancels a task by an interrupt. It raises nothing here: Python writes to a pipe when a
    # signal comes, whatever the main thread does, and the tree reads that.
    pipe = os.pipe()
    os.set_blocking(pipe[1], False)
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    woken = signal.set_wakeup_fd(pipe[1], warn_on_full_buffer=False)
    MainThread.current = main
    try:
        loop.call_soon_threadsafe(tree.start, pipe[0], context=Context())
        # A task that ended before its tree would leave that to the next one, so it never does,
        # whatever happens: test_ray_model.py found it.
        try:
            main.wait(lending=True)
        except (KeyboardInterrupt, import_ray().exceptions.TaskCancelledError):
            pass  # a cancelled task may wait for no other
        finally:
            if main.result is None:
                loop.call_soon_threadsafe(tree.cancel)
                main.wait(lending=False)
    finally:
        MainThread.current = None
        signal.set_wakeup_fd(woken)
        signal.signal(signal.SIGINT, before)
        for end in pipe:
            os.close(end)
    assert main.result is not None
    return main.result


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

    def __init__(self, spec: TaskSpec, main: MainThread, unpack: Callable[[], Node[Any]]) -> None:
        self._unpack = unpack
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

    def start(self, signals: int) -> None:
        """Begin, in a task of its own; an interrupt that is read from `signals` cancels it."""
        loop = asyncio.get_running_loop()

        def read() -> None:
            if signal.SIGINT in os.read(signals, 4096):
                self.cancel()

        loop.add_reader(signals, read)
        self._signals = signals
        self._task: asyncio.Task[None] | None = loop.create_task(self._run())

    def cancel(self) -> None:
        """Cancel everything: home says so."""
        if not self._cancelled:
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
        asyncio.get_running_loop().remove_reader(self._signals)
        try:
            last = self._report(outcome)
        except BaseException as error:  # noqa: BLE001 - home waits for the end, whatever it says
            last = self._report(failure_outcome(error))
        self._main.end((self._received, self._pending, last))
        for task in asyncio.all_tasks() - {self._task}:
            task.cancel()  # what bodies have left behind, as the end of a program would
        self._task = None  # with it the task goes at once, and needs no garbage collector

    async def _drive(self) -> Outcome:
        async with self._commander as commander:
            self._begin_report = asyncio.get_running_loop().time() + BEGIN_REPORT
            self._reporter.listen(self._report_soon)
            try:
                job = self._unpack()
            except Exception as error:  # noqa: BLE001 - whatever importing a module raises
                return ("refused", f"{type(error).__name__}: {error}")
            commander.put_root(job)
            if self._cancelled:
                commander.cancel_all("cancelled from home")
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
