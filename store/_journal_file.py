"""`JournalFile`: the SQL for the runs of a journal, their rows and their letters.

`_file_thread` has the thread that executes the SQL and decides when to commit.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from ..commander import ConfigurationError
from ..files.sqlite import MEMORY
from ._checksums import BytesCodec, Checksums, Row, check_size
from ._file_thread import FileThread, Lease
from ._inbox import FileWatch
from ._json import digest
from ._keys import Keys
from ._lock import RunLock
from ._purge import remove_some
from .errors import JournalError, LeaseLost, RunBusy, RunExists, RunNotFound

__all__ = [
    "ENDED_STATES",
    "SESSION_CLASS",
    "JournalFile",
    "Letter",
    "Row",
    "RunRow",
    "check_name",
    "clock_at_end",
    "last_clock",
]

T = TypeVar("T")

ENDED_STATES = ("completed", "failed", "cancelled")
SESSION_CLASS = "anabranch.store:Session"
"""The class name of a session, which only a call of its agent resumes."""

NAME_PATTERN = re.compile(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,1000}")

_SELECT_RUN = """select run_id, class_name, version, state, inputs, queue, created,
    max(updated, coalesce((select time from anabranch_row where run = id order by seq desc limit 1),
        0)),
    fence, owner, lease_until, recoveries, error,
    coalesce((select max(seq) from anabranch_row where run = id), 0), clock
    from anabranch_run """
_SELECT_ROWS = """select ident, kind, value, digest, seq, time from anabranch_row
    where run = ? order by seq"""
_SELECT_KEY = "select 1 from anabranch_key where digest = ?"


class RunRow(NamedTuple):
    """The state of a run. Times are in seconds since the epoch."""

    run_id: str
    class_name: str
    version: int  # of the class
    state: str  # pending, running, suspended, parked, or one of `ENDED_STATES`
    inputs: bytes
    queue: str
    created: float
    updated: float  # of its last row, or its last change of state
    fence: int  # rises with each acquisition
    owner: str  # empty if it has none
    lease_until: float | None
    recoveries: int  # acquisitions after an owner that died, without a new row between them
    error: bytes | None
    rows: int  # the number of its last row
    clock: float = 0.0  # seconds with an owner, up to the last acquisition or release


class Letter(NamedTuple):
    """Something that was sent to a run: a signal, an answer, a cancel."""

    id: int  # rises in the order of arrival, over all runs
    kind: str
    name: str
    value: bytes
    time: float  # of arrival, in seconds since the epoch


def check_name(name: object, what: str = "a run_id") -> None:
    """Raise `ConfigurationError` for a name that cannot be stored or shown."""
    if not _is_name(name):
        shown = name if not isinstance(name, str) or len(name) < 100 else name[:100] + "..."
        raise ConfigurationError(
            f"{what} must be a text of 1 to 1,000 characters without control characters, not"
            f" {shown!r}"
        )


def _is_name(name: object) -> bool:
    return isinstance(name, str) and NAME_PATTERN.fullmatch(name) is not None


def last_clock(rows: list[Row]) -> float:
    """Return the run's clock from the last of these rows that records it, or 0."""
    said = [row.value for row in rows if row.kind in ("began", "attempt", "clock")]
    return json.loads(said[-1])["clock"] if said else 0.0


def clock_at_end(rows: list[Row], claimed_at: int, clock: float, claimed: float) -> float:
    """Return the run's clock at the last row of an owner that died.

    The owner acquired the run after the row `claimed_at`, at the time `claimed`, when the run's
    clock was `clock`. A row of the kind "clock" corrects it after the wall clock was set.
    """
    own = [row for row in rows if row.seq > claimed_at]
    for row in own:
        if row.kind == "clock":
            clock, claimed = json.loads(row.value)["clock"], row.time
    return clock + max(0.0, own[-1].time - claimed) if own else clock


