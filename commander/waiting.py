"""Waiting for the tree, and for ends: the public seam for rooms that wait themselves.

Whoever waits for something that the tree brings awaits a `Wait`, which names the node that will
bring it: so slots under a limit, full branches and `explain` know what a task waits for.
"""

from __future__ import annotations

import asyncio
from asyncio import get_running_loop
from collections.abc import AsyncGenerator, Callable, Container, Generator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ._entry import enter
from ._failure import take_failure, untake_failure
from ._frames import frames, is_sleeping, mark_driver
from ._record import CURRENT, DONE, enclosing, node_in, parent_here, record_of
from ._task_waits import LocalFuture, Wait, awaited, is_lock, reach, times_out, waits_for_tree
from .private import running_loop

if TYPE_CHECKING:
    from ._node import Node
    from ._slot import Slot

__all__ = [
    "LocalFuture",
    "Wait",
    "begin_wait",
    "frames",
    "is_sleeping",
    "lend_slot",
    "mark_driver",
    "nodes_awaited_by",
    "note_outside_wait",
    "observe",
    "outcome",
    "wait_for_end",
    "wait_shielded",
    "waits_for_tree",
]

T = TypeVar("T")


def begin_wait(node: Node[Any]) -> Wait:
    """Return a `Wait` for `node`, for the current task to await; whoever ends it sets a result."""
    loop = get_running_loop()
    slot = _current_slot(loop)
    if slot is not None:
        return slot.lent_wait(node)
    wait = Wait(loop=loop)
    record = node._node_record
    if record is not None and record.tree.max_concurrency is not None:
        record.tree.queue.stir()
    wait.node = node
    return wait


@asynccontextmanager
async def lend_slot() -> AsyncGenerator[None]:
    """Wait in the block for others: the job whose work the current node does lends its slot.

    It has the slot again before what follows on the block.
    """
    node, slot = CURRENT.get(None), _current_slot(get_running_loop())
    if node is None or slot is None:
        yield
        return
    record = record_of(node)
    record.waits_for_others += 1
    try:
        yield
    finally:
        record.waits_for_others -= 1
        slot.resume()
    await slot.hold_back()


def note_outside_wait(future: asyncio.Future[Any]) -> None:
    """Note that a thread, which has the context of the current node, waits until `future` is done.

    The body of that node may wait for the thread.
    """
    slot = _current_slot(future.get_loop())
    if slot is not None:
        slot.note(future)


def _current_slot(loop: asyncio.AbstractEventLoop) -> Slot | None:
    waiter = CURRENT.get(None)
    record = None if waiter is None else waiter._node_record
    while record is not None and record.parent_node is None and record.tree.outer is not None:
        record = record.tree.outer._node_record  # a commander's block may stand in a job's body
    if record is None or record.tree.max_concurrency is None:
        return None  # without a limit nobody has a slot
    while record is not None and record.node._node_is_work:
        record = record.parent
    if record is None:
        return None
    # A job's context may be carried to other loops.
    slot = record.slot
    return slot if slot is not None and slot.loop is loop else None


def nodes_awaited_by(
    node: Node[Any], futures: Container[asyncio.Future[Any]], *, locks: bool = False
) -> list[Node[Any]] | None:
    """Return the nodes for which the body of `node` waits; None if it may go on without them.

    It may if it runs, has not begun, waits for anything but nodes, `futures` and, with `locks`,
    locks, or if a timer may end its wait (`times_out`). The task that asks counts as one that waits
    for `futures`.
    """
    task = record_of(node).task
    if task is None or task.done():
        return None
    tasks, waits, ends = reach(task.get_coro(), awaited(task))
    for each in (task, *tasks):
        future = awaited(each)
        if each is asyncio.current_task():
            continue
        if future is None or future.done() or times_out(each.get_coro()) is not None:
            return None
    if all(end[1] in futures or (locks and is_lock(end)) for end in ends):
        return [wait.node for wait in waits]
    return None


# --- awaiting a node


class Host:
    """The task that uses the commander's block; the tree cancels it as it would a node's body.

    That is the task which has entered the block or, once that has ended, as that of a test's
    fixture does, the last one that has awaited a node in the block.
    """

    def __init__(self) -> None:
        self._task = cast("asyncio.Task[Any]", asyncio.current_task())
        # The block may stand in the clean-up of a task that has been cancelled.
        self._cancels_before = self._task.cancelling()
        self._cancels = 0

    @property
    def is_current(self) -> bool:
        """Whether this runs in the task."""
        return self._task is asyncio.current_task()

    @property
    def over(self) -> bool:
        """Whether the task has ended: another is the host then."""
        return self._task.done()

    def cancel(self) -> None:
        """Cancel the task; if it has ended, whoever leaves the block is told why."""
        self._cancels += 1
        self._task.cancel()

    async def take_back_cancels(self) -> bool:
        """Undo the cancels by which the tree ended the block; False if another one came besides.

        Called by whoever leaves the block.
        """
        if self._task is not asyncio.current_task():
            return False
        for _ in range(self._cancels):
            self._task.uncancel()
        if self._task.cancelling() > self._cancels_before:
            return False
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)  # where it arrives if the block has awaited nothing since
        return True


