"""Ending a subtree early: cancellation, and the failure of a node whose body still runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ._record import DONE, Record
from ._report import describe, log, raise_soon

if TYPE_CHECKING:
    from ._commander import Tree
    from .scope import Scope

__all__ = ["abort", "cancel_subtrees", "leaves"]


def cancel_subtrees(
    roots: Iterable[Record], reason: str, *, failed: bool = False, kept: bool = True
) -> None:
    """Mark all nodes at and below `roots`, then tell them, each before its parent.

    Nothing ends inside this call: every node ends in its own task or at its children's end.
    `failed` says that a failure above them is the cause, `kept` that a run keeps it.
    """
    marked: list[Record] = []
    stack = list(roots)
    scoped = bool(stack and stack[0].tree and stack[0].tree.scoped)
    if kept and scoped:
        stack = _keep_cancel(stack, reason, failed)
    while stack:
        record = stack.pop()
        scope = record.scope
        if scope is not None and scope.is_root and leaves(record.tree) and scope.leave():
            continue  # effects of its run are under way: that ends its tree itself
        if record.cancelled is not None or record.state in DONE:
            continue  # marked before: so was all that is below it
        if record.closing and record.task is None:
            continue  # its last plain callback is on the stack above us: it has ended
        again = None if scope is None else scope.cancelled  # why it was, in an earlier life
        record.cancelled = reason if again is None else again
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


def leaves(tree: Tree) -> bool:
    """Say whether all of a tree ends, with its commander: of a run nothing is decided by that."""
    return bool(tree.ending) or (tree.root.special and tree.root.ending)


def _keep_cancel(roots: list[Record], reason: str, failed: bool) -> list[Record]:
    """Keep a cancel that begins inside a run: it is one decision, whatever it ends.

    One that begins above, around calls of sessions, ends each of these. Returns whom it ends: not
    those whose outcome is in the journal, which had ended before it.
    """
    if leaves(roots[0].tree) or roots[0] is roots[0].tree.root:
        return roots
    roots = [
        each for each in roots if each.scope is None or each.closing or not each.scope.recorded
    ]
    scopes: list[Scope] = []
    stack = list(roots)
    while stack:
        record = stack.pop()
        if record.ending or record.closing or record.node._node_reads:
            continue
        if record.scope is not None:
            scopes.append(record.scope)
        elif record.children:
            stack.extend(record.children.values())
    above = roots[0].parent if roots else None
    by = above.scope if failed and above is not None else None
    if scopes and roots[0].scope is not None:
        scopes[0].cancel(scopes[::-1], reason, failed=by)
    else:
        for scope in scopes:
            scope.cancel([scope], reason, failed=by)
    return roots


def abort(record: Record, error: BaseException, *, timed_out: bool = False) -> bool:
    """Make a node fail with `error`: cancel its children and its body; it ends once they have.

    Returns False, and does nothing, if it is already ending for another cause.
    """
    if record.ending or record.failure is not None or record.closing or record.state in DONE:
        return False
    record.abort = error
    if record.state == "pending" and record.attempts is not None:
        # A child of a node that has not begun has failed: that is an attempt, though a short one.
        record.attempts.starts.append(record.tree.loop.time())
    if record.scope is not None and not leaves(record.tree):
        record.scope.abort(error, timed_out=timed_out)
    cancel_subtrees(record.living, f"failure: {describe(error)}", failed=True)
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
