"""One request's turn in all the limits that hold for it: taken in one moment, or in none.

Who waits stands in a line with those that need the very same limits, and a line is served in its
order. Between lines that share a limit the one who came first goes first, unless another of its
limits holds it back: then it is passed, for what it cannot use yet is free for others.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Hashable, Iterable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from heapq import heapify, heappop, heappush
from itertools import count
from threading import RLock
from typing import TYPE_CHECKING, Literal, TypeAlias

from ..commander.errors import BudgetExceeded
from ..commander.waiting import LocalFuture
from ..messages import Usage

if TYPE_CHECKING:
    from .limits import Limits, Start

__all__ = ["Line", "Turn"]

# Held while any limits change: a turn is taken in several at once, and event loops in several
# threads may share them.
_lock = RLock()
_numbers = count()
_NONE: frozenset[Limits] = frozenset()


class Turn:
    """One request's place in the limits: what it is thought to take, then what it took.

    Set `usage` when it is known. Without it the estimate `tokens` counts; `Usage()` says that the
    model never ran.
    """

    def __init__(
        self,
        model: str,
        tokens: int = 0,
        limits: tuple[Limits, ...] = (),
        *,
        line: Hashable = None,
        asks: bool = False,
    ) -> None:
        self.model = model
        self.tokens = tokens
        self.usage: Usage | None = None
        self._limits = limits
        self._line = line  # the name of its line
        self._number = next(_numbers)  # the lower, the longer it has waited
        # Whether somebody elsewhere must give a turn too. Such a one is "asking" once all of
        # `limits` let it start: it takes nothing yet, and stays in its line until it is "granted".
        self._asks = asks
        self._state: Literal["new", "waiting", "asking", "granted", "running", "over"] = "new"
        self._begun = False  # whether its owner knows that it runs: if not, it was not sent
        self._refusal: BudgetExceeded | None = None
        self._starts: list[Start | None] = []  # one for each of `limits`, while it runs
        # Of the head of a line: which limits hold it back, and until when if time alone does.
        self._hindered: AbstractSet[Limits] = _NONE
        self._until: float | None = None
        # The limits in which it was passed, and those in which nobody may pass it again.
        self._passed: AbstractSet[Limits] = _NONE
        self._owed: AbstractSet[Limits] = _NONE
        self._loop = asyncio.get_running_loop()
        self._moved: asyncio.Future[None] | None = None

    @property
    def took(self) -> Usage:
        """What it took, as far as that is known."""
        if not self._begun:
            return Usage()
        return Usage(input_tokens=self.tokens) if self.usage is None else self.usage

    @property
    def _lost(self) -> bool:
        """Whether its loop was closed under it, so that it will neither go on nor leave."""
        return self._loop.is_closed()

    def unsend(self) -> None:
        """Say that nothing was sent after all: it costs nothing, nor does it count for a rate."""
        self._begun = False
        self.usage = None

    async def ready(self) -> None:
        """Wait until it has started or, if it asks elsewhere, until it may. Call `leave` later.

        Raises `BudgetExceeded`.
        """
        with _lock:
            self._enter()
        while True:
            with _lock:
                if self._state != "waiting":
                    break
                until = self._until
                local = until is None and not self._asks
                moved = LocalFuture(loop=self._loop) if local else self._loop.create_future()
                self._moved = moved
            timer = None if until is None else self._loop.call_at(until, self._look)
            try:
                await moved
            finally:
                if timer is not None:
                    timer.cancel()
        if self._refusal is not None:
            raise self._refusal
        self._begun = self._state == "running"

    def start_granted(self) -> bool:
        """Start it if it still may, now that it was given a turn elsewhere; else `ready` tells."""
        with _lock:
            if self._state == "asking":  # it was not refused meanwhile
                self._state = "granted" if self._limits else "running"
                _settle(self._limits)
            self._begun = self._state == "running"
            return self._begun

    def leave(self) -> None:
        """Give back what it has, wherever it stands, and let others go on; twice is harmless."""
        with _lock:
            before, self._state = self._state, "over"
            if before in {"new", "over"} or not self._limits:
                return
            if before == "running":
                for limits, start in zip(self._limits, self._starts, strict=True):
                    limits._end(self, start)
            elif not self._step_out():
                return
            _settle(self._limits)

    def _enter(self) -> None:
        if (refusal := self._refusal or self._refused()) is not None:
            raise refusal
        if not self._limits:
            self._state = "asking" if self._asks else "running"
            return
        if self._state == "new":
            if not self._asks and not any(limits._lines for limits in self._limits):
                now = self._loop.time()
                if all(limits._opens(self, now) == 0 for limits in self._limits):
                    self._start(now)
                    return
            line: Line = self._limits[0]._lines.get(self._line) or OrderedDict()
            line[self] = None
            for limits in self._limits:
                limits._lines[self._line] = line
        self._state = "waiting"
        if any(limits._full for limits in self._limits):
            for limits in self._limits:
                limits._forget_lost()
        else:
            head = _head(self._limits[0]._lines[self._line])
            if head is self or head._lost:
                _settle(self._limits)

    def _refused(self) -> BudgetExceeded | None:
        for limits in self._limits:
            if (refusal := limits._refusal(self.model)) is not None:
                return refusal
        return None

    def _start(self, now: float) -> None:
        self._state = "running"
        self._starts = [limits._start(self, now) for limits in self._limits]

    def _step_out(self) -> bool:
        """Leave the line; return whether it was its head."""
        line = self._limits[0]._lines[self._line]
        first = _head(line) is self
        del line[self]
        if not line:
            for limits in self._limits:
                del limits._lines[self._line]
        return first

    def _look(self) -> None:
        with _lock:
            self._until = None  # so that it is set anew if the timer was a little early
            _settle(self._limits)

    def _wake(self) -> None:
        """Let its owner look at what has become of it."""
        moved, self._moved = self._moved, None
        if moved is None:
            return
        if asyncio._get_running_loop() is self._loop:
            _set(moved)
        else:
            with suppress(RuntimeError):  # it is closed
                self._loop.call_soon_threadsafe(_set, moved)

    # --- what `_settle` does with the head of a line

    def _try_to_start(self, closed: set[Limits], waiting: dict[Limits, list[Turn]]) -> bool:
        """Start it or refuse it; return whether it has left its line.

        Those that came earlier let nobody pass in the limits that are `closed`; they are `waiting`
        for theirs.
        """
        self._refusal = self._refused()
        if self._refusal is not None or self._lost:
            self._step_out()
            self._state = "over"
            self._wake()
            return True
        now = self._loop.time()
        opens = {
            limits: None if limits in closed else limits._opens(self, now)
            for limits in self._limits
        }
        self._hindered = {limits for limits, when in opens.items() if when != 0}
        if not self._hindered and (not self._asks or self._state == "granted"):
            self._step_out()
            self._start(now)
            self._wake()
            for limits in self._limits:
                for turn in waiting[limits]:
                    turn._be_passed(limits)
            return True
        if not self._hindered:
            self._state = "asking"
            self._wake()
        elif self._state != "asking":
            self._state = "waiting"
            self._wait_for(opens.values())
            if len(self._hindered) == 1:
                closed |= self._hindered
            if not any(limits._held(now) for limits in self._hindered):
                closed |= self._owed
        for limits in self._limits:
            waiting[limits].append(self)
        return False

    def _wait_for(self, opens: Iterable[float | None]) -> None:
        """Set the time at which it may start if nothing else happens: there may be none."""
        times = [when for when in opens if when != 0]
        until = None if None in times else max(when for when in times if when is not None)
        if until != self._until:
            self._until = until
            self._wake()

    def _be_passed(self, limits: Limits) -> None:
        """Take note that a later one started in `limits`, while others hold this one back.

        If it was passed in those others too, because of `limits`, then it would never find all of
        them free at once where both are always in demand. So it is not passed there again.
        """
        self._owed |= self._passed & self._hindered
        self._passed |= {limits}


Line: TypeAlias = "OrderedDict[Turn, None]"
"""Those that wait for the same limits, in order; there is none without anybody in it."""


def _settle(changed: Iterable[Limits]) -> None:
    """Start all who may start, the longest waiting first, now that these limits have changed."""
    changed = {*changed}
    if not _anyone_may_move(changed):
        return
    heads = [(_head(line)._number, line) for line in _lines_near(changed)]
    heapify(heads)
    closed: set[Limits] = set()
    waiting: dict[Limits, list[Turn]] = defaultdict(list)
    while heads:
        _, line = heappop(heads)
        turn = _head(line)
        if turn._try_to_start(closed, waiting):
            if line:
                heappush(heads, (_head(line)._number, line))
            changed.update(turn._limits)
            if not _anyone_may_move(changed):
                return


def _anyone_may_move(changed: Iterable[Limits]) -> bool:
    """Return whether a change of these limits may matter to anybody: not where others are full."""
    for limits in changed:
        for line in limits._lines.values():
            head = _head(line)
            if limits._refusal(head.model) is not None:
                return True
            if limits._full:
                break
            if not any(each._full for each in head._limits):
                return True
    return False


def _lines_near(changed: Iterable[Limits]) -> Iterable[Line]:
    """Return the lines for these limits, and for those that share others with them, and so on."""
    lines: dict[Hashable, Line] = {}
    seen: set[Limits] = set()
    todo = [*changed]
    while todo:
        limits = todo.pop()
        if limits in seen:
            continue
        seen.add(limits)
        for name, line in limits._lines.items():
            if name not in lines:
                lines[name] = line
                todo.extend(_head(line)._limits)
    return lines.values()


def _head(line: Line) -> Turn:
    return next(iter(line))


def _set(moved: asyncio.Future[None]) -> None:
    if not moved.done():
        moved.set_result(None)
