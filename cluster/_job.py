"""A job on Ray: the body of its node in the home process, and the Ray task that runs it.

The Ray task has `max_retries=0`: only the job's own `retry` repeats it. Jobs that it puts are
placed when they are put, so there is no placement group.

The function of the task waits in the worker's main thread. The tree runs on an event loop in a
second thread, which all tasks of the worker use, and reports home by the mailbox. The task ends
after the tree, so home knows when it is over.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from functools import cache, partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ..agents.integration import ConversationScope, continue_scope
from ..commander import Node
from ..commander.errors import ConfigurationError, WorkerLost
from ..commander.waiting import wait_shielded
from ._cluster import Cluster, Monitor, join
from ._mailbox import RemoteCall, inbox_of
from ._payload import load, load_lenient, pack_job, unpack_job
from ._placement import CHECK_SECONDS
from ._protocol import Outcome, Report, ReportDelivery, TaskResult, TaskSpec
from ._ray import MainThread, call_in_thread, import_ray, lend_while_waiting, translate_error
from ._subtree import REPORT_DELAY_SECONDS, RemoteCommander, RemoteNode, Reporter, failure_outcome

if TYPE_CHECKING:
    from ._placement import Ray

__all__ = ["RemoteJob", "run_task"]

logger = logging.getLogger("anabranch.cluster")

# Seconds for Ray to kill a worker; after that home stops waiting for it.
FORCE_SECONDS = 5.0


class RemoteJob(RemoteNode):
    """The body of a job that was put on Ray."""

    def __init__(self, place: Ray, job: Node[Any]) -> None:
        import_ray()
        place.options()  # raise for invalid options when the job is put
        super().__init__()
        self.place = place
        self.payload, self.large, self.references = pack_job(job)

    def explain(self) -> str:
        """Describe where the body runs, or its wait."""
        if self.host is None:
            return f"waits for a Ray worker ({self.place.describe()})"
        return f"in the Ray worker {self.pid} on {self.host}"

    async def run(self, node: Node[Any]) -> Any:
        """Run the job once on the cluster. A cancel waits until it is over there."""
        self.begin(node)
        cluster = await join(self.place.address)
        inbox = await inbox_of(node.commander, cluster)
        try:
            async with RemoteCall(node, inbox, lambda report: self.load(node, report)) as call:
                return await _Attempt(self, node, cluster, call).run()
        finally:
            self.clear()

    def load(self, node: Node[Any], packed: bytes) -> Outcome | None:
        """Take a report; return the job's outcome if the report has it."""
        report: Report = load_lenient(packed)
        self.take(node, report)
        return report.outcome


