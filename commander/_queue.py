"""Where jobs wait for their turn, and for a place if their number is limited (contract T9).

Without a limit nobody waits: a job starts when it is put. Only where one of higher priority is put
in the same turn of the loop, those that have not begun are called back and wait behind it.
"""

from __future__ import annotations

import asyncio
import sys
from bisect import insort
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import ref

if TYPE_CHECKING:
    from ._node import Node

__all__ = ["Loan", "Queue"]

Entry: TypeAlias = "tuple[Node[Any], Context]"


class Queue:
    """Starts jobs in the order in which they were put, those of higher priority first.

    With a `limit`, at most that many jobs hold a place. A job gives its place up while it waits
    for a node, and takes one again, before any new start, when that wait is over.
    """

    __slots__ = (
        "_filling",
        "_lanes",
        "_last",
        "_loop",
        "_priorities",
        "_resuming",
        "_root",
        "_spawn",
        "free",
    )

    def __init__(
        self,
        limit: int | None,
        root: Node[Any],
        loop: asyncio.AbstractEventLoop,
        spawn: Callable[[Node[Any], Context], None],
    ) -> None:
        self._root = root
        self._loop = loop
        self._spawn = spawn
        # The last job that started when it was put: if it has begun, so have those before it.
        self._last: ref[Node[Any]] | None = None
        # How many more jobs may hold a place; below 0 for a moment after `take_now`.
        self.free = limit
        # Waiting jobs by priority; no lane is empty, and `_priorities` holds their keys, sorted.
        self._lanes: dict[int, deque[Entry]] = {}
        self._priorities: list[int] = []
        # Jobs whose wait is over, first come first served, with what each now waits for.
        self._resuming: deque[tuple[asyncio.Future[None], Node[Any]]] = deque()
        self._filling = False

    def put(self, job: Node[Any], priority: int) -> None:
        """Let `job` wait for its turn, in a copy of the current context."""
        job._n_context = context = copy_context()  # in which it also ends, if it is cancelled here
        if priority:
            job._n_priority = priority
        if self.free is not None or self._lanes:
            self._append(priority, (job, context))
        elif (last := self._unbegun()) is not None and last._n_priority < priority:
            self._append(priority, (job, context))
            self._call_back()
        else:
            self._last = ref(job)
            self._spawn(job, context)

    def _unbegun(self) -> Node[Any] | None:
        last = None if self._last is None else self._last()
        return last if last is not None and last._n_state == "pending" else None

    def _call_back(self) -> None:
        """Let all that have started and not begun wait in the lanes, as if they had been put there.

        Their tasks find out that they are no longer the jobs' own. It looks at the whole tree, at
        most once in a turn of the loop.
        """
        called_back: list[Node[Any]] = []
        below = [self._root]
        while below:
            node = below.pop()
            below += node.children
            unbegun = node._n_state == "pending" and node._n_task is not None
            if node._n_queued and unbegun and node._n_cancel is None:
                called_back.append(node)
        for job in sorted(called_back, key=lambda job: job._n_id):
            job._n_special = True
            job._n_task = None
            assert job._n_context is not None
            self._append(job._n_priority, (job, job._n_context))

    def put_first(self, job: Node[Any], context: Context) -> None:
        """Let a job that is tried again wait ahead of all that have not started."""
        job._n_context = context  # as in `put`; until now it was the last attempt's
        self._append(sys.maxsize, (job, context))

    def _append(self, priority: int, entry: Entry) -> None:
        lane = self._lanes.get(priority)
        if lane is None:
            lane = self._lanes[priority] = deque()
            insort(self._priorities, priority)
        lane.append(entry)
        self._fill_soon()

    def _fill_soon(self) -> None:
        if not self._filling:
            self._filling = True
            self._loop.call_soon(self._fill)

    def _fill(self) -> None:
        self._filling = False
        while self._lanes and (self.free is None or (self.free > 0 and not self._resuming)):
            job, context = self._pop()
            if job._n_state != "pending" or job._n_task is not None:
                continue  # cancelled while it waited: its end is under way
            if self.free is not None:
                self.free -= 1
                job._n_place = self
            self._spawn(job, context)

    def _pop(self) -> Entry:
        priority = self._priorities[-1]
        lane = self._lanes[priority]
        entry = lane.popleft()
        if not lane:
            del self._lanes[self._priorities.pop()]
        return entry

    def release(self, job: Node[Any]) -> None:
        """Take the place of a job whose body has ended."""
        job._n_place = None
        if not job._n_waits:
            self._give()

    def lend(self, job: Node[Any]) -> Loan:
        """Lend out the place of `job`, which begins to wait; return the future of that wait."""
        job._n_waits += 1
        if job._n_waits == 1:
            self._give()
        return Loan(self, job, self._loop)

    def end_wait(self, job: Node[Any]) -> asyncio.Future[None] | None:
        """Set a place aside for a job whose wait is over; return a future of it if none is free."""
        assert self.free is not None
        if job._n_waits > 1 or not self._lent_to(job) or (self.free > 0 and not self._resuming):
            self._take(job)
            return None
        place: asyncio.Future[None] = self._loop.create_future()
        self._resuming.append((place, job))
        return place

    def take_now(self, job: Node[Any], place: asyncio.Future[None] | None = None) -> None:
        """Take a place at once, above the limit if need be, and wait for `place` no more."""
        if place is not None and (place, job) in self._resuming:
            self._resuming.remove((place, job))
        self._take(job)

    def _take(self, job: Node[Any]) -> None:
        assert self.free is not None
        job._n_waits -= 1
        if not job._n_waits and self._lent_to(job):
            self.free -= 1  # else it waits in another task too, or its body has ended

    def _lent_to(self, job: Node[Any]) -> bool:
        return job._n_place is self

    def _give(self) -> None:
        assert self.free is not None
        self.free += 1
        while self._resuming and self.free > 0:
            place, job = self._resuming.popleft()
            if not place.cancelled():  # else the job is cancelled, and takes its place by itself
                self._take(job)
                place.set_result(None)
        if self._lanes:
            self._fill_soon()


class Loan(asyncio.Future[None]):
    """A job's wait for a node, during which its place is lent out.

    The place is asked for in the moment in which the wait ends and not when the job next runs: a
    new start could come between the two.
    """

    def __init__(self, queue: Queue, job: Node[Any], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._queue = queue
        self._job = job
        # What is still to be waited for when the wait itself is over.
        self.place: asyncio.Future[None] | None = None

    def set_result(self, result: None) -> None:
        """End the wait."""
        self.place = self._queue.end_wait(self._job)
        super().set_result(result)

    def take_back(self) -> None:
        """Have the place again at once, for a job that is cancelled in this wait.

        It may be above the limit: a clean-up must not wait for others.
        """
        if not self.done() or self.cancelled():
            self._queue.take_now(self._job)
        elif self.place is not None and (not self.place.done() or self.place.cancelled()):
            self._queue.take_now(self._job, self.place)
