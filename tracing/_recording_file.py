"""Files of tracing: open and lock recordings, and write outputs without overwriting a recording.

A recorder locks its file as long as it writes. The lock ends with the process, so a reader learns
whether a recording still grows.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO
from weakref import WeakSet

from ..commander.errors import ConfigurationError
from ..files.replacing import replace_file, resolve_link, write_pieces
from .records import FIRST_BYTES, RECORDING_VERSION

if sys.platform != "win32":
    import fcntl

__all__ = ["is_locked", "is_recorded", "open_recording", "recording_refusal", "write_output"]

# The first line of a recording is shorter.
MAX_FIRST_LINE_BYTES = 10_000


def open_recording(path: Path, append: bool) -> IO[bytes]:
    """Open the file of a recording for one recorder at a time; the lock ends with the process.

    Raises `ConfigurationError` if the file cannot be written, or another recorder writes it.
    """
    try:
        file = open(path, "ab", buffering=0, opener=_open_without_wait)  # noqa: SIM115 - it stays open
    except (OSError, ValueError) as error:
        raise ConfigurationError(recording_refusal(path, error)) from None
    if not _lock(file):
        file.close()
        raise ConfigurationError(
            f"cannot record to {str(path)!r}: another recorder writes this file. Use another file"
        )
    _open_files.add(file)
    if append:
        try:
            _require_recording(path)
        except ConfigurationError:
            file.close()
            raise
        _end_line(path, file)
    else:
        with suppress(OSError):  # pipes and terminals cannot be truncated
            file.truncate(0)
    return file


def recording_refusal(path: Path, error: OSError | ValueError) -> str:
    """Return the message for a file that cannot be written."""
    return f"cannot record to {str(path)!r}: {getattr(error, 'strerror', None) or error}"


def _open_without_wait(path: str, flags: int) -> int:
    """Open a file; raise for a pipe without a reader instead of waiting for one."""
    if sys.platform == "win32":
        return os.open(path, flags, 0o666)
    opened = os.open(path, flags | os.O_NONBLOCK, 0o666)
    os.set_blocking(opened, True)
    return opened


def _lock(file: IO[bytes]) -> bool:
    """Lock the file; return False if another recorder has locked it."""
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
        # A reader's `is_locked` has the lock for a moment. Several of them must not look like a
        # recorder.
        time.sleep(0.001)
    return False


# A forked child has this process's recordings too. If it kept them open, their locks would outlive
# this process.
_open_files: WeakSet[IO[bytes]] = WeakSet()


def _close_files() -> None:
    for file in tuple(_open_files):
        file.close()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_close_files)


def _require_recording(path: Path) -> None:
    """Raise `ConfigurationError` if the file is not a recording, or has another version."""
    if not path.is_file():  # a pipe
        return
    try:
        with path.open("rb") as before:
            first = before.readline(MAX_FIRST_LINE_BYTES)
    except OSError as error:
        raise ConfigurationError(recording_refusal(path, error)) from None
    if not first.endswith(b"\n") and (
        FIRST_BYTES.startswith(first) or first.startswith(FIRST_BYTES)
    ):
        return  # it is empty, or its process was killed while it wrote the first line
    try:
        version = json.loads(first)["recording"]
    except (ValueError, TypeError, KeyError):
        raise ConfigurationError(
            f"cannot append to {str(path)!r}: it is not a recording. Use another file"
        ) from None
    if version != RECORDING_VERSION:
        raise ConfigurationError(
            f"cannot append to {str(path)!r}: it has version {version!r}, and must have version"
            f" {RECORDING_VERSION}. Use another file"
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


# --- for readers


def is_recorded(path: Path) -> bool:
    """Return whether a process records to the file now, as far as the system knows."""
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return is_locked(file.fileno()) is True
    except OSError:
        return False


def is_locked(descriptor: int) -> bool | None:
    """Return whether a process records to an open file; None if the system does not know."""
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


# --- outputs


def write_output(file: str | os.PathLike[str], pieces: Iterable[str]) -> None:
    """Replace a file in one step and keep its permissions; write into a pipe or a terminal.

    Raises `ConfigurationError` if it cannot be written, or if it is a recording.
    """
    try:
        path = resolve_link(Path(file))
        if path.exists() and not (path.is_file() or path.is_dir()):
            write_pieces(path, pieces, "w")
            return
        mode = 0o666
        if path.is_file():
            with path.open("rb") as before:
                if before.read(len(FIRST_BYTES)) == FIRST_BYTES:
                    raise ValueError("it is a recording, and would be overwritten")
            mode = stat.S_IMODE(path.stat().st_mode)
        replace_file(path, pieces, mode)
    except (OSError, ValueError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"cannot write {os.fspath(file)!r}: {why}") from None
