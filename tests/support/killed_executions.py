"""Durable runs that are killed between any two of their rows, resumed, and killed again.

A program is a durable job that acts outside by `act`. `run_execution` runs one execution of it on a
journal in memory. A kill after row `n` leaves the first `n` rows and the effects done outside. An
effect with a recorded intent and no recorded end may have been done or not. `kill_everywhere` tries
every row and both cases, `kill_at_random` several kills in sequence. `resume_after_every_row` tries
every row in the test's event loop, without a seed.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from anabranch.commander import Commander, NodeLimits
from anabranch.store import Durable, Journal
from anabranch.store._journal_file import ENDED_STATES, Row
from anabranch.testing import run_seeded
from support.memory_journal import RUN_ID, Disk, effect_key_of, journal_of, mounted, use_disk_clock

__all__ = [
    "Execution",
    "Kill",
    "disk_after",
    "effects_in_doubt",
    "execute_in_loop",
    "kill_at_random",
    "kill_everywhere",
    "require_consistent",
    "require_same",
    "resume_after_every_row",
    "run_execution",
]


@dataclass
class Execution:
    """The end of one execution, and its disk."""

    disk: Disk
    result: Any = None
    error: BaseException | None = None
    before: int = 0  # rows of earlier executions
    rows: list[Row] = field(default_factory=list)
    limits: Any = None

    @property
    def outcome(self) -> tuple[Any, ...]:
        error = self.error
        return self.result, type(error), None if error is None else str(error)

    @property
    def state(self) -> str:
        return self.disk.runs[RUN_ID].state

    def count(self, kind: str) -> int:
        """Return the number of rows of a kind."""
        return sum(row.kind == kind for row in self.rows)


def run_execution(
    make: Callable[[], Any],
    disk: Disk | None = None,
    *,
    seed: int | None = None,
    live: Mapping[str, Any] | None = None,
    beside: Callable[[Journal], Any] | None = None,
    limits: Callable[[], NodeLimits] | None = None,
    own: bool = False,
    timeout: float | None = None,
    around: Callable[[], Any] = nullcontext,
    **options: Any,
) -> Execution:
    """Start or resume the run on `disk` and run it to its end, on a virtual clock.

    Tasks run in asyncio's order, or in that of a seed. The option `file` replaces `MemoryFile`.
    `beside(journal)` runs in a separate task. `limits` makes the commander's limits, or with `own`
    the run's. `timeout` is the run's. `around` opens the test's commander.
    """
    disk = disk or Disk()
    execution = Execution(disk, before=len(disk.rows.get(RUN_ID, ())))
    execution.limits = None if limits is None else limits()

    async def main() -> None:
        with use_disk_clock(disk):
            async with journal_of(disk, **options) as journal:
                other = None if beside is None else asyncio.create_task(beside(journal))
                given = {"timeout": timeout, "limits": execution.limits if own else None}
                shared = Commander(limits=execution.limits) if limits and not own else around()
                try:
                    async with shared:
                        run = journal.run(make(), run_id=RUN_ID, live=live, **given)
                        execution.result = await run
                except (Exception, asyncio.CancelledError) as error:
                    execution.error = error
                if other is not None:
                    other.cancel()
                    await asyncio.wait([other])
                    if not other.cancelled() and (error := other.exception()) is not None:
                        raise error

    mounted.append(disk)
    try:
        run_seeded(main, seed)
    finally:
        mounted.pop()
    execution.rows = list(disk.rows.get(RUN_ID, ()))
    assert not disk.twice, f"done twice: {disk.twice}"
    return execution


class Kill(NamedTuple):
    """A kill after `rows` rows, at which the effects `done` were done though in doubt."""

    rows: int
    done: frozenset[str]

    def of(self, execution: Execution) -> Disk:
        """Return the disk of an execution that this kill ended."""
        certain = execution.disk.done.keys() - _not_certain(execution, self.rows)
        done = {key: execution.disk.done[key] for key in certain | self.done}
        return execution.disk.cut(self.rows, done)


def _not_certain(execution: Execution, rows: int) -> set[str]:
    """Return this execution's effects that were not certainly done after `rows` rows."""
    ends = {row.ident for row in execution.rows[:rows] if row.kind in ("gave", "failed")}
    intents = [row for row in execution.rows if row.kind == "intent"]
    earlier = {row.ident for row in execution.rows[: execution.before] if row.kind == "intent"}
    return {effect_key_of(row.ident) for row in intents if row.ident not in ends | earlier}


def effects_in_doubt(execution: Execution, rows: int) -> list[str]:
    """Return the effects whose outcome is unknown if the process died after `rows` rows."""
    prefix = execution.rows[:rows]
    ends = {row.ident for row in prefix if row.kind in ("gave", "failed")}
    intents = [row.ident for row in prefix if row.kind == "intent" and row.ident not in ends]
    return [key for key in map(effect_key_of, intents) if key in execution.disk.done]


