"""The SQLite file of a journal: where it may lie, its tables, and what SQLite's errors mean.

A file of another program is never changed: what it is gets known before anything is written.
Nothing here opens the file but SQLite itself: whoever closes a descriptor of it would take away
the locks that SQLite holds on it in this process.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from ._failure import message_of
from ._mark import Noted, read_note, refuse_loss
from .errors import JournalError

__all__ = [
    "MEMORY",
    "MIGRATIONS",
    "connect",
    "find_place",
    "is_trouble",
    "network_disk",
    "trouble",
]

MEMORY = ":memory:"
PATIENCE = 30.0  # seconds to wait for another process's commit
PROBE_SECONDS = 3.0  # for which a file may be locked while it is opened or closed elsewhere
WAL = 8 << 20  # bytes of the WAL that stay when it begins anew: a long reader lets it grow
APPLICATION = 0x416E6162  # "Anab", in SQLite's header
OLDEST = (3, 37, 0)  # STRICT tables
NETWORK = {"9p", "afs", "cifs", "davfs", "ncpfs", "nfs", "nfs4", "smb3", "smbfs"} | {
    f"fuse.{kind}" for kind in ("davfs2", "glusterfs", "rclone", "s3fs", "sshfs")
}

# Each brings a file from the version of its index to the next; the last is the program's own. Rows
# of `anabranch_row` are never changed. A run has an integer `id`, so that rows are short.
MIGRATIONS: list[tuple[str, ...]] = [
    (
        """create table anabranch_run (
            id integer primary key autoincrement, run_id text not null unique,
            class_name text not null, version integer not null, state text not null,
            inputs blob not null, queue text not null, created real not null,
            updated real not null, fence integer not null default 0,
            owner text not null default '', lease_until real,
            recoveries integer not null default 0, claimed_at_row integer not null default 0,
            error blob, clock real not null default 0
        ) strict""",
        "create index anabranch_run_state on anabranch_run (state, queue)",
        """create table anabranch_row (
            run integer not null, seq integer not null, ident blob not null, kind text not null,
            value blob, digest blob, time real not null, unique (run, seq)
        ) strict""",
        "create index anabranch_row_digest on anabranch_row (digest) where digest is not null",
        "create table anabranch_blob (digest blob not null unique, value blob not null) strict",
        """create table anabranch_mail (
            id integer primary key autoincrement, run integer not null, kind text not null,
            name text not null, value blob not null, time real not null
        ) strict""",
        "create index anabranch_mail_run on anabranch_mail (run, id)",
        "create table anabranch_check (value blob not null) strict",
    ),
    (
        # Runs that are purged, of which rows are left.
        "create table anabranch_purge (run integer primary key) strict",
        # The idempotency keys of signals, which outlive their runs for a time.
        """create table anabranch_key (
            digest blob primary key, run integer not null, time real not null
        ) strict, without rowid""",
        "create index anabranch_key_time on anabranch_key (time, run)",
    ),
]

# What became of the file, by SQLite's primary result code; the remedy is the same for some.
_ELSEWHERE = "give the journal a folder in which this user may write"
_BROKEN = (
    "remove its files with the ends -wal and -shm and put a copy from a backup in its place, or"
    " move all of them away to begin a new one"
)
_TROUBLES = {
    sqlite3.SQLITE_FULL: (
        "has no room left to grow",
        "make room on the disk, then take up its runs",
    ),
    sqlite3.SQLITE_IOERR: (
        "could not be read or written",
        "check the disk, and whether it is full, then take up its runs",
    ),
    sqlite3.SQLITE_READONLY: ("may not be written to", _ELSEWHERE),
    sqlite3.SQLITE_PERM: ("may not be used", _ELSEWHERE),
    sqlite3.SQLITE_CANTOPEN: ("cannot be opened", _ELSEWHERE),
    sqlite3.SQLITE_CORRUPT: ("is damaged", _BROKEN),
    sqlite3.SQLITE_NOTADB: ("is no SQLite file", "name another file, or move this one away"),
    sqlite3.SQLITE_FORMAT: ("is no SQLite file", "name another file, or move this one away"),
    sqlite3.SQLITE_BUSY: (
        f"was locked by another process for more than {PATIENCE:g} seconds",
        "continue or end what holds it: a process that is stopped, or an open transaction in a"
        " SQLite shell",
    ),
    sqlite3.SQLITE_PROTOCOL: ("could not be locked", "use a disk of this machine"),
    sqlite3.SQLITE_NOMEM: ("could not be used for want of memory", "give the process more memory"),
    sqlite3.SQLITE_NOLFS: ("has no room left to grow", "use a disk that takes large files"),
    sqlite3.SQLITE_INTERNAL: ("could not be used", "check the installation of SQLite"),
}
# By the system's number, where a lock or a folder for it cannot be made.
_SYSTEM = {
    errno.ENOSPC: _TROUBLES[sqlite3.SQLITE_FULL],
    errno.EROFS: _TROUBLES[sqlite3.SQLITE_READONLY],
    errno.EACCES: _TROUBLES[sqlite3.SQLITE_PERM],
    errno.EPERM: _TROUBLES[sqlite3.SQLITE_PERM],
    errno.EMFILE: (
        "could open no file more",
        "let the process open more (ulimit -n), or drive fewer runs at once",
    ),
}

ONE_PATH = "open it by one path everywhere; a container has to mount the folder, not the file"
_PAGES = ("count", "size")


def is_trouble(error: BaseException) -> bool:
    """Say whether something happened to the file, so that the fault is not the statement's."""
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF in _TROUBLES


