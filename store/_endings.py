"""In which order nodes end whose outcome is in the journal: in that of their rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, TypeVar

from ..commander import Node
from ..commander.scope import is_awaited

__all__ = ["Endings"]

# Turns of the loop for which recorded ends wait where others can tell one from the next: tasks that
# are made together with the nodes come to await them meanwhile, as they had when these first ended,
# and what waits for the first of several goes on before there is a second.
TURNS = 5
AT_ONCE = 100  # recorded nodes that end in one turn of the loop

T = TypeVar("T")


class Endings:
    """Those that one node has put and that are to end: of an earlier row first."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # By the number of the outcome's row; how the node is ended.
        self._waiting: list[tuple[int, Node[Any], Callable[[Any], None], Any]] = []
        # For how many more turns they wait.
        self._turns = 0
        # Set when all of these have ended; None if nobody waits for that.
        self._over: asyncio.Event | None = None

    def add(
        self, number: int, node: Node[Any], fails: bool, end: Callable[[T], None], of: T
    ) -> None:
        """Let `end(of)` be called in its turn."""
        waiting = self._waiting
        if waiting or fails:
            self._turns = TURNS
        if not waiting:
            self._loop.call_soon(self._end_some)
        heappush(waiting, (number, node, end, of))

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

        Of two that are awaited already the second waits: the first may have decided something.
        """
        waiting, told = self._waiting, False
        try:
            if self._turns:
                self._turns -= 1
                return
            for _ in range(min(len(waiting), AT_ONCE)):
                awaited = is_awaited(waiting[0][1])
                if told and awaited:
                    break
                told = told or awaited
                _, _, end, of = heappop(waiting)
                end(of)
            if told and waiting:
                self._turns = TURNS
        finally:
            if waiting:
                self._loop.call_soon(self._end_some)
            elif self._over is not None:
                self._over.set()
                self._over = None
