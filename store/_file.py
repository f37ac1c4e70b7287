"""A journal's file, as the rest of the room uses it: runs, their rows, and letters to runs.

The SQL stands here; the thread that runs it, and when it commits, in `_writer`.
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
from ..messages.sqlite import MEMORY
from ._inbox import Watch
from ._json import digest
from ._keys import Keys
from ._lock import RunLock
from ._purge import remove_some
from ._seal import BytesCodec, Row, Seal, check_size
from ._writer import Claim, Writer
from .errors import JournalError, LeaseLost, RunBusy, RunExists, RunNotFound

__all__ = [
    "ENDED",
    "JournalFile",
    "Letter",
    "Row",
    "RunRow",
    "check_name",
    "clock_at_end",
    "last_clock",
]

T = TypeVar("T")

ENDED = ("completed", "failed", "cancelled")
NAME = re.compile(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,1000}")

_RUN = """select run_id, class_name, version, state, inputs, queue, created,
    max(updated, coalesce((select time from anabranch_row where run = id order by seq desc limit 1),
        0)),
    fence, owner, lease_until, recoveries, error,
    coalesce((select max(seq) from anabranch_row where run = id), 0), clock
    from anabranch_run """
_ROWS = """select ident, kind, value, digest, seq, time from anabranch_row
    where run = ? order by seq"""
_KEY = "select 1 from anabranch_key where digest = ?"


class RunRow(NamedTuple):
    """What is known of a run. Times are in seconds since the epoch."""

    run_id: str
    class_name: str
    version: int  # of the class
    state: str  # pending, running, suspended, parked, or one of `ENDED`
    inputs: bytes
    queue: str
    created: float
    updated: float  # of its last row, or its last change of state
    fence: int  # rises with each claim
    owner: str  # empty if nobody has it
    lease_until: float | None
    recoveries: int  # claims after an owner that died, without a new row between them
    error: bytes | None
    rows: int  # the number of its last row
    clock: float = 0.0  # seconds for which it had an owner, up to the last claim or release


class Letter(NamedTuple):
    """What came into a run from elsewhere: a signal, an answer, a cancel."""

    id: int  # rises in the order of arrival, over all runs
    kind: str
    name: str
    value: bytes
    time: float  # of arrival, in seconds since the epoch


def check_name(name: object, what: str = "a run_id") -> None:
    """Refuse a name that could not be written, or shown."""
    if not _is_name(name):
        shown = name if not isinstance(name, str) or len(name) < 100 else name[:100] + "..."
        raise ConfigurationError(
            f"{what} is a text of 1 to 1,000 characters, none of them a control character, and not"
            f" {shown!r}"
        )


def _is_name(name: object) -> bool:
    return isinstance(name, str) and NAME.fullmatch(name) is not None


def last_clock(rows: list[Row]) -> float:
    """Return the run's clock at the last of these rows that has it."""
    said = [row.value for row in rows if row.kind in ("began", "attempt", "clock")]
    return json.loads(said[-1])["clock"] if said else 0.0


def clock_at_end(rows: list[Row], claimed_at: int, clock: float, claimed: float) -> float:
    """Return the run's clock at the last row of an owner that died.

    The owner acquired the run after the row `claimed_at`, at the time `claimed`, when the clock was
    `clock`. A row of the kind "clock" corrects it after the wall clock was set.
    """
    own = [row for row in rows if row.seq > claimed_at]
    for row in own:
        if row.kind == "clock":
            clock, claimed = json.loads(row.value)["clock"], row.time
    return clock + max(0.0, own[-1].time - claimed) if own else clock


