"""Finds the nodes that a task waits for, directly or through other tasks (contracts T9 and F5).

asyncio lacks an API for this. The module reads the frames of suspended coroutines and private
attributes of futures. If a private name is missing in some version of Python or anyio, the wait
counts as one of unknown origin, and the queue's periodic checks lend the slot later.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import CodeType, MethodType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from ._frames import awaited_by, chain, frame_of, frames, is_sleeping

if TYPE_CHECKING:
    from ._node import Node

__all__ = [
    "NO_WAIT",
    "BodyWait",
    "LocalFuture",
    "Wait",
    "awaited",
    "ends_here",
    "gathering",
    "goes_on",
    "is_lock",
    "postpone",
    "reach",
    "relays",
    "times_out",
    "wait_of",
    "waits_for_tree",
]

End: TypeAlias = "tuple[object, asyncio.Future[Any]]"


class LocalFuture(asyncio.Future[None]):
    """A future that only other code of this process completes, not a server or a timer."""


class Wait(asyncio.Future[None]):
    """A wait for `node`, or for something that it produces.

    By this class, slots and full branches recognize a task that can only continue if the tree does.
    """

    __slots__ = ("node",)

    node: Node[Any]


def waits_for_tree(task: asyncio.Task[Any]) -> bool:
    """Return whether `task` waits for the tree, directly or through other tasks."""
    return bool(reach(task.get_coro(), awaited(task))[1])


def reach(
    coroutine: object,
    future: asyncio.Future[Any] | None,
    work_of: Callable[[Wait], list[asyncio.Task[Any]] | None] | None = None,
) -> tuple[dict[asyncio.Task[Any], None], list[Wait], list[End]]:
    """Return the tasks, the `Wait`s and the other ends behind `future`, which a coroutine awaits.

    An end is a future of unknown origin, or one that is about to be done, with the coroutine that
    awaits it. `work_of` may return the tasks behind a `Wait`, through which the search continues;
    if it returns an empty list, the wait is an end.

    The search follows these waits; any other future is an end:

    - a task, awaited directly, also inside `asyncio.timeout` or a cancel scope of anyio
    - `asyncio.gather` and `asyncio.shield`
    - `asyncio.wait` and `asyncio.wait_for`
    - `asyncio.as_completed`; before Python 3.13 only where the task that iterates over it awaits
    - the end of an `asyncio.TaskGroup`
    - the end of an anyio task group, and its `start`
    - a `TaskHandle` of anyio: awaited, or by its `wait`

    `HOLDS` names the frames that wait this way. A wait is an end too if a private name of asyncio
    or anyio that it needs is missing.
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
        behind: Sequence[asyncio.Future[Any]] | None
        if isinstance(future, Wait):
            behind = None if work_of is None else work_of(future)
            if behind is None:
                waits.append(future)
                continue
        else:
            behind = _behind(coroutine, future)
        # An end, because its origin is unknown (nothing is behind it), or because it is about to be
        # done (all behind it are).
        if all(other.done() for other in behind):
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
    """Return the future that suspends `task`; None if it runs or is about to."""
    try:
        return getattr(task, WAITER)
    except AttributeError:  # the innermost coroutine awaits an iterator that refers to the future
        things = list(chain(task.get_coro()))
        iterator = awaited_by(things[-1]) if things else None
        return next(iter(_futures([gc.get_referents(iterator)])), None)


def _behind(coroutine: object, future: asyncio.Future[Any]) -> list[asyncio.Future[Any]]:
    """Return the futures that complete `future`, which `coroutine` awaits if it is given."""
    if isinstance(future, asyncio.Task):
        return [future]
    if GATHERING is not None and isinstance(future, GATHERING):
        return _futures([getattr(future, "_children", None)])
    if (shielded := _shielded(future)) is not None:
        return _futures([shielded])
    if coroutine is None:
        return []
    return [each for each in _futures(_held(coroutine)) if each is not future]


def _shielded(future: object) -> object | None:
    """Return the inner future of one that `asyncio.shield` returned; None for any other."""
    for callback, _ in getattr(future, "_callbacks", None) or ():
        if getattr(callback, "__code__", None) in SHIELDS:
            return _closed_over(callback, "inner")
    return None


