"""A durable run that is killed between any two of its rows, taken up again, and killed once more.

A program is a durable job that does its outside work by `act`. `play` runs one life of it on a
journal in memory. A kill after row `n` is what is left of a life then: its first `n` rows, and what
had been done outside, where an effect whose intent was written and whose end was not may have been
done or not. `every_kill` tries all of them, `random_kills` several one after the other.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import finalize

from anabranch.commander import Commander, NodeLimits
from anabranch.commander.durable import scope_here
from anabranch.store import Journal
from anabranch.store._file import ENDED, Letter, Row, RunRow, clock_at_end
from anabranch.store._json import digest
from anabranch.store.errors import LeaseLost, RunBusy, RunExists, RunNotFound
from anabranch.testing import run_seeded

__all__ = [
    "RUN_ID",
    "Disk",
    "Kill",
    "Life",
    "MemoryFile",
    "act",
    "disk_here",
    "doubtful",
    "every_kill",
    "journal_of",
    "play",
    "random_kills",
    "require_consistent",
    "require_same",
    "wall_of",
]

RUN_ID = "run"
BEGAN = 1_700_000_000.0


class Disk:
    """What survives a process: runs, rows, mail, a database, and the time that has passed."""

    def __init__(self) -> None:
        self.runs: dict[str, RunRow] = {}
        # Each claim so far, as it was made: with the number of rows at that time.
        self.claims: dict[str, list[RunRow]] = {}
        self.rows: dict[str, list[Row]] = {}
        self.mail: list[tuple[str, Letter]] = []
        self.tables = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        finalize(self, self.tables.close)  # Python 3.13 and later warn about one left open
        self.tables.execute("pragma user_version = 1")  # one without a page has no bytes
        # What was in the tables, by how many rows there were then.
        self.commits = [(0, b"")]
        # By run: how many rows are certainly on the disk, as somebody has waited for that.
        self.safe: dict[str, int] = {}
        self.now = BEGAN
        # By effect: what it has done outside. Of each run there is one world.
        self.done: dict[str, str] = {}
        self.twice: list[str] = []
        # What a program has noted in this life.
        self.seen: list[Any] = []

    def do(self, key: str, text: str, *, again: bool = False) -> str:
        """Do an effect; twice is noted, unless the receiver knows what was done `again` by its key.

        What it gives names the key: whoever got another one's result would be seen.
        """
        safe = self.rows[RUN_ID][: self.safe[RUN_ID]] if RUN_ID in self.rows else None
        known = safe is None or any(_key(r.ident) == key for r in safe if r.kind == "intent")
        assert known, f"{text} is done before its intent is on the disk"
        if key in self.done and not again:
            self.twice.append(text)
        self.done[key] = f"{text}#{key[:8]}"
        return self.done[key]

    def cut(self, rows: int, done: Mapping[str, str]) -> Disk:
        """Return what is left of it if the process dies after so many rows."""
        left = Disk()
        for key, run in self.runs.items():
            left.claims[key] = [each for each in self.claims.get(key, ()) if each.rows <= rows]
            left.runs[key] = [run, *left.claims[key]][-1]._replace(state="running", owner="")
        left.rows = {key: kept[:rows] for key, kept in self.rows.items()}
        left.mail = list(self.mail)
        left.now = max([BEGAN, *[row.time for kept in left.rows.values() for row in kept]])
        left.done = dict(done)
        left.safe = {key: len(kept) for key, kept in left.rows.items()}
        left.commits = [commit for commit in self.commits if commit[0] <= rows]
        if tables := left.commits[-1][1]:
            left.tables.deserialize(tables)
        return left


class MemoryFile:
    """Does what a `JournalFile` does, on a `Disk`, without a thread and without a wait."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.name = ":disk:"
        self._taken: set[str] = set()
        self.keys: dict[str, Any] = {}
        self._posted = asyncio.Event()
        self._one = asyncio.Lock()  # one transaction after the other

    async def open(self) -> None: ...

    async def close(self) -> None:
        self._taken.clear()

    def append(self, run_id: str, fence: int, row: Row) -> int:
        self._check(run_id, fence)
        rows = self.disk.rows[run_id]
        rows.append(row._replace(seq=len(rows) + 1, time=time.time()))
        return len(rows)

    async def barrier(self, run_id: str = "", fence: int = 0) -> None:
        appended = {key: len(rows) for key, rows in self.disk.rows.items()}
        await asyncio.sleep(0)
        if run_id:
            self._check(run_id, fence)
        for key, rows in appended.items():
            self.disk.safe[key] = max(rows, self.disk.safe.get(key, 0))

    async def call(self, function: Callable[[sqlite3.Connection], Any], **_: Any) -> Any:
        return function(self.disk.tables)

    async def transact(
        self, run_id: str, fence: int, function: Callable[[sqlite3.Connection], Row]
    ) -> int:
        async with self._one:
            self._check(run_id, fence)
            self.disk.tables.execute("begin")
            try:
                row = await asyncio.to_thread(function, self.disk.tables)
            except BaseException:
                self.disk.tables.execute("rollback")
                raise
            self.disk.tables.execute("commit")
            number = self.append(run_id, fence, row)
            self.disk.commits.append((number, self.disk.tables.serialize()))
            return number

    async def start(
        self, run_id: str, class_name: str, version: int, inputs: bytes, queue: str = ""
    ) -> RunRow:
        now = time.time()
        new = RunRow(
            run_id, class_name, version, "pending", inputs, queue, now, now, 0, "", None, 0, None, 0
        )
        run = self.disk.runs.setdefault(run_id, new)
        self.disk.rows.setdefault(run_id, [])
        if (run.class_name, run.inputs) != (class_name, inputs):
            raise RunExists(run_id, "it differs")
        return run

    async def run(self, run_id: str) -> RunRow:
        if run_id not in self.disk.runs:
            raise RunNotFound(run_id, self.name)
        return self.disk.runs[run_id]._replace(rows=len(self.disk.rows[run_id]))

    async def runs(self, **_: Any) -> list[RunRow]:
        return list(self.disk.runs.values())

    async def look(self, run_id: str) -> tuple[RunRow, list[Row], list[Letter]]:
        return await self.run(run_id), await self.rows(run_id), await self.letters(run_id)

    async def rows(self, run_id: str) -> list[Row]:
        await self.run(run_id)
        return list(self.disk.rows[run_id])

    async def acquire(self, run_id: str, owner: str) -> tuple[RunRow, list[Row]]:
        run = await self.run(run_id)
        if run_id in self._taken:
            raise RunBusy(run_id)
        self._taken.add(run_id)
        clock, rows = run.clock, self.disk.rows[run_id]
        if run.state == "running":
            claimed_at = self.disk.claims[run_id][-1].rows if self.disk.claims.get(run_id) else 0
            clock = clock_at_end(rows, claimed_at, clock, run.updated)
        run = run._replace(
            state="running", owner=owner, fence=run.fence + 1, updated=time.time(), clock=clock
        )
        self.disk.runs[run_id] = run
        self.disk.claims.setdefault(run_id, []).append(run)
        return run, await self.rows(run_id)

    async def release(
        self,
        run_id: str,
        fence: int,
        state: str,
        error: bytes | None = None,
        *,
        clock: float | None = None,
    ) -> None:
        self._check(run_id, fence)
        self._taken.discard(run_id)
        run, now = self.disk.runs[run_id], time.time()
        clock = run.clock + now - run.updated if clock is None else clock
        self.disk.runs[run_id] = run._replace(
            state=state, error=error, owner="", updated=now, clock=clock
        )

    async def post(
        self,
        run_id: str,
        kind: str,
        name: str,
        value: bytes,
        *,
        key: None = None,
        check: Any = None,
    ) -> int:
        run = await self.run(run_id)
        if check is not None:
            check(run)
        number = len(self.disk.mail) + 1
        self.disk.mail.append((run_id, Letter(number, kind, name, value, time.time())))
        self._posted.set()
        self._posted = asyncio.Event()
        return number

    async def letters(self, run_id: str, after: int = 0) -> list[Letter]:
        return [mail for run, mail in self.disk.mail if run == run_id and mail.id > after]

    async def watch(self, seen: int | None = None) -> int:
        while len(self.disk.mail) == seen:
            await self._posted.wait()
        return len(self.disk.mail)

    def _check(self, run_id: str, fence: int) -> None:
        if run_id not in self._taken or self.disk.runs[run_id].fence != fence:
            raise LeaseLost(run_id)


