"""`record` and `live`: all events of a tree, in a file or in this process."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from ..backends import Price
from ..commander import Commander, Event
from ..commander.errors import ConfigurationError
from ..commander.tap import require_open
from ._event_thread import EventThread, Gap, TreeFollower
from ._read import read
from ._recording_file import open_recording, recording_refusal
from ._trace import Trace
from .records import CONTENT_KINDS, RECORDED_KINDS, Record, Records, to_line

__all__ = ["LiveTrace", "Recorder", "live", "record"]


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

    A thread writes the file, so the tree pays only for a listener. The end of the block lets it
    continue until nothing runs in the tree; `close` ends it at once. A process that is killed
    leaves a readable file, without the last twentieth of a second at most. A body that blocks the
    event loop delays earlier events as long as it blocks.

    Without `content` the file contains no prompt, reply, argument, result, error message or cancel
    reason. With `content` everything that looks like a key is masked. Recording replaces the file;
    with `append` it adds an execution, so that a durable run over several processes is one trace.
    Models with a price in `prices`, or in limits of the tree, have a cost.

    Raises `ConfigurationError` if the file cannot be written, if another recorder writes it, or if
    `append` finds no recording of this version; and `RuntimeError` outside the commander's block,
    its loop or its thread. A disk that becomes full ends the recording: this is logged, sets
    `error`, and affects no node.
    """
    return Recorder(commander, Path(file), content=content, append=append, prices=prices)


def live(
    commander: Commander, *, content: bool = False, prices: Mapping[str, Price] | None = None
) -> LiveTrace:
    """Return a trace of the tree of `commander` that grows with the tree, without a file.

        async with Commander() as c:
            live_trace = live(c)
            ...
            print(live_trace.trace().usage_by_agent())

    The trace has the same contents as a recording: see `record` for `content` and `prices`. Raises
    `RuntimeError` outside the commander's block, its loop or its thread.
    """
    return LiveTrace(commander, content=content, prices=prices)


class _RecordSink(ABC):
    """Makes records of events, in the event thread."""

    def __init__(self, content: bool, prices: Mapping[str, Price] | None) -> None:
        self.kinds = CONTENT_KINDS if content else RECORDED_KINDS
        self._content = content
        self._prices = prices
        self._records: Records | None = None  # set when the first record is stored
        self._last = 0.0

    def begin(self, thread: EventThread) -> None:
        """Store the first record, before any event arrives."""
        self._last = thread.start
        records = Records(thread.start, thread.epoch, content=self._content, prices=self._prices)
        self.put([records.first()])
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
    """Stores records until `LiveTrace.trace` reads them, so that the event thread never waits."""

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


class LiveTrace(TreeFollower):
    """A trace that grows with its tree; `live` makes it."""

    def __init__(
        self, commander: Commander, *, content: bool, prices: Mapping[str, Price] | None
    ) -> None:
        require_open(commander, "live(commander, ...)")
        self._reading = threading.Lock()
        self._trace = Trace()
        self._sink = sink = _UnreadSink(content, prices)
        self._thread = EventThread(commander, sink, sink.kinds, name="a live trace", wait=1.0)
        sink.begin(self._thread)

    def trace(self) -> Trace:
        """Return the trace so far, at most a twentieth of a second behind the tree.

        It is the same object each time, and only this call changes it. Any thread may call it, and
        only one thread should.
        """
        with self._reading:
            for each in self._sink.take_unread():
                self._trace.feed(each)
            self._trace.live = not self._trace.executions[-1].ended
            return self._trace

    def flush(self) -> None:
        """Wait until `trace` returns all that has happened before this call."""
        self._thread.flush()


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
        if not lines:  # such as a text whose last word is incomplete
            return
        data = memoryview(("\n".join(lines) + "\n").encode())
        try:
            while data:  # an unbuffered file may take only a part
                data = data[self._file.write(data) :]
        except BaseException:
            self._file.close()  # after an error this sink gets no more events
            raise


class Recorder(TreeFollower):
    """An open recording; `record` makes it."""

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
        sink = _FileSink(open_recording(path, append), content, prices)
        name = f"the recording {path}"
        self._thread = EventThread(commander, sink, sink.kinds, name=name, wait=1.0)
        try:
            sink.begin(self._thread)
        except OSError as error:
            self._thread.close()
            raise ConfigurationError(recording_refusal(path, error)) from None

    def trace(self) -> Trace:
        """Read the recording so far."""
        self._thread.flush()
        return read(self.path)

    def html(
        self, file: str | os.PathLike[str], *, prices: Mapping[str, Price] | None = None
    ) -> None:
        """Write a page that shows the recording so far; it opens from disk and needs no network."""
        self.trace().html(file, prices=prices)

    def perfetto(self, file: str | os.PathLike[str]) -> None:
        """Write the recording so far as a trace for ui.perfetto.dev or chrome://tracing."""
        self.trace().perfetto(file)
