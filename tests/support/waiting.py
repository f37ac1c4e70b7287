"""Wait for turns of the loop, or poll a condition that sends no event.

No other test helper pauses in real time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

__all__ = [
    "POLL_SECONDS",
    "TIMEOUT_SECONDS",
    "block_until",
    "run_turns",
    "settle_loop",
    "turn_until",
    "wait_until",
]

POLL_SECONDS = (
    0.01  # seconds; shorter intervals starve the process or thread that the test waits for
)
TIMEOUT_SECONDS = 30.0  # seconds
MAX_TURNS = 100_000  # after these a wait for a turn fails


async def settle_loop() -> None:
    """Let the running loop turn until this task is the only one that is ready.

    Timers, sockets, threads and processes may still wake up other tasks later.
    """
    loop = asyncio.get_running_loop()
    for _ in range(MAX_TURNS):
        await asyncio.sleep(0)
        if not loop._ready:  # type: ignore[attr-defined]
            return
    raise AssertionError("the loop does not come to rest")


async def run_turns(count: int) -> None:
    """Let the running loop take `count` turns, to delay a body or to hit a certain moment."""
    for _ in range(count):
        await asyncio.sleep(0)


async def turn_until(condition: Callable[[], object]) -> None:
    """Return in the turn of the running loop that makes `condition` true."""
    for _ in range(MAX_TURNS):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never was")


async def wait_until(condition: Callable[[], object], patience: float = TIMEOUT_SECONDS) -> None:
    """Wait until another process or thread makes `condition` true, without blocking the loop."""
    async with asyncio.timeout(patience):
        while not condition():  # noqa: ASYNC110 - another process cannot set an event
            await asyncio.sleep(POLL_SECONDS)


def block_until(condition: Callable[[], object]) -> bool:
    """Block this thread and its loop until `condition` is true; return False on a timeout."""
    give_up = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        if time.monotonic() > give_up:
            return False
        time.sleep(POLL_SECONDS)
    return True