def times_out(coroutine: object) -> float | None:
    """Return the least seconds until a timer ends a coroutine's wait without a cancel, or None.

    Such waits are `asyncio.wait` with a timeout, `asyncio.wait` for the first of several tasks if
    one sleeps, `asyncio.as_completed` with a timeout, and `asyncio.wait_for` of a shield. Returns 0
    if something else may end the wait too.
    """
    for where, names in _stands(coroutine):
        if where == WAIT_FOR and _shielded(names.get("fut")) is None:
            continue
        several = where not in (WAIT, WAIT_FOR)
        if where == WAIT and names.get("return_when") != asyncio.ALL_COMPLETED:
            tasks = _futures([names.get("fs")])
            several = len(tasks) > 1
            # A task that has ended ends the wait on the next turn.
            if any(each.done() or _sleeps(each) for each in tasks):
                return 0.0
        if any(_find(names, path) is not None for path in TIMERS.get(where, ())):
            seconds: Any = names.get("timeout")
            return 0.0 if several else seconds
    return None


class BodyWait:
    """The wait of a task: whether it continues in a few turns, and the timers that may end it."""

    __slots__ = ("_at", "goes_on", "task", "timers")

    def __init__(self, task: asyncio.Task[Any] | None, goes_on: bool = False) -> None:
        self.task: asyncio.Task[Any] | None = task
        self.goes_on: bool = goes_on
        self.timers: list[asyncio.TimerHandle] = []
        # The future that the task awaits. If that is a single task, also its future, and so on.
        self._at: list[tuple[asyncio.Task[Any], asyncio.Future[Any]]] = []

    @property
    def lasts(self) -> bool:
        """Whether the chain of single waits is unchanged. Tasks behind its end are not checked."""
        return not self.goes_on and all(
            not on.done() and awaited(task) is on for task, on in self._at
        )

    def stands(self, task: asyncio.Task[Any], on: asyncio.Future[Any]) -> None:
        """Add a task, and the future that it awaits, to the chain of single waits."""
        self._at.append((task, on))


NO_WAIT = BodyWait(None)


def wait_of(
    task: asyncio.Task[Any], work_of: Callable[[Wait], asyncio.Task[Any] | None]
) -> BodyWait:
    """Return the wait of `task`.

    `work_of` may return the task behind a `Wait`, through which the search continues. A wait for
    more than `MAX_TASKS_BEHIND_WAIT` is not followed.
    """
    wait = BodyWait(task)
    seen: set[asyncio.Future[Any]] = set()
    # Futures to follow, each with a flag: whether `task` waits for that one alone.
    stack: list[tuple[asyncio.Future[Any], bool]] = [(task, True)]
    while stack:
        future, alone = stack.pop()
        if future in seen or future.done():
            continue
        seen.add(future)
        coroutine = None
        if isinstance(future, asyncio.Task):
            each = cast("asyncio.Task[Any]", future)
            coroutine, on = each.get_coro(), awaited(each)
            if on is None or on.done():
                wait.goes_on = wait.goes_on or alone
                continue
            if alone:
                wait.stands(each, on)
        else:
            on = future
        if isinstance(on, Wait):
            work = work_of(on)
            behind: list[asyncio.Future[Any]] = [] if work is None else [work]
        else:
            wait.timers += _timers(coroutine)
            if _has_many(coroutine, on):  # else each end of these tasks would visit all of them
                continue
            behind = _behind(coroutine, on)
            if behind and alone:
                first = any(
                    where == WAIT and names.get("return_when") != asyncio.ALL_COMPLETED
                    for where, names in _stands(coroutine)
                )
                done = (each.done() for each in behind)
                if any(done) if first else all(done):
                    wait.goes_on = True
                    break
        stack += [(each, alone and len(behind) == 1) for each in behind]
    return wait


def _has_many(coroutine: object, future: asyncio.Future[Any]) -> bool:
    gathers = GATHERING is not None and isinstance(future, GATHERING)
    held = [getattr(future, "_children", None)] if gathers else _held(coroutine)
    return any(
        isinstance(each, (set, list, dict)) and len(cast("Any", each)) > MAX_TASKS_BEHIND_WAIT
        for each in held
    )


def _timers(coroutine: object) -> list[asyncio.TimerHandle]:
    """Return the timers in the frames of a coroutine, and those of the `with` blocks around."""
    found: list[object] = []
    for thing in chain(coroutine):
        for each in gc.get_referents(thing):
            # The frame's stack has the bound `__aexit__` of each block.
            if isinstance(each, MethodType):
                owner = type(each.__self__)
                names = HANDLES.get((owner.__module__, owner.__qualname__))
                if names is not None:
                    found.append(getattr(each.__self__, names, None))
            elif isinstance(each, asyncio.TimerHandle):
                found.append(each)
    for where, names in _stands(coroutine):
        found += [_find(names, path) for path in TIMERS.get(where, ())]
    return [each for each in found if isinstance(each, asyncio.TimerHandle)]


