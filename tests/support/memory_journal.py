"""A journal in memory on a disk that can be copied as of any row, and the world outside of it.

`run_execution` in `killed_executions.py` runs durable programs on it.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import finalize

from anabranch.commander.durable import scope_here
from anabranch.store import Journal
from anabranch.store._journal_file import Letter, Row, RunRow, clock_at_end
from anabranch.store._json import digest
from anabranch.store.errors import LeaseLost, RunBusy, RunExists, RunNotFound

__all__ = [
    "RUN_ID",
    "START_TIME",
    "Disk",
    "MemoryFile",
    "act",
    "current_disk",
    "effect_key_of",
    "journal_of",
    "mounted",
    "use_disk_clock",
]

RUN_ID = "run"
START_TIME = 1_700_000_000.0


class Disk:
    """The data that survives a process: runs, rows, mail, a database and the elapsed time."""

    def __init__(self) -> None:
        self.runs: dict[str, RunRow] = {}
        # By run: its row at each acquisition of its lease, with the number of rows at that time.
        self.leases: dict[str, list[RunRow]] = {}
        self.rows: dict[str, list[Row]] = {}
        self.mail: list[tuple[str, Letter]] = []
        self.tables = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        finalize(self, self.tables.close)  # Python 3.13 and later warn about an open connection
        self.tables.execute("pragma user_version = 1")  # `serialize` needs at least one page
        # The number of rows at each commit, with the database as bytes.
        self.commits = [(0, b"")]
        # By run: the number of rows that a completed barrier covers.
        self.safe: dict[str, int] = {}
        self.now = START_TIME
        # By effect key: the result of an effect that was done outside.
        self.done: dict[str, str] = {}
        self.twice: list[str] = []
        # Notes of the program in this execution.
        self.seen: list[Any] = []

    def do(self, key: str, text: str, *, again: bool = False) -> str:
        """Do an effect and return a result that names its key.

        A repetition is noted as a fault, unless `again` says that the service ignores it.
        """
        safe = self.rows[RUN_ID][: self.safe[RUN_ID]] if RUN_ID in self.rows else None
        has_intent = safe is None or any(
            effect_key_of(row.ident) == key for row in safe if row.kind == "intent"
        )
        assert has_intent, f"{text} is done before its intent is on the disk"
        if key in self.done and not again:
            self.twice.append(text)
        self.done[key] = f"{text}#{key[:8]}"
        return self.done[key]

    def cut(self, rows: int, done: Mapping[str, str]) -> Disk:
        """Return a copy as of the death of the process after `rows` rows."""
        disk = Disk()
        for key, run in self.runs.items():
            disk.leases[key] = [each for each in self.leases.get(key, ()) if each.rows <= rows]
            disk.runs[key] = [run, *disk.leases[key]][-1]._replace(state="running", owner="")
        disk.rows = {key: prefix[:rows] for key, prefix in self.rows.items()}
        disk.mail = list(self.mail)
        disk.now = max([START_TIME, *[row.time for each in disk.rows.values() for row in each]])
        disk.done = dict(done)
        disk.safe = {key: len(prefix) for key, prefix in disk.rows.items()}
        disk.commits = [commit for commit in self.commits if commit[0] <= rows]
        if tables := disk.commits[-1][1]:
            disk.tables.deserialize(tables)
        return disk


class MemoryFile:
    """A `JournalFile` on a `Disk`, without threads and without waits."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.name = ":disk:"
        self._acquired: set[str] = set()
        self.keys: dict[str, Any] = {}
        self._posted = asyncio.Event()
        self._transaction = asyncio.Lock()

    async def open(self) -> None: ...

    async def close(self) -> None:
        self._acquired.clear()

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
        async with self._transaction:
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
        if run_id in self._acquired:
            raise RunBusy(run_id)
        self._acquired.add(run_id)
        clock, rows = run.clock, self.disk.rows[run_id]
        if run.state == "running":
            leases = self.disk.leases.get(run_id)
            acquired_at = leases[-1].rows if leases else 0
            clock = clock_at_end(rows, acquired_at, clock, run.updated)
        run = run._replace(
            state="running", owner=owner, fence=run.fence + 1, updated=time.time(), clock=clock
        )
        self.disk.runs[run_id] = run
        self.disk.leases.setdefault(run_id, []).append(run)
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
        self._acquired.discard(run_id)
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
        if run_id not in self._acquired or self.disk.runs[run_id].fence != fence:
            raise LeaseLost(run_id)


def journal_of(disk: Disk, file: Callable[[Disk], Any] = MemoryFile, **options: Any) -> Journal:
    """Return a journal on a disk."""
    journal = Journal(":disk:", **options)
    journal._file = file(disk)
    return journal


# --- the world outside

# The disks of the executions that run now, the innermost last.
mounted: list[Disk] = []


def current_disk() -> Disk:
    """Return the disk of the current execution."""
    return mounted[-1]


async def act(name: str, value: object = None, *, turns: int = 1, fails: object = None) -> str:
    """Do an effect outside once, over `turns` turns of the loop; reconcile it when in doubt.

    With `fails`, raise a ValueError of that text after the effect was done.
    """
    scope, disk = scope_here(), mounted[-1]
    effect = scope.effect(name, {"value": value})  # type: ignore[union-attr]
    # The next attempt repeats a failed effect.
    again = fails is not None and scope.is_retried  # type: ignore[union-attr]

    async def work() -> str:
        for _ in range(turns):
            await asyncio.sleep(0)
        result = disk.do(effect.key, f"{name}({value})", again=again)
        if fails is not None:
            raise ValueError(str(fails))
        return result

    async def reconcile(key: str) -> str | bool:
        return disk.done.get(key, False)

    return await effect.do(work, reconcile=reconcile)


@contextmanager
def use_disk_clock(disk: Disk) -> Iterator[None]:
    """Let `time.time` follow the loop's clock, from the end of the last execution on."""
    loop, real, start = asyncio.get_running_loop(), time.time, disk.now

    def now() -> float:
        disk.now = max(disk.now, start + loop.time())
        return disk.now

    time.time = now
    try:
        yield
    finally:
        time.time = real


def effect_key_of(ident: bytes) -> str:
    """Return the key of the effect with this identity."""
    return digest(RUN_ID, ident).hex()
