"""How many kernels of one toolkit run at once, and which of them has to go."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING
from weakref import WeakSet

if TYPE_CHECKING:
    from ._interpreter import Interpreter

__all__ = ["Pool"]


class Pool:
    """The interpreters that have a kernel, at most `most`; one more waits or takes a place."""

    def __init__(self, most: int | None) -> None:
        self.most = most
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        # Those that start one too. An owner that is gone takes its interpreters along.
        self._running: WeakSet[Interpreter] = WeakSet()
        self._changed = asyncio.Event()

    async def make_room(self, newcomer: Interpreter) -> None:
        """Let a newcomer in; of those not used now, the one that was used least lately goes."""
        if self._process != os.getpid():  # a fork has none of the kernels of its parent
            self._begin()
        while self.most is not None and len(self._running - {newcomer}) >= self.most:
            if unused := [each for each in self._running if each.unused]:
                oldest = min(unused, key=lambda each: each.used)
                await oldest.end(f"only {self.most} may run, and others were used since")
            else:
                self._changed.clear()
                await self._changed.wait()
        self._running.add(newcomer)

    def leave(self, interpreter: Interpreter) -> None:
        """Take out one that has no kernel any more."""
        self._running.discard(interpreter)
        self.look_again()

    def look_again(self) -> None:
        """Wake those that wait: one is no longer in use, or gone."""
        self._changed.set()

    def __reduce__(self) -> tuple[type[Pool], tuple[int | None]]:
        return Pool, (self.most,)
