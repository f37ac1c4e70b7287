"""Cancel a subtree, or make a node fail while its body still runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextvars import Context, copy_context
from typing import TYPE_CHECKING

from ._record import DONE, Record
from ._report import describe, log, raise_soon

if TYPE_CHECKING:
    from ._commander import Tree
    from .durable import DurableScope

__all__ = ["Sweep", "abort", "cancel_subtrees", "is_shutting_down"]

# How many nodes one turn of the loop marks, or cancels. With the ends of the nodes that the turn
# before cancelled, this takes less than 10 ms of CPU.
NODES_PER_TURN = 500


def cancel_subtrees(
    roots: Iterable[Record], reason: str, *, failed: bool = False, is_recorded: bool = True
) -> None:
    """Mark all nodes at and below `roots`, then cancel their tasks, children before parents.

    All are marked before the first is cancelled, so that no body that reacts to its cancel finds an
    unmarked node above it. No node ends inside this call: each ends in its own task or when its
    last child ends. If there are more than `NODES_PER_TURN`, a `Sweep` continues. `failed`: a
    failure above the nodes caused it. `is_recorded`: a durable run records it.
    """
    marked: list[Record] = []
    stack = list(roots)
    tree = stack[0].tree if stack else None
    if is_recorded and tree and tree.has_scopes:
        stack = _keep_cancel(stack, reason, failed)
    _mark(stack, reason, marked)
    if stack and tree:
        sweep = tree.sweep = tree.sweep or Sweep(tree)
        sweep.add(stack, reason, marked)
        return
    for record in reversed(marked):
        _end_early(record)


def _mark(stack: list[Record], reason: str, marked: list[Record]) -> None:
    """Mark nodes from `stack`, parents before children, until it is empty or the turn is full."""
    while stack and len(marked) < NODES_PER_TURN:
        record = stack.pop()
        scope = record.scope
        if (
            scope is not None
            and scope.is_root
            and is_shutting_down(record.tree)
            and scope.suspend()
        ):
            continue  # effects of its run are under way; the run cancels its tree after them
        if record.cancel_reason is not None or record.state in DONE:
            continue  # it was marked before, with all nodes below it
        if record.is_closing and record.task is None:
            continue  # one of its plain final callbacks is calling this: its outcome is decided
        again = None if scope is None else scope.cancel_reason  # the reason in the journal
        record.cancel_reason = reason if again is None else again
        marked.append(record)
        if record.children:
            stack.extend(record.children.values())


def _end_early(record: Record) -> None:
    """Cancel the task of a marked node; start a pending one, so that it ends without its body."""
    if record.task is not None:
        # An aborted body was cancelled already, and a second cancel would disturb its clean-up. But
        # a commander's block may have swallowed the first.
        if record.abort_error is None or record.is_closing or record.parent is None:
            _cancel_task(record, record.task)
    elif record.state == "pending" and record.tree:
        _end_unstarted(record)


class Sweep:
    """The cancellation of many nodes of a tree, over several turns of the loop.

    First it marks them, parents before children. Until all are marked no node of the tree starts,
    because it could be below one that is still unmarked; running nodes may end. Then it cancels the
    tasks, children before parents.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._spawn = tree.spawn
        # The stacks of nodes to mark, each with its reason.
        self._unmarked: list[tuple[list[Record], str]] = []
        # The marked nodes whose tasks are not cancelled yet, parents first; `popitem` takes the
        # last, so children are cancelled first.
        self._marked: dict[Record, None] = {}
        # The nodes that start after the marking, and their contexts.
        self._waiting: list[tuple[Record, Context]] = []

    def add(self, stack: list[Record], reason: str, marked: list[Record]) -> None:
        """Continue a cancellation with the nodes on `stack`; those in `marked` are marked."""
        if not self._unmarked:
            self._tree.marking, self._tree.spawn = self, self._spawn_later
            if not self._marked:
                self._tree.loop.call_soon(self._turn)
        self._unmarked.append((stack, reason))
        self._marked |= dict.fromkeys(marked)

    def start_later(self, record: Record, context: Context) -> bool:
        """Start a node after the marking; return False for a node that starts only to end."""
        if record.is_special and record.is_ending:
            return False
        self._waiting.append((record, context))
        return True

    def meet(self, record: Record) -> None:
        """Cancel a marked node now, because its code is about to see the cancel by an await."""
        if record in self._marked:
            del self._marked[record]
            if record.task is not None and record.task is not asyncio.current_task():
                _end_early(record)

    def _spawn_later(self, record: Record, context: Context | None) -> None:
        here = copy_context() if context is None else context
        if not self.start_later(record, here):
            self._spawn(record, context)

    def _turn(self) -> None:
        if self._unmarked:
            stack, reason = self._unmarked[-1]
            marked: list[Record] = []
            _mark(stack, reason, marked)
            self._marked |= dict.fromkeys(marked)
            if not stack:
                self._unmarked.pop()
            if not self._unmarked:
                self._start_waiting()
        else:
            for _ in range(min(NODES_PER_TURN, len(self._marked))):
                record, _ = self._marked.popitem()
                if record.state not in DONE:
                    _end_early(record)
        if self._unmarked or self._marked:
            self._tree.loop.call_soon(self._turn)
        else:
            self._tree.sweep = None

    def _start_waiting(self) -> None:
        self._tree.marking, self._tree.spawn = None, self._spawn
        waiting, self._waiting = self._waiting, []
        for record, context in waiting:
            if record.state == "pending" and record.task is None and not record.is_ending:
                self._spawn(record, context)


