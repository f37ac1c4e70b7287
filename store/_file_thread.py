"""The thread that executes the SQL of a journal, with one commit for many callers.

One queue has, in order: rows, without a waiting caller; barriers; and functions that are called
with the connection. The thread wakes at once if a caller waits, else 2 ms after the first row. It
writes all that is queued in one transaction. So after a crash the file has a prefix of the queue.

If a transaction cannot be written, the file has nothing of it, and all present and later callers
get the error. Rows of a run that has another owner by now are left out; other rows are written.
"""

from __future__ import annotations

import asyncio
import atexit
import hashlib
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from ..commander.thread import WAITING_THREADS
from ..files.sqlite import MEMORY, is_file_fault, is_same_file
from ._checksums import Checksums, Row, about_row, check_size
from ._last_commit import COUNTS_SQL, CommitNote
from ._lock import RunLock
from ._open_file import connect, explain, find_place
from .errors import JournalError, LeaseLost

__all__ = ["FileThread", "Lease"]

T = TypeVar("T")

MAX_INLINE_BYTES = 64 << 10  # a longer value is stored once for all rows that have it
GATHER_SECONDS = 0.002  # more rows may join a commit without a waiting caller
FILE_SUFFIXES = ("", "-wal", "-shm")  # SQLite's files of one database
EXIT_SECONDS = 10.0  # the end of the interpreter waits so long for the last commit

_SELECT_FENCE = "select fence from anabranch_run where id = ?"
_INSERT_ROW = (
    "insert into anabranch_row (run, seq, ident, kind, value, digest, time)"
    " values (?, ?, ?, ?, ?, ?, ?)"
)


class Lease:
    """A run that is owned here, under the number `fence`, which rises with each owner."""

    __slots__ = ("fence", "is_lost", "is_released", "key", "lock", "run_id", "seq")

    def __init__(self, key: int, run_id: str, fence: int, seq: int, lock: RunLock | None) -> None:
        self.key = key
        self.run_id = run_id
        self.fence = fence
        self.seq = seq  # the number of its last row, written or queued
        self.lock = lock
        self.is_released = False  # no more rows can be appended
        self.is_lost = False  # the thread has found another fence in the file


# Run, number, identity, kind, value, digest of a value in its own table, time.
_Columns = tuple[int, int, bytes, str, bytes, bytes | None, float]


# A row to be written, before a long value is replaced by its digest.
_QueuedRow = tuple[Lease, _Columns]


class _QueuedCall(NamedTuple):
    """An entry of the queue with a waiting caller."""

    future: asyncio.Future[Any]
    function: Callable[[sqlite3.Connection], Any] | None = None  # None: a barrier
    lease: Lease | None = None  # it must not be lost
    writes: bool = True
    seq: int = 0  # if not 0, the function is a user's, and returns the row with this number


class _Stop(NamedTuple):
    """The last entry of the queue, without a future if the interpreter ends."""

    future: asyncio.Future[Any] | None


_Outcome = tuple[asyncio.Future[Any], Any, BaseException | None]


class WakeUp:
    """A wake-up event, which `set` sets without waiting for a lock.

    A finalizer or a signal handler may append a row while the same thread is inside `set` or
    `wait`. A fork may happen there too. `threading.Event` would deadlock.
    """

    def __init__(self) -> None:
        self.is_set = False
        # Unlocked once the event is set; `wait` locks it.
        self._free = threading.Lock()
        self._free.acquire()

    def set(self) -> None:
        """Let the current or the next `wait` return."""
        self.is_set = True
        if self._free.locked():
            with suppress(RuntimeError):  # another call has released it
                self._free.release()

    def wait(self, timeout: float = -1) -> None:
        """Return when it is set, or was since `clear`, or after `timeout` seconds."""
        thread = threading.get_ident()
        WAITING_THREADS[thread] = lambda: timeout < 0 and not self.is_set
        self._free.acquire(timeout=timeout)
        WAITING_THREADS.pop(thread, None)

    def clear(self) -> None:
        """Reset it."""
        self._free.acquire(blocking=False)
        self.is_set = False


