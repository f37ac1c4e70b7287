"""`record`: everything that happens in a tree, as lines of a file."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from weakref import WeakSet

from ..backends import Price
from ..commander import Commander
from ..commander.errors import ConfigurationError
from ..commander.tap import require_here
from ._feed import Feed
from ._handle import Handle, LineSink
from ._line import CONTENT_KINDS, HEAD, KINDS, VERSION

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from ._trace import Trace

__all__ = ["Recorder", "is_locked", "is_recorded", "record"]

# The first line of a recording is no longer.
LONGEST_HEAD = 10_000


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
    leaves a file that can be read, up to a twentieth of a second before its death; a body that
    blocks the loop holds up what comes before it in that time.

    Without `content` no prompt, reply, argument, result, message of an error or reason of a cancel
    is written, and with it none that looks like a key. What was in the file is replaced; with
    `append` this is a further life of what stands there: a durable run that goes on in another
    process is then one picture. Models whose price is in `prices`, or in limits of the tree, have
    their cost. Raises `ConfigurationError` if the file cannot be written, is being recorded to, or
    is to be added to and is no recording of this version, and `RuntimeError` outside the
    commander's block, or in another loop or thread than its own. A disk that is full later ends the
    recording, is logged, and concerns no node (`error`).
    """
    return Recorder(commander, Path(file), content=content, append=append, prices=prices)


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
        require_here(commander, "record(commander, ...)")
        self.path = path
        file = _open(path, append)
        self._writer = _Writer(file, content=content, prices=prices)
        kinds = CONTENT_KINDS if content else KINDS
        self._feed = Feed(commander, self._writer, kinds, name=f"the recording {path}", wait=1.0)
        try:
            self._writer.begin(self._feed.start, self._feed.epoch)
        except OSError as error:
            self._feed.close()
            raise ConfigurationError(_refusal(path, error)) from None

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


class _Writer(LineSink):
    """Writes lines to the file; each batch reaches the system whole."""

    def __init__(
        self, file: IO[bytes], *, content: bool, prices: Mapping[str, Price] | None
    ) -> None:
        super().__init__(content=content, prices=prices)
        self._file = file

    def end(self, usage: dict[str, Any] | None) -> None:
        try:
            super().end(usage)
        finally:
            self._file.close()

    def put(self, lines: list[str]) -> None:
        data = memoryview(("\n".join(lines) + "\n").encode("utf-8", "backslashreplace"))
        try:
            while data:  # an unbuffered file may take a part
                data = data[self._file.write(data) :]
        except BaseException:
            self._file.close()  # nothing comes any more
            raise


def _open(path: Path, append: bool) -> IO[bytes]:
    """Open the file for one recorder at a time; the lock goes with the process."""
    try:
        file = open(path, "ab", buffering=0, opener=_open_at_once)  # noqa: SIM115 - kept open
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
    """Open a file; of a pipe that nobody reads, say so instead of waiting for somebody."""
    if sys.platform == "win32":
        return os.open(path, flags, 0o666)
    opened = os.open(path, flags | os.O_NONBLOCK, 0o666)
    os.set_blocking(opened, True)
    return opened


def _lock(file: IO[bytes]) -> bool:
    """Say whether nobody else records to the file, and lock it."""
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
        time.sleep(0.001)  # whoever has it only looks, for a moment: see `is_recorded`
    return False


# Those that this process writes. A fork's child has them too, and would keep their locks.
_files: WeakSet[IO[bytes]] = WeakSet()


def _close_files() -> None:
    for file in tuple(_files):
        file.close()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_close_files)


def _require_recording(path: Path) -> None:
    """Refuse to add to what is no recording, or one of a version that is not known."""
    if not path.is_file():  # a pipe
        return
    try:
        with path.open("rb") as before:
            first = before.readline(LONGEST_HEAD)
    except OSError as error:
        raise ConfigurationError(_refusal(path, error)) from None
    if not first.endswith(b"\n") and (HEAD.startswith(first) or first.startswith(HEAD)):
        return  # it is empty, or the process was killed as it wrote its first line
    try:
        said = json.loads(first)
        version = said["recording"]
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
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return is_locked(file.fileno()) is True
    except OSError:
        return False


def is_locked(descriptor: int) -> bool | None:
    """Say whether a process that lives records to an open file; None: the system does not tell."""
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
