"""The error of a loop on which nothing can ever happen again, with the trees that hang."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Iterator
from contextlib import suppress
from types import FrameType
from typing import Any

from ..commander import AnabranchError, Commander, Node

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
    frames = list(_frames(task))
    if not frames:
        return "an unknown place"
    summary = traceback.StackSummary.extract((frame, frame.f_lineno) for frame in frames[-1:])[0]
    return f"{summary.filename}:{summary.lineno} in {summary.name}"


def _frames(task: asyncio.Task[Any]) -> Iterator[FrameType]:
    at: Any = task.get_coro()
    while at is not None:
        frame = getattr(at, "cr_frame", None)
        if frame is not None:
            yield frame
        at = getattr(at, "cr_await", None)


def _commanders(tasks: list[asyncio.Task[Any]]) -> list[Commander]:
    found: dict[int, Commander] = {}
    for task in tasks:
        for frame in _frames(task):
            for value in frame.f_locals.values():
                if isinstance(value, Node):
                    with suppress(RuntimeError):  # it is in no tree
                        found[id(value.commander)] = value.commander
    return list(found.values())