def wait_for_end(node: Node[Any]) -> Generator[Any, None, None]:
    """Wait until `node` is done, started or not; it is awaited, so a failure is handed over.

    Raises `RuntimeError` where the wait could never end, or is no business of this loop.
    """
    record = node._node_record
    waiter = CURRENT.get(None)
    around = None if waiter is None else waiter._node_record
    if around is not None and around.parent_node is None:
        # It is a commander's block: it may be over, or belong to another loop.
        waiter = parent_here()
        around = None if waiter is None else record_of(waiter)
        host = None if around is None or around.parent_node is not None else around.task
        if around is not None and host is not None and cast("Host", host).over:
            around.task = cast("asyncio.Task[None]", Host())
    if record is None or not record.tree:
        if waiter is node:
            raise RuntimeError(f"{node!r} awaits itself")
        if waiter is None:
            raise RuntimeError(
                f"{node!r} was awaited outside a tree: use 'await commander.run(...)' or run(...)"
            )
        if record is not None and record.pattern is not None and record.pattern.awaits_edge:
            raise RuntimeError(
                f"{node!r} has not started: the edge that leads to it will start it. Await"
                " anabranch.jobs.Graph(...) of the nodes where the graph begins, or put it yourself"
            )
        record = enter(waiter, node, claim=True)
    if record.tree.loop is not get_running_loop():
        raise RuntimeError(f"{node!r} belongs to another loop: await it there")
    # Ids grow from parent to child, so the walk stops at the first ancestor older than the node.
    # A commander is nobody's to await from within: it has id 0 and ends every walk.
    ancestor = around if around is None or around.tree is record.tree else node_in(record.tree)
    while ancestor is not None and ancestor.id >= record.id:
        if ancestor is record:
            what = "itself" if node is waiter else "its ancestor"
            raise RuntimeError(f"{waiter!r} awaits {what} {node!r}: neither could ever end")
        ancestor = ancestor.parent
    wait = begin_wait(node)
    if record.waiters is None:
        record.waiters = [wait]
    else:
        record.waiters.append(wait)
    try:
        yield from wait
    except asyncio.CancelledError:
        if wait.done() and not wait.cancelled():
            untake_failure(record)  # it ended in the very turn in which this wait was cancelled
        if record.scope is not None and around is not None and not around.is_ending:
            record.scope.record_abandoned_wait(around.scope)
        raise
    finally:
        del wait.node  # the loop keeps the future until it has gone on to the next step


def outcome(node: Node[T]) -> T:
    """Return the result of a node that is done, or raise its failure."""
    record = node._node_record or record_of(node)
    if record.state == "completed":
        return record.result
    error = record.error
    assert error is not None
    if record.state == "failed":
        take_failure(record)
    else:
        # Whoever is being cancelled sees that alone, not what it did to the nodes it waited for
        # (T5).
        for waiter in enclosing():
            current = record_of(waiter)
            block = current.parent_node is None
            if block and current.tree.loop is not running_loop():
                continue
            if current.cancel_reason is not None and not current.is_closing:
                if current.tree.sweep is not None:
                    current.tree.sweep.meet(current)
                raise asyncio.CancelledError
            if not block:  # which may stand in a body
                break
    try:
        # The class's own method: a user's exception may have another one.
        raise BaseException.with_traceback(error, record.traceback)
    finally:
        del error  # its traceback leads to this frame


# --- waiting for an end without taking part in it


def observe(node: Node[Any]) -> asyncio.Future[None]:
    """Return a future that is done when the node is; unlike awaiting, it takes no failure."""
    future = begin_wait(node)
    record = node._node_record or record_of(node)
    if record.state in DONE:
        future.set_result(None)
        return future
    if record.observers is None:
        record.observers = []
    record.observers.append(future)
    return future


async def wait_shielded(
    ended: asyncio.Future[Any], on_cancel: Callable[[], object] | None = None
) -> asyncio.CancelledError | None:
    """Wait for `ended`, however often the wait is cancelled; call `on_cancel` each time.

    Returns the last cancellation. The outcome of `ended` is not looked at.
    """
    try:
        if not ended.done():
            await asyncio.wait((ended,))
    except asyncio.CancelledError as error:
        from anyio import CancelScope

        interrupted = error
        if on_cancel is not None:
            on_cancel()
        with CancelScope(shield=True):  # a scope of anyio's would cancel this again at every turn
            while not ended.done():
                try:
                    await asyncio.wait((ended,))
                except asyncio.CancelledError as another:
                    interrupted = another
                    if on_cancel is not None:
                        on_cancel()
        try:
            return interrupted
        finally:
            del interrupted  # its traceback leads to this frame
    return None
