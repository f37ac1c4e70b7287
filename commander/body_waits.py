"""How the end of a durable node reaches the body that has put it: what a journal asks of that.

`BodyWait` says whether that body is about to go on, and which timers may let it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ._record import record_of
from ._task_waits import (
    NO_WAIT,
    BodyWait,
    Wait,
    awaited,
    gathering,
    postpone,
    reach,
    relays,
    times_out,
    wait_of,
)
from .durable import scope_around

if TYPE_CHECKING:
    from ._node import Node
    from ._slot import Slot

__all__ = [
    "NO_WAIT",
    "BodyWait",
    "body_task",
    "body_timeout",
    "body_wait",
    "count_relays",
    "has_final_callbacks",
    "has_siblings",
    "immediate_receiver",
    "is_awaited_alone",
    "is_parent_waiting_for_slot",
    "is_putter_running",
    "may_be_awaited",
    "postpone",
    "putter_of",
    "wait_for_parent_slot",
    "would_fail_parent",
]


def immediate_receiver(node: Node[Any]) -> object | None:
    """Return who hears at once of the end of `node`, which has been put; None if nobody does.

    That is a `gather` if only it awaits the node, and else another for each node.
    """
    record = node._node_record
    if record is None or not (waiters := record.waiters):
        return None
    return (len(waiters) == 1 and gathering(waiters[0])) or node


def count_relays(node: Node[Any]) -> int:
    """Return through how many tasks the end of `node` reaches whoever does something with it."""
    return max(map(relays, record_of(node).waiters or ()), default=0)


def may_be_awaited(node: Node[Any]) -> bool:
    """Say whether nobody awaits `node` yet, and its parent's body may still do so."""
    return not record_of(node).waiters and is_putter_running(node)


def has_final_callbacks(node: Node[Any]) -> bool:
    """Say whether `node` has callbacks that run at its end, and so may not be done at once."""
    return record_of(node).callback is not None


def putter_of(node: Node[Any]) -> Node[Any] | None:
    """Return the node that has put `node`, which may be put elsewhere; None if it is gone."""
    scope = scope_around(record_of(node))
    return node.parent if scope is None or scope.putter is None else scope.putter()


def is_putter_running(node: Node[Any]) -> bool:
    """Say whether the body of the node's putter runs, and was not told to end."""
    putter = putter_of(node)
    above = None if putter is None else record_of(putter)
    return above is not None and above.task is not None and not above.is_ending


def is_awaited_alone(node: Node[Any]) -> bool:
    """Say whether the body of the node's putter awaits `node` and nothing else."""
    putter, waiters = putter_of(node), record_of(node).waiters
    task = None if putter is None else record_of(putter).task
    if not isinstance(task, asyncio.Task) or not waiters or len(waiters) > 1:
        return False
    return awaited(task) is waiters[0] and task is not asyncio.current_task()


def body_task(node: Node[Any]) -> asyncio.Task[Any] | None:
    """Return the task of a node's body; None if the body does not run."""
    task = record_of(node).task
    return task if isinstance(task, asyncio.Task) and not task.done() else None


def body_wait(putter: Node[Any]) -> BodyWait:
    """Return the wait at which a node's body stands, also by a plain node for which it waits."""
    task = body_task(putter)
    if task is None:
        return NO_WAIT
    return BodyWait(task, True) if task is asyncio.current_task() else wait_of(task, _plain_work)


def _plain_work(wait: Wait) -> asyncio.Task[Any] | None:
    record = wait.node._node_record
    if record is None or wait.node._node_is_durable or not isinstance(record.task, asyncio.Task):
        return None
    return record.task


def body_timeout(node: Node[Any]) -> float | None:
    """Return after how many seconds a timer ends the wait of the node's body, at most.

    Also a sleep; and what `times_out` says. 0 if that body goes on now: then it may be about to
    wait so.
    """
    task, wait = body_task(node), body_wait(node)
    if task is None:
        return None
    if wait.goes_on:
        return 0.0
    tasks, _, _ = reach(task.get_coro(), awaited(task))
    every = [times_out(each.get_coro()) for each in (task, *tasks)]
    every += [each.when() - task.get_loop().time() for each in wait.timers]
    return min((each for each in every if each is not None), default=None)


async def wait_for_parent_slot(node: Node[Any]) -> None:
    """Wait while the body of the node's parent could go on, but for a slot."""
    if (slot := _parent_slot(node)) is not None:
        await slot.hold_back()


def is_parent_waiting_for_slot(node: Node[Any]) -> bool:
    """Say whether the body of the node's parent could go on, but for a slot."""
    slot = _parent_slot(node)
    return slot is not None and slot.wanted


def _parent_slot(node: Node[Any]) -> Slot | None:
    return None if node.parent is None else record_of(node.parent).slot


def would_fail_parent(node: Node[Any]) -> bool:
    """Say whether a failure of `node` would go to the policy of its parent at once, and abort that.

    It would not if somebody awaits the node, or has said that it will.
    """
    record, above = record_of(node), node.parent
    return not (record.waiters or record.is_claimed or above is None) and (
        record_of(above).policy == "fail_fast"
    )


def has_siblings(node: Node[Any]) -> bool:
    """Say whether the parent of `node` has other unfinished children."""
    above = node.parent
    return above is not None and len(record_of(above).children or ()) > 1
