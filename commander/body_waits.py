"""How the end of a durable node reaches the body that put it, for the journal's order of replay.

`BodyWait` describes the wait of a body: whether it is about to continue, and the timers that may
end it.
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
    """Return an object for the receiver of the node's end; None if no code awaits the node.

    Nodes that only the same `gather` awaits have the same receiver.
    """
    record = node._node_record
    if record is None or not (waiters := record.waiters):
        return None
    return (len(waiters) == 1 and gathering(waiters[0])) or node


def count_relays(node: Node[Any]) -> int:
    """Return how many tasks pass the end of `node` on before code does something with it."""
    return max(map(relays, record_of(node).waiters or ()), default=0)


def may_be_awaited(node: Node[Any]) -> bool:
    """Return whether no code awaits `node` yet, and its putter's body may still do so."""
    return not record_of(node).waiters and is_putter_running(node)


def has_final_callbacks(node: Node[Any]) -> bool:
    """Return whether `node` has final callbacks, which may delay its end."""
    return record_of(node).callback is not None


def putter_of(node: Node[Any]) -> Node[Any] | None:
    """Return the node that put `node`, perhaps not its parent; None if it has been freed."""
    scope = scope_around(record_of(node))
    return node.parent if scope is None or scope.putter is None else scope.putter()


def is_putter_running(node: Node[Any]) -> bool:
    """Return whether the body of the node's putter runs and is not being cancelled."""
    putter = putter_of(node)
    above = None if putter is None else record_of(putter)
    return above is not None and above.task is not None and not above.is_ending


def is_awaited_alone(node: Node[Any]) -> bool:
    """Return whether the body of the node's putter awaits `node` and nothing else."""
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
    """Return the wait of a node's body, or of a plain node that the body awaits."""
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
    """Return in how many seconds at most a timer ends the wait of the node's body, or None.

    Timers include sleeps and those of `times_out`. 0 if the body is about to continue, because its
    next wait may have a timer.
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
    """Wait while the body of the node's parent waits for its slot."""
    if (slot := _parent_slot(node)) is not None:
        await slot.hold_back()


def is_parent_waiting_for_slot(node: Node[Any]) -> bool:
    """Return whether the body of the node's parent waits only for its slot."""
    slot = _parent_slot(node)
    return slot is not None and slot.wanted


def _parent_slot(node: Node[Any]) -> Slot | None:
    return None if node.parent is None else record_of(node.parent).slot


def would_fail_parent(node: Node[Any]) -> bool:
    """Return whether a failure of `node` would abort its parent at once.

    It would not if code awaits the node, or the node is claimed.
    """
    record, above = record_of(node), node.parent
    return not (record.waiters or record.is_claimed or above is None) and (
        record_of(above).policy == "fail_fast"
    )


def has_siblings(node: Node[Any]) -> bool:
    """Return whether the parent of `node` has other unfinished children."""
    above = node.parent
    return above is not None and len(record_of(above).children or ()) > 1
