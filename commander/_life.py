"""From a node's start to its end: the body, the join, retries, final callbacks.

A node's own task runs its body and then ends; nobody sits waiting for the children. The join is
made by whoever ends last: `finish` closes a node and walks up, without recursion, as long as the
parent's body has returned and this was its last child. So chains and fans of any size cost a
constant per node.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Task
from collections.abc import Awaitable, Callable, Iterator
from contextvars import Context, copy_context
from functools import partial
from inspect import isawaitable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from ._cancel import abort
from ._events import publish
from ._failure import blame, body_failed, child_completed, child_failed, log_lost, weigh
from ._policy import Quorum, Restart, Retry
from ._record import CURRENT, After, Attempts, Callback, Moment, Record
from ._report import is_a, log, raise_soon
from ._task import TASK_NAME, start_task
from .errors import NodeCancelled, NodeClosed

if TYPE_CHECKING:
    from ._node import Node

__all__ = ["finish", "spawn"]


class _Turn:
    __slots__ = ()
    # In C from end to end: every node awaits it once.
    __await__ = staticmethod(cast("Any", partial(iter, (None,))))


# Awaiting it suspends a coroutine once, until it is next stepped.
TURN = cast("Awaitable[None]", _Turn())

# Moments and callbacks in turn.
Todo: TypeAlias = "Iterator[Any]"
Verdict: TypeAlias = Literal["completed", "failed", "cancelled"]


def spawn(node: Node[Any], context: Context | None = None) -> None:
    """Start the task that runs the node's body, on a later turn of the loop.

    The coroutine is stepped into its `try` at once: so a cancel that arrives before the first
    turn is met there, and every node that entered the tree reaches its end.
    """
    commander = node._n_commander
    if commander._n_factory:
        start_task(node, partial(_drive, node), context)
        return
    # The task class itself: half the cost of the loop's `create_task`.
    coroutine = _drive(node)
    coroutine.send(None)
    if context is None:
        node._n_task = Task(coroutine, loop=commander._n_loop, name=TASK_NAME)
    else:
        node._n_task = Task(coroutine, loop=commander._n_loop, name=TASK_NAME, context=context)


# --- the body


async def _drive(node: Node[Any]) -> None:
    try:
        await TURN
        if node._n_special and node._n_task is not asyncio.current_task():
            return  # it has another task, or will have: the queue has called the job back
        CURRENT.set(node)
        if not node._n_special or (node._n_cancel is None and node._n_abort is None):
            node._n_state = "running"
            if node._n_commander._n_listeners:
                publish(node, "started")
            if node._n_special:
                attempt = _attempt(node)
                place = node._n_place
                result = await (attempt if place is None else place.drive(attempt))
            else:
                result = await node.task()
            node._n_result = await _adopt(node, result) if isinstance(result, Record) else result
    except asyncio.CancelledError:
        if node._n_task is not asyncio.current_task():
            return
        CURRENT.set(node)  # it may have come before the first turn
        if node._n_cancel is None and node._n_abort is None:
            # The body raised it by itself, or somebody cancelled the task and not the node.
            node._n_task = None
            node._n_state = "joining"  # a pending node would be started in order to end
            node.cancel("its body raised CancelledError")
    except BaseException as error:
        if is_a(error, GeneratorExit) and not _is_driven(node):
            raise  # the loop was closed under the node: there is nowhere left to end it
        if node._n_state == "pending" and node._n_attempts is not None:
            # Whoever made the task has raised it before the body began: that is an attempt too.
            node._n_attempts.starts.append(node._n_commander._n_loop.time())
        body_failed(node, error)
        _interrupt(node, error)
    _body_ended(node)


def _is_driven(node: Node[Any]) -> bool:
    """Say whether this runs in the node's own task, and is not its coroutine being thrown away."""
    try:
        return node._n_task is asyncio.current_task()
    except RuntimeError:
        return False


def _interrupt(node: Node[Any], error: BaseException) -> None:
    """Let an interrupt that a user's code has raised in `node` stop the loop, as in any task."""
    if is_a(error, KeyboardInterrupt, SystemExit):
        node._n_commander._n_interrupts.append(error)
        raise_soon(error)


async def _attempt(node: Node[Any]) -> Any:
    await _begin_attempt(node)
    return await (node.task() if node._n_away is None else node._n_away.run(node))


async def _begin_attempt(node: Node[Any]) -> None:
    attempts = node._n_attempts
    if attempts is not None:
        loop = node._n_commander._n_loop
        attempts.starts.append(loop.time())
        if attempts.timeout is not None:
            attempts.timer = loop.call_later(attempts.timeout, _time_out, node, attempts.timeout)
    if node._n_starts is not None:
        await _run_starts(node, node._n_starts)


