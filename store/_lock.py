"""The lease of a run: a lock of the operating system, which always ends with the process.

Each run with an owner has a locked file beside the journal. The lock belongs to the open file, not
to the process as a lock of `fcntl` would. So two journals in one process exclude each other too,
and reading the file does not release it. A fork would share the lock, also after the death of its
parent, so it closes its copy at once.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from weakref import WeakSet

from .errors import RunBusy

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

__all__ = ["RunLock", "lock_folder"]

_WINDOWS_LOCK_OFFSET = 1 << 30  # beyond the content, as Windows does not read a locked byte


class RunLock:
    """The lease of one run.

    Raises `RunBusy` if another owner has it, and `OSError` where no lock can be created.
    """

    def __init__(self, journal: str, run_id: str) -> None:
        folder = Path(lock_folder(journal))
        folder.mkdir(exist_ok=True)
        name = hashlib.sha256(run_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        self._path = folder / name
        while True:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                _lock(self._file)
                # Otherwise the last owner has removed the file: another process can lock a new one.
                if os.path.samestat(os.fstat(self._file), os.stat(self._path)):
                    break
            except FileNotFoundError:
                pass
            except (BlockingIOError, PermissionError):  # the latter on Windows
                os.lseek(self._file, 0, os.SEEK_SET)
                holder = os.read(self._file, 64)
                os.close(self._file)
                raise RunBusy(run_id, *_holder(holder)) from None
            except BaseException:
                os.close(self._file)
                raise
            os.close(self._file)
        _held.add(self)
        with suppress(OSError):  # a full disk: `RunBusy` then does not name the process
            os.ftruncate(self._file, 0)
            os.write(self._file, f"{os.getpid()} {time.time()}\n".encode())

    def release(self) -> None:
        """Release the lease; twice is harmless."""
        if self._file < 0:
            return
        _held.discard(self)
        with suppress(OSError):  # no folder; on Windows, another reader
            self._path.unlink()
        self.forget()

    def forget(self) -> None:
        """Close this process's copy of the file, without releasing the copies of others."""
        file, self._file = self._file, -1
        os.close(file)


def lock_folder(journal: str) -> str:
    """Return the folder of the lock files of a journal."""
    return os.path.realpath(journal) + "-locks"


def _lock(file: int) -> None:
    if sys.platform == "win32":
        os.lseek(file, _WINDOWS_LOCK_OFFSET, os.SEEK_SET)
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        os.lseek(file, 0, os.SEEK_SET)
    else:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _holder(text: bytes) -> tuple[int | None, float | None]:
    with suppress(ValueError):
        pid, since = text.split()
        return int(pid), float(since)
    return None, None


_held: WeakSet[RunLock] = WeakSet()


def _forget_all() -> None:
    for lock in list(_held):
        lock.forget()
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