def trouble(name: str, error: BaseException) -> JournalError:
    """Return the error that says what happened to the file and what to do."""
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    unknown = ("could not be used", "see what this error was caused by")
    why, remedy = _TROUBLES.get(code) or _SYSTEM.get(getattr(error, "errno", None) or 0, unknown)
    made = JournalError(name, f"{why} ({type(error).__name__}: {message_of(error)})", remedy)
    made.__cause__ = error
    return made


def connect(name: str) -> sqlite3.Connection:
    """Open the file, or make it; it has the program's tables then, and can be written to.

    Raises `JournalError`. Several processes may make the same file at once.
    """
    if sqlite3.sqlite_version_info < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        why = f"needs SQLite {oldest}, and this Python has {sqlite3.sqlite_version}"
        raise JournalError(name, why, "use a newer Python")
    began, noted = time.monotonic(), None if name == MEMORY else read_note(name)
    while True:
        connection = None
        try:
            if name != MEMORY:
                _require_no_other_path(name, began)
            connection = sqlite3.connect(name, timeout=PATIENCE, isolation_level=None)
            _prepare(connection, name, noted)
            return connection
        except BaseException as error:
            if connection is not None:
                connection.close()
            if not isinstance(error, sqlite3.Error | ValueError | OSError):
                raise
            # SQLite itself does not wait for whoever changes the file to WAL at this moment.
            busy = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
            if not busy or time.monotonic() > began + PATIENCE:
                raise trouble(name, error) from error
            time.sleep(0.01)


def _require_no_other_path(name: str, began: float) -> None:
    """Refuse a file that some process has open by another path: its WAL follows that path.

    SQLite's own lock on the file belongs to the file, whatever the path. Whoever has it open by
    this path has made the `-wal` that is named after it: without that one, nobody may have a lock.
    """
    wal = os.path.realpath(name) + "-wal"
    if os.path.exists(wal) or not os.path.exists(name) or not os.stat(name).st_size:
        return
    probe = sqlite3.connect(name, timeout=0, isolation_level=None)
    try:
        probe.execute("pragma locking_mode = exclusive")
        _version(probe, name)
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_BUSY:
            return  # something else is wrong, and said when the file is opened to be used
        # Another process may be opening or closing it at this moment.
        if time.monotonic() > began + PROBE_SECONDS and not os.path.exists(wal):
            why = "is open in another process by another path, or by a process that is stopped"
            raise JournalError(name, why, ONE_PATH) from error
        raise
    finally:
        probe.close()


def _prepare(connection: sqlite3.Connection, name: str, noted: Noted | None) -> None:
    connection.execute("begin")  # all of one moment: another process may be making the file
    version = _version(connection, name)
    if noted is not None:
        refuse_loss(connection, name, version, noted)
    connection.execute("commit")
    (mode,) = connection.execute("pragma journal_mode = wal").fetchone()
    if mode not in {"wal", "memory"}:
        why = f"lies on a disk without shared memory (SQLite's journal mode is {mode!r})"
        raise JournalError(name, why, "use a disk of this machine")
    connection.execute("pragma synchronous = full")
    connection.execute(f"pragma journal_size_limit = {WAL}")
    connection.execute("pragma fullfsync = on")  # macOS: else the disk may still hold it back
    # Or a large transaction needs a file in a folder that may be full, or not be there.
    connection.execute("pragma temp_store = memory")
    if version == len(MIGRATIONS):
        _require_writable(connection)
    else:
        _migrate(connection, name)
    # SQLite takes what is missing of the last page for zeros. Pages may be in the WAL alone: then
    # they are brought into the file first, if no other process is doing so or reads them there.
    (pages,), (size,) = (connection.execute(f"pragma page_{each}").fetchone() for each in _PAGES)
    if name != MEMORY and os.stat(name).st_size < pages * size:
        busy, frames, done = connection.execute("pragma wal_checkpoint(passive)").fetchone()
        if not busy and frames == done and os.stat(name).st_size < pages * size:
            raise JournalError(name, "is damaged (a part of it was cut off)", _BROKEN)


