"""The SQLite file of a journal: its place, its tables and its errors.

Only SQLite opens the file: closing any other descriptor of it would release the locks that SQLite
holds on it in this process.
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

from ..messages.sqlite import FAULTS, MEMORY, TOO_MANY_FILES, DatabaseFile, is_busy
from ._mark import read_note, refuse_loss
from .errors import JournalError

__all__ = ["MIGRATIONS", "connect", "explain", "find_place", "network_disk"]

PROBE_SECONDS = 3.0  # for which another process may lock the file while it opens or closes it
WAL_BYTES = 8 << 20  # to which the WAL is cut when it starts again: a long reader lets it grow
NETWORK_DISKS = {"9p", "afs", "cifs", "davfs", "ncpfs", "nfs", "nfs4", "smb3", "smbfs"} | {
    f"fuse.{kind}" for kind in ("davfs2", "glusterfs", "rclone", "s3fs", "sshfs")
}

# Each brings a file from the version of its index to the next. Rows of `anabranch_row` are never
# changed. A run has an integer `id`, so that rows are short.
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

_ELSEWHERE = "give the journal a folder in which this user may write"
_REMEDIES = {
    **{
        code: f"{FAULTS[code][1]}, then take up its runs"
        for code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
    },
    sqlite3.SQLITE_READONLY: _ELSEWHERE,
    sqlite3.SQLITE_PERM: _ELSEWHERE,
    sqlite3.SQLITE_CANTOPEN: _ELSEWHERE,
    sqlite3.SQLITE_CORRUPT: (
        "remove its files with the ends -wal and -shm and put a copy from a backup in its place,"
        " or move all of them away to begin a new one"
    ),
}
# The fault of SQLite for a system error, where a lock or its folder cannot be made.
_SYSTEM = {
    errno.ENOSPC: sqlite3.SQLITE_FULL,
    errno.EROFS: sqlite3.SQLITE_READONLY,
    errno.EACCES: sqlite3.SQLITE_PERM,
    errno.EPERM: sqlite3.SQLITE_PERM,
    errno.EMFILE: TOO_MANY_FILES,
}

ONE_PATH = "open it by one path everywhere; a container has to mount the folder, not the file"


def _database(name: str, **checks: Any) -> DatabaseFile[JournalError]:
    return DatabaseFile(
        name=name,
        noun="a journal",
        error=JournalError,
        application=0x416E6162,  # "Anab"
        migrations=MIGRATIONS,
        remedies=_REMEDIES,
        # Or a large transaction needs a temporary file, in a folder that may be full or missing.
        pragmas=(f"journal_size_limit = {WAL_BYTES}", "temp_store = memory"),
        requires_writing=True,
        **checks,
    )


def explain(name: str, error: BaseException) -> JournalError:
    """Return the error that says what happened to the file, and what to do."""
    return _database(name).explain(error, _SYSTEM.get(getattr(error, "errno", None) or 0))


def connect(name: str) -> sqlite3.Connection:
    """Open the file, or create it; its tables are current then. Raises `JournalError`."""
    began, noted = time.monotonic(), None if name == MEMORY else read_note(name)

    def refuse_other_path() -> None:
        if name != MEMORY:
            _require_no_other_path(name, began)

    def inspect(connection: sqlite3.Connection, version: int) -> None:
        if noted is not None:
            refuse_loss(connection, name, version, noted)

    return _database(name, before_open=refuse_other_path, inspect=inspect).connect()


def _require_no_other_path(name: str, began: float) -> None:
    """Refuse a file that another process has open by another path: its WAL follows that path.

    SQLite's own lock belongs to the file, whatever the path. A process that has it open by this
    path has created the `-wal` that is named after it. So without a `-wal` no lock may be held.
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
            return  # another fault, which the open itself reports
        # Another process may be opening or closing it at this moment.
        if time.monotonic() > began + PROBE_SECONDS and not os.path.exists(wal):
            why = "is open in another process by another path, or by a process that is stopped"
            raise JournalError(name, why, ONE_PATH) from error
        raise
    finally:
        probe.close()


def find_place(name: str) -> str:
    """Return the real path of the file; raise `JournalError` where no journal can be."""
    _database(name).require_place()
    place = os.path.realpath(name)
    if os.path.exists(place) and os.stat(place).st_nlink > 1:
        why = "has another name (a hard link), and SQLite's files beside it follow the name"
        raise JournalError(name, why, "remove all names of it but one, or make a copy")
    if sys.platform == "linux":
        try:
            mounts = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
        except OSError:
            mounts = ""
        if kind := network_disk(str(Path(place).parent), mounts):
            why = f"lies on a network disk ({kind}), whose locks do not hold"
            raise JournalError(name, why, "use a disk of this machine")
        if any(point == place for point, _ in _mount_points(mounts)):
            why = "is mounted as a single file, without SQLite's files beside it"
            raise JournalError(name, why, ONE_PATH)
    return place


def network_disk(folder: str, mounts: str) -> str | None:
    """Return the file system of a folder if it is that of a network; `mounts` is Linux's list."""
    longest, found = -1, ""
    for point, kind in _mount_points(mounts):
        # A later mount at the same point covers the earlier one.
        if f"{folder}/".startswith(f"{point}/") and len(point) >= longest:
            longest, found = len(point), kind
    return found if found in NETWORK_DISKS else None


def _mount_points(mounts: str) -> Iterator[tuple[str, str]]:
    """Yield each mount point of Linux's list, and its file system."""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        if len(fields := before.split(" ")) < 5 or not after:
            continue
        point = fields[4].encode("utf-8", "surrogateescape").decode("unicode_escape")  # \040
        point = point.encode("latin-1").decode("utf-8", "surrogateescape").rstrip("/")
        yield point, after.split(" ")[0]
