"""The queue of a commander: jobs wait in it for a slot under `max_concurrency` (T9).

Without a limit a job starts when it is put. If a job of higher priority follows in the same turn of
the loop, the queue calls back the jobs that have not begun, and they wait behind it.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections import deque
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, TypeAlias
from weakref import ref

from ._record import Record
from ._slot import Slot
from ._task_waits import goes_on

if TYPE_CHECKING:
    from ._commander import Tree

__all__ = ["Queue"]

Entry: TypeAlias = "tuple[Record, Context]"

# The period of a full queue's checks for suspended bodies that have begun to wait for the tree. It
# must poll, because a body may await a user's future that a child of the job completes.
CHECK_INTERVAL_SECONDS = 0.02
# After this time without progress of any job, the queue lends the slot of a body that perhaps waits
# for the tree. With a shorter time, bodies that wait for a server would lose their slots.
STANDSTILL_SECONDS = 0.5
# The same if the body waits at a lock, an event or a queue, and some task could still release it.
LOCK_STANDSTILL_SECONDS = 10.0
# After a standstill of this length, the checks end until something moves.
LAST_CHECK_SECONDS = 86_400.0


def _number(entry: Entry) -> int:
    return entry[0].id


class Queue:
    """Starts jobs by priority, highest first, then in the order of their puts.

    Under a limit, each running job holds a slot. A job lends its slot while its body waits for the
    tree; otherwise jobs that wait for their children would block these for ever. When the wait
    ends, the job gets a slot before any new job starts. So the number of begun jobs stays bounded.
    """

    __slots__ = (
        "_changed_at",
        "_filling",
        "_lanes",
        "_last",
        "_limited",
        "_priorities",
        "_stirred",
        "_stirred_at",
        "_suspects",
        "_timer",
        "_tree",
        "free",
        "loop",
        "resuming",
    )

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self.loop: asyncio.AbstractEventLoop = tree.loop
        # The last job that started when it was put. If it has begun, all before it have.
        self._last: ref[Record] | None = None
        self._limited = tree.max_concurrency is not None
        # How many more jobs may hold a slot. Below 0 after `take` for a cancelled job.
        self.free: int = tree.max_concurrency or 0
        # Waiting jobs by priority. No lane is empty; `_priorities` has the keys, sorted.
        self._lanes: dict[int, deque[Entry]] = {}
        self._priorities: list[int] = []
        # Lent slots whose jobs want to continue, first come first served. Empty while one is free.
        self.resuming: dict[Slot, None] = {}
        self._filling = False
        # Slots held by suspended bodies that perhaps wait for the tree.
        self._suspects: dict[Slot, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        # Whether a body has moved since the last check, and the time of the last check that saw so.
        self._stirred = False
        self._stirred_at = 0.0
        # When a slot last changed hands.
        self._changed_at = 0.0

    def put(self, job: Record, priority: int) -> None:
        """Start `job` in its turn, in a copy of the current context."""
        job.context = context = copy_context()  # it also ends in it if it is cancelled in the queue
        if priority:
            job.priority = priority
        if self._limited or self._lanes:
            self._append(priority, (job, context))
            return
        last = None if self._last is None else self._last()
        if last is not None and last.state == "pending" and last.priority < priority:
            self._append(priority, (job, context))
            # Move all jobs that have a task and have not begun into the lanes. Their tasks end at
            # the first step, because they are not `record.task` any more. This walks the whole
            # tree, but at most once in a turn of the loop: after it the lanes are not empty.
            unbegun: list[Record] = []
            below = [self._tree.root]
            while below:
                record = below.pop()
                below += record.unfinished_children
                if (
                    record.node._node_is_queued
                    and record.state == "pending"
                    and record.task is not None
                ):
                    unbegun.append(record)
            for each in sorted(unbegun, key=lambda each: each.id):
                if each.cancel_reason is None and each.context is not None:
                    each.is_special = True
                    each.task = None
                    self._append(each.priority, (each, each.context))
        else:
            self._last = ref(job)
            self._tree.spawn(job, context)

    def put_again(self, job: Record, context: Context) -> None:
        """Queue a job for another attempt, at its place by the order of the puts."""
        job.context = context  # as in `put`; it had the last attempt's
        self._append(job.priority, (job, context))

    def _append(self, priority: int, entry: Entry) -> None:
        lane = self._lanes.get(priority)
        if lane is None:
            lane = self._lanes[priority] = deque()
            insort(self._priorities, priority)
        if lane and lane[-1][0].id > entry[0].id:
            insort(lane, entry, key=_number)  # a retry: ids give the order of the puts
        else:
            lane.append(entry)
        entry[0].state_since = self._tree.clock()
        self._fill_soon()
        self._watch()

    def _fill_soon(self) -> None:
        if not self._filling:
            self._filling = True
            self.loop.call_soon(self._fill)

    def _fill(self) -> None:
        self._filling = False
        while self._lanes and (self.free > 0 or not self._limited):
            lane = self._lanes[self._priorities[-1]]
            job, context = lane.popleft()
            if not lane:
                del self._lanes[self._priorities.pop()]
            if job.state != "pending" or job.task is not None or (job.is_special and job.is_ending):
                continue  # it was cancelled while it waited, and is ending
            if self._limited:
                self.free -= 1
                job.slot = Slot(self, job)
                job.is_special = True
            self._tree.spawn(job, context)

    # --- slots that are lent and resumed

    def lend(self, slot: Slot) -> None:
        """Free a held slot; for one that is not held, stop asking."""
        if slot.is_held:
            slot.is_held = False
            self.forget(slot)
            self._give()
        else:
            self.resuming.pop(slot, None)
            slot.wake()

    def ask(self, slot: Slot) -> None:
        """Let the slot be held again, as soon as the limit allows it."""
        if self.free > 0:
            self.take(slot)
        else:
            self.resuming[slot] = None
            self._watch()

    def take(self, slot: Slot) -> None:
        """Let the slot be held at once, also above the limit."""
        self.resuming.pop(slot, None)
        slot.is_held = True
        self.free -= 1
        self._change()
        slot.wake()
        slot.suspect()

    def leave(self, slot: Slot) -> None:
        """Free a slot whose body has ended."""
        self.resuming.pop(slot, None)
        if slot.is_held:
            self._give()
        # Waits of other tasks of the job may still end; they must not ask for this slot.
        slot.is_held = True

    def _give(self) -> None:
        self.free += 1
        self._change()
        while self.resuming and self.free > 0:
            self.take(next(iter(self.resuming)))
        if self._lanes:
            self._fill_soon()

    # --- slots of bodies that perhaps wait for the tree

    def suspect(self, slot: Slot) -> None:
        """Check `slot` at intervals while jobs wait for a slot, until `forget`."""
        self._suspects[slot] = None
        self._watch()

    def forget(self, slot: Slot) -> None:
        """Stop checking `slot`."""
        self._suspects.pop(slot, None)

    def _change(self) -> None:
        self._stirred = True
        self._changed_at = self.loop.time()

    def stir(self) -> None:
        """Note that a body with a slot continued, or that a wait began: jobs make progress."""
        self._stirred = True
        if self._suspects:
            self._watch()

    def _watch(self, delay: float = CHECK_INTERVAL_SECONDS) -> None:
        full = self.free <= 0 and (self._lanes or self.resuming)
        if full and self._suspects and self._timer is None:
            # The more suspects, the longer the pause, so that checks take a bounded share of time.
            self._timer = self.loop.call_later(delay + len(self._suspects) / 1000, self._check)

    def _check(self) -> None:
        self._timer = None
        now = self.loop.time()
        if self._stirred:
            self._stirred = False
            self._stirred_at = now
        for slot in tuple(self._suspects):
            slot.lend_if_waiting()
        still = now - self._stirred_at
        # After a standstill, lend one slot of a body that perhaps waits for the tree. Only one at a
        # time, because this may be wrong and exceeds the limit then.
        suspects = tuple(self._suspects)
        lent = still >= STANDSTILL_SECONDS and any(map(Slot.lend_unseen, suspects))
        if not lent:
            moves = still < STANDSTILL_SECONDS or any(map(goes_on, asyncio.all_tasks(self.loop)))
            seconds = LOCK_STANDSTILL_SECONDS if moves else STANDSTILL_SECONDS
            stuck = now - self._changed_at >= seconds
            lent = stuck and any(slot.lend_stuck(seconds) for slot in suspects)
        if lent or min(still, now - self._changed_at) < STANDSTILL_SECONDS:
            self._watch()
        elif still < LAST_CHECK_SECONDS and self._suspects:
            # The pause doubles each time.
            self._watch(min(still, now - self._changed_at))
