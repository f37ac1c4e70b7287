"""Open an SQLite file that belongs to the package, and explain the errors of SQLite.

Several processes may open and create one file at the same time. A file of another program is
recognized before the first write, and never changed.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from ..commander.errors import message_of

__all__ = [
    "FAULTS",
    "MEMORY",
    "TOO_MANY_FILES",
    "DatabaseFile",
    "is_busy",
    "is_file_fault",
    "is_same_file",
]

MEMORY = ":memory:"
BUSY_SECONDS = 30.0  # to wait for a commit of another process
RETRY_SECONDS = 0.01
OLDEST_SQLITE = (3, 37, 0)  # STRICT tables

TOO_MANY_FILES = -1  # not a code of SQLite
_NOT_SQLITE = ("is no SQLite file", "name another file, or move this one away")
# By SQLite's primary result code: what happened to the file, and what to do.
FAULTS: Mapping[int, tuple[str, str]] = {
    sqlite3.SQLITE_FULL: ("has no room left to grow", "make room on the disk"),
    sqlite3.SQLITE_IOERR: (
        "could not be read or written",
        "check the disk, and whether it is full",
    ),
    sqlite3.SQLITE_READONLY: ("may not be written to", ""),
    sqlite3.SQLITE_PERM: ("may not be used", ""),
    sqlite3.SQLITE_CANTOPEN: ("cannot be opened", ""),
    sqlite3.SQLITE_CORRUPT: ("is damaged", ""),
    sqlite3.SQLITE_NOTADB: _NOT_SQLITE,
    sqlite3.SQLITE_FORMAT: _NOT_SQLITE,
    sqlite3.SQLITE_BUSY: (
        f"was locked by another process for more than {BUSY_SECONDS:g} seconds",
        "continue or end the process that holds the lock, such as a stopped process or an SQLite"
        " shell with an open transaction",
    ),
    sqlite3.SQLITE_PROTOCOL: ("could not be locked", "use a disk of this machine"),
    sqlite3.SQLITE_NOMEM: (
        "needs more memory than this process has",
        "give the process more memory",
    ),
    sqlite3.SQLITE_NOLFS: ("has no room left to grow", "use a disk that takes large files"),
    sqlite3.SQLITE_INTERNAL: ("could not be used", "check the installation of SQLite"),
    TOO_MANY_FILES: (
        "cannot be opened, because this process has too many open files",
        "raise the limit (ulimit -n), or run fewer runs at the same time",
    ),
}
_UNKNOWN = ("could not be used", "see the cause of this error")


E = TypeVar("E", bound=Exception)


@dataclass(frozen=True, kw_only=True)
class DatabaseFile(Generic[E]):
    """An SQLite file of one application: its identification, its migrations and its errors.

    Journals of runs and indexes of documents are such files.
    """

    name: str
    noun: str  # in messages, such as "a journal"
    error: Callable[[str, str, str], E]  # takes the name, the fault and the remedy
    application: int  # the application id in SQLite's header
    # The statements at index N migrate tables of version N to version N + 1.
    migrations: Sequence[Sequence[str]]
    # By SQLite's primary result code: what to do, instead of the text in `FAULTS`.
    remedies: Mapping[int, str]
    pragmas: Sequence[str] = ()
    # Refuse a file that is read-only, or on a disk without shared memory.
    requires_writing: bool = False
    # Further checks: before each attempt to open, and before the first write.
    before_open: Callable[[], None] = lambda: None
    inspect: Callable[[sqlite3.Connection, int], None] = lambda connection, version: None

    def connect(self) -> sqlite3.Connection:
        """Open or create the file, and migrate its tables to the last version.

        Waits up to 30 seconds for other processes. Raises `error`.
        """
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            oldest = ".".join(map(str, OLDEST_SQLITE))
            why = f"needs SQLite {oldest}, and this Python has {sqlite3.sqlite_version}"
            raise self.error(self.name, why, "use a newer Python")
        give_up = time.monotonic() + BUSY_SECONDS
        while True:
            connection = None
            try:
                self.before_open()
                connection = sqlite3.connect(
                    self.name, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
                )
                self._prepare(connection)
                return connection
            except BaseException as error:
                if connection is not None:
                    connection.close()
                if not isinstance(error, sqlite3.Error | ValueError | OSError):
                    raise
                # SQLite's own timeout does not cover a change of the journal mode.
                if not is_busy(error) or time.monotonic() > give_up:
                    raise self.explain(error) from error
                time.sleep(RETRY_SECONDS)

    def _prepare(self, sql: sqlite3.Connection) -> None:
        sql.execute("begin")  # one snapshot: another process may be creating the file
        version = self.version(sql)
        self.inspect(sql, version)
        sql.execute("commit")
        for pragma in self.pragmas:  # before WAL mode, which fixes the page size
            sql.execute(f"pragma {pragma}")
        (mode,) = sql.execute("pragma journal_mode = wal").fetchone()
        if self.requires_writing and mode not in {"wal", "memory"}:
            why = f"lies on a disk without shared memory (SQLite's journal mode is {mode!r})"
            raise self.error(self.name, why, "use a disk of this machine")
        sql.execute("pragma synchronous = full")
        sql.execute("pragma fullfsync = on")  # macOS: flush the cache of the disk too
        if version < len(self.migrations):
            self._migrate(sql)
        elif self.requires_writing:
            _require_writable(sql)
        # Detect a truncated file: SQLite reads a missing part of the last page as zeros. A sound
        # file is too short while some pages are only in the WAL, so a checkpoint moves them first.
        # If other processes prevent a full checkpoint, the length proves nothing. Take the size
        # before the checkpoint, because others may add pages to the WAL after it.
        size = _bytes_of(sql)
        if self.name != MEMORY and os.stat(self.name).st_size < size:
            busy, frames, moved = sql.execute("pragma wal_checkpoint(passive)").fetchone()
            if not busy and frames == moved and os.stat(self.name).st_size < size:
                remedy = self.remedies[sqlite3.SQLITE_CORRUPT]
                raise self.error(self.name, "is damaged (a part of it was cut off)", remedy)

    def _migrate(self, sql: sqlite3.Connection) -> None:
        sql.execute("begin immediate")
        version = self.version(sql)  # another process may have migrated the file since
        for migration in self.migrations[version:]:
            for statement in migration:
                sql.execute(statement)
        if version < len(self.migrations):
            sql.execute(f"pragma application_id = {self.application}")
            sql.execute(f"pragma user_version = {len(self.migrations)}")
        sql.execute("commit")

    def version(self, sql: sqlite3.Connection) -> int:
        """Return the version of the tables, 0 for a new file.

        Raises `error` for a file of another program or of a newer version.
        """
        (application,) = sql.execute("pragma application_id").fetchone()
        (version,) = sql.execute("pragma user_version").fetchone()
        (tables,) = sql.execute("select count(*) from sqlite_schema").fetchone()
        if application != self.application and (application or version or tables):
            why = "is an SQLite file of another program"
            raise self.error(self.name, why, f"name another file: {self.noun} has one of its own")
        if version > len(self.migrations):
            newest = len(self.migrations)
            why = f"has tables of version {version}, and this anabranch knows {newest}"
            raise self.error(self.name, why, "upgrade anabranch")
        return version

    def require_place(self) -> None:
        """Check the file's path; raise `error` where SQLite's own message would be less helpful."""
        if not self.name or "\0" in self.name:
            raise self.error(self.name, "is not a valid file name", "name a file")
        if os.path.isdir(self.name):
            raise self.error(self.name, "is a folder", "name a file in it")
        # Refuse pipes and devices, and a file of one byte, which SQLite treats as empty. Check
        # `exists` first: another process may create the file between the two checks.
        if os.path.exists(self.name) and not (
            os.path.isfile(self.name) and os.stat(self.name).st_size != 1
        ):
            raise self.error(self.name, *_NOT_SQLITE)
        folder = os.path.dirname(os.path.realpath(self.name))
        if not os.path.isdir(folder):
            why = f"cannot be created: the folder {folder!r} does not exist"
            raise self.error(self.name, why, "create the folder")

    def explain(self, error: BaseException, code: int | None = None) -> E:
        """Return an `error` with the fault of the file and its remedy.

        `code` is SQLite's result code, for an exception without one.
        """
        code = code or _code(error)
        if type(error) is sqlite3.OperationalError and not code:
            code = sqlite3.SQLITE_CORRUPT  # raised by Python for a text that is not UTF-8
        why, remedy = FAULTS.get(code, _UNKNOWN)
        what = f"{why} ({type(error).__name__}: {message_of(error)[:200]})"
        made = self.error(self.name, what, self.remedies.get(code, remedy))
        made.__cause__ = error
        return made


def _require_writable(sql: sqlite3.Connection) -> None:
    sql.execute("pragma busy_timeout = 0")
    try:
        sql.execute("begin immediate")
        sql.execute("commit")
    except sqlite3.OperationalError as error:
        # Do not wait: a stopped process may hold the lock, and reading works without it.
        if not is_busy(error):
            raise
    finally:
        sql.execute(f"pragma busy_timeout = {BUSY_SECONDS * 1000:.0f}")


def _bytes_of(sql: sqlite3.Connection) -> int:
    (pages,) = sql.execute("pragma page_count").fetchone()
    (page_bytes,) = sql.execute("pragma page_size").fetchone()
    return pages * page_bytes


def is_busy(error: BaseException) -> bool:
    """Return whether another process has locked the file."""
    return _code(error) == sqlite3.SQLITE_BUSY


def is_file_fault(error: BaseException) -> bool:
    """Return whether the file is at fault, and not the statement."""
    return _code(error) in FAULTS


def is_same_file(name: str, stat: os.stat_result) -> bool:
    """Return whether the file of this name is the one that `stat` describes."""
    with suppress(OSError):
        return os.path.samestat(os.stat(name), stat)
    return False


def _code(error: BaseException) -> int:
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
