"""A job on Ray, seen from home: the body of its node is a Ray task.

It is a plain task with `max_retries=0`: whether a job may run twice is for its own `retry` to say.
No placement group holds its machines: what a job puts on is placed when it is put.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ..commander import Node
from ..commander.errors import ConfigurationError, WorkerLost
from ..commander.waiting import outlast
from ._cluster import Cluster, Monitor, join
from ._inbox import RemoteCall, inbox_of
from ._main_thread import lend_while_waiting
from ._payload import load_lenient, pack_job
from ._placement import CHECK_AFTER
from ._protocol import Outcome, Report, TaskResult, TaskSpec
from ._ray import call_in_thread, import_ray, translate_error
from ._remote import RemoteNode
from ._worker import run_task

if TYPE_CHECKING:
    from ._placement import Ray

__all__ = ["RemoteJob"]

logger = logging.getLogger("anabranch.cluster")

# How long Ray has to end a worker by force, in seconds; then it is given up.
FORCE_TIMEOUT = 5.0


class RemoteJob(RemoteNode):
    """The body of a job that was put on Ray."""

    def __init__(self, place: Ray, job: Node[Any]) -> None:
        import_ray()
        place.options()  # what it refuses is refused now
        super().__init__()
        self.place = place
        self.payload, self.large, self.references = pack_job(job)

    def explain(self) -> str:
        """Say where the body is, or what it waits for."""
        if self.host is None:
            return f"waits for a Ray worker ({self.place.describe()})"
        return f"in the Ray worker {self.pid} on {self.host}"

    async def run(self, node: Node[Any]) -> Any:
        """Run the job once on the cluster; cancelled, wait until it is over there."""
        self.begin(node)
        cluster = await join(self.place.address)
        inbox = await inbox_of(node.commander, cluster)
        try:
            async with RemoteCall(node, inbox, lambda report: self.load(node, report)) as call:
                return await _Attempt(self, node, cluster, call).run()
        finally:
            self.clear()

    def load(self, node: Node[Any], packed: bytes) -> Outcome | None:
        """Take a report in; return how the job has ended, if it says that."""
        report: Report = load_lenient(packed)
        self.take(node, report)
        return report.outcome


class _Attempt:
    """One run of a job: a Ray task, whose value is what it has not reported before it ended."""

    def __init__(self, job: RemoteJob, node: Node[Any], cluster: Cluster, call: RemoteCall) -> None:
        self._job = job
        self._node = node
        self._cluster = cluster
        self._call = call
        self._spec = pickle.dumps(TaskSpec(job.payload, job.context(node, call)))
        # A look at the machines that is under way.
        self._check: asyncio.Future[None] | None = None

    async def run(self) -> Any:
        """Run the task; give its result or raise its failure, once it is over."""
        cluster, place, large = self._cluster, self._job.place, self._job.large
        interrupted: asyncio.CancelledError | None = None
        if cluster.ready and place.runtime_env is None and not large:
            task = self._submit()
        else:  # here Ray holds its caller up
            submitting = asyncio.wrap_future(call_in_thread(self._submit))
            interrupted = await outlast(submitting)
            task = submitting.result()
            cluster.ready = True

        def kill() -> None:  # without a head, Ray may not be able to, or hang
            call_in_thread(partial(cluster.ray.cancel, task, force=True, recursive=False))

        async with Monitor(cluster, self._node.path, kill) as monitor:
            over: asyncio.Future[TaskResult] = asyncio.wrap_future(task.future())

            try:
                if interrupted is not None:
                    raise interrupted
                with lend_while_waiting(task):
                    await self._wait(over, monitor.lost)
            except BaseException:
                if cluster.usable:
                    cluster.ray.cancel(task, recursive=False)
                    ending = self._end(over, monitor.lost, kill)
                    await outlast(asyncio.ensure_future(ending))
                raise
            finally:
                over.cancel()
                if self._check is not None:
                    self._check.cancel()
            if over.cancelled():
                raise WorkerLost(self._node.path, monitor.lost.result())
        return await self._outcome(over)

    def _submit(self) -> Any:
        """Start the Ray task, and return its reference."""
        job, node, cluster = self._job, self._node, self._cluster
        known, name = _tasks.setdefault(job.place, {}), type(node).__name__
        try:
            if name not in known:
                options = {"name": f"anabranch:{name}", **job.place.options()}
                known[name] = _task().options(**options).remote
            large = [each.send(cluster, cluster.ray.put) for each in job.large]
            return known[name](self._spec, job.references, *large)
        except (ValueError, TypeError, RuntimeError, OverflowError) as error:
            what = "" if job.place.runtime_env is None else " with its runtime_env"
            raise ConfigurationError(
                f"{node.path}: Ray does not take {job.place}{what}: {error}"
            ) from error

    async def _wait(self, over: asyncio.Future[TaskResult], lost: asyncio.Future[str]) -> None:
        """Wait for the end; as long as the task has not begun, see whether it ever can."""
        if not self._cluster.machines.is_known(self._job.place):
            self._check_machines()
        ends: set[asyncio.Future[Any]] = {over, lost}
        while True:
            waits = ends if self._check is None else {*ends, self._check}
            timeout = CHECK_AFTER if self._job.host is None else None
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
        """Wait for the end of what was cancelled, and take what it still had to report."""
        ends: set[asyncio.Future[Any]] = {over, lost}
        grace = self._job.place.grace
        done, _ = await asyncio.wait(ends, timeout=grace, return_when="FIRST_COMPLETED")
        if not done:
            logger.warning(
                "%s has not ended %g s after it was cancelled, so its Ray worker is ended by force;"
                " if it needs longer, say Ray(grace=...)",
                self._node.path,
                grace,
            )
            kill()
            done, _ = await asyncio.wait(ends, timeout=FORCE_TIMEOUT, return_when="FIRST_COMPLETED")
            if not done:  # its body keeps Python's own lock, or the system has stopped it
                logger.error(
                    "%s: Ray cannot end its worker, which goes on and keeps what it holds;"
                    " it is not waited for any more",
                    self._node.path,
                )
        if over.done() and over.exception() is None:
            await self._take(over.result())

    async def _take(self, result: TaskResult) -> Outcome:
        """Take what was reported before, then what is left; return how the job has ended."""
        received, pending, last = result
        await self._call.wait_for_reports(received)
        if pending is not None:
            self._call.take(received + 1, pending)
        self._call.check()
        outcome = self._job.load(self._node, last)
        assert outcome is not None
        return outcome

    async def _outcome(self, over: asyncio.Future[TaskResult]) -> Any:
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


_tasks: WeakKeyDictionary[Ray, dict[str, Callable[..., Any]]] = WeakKeyDictionary()


@cache
def _task() -> Any:
    return import_ray().remote(max_retries=0)(run_task)
