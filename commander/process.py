"""Start and end processes so that no cancel leaves a process or a zombie."""

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
    # In its own task: a cancelled `create_subprocess_exec` kills the process, but a second cancel
    # interrupts its wait for the end. An anyio scope cancels again on every turn.
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
        del interrupted  # its traceback refers to this frame


async def end_process(process: asyncio.subprocess.Process, grace: float = 0.0) -> None:
    """Kill a process and wait for its end, however often this is cancelled; then raise the cancel.

    With `grace`, terminate it, and kill it after that many seconds.
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
    # `wait` alone never returns if a pipe has more data than the reader's buffer: asyncio stops
    # reading then, and its `wait` also waits for the end of the pipes.
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
    """Describe a return code: "status 1" or "signal SIGKILL"."""
    if status >= 0:
        return f"status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:  # most real-time signals have no name
        return f"signal {-status}"
