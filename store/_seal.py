"""Values as they stand in the file: through the journal's codec, and with a sum of their bytes."""

from __future__ import annotations

import sqlite3
from typing import Protocol
from zlib import crc32

from .errors import JournalError, NotStorable

__all__ = ["BytesCodec", "Seal", "check_size"]

CHECK = b"anabranch"  # what every journal has, as its codec writes it
SUM = 4  # bytes
LARGEST = 64 << 20  # bytes of one value
OTHER_CODEC = "open it with the codec, and its key, that it was made with"


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
        return value + crc32(value, crc32(about)).to_bytes(SUM)

    def read(self, stored: bytes | None, about: bytes) -> bytes:
        """Return the value. Raises `JournalError` if it was damaged or cannot be decoded."""
        stored = stored or b""
        value = stored[:-SUM]
        if crc32(value, crc32(about)).to_bytes(SUM) != stored[-SUM:]:
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
