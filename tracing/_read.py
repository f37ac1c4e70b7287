"""`read` a recording, or `follow` one that another process still writes."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import AsyncGenerator, Iterable
from contextlib import closing
from pathlib import Path

from ..commander.errors import ConfigurationError
from ._recording_file import is_locked, is_recorded
from ._trace import Trace

__all__ = ["follow", "read"]

# Between two reads at the end of the file.
POLL_SECONDS = 0.1
# After this time without new lines, check whether the writer is alive.
QUIET_SECONDS = 1.0
# The most bytes that are read in one step of the event loop.
MAX_CHUNK_BYTES = 65_536
# Bytes at the start that identify a recording: they have its time and process.
IDENTIFYING_BYTES = 200


def read(file: str | Path) -> Trace:
    """Read a recording.

        trace = read("run.jsonl")
        print(trace.first_failure)

    A process may still write it. If that process was killed, the open nodes are "lost". Raises
    `ConfigurationError` for a file that is not a recording.
    """
    trace = Trace()
    path = Path(file)
    trace.live = is_recorded(path)
    try:
        with path.open(encoding="utf-8") as lines:
            _feed_lines(trace, lines, str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read the recording {str(file)!r}: {error}") from None
    if not trace.executions:
        raise ConfigurationError(f"{str(file)!r} is empty: it must be a recording")
    if not trace.live:
        trace.lose_open()
    return trace


async def follow(file: str | os.PathLike[str]) -> AsyncGenerator[Trace]:
    """Yield the trace of a recording each time that it has grown, and once at its end.

        async for trace in follow("run.jsonl"):
            print(len(trace))

    It is the same object, which grows between two steps. It ends when the tree ends, or when no
    process writes the file any more; then open nodes are "lost". If a new recording replaces the
    file, it continues with the new one, in a new trace. It reads a deleted file as long as its
    process writes. Where the operating system does not know the writer, as on Windows, only the end
    of the tree ends it.

    Raises `ConfigurationError` for a file that cannot be read, is not a recording, or is empty
    without a writer.
    """
    with closing(_RecordingReader(Path(file))) as reader:
        quiet = 0.0
        while True:
            # Check before reading: so this reads all lines that a killed writer has written.
            written = is_locked(reader.descriptor) if quiet >= QUIET_SECONDS else True
            data = reader.read()
            if reader.is_replaced(writer_ended=written is False and not data):
                reader.open()
            elif data:
                reader.feed(data)
                quiet = 0.0
                yield reader.trace
                await asyncio.sleep(0)
            elif reader.trace.executions and reader.trace.executions[-1].ended:
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


class _RecordingReader:
    """Reads the complete lines of a growing file into a trace."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.descriptor = -1
        self.open()

    def open(self) -> None:
        """Start with the file that has this name now."""
        self.close()
        try:
            # A pipe without a writer would block the loop.
            flags = getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
            self.descriptor = os.open(self._path, os.O_RDONLY | flags)
        except OSError as error:
            raise self._unreadable(error) from None
        if stat.S_ISFIFO(os.fstat(self.descriptor).st_mode):
            self.close()
            raise ConfigurationError(f"{str(self._path)!r} is a pipe: it must be a file")
        self.trace = Trace()
        self.trace.live = True
        self._start = b""  # the bytes that identify the recording
        self._rest = b""  # an incomplete line
        self._lines = 0

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def read(self) -> bytes:
        """Read the next chunk."""
        try:
            return os.read(self.descriptor, MAX_CHUNK_BYTES)
        except OSError as error:
            raise self._unreadable(error) from None

    def feed(self, data: bytes) -> None:
        """Add the lines that are complete now to the trace."""
        if len(self._start) < IDENTIFYING_BYTES:
            self._start += data[: IDENTIFYING_BYTES - len(self._start)]
        complete, newline, self._rest = (self._rest + data).rpartition(b"\n")
        if not newline:
            return
        try:
            lines = complete.decode().split("\n")
        except UnicodeDecodeError as error:
            raise self._unreadable(error) from None
        _feed_lines(self.trace, (f"{line}\n" for line in lines), str(self._path), self._lines)
        self._lines += len(lines)

    def is_replaced(self, *, writer_ended: bool) -> bool:
        """Return whether another recording has replaced this one, in this file or under its name.

        As long as the writer writes, its file counts, even if another one has the name.
        """
        here = os.fstat(self.descriptor)
        if here.st_size < os.lseek(self.descriptor, 0, os.SEEK_CUR):
            return True
        if os.name != "nt":
            if self._start != os.pread(self.descriptor, len(self._start), 0):
                return True
            try:
                return writer_ended and not os.path.samestat(here, self._path.stat())
            except OSError:  # it was deleted
                return False
        return False

    def end(self) -> None:
        """End the trace of a recording whose writer has ended."""
        if not self.trace.executions:
            raise ConfigurationError(f"{str(self._path)!r} is empty: it must be a recording")
        self.trace.live = False
        self.trace.lose_open()

    def _unreadable(self, error: Exception) -> ConfigurationError:
        why = error.strerror if isinstance(error, OSError) else error
        return ConfigurationError(f"cannot read the recording {str(self._path)!r}: {why}")


def _feed_lines(trace: Trace, lines: Iterable[str], name: str, before: int = 0) -> None:
    """Add complete lines to a trace; `before` is the number of earlier lines.

    It skips the last line of a killed process, which may be incomplete, and blank lines between
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
                f"{name!r} is not a recording: line {number} is nested too deeply"
            ) from None
        except ConfigurationError as error:
            raise ConfigurationError(f"{name!r}: {error}") from None
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
            raise _damaged(name, number, f"{error!r:.200}") from None
    if blank:
        raise _damaged(name, blank, "it is blank")


def _damaged(name: str, number: int, why: str) -> ConfigurationError:
    return ConfigurationError(f"{name!r} is not a recording, or is damaged at line {number}: {why}")
