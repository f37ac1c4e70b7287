"""`record` and `live`: all events of a tree, in a file or in this process."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any
from weakref import WeakSet

from ..backends import Price
from ..commander import Commander, Event
from ..commander.errors import ConfigurationError
from ..commander.tap import require_open
from ._feed import Feed, Gap, Handle
from ._read import read
from ._trace import Trace
from .records import CONTENT_KINDS, HEAD, KINDS, VERSION, Record, Records, to_line

if sys.platform != "win32":
    import fcntl

__all__ = ["LiveTrace", "Recorder", "live", "record"]

# The first line of a recording is shorter.
MAX_HEAD = 10_000


def record(
    commander: Commander,
    file: str | os.PathLike[str],
    *,
    content: bool = False,
    append: bool = False,
    prices: Mapping[str, Price] | None = None,
) -> Recorder:
    """Record all events in the tree of `commander`, from now on, as lines of JSON in `file`.

        async with Commander() as c, record(c, "run.jsonl") as recorder: ...
        recorder.html("run.html")

    It costs the tree a listener: a thread writes the file. The end of the block lets it continue
    until nothing runs in the tree; `close` ends it at once. A process that is killed leaves a
    readable file that lacks the last twentieth of a second at most; a body that blocks the event
    loop delays earlier events as long as it blocks.

    Without `content` the file has no prompt, reply, argument, result, error message or cancel
    reason. With `content` everything that looks like a key is masked. Recording replaces the file;
    with `append` it adds an execution, so that a durable run that continues in another process is
    one picture. Models with a price in `prices`, or in limits of the tree, have a cost.

    Raises `ConfigurationError` if the file cannot be written, another recorder has it, or `append`
    finds no recording of this version; and `RuntimeError` outside the commander's block, its loop
    or its thread. A disk that is full later ends the recording: that is logged, sets `error`, and
    affects no node.
    """
    return Recorder(commander, Path(file), content=content, append=append, prices=prices)


def live(
    commander: Commander, *, content: bool = False, prices: Mapping[str, Price] | None = None
) -> LiveTrace:
    """Follow the tree of `commander`, which has been entered, from now on, without a file.

        async with Commander() as c:
            seen = live(c)
            ...
            print(seen.trace().usage_by_agent())

    The trace has the same contents as a recording: see `record` for `content` and `prices`.
    """
    return LiveTrace(commander, content=content, prices=prices)


class _RecordSink(ABC):
    """Makes records of events, in the feed's thread."""

    def __init__(self, content: bool, prices: Mapping[str, Price] | None) -> None:
        self.kinds = CONTENT_KINDS if content else KINDS
        self._content = content
        self._prices = prices
        self._records: Records | None = None  # set when the first record is stored
        self._last = 0.0

    def begin(self, feed: Feed) -> None:
        """Put the first record, before any event arrives."""
        self._last = feed.start
        records = Records(feed.start, feed.epoch, content=self._content, prices=self._prices)
        self.put([records.head()])
        self._records = records

    @abstractmethod
    def put(self, records: list[Record]) -> None:
        """Store records."""

    @abstractmethod
    def put_events(self, records: Records, events: list[Event]) -> None:
        """Store the records of events."""

    def take(self, events: list[Event]) -> None:
        assert self._records is not None
        self._last = self._records.clock_of(events[-1])
        self.put_events(self._records, events)

    def take_gap(self, gap: Gap) -> None:
        assert self._records is not None
        self._last = gap.clock
        self.put([self._records.gap(gap)])

    def end(self, usage: dict[str, Any] | None) -> None:
        if self._records is not None:
            self.put(self._records.end(self._last, usage))


class _UnreadSink(_RecordSink):
    """Stores records until somebody reads them, so that the feed's thread never waits."""

    def __init__(self, content: bool, prices: Mapping[str, Price] | None) -> None:
        super().__init__(content, prices)
        self._lock = threading.Lock()
        self._unread: list[Record] = []

    def put(self, records: list[Record]) -> None:
        with self._lock:
            self._unread += records

    def put_events(self, records: Records, events: list[Event]) -> None:
        self.put(records.of(events))

    def take_unread(self) -> list[Record]:
        """Return the records since the last call."""
        with self._lock:
            records, self._unread = self._unread, []
        return records


class LiveTrace(Handle):
    """A trace that grows with its tree; `live` makes it."""

    def __init__(
        self, commander: Commander, *, content: bool, prices: Mapping[str, Price] | None
    ) -> None:
        require_open(commander, "live(commander, ...)")
        self._reading = threading.Lock()
        self._trace = Trace()
        self._sink = sink = _UnreadSink(content, prices)
        self._feed = Feed(commander, sink, sink.kinds, name="a live trace", wait=1.0)
        sink.begin(self._feed)

    def trace(self) -> Trace:
        """Return the trace so far, at most a twentieth of a second behind the tree.

        It is the same object each time, and only this call changes it. Any thread may call it, and
        only one thread should.
        """
        with self._reading:
            for each in self._sink.take_unread():
                self._trace.feed(each)
            self._trace.live = not self._trace.lives[-1].ended
            return self._trace

    def flush(self) -> None:
        """Wait until `trace` returns all that has happened before this call."""
        self._feed.flush()


