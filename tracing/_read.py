"""Recordings as files: `read` a complete one, `follow` one that another process still writes."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
from collections.abc import AsyncGenerator, Iterable
from contextlib import closing
from pathlib import Path

from ..commander.errors import ConfigurationError
from ._trace import Trace

if sys.platform != "win32":
    import fcntl

__all__ = ["follow", "is_recorded", "read"]

# Seconds between two reads at the end of the file; without news for so long, look for the writer.
POLL_SECONDS, QUIET_SECONDS = 0.1, 1.0
# Bytes read in one turn of the loop; bytes of the first line that identify a recording.
MAX_CHUNK, HEAD_SIZE = 65_536, 200


def read(file: str | Path) -> Trace:
    """Read a recording.

    It may still be written. If its process was killed, the open nodes are "lost". Raises
    `ConfigurationError` for a file that is no recording.
    """
    trace = Trace()
    path = Path(file)
    trace.live = is_recorded(path)
    try:
        with path.open(encoding="utf-8") as lines:
            _feed_lines(trace, lines, str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read the recording {str(file)!r}: {error}") from None
    if not trace.lives:
        raise ConfigurationError(f"{str(file)!r} is empty, and no recording")
    if not trace.live:
        trace.lose_open()
    return trace


async def follow(file: str | os.PathLike[str]) -> AsyncGenerator[Trace]:
    """Yield the trace of a recording each time that it has grown, and once at its end.

    It is the same object, which grows between two steps. It ends when the tree ends, or when no
    process writes the file any more: open nodes are "lost" then. If a new recording replaces the
    file, it continues with that one, in a new trace. It reads a deleted file as long as its process
    writes. Where the operating system does not know the writer, as on Windows, only the tree's end
    ends it.

    Raises `ConfigurationError` for a file that cannot be read, is no recording, or is empty without
    a writer.
    """
    with closing(_Reader(Path(file))) as reader:
        quiet = 0.0
        while True:
            # Ask before reading: so all that a writer wrote before its death is read.
            written = _is_locked(reader.descriptor) if quiet >= QUIET_SECONDS else True
            data = reader.read()
            if reader.is_replaced(gone=written is False and not data):
                reader.open()
            elif data:
                reader.feed(data)
                quiet = 0.0
                yield reader.trace
                await asyncio.sleep(0)
            elif reader.trace.lives and reader.trace.lives[-1].ended:
                reader.trace.live = False
                yield reader.trace
                return
            elif written is False:
                reader.end()
                yield reader.trace
                return
            else:
                quiet = POLL_SECONDS if quiet >= QUIET_SECONDS else quiet + POLL_SECONDS
                await asyncio.sleep(POLL_SECONDS)


class _Reader:
    """Reads the complete lines of a growing file into a trace."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.descriptor = -1
        self.open()

    def open(self) -> None:
        """Begin with the file that has this name now."""
        self.close()
        try:
            # A pipe without a writer would block the loop.
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
        self._rest = b""  # an incomplete line
        self._lines = 0

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def read(self) -> bytes:
        """Read the next chunk."""
        try:
            return os.read(self.descriptor, MAX_CHUNK)
        except OSError as error:
            raise self._unreadable(error) from None

    def feed(self, data: bytes) -> None:
        """Feed the lines that are complete now."""
        if len(self._head) < HEAD_SIZE:
            self._head += data[: HEAD_SIZE - len(self._head)]
        complete, newline, self._rest = (self._rest + data).rpartition(b"\n")
        if not newline:
            return
        try:
            lines = complete.decode().split("\n")
        except UnicodeDecodeError as error:
            raise self._unreadable(error) from None
        _feed_lines(self.trace, (f"{line}\n" for line in lines), str(self._path), self._lines)
        self._lines += len(lines)

    def is_replaced(self, *, gone: bool) -> bool:
        """Return whether another recording has replaced this one; `gone`: its writer has ended."""
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

    def end(self) -> None:
        """End the trace: nobody writes the file any more."""
        if not self.trace.lives:
            raise ConfigurationError(f"{str(self._path)!r} is empty, and no recording")
        self.trace.live = False
        self.trace.lose_open()

    def _unreadable(self, error: Exception) -> ConfigurationError:
        why = error.strerror if isinstance(error, OSError) else error
        return ConfigurationError(f"cannot read the recording {str(self._path)!r}: {why}")


def _feed_lines(trace: Trace, lines: Iterable[str], name: str, before: int = 0) -> None:
    """Feed complete lines; `before` lines came earlier.

    The last line of a killed process may be incomplete, and is skipped. So are blank lines between
    others, which earlier releases wrote.
    """
    blank = 0
    for number, line in enumerate(lines, before + 1):
        if not line.endswith("\n"):
            break
        if line == "\n":
            blank = number
            continue
        blank = 0
        try:
            trace.feed(json.loads(line))
        except RecursionError:
            raise ConfigurationError(
                f"{name!r} is no recording: line {number} nests too deep"
            ) from None
        except ConfigurationError as error:
            raise ConfigurationError(f"{name!r}: {error}") from None
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
            raise _damaged(name, number, f"{error!r:.200}") from None
    if blank:
        raise _damaged(name, blank, "it is blank")


def _damaged(name: str, number: int, why: str) -> ConfigurationError:
    return ConfigurationError(f"{name!r} is no recording, or is damaged at line {number}: {why}")


def is_recorded(path: Path) -> bool:
    """Return whether a living process records to the file, as far as the system knows."""
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return _is_locked(file.fileno()) is True
    except OSError:
        return False


def _is_locked(descriptor: int) -> bool | None:
    """Return whether a living process records to an open file; None if the system does not know."""
    if sys.platform == "win32":
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return None
    return False
