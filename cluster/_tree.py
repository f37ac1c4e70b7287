"""The tree in a worker: a commander that drives one job and gathers what home is told."""

from __future__ import annotations

import asyncio
import os
import pickle
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..commander import Commander, Node
from ..commander._cancel import cancel_subtrees
from ..commander._events import Tap
from ..commander._node import add_waiter
from ._parcel import dump, dump_error, unpack
from ._ray import this_host
from ._report import End, Happened, Order, Report, Standing, first_id

if TYPE_CHECKING:
    from ..agents._scope import Scope
    from ._worker import Line

__all__ = ["Tree"]

# What happens is reported so many seconds later at most, unless home is slow to take reports.
BREATH = 0.01
# After so many seconds home is told that the job has begun, if there is nothing else to tell.
BEACON = 0.02
# As many events are kept for a report that has to wait; then the oldest are dropped and counted.
MOST = 10_000


class Tree:
    """One job of another machine's tree; all but `__init__` runs on the worker's loop."""

    def __init__(self, order: Order, line: Line) -> None:
        self._order = order
        self._line = line
        self._commander = Outpost(order)
        self._cancelled = False
        self._at_home = (0, order.node_id)
        self._tap: Tap | None = None
        self._events: list[Happened] = []
        # Whether events were lost, so that home needs to know again what there is.
        self._gap = False
        self._timer: asyncio.TimerHandle | None = None
        # When home is told that the job has begun; None once it has been told anything.
        self._beacon: float | None = None
        self._began = 0.0
        self._scope: Scope | None = None
        self._left = max(1, order.left) if order.left is not None else 0

    def start(self) -> None:
        """Begin, in a task of its own."""
        self._task = asyncio.get_running_loop().create_task(self._main())

    def cancel(self) -> None:
        """Cancel everything: home has told so."""
        self._cancelled = True
        if self._commander.state in ("running", "joining"):
            self._commander._n_open = False
            cancel_subtrees(self._commander.children, "cancelled from home")

    async def _main(self) -> None:
        try:
            end = await self._drive()
        except BaseException as error:  # noqa: BLE001 - nobody else is there to tell of it
            end = ("failed", dump_error(error, self._where()))
        if self._timer is not None:
            self._timer.cancel()
        self._line.put(self._report(end))
        self._sweep()
        self._line.end()

    async def _drive(self) -> End:
        with self._conversation():
            return await self._drive_inside()

    @contextmanager
    def _conversation(self) -> Generator[None, None, None]:
        """Open the conversation in which the job was put, if it was put in one."""
        if self._order.left is None:
            yield
            return
        from ..agents._scope import opened

        with opened(max(1, self._order.left)) as (self._scope, _):
            yield

    async def _drive_inside(self) -> End:
        async with self._commander as commander:
            self._began = commander._n_clock()
            self._beacon = commander._n_loop.time() + BEACON
            self._tap = Tap(commander, MOST, self._told)
            job = self._put(commander)
            if isinstance(job, tuple):
                return job
        return self._end(job)

    def _put(self, commander: Outpost) -> Node[Any] | End:
        try:
            job = unpack(self._order.parcel)
        except Exception as error:  # noqa: BLE001 - whatever importing a module raises
            return ("refused", f"{type(error).__name__}: {error}")
        commander.put_root(job)
        if self._cancelled:
            self.cancel()
        return job

    def _end(self, job: Node[Any]) -> End:
        try:
            if self._commander._n_exit is not None:
                return ("exit", dump(self._commander._n_exit[0]))
            if job.state == "completed":
                return ("completed", dump(job.result))
        except Exception as error:  # noqa: BLE001 - whatever pickling raises
            return ("failed", dump_error(_unsendable(job, error), self._where()))
        if job.state == "cancelled":
            return ("cancelled", job._n_cancel or "")
        assert job.error is not None
        return ("failed", dump_error(job.error, self._where()))

    def _where(self) -> str:
        return f"anabranch: in the Ray worker {os.getpid()} on {this_host()}"

    def _sweep(self) -> None:
        """Cancel what bodies have left behind on the loop, as the end of a program would."""
        for task in asyncio.all_tasks():
            if task is not self._task:
                task.cancel()

    # --- reports

    def _told(self) -> None:
        """See to it that what has happened is reported soon."""
        loop = self._commander._n_loop
        if self._timer is None or self._timer.when() > loop.time() + BREATH:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_later(BREATH, self._flush)

    def _flush(self) -> None:
        self._timer = None
        if self._line.full:
            self._line.when_drained(self._flush)
            return
        self._gather()
        loop = self._commander._n_loop
        if self._events or (self._beacon is not None and loop.time() >= self._beacon):
            self._beacon = None
            self._line.put(self._report(None))
        elif self._beacon is not None:
            self._timer = loop.call_at(self._beacon, self._flush)

    def _gather(self) -> None:
        for event in [] if self._tap is None else self._tap.take():
            if event.kind == "missed":
                self._gap = True
            if event.node_id in self._at_home and event.kind in _AT_HOME:
                continue  # home has seen to it
            about = (event.kind, event.node_id, event.parent_id, event.name)
            self._events.append((*about, event.clock, event.data))

    def _report(self, end: End | None) -> bytes:
        self._gather()
        events, self._events = self._events, []
        commander = self._commander
        nodes = commander.standing() if self._gap else None
        left, self._left = self._left, 0 if self._scope is None else self._scope.left
        self._gap = False
        report = Report(
            this_host(),
            os.getpid(),
            commander._n_origin.epoch,
            self._began,
            commander._n_clock(),
            events,
            commander.take_spent(),
            left - self._left,
            nodes,
            end,
        )
        if not events and not report.spent:
            return pickle.dumps(report)
        try:
            return dump(report)
        except Exception:  # noqa: BLE001 - whatever pickling the data of an event raises
            return dump(report._replace(events=[_sendable(event) for event in events]))


