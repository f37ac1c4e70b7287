"""Who works on a run: a lock of the operating system, gone with the process however that ends.

A locked file beside the journal for each run that is worked on. The lock belongs to the open file
and not to the process (as `fcntl`'s would): so two journals in one process exclude each other too,
and somebody who reads and closes the file takes nothing away. A fork would share it and could keep
it beyond the death of its parent: it closes its copy at once.
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

_BEYOND = 1 << 30  # where Windows locks a byte: what is locked there cannot be read


class RunLock:
    """The right to work on one run.

    Raises `RunBusy` if somebody has it, and `OSError` where no lock can be made.
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
                # Else the one who had it has removed it in between, and it keeps nobody out.
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
        with suppress(OSError):  # a full disk: it is locked all the same, and does not say by whom
            os.ftruncate(self._file, 0)
            os.write(self._file, f"{os.getpid()} {time.time()}\n".encode())

    def release(self) -> None:
        """Let the next one have it; twice is harmless."""
        if self._file < 0:
            return
        _held.discard(self)
        with suppress(OSError):  # the folder is gone; Windows: somebody reads it
            self._path.unlink()
        self.forget()

    def forget(self) -> None:
        """Close this process's copy, which leaves the lock to others that have one."""
        file, self._file = self._file, -1
        os.close(file)


def lock_folder(journal: str) -> str:
    """Return the folder in which the locks of a journal's runs are."""
    return os.path.realpath(journal) + "-locks"


def _lock(file: int) -> None:
    if sys.platform == "win32":
        os.lseek(file, _BEYOND, os.SEEK_SET)
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
