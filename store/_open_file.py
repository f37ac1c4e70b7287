"""Open the SQLite file of a journal, or explain why it cannot be opened; its tables.

Only SQLite may open the file: closing any other descriptor of it would release the locks that
SQLite holds on it in this process.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..files.sqlite import FAULTS, MEMORY, TOO_MANY_FILES, DatabaseFile, is_busy
from ._last_commit import read_note, refuse_loss
from .errors import JournalError

__all__ = ["MIGRATIONS", "connect", "explain", "find_place", "network_disk"]

PROBE_SECONDS = 3.0  # for another process to finish opening or closing the file
WAL_BYTES = 8 << 20  # a restart truncates the WAL to this size; long reads let it grow
NETWORK_DISKS = {"9p", "afs", "cifs", "davfs", "ncpfs", "nfs", "nfs4", "smb3", "smbfs"} | {
    f"fuse.{kind}" for kind in ("davfs2", "glusterfs", "rclone", "s3fs", "sshfs")
}

# Each migration updates a file from the version of its index to the next. Rows of `anabranch_row`
# are never changed. They refer to their run by its integer `id`, so that they are short.
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
        # Purged runs whose rows are not all removed yet.
        "create table anabranch_purge (run integer primary key) strict",
        # The idempotency keys of signals, which outlive their runs for 30 days.
        """create table anabranch_key (
            digest blob primary key, run integer not null, time real not null
        ) strict, without rowid""",
        "create index anabranch_key_time on anabranch_key (time, run)",
    ),
]

_WRITABLE_FOLDER = "use a folder in which this user can write"
_REMEDIES = {
    **{
        code: f"{FAULTS[code][1]}, then resume its runs"
        for code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
    },
    sqlite3.SQLITE_READONLY: _WRITABLE_FOLDER,
    sqlite3.SQLITE_PERM: _WRITABLE_FOLDER,
    sqlite3.SQLITE_CANTOPEN: _WRITABLE_FOLDER,
    sqlite3.SQLITE_CORRUPT: (
        "remove its -wal and -shm files and restore it from a backup, or move all three away to"
        " begin a new one"
    ),
}
# The code of SQLite for a system error, if a lock or its folder cannot be created.
_SQLITE_CODES = {
    errno.ENOSPC: sqlite3.SQLITE_FULL,
    errno.EROFS: sqlite3.SQLITE_READONLY,
    errno.EACCES: sqlite3.SQLITE_PERM,
    errno.EPERM: sqlite3.SQLITE_PERM,
    errno.EMFILE: TOO_MANY_FILES,
}

ONE_PATH_REMEDY = "use the same path everywhere; a container must mount the folder, not the file"


def _database(name: str, **checks: Any) -> DatabaseFile[JournalError]:
    return DatabaseFile(
        name=name,
        noun="a journal",
        error=JournalError,
        application=0x416E6162,  # "Anab"
        migrations=MIGRATIONS,
        remedies=_REMEDIES,
        # In memory: a folder for temporary files may be full or missing.
        pragmas=(f"journal_size_limit = {WAL_BYTES}", "temp_store = memory"),
        requires_writing=True,
        **checks,
    )


def explain(name: str, error: BaseException) -> JournalError:
    """Return an error with what happened to the file, and what to do."""
    return _database(name).explain(error, _SQLITE_CODES.get(getattr(error, "errno", None) or 0))


def connect(name: str) -> sqlite3.Connection:
    """Open or create the file, and update its tables. Raises `JournalError`."""
    began, noted = time.monotonic(), None if name == MEMORY else read_note(name)

    def refuse_other_path() -> None:
        if name != MEMORY:
            _require_no_other_path(name, began)

    def inspect(connection: sqlite3.Connection, version: int) -> None:
        if noted is not None:
            refuse_loss(connection, name, version, noted)

    return _database(name, before_open=refuse_other_path, inspect=inspect).connect()


def _require_no_other_path(name: str, began: float) -> None:
    """Refuse a file that another process has open by another path, as its WAL has that path.

    SQLite's lock belongs to the file, independent of the path. A process that has the file open by
    this path has created its `-wal`. So if there is a lock, but no `-wal`, the path is another.
    """
    wal = os.path.realpath(name) + "-wal"
    if os.path.exists(wal) or not os.path.exists(name) or not os.stat(name).st_size:
        return
    probe = sqlite3.connect(name, timeout=0, isolation_level=None)
    try:
        probe.execute("pragma locking_mode = exclusive")
        _database(name).version(probe)
    except sqlite3.Error as error:
        if not is_busy(error):
            return  # the open itself reports other errors
        # Another process may be opening or closing it at this moment.
        if time.monotonic() > began + PROBE_SECONDS and not os.path.exists(wal):
            why = "is open in another process under another path, or in a stopped process"
            raise JournalError(name, why, ONE_PATH_REMEDY) from error
        raise
    finally:
        probe.close()


def find_place(name: str) -> str:
    """Return the real path of the file; raise `JournalError` if no journal can be there."""
    _database(name).require_place()
    place = os.path.realpath(name)
    if os.path.exists(place) and os.stat(place).st_nlink > 1:
        why = "has several names (hard links), but SQLite's -wal file belongs to one name"
        raise JournalError(name, why, "remove all names but one, or make a copy")
    if sys.platform == "linux":
        try:
            mounts = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
        except OSError:
            mounts = ""
        if kind := network_disk(str(Path(place).parent), mounts):
            why = f"is on a network disk ({kind}), whose locks are unreliable"
            raise JournalError(name, why, "use a local disk")
        if any(point == place for point, _ in _mount_points(mounts)):
            why = "is mounted as a single file, without SQLite's -wal file"
            raise JournalError(name, why, ONE_PATH_REMEDY)
    return place


def network_disk(folder: str, mounts: str) -> str | None:
    """Return the network file system of a folder, or None; `mounts` is Linux's mountinfo."""
    longest, found = -1, ""
    for point, kind in _mount_points(mounts):
        # A later mount at the same point covers the earlier one.
        if f"{folder}/".startswith(f"{point}/") and len(point) >= longest:
            longest, found = len(point), kind
    return found if found in NETWORK_DISKS else None


def _mount_points(mounts: str) -> Iterator[tuple[str, str]]:
    """Yield each mount point of Linux's mountinfo, and its file system."""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        if len(fields := before.split(" ")) < 5 or not after:
            continue
        point = fields[4].encode("utf-8", "surrogateescape").decode("unicode_escape")  # \040
        point = point.encode("latin-1").decode("utf-8", "surrogateescape").rstrip("/")
        yield point, after.split(" ")[0]
