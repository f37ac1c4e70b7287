"""Journal entries (`Row`), and their values in the file: encoded by a codec, with a checksum."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple, Protocol, cast
from zlib import crc32

from .errors import JournalError, NotStorable

__all__ = ["BytesCodec", "Checksums", "Row", "about_row", "check_size"]

CHECK_VALUE = b"anabranch"  # in each journal, encoded by its codec
_SELECT_LARGE = "select value from anabranch_blob where digest = ?"
CHECKSUM_BYTES = 4
# The CRC-32 of any data followed by its own CRC-32 is this constant. So one call checks a value.
VALID_CHECKSUM = crc32(bytes(CHECKSUM_BYTES))
MAX_VALUE_BYTES = 64 << 20
OTHER_CODEC_REMEDY = "open it with the codec and the key that it was created with"


class Row(NamedTuple):
    """A journal entry of a run; the file sets `seq` and `time`."""

    ident: bytes  # the node or effect: a digest of 16 bytes, then the name if it is a durable node
    kind: str
    value: bytes
    seq: int = 0  # its number in the run, from 1, in the order of the appends
    time: float = 0.0  # of the append, in seconds since the epoch


_numbers = struct.Struct("<qd").pack
_row: Any = partial(cast("Any", tuple).__new__, Row)  # in a third of the time of `Row(...)`


def about_row(seq: int, at: float, ident: bytes, kind: str, digest: bytes | None) -> bytes:
    """Return the other columns of a row as bytes, for the checksum of its value."""
    return _numbers(seq, at) + ident + kind.encode() + (digest or b"")


class BytesCodec(Protocol):
    """Transforms the values of a journal on the way to its file and back, such as encryption.

    `decode(encode(data))` must equal `data` in every process that opens the file. The journal calls
    both in its own thread. `decode` must raise for data that it cannot read, such as with another
    key. An exception of `encode` fails the journal.
    """

    def encode(self, data: bytes) -> bytes:
        """Return the bytes for the file."""
        ...

    def decode(self, data: bytes) -> bytes:
        """Return the data from the bytes of the file."""
        ...


class Checksums:
    """Writes and reads values, each with a checksum of its bytes and of the other columns.

    SQLite itself does not detect that the disk has changed a byte of a value.
    """

    def __init__(self, journal: str, codec: BytesCodec | None) -> None:
        self._journal = journal
        self._codec = codec

    def write(self, value: bytes, about: bytes) -> bytes:
        """Return the bytes for the file; the checksum covers `about` too."""
        if value and self._codec is not None:
            value = self._codec.encode(value)
        return value + crc32(value, crc32(about)).to_bytes(CHECKSUM_BYTES, "little")

    def read(self, stored: bytes | None, about: bytes) -> bytes:
        """Return the value. Raises `JournalError` if it is damaged or cannot be decoded."""
        stored = stored or b""
        value = stored[:-CHECKSUM_BYTES]
        if crc32(stored, crc32(about)) != VALID_CHECKSUM:
            why = "is damaged (a stored value has changed)"
            remedy = "restore it from a backup; its other runs can still be read"
            raise JournalError(self._journal, why, remedy)
        if self._codec is None or not value:
            return value
        try:
            return self._codec.decode(value)
        except Exception as error:
            why = f"has values that its codec cannot read ({type(error).__name__})"
            raise JournalError(self._journal, why, OTHER_CODEC_REMEDY) from error

    def read_rows(self, sql: sqlite3.Connection, found: Iterable[tuple[Any, ...]]) -> list[Row]:
        """Return rows from the columns identity, kind, value, digest, number and time.

        Raises `JournalError` as `read` does.
        """
        rows: list[Row] = []
        plain = self._codec is None
        for ident, kind, stored, digest, seq, at in found:
            # `read` is inlined for most rows, because a resume reads all rows of a run.
            about = _numbers(seq, at) + ident + kind.encode()
            if plain and digest is None and stored and crc32(about + stored) == VALID_CHECKSUM:
                value = stored[:-CHECKSUM_BYTES]
            else:
                value = self.read(stored, about + (digest or b""))
                if digest is not None:  # the value is in its own table
                    large = sql.execute(_SELECT_LARGE, (digest,)).fetchone()
                    value = self.read(large and large[0], b"")
            rows.append(_row((ident, kind, value, seq, at)))
        return rows

    def check(self, connection: sqlite3.Connection) -> None:
        """Refuse a file that was created with another codec, or a codec that does not decode."""
        if self.read(self.write(CHECK_VALUE, b""), b"") != CHECK_VALUE:
            why = "has a codec whose decode does not return the encoded data"
            raise JournalError(self._journal, why, "correct the codec")
        get = "select value from anabranch_check"
        if (found := connection.execute(get).fetchone()) is None:
            add = "insert into anabranch_check select ? where not exists (select * from "
            connection.execute(add + "anabranch_check)", (self.write(CHECK_VALUE, b""),))
            found = connection.execute(get).fetchone()  # another process may have added it
        if self.read(found[0], b"") != CHECK_VALUE:
            raise JournalError(self._journal, "was created with a codec", OTHER_CODEC_REMEDY)


def check_size(value: bytes) -> None:
    """Raise `NotStorable` for a value that is too large for a journal."""
    if len(value) > MAX_VALUE_BYTES:
        raise NotStorable(
            f"a value of {len(value):,} bytes is too large for a journal, whose limit is "
            f"{MAX_VALUE_BYTES:,}: put it into a file and store the path"
        )
