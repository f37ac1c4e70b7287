"""In which order nodes end whose outcome is in the journal: in that of their rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, TypeVar

__all__ = ["Endings"]

# Turns of the loop for which a recorded failure waits: tasks that are made together with the node
# come to await it meanwhile, as they had when it failed first.
TURNS = 5
AT_ONCE = 100  # recorded nodes that end in one turn of the loop

T = TypeVar("T")


class Endings:
    """Those that one node has put and that are to end: of an earlier row first."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # By the number of the outcome's row; whether that is a failure; how the node is ended.
        self._waiting: list[tuple[int, bool, Callable[[Any], None], Any]] = []
        # For how many more turns a failure among them waits.
        self._turns = 0

    def add(self, number: int, fails: bool, end: Callable[[T], None], of: T) -> None:
        """Let `end(of)` be called in its turn."""
        if not self._waiting:
            self._loop.call_soon(self._end_some)
        if fails:
            self._turns = TURNS
        heappush(self._waiting, (number, fails, end, of))

    def _end_some(self) -> None:
        """End the next ones; other tasks go on in between."""
        waiting = self._waiting
        try:
            for _ in range(min(len(waiting), AT_ONCE)):
                if waiting[0][1] and self._turns:
                    self._turns -= 1
                    return
                _, _, end, of = heappop(waiting)
                end(of)
        finally:
            if waiting:
                self._loop.call_soon(self._end_some)