def journal_of(disk: Disk, file: Callable[[Disk], Any] = MemoryFile, **options: Any) -> Journal:
    """Return a journal on what survived."""
    journal = Journal(":disk:", **options)
    journal._file = file(disk)
    return journal


# --- the world outside

_disk: list[Disk] = []


def disk_here() -> Disk:
    """Return the disk of the life that is played."""
    return _disk[-1]


async def act(name: str, value: object = None, *, turns: int = 1, fails: object = None) -> str:
    """Do something outside, once; it takes so many turns, and is looked for where it is in doubt.

    One that `fails` raises a ValueError of that text once it has been done.
    """
    scope, disk = scope_here(), _disk[-1]
    effect = scope.effect(name, {"value": value})  # type: ignore[union-attr]
    # What has failed is done again by the next attempt.
    again = fails is not None and scope.retried  # type: ignore[union-attr]

    async def work() -> str:
        for _ in range(turns):
            await asyncio.sleep(0)
        gave = disk.do(effect.key, f"{name}({value})", again=again)
        if fails is not None:
            raise ValueError(str(fails))
        return gave

    async def reconcile(key: str) -> str | bool:
        return disk.done.get(key, False)

    return await effect.do(work, reconcile=reconcile)


# --- lives


@dataclass
class Life:
    """How a life ended."""

    disk: Disk
    result: Any = None
    error: BaseException | None = None
    before: int = 0
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
        """Return how many rows there are of a kind."""
        return sum(row.kind == kind for row in self.rows)


