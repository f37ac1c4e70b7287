"""Ending a subtree early: cancellation, and the failure of a node whose body still runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ._record import DONE
from ._report import describe, log, raise_soon

if TYPE_CHECKING:
    from ._node import Node

__all__ = ["abort", "cancel_subtrees"]


def cancel_subtrees(roots: Iterable[Node[Any]], reason: str) -> None:
    """Mark all nodes at and below `roots`, then tell them, each before its parent.

    Nothing ends inside this call: every node ends in its own task or at its children's end.
    """
    marked = _mark(list(roots), reason)
    for node in reversed(marked):
        _deliver(node)


def _mark(stack: list[Node[Any]], reason: str) -> list[Node[Any]]:
    marked: list[Node[Any]] = []
    while stack:
        node = stack.pop()
        if node._n_cancel is not None or node._n_state in DONE:
            continue  # marked before: so was all that is below it
        if node._n_closing and node._n_task is None:
            continue  # its last plain callback is on the stack above us: it has ended
        node._n_cancel = reason
        node._n_special = True
        marked.append(node)
        if node._n_children:
            stack.extend(node._n_children.values())
    return marked


def _deliver(node: Node[Any]) -> None:
    if node._n_task is not None:
        # A body that was told of a failure already cleans up; a block may have gone on since.
        if node._n_abort is None or node._n_closing or node._n_parent is None:
            _cancel_task(node, node._n_task)
    elif node._n_state == "pending" and node._n_commander:
        # It waits in the queue or between two attempts: it is started to end without its body.
        context = node._n_context
        if node._n_attempts is not None and node._n_attempts.timer is not None:
            node._n_attempts.timer.cancel()
            context = node._n_attempts.context.copy()
        node._n_commander._n_spawn(node, context)


def _cancel_task(node: Node[Any], task: asyncio.Task[None]) -> None:
    try:
        task.cancel()
    except BaseException as error:  # noqa: BLE001 - a user's future, which the body awaits
        log(logging.ERROR, "what %s waits for refused to be cancelled", node.path, error=error)
        _insist(task)
        raise_soon(error)


def _insist(task: asyncio.Task[None]) -> None:
    """Cancel `task`, or what it waits for, as asyncio itself does: a subclass's way has raised."""
    waiter = getattr(task, "_fut_waiter", None)
    for future in (task, waiter):
        kind = asyncio.Task if isinstance(future, asyncio.Task) else asyncio.Future
        try:
            kind.cancel(future)  # type: ignore[arg-type]
        except BaseException:  # noqa: BLE001, S112 - none, or another's: the first one is logged
            continue
        return


def abort(node: Node[Any], error: BaseException) -> bool:
    """Make `node` fail with `error`: cancel its children and its body; it ends once they have.

    Returns False, and does nothing, if it is already ending for another cause.
    """
    if node._n_cancel is not None or node._n_abort is not None or node._n_error is not None:
        return False
    if node._n_closing or node._n_state in DONE:
        return False
    node._n_abort = error
    node._n_special = True
    if node._n_state == "pending" and node._n_attempts is not None:
        # A child of a node that has not begun has failed: that is an attempt, though a short one.
        node._n_attempts.starts.append(node._n_commander._n_loop.time())
    cancel_subtrees(node.children, f"failure: {describe(error)}")
    if node._n_task is not None:
        _cancel_task(node, node._n_task)
    return True