_AT_HOME = frozenset(
    ("put", "started", "joining", "completed", "failed", "cancelled", "retried", "placed")
)


def _sendable(event: Happened) -> Happened:
    try:
        dump(event[-1])
    except Exception:  # noqa: BLE001 - as above
        return (*event[:-1], repr(event[-1]))
    return event


def _unsendable(job: Node[Any], error: Exception) -> TypeError:
    return TypeError(
        f"{job.path} returned a {type(job.result).__name__} that cannot be sent home: {error}"
    )


class Outpost(Commander, internal=True):
    """A commander whose paths and numbers are those of the tree at home."""

    def __init__(self, order: Order) -> None:
        super().__init__(slow_after=order.slow_after)
        self.limits = order.limits
        self._n_name = order.parent
        self._n_order = order
        self._n_root: Node[Any] | None = None

    def put_root(self, job: Node[Any]) -> None:
        """Put the job that came from home, under the number that it has there."""
        self._n_root = job
        self._n_count = self._n_order.node_id - 1
        self._n_put(job, policy=self._n_order.policy)
        self._n_count = first_id(self._n_order.node_id)
        add_waiter(job)  # the outcome is home's

    def take_spent(self) -> dict[str, Any]:
        """Return what was charged since the last time."""
        spent, self._n_spent = self._n_spent or {}, None
        return spent

    def usage(self, node: Node[Any] | None = None) -> dict[str, Any]:
        """Return what `node`, or the job from home, and all below it have spent so far."""
        return super().usage(node or self._n_root)

    def standing(self) -> list[Standing]:
        """Return all unfinished nodes but the commander and the job itself."""
        own = (self.node_id, self._n_order.node_id)
        return [
            (node.node_id, node.parent_id, node.name, node.state)
            for node in self.tree()
            if node.node_id not in own
        ]
