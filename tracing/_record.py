"""`record`: everything that happens in a tree, as lines of a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self

from ..backends import Price
from ..commander import Commander, Event
from ..commander.errors import ConfigurationError
from ._feed import Feed, Gap
from ._line import CONTENT_KINDS, KINDS, Lines

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from ._trace import Trace

__all__ = ["Recorder", "is_recorded", "record"]


def record(
    commander: Commander,
    file: str | os.PathLike[str],
    *,
    content: bool = False,
    append: bool = False,
    prices: Mapping[str, Price] | None = None,
) -> Recorder:
    """Record what happens in the tree of `commander`, from now on, as lines of JSON in `file`.

        async with Commander() as c, record(c, "run.jsonl") as recorder: ...
        recorder.html("run.html")

    It costs the tree a listener: the file is written in a thread. Leaving the block lets it go on
    until nothing runs in the tree any more; `close` ends it at once. A process that is killed
    leaves a file that can be read, up to a twentieth of a second before its death.

    Without `content` no prompt, reply, argument, result, message of an error or reason of a cancel
    is written, and with it none that looks like a key. What was in the file is replaced; with
    `append` this is a further life of what stands there: a durable run that goes on in another
    process is then one picture. Models whose price is in `prices`, or in limits of the tree, have
    their cost. Raises `ConfigurationError` if the file cannot be written, or is being recorded to;
    a disk that is full later ends the recording, is logged, and concerns no node (`error`).
    """
    return Recorder(commander, Path(file), content=content, append=append, prices=prices)


class Recorder:
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
        if commander.state != "running":
            raise RuntimeError(
                "record(commander, ...) is called inside the commander's block:"
                " async with Commander() as c, record(c, file):"
            )
        self.path = path
        file = _open(path, append)
        self._writer = _Writer(file, content=content, prices=prices)
        kinds = CONTENT_KINDS if content else KINDS
        self._feed = Feed(commander, self._writer, kinds, name=f"the recording {path}", wait=1.0)
        self._writer.begin(self._feed.start, self._feed.epoch)

    @property
    def error(self) -> Exception | None:
        """Why the recording ended before the tree did, None if it did not."""
        return self._feed.error

    def close(self) -> None:
        """Record no more; in any thread. Closing twice is harmless."""
        self._feed.close()

    def trace(self) -> Trace:
        """Read what has been recorded so far."""
        from ._trace import read

        self._feed.flush()
        return read(self.path)

    def html(
        self, file: str | os.PathLike[str], *, prices: Mapping[str, Price] | None = None
    ) -> None:
        """Write a page that shows the recording so far; it opens from disk and asks nobody."""
        self.trace().html(file, prices=prices)

    def perfetto(self, file: str | os.PathLike[str]) -> None:
        """Write the recording so far as a trace for ui.perfetto.dev or chrome://tracing."""
        self.trace().perfetto(file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._feed.leave()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._feed.leave()


class _Writer:
    """Writes lines to the file, in the feed's thread; each batch reaches the system whole."""

    def __init__(
        self, file: IO[bytes], *, content: bool, prices: Mapping[str, Price] | None
    ) -> None:
        self._file = file
        self._content = content
        self._prices = prices
        self._lines: Lines | None = None
        self._last = 0.0

    def begin(self, start: float, epoch: float) -> None:
        """Write the first line, before any event is taken."""
        self._last = start
        self._lines = Lines(start, epoch, content=self._content, prices=self._prices)
        self._write([self._lines.head()])

    def take(self, events: list[Event]) -> None:
        assert self._lines is not None
        self._last = events[-1].clock
        self._write(self._lines.of(events))

    def take_gap(self, gap: Gap) -> None:
        assert self._lines is not None
        self._write([self._lines.gap(gap)])

    def end(self, usage: dict[str, Any] | None) -> None:
        assert self._lines is not None
        try:
            self._write([self._lines.end(self._last, usage)])
        finally:
            self._file.close()

    def _write(self, lines: list[str]) -> None:
        data = memoryview(("\n".join(lines) + "\n").encode("utf-8", "backslashreplace"))
        while data:  # an unbuffered file may take a part
            data = data[self._file.write(data) :]


def _open(path: Path, append: bool) -> IO[bytes]:
    """Open the file for one recorder at a time; the lock goes with the process."""
    try:
        file = path.open("ab", buffering=0)
    except OSError as error:
        raise ConfigurationError(f"cannot record to {str(path)!r}: {error.strerror}") from None
    if sys.platform != "win32":
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise ConfigurationError(
                f"{str(path)!r} is being recorded to, by this process or another: take another file"
            ) from None
        except OSError:  # a file system without locks
            pass
    if append:
        _end_line(path, file)
    else:
        with suppress(OSError):  # a pipe, a terminal
            file.truncate(0)
    return file


def _end_line(path: Path, file: IO[bytes]) -> None:
    """Cut off the half of a line that a killed process has left: what comes would join it."""
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


def is_recorded(path: Path) -> bool:
    """Say whether a process that lives records to the file, as far as the system tells."""
    if sys.platform == "win32":
        return False
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False
