"""One request's turn in all the limits that hold for it: taken in one moment, or in none.

Who waits stands in a line with those that need the very same limits, and a line is served in its
order. Between lines that share a limit the one who came first goes first, unless another of its
limits holds it back: then it is passed, for what it cannot use yet is free for others.
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

__all__ = ["Gate", "Turn"]

# Held while any limits change: a turn is taken in several at once, and event loops in several
# threads may share them.
LOCK = RLock()
_numbers = count()


class Gate(ABC):
    """One set of limits, as those that wait for a turn see it; they call it under one lock."""

    def __init__(self) -> None:
        # Those that wait for a turn here, in their lines.
        self.lines: dict[Hashable, Line] = {}

    @property
    @abstractmethod
    def is_full(self) -> bool:
        """Whether nothing can start before something ends."""

    @abstractmethod
    def is_held(self, now: float) -> bool:
        """Say whether a 429 keeps everything from starting."""

    @abstractmethod
    def refusal(self, turn: Turn) -> BudgetExceeded | None:
        """Return why `turn` is refused, None if it is not."""

    @abstractmethod
    def opens(self, turn: Turn, now: float) -> float | None:
        """Return when `turn` may start: 0 is now, None is not before something ends."""

    @abstractmethod
    def start(self, turn: Turn, now: float) -> None:
        """Take note that `turn` has started."""

    @abstractmethod
    def end(self, turn: Turn) -> None:
        """Take note that `turn` has ended, and of what it took."""

    @abstractmethod
    def end_lost(self) -> None:
        """Let those leave whose event loop was closed while they ran."""


_NONE: frozenset[Gate] = frozenset()


class Turn:
    """One request's place in the limits: what it is thought to take, then what it took.

    `most` is what it may take at most; None where nobody can tell. Set `usage` when it is known:
    without it the estimate `tokens` counts; `Usage()` says that the model never ran. `was_sent`
    says that it has started and its owner knows: else it costs nothing.
    """

    def __init__(
        self,
        model: str,
        tokens: int = 0,
        gates: tuple[Gate, ...] = (),
        *,
        most: Usage | None = None,
        line: Hashable = None,
        asks: bool = False,
    ) -> None:
        self.model = model
        self.tokens = tokens
        self.most = most
        self.usage: Usage | None = None
        self._gates = gates
        self._line = line  # the name of its line
        self._number = next(_numbers)  # the lower, the longer it has waited
        # Whether somebody elsewhere must give a turn too. Such a one is "asking" once all of
        # `gates` let it start: it takes nothing yet, and stays in its line until it is "granted".
        self._asks = asks
        self._state: Literal["new", "waiting", "asking", "granted", "running", "over"] = "new"
        self.was_sent = False
        self._refusal: BudgetExceeded | None = None
        # Of the head of a line: which gates hold it back, and until when if time alone does.
        self._hindered: AbstractSet[Gate] = _NONE
        self._until: float | None = None
        # The gates in which it was passed, and those in which nobody may pass it again.
        self._passed: AbstractSet[Gate] = _NONE
        self._owed: AbstractSet[Gate] = _NONE
        self._loop = asyncio.get_running_loop()
        self._moved: asyncio.Future[None] | None = None

    @property
    def took(self) -> Usage:
        """What it took, as far as that is known."""
        if not self.was_sent:
            return Usage()
        return Usage(input_tokens=self.tokens) if self.usage is None else self.usage

    @property
    def is_lost(self) -> bool:
        """Whether its loop was closed under it, so that it will neither go on nor leave."""
        return self._loop.is_closed()

    def unsend(self) -> None:
        """Say that nothing was sent after all: it costs nothing, nor does it count for a rate."""
        self.was_sent = False
        self.usage = None

    async def ready(self) -> None:
        """Wait until it has started or, if it asks elsewhere, until it may. Call `leave` later.

        Raises `BudgetExceeded`.
        """
        with LOCK:
            self._enter()
        while True:
            with LOCK:
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
        self.was_sent = self._state == "running"

    def start_granted(self) -> bool:
        """Start it if it still may, now that it was given a turn elsewhere; else `ready` tells."""
        with LOCK:
            if self._state == "asking":  # it was not refused meanwhile
                self._state = "granted" if self._gates else "running"
                _settle(self._gates)
            self.was_sent = self._state == "running"
            return self.was_sent

    def leave(self) -> None:
        """Give back what it has, wherever it stands, and let others go on; twice is harmless."""
        with LOCK:
            before, self._state = self._state, "over"
            if before in {"new", "over"} or not self._gates:
                return
            if before == "running":
                for gate in self._gates:
                    gate.end(self)
            elif not self._step_out():
                return
            _settle(self._gates)

    def _enter(self) -> None:
        if (refusal := self._refusal or self._refused()) is not None:
            raise refusal
        if not self._gates:
            self._state = "asking" if self._asks else "running"
            return
        if self._state == "new":
            if not self._asks and not any(gate.lines for gate in self._gates):
                now = self._loop.time()
                if all(gate.opens(self, now) == 0 for gate in self._gates):
                    self._start(now)
                    return
            line: Line = self._gates[0].lines.get(self._line) or OrderedDict()
            line[self] = None
            for gate in self._gates:
                gate.lines[self._line] = line
        self._state = "waiting"
        if any(gate.is_full for gate in self._gates):
            for gate in self._gates:
                gate.end_lost()
        else:
            head = _head(self._gates[0].lines[self._line])
            if head is self or head.is_lost:
                _settle(self._gates)

    def _refused(self) -> BudgetExceeded | None:
        for gate in self._gates:
            if (refusal := gate.refusal(self)) is not None:
                return refusal
        return None

    def _start(self, now: float) -> None:
        self._state = "running"
        for gate in self._gates:
            gate.start(self, now)

    def _step_out(self) -> bool:
        """Leave the line; return whether it was its head."""
        line = self._gates[0].lines[self._line]
        first = _head(line) is self
        del line[self]
        if not line:
            for gate in self._gates:
                del gate.lines[self._line]
        return first

    def _look(self) -> None:
        with LOCK:
            self._until = None  # so that it is set anew if the timer was a little early
            _settle(self._gates)

    def _wake(self) -> None:
        """Let its owner look at what has become of it."""
        moved, self._moved = self._moved, None
        if moved is None:
            return
        if running_loop() is self._loop:
            _set(moved)
        else:
            with suppress(RuntimeError):  # it is closed
                self._loop.call_soon_threadsafe(_set, moved)

    # --- what `_settle` does with the head of a line

    def _try_to_start(self, closed: set[Gate], waiting: dict[Gate, list[Turn]]) -> bool:
        """Start it or refuse it; return whether it has left its line.

        Those that came earlier let nobody pass in the gates that are `closed`; they are `waiting`
        for theirs.
        """
        self._refusal = self._refused()
        if self._refusal is not None or self.is_lost:
            self._step_out()
            self._state = "over"
            self._wake()
            return True
        now = self._loop.time()
        opens = {gate: None if gate in closed else gate.opens(self, now) for gate in self._gates}
        self._hindered = {gate for gate, when in opens.items() if when != 0}
        if not self._hindered and (not self._asks or self._state == "granted"):
            self._step_out()
            self._start(now)
            self._wake()
            for gate in self._gates:
                for turn in waiting[gate]:
                    # It is passed here, while others hold it back. If it was passed in those too,
                    # because of this one, then it would never find all of them free at once where
                    # both are always in demand. So it is not passed there again.
                    turn._owed |= turn._passed & turn._hindered
                    turn._passed |= {gate}
            return True
        if not self._hindered:
            self._state = "asking"
            self._wake()
        elif self._state != "asking":
            self._state = "waiting"
            # The time at which it may start if nothing else happens: there may be none.
            times = [when for when in opens.values() if when != 0]
            until = None if None in times else max(when for when in times if when is not None)
            if until != self._until:
                self._until = until
                self._wake()
            if len(self._hindered) == 1:
                closed |= self._hindered
            if not any(gate.is_held(now) for gate in self._hindered):
                closed |= self._owed
        for gate in self._gates:
            waiting[gate].append(self)
        return False


Line: TypeAlias = "OrderedDict[Turn, None]"
"""Those that wait for the same gates, in order; there is none without anybody in it."""


def _settle(changed: Iterable[Gate]) -> None:
    """Start all who may start, the longest waiting first, now that these gates have changed."""
    changed = {*changed}
    if not _anyone_may_move(changed):
        return
    heads = [(_head(line)._number, line) for line in _lines_near(changed)]
    heapify(heads)
    closed: set[Gate] = set()
    waiting: dict[Gate, list[Turn]] = defaultdict(list)
    while heads:
        _, line = heappop(heads)
        turn = _head(line)
        if turn._try_to_start(closed, waiting):
            if line:
                heappush(heads, (_head(line)._number, line))
            changed.update(turn._gates)
            if not _anyone_may_move(changed):
                return


def _anyone_may_move(changed: Iterable[Gate]) -> bool:
    """Return whether a change of these gates may matter to anybody: not where others are full."""
    for gate in changed:
        for line in gate.lines.values():
            head = _head(line)
            if gate.refusal(head) is not None:
                return True
            if gate.is_full:
                break
            if not any(each.is_full for each in head._gates):
                return True
    return False


def _lines_near(changed: Iterable[Gate]) -> Iterable[Line]:
    """Return the lines for these gates, and for those that share others with them, and so on."""
    lines: dict[Hashable, Line] = {}
    seen: set[Gate] = set()
    todo = [*changed]
    while todo:
        gate = todo.pop()
        if gate in seen:
            continue
        seen.add(gate)
        for name, line in gate.lines.items():
            if name not in lines:
                lines[name] = line
                todo.extend(_head(line)._gates)
    return lines.values()


def _head(line: Line) -> Turn:
    return next(iter(line))


def _set(moved: asyncio.Future[None]) -> None:
    if not moved.done():
        moved.set_result(None)
