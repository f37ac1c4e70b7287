"""A request's turn in several limits: it starts in all of them at one moment, or in none.

Requests that need the same limits wait in one queue, in their order. Among queues that share a
limit, the oldest request starts first, unless another of its limits blocks it. Then younger ones
may pass, because the capacity that it cannot use yet is free for others.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import OrderedDict, defaultdict
from collections.abc import Hashable, Iterable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from heapq import heapify, heappop, heappush
from itertools import count
from threading import RLock
from typing import Literal, TypeAlias

from ..commander.errors import BudgetExceeded
from ..commander.private import running_loop
from ..commander.waiting import LocalFuture
from ..messages import Usage

__all__ = ["Limiter", "Turn"]

# Held during each change of any limits: a turn takes several at once, and event loops in several
# threads may share them.
LIMITS_LOCK = RLock()
_numbers = count()


class Limiter(ABC):
    """The interface of a set of limits to its turns. All methods are called under `LIMITS_LOCK`."""

    def __init__(self) -> None:
        # The waiting turns, by the limits that they need.
        self.queues: dict[Hashable, WaitQueue] = {}

    @property
    @abstractmethod
    def is_full(self) -> bool:
        """Whether nothing can start before a turn ends."""

    @abstractmethod
    def is_rate_limited(self, now: float) -> bool:
        """Return whether nothing may start because of a 429."""

    @abstractmethod
    def refusal(self, turn: Turn) -> BudgetExceeded | None:
        """Return the error if `turn` may never start, else None."""

    @abstractmethod
    def start_time(self, turn: Turn, now: float) -> float | None:
        """Return when `turn` may start: 0 is now, None is after another one ends."""

    @abstractmethod
    def start(self, turn: Turn, now: float) -> None:
        """Count `turn` as started."""

    @abstractmethod
    def end(self, turn: Turn) -> None:
        """Count `turn` as ended, with its usage."""

    @abstractmethod
    def end_orphans(self) -> None:
        """End the running turns whose event loop was closed."""


_NO_LIMITERS: frozenset[Limiter] = frozenset()


class Turn:
    """A request's turn in the limits, with its estimated usage and then its actual one.

    `most` is an upper bound, None if unknown. Set `usage` when it is known: without it the estimate
    `tokens` counts, and `Usage()` means that the model did not run. `was_sent`: it has started and
    its owner knows; otherwise it costs nothing.
    """

    def __init__(
        self,
        model: str,
        tokens: int = 0,
        limiters: tuple[Limiter, ...] = (),
        *,
        most: Usage | None = None,
        queue: Hashable = None,
        needs_remote_turn: bool = False,
    ) -> None:
        self.model = model
        self.tokens = tokens
        self.most = most
        self.usage: Usage | None = None
        self._limiters = limiters
        self._queue_key = queue  # identifies its queue
        self._number = next(_numbers)  # lower numbers are older
        # Whether limits of another process must give a turn too. Such a turn is "asking" when all
        # of `limiters` allow the start. It occupies nothing and stays in its queue until it is
        # "granted".
        self._needs_remote_turn = needs_remote_turn
        self._state: Literal["new", "waiting", "asking", "granted", "running", "over"] = "new"
        self.was_sent: bool = False
        self._refusal: BudgetExceeded | None = None
        # For the head of a queue: the limiters that block it, and when it may start if only time
        # does.
        self._blocked_by: AbstractSet[Limiter] = _NO_LIMITERS
        self._start_time: float | None = None
        # `_passed_in`: younger turns passed it in these. `_reserved_in`: no turn may pass it in
        # these again.
        self._passed_in: AbstractSet[Limiter] = _NO_LIMITERS
        self._reserved_in: AbstractSet[Limiter] = _NO_LIMITERS
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None

    @property
    def took(self) -> Usage:
        """The usage known so far."""
        if not self.was_sent:
            return Usage()
        return Usage(input_tokens=self.tokens) if self.usage is None else self.usage

    @property
    def is_orphaned(self) -> bool:
        """Whether its loop was closed, so that it will never continue or leave."""
        return self._loop.is_closed()

    def mark_unsent(self) -> None:
        """Undo the sending: it costs nothing and does not count for a rate."""
        self.was_sent = False
        self.usage = None

    async def wait_ready(self) -> None:
        """Wait until it has started or, with remote limits, until it may. Call `leave` later.

        Raises `BudgetExceeded`.
        """
        with LIMITS_LOCK:
            self._join_queue()
        while True:
            with LIMITS_LOCK:
                if self._state != "waiting":
                    break
                start_time = self._start_time
                local = start_time is None and not self._needs_remote_turn
                waiter = LocalFuture(loop=self._loop) if local else self._loop.create_future()
                self._waiter = waiter
            timer = (
                None if start_time is None else self._loop.call_at(start_time, self._check_again)
            )
            try:
                await waiter
            finally:
                if timer is not None:
                    timer.cancel()
        if self._refusal is not None:
            raise self._refusal
        self.was_sent = self._state == "running"

    def start_granted(self) -> bool:
        """Start it if it still may, after its remote turns have started; return whether it did."""
        with LIMITS_LOCK:
            if self._state == "asking":  # it was not refused in between
                self._state = "granted" if self._limiters else "running"
                _start_waiting(self._limiters)
            self.was_sent = self._state == "running"
            return self.was_sent

    def leave(self) -> None:
        """Leave its queue or end its turn, and let others start. Calling it twice is harmless."""
        with LIMITS_LOCK:
            before, self._state = self._state, "over"
            if before in {"new", "over"} or not self._limiters:
                return
            if before == "running":
                for limiter in self._limiters:
                    limiter.end(self)
            elif not self._leave_queue():  # it was not the head, so no turn waited for it
                return
            _start_waiting(self._limiters)

    def _join_queue(self) -> None:
        if (refusal := self._refusal or self._find_refusal()) is not None:
            raise refusal
        if not self._limiters:
            self._state = "asking" if self._needs_remote_turn else "running"
            return
        if self._state == "new":
            if not self._needs_remote_turn and not any(
                limiter.queues for limiter in self._limiters
            ):
                now = self._loop.time()
                if all(limiter.start_time(self, now) == 0 for limiter in self._limiters):
                    self._start(now)
                    return
            queue: WaitQueue = self._limiters[0].queues.get(self._queue_key) or OrderedDict()
            queue[self] = None
            for limiter in self._limiters:
                limiter.queues[self._queue_key] = queue
        self._state = "waiting"
        if any(limiter.is_full for limiter in self._limiters):
            for limiter in self._limiters:
                limiter.end_orphans()  # their owners never will, and they fill the limiter
        else:
            head = _head(self._limiters[0].queues[self._queue_key])
            if head is self or head.is_orphaned:
                _start_waiting(self._limiters)

    def _find_refusal(self) -> BudgetExceeded | None:
        for limiter in self._limiters:
            if (refusal := limiter.refusal(self)) is not None:
                return refusal
        return None

    def _start(self, now: float) -> None:
        self._state = "running"
        for limiter in self._limiters:
            limiter.start(self, now)

    def _leave_queue(self) -> bool:
        """Leave the queue; return whether it was its head."""
        queue = self._limiters[0].queues[self._queue_key]
        first = _head(queue) is self
        del queue[self]
        if not queue:
            for limiter in self._limiters:
                del limiter.queues[self._queue_key]
        return first

    def _check_again(self) -> None:
        with LIMITS_LOCK:
            self._start_time = None  # set again if the timer was a little early
            _start_waiting(self._limiters)

    def _wake(self) -> None:
        """Make its owner check the state."""
        waiter, self._waiter = self._waiter, None
        if waiter is None:
            return
        if running_loop() is self._loop:
            _resolve(waiter)
        else:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(_resolve, waiter)

    # --- called by `_start_waiting` for the head of a queue

    def _try_to_start(self, closed: set[Limiter], waiting: dict[Limiter, list[Turn]]) -> bool:
        """Start it or refuse it; return whether it has left its queue.

        No turn may pass the older ones in the limiters in `closed`. `waiting` are the older ones of
        each.
        """
        self._refusal = self._find_refusal()
        if self._refusal is not None or self.is_orphaned:
            self._leave_queue()
            self._state = "over"
            self._wake()
            return True
        now = self._loop.time()
        start_times = {
            limiter: None if limiter in closed else limiter.start_time(self, now)
            for limiter in self._limiters
        }
        self._blocked_by = {limiter for limiter, when in start_times.items() if when != 0}
        if not self._blocked_by and (not self._needs_remote_turn or self._state == "granted"):
            self._leave_queue()
            self._start(now)
            self._wake()
            for limiter in self._limiters:
                for turn in waiting[limiter]:
                    # `turn` is older and was passed here, while other limiters block it. If it was
                    # also passed in those because of this one, it might never find all of them free
                    # at once while both are busy. So it is not passed there again.
                    turn._reserved_in |= turn._passed_in & turn._blocked_by
                    turn._passed_in |= {limiter}
            return True
        if not self._blocked_by:
            self._state = "asking"
            self._wake()
        elif self._state != "asking":
            self._state = "waiting"
            # The time at which it may start without another event, if there is one.
            times = [when for when in start_times.values() if when != 0]
            start_time = None if None in times else max(when for when in times if when is not None)
            if start_time != self._start_time:
                self._start_time = start_time
                self._wake()
            if len(self._blocked_by) == 1:
                closed |= self._blocked_by
            if not any(limiter.is_rate_limited(now) for limiter in self._blocked_by):
                closed |= self._reserved_in
        for limiter in self._limiters:
            waiting[limiter].append(self)
        return False


WaitQueue: TypeAlias = "OrderedDict[Turn, None]"
"""The turns that wait for the same limiters, in order; never empty."""


def _start_waiting(changed: Iterable[Limiter]) -> None:
    """Start all turns that may start after a change of these limiters, the oldest first."""
    changed = {*changed}
    if not _can_anyone_move(changed):
        return
    heads = [(_head(queue)._number, queue) for queue in _connected_queues(changed)]
    heapify(heads)
    closed: set[Limiter] = set()
    waiting: dict[Limiter, list[Turn]] = defaultdict(list)
    while heads:
        _, queue = heappop(heads)
        turn = _head(queue)
        if turn._try_to_start(closed, waiting):
            if queue:
                heappush(heads, (_head(queue)._number, queue))
            changed.update(turn._limiters)
            if not _can_anyone_move(changed):
                return


def _can_anyone_move(changed: Iterable[Limiter]) -> bool:
    """Return whether a change of these limiters can let a turn start or be refused."""
    for limiter in changed:
        for queue in limiter.queues.values():
            head = _head(queue)
            if limiter.refusal(head) is not None:
                return True
            if limiter.is_full:
                break
            if not any(each.is_full for each in head._limiters):
                return True
    return False


def _connected_queues(changed: Iterable[Limiter]) -> Iterable[WaitQueue]:
    """Return the queues for these limiters and for all that are connected by shared ones."""
    queues: dict[Hashable, WaitQueue] = {}
    seen: set[Limiter] = set()
    todo = [*changed]
    while todo:
        limiter = todo.pop()
        if limiter in seen:
            continue
        seen.add(limiter)
        for name, queue in limiter.queues.items():
            if name not in queues:
                queues[name] = queue
                todo.extend(_head(queue)._limiters)
    return queues.values()


def _head(queue: WaitQueue) -> Turn:
    return next(iter(queue))


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
