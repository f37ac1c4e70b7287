"""Home's end: the node of a job that runs on a Ray cluster."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from ..commander import Node
from ..commander.errors import ConfigurationError, WorkerLost
from ..commander.waiting import outlast
from ._elsewhere import Elsewhere, ended, scope_of
from ._parcel import load_report, pack, refuse_secrets
from ._ray import LOOK_AGAIN, Cluster, as_lost, as_refused, aside, join, load
from ._report import End, Order, Report, Rest, Stand
from ._seat import Call, seat_of
from ._worker import awaiting, work

if TYPE_CHECKING:
    from ._ray import Ray

__all__ = ["Sent"]

T = TypeVar("T")


class Sent(Elsewhere):
    """The body of a job that was put on Ray."""

    def __init__(self, place: Ray, job: Node[Any]) -> None:
        load()
        refuse_secrets_in(place)
        super().__init__()
        self.place = place
        self._parcel = pack(job)

    def explain(self) -> str:
        """Say where the body is, or what it waits for."""
        if self.host is None:
            return f"waits for a Ray worker ({self.place.told()})"
        return f"in the Ray worker {self.pid} on {self.host}"

    async def run(self, node: Node[Any]) -> Any:
        """Run the job once on the cluster; cancelled, wait until it is over there."""
        self.begin(node)
        cluster = await join(self.place.address)
        seat = await seat_of(node.commander, cluster)
        try:
            async with Call(node, seat, lambda report: self.hear(node, report)) as call:
                return await _Task(self, node, cluster, call).outcome()
        finally:
            self.clear()

    def hear(self, node: Node[Any], report: bytes) -> End | None:
        """Take a report in; return how the job has ended, if it tells that."""
        loaded: Report = load_report(report)
        self.take(node, loaded)
        return loaded.end

    def order(self, node: Node[Any], call: Call) -> bytes:
        """Return what the worker is told."""
        scope = scope_of()
        said = None if scope is None else (scope.limit, scope.left)
        return pickle.dumps(Order(self._parcel, Stand.of(node, call), said))


class _Task:
    """One attempt: a Ray task, whose value is what it has not told before it ended."""

    def __init__(self, sent: Sent, node: Node[Any], cluster: Cluster, call: Call) -> None:
        self._sent = sent
        self._node = node
        self._cluster = cluster
        self._call = call
        self._loop = asyncio.get_running_loop()
        # A look at the machines that is under way.
        self._check: asyncio.Future[None] | None = None
        self._lost: asyncio.Future[str] = self._loop.create_future()

    async def outcome(self) -> Any:
        """Run the task; give its result or raise its failure, once it is over."""
        head = self._cluster.head
        interrupted = await self._start()
        watch = head.watch(self._tell_lost)
        over: asyncio.Future[Rest] = asyncio.wrap_future(self._ref.future())
        try:
            if interrupted is not None:
                raise interrupted
            with awaiting(self._ref):
                await self._watch(over)
        except BaseException:
            if self._cluster.usable:
                self._cluster.ray.cancel(self._ref, recursive=False)
                await outlast(asyncio.ensure_future(self._last_words(over)))
            raise
        finally:
            head.unwatch(watch)
            over.cancel()
            if self._check is not None:
                self._check.cancel()
        return await self._result(over)

    async def _last_words(self, over: asyncio.Future[Rest]) -> None:
        """Wait for the end of what was cancelled, and hear what it still had to tell."""
        await asyncio.wait((over, self._lost), return_when="FIRST_COMPLETED")
        if over.done() and over.exception() is None:
            await self._told(over.result())

    async def _start(self) -> asyncio.CancelledError | None:
        """Submit the task, in a thread where Ray holds its caller up; return a cancel meanwhile."""
        place, order = self._sent.place, self._sent.order(self._node, self._call)
        if self._cluster.ready and place.runtime_env is None:
            self._ref = _submit(place, self._node, order)
            return None
        submitting = asyncio.wrap_future(aside(_submit, place, self._node, order))
        interrupted = await outlast(submitting)
        self._ref = submitting.result()
        self._cluster.ready = True
        return interrupted

    def _tell_lost(self, why: str) -> None:
        """Give the task up, in the thread that has seen the head go; its worker may still run."""

        def lose() -> None:
            if not self._lost.done():
                self._lost.set_result(why)

        with suppress(RuntimeError):  # the loop has been closed
            self._loop.call_soon_threadsafe(lose)
        threading.Thread(target=self._kill, name="ray-kill", daemon=True).start()

    def _kill(self) -> None:
        with suppress(Exception):  # without a head, Ray may not be able to
            self._cluster.ray.cancel(self._ref, force=True, recursive=False)

    async def _watch(self, over: asyncio.Future[Rest]) -> None:
        """Wait for the end; as long as the task has not begun, see whether it ever can."""
        if self._cluster.unknown(self._sent.place):
            self._look()
        ends: set[asyncio.Future[Any]] = {over, self._lost}
        while True:
            waits = ends if self._check is None else {*ends, self._check}
            patience = LOOK_AGAIN if self._sent.host is None else None
            await asyncio.wait(waits, timeout=patience, return_when="FIRST_COMPLETED")
            if over.done() or self._lost.done():
                return
            if self._check is not None and self._check.done():
                self._check.result()
                self._check = None
            elif self._check is None and self._sent.host is None:
                self._look()

    def _look(self) -> None:
        self._check = asyncio.wrap_future(self._cluster.look(self._sent.place))

    # --- the end

    async def _result(self, over: asyncio.Future[Rest]) -> Any:
        if not over.done() or over.cancelled():
            raise WorkerLost(self._node.path, self._lost.result())
        if (error := over.exception()) is not None:
            path = self._node.path
            raise as_lost(error, path) or as_refused(error, path) or error
        end = await self._told(over.result())
        if end[0] == "refused":
            raise ConfigurationError(_unknown(type(self._node).__name__, self._sent.host, end[1]))
        return ended(self._node, end)

    async def _told(self, rest: Rest) -> End:
        """Hear what was told before, then what is left; return how the job has ended."""
        heard, unheard, last = rest
        await self._call.caught_up(heard)
        if unheard is not None:
            self._call.hear(heard + 1, unheard)
        self._call.check()
        end = self._sent.hear(self._node, last)
        assert end is not None
        return end


def _unknown(kind: str, host: str | None, why: str) -> str:
    return (
        f"{kind} cannot be made in the Ray worker on {host}: {why}. A worker needs the module of "
        "the job's class and what that imports: install them on all machines, or send them with "
        "Ray(runtime_env={'working_dir': '.', 'pip': [...]})"
    )


def refuse_secrets_in(place: Ray) -> None:
    """Raise `ConfigurationError` if the place's `runtime_env` holds a key."""
    if place.runtime_env is not None:
        try:
            refuse_secrets(repr(place.runtime_env).encode())
        except ConfigurationError as error:
            raise ConfigurationError(f"the runtime_env cannot be sent: {error}") from None


# --- Ray's own


def _submit(place: Ray, node: Node[Any], order: bytes) -> Any:
    try:
        return _remote(place, node)(order)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ConfigurationError(f"{node.path}: Ray does not take {place}: {error}") from error


_remotes: WeakKeyDictionary[Ray, dict[str, Callable[[bytes], Any]]] = WeakKeyDictionary()


def _remote(place: Ray, node: Node[Any]) -> Callable[[bytes], Any]:
    """Return what starts the Ray task of a node at `place`."""
    known = _remotes.setdefault(place, {})
    name = type(node).__name__
    if name not in known:
        task = _task().options(name=f"anabranch:{name}", **place.options())
        known[name] = task.remote
    return known[name]


@cache
def _task() -> Any:
    # Nothing runs twice by itself: whether a job may be tried again is for its `retry` to say.
    return load().remote(max_retries=0)(work)
