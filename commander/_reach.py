"""What a task waits for: the tree, or other tasks that wait for it (contracts T9 and F5)."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from types import CodeType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from ._stack import chain, frame_of, frames

if TYPE_CHECKING:
    from ._node import Node

__all__ = [
    "LocalFuture",
    "Wait",
    "awaited",
    "ends_here",
    "gathering",
    "goes_on",
    "reach",
    "waits_for_tree",
]

End: TypeAlias = "tuple[object, asyncio.Future[Any]]"


class LocalFuture(asyncio.Future[None]):
    """A future that only other code of this process ends: no server, and not time."""


class Wait(asyncio.Future[None]):
    """A wait for the tree: for `node`, or for what it brings. Whoever awaits one says so by that.

    It is how limits and full branches know that a task could only go on if the tree does.
    """

    __slots__ = ("node",)

    node: Node[Any]


def waits_for_tree(task: asyncio.Task[Any]) -> bool:
    """Say whether `task` waits for the tree, by itself or through other tasks."""
    return bool(reach(task.get_coro(), awaited(task))[1])


def reach(
    coroutine: object, future: asyncio.Future[Any] | None
) -> tuple[dict[asyncio.Task[Any], None], list[Wait], list[End]]:
    """Return all tasks for which a coroutine waits that stands at `future`, and their `Wait`s.

    Third come the other ends of the search: futures of which nobody knows who ends them, with the
    coroutine that stands there.

    It goes through tasks, `gather`, `wait`, `wait_for`, `shield`, `as_completed`, task groups of
    asyncio and anyio and their handles; what is awaited by other means is not seen.
    """
    tasks: dict[asyncio.Task[Any], None] = {}
    waits: list[Wait] = []
    ends: list[End] = []
    seen: set[asyncio.Future[Any]] = set()
    stack = [(coroutine, future)]
    while stack:
        coroutine, future = stack.pop()
        if future is None or future in seen or future.done():
            continue
        seen.add(future)
        if isinstance(future, Wait):
            waits.append(future)
            continue
        behind = _behind(coroutine, future)
        if not behind:
            ends.append((coroutine, future))
        for other in behind:
            if isinstance(other, asyncio.Task):
                if other not in tasks and not other.done():
                    tasks[other] = None
                    stack.append((other.get_coro(), awaited(other)))
            else:
                stack.append((None, other))
    return tasks, waits, ends


def awaited(task: asyncio.Task[Any]) -> asyncio.Future[Any] | None:
    """Return the future at which `task` is suspended; None if it runs or is about to."""
    return getattr(task, "_fut_waiter", None)


def _behind(coroutine: object, future: asyncio.Future[Any]) -> list[asyncio.Future[Any]]:
    """Return the futures that bring about `future`, at which `coroutine` stands if it is given."""
    if isinstance(future, asyncio.Task):
        return [future]
    if isinstance(future, GATHERING):
        return cast("Any", future)._children
    for callback, _ in getattr(future, "_callbacks", None) or ():
        if getattr(callback, "__code__", None) in SHIELDS:
            return _futures(cell.cell_contents for cell in callback.__closure__)
    if coroutine is None:
        return []
    return [each for each in _futures(_held_by_library(coroutine)) if each is not future]


def gathering(wait: asyncio.Future[Any]) -> asyncio.Future[Any] | None:
    """Return the future of `gather` that alone hears of `wait`, by a task of its own for that.

    None if others may do something when `wait` is done.
    """
    task: Any = getattr(_only_callback(wait), "__self__", None)
    if not isinstance(task, asyncio.Task):
        return None
    coroutine: Any = cast("Any", task).get_coro()
    hears: Any = _only_callback(cast("Any", task))
    code = getattr(hears, "__code__", None)
    if getattr(coroutine, "__name__", "") != WRAPPER or code not in GATHERS:
        return None
    return hears.__closure__[code.co_freevars.index("outer")].cell_contents


def _only_callback(future: object) -> object:
    callbacks: list[tuple[object, object]] = getattr(future, "_callbacks", None) or []
    return callbacks[0][0] if len(callbacks) == 1 else None


def _held_by_library(coroutine: object) -> Iterator[object]:
    """Yield what the innermost frames hold, as far as they are asyncio's or anyio's.

    A group, a set of tasks to wait for: for these they wait, and for nothing else.
    """
    things = list(chain(coroutine))
    for at, thing in reversed(list(enumerate(things))):
        frame = frame_of(thing)
        if frame is None or frame.f_globals.get("__name__", "").split(".")[0] not in LIBRARIES:
            return
        values = frame.f_locals
        if frame.f_code.co_qualname == "as_completed.<locals>._wait_for_one":
            # Before Python 3.13 only a generator knows the set, which the caller's loop holds.
            for held in gc.get_referents(*things[:at]):
                inner = getattr(held, "gi_frame", None)
                if inner is not None and inner.f_locals.get("done") is values.get("done"):
                    yield inner.f_locals.get("todo")
        yield from values.values()
        if (owner := values.get("self")) is not None:
            yield from getattr(owner, "__dict__", {}).values()
            # An anyio handle of a task knows it by the scope in which it runs.
            yield getattr(getattr(owner, "_cancel_scope", None), "_host_task", None)


LIBRARIES = ("asyncio", "anyio")
GATHERING: type[asyncio.Future[Any]] = cast("Any", asyncio.tasks)._GatheringFuture
# The task that `gather` makes for what is no future, and its callback of each.
WRAPPER = cast("Any", asyncio.tasks)._wrap_awaitable.__name__
GATHERS = {
    const
    for const in asyncio.gather.__code__.co_consts
    if isinstance(const, CodeType) and const.co_name == "_done_callback"
}
# The callback of `shield` that knows what is behind the future which it returns.
SHIELDS = {
    const
    for const in asyncio.shield.__code__.co_consts
    if isinstance(const, CodeType) and const.co_name == "_outer_done_callback"
}


def _futures(values: Iterator[object]) -> list[asyncio.Future[Any]]:
    found: list[asyncio.Future[Any]] = []
    for value in values:
        if isinstance(value, asyncio.Future):
            found.append(cast("asyncio.Future[Any]", value))
        elif isinstance(value, (set, frozenset, list, tuple, dict)):
            many = cast("set[object]", value)
            found += (each for each in many if isinstance(each, asyncio.Future))
    return found


def ends_here(end: End) -> bool:
    """Say whether a coroutine stands where only other code of this process can wake it.

    Such are the locks, events and queues of asyncio and anyio. That code may have to hear from a
    server first.
    """
    coroutine, future = end
    if isinstance(future, LocalFuture):
        return True
    innermost = list(frames(coroutine))[-1:]
    if not innermost:
        return False
    module, name = innermost[0].f_globals.get("__name__"), innermost[0].f_code.co_qualname
    return module in ("asyncio.locks", "asyncio.queues") or (
        module == "anyio._backends._asyncio" and name.startswith(("Lock.", "Semaphore."))
    )


def goes_on(task: asyncio.Task[Any]) -> bool:
    """Say whether `task` runs, or may go on without other code of this process."""
    waiting = awaited(task)
    _, waits, ends = reach(task.get_coro(), waiting)
    return not (waits or ends) or not all(map(ends_here, ends))
