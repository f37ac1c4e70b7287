"""Durable runs taken up at every place where they may have died.

A kill leaves a prefix of the rows. So one life is played to its end, and then, for each prefix of
its rows, another that begins with it: it must end the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from anabranch import Commander
from anabranch.store import Durable
from anabranch.store._file import Row, RunRow
from anabranch.store._run import take_up
from anabranch.store.errors import LeaseLost, RunNotFound


class MemoryFile:
    """A journal's file without a disk and without a thread, for seeded loops: one run's rows."""

    name = "in memory"

    def __init__(self, rows: list[Row] | None = None, inputs: RunRow | None = None) -> None:
        self.kept = list(rows or ())
        self._run = inputs
        self._left = False
        self.keys: dict[str, Any] = {}

    @property
    def run_row(self) -> RunRow:
        assert self._run is not None
        return self._run

    def append(self, run_id: str, fence: int, row: Row) -> int:
        if self._left:
            raise LeaseLost(run_id)
        self.kept.append(row._replace(seq=len(self.kept) + 1))
        return len(self.kept)

    async def barrier(self, *_: object) -> None:
        await asyncio.sleep(0)

    async def run(self, run_id: str) -> RunRow:
        if self._run is None:
            raise RunNotFound(run_id, self.name)
        return self._run

    async def start(
        self, run_id: str, class_name: str, version: int, inputs: bytes, queue: str = ""
    ) -> RunRow:
        self._run = RunRow(
            run_id, class_name, version, "pending", inputs, queue, 0, 0, 0, "", None, 0, None, 0
        )
        return self._run

    async def claim(self, run_id: str, owner: str) -> tuple[RunRow, list[Row]]:
        return self.run_row._replace(state="running", recoveries=0), list(self.kept)

    async def release(self, run_id: str, fence: int, state: str, error: bytes | None) -> None:
        self._left = True
        self._run = self.run_row._replace(state=state, error=error)

    async def rows(self, run_id: str) -> list[Row]:
        return list(self.kept)

    async def letters(self, run_id: str, after: int = 0) -> list[Any]:
        return []

    async def watch(self, seen: int | None = None) -> int:
        if seen is not None:
            await asyncio.Event().wait()
        return 0


@dataclass
class Life:
    """What came of one life of a run."""

    result: Any
    file: MemoryFile

    @property
    def rows(self) -> list[Row]:
        return self.file.kept

    def count(self, kind: str) -> int:
        return sum(row.kind == kind for row in self.rows)


async def live(
    job: Durable[Any], file: MemoryFile | None = None, bring: Mapping[str, Any] | None = None
) -> Life:
    """Run a job to its end, on what a file has of it."""
    file = file or MemoryFile()
    store: Any = file
    async with take_up(store, job, "r", bring or {}) as kept, Commander() as commander:
        await kept.drive(commander)
    return Life(kept.outcome(), file)


def after(life: Life, rows: int) -> MemoryFile:
    """Return what a kill left that came when so many rows were on disk."""
    return MemoryFile(life.rows[:rows], life.file.run_row._replace(state="running", error=None))


async def every_life(
    make: Callable[[], Durable[Any]], check: Callable[[Life, Life, int], None]
) -> Life:
    """Play one life, and one after each kill of it; `check` gets the first, that, and its rows."""
    first = await live(make())
    for rows in range(len(first.rows) + 1):
        again = await live(make(), after(first, rows))
        assert again.result == first.result, f"killed after {rows} rows"
        check(first, again, rows)
    return first