class _FileSink(_RecordSink):
    """Writes records to a file; each batch reaches the operating system completely."""

    def __init__(self, file: IO[bytes], content: bool, prices: Mapping[str, Price] | None) -> None:
        super().__init__(content, prices)
        self._file = file

    def end(self, usage: dict[str, Any] | None) -> None:
        try:
            super().end(usage)
        finally:
            self._file.close()

    def put(self, records: list[Record]) -> None:
        self._write([to_line(each) for each in records])

    def put_events(self, records: Records, events: list[Event]) -> None:
        self._write(records.lines(events))

    def _write(self, lines: list[str]) -> None:
        if not lines:  # such as events of which only the last word is not complete yet
            return
        data = memoryview(("\n".join(lines) + "\n").encode())
        try:
            while data:  # an unbuffered file may take only a part
                data = data[self._file.write(data) :]
        except BaseException:
            self._file.close()  # no more events come
            raise


class Recorder(Handle):
    """A recording that is being made; `record` makes it."""

    def __init__(
        self,
        commander: Commander,
        path: Path,
        *,
        content: bool,
        append: bool,
        prices: Mapping[str, Price] | None,
    ) -> None:
        require_open(commander, "record(commander, ...)")
        self.path = path
        sink = _FileSink(_open(path, append), content, prices)
        self._feed = Feed(commander, sink, sink.kinds, name=f"the recording {path}", wait=1.0)
        try:
            sink.begin(self._feed)
        except OSError as error:
            self._feed.close()
            raise ConfigurationError(_refusal(path, error)) from None

    def trace(self) -> Trace:
        """Read the recording so far."""
        self._feed.flush()
        return read(self.path)

    def html(
        self, file: str | os.PathLike[str], *, prices: Mapping[str, Price] | None = None
    ) -> None:
        """Write a page that shows the recording so far; it opens from disk and needs no network."""
        self.trace().html(file, prices=prices)

    def perfetto(self, file: str | os.PathLike[str]) -> None:
        """Write the recording so far as a trace for ui.perfetto.dev or chrome://tracing."""
        self.trace().perfetto(file)


def _open(path: Path, append: bool) -> IO[bytes]:
    """Open the file for one recorder at a time; the lock ends with the process."""
    try:
        file = open(path, "ab", buffering=0, opener=_open_at_once)  # noqa: SIM115 - it stays open
    except (OSError, ValueError) as error:
        raise ConfigurationError(_refusal(path, error)) from None
    if not _lock(file):
        file.close()
        raise ConfigurationError(
            f"{str(path)!r} is being recorded to, by this process or another: take another file"
        )
    _files.add(file)
    if append:
        try:
            _require_recording(path)
        except ConfigurationError:
            file.close()
            raise
        _end_line(path, file)
    else:
        with suppress(OSError):  # a pipe, a terminal
            file.truncate(0)
    return file


def _refusal(path: Path, error: OSError | ValueError) -> str:
    return f"cannot record to {str(path)!r}: {getattr(error, 'strerror', None) or error}"


def _open_at_once(path: str, flags: int) -> int:
    """Open a file; raise for a pipe without a reader instead of waiting for one."""
    if sys.platform == "win32":
        return os.open(path, flags, 0o666)
    opened = os.open(path, flags | os.O_NONBLOCK, 0o666)
    os.set_blocking(opened, True)
    return opened


def _lock(file: IO[bytes]) -> bool:
    """Lock the file; return False if another recorder has it."""
    if sys.platform == "win32":
        return True
    for _ in range(100):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass
        except OSError:  # a file system without locks
            return True
        else:
            return True
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        time.sleep(0.001)  # `is_locked` has the lock for a moment
    return False


# A forked child has this process's recordings too, and would keep their locks.
_files: WeakSet[IO[bytes]] = WeakSet()


def _close_files() -> None:
    for file in tuple(_files):
        file.close()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_close_files)


def _require_recording(path: Path) -> None:
    """Raise if the file is no recording, or one of an unknown version."""
    if not path.is_file():  # a pipe
        return
    try:
        with path.open("rb") as before:
            first = before.readline(MAX_HEAD)
    except OSError as error:
        raise ConfigurationError(_refusal(path, error)) from None
    if not first.endswith(b"\n") and (HEAD.startswith(first) or first.startswith(HEAD)):
        return  # it is empty, or its process was killed in the middle of the first line
    try:
        version = json.loads(first)["recording"]
    except (ValueError, TypeError, KeyError):
        raise ConfigurationError(
            f"{str(path)!r} is no recording, and append=True would add to it: take another file"
        ) from None
    if version != VERSION:
        raise ConfigurationError(
            f"the recording {str(path)!r} is of version {version!r}, and this program adds to those"
            f" of version {VERSION} alone: take another file"
        )


def _end_line(path: Path, file: IO[bytes]) -> None:
    """Remove the incomplete line of a killed process: the next record would join it."""
    with suppress(OSError):
        size = path.stat().st_size
        with path.open("rb") as before:
            while size:
                start = max(0, size - 65_536)
                before.seek(start)
                newline = before.read(size - start).rfind(b"\n")
                if newline >= 0:
                    file.truncate(start + newline + 1)
                    return
                size = start
            file.truncate(0)