def _time_out(node: Node[Any], timeout: float) -> None:
    error = TimeoutError(f"{node.path} was not done within {timeout:g} s")
    blame(node, error)
    abort(node, error)


async def _run_starts(node: Node[Any], starts: list[Callback]) -> None:
    failed: list[Exception] = []
    try:
        for callback in tuple(starts):
            try:
                waiting = _waiting(callback(node))
                if waiting is not None:
                    await waiting
            except Exception as error:  # noqa: BLE001 - raised below, once the others have run
                failed.append(error)
        if failed:
            raise failed.pop(0)
    finally:
        for error in failed:
            log_lost(node, error, "a start callback of %s raised")


async def _adopt(node: Node[Any], returned: object) -> Any:
    """Wait for the node that a body has returned; it becomes a child unless it already runs."""
    if node._n_place is not None:
        node._n_place.release()
    _enter_joining(node)
    return await cast("Node[Any]", returned)


def _body_ended(node: Node[Any]) -> None:
    """Join: at once if no child is alive, else when the last one has ended."""
    node._n_task = None
    if node._n_place is not None:
        node._n_place.release()
    if node._n_children:
        node._n_context = copy_context()
        if node._n_state != "joining":
            _enter_joining(node)
    else:
        finish(node, at_home=True)


def _enter_joining(node: Node[Any]) -> None:
    node._n_state = "joining"
    if node._n_commander._n_listeners:
        publish(node, "joining")


# --- the end


def finish(node: Node[Any], *, at_home: bool) -> None:
    """End `node`, whose body and children are over, and each ancestor that waited only for it.

    `at_home` says that this runs in the node's own context.
    """
    ready: Node[Any] | None = node
    while ready is not None:
        ready._n_open = False  # before a predicate or a log handler could put a child
        if ready._n_special and not _decide(ready):
            return
        ready._n_closing = True
        if ready._n_callbacks is not None and not _run_callbacks(ready, at_home):
            return
        ready = _close(ready)
        at_home = False


def _decide(node: Node[Any]) -> bool:
    """Settle how a node ends that is not plain; False if it is tried again instead."""
    if node._n_failures is not None or isinstance(node._n_policy, Quorum):
        weigh(node)
    if node._n_abort is not None:
        node._n_error = node._n_abort
    if node._n_cancel is not None:
        _forget_outcome(node)
    elif node._n_error is not None:
        node._n_result = None
    if node._n_attempts is not None and _try_again(node, node._n_attempts):
        return False
    if node._n_cancel is not None:
        _forget_outcome(node)  # a predicate or a log handler has cancelled it only now
    return True


def _forget_outcome(node: Node[Any]) -> None:
    error = node._n_error
    # An interrupt is not lost: it leaves the loop.
    if error is not None and not is_a(error, NodeCancelled, KeyboardInterrupt, SystemExit):
        log_lost(node, error, "%s had failed when it was cancelled")
    node._n_result = node._n_error = None


def _verdict(node: Node[Any]) -> Verdict:
    if node._n_error is not None:
        return "failed"
    return "completed" if node._n_cancel is None else "cancelled"


def _try_again(node: Node[Any], attempts: Attempts) -> bool:
    if attempts.timer is not None:
        attempts.timer.cancel()
        attempts.timer = None
    if attempts.retry is None or node._n_cancel is not None:
        return False
    loop = node._n_commander._n_loop
    delay = _next_delay(node, attempts.retry, attempts.starts, loop.time())
    if delay is None or node._n_cancel is not None:
        return False
    node._n_state = "pending"
    if node._n_commander._n_listeners:
        publish(node, "retried", node._n_error)
    node._n_result = node._n_error = node._n_abort = node._n_failures = None
    node._n_completed = 0
    node._n_open = True
    attempts.timer = loop.call_later(delay, _start_again, node, attempts)
    return True


def _next_delay(
    node: Node[Any], retry: Retry | Restart, starts: list[float], now: float
) -> float | None:
    try:
        delay = retry.next_delay(node._n_error, starts, now)
        return None if delay is None else max(0.0, float(delay))
    except BaseException as error:  # noqa: BLE001 - its predicate is a user's
        what = "whether %s is tried again could not be decided: it is not"
        log(logging.ERROR, what, node.path, error=error)
        _interrupt(node, error)
        return None


def _start_again(node: Node[Any], attempts: Attempts) -> None:
    attempts.timer = None
    context = attempts.context.copy()
    if node._n_queued:
        node._n_commander._n_queue.put_first(node, context)
    else:
        spawn(node, context)


MOMENTS: dict[Verdict, Moment] = {
    "completed": "end",
    "failed": "exception",
    "cancelled": "terminate",
}


