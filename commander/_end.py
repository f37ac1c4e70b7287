"""The end of a node: its outcome, a further attempt, its final callbacks, and the way up the tree.

The last of a body and its children ends the node. `finish` walks up without recursion while the
parent's body has ended and this was its last child. So a chain of any depth needs no stack, and
each node costs a constant.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from functools import partial
from inspect import isawaitable
from types import TracebackType
from typing import Any

from ._cancel import is_shutting_down
from ._events import publish
from ._failure import blame, child_completed, child_failed, interrupt, log_lost, weigh
from ._policy import Quorum
from ._record import Attempts, Moment, NodeBase, Record
from ._report import is_a, log
from ._state import STEPS, Verdict, advance
from ._task import TURN, drives_now, start_task
from ._usage import measured
from .errors import NodeCancelled, NodeClosed

__all__ = ["finish", "to_await"]

CLOSING, COMPLETED = STEPS["closing"], STEPS["completed"]

# The slot of BaseException itself: a user's exception may override the attribute.
_traceback: Callable[[Any], TracebackType | None] = vars(BaseException)["__traceback__"].__get__


def finish(
    record: Record,
    in_own_context: bool = False,
    callbacks_done: bool = False,
    is_decided: bool = False,
) -> None:
    """End a node whose body and children have ended, and each ancestor that waited only for it.

    `in_own_context`: this runs in the node's context. `callbacks_done`: its final callbacks have
    run. `is_decided`: the journal has the outcome.
    """
    while True:
        if not callbacks_done:
            # First: predicates and log handlers, which run from here on, must not put a child.
            record.is_open = False
            if (
                record.is_special
                and not is_decided
                and not (_decide(record) and _may_end(record, in_own_context))
            ):
                return
            record.is_closing = True
            if record.callback is not None and not _run_callbacks(record, in_own_context):
                return
        in_own_context = callbacks_done = is_decided = False
        above = record.parent_node
        special = record.is_special
        if special:
            rare = record.rare
            if rare.scope is not None and rare.scope.is_root:
                _keep(record, rare.scope.record_root_outcome)
            failure, reason = rare.failure, rare.cancel_reason
            if failure is not None:
                verdict: Verdict = "failed"
                record.traceback = _traceback(failure)
            else:
                verdict = "completed" if reason is None else "cancelled"
            record.state = STEPS[verdict][record.state]  # `advance`, inlined
            if record.tree.listeners:
                publish(record, verdict, reason if failure is None else failure)
        else:
            verdict = "completed"
            record.state = COMPLETED[record.state]  # `advance`, inlined
            if record.tree.listeners:
                publish(record, "completed")
        if record.waiters is not None:
            waiters, record.waiters = record.waiters, None
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
                    if verdict == "failed":
                        record.failure_receivers += 1
        if special:
            rare = record.rare
            if rare.attempts is not None:
                rare.attempts.failure = None  # its traceback refers to the node
            if rare.observers is not None:
                for observer in rare.observers:
                    if not observer.done():
                        observer.set_result(None)
                rare.observers.clear()  # each is a `Wait`, which refers to the node
            for callback in rare.at_commander_end or ():
                entry = (callback, record.node, record.context or copy_context())
                record.tree.commander_end_callbacks.append(entry)
        # Break the cycles between the record, the node and the context, so that the node is freed
        # now and not by the garbage collector.
        record.context = None
        record.node = None  # type: ignore[assignment]
        if above is None:
            return
        parent = above._node_record
        assert parent is not None
        siblings = parent.children
        assert siblings is not None
        # Before the policy sees the failure: the policy cancels the remaining children.
        del siblings[record.id]
        if special and verdict == "failed":
            if not record.failure_receivers:
                child_failed(parent, record)
        elif parent.is_special and verdict == "completed" and isinstance(parent.policy, Quorum):
            child_completed(parent, parent.policy)
        if siblings or parent.state != "joining" or parent.task is not None:
            return
        record = parent


# --- the outcome of a special node


def _decide(record: Record) -> bool:
    """Decide how a special node ends; return False if another attempt begins instead."""
    if record.scope is not None:
        for child in (record.failures or {}).values():
            if child.failure is not None:
                record.scope.record_lost_failure(child.failure)
    # A recorded outcome already includes the policy's decision.
    recorded = record.scope is not None and record.scope.is_recorded
    if not recorded and (record.failures is not None or isinstance(record.policy, Quorum)):
        weigh(record)
    rare = record.rare
    if rare.abort_error is not None:
        record.failure = rare.abort_error
    if rare.cancel_reason is not None:
        _forget_outcome(record)
    elif rare.failure is not None:
        record.result = None
    if rare.attempts is not None and _try_again(record, rare.attempts):
        return False
    if record.cancel_reason is not None:
        _forget_outcome(record)  # a predicate or a log handler cancelled it just now
    if (scope := record.scope) is not None:
        if scope.has_run_callbacks:  # in an earlier execution
            record.callback = record.more_callbacks = None
        _keep(record, partial(scope.record_outcome, leaving=is_shutting_down(record.tree)))
    return True


def _may_end(record: Record, in_own_context: bool) -> bool:
    """Return whether a node ends now; if not, the run calls `_end_in_turn` later."""
    if record.scope is None or record.cancel_reason is not None:
        return True
    record.is_closing = True  # its outcome is recorded, so no cancel may reach it any more
    if record.scope.may_end(record.node, _end_in_turn):
        return True
    if in_own_context:
        record.context = copy_context()
    record.state = CLOSING[record.state]
    return False


def _end_in_turn(node: NodeBase) -> None:
    record = node._node_record
    assert record is not None
    finish(record, is_decided=True)


def _keep(record: Record, keep: Callable[..., Any]) -> None:
    """Record the outcome in the journal; a value or error from `keep` replaces it."""
    rare = record.rare
    verdict: Verdict = "completed" if rare.cancel_reason is None else "cancelled"
    if rare.failure is not None:
        verdict = "failed"
    try:
        result = keep(record.node, verdict, record.result, rare.failure)
    except BaseException as error:  # noqa: BLE001 - a node whose outcome cannot be stored fails
        blame(record, error)
        record.result, record.failure = None, error
    else:
        if verdict == "completed":
            record.result = result


def _forget_outcome(record: Record) -> None:
    error = record.failure
    if error is not None and record.scope is not None:
        record.scope.record_lost_failure(error)
    # An interrupt is not lost: `interrupt` has raised it from the loop.
    if error is not None and not is_a(error, NodeCancelled, KeyboardInterrupt, SystemExit):
        log_lost(record, error, "%s had failed when it was cancelled")
    record.result = record.failure = None


def _try_again(record: Record, attempts: Attempts) -> bool:
    """Schedule another attempt if the node's retry asks for one; return whether it does."""
    if attempts.timer is not None:
        attempts.timer.cancel()
        attempts.timer = None
    if attempts.retry is None or record.cancel_reason is not None:
        return False
    if record.scope is not None and record.scope.is_recorded:
        return False
    loop = record.tree.loop
    try:
        delay = attempts.retry.next_delay(record.failure, attempts.starts, loop.time())
        delay = None if delay is None else max(0.0, float(delay))
    except BaseException as error:  # noqa: BLE001 - a user's predicate may raise anything
        what = "the retry predicate of %s raised, so there is no further attempt"
        log(logging.ERROR, what, record.path, error=error)
        interrupt(record, error)
        return False
    if delay is None or record.cancel_reason is not None:
        return False
    attempts.failure = record.failure
    if record.scope is not None:
        record.scope.record_retry(record.node, delay)
    advance(record, "retried", record.failure)
    record.result = record.failure = record.abort_error = record.failures = None
    record.completed = 0
    record.is_open = True
    attempts.start_after(record, delay)
    return True