def postpone(timer: asyncio.TimerHandle, waits: Callable[[], bool]) -> bool:
    """Delay the callback of an expired timer until `waits()` is false; return whether that works.

    The timer can be cancelled until then.
    """
    handle: Any = timer
    loop = asyncio.get_running_loop()
    try:
        callback, args, context = handle._callback, handle._args, handle._context
        if handle.cancelled() or isinstance(callback, Postponed):
            return True
        handle._callback, handle._args = Postponed(loop, timer, callback, args, context, waits), ()
    except AttributeError:
        return False
    return True


class Postponed:
    """The callback of a postponed timer. Checks on each turn of the loop after it expired."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        timer: asyncio.TimerHandle,
        callback: Callable[..., object],
        args: Sequence[Any],
        context: Any,
        waits: Callable[[], bool],
    ) -> None:
        self._loop = loop
        self._timer = timer
        self._callback = callback
        self._args = args
        self._context = context
        self._waits = waits

    def __call__(self) -> None:
        if self._timer.cancelled():
            return
        if self._waits():
            self._loop.call_soon(self, context=self._context)
        else:
            self._callback(*self._args)


def _sleeps(future: asyncio.Future[Any]) -> bool:
    return isinstance(future, asyncio.Task) and is_sleeping(future.get_coro())


def gathering(wait: asyncio.Future[Any]) -> asyncio.Future[Any] | None:
    """Return the future of the `gather` that is the only receiver of `wait`, else None.

    Only through the task that `gather` creates for an awaitable.
    """
    task: Any = getattr(_only_callback(wait), "__self__", None)
    if not isinstance(task, asyncio.Task):
        return None
    coroutine: Any = cast("Any", task).get_coro()
    hears: Any = _only_callback(cast("Any", task))
    code = getattr(hears, "__code__", None)
    if getattr(coroutine, "__name__", "") != WRAPPER or code not in GATHERS:
        return None
    return _closed_over(hears, "outer")


def relays(wait: asyncio.Future[Any]) -> int:
    """Return the length of the chain of tasks that only pass the end of `wait` on."""
    count = 0
    while isinstance(task := getattr(_only_callback(wait), "__self__", None), asyncio.Task):
        count += 1
        wait = cast("asyncio.Task[Any]", task)
    return count


def _only_callback(future: object) -> object:
    callbacks: list[tuple[object, object]] = getattr(future, "_callbacks", None) or []
    return callbacks[0][0] if len(callbacks) == 1 else None


def _closed_over(function: Any, name: str) -> Any:
    """Return a variable of the function around `function`; None if it does not use that name."""
    names = function.__code__.co_freevars
    return function.__closure__[names.index(name)].cell_contents if name in names else None


def _held(coroutine: object) -> Iterator[object]:
    """Yield the futures that the innermost frame waits for, if `HOLDS` names that frame."""
    for where, names in _stands(coroutine):
        for path in HOLDS.get(where, ()):
            yield _find(names, path)


def _stands(coroutine: object) -> Iterator[tuple[tuple[str, str], Mapping[str, object]]]:
    """Yield the module, qualified name and variables of the innermost frame of a coroutine.

    If `PASSES` names the frame, also those of the frame around it.
    """
    things = list(chain(coroutine))
    for at, thing in reversed(list(enumerate(things))):
        frame = frame_of(thing)
        if frame is None:
            return
        where = (frame.f_globals.get("__name__", ""), frame.f_code.co_qualname)
        if where == AS_COMPLETED:
            # The set of futures is in the generator, which the loop over it holds.
            done = frame.f_locals.get("done")
            for each in gc.get_referents(*things[:at]):
                inner = getattr(each, "gi_frame", None)
                if inner is not None and inner.f_locals.get("done") is done:
                    yield where, inner.f_locals
        else:
            yield where, frame.f_locals
        if where not in PASSES:
            return


def _find(names: Mapping[str, object], path: Sequence[str]) -> object:
    """Return the value of a variable's attribute, by its path; None if it does not exist."""
    local, *attributes = path
    found = names.get(local)
    for attribute in attributes:
        found = getattr(found, attribute, None)
    return found


