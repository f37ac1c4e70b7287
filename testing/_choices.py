"""The choices of a seed. Different seeds give as many different orders as possible."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from weakref import WeakKeyDictionary
from zlib import crc32

__all__ = ["Choices"]

WAYS = 100_000  # choices follow the digits of the seed up to this many combinations of choices
CHANGES = 16  # on average, one choice in CHANGES re-ranks the task that it prefers


class Choices:
    """The sequence of choices of one run. The same seed gives the same sequence.

    The first choices are the digits of the seed; the base of a digit is the number of options. So
    consecutive seeds begin differently until every combination of first choices has occurred. Later
    choices are random.

    Every third seed ranks the tasks and prefers the lowest rank throughout the run. With
    independent choices it is rare that one task is early or late every time, but in production this
    is common.
    """

    def __init__(self, seed: int) -> None:
        self.random: random.Random = random.Random(seed)  # noqa: S311 - not for secrets
        turn, kind = divmod(seed, 3)
        # Consecutive for the seeds with ranks, and for those without.
        self._digits = abs(turn if kind == 2 else 2 * turn + kind)
        # The number of combinations up to this choice, and the chosen combination.
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
        # The offset depends on the combination. Otherwise the seeds below 10, which run out of
        # digits first, would all continue in the same way.
        added = crc32(b"%d of %d" % (self._way, self._ways))
        self._way += digit * self._ways
        self._ways *= count
        return (digit + added) % count

    def task(self, tasks: Sequence[asyncio.Task[object]]) -> int:
        """Choose which task runs next; return its index in `tasks`."""
        if self._ranks is None:
            return self.among(len(tasks))
        for task in tasks:
            if task not in self._ranks:
                self._ranks[task] = self.random.random()
        first = min(range(len(tasks)), key=[self._ranks[task] for task in tasks].__getitem__)
        if not self.random.randrange(CHANGES):
            self._ranks[tasks[first]] = self.random.random()
        return first