# --- final callbacks


def to_await(value: object) -> Awaitable[object] | None:
    """Return a callback's value if it must be awaited, else None.

    A node is not awaited: `lambda node: node.put_job(...)` puts the next round of a loop. To await
    it would keep this round open until all later ones have ended.
    """
    if value is None or isinstance(value, NodeBase) or not isawaitable(value):
        return None
    return value


def _run_callbacks(record: Record, in_own_context: bool) -> bool:
    """Run the final callbacks; return False if a task runs the rest, which will end the node."""
    record.state = CLOSING[record.state]  # `advance`, inlined
    due: Moment = "end"
    if record.is_special and (record.failure is not None or record.cancel_reason is not None):
        due = "terminate" if record.failure is None else "exception"
    node, context = record.node, record.context
    moment, callback = record.callback_moment, record.callback
    # The index of the next callback. `later_callbacks`, a generator, would double the time here.
    at = 0
    while callback is not None:
        waiting = None
        if moment == due or moment == "done":
            if record.is_special:
                record.moment = moment
            try:
                value = (
                    callback(node)
                    if in_own_context or context is None
                    else context.run(callback, node)
                )
                if value is not None:
                    waiting = to_await(value)
            except BaseException as error:  # noqa: BLE001 - the node fails with it, whatever it is
                _callback_failed(record, error)
        if waiting is not None:
            if in_own_context:
                context = copy_context()
            start_task(record, partial(_run_rest, record, waiting, due, at), context)
            return False
        # Read again each time: a callback may add others.
        more = record.more_callbacks if record.is_special else None
        if more is None or at == len(more):
            break
        moment, callback = more[at : at + 2]
        at += 2
    return True


async def _run_rest(
    record: Record, waiting: Awaitable[object] | None, due: Moment, at: int
) -> None:
    todo = record.later_callbacks(at)
    try:
        await TURN
    except asyncio.CancelledError:
        # The callback must get this cancel, but can only after it has begun.
        record.task.cancel()  # type: ignore[union-attr]
    while True:
        try:
            if waiting is not None:
                await (waiting if record.cpu is None else measured(record, waiting))
            waiting = None
            for moment, callback in todo:
                if moment in (due, "done"):
                    record.moment = moment
                    waiting = to_await(callback(record.node))
                    break
            else:
                break
        except BaseException as error:
            if is_a(error, GeneratorExit) and not drives_now(record):
                raise  # the loop was closed
            waiting = None
            _callback_failed(record, error)
    record.task = None
    if record.cancel_reason is not None:
        record.result = None  # also if no callback awaited anything after the cancel
    finish(record, callbacks_done=True)


def _callback_failed(record: Record, error: BaseException) -> None:
    if record.never_runs and is_a(error, NodeClosed):
        return  # its body never ran, so its callback need not put a next round
    if is_a(error, asyncio.CancelledError):
        record.cancel_reason = record.cancel_reason or "a callback was cancelled"
        _forget_outcome(record)
        return
    blame(record, error)
    if record.failure is None:
        record.failure = error
        record.result = None
    else:
        log_lost(record, error, "a callback of %s raised")
    interrupt(record, error)