def kill_everywhere(
    make: Callable[[], Any],
    *,
    seeds: Sequence[int | None] = (None,),
    same_effects: bool = True,
    check: Callable[[Execution], None] | None = None,
    away: float = 0.0,
    first: Execution | None = None,
    **options: Any,
) -> Execution:
    """Run a program, then resume it after each possible kill; return the first execution.

    Every resumed execution must end with the same outcome and effects; `check` gets it too. No
    process runs for `away` seconds after a kill.
    """
    first = first or run_execution(make, seed=seeds[0], **options)
    require_consistent(first)
    for number in range(len(first.rows) + 1):
        in_doubt = effects_in_doubt(first, number)
        for are_done in (True, False) if in_doubt else (True,):
            for seed in seeds:
                disk = Kill(number, frozenset(in_doubt if are_done else ())).of(first)
                disk.now += away
                execution = run_execution(make, disk, seed=seed, **options)
                where = f"killed after row {number}, effects done: {are_done}, seed {seed}"
                require_same(first, execution, where, same_effects=same_effects)
                if check is not None:
                    check(execution)
    return first


def kill_at_random(
    make: Callable[[], Any],
    seed: int,
    *,
    kills: int = 2,
    same_effects: bool = True,
    first: Execution | None = None,
    **options: Any,
) -> Execution:
    """Kill and resume a program `kills` times; compare its last execution with an unkilled one."""
    draw = random.Random(seed)
    first = first or run_execution(make, seed=seed, **options)
    execution, where = first, []
    for _ in range(kills):
        number = draw.randint(min(execution.before, len(execution.rows)), len(execution.rows))
        in_doubt = effects_in_doubt(execution, number)
        done = frozenset(key for key in in_doubt if draw.random() < 0.5)
        where.append((number, len(done)))
        disk = Kill(number, done).of(execution)
        execution = run_execution(make, disk, seed=draw.randrange(1 << 30), **options)
        require_consistent(execution)
    at = f"seed {seed}, killed after rows {where}"
    require_same(first, execution, at, same_effects=same_effects)
    return execution


def require_same(
    first: Execution, execution: Execution, where: str, *, same_effects: bool = True
) -> None:
    """Raise unless both executions ended with the same outcome, state and effects."""
    require_consistent(execution, where)
    assert execution.outcome == first.outcome, f"{where}: {execution.outcome}, not {first.outcome}"
    assert execution.state == first.state, f"{where}: {execution.state}, not {first.state}"
    if same_effects:
        differ = execution.disk.done.items() ^ first.disk.done.items()
        assert not differ, f"{where}: {sorted(name for _, name in differ)}"


# Kinds with at most one row per node, effect or call. A root may have a second failure: its final
# callbacks can turn the first into one that cannot be stored.
UNIQUE_KINDS = ("result", "gave", "root", "over", "letter", "reply", "transaction", "once")


def require_consistent(execution: Execution, where: str = "") -> None:
    """Raise unless the rows could be those of one run."""
    numbers = [row.seq for row in execution.rows]
    assert numbers == [*range(1, len(numbers) + 1)], where
    if any(row.kind == "resumed" for row in execution.rows):
        return
    counts = Counter((row.ident, row.kind) for row in execution.rows if row.kind in UNIQUE_KINDS)
    assert max(counts.values(), default=1) == 1, f"{where}: {counts.most_common(3)}"
    failed = Counter(row.ident for row in execution.rows if row.kind == "failure")
    over = {row.ident for row in execution.rows if row.kind == "over"}
    assert all(count <= 1 + (ident in over) for ident, count in failed.items()), where
    if execution.state in ENDED_STATES:
        roots = {row.ident for row in execution.rows if row.kind == "root"}
        assert roots <= over, f"{where}: a round has not ended"


async def execute_in_loop(
    job: Durable[Any], disk: Disk | None = None, bring: Mapping[str, Any] | None = None
) -> Execution:
    """Run a job to its end on a disk, in the running loop; `bring` are its live fields."""
    disk = disk or Disk()
    async with journal_of(disk) as journal:
        result = await journal.run(job, run_id=RUN_ID, live=bring)
    return Execution(disk, result, rows=disk.rows[RUN_ID])


def disk_after(execution: Execution, rows: int) -> Disk:
    """Return the disk as of a kill after `rows` rows, with all effects done."""
    return execution.disk.cut(rows, execution.disk.done)


async def resume_after_every_row(
    make: Callable[[], Durable[Any]], check: Callable[[Execution, Execution, int], None]
) -> Execution:
    """Execute a job, then resume it after each row; return the first execution.

    Results must be the same. `check` gets the first execution, the resumed one and the rows.
    """
    first = await execute_in_loop(make())
    for rows in range(len(first.rows) + 1):
        resumed = await execute_in_loop(make(), disk_after(first, rows))
        assert resumed.result == first.result, f"killed after {rows} rows"
        check(first, resumed, rows)
    return first
