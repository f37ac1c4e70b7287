"""Start the asyncio task of a node, also if the loop has a task factory.

A factory may start a coroutine at once, wrap it, drop it, raise, or return something else than a
task. The body still starts on a later turn of the loop, and the node still reaches its end
(contracts T1 and T13).
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Task
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from functools import partial
from inspect import CORO_CREATED, CORO_SUSPENDED, getcoroutinestate
from typing import Any, TypeAlias, cast

from ._cancel import cancel_subtrees
from ._record import Record
from ._report import log, raise_soon, type_name

__all__ = ["TASK_NAME", "TURN", "BodyTask", "drives_now", "start_task"]

TASK_NAME = "anabranch"


class _Turn:
    __slots__ = ()
    __await__ = staticmethod(cast("Any", partial(iter, (None,))))


# Awaiting it suspends a coroutine once, until its next step.
TURN = cast("Awaitable[None]", _Turn())

# Creates the coroutine that drives a node. The coroutine first awaits TURN, and does nothing if the
# node has another task by then.
Driver: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


class BodyTask(Task[None]):
    """The task of a node's body. Its coroutine has the node's `record` as its first argument.

    A cancel before the first step marks the node, which ends at that step. asyncio would discard
    the coroutine without a step, and the node would never end.
    """

    __slots__ = ()

    def cancel(self, msg: object = None) -> bool:
        """Cancel the task; before its first step, cancel the node instead."""
        coroutine: Any = self.get_coro()
        if getcoroutinestate(coroutine) == CORO_CREATED:
            record: Record = coroutine.cr_frame.f_locals["record"]
            if record.task is self:
                if not record.is_ending:
                    cancel_subtrees((record,), "its task was cancelled")
                return True
        return super().cancel(msg)


def drives_now(record: Record) -> bool:
    """Return whether this runs in the node's task.

    False if the garbage collector or a closed loop is closing the node's coroutine.
    """
    try:
        return record.task is asyncio.current_task()
    except RuntimeError:
        return False


def start_task(record: Record, driver: Driver, context: Context | None) -> None:
    """Start a task that drives the node from a later turn of the loop on."""
    if record.tree.factory:
        # The coroutine is not stepped here, because a factory can only wrap one that has not begun.
        # `_take_over` handles a task that ends before the coroutine begins.
        record.is_special = True
        coroutine = driver()
        create = record.tree.loop.create_task
        try:
            # No keywords: many factories do not accept `context` or `name`.
            made: Any = create(coroutine) if context is None else context.run(create, coroutine)
            if not (asyncio.isfuture(made) and hasattr(made, "get_coro")):
                kind = type_name(made)
                raise TypeError(f"a task factory must return an asyncio.Task, not {kind}")
            task = cast("Task[None]", made)
            task.set_name(TASK_NAME)
            task.add_done_callback(partial(_take_over, record, driver, coroutine))
        except BaseException as fault:  # noqa: BLE001 - a factory is a user's
            record.tree.factory = False
            log(
                logging.ERROR,
                "the loop's task factory failed: %s uses plain tasks from now on",
                record.tree.root.path,
                error=fault,
            )
            if getcoroutinestate(coroutine) == CORO_CREATED:
                coroutine.close()
            raise_soon(fault)
        else:
            record.task = task
            return
    _start_plainly(record, driver, context)


def _start_plainly(record: Record, driver: Driver, context: Context | None) -> Task[None]:
    # Step the coroutine into its `try` now, so that a cancel before its first turn arrives there.
    coroutine = driver()
    coroutine.send(None)
    task = Task(coroutine, loop=record.tree.loop, name=TASK_NAME, context=context)
    record.task = task
    return task


def _take_over(
    record: Record, driver: Driver, coroutine: Coroutine[Any, Any, None], task: Task[None]
) -> None:
    """Bring a node to its end after a factory's task ended without doing so."""
    state = getcoroutinestate(coroutine)
    if state == CORO_CREATED:
        coroutine.close()  # prevents the warning that it was never awaited
    if record.task is not task:
        return  # the node ended normally, or has another task
    if state == CORO_SUSPENDED:
        # The factory's task dropped it in the middle of the body: cancel it, so that it cleans up.
        record.task = Task(coroutine, loop=record.tree.loop, name=TASK_NAME)
        record.task.cancel()
        return
    record.task = None
    if state != CORO_CREATED and record.state != "pending":
        cancel_subtrees((record,), "its task was ended by others")
    own = _start_plainly(record, driver, None)
    if task.cancelled():  # the node has not got this cancel: pass it on
        own.cancel()