class FileThread:
    """The queue and the thread of one open file. Public methods are for the loop's thread."""

    def __init__(self, name: str, checksums: Checksums) -> None:
        self._name = name
        self._checksums = checksums
        # The real path of the file; the thread sets it when it opens the file.
        self.path = name
        self._commit_note: CommitNote | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queue: deque[_QueuedRow | _QueuedCall | _Stop] = deque()
        self._work_waits = WakeUp()  # something is queued
        self._caller_waits = WakeUp()  # and a caller waits for it
        # The error that stopped the thread; and the error that new callers get: that one, or "is
        # closed".
        self._failure: JournalError | None = None
        self._refusal: JournalError | None = None
        self._is_reported = False  # a caller has got the failure
        self._is_closed = False
        # A daemon: the interpreter would wait for another thread before it calls `_at_exit`, which
        # makes this one write the rest and end.
        self._thread = threading.Thread(target=self._work, name=f"journal {name}", daemon=True)

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs in this process and was not stopped."""
        return self._thread.is_alive() and not self._is_closed

    async def start(self) -> None:
        """Start the thread, which opens the file. Raises `JournalError`."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        atexit.register(self._at_exit)
        try:
            await self.ask(None, writes=False)
        except BaseException:
            self._stop(None)
            raise

    async def stop(self) -> None:
        """Write all that is queued, close the file and end the thread; twice is harmless.

        Raises `JournalError` if something could not be written and no caller got the error.
        """
        if self._is_closed or not self._thread.is_alive():
            return
        was_reported, ended = self._is_reported, asyncio.get_running_loop().create_future()
        self._stop(ended)
        try:
            await ended
        except JournalError:
            if not was_reported:
                raise
        finally:
            if ended.done() and not ended.cancelled():
                self._thread.join()

    def append(self, lease: Lease, row: Row) -> int:
        """Queue a row and return its number."""
        if self._refusal is not None:
            raise self._copy_error(self._refusal)
        if lease.is_lost:
            raise LeaseLost(lease.run_id)
        ident, kind, value, *_ = row
        check_size(value)
        now = time.time()
        lease.seq = seq = (
            lease.seq + 1
        )  # no call between these lines: a finalizer might append there
        self._queue.append((lease, (lease.key, seq, ident, kind, value, None, now)))
        self._work_waits.set()
        return seq

    async def ask(
        self,
        function: Callable[[sqlite3.Connection], T] | None,
        lease: Lease | None = None,
        *,
        writes: bool = True,
        seq: int = 0,
    ) -> T:
        """Return when all that was queued before is on disk and `function` was called.

        An exception of `function` rolls back its own statements. If the lease is lost, it is not
        called, and this raises `LeaseLost`. Cancelling this wait rolls back nothing.
        """
        future = asyncio.get_running_loop().create_future()
        self._push(_QueuedCall(future, function, lease, writes, seq))
        return await future

    def follow(self, function: Callable[[sqlite3.Connection], object]) -> None:
        """Queue a call of `function` without waiting for it."""
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        with suppress(JournalError):
            self._push(_QueuedCall(future, function))

    def _push(self, call: _QueuedCall) -> None:
        if self._refusal is not None:
            raise self._copy_error(self._refusal)
        if not self._thread.is_alive():
            why = "is not open in this process"
            raise JournalError(self._name, why, "open it here: async with Journal(...)")
        if call.future.get_loop() is not self._loop:
            why = "was opened in another event loop"
            raise JournalError(self._name, why, "open another Journal of this file here")
        self._queue.append(call)
        self._work_waits.set()
        self._caller_waits.set()

    def _copy_error(self, error: JournalError) -> JournalError:
        """Return a copy of an error: each caller needs its own traceback."""
        self._is_reported = True
        copy = JournalError(error.journal, error.why, error.remedy)
        copy.__cause__ = error.__cause__
        return copy

    def _stop(self, future: asyncio.Future[Any] | None) -> None:
        self._is_closed = True
        atexit.unregister(self._at_exit)
        if self._refusal is None:
            self._refusal = JournalError(self._name, "is closed", "open it again")
        self._queue.append(_Stop(future))
        self._work_waits.set()
        self._caller_waits.set()

    def _at_exit(self) -> None:
        """Write the queue at the end of the interpreter, if the file was not closed."""
        self._stop(None)
        self._thread.join(EXIT_SECONDS)

    # --- in the thread

    def _work(self) -> None:
        connection: sqlite3.Connection | None = None
        files: dict[str, os.stat_result] = {}
        try:
            if self._name != MEMORY:
                self.path = find_place(self._name)
                if self.path in _open_before_fork:
                    raise JournalError(self._name, *_FORKED_FAULT)
                _open.add(self)
            connection = connect(self._name)
            if self._name != MEMORY:
                files = {self.path + end: os.stat(self.path + end) for end in FILE_SUFFIXES}
                self._commit_note = CommitNote(self.path)
            self._checksums.check(connection)
        except BaseException as error:  # noqa: BLE001 - callers get it
            self._fail(error)
        while True:
            self._work_waits.wait()
            self._caller_waits.wait(GATHER_SECONDS)
            # Before the queue is read: an entry that is queued later sets the events again.
            self._work_waits.clear()
            self._caller_waits.clear()
            batch: list[Any] = [self._queue.popleft() for _ in range(len(self._queue))]
            stop: _Stop | None = None
            if self._is_closed:  # not always last: at exit a loop in another thread may still queue
                stop = next((each for each in batch if isinstance(each, _Stop)), None)
                batch = [each for each in batch if each is not stop]
            outcomes: list[_Outcome] = []
            if batch and connection is not None and self._failure is None:
                try:
                    outcomes = self._commit(connection, batch, files)
                except BaseException as error:  # noqa: BLE001 - as above
                    self._fail(error)
                    with suppress(sqlite3.Error):
                        connection.rollback()
            if self._failure is not None:
                if connection is not None:
                    connection.close()
                    connection = None
                if self._commit_note is not None:
                    self._commit_note.close(well=False)
                _open.discard(self)
                waiting = [each.future for each in batch if isinstance(each, _QueuedCall)]
                outcomes = [(each, None, self._copy_error(self._failure)) for each in waiting]
            if stop is not None:
                if connection is not None:
                    with suppress(sqlite3.Error):
                        connection.execute("pragma wal_checkpoint(passive)")
                    connection.close()
                    if self._commit_note is not None:
                        self._commit_note.close(well=True)
                    _open.discard(self)
                if stop.future is not None:
                    error = self._copy_error(self._failure) if self._failure is not None else None
                    outcomes.append((stop.future, None, error))
            _set_futures(outcomes)
            if stop is not None:
                return
            del batch, outcomes  # or their objects would live until the next batch

    def _fail(self, error: BaseException) -> None:
        if not isinstance(error, JournalError):
            error = explain(self._name, error)
        self._failure = error
        if self._refusal is None:
            self._refusal = error

    def _commit(
        self,
        connection: sqlite3.Connection,
        batch: list[Any],
        files: dict[str, os.stat_result],
    ) -> list[_Outcome]:
        writes = any(type(each) is tuple or each.writes for each in batch)
        # `immediate`: a read that becomes a write could fail because another process wrote.
        connection.execute("begin immediate" if writes else "begin")
        checked: set[Lease] = set()
        rows: list[_Columns] = []
        outcomes: list[_Outcome] = []
        last: tuple[int, int] | None = None  # the run and the number of the last row
        counts: tuple[int, int] | None = None
        for each in batch:
            is_row = each.__class__ is tuple
            lease: Lease | None = each[0] if is_row else each.lease
            if lease is not None and lease not in checked:
                checked.add(lease)
                found = connection.execute(_SELECT_FENCE, (lease.key,)).fetchone()
                lease.is_lost = lease.is_lost or found != (lease.fence,)
            if is_row:
                if not each[0].is_lost:
                    columns: _Columns = each[1]
                    rows.append(self._add_checksum(connection, columns))
            elif lease is not None and lease.is_lost:
                outcomes.append((each.future, None, LeaseLost(lease.run_id)))
            elif each.function is None:
                outcomes.append((each.future, None, None))
            else:
                connection.executemany(_INSERT_ROW, rows)  # it must see the rows before it
                last = rows[-1][:2] if rows else last
                rows.clear()
                result, failure = self._call(connection, each)
                outcomes.append((each.future, result, failure))
                if each.seq and failure is None:
                    last = each.lease.key, each.seq
                elif each.writes:
                    counts = connection.execute(COUNTS_SQL).fetchone()
        connection.executemany(_INSERT_ROW, rows)
        last = rows[-1][:2] if rows else last
        connection.execute("commit")
        if writes:  # after the commit, and before callers learn of it
            for path, stat in files.items():
                if not is_same_file(path, stat):
                    why = f"was removed or replaced while it was open ({path!r})"
                    remedy = "restore its files from a backup, or start the runs again"
                    raise JournalError(self._name, why, remedy)
            if self._commit_note is not None:
                self._commit_note.write(last, counts)
        return outcomes

    def _call(
        self, connection: sqlite3.Connection, call: _QueuedCall
    ) -> tuple[Any, BaseException | None]:
        assert call.function is not None
        result, failure = None, None
        connection.execute("savepoint call")
        try:
            if call.seq:
                connection.set_authorizer(_protect_transaction)
            try:
                result = call.function(connection)
            finally:
                if call.seq:
                    connection.set_authorizer(None)
            if call.seq:
                assert call.lease is not None
                check_size(result.value)
                ident, kind, value, *_ = result
                columns = (call.lease.key, call.seq, ident, kind, value, None, time.time())
                connection.execute(_INSERT_ROW, self._add_checksum(connection, columns))
        except Exception as error:
            if is_file_fault(error) or not connection.in_transaction:
                raise
            connection.execute("rollback to call")
            failure = error
            if isinstance(error, StopIteration):  # a future refuses it
                failure = RuntimeError("the function raised StopIteration")
            elif not call.seq and isinstance(error, sqlite3.Error | OSError):
                failure = explain(
                    self._name, error
                )  # the store's own statements are correct: it is the file
        connection.execute("release call")
        return result, failure

    def _add_checksum(self, connection: sqlite3.Connection, columns: _Columns) -> _Columns:
        """Return the columns of a row with checksums; store a large value in its own table."""
        key, seq, ident, kind, value, digest, at = columns
        if len(value) > MAX_INLINE_BYTES:
            large = self._checksums.write(value, b"")
            value, digest = b"", hashlib.sha256(large).digest()
            add = "insert or ignore into anabranch_blob values (?, ?)"
            connection.execute(add, (digest, large))
        value = self._checksums.write(value, about_row(seq, at, ident, kind, digest))
        return key, seq, ident, kind, value, digest, at


