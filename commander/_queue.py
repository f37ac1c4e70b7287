"""Where jobs wait for their turn, and for a place if their number is limited (contract T9)."""

from __future__ import annotations

import asyncio
import sys
from bisect import insort
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from ._node import Node

__all__ = ["Queue"]

Entry: TypeAlias = "tuple[Node[Any], Context]"


class Queue:
    """Starts jobs in the order in which they were put, those of higher priority first.

    With a `limit`, at most that many jobs hold a place. A job gives its place up while it waits
    for a node, and takes one again, before any new start, when that wait is over.
    """

    __slots__ = ("_filling", "_lanes", "_loop", "_priorities", "_resuming", "_spawn", "free")

    def __init__(
        self,
        limit: int | None,
        loop: asyncio.AbstractEventLoop,
        spawn: Callable[[Node[Any], Context], None],
    ) -> None:
        self._loop = loop
        self._spawn = spawn
        # How many more jobs may hold a place; below 0 for a moment after `resume_now`.
        self.free = limit
        # Waiting jobs by priority; no lane is empty, and `_priorities` holds their keys, sorted.
        self._lanes: dict[int, deque[Entry]] = {}
        self._priorities: list[int] = []
        # Jobs whose wait is over, first come first served.
        self._resuming: deque[asyncio.Future[None]] = deque()
        self._filling = False

    def put(self, job: Node[Any], priority: int) -> None:
        """Let `job` wait for its turn, in a copy of the current context."""
        self._append(priority, (job, copy_context()))

    def put_first(self, job: Node[Any], context: Context) -> None:
        """Let a job that is tried again wait ahead of all that have not started."""
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

    def pause(self, job: Node[Any]) -> None:
        """Lend out the place of `job`, which begins to wait for a node."""
        job._n_waits += 1
        if job._n_waits == 1:
            self._give()

    async def resume(self, job: Node[Any]) -> None:
        """Take a place again after a wait, before any new start.

        Cancelled meanwhile, the job goes on with a place above the limit: its clean-up must not
        wait for others.
        """
        assert self.free is not None
        if job._n_waits > 1 or not self._lent_to(job) or (self.free > 0 and not self._resuming):
            self.resume_now(job)
            return
        future: asyncio.Future[None] = self._loop.create_future()
        self._resuming.append(future)
        try:
            await future  # `_give` has set a place aside for whom it wakes
        except asyncio.CancelledError:
            self._leave(future)
            self.resume_now(job)
            raise
        job._n_waits -= 1
        if job._n_waits or not self._lent_to(job):
            self._give()  # it waits again, or its body has ended: the place is not needed

    def resume_now(self, job: Node[Any]) -> None:
        """Take a place again at once, above the limit if need be."""
        assert self.free is not None
        job._n_waits -= 1
        if not job._n_waits and self._lent_to(job):
            self.free -= 1

    def _lent_to(self, job: Node[Any]) -> bool:
        return job._n_place is self

    def _leave(self, future: asyncio.Future[None]) -> None:
        if future.done() and not future.cancelled():
            self._give()
        elif future in self._resuming:
            self._resuming.remove(future)

    def _give(self) -> None:
        assert self.free is not None
        self.free += 1
        while self._resuming and self.free > 0:
            future = self._resuming.popleft()
            if not future.done():
                self.free -= 1
                future.set_result(None)
                return
        if self._lanes:
            self._fill_soon()
