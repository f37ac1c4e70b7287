"""Starting and ending a process so that no cancel leaves one behind, also not a zombie."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from typing import Any

from .waiting import wait_shielded

__all__ = ["describe_exit", "end_process", "start_process", "wait_for_exit"]


async def start_process(*command: str, **options: Any) -> asyncio.subprocess.Process:
    """Start a process, as `asyncio.create_subprocess_exec` does.

    Cancelled, however often, it raises only when the process has been killed and has ended.
    """
    # In a task of its own: asyncio also kills what it was starting when it is cancelled, but the
    # next cancel interrupts its wait for the end. A scope of anyio's sends one in every turn.
    loop = asyncio.get_running_loop()
    starting = asyncio.Task(asyncio.create_subprocess_exec(*command, **options), loop=loop)
    interrupted = await wait_shielded(starting)
    if interrupted is None:
        return starting.result()
    try:
        if not starting.cancelled() and starting.exception() is None:
            await end_process(starting.result())
        raise interrupted
    finally:
        del interrupted  # its traceback leads to this frame


async def end_process(process: asyncio.subprocess.Process, grace: float = 0.0) -> None:
    """End a process, and wait for it however often that is cancelled; then raise the last cancel.

    With a `grace` in seconds it is terminated, and killed after that time.
    """
    loop = asyncio.get_running_loop()
    if process.returncode is None:
        if grace:
            process.terminate()
        else:
            process.kill()
    late = loop.call_later(grace, _kill, process) if grace else None
    interrupted = await wait_for_exit(process)
    if late is not None:
        late.cancel()
    if interrupted is not None:
        raise interrupted


async def wait_for_exit(process: asyncio.subprocess.Process) -> asyncio.CancelledError | None:
    """Wait for the end of a process, as `wait_shielded` does; drop the rest of its output."""
    # `wait` alone never returns where the pipe has more than the reader's buffer takes: asyncio
    # then stops reading, and so misses the end of the pipe, for which its `wait` waits too.
    return await wait_shielded(asyncio.Task(_read_to_end(process), loop=asyncio.get_running_loop()))


async def _read_to_end(process: asyncio.subprocess.Process) -> None:
    for stream in (process.stdout, process.stderr):
        with suppress(OSError):  # a pipe that broke
            while stream is not None and await stream.read(2**16):
                pass
    await process.wait()


def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()


def describe_exit(status: int) -> str:
    """Say how a process ended that has this return code."""
    if status >= 0:
        return f"status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:  # the real-time ones have no names but for the first and the last
        return f"signal {-status}"