_FORKED_FAULT = (
    "was open when this process was forked, and SQLite cannot be used across a fork",
    "start the process by multiprocessing.get_context('spawn') or subprocess",
)
# The threads whose files are open in this process, and the files that were open at the fork.
_open: set[FileThread] = set()
_open_before_fork: set[str] = set()


def _note_fork() -> None:
    _open_before_fork.update(writer.path for writer in _open)
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


_READ_ACTIONS = {sqlite3.SQLITE_READ, sqlite3.SQLITE_SELECT, sqlite3.SQLITE_FUNCTION}
# Statements that would end the transaction, which has rows of other runs, or change the file.
_REFUSED_ACTIONS = {
    sqlite3.SQLITE_TRANSACTION,
    sqlite3.SQLITE_SAVEPOINT,
    sqlite3.SQLITE_ATTACH,
    sqlite3.SQLITE_DETACH,
    sqlite3.SQLITE_PRAGMA,
}


def _protect_transaction(action: int, *names: str | None) -> int:
    """Refuse a user's statements that would harm the journal; its tables can be read."""
    is_own_table = any(name is not None and name.lower().startswith("anabranch_") for name in names)
    if action in _REFUSED_ACTIONS or (is_own_table and action not in _READ_ACTIONS):
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def _set_futures(outcomes: list[_Outcome]) -> None:
    """Set the futures of callers, with one call for all futures of a loop."""
    loops: dict[asyncio.AbstractEventLoop, list[_Outcome]] = {}
    for outcome in outcomes:
        loops.setdefault(outcome[0].get_loop(), []).append(outcome)
    for loop, group in loops.items():
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_settle, group)


def _settle(outcomes: list[_Outcome]) -> None:
    for future, result, error in outcomes:
        if future.done():
            continue  # its caller was cancelled
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