Sender = Callable[[Journal], Any]


def play(
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
) -> Life:
    """Run what is left of a run on `disk` to its end, under asyncio's order or that of a seed.

    A real `file` may take the place of the disk's rows; else it is one that does something odd.
    `beside` runs in a task beside it, with the journal; `limits` makes those of its commander, or
    of the run with `own`; `timeout` is the run's, and `around` a commander that others make. Time
    is virtual, also that of the wall.
    """
    disk = disk or Disk()
    life = Life(disk, before=len(disk.rows.get(RUN_ID, ())))
    life.limits = None if limits is None else limits()

    async def main() -> None:
        with wall_of(disk):
            async with journal_of(disk, **options) as journal:
                other = None if beside is None else asyncio.create_task(beside(journal))
                try:
                    async with Commander(limits=life.limits) if limits and not own else around():
                        given = {"timeout": timeout, "limits": life.limits if own else None}
                        run = journal.run(make(), run_id=RUN_ID, live=live, **given)
                        life.result = await run
                except (Exception, asyncio.CancelledError) as error:
                    life.error = error
                if other is not None:
                    other.cancel()
                    await asyncio.wait([other])
                    if not other.cancelled() and (error := other.exception()) is not None:
                        raise error

    _disk.append(disk)
    try:
        run_seeded(main, seed)
    finally:
        _disk.pop()
    life.rows = list(disk.rows.get(RUN_ID, ()))
    assert not disk.twice, f"done twice: {disk.twice}"
    return life


@contextmanager
def wall_of(disk: Disk) -> Iterator[None]:
    """Let the wall's clock go with the loop's, from where the last life left it."""
    loop, real, began = asyncio.get_running_loop(), time.time, disk.now

    def now() -> float:
        disk.now = max(disk.now, began + loop.time())
        return disk.now

    time.time = now
    try:
        yield
    finally:
        time.time = real


class Kill(NamedTuple):
    """After how many rows, and which of the effects in doubt were done."""

    rows: int
    done: frozenset[str]

    def of(self, life: Life) -> Disk:
        """Return what is left of a life."""
        certain = life.disk.done.keys() - _later(life, self.rows)
        done = {key: life.disk.done[key] for key in certain | self.done}
        return life.disk.cut(self.rows, done)


def _later(life: Life, rows: int) -> set[str]:
    """Return the effects that were certainly, or perhaps, done after so many rows."""
    ends = {row.ident for row in life.rows[:rows] if row.kind in ("gave", "failed")}
    began = {row.ident for row in life.rows[: life.before] if row.kind == "intent"}
    keys = {row.ident: _key(row.ident) for row in life.rows if row.kind == "intent"}
    return {key for ident, key in keys.items() if ident not in ends and ident not in began}