def _require_writable(connection: sqlite3.Connection) -> None:
    connection.execute("pragma busy_timeout = 0")
    try:
        connection.execute("begin immediate")
        connection.execute("commit")
    except sqlite3.OperationalError as error:
        # Another process writes now. It may have been stopped, and reading needs no wait for it.
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
            raise
    finally:
        connection.execute(f"pragma busy_timeout = {PATIENCE * 1000:.0f}")


def _migrate(connection: sqlite3.Connection, name: str) -> None:
    connection.execute("begin immediate")
    version = _version(connection, name)  # another process may have been faster
    for migration in MIGRATIONS[version:]:
        for statement in migration:
            connection.execute(statement)
    if version < len(MIGRATIONS):
        connection.execute(f"pragma application_id = {APPLICATION}")
        connection.execute(f"pragma user_version = {len(MIGRATIONS)}")
    connection.execute("commit")


def _version(connection: sqlite3.Connection, name: str) -> int:
    """Return which version the file's tables have, 0 for a new file; refuse a strange one."""
    (application,) = connection.execute("pragma application_id").fetchone()
    (version,) = connection.execute("pragma user_version").fetchone()
    (tables,) = connection.execute("select count(*) from sqlite_schema").fetchone()
    if application != APPLICATION and (application or version or tables):
        why = "is a SQLite file of another program"
        raise JournalError(name, why, "name another file: a journal has one of its own")
    if version > len(MIGRATIONS):
        why = f"has tables of version {version}, and this anabranch knows {len(MIGRATIONS)}"
        raise JournalError(name, why, "upgrade anabranch")
    return version


def find_place(name: str) -> str:
    """Return where the file is, or will be; refuse what SQLite would not, or with less to say."""
    folder = Path(os.path.realpath(name)).parent if name and "\0" not in name else None
    if folder is None:
        raise JournalError(name, "has no name that a file can have", "name a file")
    if os.path.isdir(name):
        raise JournalError(name, "is a folder", "name a file in it")
    if os.path.exists(name) and not (os.path.isfile(name) and os.stat(name).st_size != 1):
        # A pipe or a device; and SQLite takes a file of one byte for an empty one.
        raise JournalError(name, *_TROUBLES[sqlite3.SQLITE_NOTADB])
    if not os.path.isdir(folder):
        why = f"cannot be made, for there is no folder {str(folder)!r}"
        raise JournalError(name, why, "make the folder first")
    place = os.path.realpath(name)
    if os.path.exists(place) and os.stat(place).st_nlink > 1:
        why = "has another name (a hard link), and SQLite's files beside it follow the name"
        raise JournalError(name, why, "remove all names of it but one, or make a copy")
    if sys.platform == "linux":
        try:
            mounts = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
        except OSError:
            mounts = ""
        if kind := network_disk(str(folder), mounts):
            why = f"lies on a network disk ({kind}), whose locks do not hold"
            raise JournalError(name, why, "use a disk of this machine")
        if any(point == place for point, _ in _mount_points(mounts)):
            why = "is mounted as a single file, without SQLite's files beside it"
            raise JournalError(name, why, ONE_PATH)
    return place


def network_disk(folder: str, mounts: str) -> str | None:
    """Return the kind of network disk a folder lies on, None if it is none, by Linux's list."""
    longest, found = -1, ""
    for point, kind in _mount_points(mounts):
        # Of two at the same place the later one covers the earlier.
        if f"{folder}/".startswith(f"{point}/") and len(point) >= longest:
            longest, found = len(point), kind
    return found if found in NETWORK else None


def _mount_points(mounts: str) -> Iterator[tuple[str, str]]:
    """Yield where something is mounted, and of what kind its file system is, by Linux's list."""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        if len(fields := before.split(" ")) < 5 or not after:
            continue
        point = fields[4].encode("utf-8", "surrogateescape").decode("unicode_escape")  # \040
        point = point.encode("latin-1").decode("utf-8", "surrogateescape").rstrip("/")
        yield point, after.split(" ")[0]