class JournalFile:
    """One open file, for use in one event loop.

    When the file cannot be used any more, `append` and every method that waits raise
    `JournalError`.
    """

    def __init__(self, name: str, codec: BytesCodec | None = None) -> None:
        self.name = name
        self._checksums = Checksums(name, codec)
        self._thread = FileThread(name, self._checksums)
        self._leases: dict[str, Lease] = {}
        # By run that is owned here: the keys that no letter to it may contain.
        self.keys: dict[str, Keys] = {}
        self._file_watch = FileWatch(self.call)

    @property
    def is_open(self) -> bool:
        """Whether it was opened in this process, and not closed since."""
        return self._thread.is_alive

    async def open(self) -> None:
        """Open the file, or create it; also after `close`. Raises `JournalError`."""
        if self._thread.is_alive:
            raise JournalError(
                self.name, "is open already", "use this journal, or open another one"
            )
        self._thread = FileThread(self.name, self._checksums)
        self._file_watch = FileWatch(self.call)  # the old one belongs to another loop
        await self._thread.start()

    async def close(self) -> None:
        """Write all appended rows and close the file; closing twice is harmless.

        Runs that were not released can be acquired, as if their owner had died. Raises
        `JournalError` if rows could not be written and no caller got the error.
        """
        try:
            await self._thread.stop()
        finally:
            for lease in self._leases.values():
                _unlock(lease)
            self._leases.clear()

    # --- rows

    def append(self, run_id: str, fence: int, row: Row) -> int:
        """Queue a row and return its number, without waiting; `barrier` waits for the disk.

        The rows of a run keep their order, and those that survive a crash are a prefix. Raises
        `LeaseLost` once it is known that the run is not owned here under this fence, and
        `NotStorable` for a value of more than 64 MiB.
        """
        return self._thread.append(self._lease(run_id, fence), row)

    async def barrier(self, run_id: str = "", fence: int = 0) -> None:
        """Wait until all rows that were appended before are on disk.

        With a run, raises `LeaseLost` if another owner has it. Concurrent
        waits share a commit.
        """
        await self._thread.ask(None, self._lease(run_id, fence) if run_id else None, writes=False)

    async def call(self, function: Callable[[sqlite3.Connection], T], *, writes: bool = True) -> T:
        """Call a function of the store in the file's thread, after the rows appended before.

        It is part of the same transaction. Its exception rolls back only its own statements, and
        `call` raises it. Cancelling this wait does not undo the statements. A function that only
        reads (`writes=False`) does not wait for commits of other processes.
        """
        return await self._thread.ask(function, writes=writes)

    async def transact(
        self, run_id: str, fence: int, function: Callable[[sqlite3.Connection], Row]
    ) -> int:
        """Call a user's function and write the row that it returns, in one commit.

        Returns the number of the row, which stays unused if the function raises. Statements that
        would end the transaction raise `sqlite3.DatabaseError`, also in `executescript`.
        """
        lease = self._lease(run_id, fence)
        lease.seq = seq = lease.seq + 1
        await self._thread.ask(function, lease, seq=seq)
        return seq

    async def look(self, run_id: str) -> tuple[RunRow, list[Row], list[Letter]]:
        """Return a run, its rows and its letters in one snapshot. Raises `RunNotFound`."""

        def select(sql: sqlite3.Connection) -> tuple[RunRow, list[Row], list[Letter]]:
            key = self._key(sql, run_id)
            return self._run(sql, run_id), self._rows(sql, key), self._letters(sql, key, 0)

        return await self.call(select, writes=False)

    async def rows(self, run_id: str) -> list[Row]:
        """Return all rows of a run in order. Raises `RunNotFound`."""
        return await self.call(lambda sql: self._rows(sql, self._key(sql, run_id)), writes=False)

    # --- runs

    async def start(
        self, run_id: str, class_name: str, version: int, inputs: bytes, queue: str = ""
    ) -> RunRow:
        """Create a run durably, or return the existing one.

        Raises `RunExists` if the run has another class or other inputs, `ConfigurationError` for an
        invalid name.
        """
        check_name(run_id)
        check_size(inputs)

        def insert(sql: sqlite3.Connection) -> RunRow:
            now, sealed = (
                time.time(),
                self._checksums.write(inputs, f"{class_name} {version}".encode()),
            )
            sql.execute(
                "insert or ignore into anabranch_run (run_id, class_name, version, state, inputs,"
                " queue, created, updated) values (?, ?, ?, 'pending', ?, ?, ?, ?)",
                (run_id, class_name, version, sealed, queue, now, now),
            )
            run = self._run(sql, run_id)
            if run.class_name != class_name:
                raise RunExists(run_id, f"it is a {run.class_name}, not a {class_name}")
            if run.inputs != inputs:
                raise RunExists(run_id, "it was started with other inputs")
            return run

        return await self.call(insert)

    async def acquire(self, run_id: str, owner: str) -> tuple[RunRow, list[Row]]:
        """Acquire the lease of a run; return the run with all its rows.

        `recoveries` counts this acquisition if the last owner died without a row of progress, and
        starts from zero after one. The run's clock includes the last owner's time, up to its last
        row if it died. Raises `RunNotFound`, or `RunBusy` while another process, another journal or
        this one owns the run.
        """
        locks: list[RunLock] = []
        made: list[Lease] = []

        def lock(sql: sqlite3.Connection) -> None:
            self._key(sql, run_id)
            if run_id in self._leases:
                raise RunBusy(run_id, os.getpid())
            if self.name != MEMORY:
                locks.append(RunLock(self._thread.path, run_id))

        def take(sql: sqlite3.Connection) -> tuple[RunRow, list[Row]]:
            key = self._key(sql, run_id)
            if run_id in self._leases:
                raise RunBusy(run_id, os.getpid())
            old, rows = self._run(sql, run_id), self._rows(sql, key)
            clock = old.clock
            if old.state == "running":
                select = "select claimed_at_row, updated from anabranch_run where id = ?"
                claimed_at, claimed = sql.execute(select, (key,)).fetchone()
                clock = clock_at_end(rows, claimed_at, clock, claimed)
            # Rows that each execution may append again do not count as progress: partial replies,
            # and effects that begin and do not end.
            sql.execute(
                "update anabranch_run set fence = fence + 1, state = 'running', owner = ?,"
                " updated = ?, claimed_at_row = ?, recoveries = case when exists (select 1"
                " from anabranch_row where run = id and seq > claimed_at_row"
                " and kind not in ('partial', 'intent', 'withdrawn', 'ended', 'clock'))"
                " then 0 else recoveries + ? end, clock = ? where id = ?",
                (owner, time.time(), old.rows, old.state == "running", clock, key),
            )
            run = self._run(sql, run_id)
            made.append(Lease(key, run_id, run.fence, run.rows, *locks or [None]))
            self._leases[run_id] = made[0]
            return run, rows

        def undo(sql: sqlite3.Connection) -> None:
            for each in made:
                self._release(sql, each, "suspended")
            for each in locks:
                each.release()

        try:
            # A read first: an owner that was stopped in the middle of a commit blocks all writes,
            # and would delay `RunBusy`.
            await self.call(lock, writes=False)
            return await self.call(take)
        except asyncio.CancelledError:
            self._thread.follow(undo)  # `take` may still run: `undo` comes after it
            raise
        except BaseException:
            if not made:
                for each in locks:
                    each.release()
            raise

    async def release(
        self,
        run_id: str,
        fence: int,
        state: str,
        error: bytes | None = None,
        *,
        clock: float | None = None,
    ) -> None:
        """Release the lease of a run and set its state, in one commit with the rows before.

        `clock` is the run's clock, by default measured by the wall clock. From this call on no rows
        can be appended for the run. Raises `LeaseLost`.
        """
        lease = self._lease(run_id, fence)
        lease.is_released = True  # from now on `append` raises, so no row follows the release
        await self.call(lambda sql: self._release(sql, lease, state, error, clock))

    async def runs(
        self, state: str | None = None, prefix: str | None = None, limit: int | None = None
    ) -> list[RunRow]:
        """Return the runs in a state, with ids that start with `prefix`, the newest first."""

        def select(sql: sqlite3.Connection) -> list[RunRow]:
            found = sql.execute(
                _SELECT_RUN + "where (:state is null or state = :state) and (:prefix is null"
                " or run_id >= :prefix and run_id < :prefix || char(0x10ffff))"
                " order by id desc limit :limit",
                {"state": state, "prefix": prefix, "limit": -1 if limit is None else limit},
            )
            return [self._read_run(columns) for columns in found]

        return await self.call(select, writes=False)

    async def run(self, run_id: str) -> RunRow:
        """Return one run. Raises `RunNotFound`."""
        return await self.call(lambda sql: self._run(sql, run_id), writes=False)

    async def fork(self, run_id: str, at: int, new_run_id: str, clock: float = 0.0) -> RunRow:
        """Create a pending run with the inputs of another and its rows up to number `at`.

        `clock` is the run's clock at that row. Letters are not copied. Raises `RunNotFound`, or
        `RunExists` if the new name is taken.
        """
        check_name(new_run_id)

        def copy(sql: sqlite3.Connection) -> RunRow:
            key, now = self._key(sql, run_id), time.time()
            try:
                (new,) = sql.execute(
                    "insert into anabranch_run (run_id, class_name, version, state, inputs, queue,"
                    " created, updated, clock) select ?, class_name, version, 'pending', inputs,"
                    " queue, ?, ?, ? from anabranch_run where id = ? returning id",
                    (new_run_id, now, now, clock, key),
                ).fetchone()
            except sqlite3.IntegrityError:
                raise RunExists(new_run_id, "a fork needs a new name") from None
            sql.execute(
                "insert into anabranch_row select ?, seq, ident, kind, value, digest, time"
                " from anabranch_row where run = ? and seq <= ? order by seq",
                (new, key, at),
            )
            return self._run(sql, new_run_id)

        return await self.call(copy)

    async def purge(
        self, before: float, states: Sequence[str] = ENDED_STATES, prefix: str | None = None
    ) -> int:
        """Remove runs that ended before a time in one of `states`; return how many.

        After each short transaction it pauses for the same time, so that others can write.
        """
        purged, more = 0, True
        while more:
            began = time.monotonic()
            removed, more = await self.call(lambda sql: remove_some(sql, before, states, prefix))
            purged += removed
            if more:
                await asyncio.sleep(time.monotonic() - began)
        return purged

    # --- letters

    async def post(
        self,
        run_id: str,
        kind: str,
        name: str,
        value: bytes,
        *,
        wakes: bool = True,
        key: str | None = None,
        check: Callable[[RunRow], object] | None = None,
    ) -> int:
        """Send a letter to a run, from any process; return its number when it is on disk.

        `wakes` is False for letters that no run waits for. A letter with the same `key` as an
        earlier one is not sent again and has the number 0. `check` is called with the run in the
        same transaction and may refuse by an exception. Raises `RunNotFound`.
        """
        if run_id in self.keys:
            value = self.keys[run_id].cut_json(value)
        check_size(value)
        known = b"" if key is None or not _is_name(run_id) else digest(run_id, kind, name, key)

        def insert(sql: sqlite3.Connection) -> int:
            now = time.time()
            # Before the run is looked up: a repeated signal is harmless after the run was purged.
            if known and sql.execute(_SELECT_KEY, (known,)).fetchone() is not None:
                return 0
            run = self._key(sql, run_id)
            if check is not None:
                check(self._run(sql, run_id))
            if known:
                sql.execute("insert into anabranch_key values (?, ?, ?)", (known, run, now))
            sealed = self._checksums.write(value, f"{kind} {name} {now}".encode())
            (number,) = sql.execute(
                "insert into anabranch_mail (run, kind, name, value, time)"
                " values (?, ?, ?, ?, ?) returning id",
                (run, kind, name, sealed, now),
            ).fetchone()
            return number

        number = await self.call(insert)
        if wakes:
            self._file_watch.post()
        return number

    async def letters(self, run_id: str, after: int = 0) -> list[Letter]:
        """Return the letters to a run after the one of that number. Raises `RunNotFound`."""
        return await self.call(
            lambda sql: self._letters(sql, self._key(sql, run_id), after), writes=False
        )

    async def watch(self, seen: int | None = None) -> int:
        """Return a number once it differs from `seen`; it changes when there may be new letters.

        It changes with each commit of another process or journal, within 0.25 s, and with each
        `post` here. To miss no letter, first get the number, then read the letters, then watch. All
        callers share one poll.
        """
        return await self._file_watch.change(seen)

    # --- helpers, in the file's thread except `_lease`

    def _lease(self, run_id: str, fence: int) -> Lease:
        lease = self._leases.get(run_id)
        if lease is None or lease.fence != fence or lease.is_released:
            raise LeaseLost(run_id)
        return lease

    def _key(self, sql: sqlite3.Connection, run_id: str) -> int:
        return self._find(sql, "select id from anabranch_run ", run_id)[0]

    def _run(self, sql: sqlite3.Connection, run_id: str) -> RunRow:
        return self._read_run(self._find(sql, _SELECT_RUN, run_id))

    def _find(self, sql: sqlite3.Connection, select: str, run_id: str) -> tuple[Any, ...]:
        if _is_name(run_id):
            found = sql.execute(select + "where run_id = ?", (run_id,)).fetchone()
            if found is not None:
                return found
        raise RunNotFound(run_id, self.name)

    def _read_run(self, columns: tuple[Any, ...]) -> RunRow:
        run, read = RunRow(*columns), self._checksums.read
        error = None if run.error is None else read(run.error, b"")
        inputs = read(run.inputs, f"{run.class_name} {run.version}".encode())
        return run._replace(inputs=inputs, error=error)

    def _rows(self, sql: sqlite3.Connection, key: int) -> list[Row]:
        return self._checksums.read_rows(sql, sql.execute(_SELECT_ROWS, (key,)))

    def _letters(self, sql: sqlite3.Connection, key: int, after: int) -> list[Letter]:
        found = sql.execute(
            "select id, kind, name, value, time from anabranch_mail"
            " where run = ? and id > ? order by id",
            (key, after),
        )
        read = self._checksums.read
        return [
            Letter(number, kind, name, read(value, f"{kind} {name} {when}".encode()), when)
            for number, kind, name, value, when in found
        ]

    def _release(
        self,
        sql: sqlite3.Connection,
        lease: Lease,
        state: str,
        error: bytes | None = None,
        clock: float | None = None,
    ) -> None:
        """Release a lease, also its lock if the statement fails."""
        if self._leases.get(lease.run_id) is lease:
            del self._leases[lease.run_id]
        try:
            changed = sql.execute(
                "update anabranch_run set state = :state, error = :error, owner = '',"
                " lease_until = null, clock = coalesce(:clock, clock + max(0, :now - updated)),"
                " updated = :now where id = :key and fence = :fence",
                {
                    "state": state,
                    "error": error and self._checksums.write(error, b""),
                    "clock": clock,
                    "now": time.time(),
                    "key": lease.key,
                    "fence": lease.fence,
                },
            )
            if not changed.rowcount:
                raise LeaseLost(lease.run_id)
        finally:
            _unlock(lease)


def _unlock(lease: Lease) -> None:
    if lease.lock is not None:
        lease.lock.release()
