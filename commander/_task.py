"""How a node gets a task of its own, whatever task factory the loop has.

Without a factory that is `asyncio.Task`. A factory may also start a coroutine at once, wrap it in
another one, drop it, raise, or return what is no task: the body still starts on a later turn of the
loop, and the node still reaches its end (contracts T1 and T13).
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Task
from collections.abc import Callable, Coroutine
from contextvars import Context
from functools import partial
from inspect import CORO_CREATED, CORO_SUSPENDED, getcoroutinestate
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from ._cancel import cancel_subtrees
from ._report import log, raise_soon, type_name

if TYPE_CHECKING:
    from ._commander import Commander
    from ._node import Node

__all__ = ["TASK_NAME", "start_task"]

TASK_NAME = "anabranch"

# Makes the coroutine that drives a node: it first lets one turn of the loop pass, and leaves the
# node alone if that has another task by then.
Driver: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


def start_task(node: Node[Any], driver: Driver, context: Context | None) -> None:
    """Give `node` a task that drives it from a later turn of the loop on."""
    if not node._n_commander._n_factory or not _start_by_factory(node, driver, context):
        _start_plainly(node, driver, context)


def _start_plainly(node: Node[Any], driver: Driver, context: Context | None) -> Task[None]:
    # The coroutine is stepped into its `try` at once: so a cancel that arrives before the first
    # turn is met there.
    coroutine = driver()
    coroutine.send(None)
    loop = node._n_commander._n_loop
    node._n_task = task = Task(coroutine, loop=loop, name=TASK_NAME, context=context)
    return task


def _start_by_factory(node: Node[Any], driver: Driver, context: Context | None) -> bool:
    # A factory may wrap the coroutine only if it has not been stepped: so here it is not, and what
    # ends the task before the coroutine has begun is met by `_take_over`.
    node._n_special = True
    coroutine = driver()
    taken = partial(_take_over, node, driver, coroutine)
    task = _ask_factory(node._n_commander, coroutine, context, taken)
    if task is None:
        return False
    node._n_task = task
    return True


def _ask_factory(
    commander: Commander,
    coroutine: Coroutine[Any, Any, None],
    context: Context | None,
    ended: Callable[[Task[None]], None],
) -> Task[None] | None:
    create = commander._n_loop.create_task
    try:
        # Not by keyword: factories that know of no context, or of no name, are many.
        made: Any = create(coroutine) if context is None else context.run(create, coroutine)
        if not (asyncio.isfuture(made) and hasattr(made, "get_coro")):
            raise TypeError(f"a task factory must return an asyncio.Task, not {type_name(made)}")
        task = cast("Task[None]", made)
        task.set_name(TASK_NAME)
        task.add_done_callback(ended)
    except BaseException as fault:  # noqa: BLE001 - a factory is a user's
        commander._n_factory = False
        log(
            logging.ERROR,
            "the loop's task factory failed: the nodes of %s have plain tasks from now on",
            commander.path,
            error=fault,
        )
        if getcoroutinestate(coroutine) == CORO_CREATED:
            coroutine.close()
        raise_soon(fault)
        return None
    return task


def _take_over(
    node: Node[Any], driver: Driver, coroutine: Coroutine[Any, Any, None], task: Task[None]
) -> None:
    """Bring a node on whose task, made by a factory, has ended without doing so."""
    state = getcoroutinestate(coroutine)
    if state == CORO_CREATED:
        coroutine.close()  # or Python would say that nobody has awaited it
    if node._n_task is not task:
        return
    if state == CORO_SUSPENDED:
        # It was left in the middle: it is told to clean up, by a cancellation.
        loop = node._n_commander._n_loop
        node._n_task = Task(coroutine, loop=loop, name=TASK_NAME)
        node._n_task.cancel()
        return
    node._n_task = None
    if state != CORO_CREATED and node._n_state != "pending":
        cancel_subtrees((node,), "its task was ended by others")
    own = _start_plainly(node, driver, None)
    if task.cancelled():
        own.cancel()