ANYIO = "anyio._backends._asyncio"
# Frames that wait for futures or tasks, by module and qualified name, with the paths to these: a
# local variable, then attributes. Other variables must not be followed: anyio's function for
# threads has the program's main task in one, and does not wait for it.
WAIT, WAIT_FOR = ("asyncio.tasks", "_wait"), ("asyncio.tasks", "wait_for")
AS_COMPLETED = ("asyncio.tasks", "as_completed.<locals>._wait_for_one")  # before Python 3.13
HOLDS: dict[tuple[str, str], list[list[str]]] = {
    WAIT: [["fs"]],
    WAIT_FOR: [["fut"]],  # before Python 3.12
    AS_COMPLETED: [["todo"]],
    ("asyncio.tasks", "_cancel_and_wait"): [["fut"]],
    ("asyncio.tasks", "_AsCompletedIterator._wait_for_one"): [["self", "_todo"]],
    ("asyncio.taskgroups", "TaskGroup.__aexit__"): [["self", "_tasks"]],
    ("asyncio.taskgroups", "TaskGroup._aexit"): [["self", "_tasks"]],  # from 3.12.8 and 3.13.1 on
    (ANYIO, "TaskGroup.__aexit__"): [["self", "_tasks"]],
    (ANYIO, "TaskGroup.start"): [["task"], ["handle", "_cancel_scope", "_host_task"]],  # 4.14 on
    ("anyio._core._tasks", "TaskHandle.wait"): [["self", "_cancel_scope", "_host_task"]],
    ("anyio._core._tasks", "TaskHandle.__await__"): [["self", "_cancel_scope", "_host_task"]],
}
# The paths to the timer that may end such a wait.
TIMERS: dict[tuple[str, str], list[list[str]]] = {
    WAIT: [["timeout_handle"]],
    WAIT_FOR: [["timeout"]],
    AS_COMPLETED: [["timeout_handle"]],
    ("asyncio.tasks", "_AsCompletedIterator._wait_for_one"): [["self", "_timeout_handle"]],
}
# Classes of `with` blocks that a timer ends, and the attribute with the timer.
HANDLES: dict[tuple[str, str], str] = {
    ("asyncio.timeouts", "Timeout"): "_timeout_handler",
    (ANYIO, "CancelScope"): "_timeout_handle",
}
MAX_TASKS_BEHIND_WAIT = 256  # the bound of a search for timers
# Frames that the frames of `HOLDS` may await.
PASSES = {("asyncio.queues", "Queue.get"), ("asyncio.locks", "Event.wait"), (ANYIO, "Event.wait")}


def _nested_code(function: object, name: str) -> set[CodeType]:
    """Return the code of the functions named `name` inside `function`."""
    constants = getattr(getattr(function, "__code__", None), "co_consts", ())
    return {each for each in constants if isinstance(each, CodeType) and each.co_name == name}


WAITER = "_fut_waiter"
GATHERING: type[asyncio.Future[Any]] | None = getattr(asyncio.tasks, "_GatheringFuture", None)
# The coroutine of the task that `gather` creates for an awaitable, and the callback of each task.
WRAPPER = "_wrap_awaitable"
GATHERS = _nested_code(asyncio.gather, "_done_callback")
# The callback of `shield` that refers to the inner future.
SHIELDS = _nested_code(asyncio.shield, "_outer_done_callback")


def _futures(values: Iterable[object]) -> list[asyncio.Future[Any]]:
    found: list[asyncio.Future[Any]] = []
    for value in values:
        if isinstance(value, asyncio.Future):
            found.append(cast("asyncio.Future[Any]", value))
        elif isinstance(value, (set, frozenset, list, tuple, dict)):
            many = cast("set[object]", value)
            found += (each for each in many if isinstance(each, asyncio.Future))
    return found


def ends_here(end: End) -> bool:
    """Return whether only other code of this process can end the wait.

    True for the locks, events and queues of asyncio and anyio. The code that releases them may
    itself wait for a server.
    """
    coroutine, future = end
    if isinstance(future, LocalFuture):
        return True
    stand = [
        (each.f_globals.get("__name__"), each.f_code.co_qualname) for each in frames(coroutine)
    ]
    if stand[-1:] == [("asyncio.locks", "Event.wait")] and stand[:-1] and stand[-2][0] == ANYIO:
        stand.pop()  # else anyio's wait for a socket would count too
    module, name = stand[-1] if stand else ("", "")
    return module in ("asyncio.locks", "asyncio.queues") or (
        module == ANYIO and name.startswith(("Lock.", "Semaphore.", "CapacityLimiter.", "Event."))
    )


def is_lock(end: End) -> bool:
    """Return whether the coroutine is acquiring a lock, a semaphore or a limiter."""
    return any(frame.f_code.co_name.startswith("acquire") for frame in frames(end[0]))


def goes_on(task: asyncio.Task[Any]) -> bool:
    """Return whether `task` runs, or may continue without other code of this process."""
    waiting = awaited(task)
    _, waits, ends = reach(task.get_coro(), waiting)
    return not (waits or ends) or not all(map(ends_here, ends))
