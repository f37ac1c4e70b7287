"""The other end of `in_process`: a process that runs one function and sends back its outcome."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import threading
import traceback
from multiprocessing.spawn import prepare
from types import FrameType
from typing import Any

from . import _blocking
from ._report import describe


def main() -> None:
    """Read the call from standard input, run it, write the pickled outcome to standard output.

    Terminated, it raises `CancelledError` where the function stands and lets `check_cancelled`
    say so. When the parent goes away, so does it. What the function prints goes to standard error.
    """
    signal.signal(signal.SIGTERM, _be_told)
    _blocking.process_told = False
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    work = _read(int.from_bytes(_read(8), "big"))
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    outcome = _run(work)
    with channel:
        channel.write(outcome)


def _be_told(number: int, frame: FrameType | None) -> None:
    first, _blocking.process_told = not _blocking.process_told, True
    if first:
        raise asyncio.CancelledError


def _read(size: int) -> bytes:
    # Without a buffer: its lock, held by the thread below, would be in the way of a clean end.
    parts: list[bytes] = []
    while size and (part := os.read(0, min(size, 1 << 20))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _leave_with_parent() -> None:
    _read(1)
    if not _blocking.process_told:
        os._exit(1)


def _run(work: bytes) -> bytes:
    try:
        preparation, call = pickle.loads(work)  # noqa: S301 - the parent wrote it
        prepare(preparation)
        function, args, kwargs = pickle.loads(call)  # noqa: S301 - as above
        return pickle.dumps((True, function(*args, **kwargs), ""))
    except BaseException as error:  # noqa: BLE001 - it is raised again in the parent
        return _pickle_error(error, f"in the process:\n{traceback.format_exc()}")


def _pickle_error(error: BaseException, trace: str) -> bytes:
    try:
        pickled = pickle.dumps((False, error, trace))
        pickle.loads(pickled)  # noqa: S301 - some exceptions pickle and cannot be read again
    except Exception:  # noqa: BLE001 - whatever its own pickling raises
        stand_in: Any = RuntimeError(describe(error))
        return pickle.dumps((False, stand_in, trace))
    return pickled
