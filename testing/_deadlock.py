"""The error of a loop on which nothing can ever happen again, with the trees that hang."""

from __future__ import annotations

import asyncio
import traceback
from contextlib import suppress
from typing import Any

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
    parts += [f"  {task.get_name()} at {_place(task)}" for task in tasks[:SHOWN]]
    if len(tasks) > SHOWN:
        parts.append(f"  ... and {len(tasks) - SHOWN} more tasks")
    for commander in _commanders(tasks):
        parts += ["", str(commander), "", commander.explain()]
    return "\n".join(parts)


def _place(task: asyncio.Task[Any]) -> str:
    stack = list(frames(task.get_coro()))
    if not stack:
        return "an unknown place"
    summary = traceback.StackSummary.extract((frame, frame.f_lineno) for frame in stack[-1:])[0]
    return f"{summary.filename}:{summary.lineno} in {summary.name}"


def _commanders(tasks: list[asyncio.Task[Any]]) -> list[Commander]:
    found: dict[int, Commander] = {}
    for task in tasks:
        for frame in frames(task.get_coro()):
            for value in frame.f_locals.values():
                if isinstance(value, Node):
                    with suppress(RuntimeError):  # it is in no tree
                        found[id(value.commander)] = value.commander
    return list(found.values())
