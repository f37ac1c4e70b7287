"""`follow`: a recording that another process writes, read as it grows."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncGenerator
from contextlib import closing
from pathlib import Path

from ..commander.errors import ConfigurationError
from ._record import is_locked
from ._trace import Trace, feed_lines

__all__ = ["follow"]

# Seconds between two looks at the file; and for which it rests before it is asked who writes it.
LOOK, REST = 0.1, 1.0
# Bytes that are read in one turn of the loop; and of the first line, by which a file is known.
PIECE, HEAD = 65_536, 200


async def follow(file: str | os.PathLike[str]) -> AsyncGenerator[Trace]:
    """Yield the trace of a recording each time that it has grown, until its end.

    It is one trace, fed further between two steps; its last state is yielded too. It ends when the
    tree has ended, or when no process writes the file any more: what was open is "lost" then. A
    recording that is begun anew under this name is followed from its beginning, in another trace. A
    file that is deleted is read on while its process writes. Where the system does not say who
    writes, as on Windows, the tree's end alone ends it.

    Raises `ConfigurationError` for a file that cannot be read, is empty with nobody writing, or is
    no recording.
    """
    with closing(_Reader(Path(file))) as reader:
        rested = 0.0
        while True:
            # Asked before it reads: what was written before a writer's death is all read then.
            written = is_locked(reader.descriptor) if rested >= REST else True
            data = reader.read()
            if reader.is_begun_anew(gone=written is False and not data):
                reader.begin()
            elif data:
                reader.feed(data)
                rested = 0.0
                yield reader.trace
                await asyncio.sleep(0)
            elif reader.trace.lives and reader.trace.lives[-1].ended:
                reader.trace.live = False
                yield reader.trace
                return
            elif written is False:
                reader.lose()
                yield reader.trace
                return
            else:
                rested = LOOK if rested >= REST else rested + LOOK
                await asyncio.sleep(LOOK)


class _Reader:
    """Reads the lines of one file into a trace, as far as they are whole."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.descriptor = -1
        self.begin()

    def begin(self) -> None:
        """Begin with what stands under the name now."""
        self.close()
        try:
            # A pipe without a writer would hold up the loop.
            flags = getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
            self.descriptor = os.open(self._path, os.O_RDONLY | flags)
        except OSError as error:
            raise self._unreadable(error) from None
        if stat.S_ISFIFO(os.fstat(self.descriptor).st_mode):
            self.close()
            raise ConfigurationError(f"{str(self._path)!r} is a pipe: only a file is followed")
        self.trace = Trace()
        self.trace.live = True
        self._head = b""
        self._half = b""  # of a line
        self._lines = 0

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def read(self) -> bytes:
        """Read the next piece."""
        try:
            return os.read(self.descriptor, PIECE)
        except OSError as error:
            raise self._unreadable(error) from None

    def feed(self, data: bytes) -> None:
        """Feed the lines that are whole now."""
        if len(self._head) < HEAD:
            self._head += data[: HEAD - len(self._head)]
        whole, newline, self._half = (self._half + data).rpartition(b"\n")
        if not newline:
            return
        try:
            lines = whole.decode().split("\n")
        except UnicodeDecodeError as error:
            raise self._unreadable(error) from None
        feed_lines(self.trace, (f"{line}\n" for line in lines), str(self._path), self._lines)
        self._lines += len(lines)

    def is_begun_anew(self, *, gone: bool) -> bool:
        """Say whether another recording has taken this one's place; `gone`: its writer is."""
        here = os.fstat(self.descriptor)
        if here.st_size < os.lseek(self.descriptor, 0, os.SEEK_CUR):
            return True
        if os.name != "nt":
            if self._head != os.pread(self.descriptor, len(self._head), 0):
                return True
            try:
                return gone and not os.path.samestat(here, self._path.stat())
            except OSError:  # it was deleted
                return False
        return False

    def lose(self) -> None:
        """Take it that nobody writes any more."""
        if not self.trace.lives:
            raise ConfigurationError(f"{str(self._path)!r} is empty, and no recording")
        self.trace.live = False
        self.trace.lose_open()

    def _unreadable(self, error: Exception) -> ConfigurationError:
        why = error.strerror if isinstance(error, OSError) else error
        return ConfigurationError(f"cannot read the recording {str(self._path)!r}: {why}")
