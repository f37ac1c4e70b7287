"""The one thread that reads and writes a journal's file, and its commits for many at once.

Everything goes through one queue, in its order: rows, which nobody waits for; barriers; and
functions that are called with the connection. The thread wakes at once when somebody waits, else
2 ms after the first row, and writes all that has come in one transaction. So the file has a prefix
of what was queued, whatever happens.

A transaction that cannot be written fails all who wait and all who come later; none of it is in the
file. What is appended for a run whose fence has been passed on is not written, others' rows are.
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
from ..messages.sqlite import MEMORY, is_file_fault, is_same_file
from ._lock import RunLock
from ._mark import COUNTS, Mark
from ._schema import connect, explain, find_place
from ._seal import Row, Seal, about_row, check_size
from .errors import JournalError, LeaseLost

__all__ = ["Lease", "Writer"]

T = TypeVar("T")

INLINE = 64 << 10  # bytes; a longer value is kept once, however many rows have it
GATHER = 0.002  # seconds in which others may join a commit that nobody waits for
ENDS = ("", "-wal", "-shm")  # of the names of a journal's files
AT_EXIT = 10.0  # seconds that the interpreter's end waits for the last commit

_FENCE = "select fence from anabranch_run where id = ?"
_INSERT = (
    "insert into anabranch_row (run, seq, ident, kind, value, digest, time)"
    " values (?, ?, ?, ?, ?, ?, ?)"
)


class Lease:
    """A run that is owned here: what is written for it carries its fence."""

    __slots__ = ("fence", "key", "left", "lock", "lost", "run_id", "seq")

    def __init__(self, key: int, run_id: str, fence: int, seq: int, lock: RunLock | None) -> None:
        self.key = key
        self.run_id = run_id
        self.fence = fence
        self.seq = seq  # of the last row, written or queued
        self.lock = lock
        self.left = False  # it is being given back
        self.lost = False  # set by the writer, which found another fence in the file


# Run, number, identity, kind, value or else the digest of it, time.
_Columns = tuple[int, int, bytes, str, bytes, bytes | None, float]


# A row that waits to be written, as if its value were short, and for whom.
_Written = tuple[Lease, _Columns]


class _Asked(NamedTuple):
    """A place in the queue that somebody waits for."""

    future: asyncio.Future[Any]
    function: Callable[[sqlite3.Connection], Any] | None = None  # None: a barrier
    lease: Lease | None = None  # whose fence has to hold
    writes: bool = True
    seq: int = 0  # if not 0, the function is a user's and returns the row of this number


class _Stop(NamedTuple):
    """The last thing in the queue. There is no future if the interpreter ends."""

    future: asyncio.Future[Any] | None


_Outcome = tuple[asyncio.Future[Any], Any, BaseException | None]


class Bell:
    """Wakes the thread. Ringing takes no lock, so it never waits.

    A row may be appended by a finalizer or by a signal's handler, which may run in the middle of
    another `ring` or `wait`, and in a fork that was made then. An `Event` would wait for itself.
    """

    def __init__(self) -> None:
        self.rung = False
        # Free once it was rung; `wait` takes it.
        self._free = threading.Lock()
        self._free.acquire()

    def ring(self) -> None:
        """Let who waits go on, or who will wait next."""
        self.rung = True
        if self._free.locked():
            with suppress(RuntimeError):  # another one was faster
                self._free.release()

    def wait(self, timeout: float = -1) -> None:
        """Return when it is rung, or was since `clear`; or after so many seconds."""
        thread = threading.get_ident()
        WAITING_THREADS[thread] = lambda: timeout < 0 and not self.rung
        self._free.acquire(timeout=timeout)
        WAITING_THREADS.pop(thread, None)

    def clear(self) -> None:
        """Forget that it was rung."""
        self._free.acquire(blocking=False)
        self.rung = False


class Writer:
    """The queue and the thread of one open file. The methods belong to the loop's thread."""

    def __init__(self, name: str, seal: Seal) -> None:
        self._name = name
        self._seal = seal
        # Where the file is; set by the thread, once it is open.
        self.path = name
        self._mark: Mark | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queue: deque[_Written | _Asked | _Stop] = deque()
        self._some = Bell()  # something is queued
        self._urgent = Bell()  # and somebody waits for it
        # What the thread has failed with; what is said to whoever comes now: that, or "is closed".
        self._failure: JournalError | None = None
        self._refusal: JournalError | None = None
        self._told = False  # somebody has got the failure
        self._closed = False
        # A daemon, for the interpreter waits for other threads before it calls `_at_exit`, which
        # lets this one write the rest.
        self._thread = threading.Thread(target=self._work, name=f"journal {name}", daemon=True)

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs, in this process, and has not been told to end."""
        return self._thread.is_alive() and not self._closed

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
        """Write what was appended, close the file and end the thread; twice is harmless.

        Raises `JournalError` if not all could be written and nobody has been told so far.
        """
        if self._closed or not self._thread.is_alive():
            return
        told, ended = self._told, asyncio.get_running_loop().create_future()
        self._stop(ended)
        try:
            await ended
        except JournalError:
            if not told:
                raise
        finally:
            if ended.done() and not ended.cancelled():
                self._thread.join()

    def append(self, lease: Lease, row: Row) -> int:
        """Queue a row and return its number."""
        if self._refusal is not None:
            raise self._again(self._refusal)
        if lease.lost:
            raise LeaseLost(lease.run_id)
        ident, kind, value, *_ = row
        check_size(value)
        now = time.time()
        lease.seq = seq = lease.seq + 1  # no call from here on: another append might come before
        self._queue.append((lease, (lease.key, seq, ident, kind, value, None, now)))
        self._some.ring()
        return seq

    async def ask(
        self,
        function: Callable[[sqlite3.Connection], T] | None,
        lease: Lease | None = None,
        *,
        writes: bool = True,
        seq: int = 0,
    ) -> T:
        """Return when all that was queued before is on disk and `function` has been called.

        Its exception takes back what it did itself. With a lease whose fence is no longer in the
        file it is not called: `LeaseLost`. Cancelling this wait takes back nothing.
        """
        future = asyncio.get_running_loop().create_future()
        self._push(_Asked(future, function, lease, writes, seq))
        return await future

    def follow(self, function: Callable[[sqlite3.Connection], object]) -> None:
        """Have `function` called; nobody waits for it."""
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        with suppress(JournalError):
            self._push(_Asked(future, function))

    def _push(self, asked: _Asked) -> None:
        if self._refusal is not None:
            raise self._again(self._refusal)
        if not self._thread.is_alive():
            why = "was opened by another process, or not at all"
            raise JournalError(self._name, why, "open it here: async with Journal(...)")
        if asked.future.get_loop() is not self._loop:
            why = "was opened in another event loop"
            raise JournalError(self._name, why, "open another Journal of this file here")
        self._queue.append(asked)
        self._some.ring()
        self._urgent.ring()

    def _again(self, error: JournalError) -> JournalError:
        """Return an exception of its own for each who gets it, for each has another traceback."""
        self._told = True
        again = JournalError(error.journal, error.why, error.remedy)
        again.__cause__ = error.__cause__
        return again

    def _stop(self, future: asyncio.Future[Any] | None) -> None:
        self._closed = True
        atexit.unregister(self._at_exit)
        if self._refusal is None:
            self._refusal = JournalError(self._name, "is closed", "open it anew")
        self._queue.append(_Stop(future))
        self._some.ring()
        self._urgent.ring()

    def _at_exit(self) -> None:
        """Let what is left be written when the interpreter ends and nobody has closed the file."""
        self._stop(None)
        self._thread.join(AT_EXIT)

    # What follows runs in the thread.

    def _work(self) -> None:
        connection: sqlite3.Connection | None = None
        files: dict[str, os.stat_result] = {}
        try:
            if self._name != MEMORY:
                self.path = find_place(self._name)
                if self.path in _open_before_fork:
                    raise JournalError(self._name, *_FORKED)
                _open.add(self)
            connection = connect(self._name)
            if self._name != MEMORY:
                files = {self.path + end: os.stat(self.path + end) for end in ENDS}
                self._mark = Mark(self.path)
            self._seal.check(connection)
        except BaseException as error:  # noqa: BLE001 - who waits has to hear of it
            self._fail(error)
        while True:
            self._some.wait()
            self._urgent.wait(GATHER)
            # Whoever queues something now rings again, if it is not among what is taken below.
            self._some.clear()
            self._urgent.clear()
            batch: list[Any] = [self._queue.popleft() for _ in range(len(self._queue))]
            stop: _Stop | None = None
            if self._closed:  # it is the last, unless another thread's loop goes on at the exit
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
                if self._mark is not None:
                    self._mark.close(well=False)
                _open.discard(self)
                waiting = [each.future for each in batch if isinstance(each, _Asked)]
                outcomes = [(each, None, self._again(self._failure)) for each in waiting]
            if stop is not None:
                if connection is not None:
                    with suppress(sqlite3.Error):
                        connection.execute("pragma wal_checkpoint(passive)")
                    connection.close()
                    if self._mark is not None:
                        self._mark.close(well=True)
                    _open.discard(self)
                if stop.future is not None:
                    error = self._again(self._failure) if self._failure is not None else None
                    outcomes.append((stop.future, None, error))
            _tell(outcomes)
            if stop is not None:
                return
            del batch, outcomes  # or they would live until the next ones come

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
                found = connection.execute(_FENCE, (lease.key,)).fetchone()
                lease.lost = lease.lost or found != (lease.fence,)
            if is_row:
                if not each[0].lost:
                    columns: _Columns = each[1]
                    rows.append(self._sealed(connection, columns))
            elif lease is not None and lease.lost:
                outcomes.append((each.future, None, LeaseLost(lease.run_id)))
            elif each.function is None:
                outcomes.append((each.future, None, None))
            else:
                connection.executemany(_INSERT, rows)
                last = rows[-1][:2] if rows else last
                rows.clear()
                result, failure = self._call(connection, each)
                outcomes.append((each.future, result, failure))
                if each.seq and failure is None:
                    last = each.lease.key, each.seq
                elif each.writes:
                    counts = connection.execute(COUNTS).fetchone()
        connection.executemany(_INSERT, rows)
        last = rows[-1][:2] if rows else last
        connection.execute("commit")
        if writes:
            for path, stat in files.items():
                if not is_same_file(path, stat):
                    why = f"was taken away or replaced while it was open ({path!r})"
                    remedy = "put its files back from a backup, or start the runs anew"
                    raise JournalError(self._name, why, remedy)
            if self._mark is not None:
                self._mark.write(last, counts)
        return outcomes

    def _call(
        self, connection: sqlite3.Connection, asked: _Asked
    ) -> tuple[Any, BaseException | None]:
        assert asked.function is not None
        result, failure = None, None
        connection.execute("savepoint call")
        try:
            if asked.seq:
                connection.set_authorizer(_keep_transaction)
            try:
                result = asked.function(connection)
            finally:
                if asked.seq:
                    connection.set_authorizer(None)
            if asked.seq:
                assert asked.lease is not None
                check_size(result.value)
                ident, kind, value, *_ = result
                columns = (asked.lease.key, asked.seq, ident, kind, value, None, time.time())
                connection.execute(_INSERT, self._sealed(connection, columns))
        except Exception as error:
            if is_file_fault(error) or not connection.in_transaction:
                raise
            connection.execute("rollback to call")
            failure = error
            if isinstance(error, StopIteration):  # which no future takes
                failure = RuntimeError("the function raised StopIteration")
            elif not asked.seq and isinstance(error, sqlite3.Error | OSError):
                failure = explain(self._name, error)  # the store's own statements are right
        connection.execute("release call")
        return result, failure

    def _sealed(self, connection: sqlite3.Connection, columns: _Columns) -> _Columns:
        """Return what stands in the table for a row; a large value is kept beside it, once."""
        key, seq, ident, kind, value, digest, at = columns
        if len(value) > INLINE:
            large = self._seal.write(value, b"")
            value, digest = b"", hashlib.sha256(large).digest()
            add = "insert or ignore into anabranch_blob values (?, ?)"
            connection.execute(add, (digest, large))
        value = self._seal.write(value, about_row(seq, at, ident, kind, digest))
        return key, seq, ident, kind, value, digest, at


_FORKED = (
    "was open when this process was forked from another, and SQLite cannot tell the two apart",
    "begin the process anew, by multiprocessing.get_context('spawn') or subprocess",
)
# The writers whose files are open here; and the files that were open where this was forked.
_open: set[Writer] = set()
_open_before_fork: set[str] = set()


def _note_fork() -> None:
    _open_before_fork.update(writer.path for writer in _open)
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


_READS = {sqlite3.SQLITE_READ, sqlite3.SQLITE_SELECT, sqlite3.SQLITE_FUNCTION}
# What would end the transaction that others' rows are in, or change what the file is.
_REFUSED = {
    sqlite3.SQLITE_TRANSACTION,
    sqlite3.SQLITE_SAVEPOINT,
    sqlite3.SQLITE_ATTACH,
    sqlite3.SQLITE_DETACH,
    sqlite3.SQLITE_PRAGMA,
}


def _keep_transaction(action: int, *names: str | None) -> int:
    """Refuse a user's statements that would harm the journal; its tables can be read."""
    own = any(name is not None and name.lower().startswith("anabranch_") for name in names)
    if action in _REFUSED or (own and action not in _READS):
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def _tell(outcomes: list[_Outcome]) -> None:
    """Answer those who wait, each in its loop, with one call for all of a loop."""
    loops: dict[asyncio.AbstractEventLoop, list[_Outcome]] = {}
    for outcome in outcomes:
        loops.setdefault(outcome[0].get_loop(), []).append(outcome)
    for loop, those in loops.items():
        with suppress(RuntimeError):  # it is closed: nobody waits any more
            loop.call_soon_threadsafe(_settle, those)


def _settle(outcomes: list[_Outcome]) -> None:
    for future, result, error in outcomes:
        if future.done():
            continue  # whoever waited was cancelled
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
