"""The end of a node: how it ends, another attempt, its final callbacks, and the way up.

The join is made by whoever ends last: `finish` closes a node and walks up, without recursion, as
long as the parent's body has returned and this was its last child. So chains and fans of any size
cost a constant per node.
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

# Whatever a user's class makes of the attribute.
_traceback: Callable[[Any], TracebackType | None] = vars(BaseException)["__traceback__"].__get__


def finish(
    record: Record, at_home: bool = False, called: bool = False, decided: bool = False
) -> None:
    """End a node, whose body and children are over, and each ancestor that waited only for it.

    `at_home` says that this runs in the node's own context, `called` that its final callbacks
    have been called, `decided` that it ends as a journal says.
    """
    while True:
        if not called:
            record.is_open = False  # before a predicate or a log handler could put a child
            if (
                record.is_special
                and not decided
                and not (_decide(record) and _may_end(record, at_home))
            ):
                return
            record.is_closing = True
            if record.callback is not None and not _run_callbacks(record, at_home):
                return
        at_home = called = decided = False
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
            record.state = STEPS[verdict][record.state]  # `advance`, written out
            if record.tree.listeners:
                publish(record, verdict, reason if failure is None else failure)
        else:
            verdict = "completed"
            record.state = COMPLETED[record.state]  # `advance`, written out
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
                rare.attempts.failure = None  # it leads to the node, by its traceback
            if rare.observers is not None:
                for observer in rare.observers:
                    if not observer.done():
                        observer.set_result(None)
                rare.observers.clear()  # they lead to the node
            for callback in rare.at_commander_end or ():
                kept = (callback, record.node, record.context or copy_context())
                record.tree.commander_end_callbacks.append(kept)
        # It leads to the node, as its context does: only the collector could free the two.
        record.context = None
        record.node = None  # type: ignore[assignment]
        if above is None:
            return
        parent = above._node_record
        assert parent is not None
        siblings = parent.children
        assert siblings is not None
        del siblings[record.id]
        if special and verdict == "failed":
            if not record.failure_receivers:
                child_failed(parent, record)
        elif parent.is_special and verdict == "completed" and isinstance(parent.policy, Quorum):
            child_completed(parent, parent.policy)
        if siblings or parent.state != "joining" or parent.task is not None:
            return
        record = parent


# --- how a node ends that is not plain


def _decide(record: Record) -> bool:
    """Settle how a node ends that is not plain; False if it is tried again instead."""
    if record.scope is not None:
        for child in (record.failures or {}).values():
            if child.failure is not None:
                record.scope.record_lost_failure(child.failure)
    recorded = record.scope is not None and record.scope.is_recorded  # it was weighed then
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
        _forget_outcome(record)  # a predicate or a log handler has cancelled it only now
    if (scope := record.scope) is not None:
        if scope.has_run_callbacks:
            record.callback = record.more_callbacks = None
        _keep(record, partial(scope.record_outcome, leaving=is_shutting_down(record.tree)))
    return True


def _may_end(record: Record, at_home: bool) -> bool:
    """Say whether a node ends now; if not, its run lets it end later, in its turn."""
    if record.scope is None or record.cancel_reason is not None:
        return True
    record.is_closing = True  # so no cancel reaches it: its outcome is kept
    if record.scope.may_end(record.node, _end_in_turn):
        return True
    if at_home:
        record.context = copy_context()
    record.state = CLOSING[record.state]
    return False


def _end_in_turn(node: NodeBase) -> None:
    record = node._node_record
    assert record is not None
    finish(record, decided=True)


def _keep(record: Record, keep: Callable[..., Any]) -> None:
    """Let a run keep how a node ends: with `close`, and a root with `over` after its callbacks."""
    rare = record.rare
    verdict: Verdict = "completed" if rare.cancel_reason is None else "cancelled"
    if rare.failure is not None:
        verdict = "failed"
    try:
        result = keep(record.node, verdict, record.result, rare.failure)
    except BaseException as error:  # noqa: BLE001 - what cannot be kept fails the node
        blame(record, error)
        record.result, record.failure = None, error
    else:
        if verdict == "completed":
            record.result = result


def _forget_outcome(record: Record) -> None:
    error = record.failure
    if error is not None and record.scope is not None:
        record.scope.record_lost_failure(error)
    # An interrupt is not lost: it leaves the loop.
    if error is not None and not is_a(error, NodeCancelled, KeyboardInterrupt, SystemExit):
        log_lost(record, error, "%s had failed when it was cancelled")
    record.result = record.failure = None


def _try_again(record: Record, attempts: Attempts) -> bool:
    """Let another attempt begin after a pause, if the node's retry says so."""

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
    except BaseException as error:  # noqa: BLE001 - its predicate is a user's
        what = "whether %s is tried again could not be decided: it is not"
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
    """Return what a callback has returned if it is to be awaited.

    A callback that returns a node, as `lambda node: node.put_job(...)` does, has put it and no
    more: to await the next round here would keep this one open for all that follow it.
    """
    if value is None or isinstance(value, NodeBase) or not isawaitable(value):
        return None
    return value


def _run_callbacks(record: Record, at_home: bool) -> bool:
    """Run the final callbacks; from the first async one on, in a task of their own."""
    record.state = CLOSING[record.state]  # `advance`, written out
    due: Moment = "end"
    if record.is_special and (record.failure is not None or record.cancel_reason is not None):
        due = "terminate" if record.failure is None else "exception"
    node, context = record.node, record.context
    moment, callback = record.callback_moment, record.callback
    at = 0  # of the next one in the list; a generator would cost as much as the rest of this
    while callback is not None:
        waiting = None
        if moment == due or moment == "done":
            if record.is_special:
                record.moment = moment
            try:
                value = (
                    callback(node) if at_home or context is None else context.run(callback, node)
                )
                if value is not None:
                    waiting = to_await(value)
            except BaseException as error:  # noqa: BLE001 - the tree hands every failure on
                _callback_failed(record, error)
        if waiting is not None:
            if at_home:
                context = copy_context()
            start_task(record, partial(_run_rest, record, waiting, due, at), context)
            return False
        # As it is by now: one that runs may add others.
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
        record.task.cancel()  # type: ignore[union-attr]  # the callback meets it, once it has begun
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
                raise  # the loop was closed under the node
            waiting = None
            _callback_failed(record, error)
    record.task = None
    if record.cancel_reason is not None:
        record.result = None  # also where no await was left that could have said so
    finish(record, called=True)


def _callback_failed(record: Record, error: BaseException) -> None:
    if record.never_runs and is_a(error, NodeClosed):
        return  # it never ran, and now could put no successor: that is no failure of it
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