def _run_callbacks(node: Node[Any], at_home: bool) -> bool:
    """Run the final callbacks; from the first async one on, in a task of their own."""
    node._n_state = "joining"
    due: Moment = MOMENTS[_verdict(node)] if node._n_special else "end"
    # The list is read as it grows: a callback may add another one that is still due.
    todo = iter(node._n_callbacks or ())
    for moment in todo:
        callback = next(todo)
        if moment != due and moment != "done":
            continue
        if node._n_special:
            node._n_moment = moment
        try:
            value = callback(node) if at_home else _context(node, at_home).run(callback, node)
            if value is not None:
                value = _waiting(value)
        except BaseException as error:  # noqa: BLE001 - the tree hands every failure on
            _callback_failed(node, error)
            continue
        if value is not None:
            rest = partial(_run_rest, node, value, due, todo)
            start_task(node, rest, _context(node, at_home))
            return False
    return True


def _context(node: Node[Any], at_home: bool) -> Context:
    if at_home:
        return copy_context()
    assert node._n_context is not None
    return node._n_context


def _waiting(value: object) -> Awaitable[object] | None:
    # A callback that returns a node, as `lambda node: node.put_job(...)` does, has put it and no
    # more: to await the next round here would keep this one open for all that follow it.
    if value is None or isinstance(value, Record) or not isawaitable(value):
        return None
    return value


async def _run_rest(
    node: Node[Any], waiting: Awaitable[object] | None, due: Moment, todo: Todo
) -> None:
    try:
        await TURN
    except asyncio.CancelledError:
        node._n_task.cancel()  # type: ignore[union-attr]  # the callback meets it, once it has begun
    while True:
        try:
            if waiting is not None:
                await waiting
            callback = _next_due(node, due, todo)
            if callback is None:
                break
            waiting = _waiting(callback(node))
        except BaseException as error:
            if is_a(error, GeneratorExit) and not _is_driven(node):
                raise  # the loop was closed under the node
            waiting = None
            _callback_failed(node, error)
    node._n_task = None
    if node._n_cancel is not None:
        node._n_result = None  # also where no await was left that could have said so
    parent = _close(node)
    if parent is not None:
        finish(parent, at_home=False)


def _next_due(node: Node[Any], due: Moment, todo: Todo) -> Callback | None:
    for moment in todo:
        callback: Callback = next(todo)
        if moment in (due, "done"):
            node._n_moment = moment
            return callback
    return None


def _callback_failed(node: Node[Any], error: BaseException) -> None:
    if node._n_doomed and is_a(error, NodeClosed):
        return  # it never ran, and now could put no successor: that is no failure of it
    if is_a(error, asyncio.CancelledError):
        node._n_special = True
        node._n_cancel = node._n_cancel or "a callback was cancelled"
        _forget_outcome(node)
        return
    blame(node, error)
    node._n_special = True
    if node._n_error is None:
        node._n_error = error
        node._n_result = None
    else:
        log_lost(node, error, "a callback of %s raised")
    _interrupt(node, error)


# Whatever a user's class makes of the attribute.
_traceback: Callable[[Any], TracebackType | None] = vars(BaseException)["__traceback__"].__get__


def _close(node: Node[Any]) -> Node[Any] | None:
    """Take a node that is over out of the tree; return its parent if that can end now."""
    state: Verdict = "completed"
    if node._n_special:
        state = _verdict(node)
        if state == "failed":
            node._n_traceback = _traceback(node._n_error)
    node._n_state = state
    commander = node._n_commander
    if commander._n_listeners:
        publish(node, state, node._n_cancel if state == "cancelled" else node._n_error)
    waiters = node._n_waiters
    if waiters is not None:
        node._n_waiters = None
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
                node._n_takers += 1
    if node._n_after is not None:
        _run_after(node, node._n_after)
    if node._n_context is not None:
        node._n_context = None  # it leads back to the node: only the collector could free the two
    parent = node._n_parent
    if parent is None:
        return None
    siblings = cast("dict[int, Node[Any]]", parent._n_children)
    del siblings[node._n_id]
    if state == "failed":
        if not node._n_takers:
            child_failed(parent, node)
    elif parent._n_special and state == "completed" and isinstance(parent._n_policy, Quorum):
        child_completed(parent, parent._n_policy)
    if siblings or parent._n_state != "joining" or parent._n_task is not None:
        return None
    return parent


def _run_after(node: Node[Any], callbacks: list[tuple[After, Callback]]) -> None:
    for moment, callback in callbacks:
        if moment == "commander_end":
            node._n_commander._n_keep(node, callback)
        else:
            callback(node)
