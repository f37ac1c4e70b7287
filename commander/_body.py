"""A node from its start to its join: the task, each attempt, the body.

A node's task ends with its body. No task waits for the children: the last of them ends the node.
"""

from __future__ import annotations

import asyncio
from contextvars import Context, copy_context
from functools import partial
from typing import Any

from ._cancel import abort, cancel_subtrees
from ._end import finish, to_await
from ._events import publish
from ._failure import blame, body_failed, interrupt, log_lost
from ._record import CURRENT, Callback, NodeBase, Record
from ._report import is_a
from ._state import STEPS, advance
from ._task import TASK_NAME, TURN, BodyTask, drives_now, start_task
from ._usage import measured
from .durable import DurableScope
from .errors import is_final
from .kinds import name_plain_body, require_awaitable

__all__ = ["replay", "spawn", "spawn_measured"]

# A durable run lets its effects end before the nodes that fail with these are cancelled.
SUSPENDING = KeyboardInterrupt, SystemExit

STARTED, JOINING = STEPS["started"], STEPS["joining"]

# The message of Python's RuntimeError if a coroutine awaits something while it is being closed.
IGNORED_CLOSE = "coroutine ignored GeneratorExit"


def spawn(record: Record, context: Context | None = None) -> None:
    """Start the task that runs the node's body, on a later turn of the loop."""
    tree = record.tree
    if tree.factory:
        start_task(record, partial(_drive, record, later=True), context)
    elif context is None:
        # The class itself, and one name for all: half the cost of the loop's `create_task`, which
        # formats a name for each task (benchmarks/NOTES.md).
        record.task = BodyTask(_drive(record), loop=tree.loop, name=TASK_NAME)
    else:
        record.task = BodyTask(_drive(record), loop=tree.loop, name=TASK_NAME, context=context)


def spawn_measured(record: Record, context: Context | None = None) -> None:
    """Start the task as `spawn` does, and measure the CPU time of the node's own steps."""
    record.is_special = True
    if record.cpu is None:  # else this is a further attempt, whose time is added
        record.cpu = 0.0
    spawn(record, context)


async def _drive(record: Record, *, later: bool = False) -> None:
    try:
        if later:
            await TURN
        if record.is_special and record.task is not asyncio.current_task(record.tree.loop):
            return  # the queue called the job back; it has another task or will get one
        node, tree = record.node, record.tree
        # While a large cancellation marks its nodes, this one may be about to be marked.
        if tree.marking is not None and tree.marking.start_later(record, copy_context()):
            record.task = None
            return
        CURRENT.set(node)
        if not record.is_special:
            record.state = STARTED[record.state]  # `advance`, inlined
            record.state_since = tree.clock()
            if tree.listeners:
                publish(record, "started")
            result = await node.task()
        elif record.rare.cancel_reason is None and record.rare.abort_error is None:
            advance(record, "started")
            attempt: Any = _attempt(record)
            if record.cpu is not None:
                attempt = measured(record, attempt)
            result = await (attempt if record.slot is None else record.slot.drive(attempt))
        else:
            result = None
        if result is not None and isinstance(result, NodeBase):
            # The body returned a node: it becomes a child unless it already runs. The slot is free
            # first, because the node may need it under a limit of 1.
            if record.slot is not None:
                record.slot.release()
            advance(record, "joining")
            result = await result  # type: ignore[misc]
        record.result = result
    except asyncio.CancelledError:
        if record.task is not asyncio.current_task():
            return
        CURRENT.set(record.node)  # the cancel may have arrived before the first turn
        if not record.is_ending:
            # The body raised it, or code cancelled the task and not the node.
            record.task = None
            # Not pending any more: `cancel_subtrees` would start a pending node so that it ends.
            advance(record, "closing")
            cancel_subtrees((record,), "its body raised CancelledError")
    except BaseException as error:
        if not drives_now(record):
            if is_a(error, GeneratorExit):
                raise  # the loop was closed, so the node cannot end
            if isinstance(error, RuntimeError) and str(error) == IGNORED_CLOSE:
                return  # the same, and the body awaits something in its clean-up
        if type(error) is TypeError and error.__traceback__ and error.__traceback__.tb_next is None:
            error = name_plain_body(record.node, error)
        interrupt(record, error)
        scope = record.scope if is_a(error, *SUSPENDING) or is_final(error) else None
        if scope is not None and (left := scope.suspend(error)) is not None:
            from .waiting import wait_shielded  # an import cycle: `_entry` imports `replay`

            # Effects may end before the nodes that fail with this one are cancelled.
            await wait_shielded(left)
        body_failed(record, error)
    record.task = None
    if record.is_special and record.slot is not None:
        record.slot.release()
    if not record.children:
        finish(record, True)
    else:
        # The last child to end finishes the node, in this context.
        record.context = copy_context()
        if record.state != "joining":
            record.state = JOINING[record.state]  # `advance`, inlined
            record.state_since = record.tree.clock()
            if record.tree.listeners:
                publish(record, "joining")


