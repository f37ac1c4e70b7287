"""Waits for nodes and their ends, also for other packages.

Code that waits for something that a node produces must await a `Wait` of that node. From it, slots
under a limit, full branches and `explain` know what a task waits for.
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
    "is_marked_for_cancel",
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
    """Return a `Wait` for `node`, which the current task must await.

    wait = begin_wait(node)
    self._waiters.append(wait)  # other code calls wait.set_result(None)
    await wait
    """
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
    """Lend the slot of the current job during the block, also from a node that works for it.

    For work that waits for something else than the job's own nodes. The job has the slot again
    before the code after the block runs.
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
    """Note that a thread of the current job waits for the tree until `future` is done.

    The job's body may wait for that thread.
    """
    slot = _current_slot(future.get_loop())
    if slot is not None:
        slot.note(future)


def _current_slot(loop: asyncio.AbstractEventLoop) -> Slot | None:
    waiter = CURRENT.get(None)
    record = None if waiter is None else waiter._node_record
    while record is not None and record.parent_node is None and record.tree.outer is not None:
        record = record.tree.outer._node_record  # a commander's block may be in a job's body
    if record is None or record.tree.max_concurrency is None:
        return None  # without a limit, jobs need no slots
    while record is not None and record.node._node_is_work:
        record = record.parent
    if record is None:
        return None
    # Code with the job's context may run on another loop.
    slot = record.slot
    return slot if slot is not None and slot.loop is loop else None


def nodes_awaited_by(
    node: Node[Any], futures: Container[asyncio.Future[Any]], *, locks: bool = False
) -> list[Node[Any]] | None:
    """Return the nodes that the body of `node` waits for; None if it may continue without them.

    It may if it runs, has not begun, or waits for anything but nodes, `futures` and, with `locks`,
    locks, or if a timer may end its wait (`times_out`). The current task counts as one that waits
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
    """The task that uses the commander's block. The tree cancels it like the task of a body.

    It is the task that entered the block. If that has ended, as the task of a test's fixture may,
    it is the last task that awaited a node in the block.
    """

    def __init__(self) -> None:
        self._task = cast("asyncio.Task[Any]", asyncio.current_task())
        # Not 0 if the block is in the clean-up of a cancelled task.
        self._cancels_before = self._task.cancelling()
        self._cancels = 0

    @property
    def is_current(self) -> bool:
        """Whether this runs in the task."""
        return self._task is asyncio.current_task()

    @property
    def over(self) -> bool:
        """Whether the task has ended, so that another one may become the host."""
        return self._task.done()

    def cancel(self) -> None:
        """Cancel the task, and count it for `take_back_cancels`."""
        self._cancels += 1
        self._task.cancel()

    async def take_back_cancels(self) -> bool:
        """Undo the cancels of the tree; return False if other code cancelled the task too.

        The task that leaves the block calls this, so that the tree's cancel does not leak into the
        code after the block.
        """
        if self._task is not asyncio.current_task():
            return False
        for _ in range(self._cancels):
            self._task.uncancel()
        if self._task.cancelling() > self._cancels_before:
            return False
        with suppress(asyncio.CancelledError):
            # A cancel that was requested arrives at the next await: let it arrive here.
            await asyncio.sleep(0)
        return True


def wait_for_end(node: Node[Any]) -> Generator[Any, None, None]:
    """Wait until `node` is done, as one of its awaiters; start it if it has not started.

    Raises `RuntimeError` if the wait could never end, or the node belongs to another loop.
    """
    record = node._node_record
    waiter = CURRENT.get(None)
    around = None if waiter is None else waiter._node_record
    if around is not None and around.parent_node is None:
        # A commander's block: it may have ended, or belong to another loop.
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
                f"{node!r} cannot be awaited outside of a tree: use 'await commander.run(...)' or"
                " run(...)"
            )
        if record is not None and record.pattern is not None and record.pattern.awaits_edge:
            raise RuntimeError(
                f"{node!r} has not started: an edge starts it. Await anabranch.jobs.Graph(...) of"
                " the nodes where the graph begins, or put it yourself"
            )
        record = enter(waiter, node, claim=True)
    if record.tree.loop is not get_running_loop():
        raise RuntimeError(f"{node!r} belongs to another loop: await it there")
    # A node that awaits itself or an ancestor would never end. Ids grow from parent to child, so
    # the walk stops at the first ancestor with a smaller id. A commander has id 0 and ends every
    # walk.
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
            # The node ended and this wait was cancelled in the same turn. `finish` counted it
            # as a receiver of the failure, but it raises `CancelledError` instead.
            untake_failure(record)
        if record.scope is not None and around is not None and not around.is_ending:
            record.scope.record_abandoned_wait(around.scope)
        raise
    finally:
        del wait.node  # the loop holds the future until the task's next step has run


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
        # A node that is being cancelled gets `CancelledError`, not the `NodeCancelled` of a child
        # that the same cancel ended (T5).
        for waiter in enclosing():
            current = record_of(waiter)
            block = current.parent_node is None
            if block and current.tree.loop is not running_loop():
                continue
            if current.cancel_reason is not None and not current.is_closing:
                if current.tree.sweep is not None:  # which may not have cancelled its task yet
                    current.tree.sweep.meet(current)
                raise asyncio.CancelledError
            if not block:  # a commander's block may be in the body of a cancelled node
                break
    try:
        # The method of BaseException: a user's exception may override it.
        raise BaseException.with_traceback(error, record.traceback)
    finally:
        del error  # its traceback refers to this frame


# --- waiting for an end without being an awaiter


def is_marked_for_cancel(node: Node[Any]) -> bool:
    """Return whether the tree has cancelled the node; code below may not have seen it yet."""
    return record_of(node).cancel_reason is not None


def observe(node: Node[Any]) -> asyncio.Future[None]:
    """Return a future that is done when the node is. Unlike an await, it receives no failure."""
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
    """Wait for `ended`, however often this is cancelled. Return the last `CancelledError`, or None.

        interrupted = await wait_shielded(closing)
        if interrupted is not None:
            raise interrupted

    Calls `on_cancel` at each cancel. Does not retrieve the outcome of `ended`.
    """
    try:
        if not ended.done():
            await asyncio.wait((ended,))
    except asyncio.CancelledError as error:
        from anyio import CancelScope

        interrupted = error
        if on_cancel is not None:
            on_cancel()
        # A cancelled anyio scope around this would cancel the wait again on each turn.
        with CancelScope(shield=True):
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
            del interrupted  # its traceback refers to this frame
    return None