class _Attempt:
    """One run of a job: a Ray task, which returns the reports that did not arrive earlier."""

    def __init__(self, job: RemoteJob, node: Node[Any], cluster: Cluster, call: RemoteCall) -> None:
        self._job = job
        self._node = node
        self._cluster = cluster
        self._call = call
        self._spec = pickle.dumps(TaskSpec(job.payload, job.context(node, call)))
        # The running check of the machines.
        self._check: asyncio.Future[None] | None = None

    async def run(self) -> Any:
        """Run the task; return its result or raise its failure once it is over."""
        cluster, place, large = self._cluster, self._job.place, self._job.large
        interrupted: asyncio.CancelledError | None = None
        if cluster.has_submitted and place.runtime_env is None and not large:
            task = self._submit()
        else:  # in a thread: Ray blocks its caller in these cases
            submitting = asyncio.wrap_future(call_in_thread(self._submit))
            interrupted = await wait_shielded(submitting)
            task = submitting.result()
            cluster.has_submitted = True

        def kill() -> None:  # in a thread: without a head it may hang
            call_in_thread(partial(cluster.ray.cancel, task, force=True, recursive=False))

        async with Monitor(cluster, self._node.path, kill) as monitor:
            over: asyncio.Future[TaskResult] = asyncio.wrap_future(task.future())

            try:
                if interrupted is not None:
                    raise interrupted
                with lend_while_waiting(task):
                    await self._wait(over, monitor.loss)
            except BaseException:
                if cluster.is_usable:
                    cluster.ray.cancel(task, recursive=False)
                    ending = self._end(over, monitor.loss, kill)
                    await wait_shielded(asyncio.ensure_future(ending))
                raise
            finally:
                over.cancel()
                if self._check is not None:
                    self._check.cancel()
            if over.cancelled():
                raise WorkerLost(self._node.path, monitor.loss.result())
        if (error := over.exception()) is not None:
            raise translate_error(error, self._node.path)
        outcome = await self._take(over.result())
        if outcome[0] == "refused":
            raise ConfigurationError(
                f"{type(self._node).__name__} cannot be made in the Ray worker on "
                f"{self._job.host}: {outcome[1]}. A worker needs the module of the job's class and "
                "what that imports: install them on all machines, or send them with "
                "Ray(runtime_env={'working_dir': '.', 'pip': [...]})"
            )
        return self._job.end(self._node, outcome)

    def _submit(self) -> Any:
        """Start the Ray task, and return its reference."""
        job, node, cluster = self._job, self._node, self._cluster
        submitters, name = _tasks.setdefault(job.place, {}), type(node).__name__
        try:
            if name not in submitters:
                options = {"name": f"anabranch:{name}", **job.place.options()}
                submitters[name] = _task().options(**options).remote
            large = [each.send(cluster, cluster.ray.put) for each in job.large]
            return submitters[name](self._spec, job.references, *large)
        except (ValueError, TypeError, RuntimeError, OverflowError) as error:
            what = "" if job.place.runtime_env is None else " with its runtime_env"
            raise ConfigurationError(
                f"{node.path}: Ray refuses {job.place}{what}: {error}"
            ) from error

    async def _wait(self, over: asyncio.Future[TaskResult], lost: asyncio.Future[str]) -> None:
        """Wait for the end. While the task has not started, check whether a machine can take it."""
        if not self._cluster.machines.is_known(self._job.place):
            self._check_machines()
        ends: set[asyncio.Future[Any]] = {over, lost}
        while True:
            waits = ends if self._check is None else {*ends, self._check}
            timeout = CHECK_SECONDS if self._job.host is None else None
            await asyncio.wait(waits, timeout=timeout, return_when="FIRST_COMPLETED")
            if over.done() or lost.done():
                return
            if self._check is not None and self._check.done():
                self._check.result()
                self._check = None
            elif self._check is None and self._job.host is None:
                self._check_machines()

    def _check_machines(self) -> None:
        checking = self._cluster.machines.check_in_thread(self._job.place)
        self._check = asyncio.wrap_future(checking)

    async def _end(
        self, over: asyncio.Future[TaskResult], lost: asyncio.Future[str], kill: Callable[[], None]
    ) -> None:
        """Wait for the end of a cancelled task, and take its last reports."""
        ends: set[asyncio.Future[Any]] = {over, lost}
        grace = self._job.place.grace
        done, _ = await asyncio.wait(ends, timeout=grace, return_when="FIRST_COMPLETED")
        if not done:
            logger.warning(
                "%s has not ended %g s after its cancel, so its Ray worker is killed;"
                " to wait longer, use Ray(grace=...)",
                self._node.path,
                grace,
            )
            kill()
            done, _ = await asyncio.wait(ends, timeout=FORCE_SECONDS, return_when="FIRST_COMPLETED")
            if not done:  # it holds Python's global lock, or the system has stopped it
                logger.error(
                    "%s: Ray cannot kill its worker, which keeps its resources;"
                    " the job ends without it",
                    self._node.path,
                )
        if over.done() and over.exception() is None:
            await self._take(over.result())

    async def _take(self, result: TaskResult) -> Outcome:
        """Wait for the earlier reports, take the last ones, and return the outcome."""
        received, pending, last = result
        await self._call.wait_for_reports(received)
        if pending is not None:
            self._call.take(received + 1, pending)
        self._call.check()
        outcome = self._job.load(self._node, last)
        assert outcome is not None
        return outcome


_tasks: WeakKeyDictionary[Ray, dict[str, Callable[..., Any]]] = WeakKeyDictionary()


@cache
def _task() -> Any:
    return import_ray().remote(max_retries=0)(run_task)


# --- in the worker

# Seconds after which home learns that the job has started, if there is no other report.
FIRST_REPORT_SECONDS = 0.02


def run_task(packed: bytes, references: list[Any], *large: Any) -> TaskResult:
    """Run the job of a `TaskSpec` to its end; return the reports that have not reached home.

    Ray itself sends `references` and `large`, which are parts of the job's fields.
    """
    loop, main = _worker_loop(), MainThread()
    spec: TaskSpec = load(packed)
    tree = TaskTree(spec, main, partial(unpack_job, spec.job, large, references))
    # Ray cancels a task with an interrupt. The handler here raises nothing: on a signal Python
    # writes to a pipe whatever the main thread does, and the tree reads the pipe.
    pipe = os.pipe()
    os.set_blocking(pipe[1], False)
    old_handler = signal.signal(signal.SIGINT, lambda number, frame: None)
    old_wakeup_fd = signal.set_wakeup_fd(pipe[1], warn_on_full_buffer=False)
    MainThread.current = main
    try:
        loop.call_soon_threadsafe(tree.start, pipe[0], context=Context())
        # If the task ended before its tree, the tree would run into the next task. So the task
        # waits, whatever happens; a model-based test found this case.
        try:
            # Ray does not let a cancelled task wait for other tasks.
            with suppress(KeyboardInterrupt, import_ray().exceptions.TaskCancelledError):
                main.wait(lending=True)
        finally:
            if main.result is None:
                loop.call_soon_threadsafe(tree.cancel)
                main.wait(lending=False)
    finally:
        MainThread.current = None
        signal.set_wakeup_fd(old_wakeup_fd)
        signal.signal(signal.SIGINT, old_handler)
        for end in pipe:
            os.close(end)
    assert main.result is not None
    return main.result


