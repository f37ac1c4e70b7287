"""In which order nodes end whose outcome is in the journal: in that of their rows."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from operator import itemgetter
from typing import Any

from ..commander import Node
from ..commander.scope import hearer

__all__ = ["Endings"]

# Turns of the loop for which recorded ends wait where others can tell one from the next: tasks that
# are made together with the nodes come to await them meanwhile, as they had when these first ended,
# and what waits for the first of several goes on before there is a second.
TURNS = 5
AT_ONCE = 500  # recorded nodes that end in one turn of the loop


class Endings:
    """Those that one node has put and that are to end: of an earlier row first."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # Ends a node: the engine gives it with each of them.
        self._end: Callable[[Node[Any]], None]
        # The nodes, and the numbers of the rows of their outcomes. Two lists, and not one of pairs,
        # which the garbage collector would have to go through.
        self._waiting: deque[Node[Any]] = deque()
        self._numbers: deque[int] = deque()
        # Whether they stand in the order of their rows, as they do if they were put as before.
        self._sorted = True
        # Whether the loop calls `_end_some`.
        self._called = False
        # For how many more turns they wait.
        self._turns = 0
        # Set when all of these have ended; None if nobody waits for that.
        self._over: asyncio.Event | None = None

    def add(
        self, number: int, node: Node[Any], fails: bool, end: Callable[[Node[Any]], None]
    ) -> None:
        """Let `end(node)` be called in its turn."""
        numbers = self._numbers
        if numbers:
            self._turns = TURNS
            if numbers[-1] > number:
                self._sorted = False
        elif fails:
            self._turns = TURNS
        numbers.append(number)
        self._waiting.append(node)
        self._end = end
        if not self._called:
            self._called = True
            self._loop.call_soon(self._end_some)

    def hold(self) -> None:
        """Let them wait, as other tasks may put more."""
        self._turns = TURNS

    async def over(self) -> None:
        """Wait until all have ended, and who waited for them has gone on."""
        while self._waiting:
            if self._over is None:
                self._over = asyncio.Event()
            await self._over.wait()
        for _ in range(TURNS):
            await asyncio.sleep(0)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def _end_some(self) -> None:
        """End the next ones; other tasks go on in between.

        Of two that are awaited already the second waits: the first may have decided something. What
        one `gather` awaits ends at once, up to one that fails: nobody can tell one from the next.
        """
        waiting, numbers, end, told = self._waiting, self._numbers, self._end, None
        try:
            if self._turns:
                self._turns -= 1
                return
            for _ in range(min(len(waiting), AT_ONCE)):
                if not self._sorted:
                    self._sort()
                node = waiting[0]
                if (heard := hearer(node)) is not None:
                    if told is not None and told is not heard:
                        break
                    told = heard
                waiting.popleft()
                numbers.popleft()
                end(node)
                if heard is not None and node.state != "completed":
                    told = node
            if told is not None and waiting:
                self._turns = TURNS
        finally:
            self._called = bool(waiting)
            if waiting:
                self._loop.call_soon(self._end_some)
            elif self._over is not None:
                self._over.set()
                self._over = None

    def _sort(self) -> None:
        pairs = sorted(zip(self._numbers, self._waiting, strict=True), key=itemgetter(0))
        self._sorted = True
        for each in self._numbers, self._waiting:
            each.clear()
        for number, node in pairs:
            self._numbers.append(number)
            self._waiting.append(node)
