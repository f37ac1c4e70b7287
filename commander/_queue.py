"""Where jobs wait for their turn, and for a slot if their number is limited (contract T9).

Without a limit nobody waits: a job starts when it is put. Only where one of higher priority is put
in the same turn of the loop, those that have not begun are called back and wait behind it.
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

# How often, in seconds, a full queue looks whether a body waits for the tree by now.
LOOK = 0.02
# How long, in seconds, nothing at all must move before it lends a slot that may be waited for.
PATIENCE = 0.5
# The same if it stands at a lock, event or queue while some task may go on and end that.
RESIGN = 10.0
# When all has been still for so long it looks no more.
DAY = 86_400.0


def _number(entry: Entry) -> int:
    return entry[0].id


class Queue:
    """Starts jobs in the order in which they were put, those of higher priority first.

    With a `limit`, at most that many jobs hold a slot. A job lends its slot while its body waits
    for the tree, and takes one again, before any new start, when that wait is over.
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
        self.loop = tree.loop
        # The last job that started when it was put: if it has begun, so have those before it.
        self._last: ref[Record] | None = None
        self._limited = tree.max_concurrency is not None
        # How many more jobs may hold a slot; below 0 for a moment after `take`.
        self.free = tree.max_concurrency or 0
        # Waiting jobs by priority; no lane is empty, and `_priorities` holds their keys, sorted.
        self._lanes: dict[int, deque[Entry]] = {}
        self._priorities: list[int] = []
        # Places that are lent and wanted again, first come first served; empty while one is free.
        self.resuming: dict[Slot, None] = {}
        self._filling = False
        # Places that are held by a suspended body that may wait for the tree, unseen.
        self._suspects: dict[Slot, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        # Whether anything has moved since the last look, and when that was.
        self._stirred = False
        self._stirred_at = 0.0
        # When a slot last changed hands.
        self._changed_at = 0.0

    def put(self, job: Record, priority: int) -> None:
        """Let `job` wait for its turn, in a copy of the current context."""
        job.context = context = copy_context()  # in which it also ends, if it is cancelled here
        if priority:
            job.priority = priority
        if self._limited or self._lanes:
            self._append(priority, (job, context))
            return
        last = None if self._last is None else self._last()
        if last is not None and last.state == "pending" and last.priority < priority:
            self._append(priority, (job, context))
            # All that have started and not begun wait in the lanes too, as if they had been put
            # there; their tasks find out that they are no longer the jobs' own. It looks at the
            # whole tree, at most once in a turn of the loop.
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
        """Let a job that is tried again wait where it would, had it not started yet."""
        job.context = context  # as in `put`; until now it was the last attempt's
        self._append(job.priority, (job, context))

    def _append(self, priority: int, entry: Entry) -> None:
        lane = self._lanes.get(priority)
        if lane is None:
            lane = self._lanes[priority] = deque()
            insort(self._priorities, priority)
        if lane and lane[-1][0].id > entry[0].id:
            insort(lane, entry, key=_number)  # in the order in which the jobs were put
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
                continue  # cancelled while it waited: its end is under way
            if self._limited:
                self.free -= 1
                job.slot = Slot(self, job)
                job.is_special = True
            self._tree.spawn(job, context)

    # --- slots that are lent and taken again

    def lend(self, slot: Slot) -> None:
        """Give the slot of `slot` to others, or stop asking for it."""
        if slot.is_held:
            slot.is_held = False
            self.forget(slot)
            self._give()
        else:
            self.resuming.pop(slot, None)
            slot.wake()

    def ask(self, slot: Slot) -> None:
        """Let `slot` have a slot again, as soon as one is free."""
        if self.free > 0:
            self.take(slot)
        else:
            self.resuming[slot] = None
            self._watch()

    def take(self, slot: Slot) -> None:
        """Let `slot` have a slot at once, above the limit if none is free."""
        self.resuming.pop(slot, None)
        slot.is_held = True
        self.free -= 1
        self._change()
        slot.wake()
        slot.doubt()

    def leave(self, slot: Slot) -> None:
        """Take the slot of `slot` for good."""
        self.resuming.pop(slot, None)
        if slot.is_held:
            self._give()
        slot.is_held = True  # so that nobody asks for it again

    def _give(self) -> None:
        self.free += 1
        self._change()
        while self.resuming and self.free > 0:
            self.take(next(iter(self.resuming)))
        if self._lanes:
            self._fill_soon()

    # --- slots that should be lent, though nothing says so

    def suspect(self, slot: Slot) -> None:
        """Look at `slot` now and then while others want a slot, until it is forgotten."""
        self._suspects[slot] = None
        self._watch()

    def forget(self, slot: Slot) -> None:
        """Look at `slot` no more."""
        self._suspects.pop(slot, None)

    def _change(self) -> None:
        self._stirred = True
        self._changed_at = self.loop.time()

    def stir(self) -> None:
        """Note that something has moved: a body that holds a slot, or another wait has begun."""
        self._stirred = True
        if self._suspects:
            self._watch()

    def _watch(self, delay: float = LOOK) -> None:
        full = self.free <= 0 and (self._lanes or self.resuming)
        if full and self._suspects and self._timer is None:
            # A large number of them is looked at less often, at a small part of the time.
            self._timer = self.loop.call_later(delay + len(self._suspects) / 1000, self._look)

    def _look(self) -> None:
        self._timer = None
        now = self.loop.time()
        if self._stirred:
            self._stirred = False
            self._stirred_at = now
        for slot in tuple(self._suspects):
            slot.look()
        still = now - self._stirred_at
        # Lend one slot whose body may wait for the tree, if things have been still for so long.
        # Nobody says that it does; so it is one at a time.
        suspects = tuple(self._suspects)
        lent = still >= PATIENCE and any(map(Slot.lend_unseen, suspects))
        if not lent:
            moves = still < PATIENCE or any(map(goes_on, asyncio.all_tasks(self.loop)))
            patience = RESIGN if moves else PATIENCE
            stuck = now - self._changed_at >= patience
            lent = stuck and any(slot.lend_stuck(patience) for slot in suspects)
        if lent or min(still, now - self._changed_at) < PATIENCE:
            self._watch()
        elif still < DAY and self._suspects:
            self._watch(min(still, now - self._changed_at))
