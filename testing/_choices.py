"""What a seed chooses: so that many seeds come upon as many different orders as they can."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from weakref import WeakKeyDictionary
from zlib import crc32

__all__ = ["Choices"]

WAYS = 100_000  # of the first choices that the digits tell apart
CHANGES = 16  # one choice in so many changes which tasks are preferred


class Choices:
    """The choices of one run, one after the other; the same seed makes the same.

    The first of them are the seed's own digits: so of seeds that follow one another no two begin
    in the same way before all ways have come. What comes after is left to chance.

    Every third seed prefers some tasks to others, for as long as it goes: for it is
    rare by chance alone that one task is early, or late, again and again, and in reality it is not.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 - not for secrets
        turn, kind = divmod(seed, 3)
        self._digits = abs(turn if kind == 2 else 2 * turn + kind)  # no gap among those alike
        # How many ways there were to choose as far as this, and which of them was chosen.
        self._ways = 1
        self._way = 0
        self._ranks: WeakKeyDictionary[asyncio.Task[object], float] | None = None
        if kind == 2:
            self._ranks = WeakKeyDictionary()

    def among(self, count: int) -> int:
        """Choose a number from 0 to `count` - 1."""
        if self._ways >= WAYS:
            return self.random.randrange(count)
        self._digits, digit = divmod(self._digits, count)
        # What is added differs from way to way: else the seeds below 10, having no further
        # digits, would all go on in one way.
        added = crc32(b"%d of %d" % (self._way, self._ways))
        self._way += digit * self._ways
        self._ways *= count
        return (digit + added) % count

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