@cache
def _worker_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of this worker's trees, which run one after the other."""
    loop = asyncio.new_event_loop()

    def run() -> None:
        while True:
            try:
                loop.run_forever()
            except (KeyboardInterrupt, SystemExit):
                continue  # raised by a body, whose failure is reported

    threading.Thread(target=run, name="anabranch", daemon=True).start()
    return loop


# --- the tree


class TaskTree:
    """The tree of one job; everything except `__init__` runs on the worker's loop."""

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
        # When to report the start of the job; None after the first report.
        self._begin_report: float | None = None
        # The number of reports that reached home, and the one that is being sent.
        self._received = 0
        self._pending: bytes | None = None
        self._sending: asyncio.Task[None] | None = None
        self._sent_at = 0.0
        self._scope: ConversationScope | None = None
        self._left = 0 if spec.context.messages is None else spec.context.messages[1]

    def start(self, signals: int) -> None:
        """Start the tree in its own task; an interrupt that is read from `signals` cancels it."""
        loop = asyncio.get_running_loop()

        def read() -> None:
            if signal.SIGINT in os.read(signals, 4096):
                self.cancel()

        loop.add_reader(signals, read)
        self._signals = signals
        self._task: asyncio.Task[None] | None = loop.create_task(self._run())

    def cancel(self) -> None:
        """Cancel the tree, because home cancelled the job."""
        if not self._cancelled:
            self._cancelled = True
            self._commander.cancel_all("cancelled from home")

    async def _run(self) -> None:
        try:
            if self._spec.context.messages is None:
                outcome = await self._drive()
            else:  # continue the conversation of the job's node
                with continue_scope(*self._spec.context.messages, None) as self._scope:
                    outcome = await self._drive()
        except BaseException as error:  # noqa: BLE001 - reported as the outcome
            outcome = failure_outcome(error)
        if self._timer is not None:
            self._timer.cancel()
        asyncio.get_running_loop().remove_reader(self._signals)
        try:
            last = self._report(outcome)
        except BaseException as error:  # noqa: BLE001 - home waits for any outcome
            last = self._report(failure_outcome(error))
        self._main.end((self._received, self._pending, last))
        for task in asyncio.all_tasks() - {self._task}:
            task.cancel()  # left behind by bodies; ended as at the end of a program
        # Break the cycle, so that the task is freed without the garbage collector.
        self._task = None

    async def _drive(self) -> Outcome:
        async with self._commander as commander:
            self._begin_report = asyncio.get_running_loop().time() + FIRST_REPORT_SECONDS
            self._reporter.listen(self._report_soon)
            try:
                job = self._unpack()
            except Exception as error:  # noqa: BLE001 - importing may raise anything
                return ("refused", f"{type(error).__name__}: {error}")
            commander.put_root(job)
            if self._cancelled:
                commander.cancel_all("cancelled from home")
        return commander.outcome()

    # --- reports

    def _report_soon(self) -> None:
        """Schedule a report of the events so far."""
        if self._pending is not None:
            return
        loop = asyncio.get_running_loop()
        if self._timer is None or self._timer.when() > loop.time() + REPORT_DELAY_SECONDS:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_later(REPORT_DELAY_SECONDS, self._flush)

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
            await mailbox.deliver(ReportDelivery(inbox, call, self._received + 1, report))
        except Exception as error:  # noqa: BLE001 - the job continues
            logger.warning("this job will report only at its end: %r", error)
        else:
            self._received, self._pending = self._received + 1, None
            loop = asyncio.get_running_loop()
            due = max(loop.time(), self._sent_at + REPORT_DELAY_SECONDS)
            self._timer = loop.call_at(due, self._flush)

    def _report(self, outcome: Outcome | None) -> bytes:
        left, self._left = self._left, 0 if self._scope is None else self._scope.left
        return self._reporter.report(left - self._left, outcome)
