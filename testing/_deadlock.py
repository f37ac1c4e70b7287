"""The error for a loop that can never continue, with the trees and tasks that wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress

from ..commander import AnabranchError, Commander, Node
from ..commander.thread import frames_of_thread
from ..commander.waiting import frames

__all__ = ["Deadlock", "describe"]

SHOWN = 20


class Deadlock(AnabranchError):
    """No task is ready, no timer is set, and the run has not ended.

    The message lists where each task is suspended, draws each tree and explains what its nodes wait
    for. If threads are still working after the loop's `patience`, the message lists them first,
    because they may only need more time.
    """


def describe(loop: asyncio.AbstractEventLoop, working: Sequence[threading.Thread]) -> str:
    """Return the text of a deadlock: working threads, suspended tasks, trees and explanations."""
    tasks = sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())
    parts = ["deadlock: nothing is ready, no timer is set, and these still wait:"]
    if working:
        parts = ["deadlock, or patience= is too short: these threads are still at work:"]
        parts += [f"  {thread.name}{_place(thread)}" for thread in working]
        parts += ["and these tasks wait, with no timer set:"]
    commanders: dict[int, Commander] = {}
    for number, task in enumerate(tasks):
        place = "an unknown place"
        for frame in frames(task.get_coro()):
            code = frame.f_code
            place = f"{code.co_filename}:{frame.f_lineno} in {code.co_name}"
            for value in frame.f_locals.values():
                if isinstance(value, Node):
                    with suppress(RuntimeError):  # the node is in no tree
                        commanders[id(value.commander)] = value.commander
        if number < SHOWN:
            parts.append(f"  {task.get_name()} at {place}")
    if len(tasks) > SHOWN:
        parts.append(f"  ... and {len(tasks) - SHOWN} more tasks")
    for commander in commanders.values():
        parts += ["", str(commander), "", commander.explain()]
    return "\n".join(parts)


def _place(thread: threading.Thread) -> str:
    for frame in frames_of_thread(thread.ident or 0):
        return f" at {frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
    return ""  # the thread has ended since
