"""What a seed chooses: so that many seeds come upon as many different orders as they can."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from weakref import WeakKeyDictionary

__all__ = ["Choices"]

CHANGES = 16  # one choice in so many changes which tasks are preferred


class Choices:
    """The choices of one run, one after the other; the same seed makes the same.

    The seed's own digits are the first of them: so seeds that follow one another begin in different
    ways, and none is tried twice before all are. What comes after the digits is left to chance.

    Every third seed prefers some tasks to others, for as long as it goes: for it is
    rare by chance alone that one task is early, or late, again and again, and in reality it is not.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 - not for secrets
        turn, kind = divmod(seed, 3)
        self._digits = abs(turn if kind == 2 else 2 * turn + kind)  # no gap among those alike
        self._ranks: WeakKeyDictionary[asyncio.Task[object], float] | None = None
        if kind == 2:
            self._ranks = WeakKeyDictionary()

    def among(self, count: int) -> int:
        """Choose a number from 0 to `count` - 1."""
        if self._digits:
            self._digits, digit = divmod(self._digits, count)
            return digit
        return self.random.randrange(count)

    def task(self, tasks: Sequence[asyncio.Task[object]]) -> int:
        """Choose which of some tasks is stepped next; return its place."""
        if self._ranks is None:
            return self.among(len(tasks))
        for task in tasks:
            if task not in self._ranks:
                self._ranks[task] = self.random.random()
        first = min(range(len(tasks)), key=[self._ranks[task] for task in tasks].__getitem__)
        if not self.random.randrange(CHANGES):
            self._ranks[tasks[first]] = self.random.random()
        return first