def doubtful(life: Life, rows: int) -> list[str]:
    """Return the effects that may have been done by a process that died after so many rows."""
    ends = {row.ident for row in life.rows[:rows] if row.kind in ("gave", "failed")}
    keys = [_key(r.ident) for r in life.rows[:rows] if r.kind == "intent" and r.ident not in ends]
    return [key for key in keys if key in life.disk.done]


def _key(ident: bytes) -> str:
    return digest(RUN_ID, ident).hex()


def every_kill(
    make: Callable[[], Any],
    *,
    seeds: Sequence[int | None] = (None,),
    same_effects: bool = True,
    check: Callable[[Life], None] | None = None,
    away: float = 0.0,
    first: Life | None = None,
    **options: Any,
) -> Life:
    """Run a program; then for each kill take it up again, and compare. Returns the first life.

    Result, or failure, and effects have to be the same; `check` is called with each later life.
    `away` is how long no process runs after a kill.
    """
    first = first or play(make, seed=seeds[0], **options)
    require_consistent(first)
    for number in range(len(first.rows) + 1):
        unsure = doubtful(first, number)
        for world in (True, False) if unsure else (True,):
            for seed in seeds:
                left = Kill(number, frozenset(unsure if world else ())).of(first)
                left.now += away
                life = play(make, left, seed=seed, **options)
                where = f"killed after row {number}, world {world}, seed {seed}"
                require_same(first, life, where, same_effects=same_effects)
                if check is not None:
                    check(life)
    return first


def random_kills(
    make: Callable[[], Any],
    seed: int,
    *,
    kills: int = 2,
    same_effects: bool = True,
    first: Life | None = None,
    **options: Any,
) -> Life:
    """Kill a program so often, each life at random; compare its last life with an unkilled one."""
    draw = random.Random(seed)
    first = first or play(make, seed=seed, **options)
    life, where = first, []
    for _ in range(kills):
        number = draw.randint(min(life.before, len(life.rows)), len(life.rows))
        done = frozenset(key for key in doubtful(life, number) if draw.random() < 0.5)
        where.append((number, len(done)))
        life = play(make, Kill(number, done).of(life), seed=draw.randrange(1 << 30), **options)
        require_consistent(life)
    require_same(first, life, f"seed {seed}, killed after rows {where}", same_effects=same_effects)
    return life


def require_same(first: Life, life: Life, where: str, *, same_effects: bool = True) -> None:
    """Raise unless both lives ended alike."""
    require_consistent(life, where)
    assert life.outcome == first.outcome, f"{where}: {life.outcome} and not {first.outcome}"
    assert life.state == first.state, f"{where}: {life.state} and not {first.state}"
    if same_effects:
        differ = life.disk.done.items() ^ first.disk.done.items()
        assert not differ, f"{where}: {sorted(name for _, name in differ)}"


# Of one node, effect or call there is at most one of these; and a second failure only of a root, if
# its final callbacks have made of the first what cannot be kept.
ONCE = ("result", "gave", "root", "over", "letter", "reply", "transaction", "once")


def require_consistent(life: Life, where: str = "") -> None:
    """Raise unless the rows of a life could be those of one run."""
    numbers = [row.seq for row in life.rows]
    assert numbers == [*range(1, len(numbers) + 1)], where
    if any(row.kind == "resumed" for row in life.rows):
        return
    counts = Counter((row.ident, row.kind) for row in life.rows if row.kind in ONCE)
    assert max(counts.values(), default=1) == 1, f"{where}: {counts.most_common(3)}"
    failed = Counter(row.ident for row in life.rows if row.kind == "failure")
    over = {row.ident for row in life.rows if row.kind == "over"}
    assert all(count <= 1 + (ident in over) for ident, count in failed.items()), where
    if life.state in ENDED:
        begun = {row.ident for row in life.rows if row.kind == "root"}
        over = {row.ident for row in life.rows if row.kind == "over"}
        assert begun <= over, f"{where}: a round is left"
