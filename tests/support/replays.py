"""Durable runs taken up at every place where they may have died, inside a test's own loop.

A kill leaves a prefix of the rows. So one life is played to its end, and then, for each prefix of
its rows, another that begins with it: it must end the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from anabranch.store import Durable
from support.lives import RUN_ID, Disk, Life, journal_of

__all__ = ["after", "every_life", "live"]


async def live(
    job: Durable[Any], disk: Disk | None = None, bring: Mapping[str, Any] | None = None
) -> Life:
    """Run a job to its end, on what a disk has of it."""
    disk = disk or Disk()
    async with journal_of(disk) as journal:
        result = await journal.run(job, run_id=RUN_ID, live=bring)
    return Life(disk, result, rows=disk.rows[RUN_ID])


def after(life: Life, rows: int) -> Disk:
    """Return what a kill left that came when so many rows were on disk."""
    return life.disk.cut(rows, life.disk.done)


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