def replay(node: NodeBase) -> None:
    """End a node whose outcome is recorded, without a task."""
    record = node._node_record
    assert record is not None
    if record.state != "pending" or record.task is not None:
        return  # it was cancelled after its replay was scheduled, and ends by that
    record.state = STARTED[record.state]  # `advance`, inlined
    if record.tree.listeners:
        publish(record, "started")
    rare = record.rare
    scope: DurableScope = rare.scope
    if scope.has_run_callbacks:
        record.callback = record.more_callbacks = None
    elif record.callback is not None or rare.at_commander_end is not None:
        assert record.context is not None
        record.context.run(CURRENT.set, record.node)
    try:
        record.result = scope.load_outcome(record.node)
    except BaseException as error:  # noqa: BLE001 - the node fails with it, whatever it is
        body_failed(record, error)
    if record.children:
        advance(record, "joining")
    else:
        finish(record, is_decided=True)


async def _attempt(record: Record) -> Any:
    attempts, node, scope = record.attempts, record.node, record.scope
    if scope is not None:
        if scope.cancel_reason is not None:
            return await scope.wait_for_recorded_cancel(node)
        await scope.wait_for_turn(node)
    left = timeout = None if attempts is None else attempts.timeout
    if attempts is not None:
        attempts.starts.append(record.tree.loop.time())
    if scope is not None:
        left = scope.begin_attempt(node, timeout)
    if attempts is not None:
        if left is not None:

            def late() -> TimeoutError:
                return TimeoutError(f"{record.path} was not done within {timeout:g} s")

            def time_out() -> None:
                error = late()
                blame(record, error)
                abort(record, error, timed_out=True)

            if left <= 0 and scope is not None:
                scope.record_abort(late(), timed_out=True)  # earlier executions used all of it
                raise late()

            # Not in the node's own context, which refers to the node: the loop keeps a cancelled
            # timer and its context until the time is up.
            later = record.tree.loop.call_later
            attempts.timer = later(left, time_out, context=attempts.context)
        if record.at_retry is not None and len(attempts.starts) > 1:
            record.moment = "retry"
            try:
                await _run_before_body(record, record.at_retry)
            finally:
                record.moment = None
        # Only `at_retry` reads it, and its traceback refers to the node.
        attempts.failure = None
    if record.at_start is not None:
        await _run_before_body(record, record.at_start)
    if record.remote is not None:
        return await record.remote.run(node)
    return await require_awaitable(node.task(), node, "task")


async def _run_before_body(record: Record, callbacks: list[Callback]) -> None:
    """Run the callbacks before the body; raise the first failure after all of them have run."""
    failed: list[Exception] = []
    try:
        for callback in tuple(callbacks):
            try:
                waiting = to_await(callback(record.node))
                if waiting is not None:
                    await waiting
            except Exception as error:  # noqa: BLE001 - raised below
                failed.append(error)
        if failed:
            raise failed.pop(0)
        if record.is_ending:
            # A callback that swallowed the cancel must not let the body run to its first await.
            raise asyncio.CancelledError
    finally:
        for error in failed:
            log_lost(record, error, "a callback before the body of %s raised")
