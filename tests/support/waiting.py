"""Turns of the loop, and waiting for what sends no event: no other test pauses in real time."""

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
    0.01  # seconds between two looks at what another process or thread does; less starves those
)
TIMEOUT_SECONDS = 30.0  # seconds
MAX_TURNS = 100_000  # before it is said that a loop never comes to it


async def settle_loop() -> None:
    """Let the running loop turn until nothing but this task is ready, and all others wait.

    What timers, sockets, threads and processes bring about may still be to come.
    """
    loop = asyncio.get_running_loop()
    for _ in range(MAX_TURNS):
        await asyncio.sleep(0)
        if not loop._ready:  # type: ignore[attr-defined]
            return
    raise AssertionError("the loop does not come to rest")


async def run_turns(count: int) -> None:
    """Give the running loop so many turns: for a body that takes a while, or a moment to meet."""
    for _ in range(count):
        await asyncio.sleep(0)


async def turn_until(condition: Callable[[], object]) -> None:
    """Go on in the very turn of the running loop in which something has become so."""
    for _ in range(MAX_TURNS):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never was")


async def wait_until(condition: Callable[[], object], patience: float = TIMEOUT_SECONDS) -> None:
    """Wait for what another process or thread brings about; the loop turns meanwhile."""
    async with asyncio.timeout(patience):
        while not condition():  # noqa: ASYNC110 - nobody there sets an event
            await asyncio.sleep(POLL_SECONDS)


def block_until(condition: Callable[[], object]) -> bool:
    """Hold this thread, its loop too, until something is so; say whether it came to be."""
    give_up = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        if time.monotonic() > give_up:
            return False
        time.sleep(POLL_SECONDS)
    return True