def _end_unstarted(record: Record) -> None:
    """Start a node that waits in the queue or between two attempts, so that it ends."""
    context = record.context
    if record.attempts is not None and record.attempts.timer is not None:
        record.attempts.timer.cancel()
        context = record.attempts.context.copy()
    record.tree.spawn(record, context)


def is_shutting_down(tree: Tree) -> bool:
    """Return whether the commander is ending, which decides nothing about a durable run."""
    return bool(tree.closing_reason) or (tree.root.is_special and tree.root.is_ending)


def _keep_cancel(roots: list[Record], reason: str, failed: bool) -> list[Record]:
    """Record a cancel in the durable runs that it concerns; return the roots that it ends.

    A cancel inside a run is one entry, however many nodes it ends. One from above the runs, such as
    around calls of sessions, is one entry in each. Nodes with a recorded outcome ended before it.
    """
    if is_shutting_down(roots[0].tree) or roots[0] is roots[0].tree.root:
        return roots
    roots = [
        each
        for each in roots
        if each.scope is None or each.is_closing or not each.scope.is_recorded
    ]
    scopes: list[DurableScope] = []
    stack = list(roots)
    while stack:
        record = stack.pop()
        if record.cancel_reason is not None or record.is_closing or record.node._node_is_reader:
            continue
        if record.scope is not None:
            scopes.append(record.scope)
        elif record.children:
            stack.extend(record.children.values())
    above = roots[0].parent if roots else None
    by = above.scope if failed and above is not None else None
    if scopes and roots[0].scope is not None:
        scopes[0].record_cancel(scopes[::-1], reason, failed=by)
    else:
        for scope in scopes:
            scope.record_cancel([scope], reason, failed=by)
    return roots


def abort(record: Record, error: BaseException, *, timed_out: bool = False) -> bool:
    """Make a node fail with `error`: cancel its children and its body. It ends after they have.

    Does nothing and returns False if the node is ending already. If the body has failed and the
    node waits for its children, that failure becomes the cause of `error`.
    """
    if record.is_ending or record.is_closing or record.state in DONE:
        return False
    record.abort_error = error
    if (failure := record.failure) is not None:
        error.__cause__ = failure
        if record.scope is not None:
            record.scope.record_lost_failure(failure)
    if record.state == "pending" and record.attempts is not None:
        # A child failed before the node's body began. This counts as an attempt.
        record.attempts.starts.append(record.tree.loop.time())
    if record.scope is not None and not is_shutting_down(record.tree):
        record.scope.record_abort(error, timed_out=timed_out, awaited=bool(record.waiters))
    cancel_subtrees(record.unfinished_children, f"failure: {describe(error)}", failed=True)
    if record.task is not None:
        _cancel_task(record, record.task)
    elif record.state == "pending" and not (record.scope and record.scope.is_recorded):
        _end_unstarted(record)
    return True


def _cancel_task(record: Record, task: asyncio.Task[None]) -> None:
    try:
        task.cancel()
    except BaseException as error:  # noqa: BLE001 - `cancel` of a user's future may raise anything
        log(
            logging.ERROR, "the future that %s awaits cannot be cancelled", record.path, error=error
        )
        # The override in the subclass raised: use the base class's method, as asyncio would.
        waiter = getattr(task, "_fut_waiter", None)
        for future in (task, waiter):
            kind = asyncio.Task if isinstance(future, asyncio.Task) else asyncio.Future
            try:
                kind.cancel(future)  # type: ignore[arg-type]
            except BaseException:  # noqa: BLE001, S112 - the first error is logged already
                continue
            break
        raise_soon(error)
