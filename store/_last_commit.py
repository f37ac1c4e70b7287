"""Detect lost commits by a note of the last commit, in a file beside the journal.

SQLite opens a file without error if its `-wal` was removed or truncated after a kill. The note is
written after each commit, and its numbers only grow. So an old note, such as that of another
process or from before a power failure, raises no false alarm.
"""

from __future__ import annotations

import os
import sqlite3
import struct
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from ._lock import lock_folder
from .errors import JournalError

__all__ = ["COUNTS_SQL", "CommitNote", "LastCommit", "read_note", "refuse_loss"]

NOTE_FILE_NAME = "last-commit"  # in the folder of the locks
COUNTS_SQL = """select coalesce((select seq from sqlite_sequence where name = 'anabranch_run'), 0),
    coalesce((select seq from sqlite_sequence where name = 'anabranch_mail'), 0)"""
_SELECT_IS_PRESENT = """select exists (select 1 from anabranch_row where run = :run and seq = :seq)
    or not exists (select 1 from anabranch_run where id = :run)"""
_NOTE_FORMAT = struct.Struct("<4qI")


class LastCommit(NamedTuple):
    """Numbers that the file reaches unless its last commits are lost."""

    run: int  # the key of a run
    seq: int  # of a row of that run, which exists unless the run was purged
    runs: int  # how many runs the file has had
    mails: int


class CommitNote:
    """The note of one open journal. The journal works without it, so its errors are ignored."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._note = _note_of(path)
        self._file = -1
        self._last = LastCommit(0, 0, 0, 0)
        with suppress(OSError):
            self._note.parent.mkdir(exist_ok=True)
            self._file = os.open(self._note, os.O_WRONLY | os.O_CREAT, 0o666)

    def write(self, row: tuple[int, int] | None, counts: tuple[int, int] | None) -> None:
        """Note the last row and the counts of runs and mails, if a commit changed them."""
        if self._file < 0 or (row is None and counts is None):
            return
        self._last = LastCommit(*(row or self._last[:2]), *(counts or self._last[2:]))
        data = _NOTE_FORMAT.pack(*self._last, 0)[:-4]
        with suppress(OSError):
            os.lseek(self._file, 0, os.SEEK_SET)
            os.write(self._file, data + crc32(data).to_bytes(4, "little"))

    def close(self, *, well: bool) -> None:
        """Close the note; remove it if the journal was closed `well` and without a `-wal`."""
        if self._file < 0:
            return
        os.close(self._file)
        self._file = -1
        if well and not os.path.exists(self._path + "-wal"):
            with suppress(OSError):
                self._note.unlink()


def read_note(name: str) -> LastCommit | None:
    """Return the note of a journal; None if there is none, or the journal is new.

    Read it before the file. A later note may be ahead of the content that was read.
    """
    path = os.path.realpath(name)
    with suppress(OSError):
        if not os.path.exists(path) or not os.stat(path).st_size:
            _note_of(path).unlink()  # it belongs to a journal that was removed
        data = _note_of(path).read_bytes()
        *found, checksum = _NOTE_FORMAT.unpack(data) if len(data) == _NOTE_FORMAT.size else (0,)
        if found and checksum == crc32(data[:-4]):
            return LastCommit(*found)
    return None


def refuse_loss(connection: sqlite3.Connection, name: str, version: int, noted: LastCommit) -> None:
    """Raise `JournalError` if the file lacks commits that were noted."""
    if version:
        runs, mails = connection.execute(COUNTS_SQL).fetchone()
        (is_there,) = connection.execute(_SELECT_IS_PRESENT, noted._asdict()).fetchone()
        if is_there and runs >= noted.runs and mails >= noted.mails:
            return
    why = "has lost its last commits: its -wal file was removed or truncated"
    remedy = "restore that file or a complete backup; to continue without these commits, remove"
    raise JournalError(name, why, f"{remedy} {str(_note_of(os.path.realpath(name)))!r}")


def _note_of(path: str) -> Path:
    return Path(lock_folder(path)) / NOTE_FILE_NAME
