"""How a node gets a task of its own, whatever task factory the loop has.

Without a factory that is a task of asyncio's. A factory may also start a coroutine at once, wrap it
in another one, drop it, raise, or return what is no task: the body still starts on a later turn of
the loop, and the node still reaches its end (contracts T1 and T13).
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


# Awaiting it suspends a coroutine once, until it is next stepped.
TURN = cast("Awaitable[None]", _Turn())

# Makes the coroutine that drives a node: it first awaits TURN, and leaves the node alone if that
# has another task by then.
Driver: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


class BodyTask(Task[None]):
    """The task of a node's body. Its coroutine has the node's `record` as its first argument.

    To cancel it before its first step marks the node, which then ends at that step: asyncio would
    throw the coroutine away without stepping it, and the node would never end.
    """

    __slots__ = ()

    def cancel(self, msg: object = None) -> bool:
        """Cancel the task, or before its first step the node."""
        coroutine: Any = self.get_coro()
        if getcoroutinestate(coroutine) == CORO_CREATED:
            record: Record = coroutine.cr_frame.f_locals["record"]
            if record.task is self:
                if not record.is_ending:
                    cancel_subtrees((record,), "its task was cancelled")
                return True
        return super().cancel(msg)


def drives_now(record: Record) -> bool:
    """Say whether this runs in the node's own task, and is not its coroutine being thrown away."""
    try:
        return record.task is asyncio.current_task()
    except RuntimeError:
        return False


def start_task(record: Record, driver: Driver, context: Context | None) -> None:
    """Give a node a task that drives it from a later turn of the loop on."""
    if record.tree.factory:
        # A factory may wrap the coroutine only if it has not been stepped: so here it is not, and
        # what ends the task before the coroutine has begun is met by `_take_over`.
        record.is_special = True
        coroutine = driver()
        create = record.tree.loop.create_task
        try:
            # Not by keyword: factories that know of no context, or of no name, are many.
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
                "the loop's task factory failed: the nodes of %s have plain tasks from now on",
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
    # The coroutine is stepped into its `try` at once: so a cancel that arrives before the first
    # turn is met there.
    coroutine = driver()
    coroutine.send(None)
    task = Task(coroutine, loop=record.tree.loop, name=TASK_NAME, context=context)
    record.task = task
    return task


def _take_over(
    record: Record, driver: Driver, coroutine: Coroutine[Any, Any, None], task: Task[None]
) -> None:
    """Bring a node on whose task, made by a factory, has ended without doing so."""
    state = getcoroutinestate(coroutine)
    if state == CORO_CREATED:
        coroutine.close()  # or Python would say that nobody has awaited it
    if record.task is not task:
        return
    if state == CORO_SUSPENDED:
        # It was left in the middle: it is told to clean up, by a cancellation.
        record.task = Task(coroutine, loop=record.tree.loop, name=TASK_NAME)
        record.task.cancel()
        return
    record.task = None
    if state != CORO_CREATED and record.state != "pending":
        cancel_subtrees((record,), "its task was ended by others")
    own = _start_plainly(record, driver, None)
    if task.cancelled():
        own.cancel()