class JournalFile:
    """One open file, to be used from one event loop.

    Every method that waits raises `JournalError` once the file cannot be used any more, and
    `append` does so at once.
    """

    def __init__(self, name: str, codec: BytesCodec | None = None) -> None:
        self.name = name
        self._seal = Seal(name, codec)
        self._writer = Writer(name, self._seal)
        self._claims: dict[str, Claim] = {}
        # Of the runs that are worked on here: what no letter to them may have in it.
        self.keys: dict[str, Keys] = {}
        self._watch = Watch(self.call)

    @property
    def is_open(self) -> bool:
        """Whether it was opened in this process, and not closed since."""
        return self._writer.is_alive

    async def open(self) -> None:
        """Open the file, or make it; again when it was closed. Raises `JournalError`."""
        if self._writer.is_alive:
            raise JournalError(self.name, "is open already", "use it as it is, or open another one")
        self._writer = Writer(self.name, self._seal)
        self._watch = Watch(self.call)  # this may be another loop, where no old event serves
        await self._writer.start()

    async def close(self) -> None:
        """Write what was appended and close the file; twice is harmless.

        Runs that were not released are free for the next claim, and count as left by an owner that
        died. Raises `JournalError` if something could not be written and nobody has been told.
        """
        try:
            await self._writer.stop()
        finally:
            for claim in self._claims.values():
                _unlock(claim)
            self._claims.clear()

    # Rows

    def append(self, run_id: str, fence: int, row: Row) -> int:
        """Give a row its number and time and queue it; return the number. Never waits.

        The rows of a run keep their order, and those that survive are a prefix. Raises `LeaseLost`
        once it is known that the run is not owned here under this fence, and `NotStorable` for a
        value of more than 64 MiB. Whether the row is on disk, `barrier` says.
        """
        return self._writer.append(self._claim(run_id, fence), row)

    async def barrier(self, run_id: str = "", fence: int = 0) -> None:
        """Return when all that was appended before is on disk.

        With a run, also when nothing was appended: `LeaseLost` if it is not owned here under this
        fence, as the file has it now. All who wait at once share a commit.
        """
        await self._writer.ask(None, self._claim(run_id, fence) if run_id else None, writes=False)

    async def call(self, function: Callable[[sqlite3.Connection], T], *, writes: bool = True) -> T:
        """Call a function of the store in the writer's thread, after what was appended before.

        It is part of the same transaction. Its exception takes back what it did itself and is
        raised here; the rows before stay. Cancelling this wait does not undo it. One that only
        reads (`writes=False`) does not wait for other processes' commits.
        """
        return await self._writer.ask(function, writes=writes)

    async def transact(
        self, run_id: str, fence: int, function: Callable[[sqlite3.Connection], Row]
    ) -> int:
        """Call a user's function and write the row that it returns: both are on disk, or neither.

        Returns the row's number, which stays unused if the function raises. It cannot end the
        transaction, not even by `executescript`: `sqlite3.DatabaseError`, "not authorized".
        """
        claim = self._claim(run_id, fence)
        claim.seq = seq = claim.seq + 1
        await self._writer.ask(function, claim, seq=seq)
        return seq

    async def look(self, run_id: str) -> tuple[RunRow, list[Row], list[Letter]]:
        """Return a run, its rows and its letters, of one moment. Raises `RunNotFound`."""

        def select(sql: sqlite3.Connection) -> tuple[RunRow, list[Row], list[Letter]]:
            key = self._key(sql, run_id)
            return self._run(sql, run_id), self._rows(sql, key), self._letters(sql, key, 0)

        return await self.call(select, writes=False)

    async def rows(self, run_id: str) -> list[Row]:
        """Return all rows of a run, in their order. Raises `RunNotFound`."""
        return await self.call(lambda sql: self._rows(sql, self._key(sql, run_id)), writes=False)

    # Runs

    async def start(
        self, run_id: str, class_name: str, version: int, inputs: bytes, queue: str = ""
    ) -> RunRow:
        """Accept a run: it is on disk when this returns. The same again is the same run.

        Raises `RunExists` if the name belongs to a run of another class or with other inputs,
        `ConfigurationError` if it cannot be a name.
        """
        check_name(run_id)
        check_size(inputs)

        def insert(sql: sqlite3.Connection) -> RunRow:
            now, sealed = time.time(), self._seal.write(inputs, f"{class_name} {version}".encode())
            sql.execute(
                "insert or ignore into anabranch_run (run_id, class_name, version, state, inputs,"
                " queue, created, updated) values (?, ?, ?, 'pending', ?, ?, ?, ?)",
                (run_id, class_name, version, sealed, queue, now, now),
            )
            run = self._run(sql, run_id)
            if run.class_name != class_name:
                raise RunExists(run_id, f"it is a {run.class_name}, and not a {class_name}")
            if run.inputs != inputs:
                raise RunExists(run_id, "it was started with other inputs")
            return run

        return await self.call(insert)

    async def claim(self, run_id: str, owner: str) -> tuple[RunRow, list[Row]]:
        """Take a run, to go on with it; return it with all its rows. Nobody else has it then.

        `recoveries` counts this claim if the last owner died without a new row that took the run
        further, and begins anew after one. The run's clock has gone on up to the last owner's end;
        of one that died, its last row is all that is known. Raises `RunNotFound`, or `RunBusy`
        while another process, another journal or this one has it.
        """
        locks: list[RunLock] = []
        made: list[Claim] = []

        def lock(sql: sqlite3.Connection) -> None:
            self._key(sql, run_id)
            if run_id in self._claims:
                raise RunBusy(run_id, os.getpid())
            if self.name != MEMORY:
                locks.append(RunLock(self._writer.path, run_id))

        def take(sql: sqlite3.Connection) -> tuple[RunRow, list[Row]]:
            key = self._key(sql, run_id)
            if run_id in self._claims:
                raise RunBusy(run_id, os.getpid())
            old, rows = self._run(sql, run_id), self._rows(sql, key)
            clock = old.clock
            if old.state == "running":
                claim = "select claimed_at_row, updated from anabranch_run where id = ?"
                claimed_at, claimed = sql.execute(claim, (key,)).fetchone()
                clock = clock_at_end(rows, claimed_at, clock, claimed)
            # Rows that each life may add again take a run no further: what a reply says while
            # it grows, an effect that is begun and does not end.
            sql.execute(
                "update anabranch_run set fence = fence + 1, state = 'running', owner = ?,"
                " updated = ?, claimed_at_row = ?, recoveries = case when exists (select 1"
                " from anabranch_row where run = id and seq > claimed_at_row"
                " and kind not in ('partial', 'intent', 'withdrawn', 'ended', 'clock'))"
                " then 0 else recoveries + ? end, clock = ? where id = ?",
                (owner, time.time(), old.rows, old.state == "running", clock, key),
            )
            run = self._run(sql, run_id)
            made.append(Claim(key, run_id, run.fence, run.rows, *locks or [None]))
            self._claims[run_id] = made[0]
            return run, rows

        def undo(sql: sqlite3.Connection) -> None:
            for each in made:
                self._let_go(sql, each, "suspended")
            for each in locks:
                each.release()

        try:
            # In a transaction that only reads: an owner that was stopped in the middle of a commit
            # keeps every other process from writing.
            await self.call(lock, writes=False)
            return await self.call(take)
        except asyncio.CancelledError:
            self._writer.follow(undo)  # the claim is made by now, or will be
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
        """Give a run back in a new state, in one commit with the rows before it.

        `clock` is what the run's clock says, by default what the wall's clock says of it. From this
        call on nothing more can be appended for the run. Raises `LeaseLost`.
        """
        claim = self._claim(run_id, fence)
        claim.left = True
        await self.call(lambda sql: self._let_go(sql, claim, state, error, clock))

    async def runs(
        self, state: str | None = None, prefix: str | None = None, limit: int | None = None
    ) -> list[RunRow]:
        """Return the runs in a state, with ids that begin so; the newest first, at most `limit`."""

        def select(sql: sqlite3.Connection) -> list[RunRow]:
            found = sql.execute(
                _RUN + "where (:state is null or state = :state) and (:prefix is null"
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
        """Make a new run, `pending`, with another's inputs and its rows up to number `at`.

        `clock` is what its clock said then. Letters are not copied. Raises `RunNotFound`, or
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
                raise RunExists(new_run_id, "a fork needs a name of its own") from None
            sql.execute(
                "insert into anabranch_row select ?, seq, ident, kind, value, digest, time"
                " from anabranch_row where run = ? and seq <= ? order by seq",
                (new, key, at),
            )
            return self._run(sql, new_run_id)

        return await self.call(copy)

    async def purge(
        self, before: float, states: Sequence[str] = ENDED, prefix: str | None = None
    ) -> int:
        """Remove runs that ended so before a time; return how many.

        Each transaction is short, and a pause as long follows it, in which others can write.
        """
        purged, more = 0, True
        while more:
            began = time.monotonic()
            removed, more = await self.call(lambda sql: remove_some(sql, before, states, prefix))
            purged += removed
            if more:
                await asyncio.sleep(time.monotonic() - began)
        return purged

    # What comes from elsewhere

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
        """Send something into a run; it is on disk when this returns its number.

        Anybody may, also from another process. What the run does not wait for need not wake those
        who wait for letters here. What has the same `key` as an earlier one is not sent again, and
        has the number 0. `check` is called with the run, in the same transaction, and may refuse by
        an exception. Raises `RunNotFound`.
        """
        if run_id in self.keys:
            value = self.keys[run_id].cut_json(value)
        check_size(value)
        known = b"" if key is None or not _is_name(run_id) else digest(run_id, kind, name, key)

        def insert(sql: sqlite3.Connection) -> int:
            now = time.time()
            if known and sql.execute(_KEY, (known,)).fetchone() is not None:
                return 0
            run = self._key(sql, run_id)
            if check is not None:
                check(self._run(sql, run_id))
            if known:
                sql.execute("insert into anabranch_key values (?, ?, ?)", (known, run, now))
            sealed = self._seal.write(value, f"{kind} {name} {now}".encode())
            (number,) = sql.execute(
                "insert into anabranch_mail (run, kind, name, value, time)"
                " values (?, ?, ?, ?, ?) returning id",
                (run, kind, name, sealed, now),
            ).fetchone()
            return number

        number = await self.call(insert)
        if wakes:
            self._watch.post()
        return number

    async def letters(self, run_id: str, after: int = 0) -> list[Letter]:
        """Return what came into a run after the letter of that number. Raises `RunNotFound`."""
        return await self.call(
            lambda sql: self._letters(sql, self._key(sql, run_id), after), writes=False
        )

    async def watch(self, seen: int | None = None) -> int:
        """Return a number once it differs from `seen`; it changes when there may be new letters.

        That is at a commit of another process or journal, which is noticed within 0.25 s, and at a
        `post` here. First take the number, then read the letters, then watch: nothing is missed.
        However many watch, the file is looked at once.
        """
        return await self._watch.change(seen)

    # What the calls have in common

    def _claim(self, run_id: str, fence: int) -> Claim:
        claim = self._claims.get(run_id)
        if claim is None or claim.fence != fence or claim.left:
            raise LeaseLost(run_id)
        return claim

    def _key(self, sql: sqlite3.Connection, run_id: str) -> int:
        return self._find(sql, "select id from anabranch_run ", run_id)[0]

    def _run(self, sql: sqlite3.Connection, run_id: str) -> RunRow:
        return self._read_run(self._find(sql, _RUN, run_id))

    def _find(self, sql: sqlite3.Connection, select: str, run_id: str) -> tuple[Any, ...]:
        if _is_name(run_id):
            found = sql.execute(select + "where run_id = ?", (run_id,)).fetchone()
            if found is not None:
                return found
        raise RunNotFound(run_id, self.name)

    def _read_run(self, columns: tuple[Any, ...]) -> RunRow:
        run, read = RunRow(*columns), self._seal.read
        error = None if run.error is None else read(run.error, b"")
        inputs = read(run.inputs, f"{run.class_name} {run.version}".encode())
        return run._replace(inputs=inputs, error=error)

    def _rows(self, sql: sqlite3.Connection, key: int) -> list[Row]:
        return self._seal.read_rows(sql, sql.execute(_ROWS, (key,)))

    def _letters(self, sql: sqlite3.Connection, key: int, after: int) -> list[Letter]:
        found = sql.execute(
            "select id, kind, name, value, time from anabranch_mail"
            " where run = ? and id > ? order by id",
            (key, after),
        )
        read = self._seal.read
        return [
            Letter(number, kind, name, read(value, f"{kind} {name} {when}".encode()), when)
            for number, kind, name, value, when in found
        ]

    def _let_go(
        self,
        sql: sqlite3.Connection,
        claim: Claim,
        state: str,
        error: bytes | None = None,
        clock: float | None = None,
    ) -> None:
        """Give a run back, in the writer's thread."""
        if self._claims.get(claim.run_id) is claim:
            del self._claims[claim.run_id]
        try:
            changed = sql.execute(
                "update anabranch_run set state = :state, error = :error, owner = '',"
                " lease_until = null, clock = coalesce(:clock, clock + max(0, :now - updated)),"
                " updated = :now where id = :key and fence = :fence",
                {
                    "state": state,
                    "error": error and self._seal.write(error, b""),
                    "clock": clock,
                    "now": time.time(),
                    "key": claim.key,
                    "fence": claim.fence,
                },
            )
            if not changed.rowcount:
                raise LeaseLost(claim.run_id)
        finally:
            _unlock(claim)


def _unlock(claim: Claim) -> None:
    if claim.lock is not None:
        claim.lock.release()
