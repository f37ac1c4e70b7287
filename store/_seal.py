"""Values as they stand in the file: through the journal's codec, and with a sum of their bytes."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple, Protocol, cast
from zlib import crc32

from .errors import JournalError, NotStorable

__all__ = ["BytesCodec", "Row", "Seal", "about_row", "check_size"]

CHECK = b"anabranch"  # what every journal has, as its codec writes it
_LARGE = "select value from anabranch_blob where digest = ?"
SUM = 4  # bytes
RIGHT = crc32(bytes(SUM))  # the sum of anything and of its own sum behind it
LARGEST = 64 << 20  # bytes of one value
OTHER_CODEC = "open it with the codec, and its key, that it was made with"


class Row(NamedTuple):
    """One thing that happened in a run; `seq` and `time` are given by the file."""

    ident: bytes  # the identity it belongs to: 16 bytes, and the name of a durable node
    kind: str
    value: bytes
    seq: int = 0  # its number in the run, from 1, in the order of append
    time: float = 0.0  # of the append, in seconds since the epoch


_numbers = struct.Struct("<qd").pack
_row: Any = partial(cast("Any", tuple).__new__, Row)  # as `Row` does, in a third of the time


def about_row(seq: int, at: float, ident: bytes, kind: str, digest: bytes | None) -> bytes:
    """Return what stands in a row beside its value, for its sum."""
    return _numbers(seq, at) + ident + kind.encode() + (digest or b"")


class BytesCodec(Protocol):
    """What stands between a journal and its file, as encryption does.

    `decode(encode(data))` is `data`, in every process that opens the file. Both are called in the
    journal's own thread. `decode` raises for what it cannot read, as for another key; what `encode`
    raises fails the journal.
    """

    def encode(self, data: bytes) -> bytes:
        """Return what is written to the file in the place of `data`."""
        ...

    def decode(self, data: bytes) -> bytes:
        """Return what was given to `encode`."""
        ...


class Seal:
    """Writes and reads values, each with a sum of its bytes and of what stands beside it.

    SQLite does not see a byte that the disk has changed inside a value; the sum does.
    """

    def __init__(self, journal: str, codec: BytesCodec | None) -> None:
        self._journal = journal
        self._codec = codec

    def write(self, value: bytes, about: bytes) -> bytes:
        """Return what stands in the file for a value, and `about` beside it."""
        if value and self._codec is not None:
            value = self._codec.encode(value)
        return value + crc32(value, crc32(about)).to_bytes(SUM, "little")

    def read(self, stored: bytes | None, about: bytes) -> bytes:
        """Return the value. Raises `JournalError` if it was damaged or cannot be decoded."""
        stored = stored or b""
        value = stored[:-SUM]
        if crc32(stored, crc32(about)) != RIGHT:
            why = "is damaged (a value has other bytes than were written)"
            remedy = "put a copy from a backup in its place; what it has of other runs can be read"
            raise JournalError(self._journal, why, remedy)
        if self._codec is None or not value:
            return value
        try:
            return self._codec.decode(value)
        except Exception as error:
            why = f"has values that its codec cannot read ({type(error).__name__})"
            raise JournalError(self._journal, why, OTHER_CODEC) from error

    def read_rows(self, sql: sqlite3.Connection, found: Iterable[tuple[Any, ...]]) -> list[Row]:
        """Return rows of these columns: identity, kind, value, digest of a large one, number, time.

        Raises `JournalError` as `read` does.
        """
        rows: list[Row] = []
        plain = self._codec is None
        for ident, kind, stored, digest, seq, at in found:
            # What `read` does, for most rows without a call of it.
            about = _numbers(seq, at) + ident + kind.encode()
            if plain and digest is None and stored and crc32(about + stored) == RIGHT:
                value = stored[:-SUM]
            else:
                value = self.read(stored, about + (digest or b""))
                if digest is not None:  # in the row of a large value stands only the sum
                    large = sql.execute(_LARGE, (digest,)).fetchone()
                    value = self.read(large and large[0], b"")
            rows.append(_row((ident, kind, value, seq, at)))
        return rows

    def check(self, connection: sqlite3.Connection) -> None:
        """Refuse a file that was made with another codec, or a codec that is none."""
        if self.read(self.write(CHECK, b""), b"") != CHECK:
            why = "has a codec that does not give back what it was given"
            raise JournalError(self._journal, why, "mend the codec")
        get = "select value from anabranch_check"
        if (found := connection.execute(get).fetchone()) is None:
            add = "insert into anabranch_check select ? where not exists (select * from "
            connection.execute(add + "anabranch_check)", (self.write(CHECK, b""),))
            found = connection.execute(get).fetchone()  # another process may have been faster
        if self.read(found[0], b"") != CHECK:
            raise JournalError(self._journal, "was made with a codec", OTHER_CODEC)


def check_size(value: bytes) -> None:
    """Refuse a value that is too large for a journal."""
    if len(value) > LARGEST:
        raise NotStorable(
            f"a value of {len(value):,} bytes is too large for a journal, which takes "
            f"{LARGEST:,}: keep it elsewhere and store where it is"
        )
