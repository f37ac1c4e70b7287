"""Ending a subtree early: cancellation, and the failure of a node whose body still runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from ._record import DONE, Record
from ._report import describe, log, raise_soon

__all__ = ["abort", "cancel_subtrees"]


def cancel_subtrees(roots: Iterable[Record], reason: str) -> None:
    """Mark all nodes at and below `roots`, then tell them, each before its parent.

    Nothing ends inside this call: every node ends in its own task or at its children's end.
    """
    marked: list[Record] = []
    stack = list(roots)
    while stack:
        record = stack.pop()
        if record.cancelled is not None or record.state in DONE:
            continue  # marked before: so was all that is below it
        if record.closing and record.task is None:
            continue  # its last plain callback is on the stack above us: it has ended
        record.cancelled = reason
        marked.append(record)
        if record.children:
            stack.extend(record.children.values())
    for record in reversed(marked):
        if record.task is not None:
            # A body that was told of a failure already cleans up; a block may have gone on since.
            if record.abort is None or record.closing or record.parent is None:
                _cancel_task(record, record.task)
        elif record.state == "pending" and record.tree:
            # It waits in the queue or between two attempts: it is started to end without its body.
            context = record.context
            if record.attempts is not None and record.attempts.timer is not None:
                record.attempts.timer.cancel()
                context = record.attempts.context.copy()
            record.tree.spawn(record, context)


def abort(record: Record, error: BaseException) -> bool:
    """Make a node fail with `error`: cancel its children and its body; it ends once they have.

    Returns False, and does nothing, if it is already ending for another cause.
    """
    if record.ending or record.failure is not None or record.closing or record.state in DONE:
        return False
    record.abort = error
    if record.state == "pending" and record.attempts is not None:
        # A child of a node that has not begun has failed: that is an attempt, though a short one.
        record.attempts.starts.append(record.tree.loop.time())
    cancel_subtrees(record.living, f"failure: {describe(error)}")
    if record.task is not None:
        _cancel_task(record, record.task)
    return True


def _cancel_task(record: Record, task: asyncio.Task[None]) -> None:
    try:
        task.cancel()
    except BaseException as error:  # noqa: BLE001 - a user's future, which the body awaits
        log(logging.ERROR, "what %s waits for refused to be cancelled", record.path, error=error)
        # Cancel the task, or what it waits for, as asyncio does: a subclass's own way has raised.
        waiter = getattr(task, "_fut_waiter", None)
        for future in (task, waiter):
            kind = asyncio.Task if isinstance(future, asyncio.Task) else asyncio.Future
            try:
                kind.cancel(future)  # type: ignore[arg-type]
            except BaseException:  # noqa: BLE001, S112 - none, or another's: the first one is logged
                continue
            break
        raise_soon(error)
