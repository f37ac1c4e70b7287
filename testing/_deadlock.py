"""The error of a loop on which nothing can ever happen again, with the trees that hang."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from ..commander import AnabranchError, Commander, Node
from ..commander.waiting import frames

__all__ = ["Deadlock", "describe"]

SHOWN = 20


class Deadlock(AnabranchError):
    """Nothing is ready, no timer is set, and the run is not over.

    Its text says where the tasks stand, draws each tree and says what it waits for.
    """


def describe(loop: asyncio.AbstractEventLoop) -> str:
    """Say what hangs on `loop`: its trees and its tasks."""
    tasks = sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())
    parts = ["deadlock: nothing is ready, no timer is set, and these still wait:"]
    commanders: dict[int, Commander] = {}
    for number, task in enumerate(tasks):
        place = "an unknown place"
        for frame in frames(task.get_coro()):
            code = frame.f_code
            place = f"{code.co_filename}:{frame.f_lineno} in {code.co_name}"
            for value in frame.f_locals.values():
                if isinstance(value, Node):
                    with suppress(RuntimeError):  # it is in no tree
                        commanders[id(value.commander)] = value.commander
        if number < SHOWN:
            parts.append(f"  {task.get_name()} at {place}")
    if len(tasks) > SHOWN:
        parts.append(f"  ... and {len(tasks) - SHOWN} more tasks")
    for commander in commanders.values():
        parts += ["", str(commander), "", commander.explain()]
    return "\n".join(parts)
