"""The node: one piece of work in the tree, and all that a user may ask of it.

This file is the public face. `_record.py` holds what the engine keeps of a node, `_life.py` brings
it from its start to its end, `_cancel.py` ends it early, `_failure.py` says where failures go.
"""

from __future__ import annotations

import asyncio
import inspect
from asyncio import get_running_loop
from collections.abc import Awaitable, Callable, Generator, Iterator
from operator import index
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from ._cancel import cancel_subtrees
from ._entry import enter
from ._failure import child_failed, take_claimed
from ._life import spawn
from ._loop import require_loop
from ._path import node_path
from ._place import On, send
from ._policy import Policy, Quorum, Restart, Retry, check_policy
from ._record import CURRENT, DONE, Callback, Moment, NodeState, Record, share_layout
from ._report import type_name
from ._waits import begin_wait
from .errors import NodeCancelled

if TYPE_CHECKING:
    from ._commander import Commander

__all__ = ["Node", "current_node", "outcome"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
R = TypeVar("R")
N = TypeVar("N", bound="Node[Any]")


def current_node() -> Node[Any]:
    """Return the node in whose body, callback, task or thread this is called.

    It follows the context: it also works in tasks and threads that the body started. Outside a
    tree it raises `LookupError`.
    """
    try:
        return CURRENT.get()
    except LookupError:
        raise LookupError("there is no current node: this code does not run in a tree") from None


class Node(Record, Generic[T_co]):
    """One piece of work: a body, its children, callbacks and one result.

    Subclasses write `task`. A node starts when it is put into a tree (`put_job`,
    `call_handler`, or being awaited inside another node) and is done when its body has returned
    and all its children and final callbacks are done. Awaiting it gives its result.
    """

    policy: ClassVar[Policy] = "fail_fast"
    """What happens when a child fails and nobody awaits it; also an argument of `put_job`."""

    on: ClassVar[On | None] = None
    """Where a job's body runs, if not here: `"ray"` or a place; also an argument of `put_job`."""

    def __init__(self, name: str = "") -> None:
        """Make a node that goes by `name` in paths, events and logs, by default its class's."""
        if name:
            self._n_name = name

    def __init_subclass__(cls, *, internal: bool = False, name: str = "", **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not internal:
            _refuse_hidden_names(cls)
        check_policy(cls.policy)
        cls._n_policy = cls.policy
        cls._n_special = isinstance(cls.policy, Quorum) or cls.on is not None
        cls._n_name = name or cls.__name__
        share_layout(cls)

    def task(self) -> Awaitable[T_co]:
        """Do the node's work: the body, which subclasses write as `async def task(self)`."""
        raise NotImplementedError(f"{type(self).__name__} has no body: write async def task(self)")

    # --- what it is

    @property
    def node_id(self) -> int:
        """A number unique under its commander, in the order of entry; 0 outside a tree."""
        return self._n_id

    @property
    def path(self) -> str:
        """Where the node stands: `Commander/Shout#1/upper#2`, the middle left out if it is long."""
        return node_path(self)

    @property
    def state(self) -> NodeState:
        """`pending`, `running`, `joining`, then `completed`, `failed` or `cancelled`."""
        return self._n_state

    @property
    def parent(self) -> Node[Any] | None:
        """The node this one belongs to; None for a commander and outside a tree."""
        return self._n_parent

    @property
    def ancestors(self) -> Iterator[Node[Any]]:
        """The parent, its parent, and so on up to the commander."""
        node = self._n_parent
        while node is not None:
            yield node
            node = node._n_parent

    @property
    def children(self) -> tuple[Node[Any], ...]:
        """The unfinished children, in the order in which they were put."""
        return tuple(self._n_children.values()) if self._n_children else ()

    @property
    def commander(self) -> Commander:
        """The commander that drives this tree; outside a tree, a `RuntimeError`."""
        if not self._n_commander:
            raise RuntimeError(f"{self!r} is not in a tree yet: put it, call it or await it first")
        return self._n_commander

    @property
    def result(self) -> T_co | None:
        """What the body returned; None while there is nothing."""
        return self._n_result

    @property
    def error(self) -> BaseException | None:
        """What the node failed with, a `NodeCancelled` if it was cancelled, else None."""
        if self._n_error is not None or self._n_cancel is None:
            return self._n_error
        if self._n_closing or self._n_state == "cancelled":
            return NodeCancelled(self.path, self._n_cancel)
        return None

    def __repr__(self) -> str:
        number = f"#{self._n_id}" if self._n_id else ""
        return f"<{self._n_name}{number} {self._n_state}>"

    # --- callbacks

    def at_start(self, callback: Callback) -> Self:
        """Run `callback(node)` before the body, at each attempt. Returns the node."""
        self._n_special = True
        if self._n_state in DONE:
            _refuse_callback(self)
        if self._n_starts is None:
            self._n_starts = []
        self._n_starts.append(callback)
        return self

    def at_end(self, callback: Callback) -> Self:
        """Run `callback(node)` when the node has completed. Returns the node.

        Callbacks may be plain or async; they run in the node's context in the order in which they
        were added, before anyone who awaits the node is woken. One that raises fails the node.
        """
        return _add_callback(self, "end", callback)

    def at_exception(self, callback: Callback) -> Self:
        """Run `callback(node)` when the node has failed; `recover` may be called in it."""
        return _add_callback(self, "exception", callback)

    def at_terminate(self, callback: Callback) -> Self:
        """Run `callback(node)` when the node was cancelled."""
        return _add_callback(self, "terminate", callback)

    def at_done(self, callback: Callback) -> Self:
        """Run `callback(node)` when the node is done, however it ended."""
        return _add_callback(self, "done", callback)

    def at_commander_end(self, callback: Callback) -> Self:
        """Run `callback(node)` when the commander closes; the node is kept until then.

        One that raises is logged. A node that never entered a tree never runs it.
        """
        if self._n_state in DONE:
            _refuse_callback(self)
        if self._n_after is None:
            self._n_after = []
        self._n_after.append(("commander_end", callback))
        return self

    def recover(self, value: Any) -> None:
        """End this failed node as completed, with `value`. Only inside `at_exception`."""
        require_loop(self, "recover() in the at_exception callback itself")
        if self._n_moment != "exception" or self._n_state != "joining":
            raise RuntimeError(f"recover() is for at_exception callbacks; {self!r} runs none now")
        if self._n_error is None:
            raise RuntimeError(f"{self!r} has recovered already")
        self._n_error = None
        self._n_result = value

    # --- the tree below

    def put_job(
        self,
        job: N,
        *,
        parent: Node[Any] | None = None,
        priority: int = 0,
        timeout: float | None = None,
        retry: Retry | Restart | None = None,
        policy: Policy | None = None,
        claim: bool = False,
        on: On | None = None,
    ) -> N:
        """Put `job` into the commander's queue, as a child of this node or of `parent`.

        Jobs start in the order in which they were put, those of higher `priority` first, on a
        later turn of the loop and when the commander's `max_concurrency` has room. `timeout` is in
        seconds, for each attempt, from the start of its body, for its whole subtree. `policy` says
        how the job treats failures among its own children. With `claim` the caller says that it
        will await the job, so that a failure waits for that instead of going to the parent's
        policy at once. With `on="ray"`, or a place such as `Ray(num_gpus=1)`, its body and all
        below it run there, and what it was made with is sent. Returns the job.

        Raises `NodeClosed` if the parent takes no more children, `RuntimeError` if the job was
        started before or this is not the parent's loop (elsewhere, `commander.put_job_threadsafe`
        is safe), `TypeError` if it is no job.
        """
        if not is_node(job) or not job._n_queued:
            refuse_kind(job, "a Job")
        if priority != 0:
            priority = index(priority)
        if on is not None or job._n_special:
            send(job, on)
        enter(self if parent is None else parent, job, timeout, retry, policy, claim)
        if job._n_cancel is None:
            job._n_commander._n_queue.put(job, priority)
        else:
            spawn(job)  # it ends without its body, so it needs no turn
        return job

    def call_handler(
        self,
        handler: N,
        *,
        parent: Node[Any] | None = None,
        timeout: float | None = None,
        retry: Retry | Restart | None = None,
        policy: Policy | None = None,
        claim: bool = False,
    ) -> N:
        """Start `handler` as a child of this node or of `parent`; its body runs from the next turn.

        It passes no queue and counts against no limit. The arguments and errors are those of
        `put_job`. Returns the handler.
        """
        if not is_node(handler) or handler._n_queued:
            refuse_kind(handler, "a handler")
        enter(self if parent is None else parent, handler, timeout, retry, policy, claim)
        spawn(handler)
        return handler

    def in_thread(
        self, function: Callable[..., R], *args: Any, abandon: bool = False, **kwargs: Any
    ) -> Node[R]:
        """Run a blocking function in a worker thread, as a child of this node; await the result.

        The function sees this node's context. Cancelled, the child is not done before the function
        has returned: long work calls `check_cancelled()` now and then. With `abandon` nobody waits
        for a cancelled function; it runs on in its thread, and what it returns is dropped.
        """
        from ._blocking import ThreadCall

        return self.call_handler(ThreadCall(function, args, kwargs, abandon=abandon))

    def in_process(
        self, function: Callable[..., R], *args: Any, grace: float = 5.0, **kwargs: Any
    ) -> Node[R]:
        """Run a function in a new process, as a child of this node; await the result.

        The function must be importable, and it, its arguments and its result picklable. Cancelled,
        the process is told by SIGTERM, which raises `CancelledError` where the function stands;
        after `grace` seconds it is killed with all that it started. A process that dies without a
        result fails the node with `WorkerLost`. What the function prints goes to standard error.
        """
        from ._blocking import ProcessCall

        return self.call_handler(ProcessCall(function, args, kwargs, grace=grace))

    def cancel(self, reason: str = "") -> None:
        """Cancel this node and everything below it.

        The whole subtree is marked at once and told deepest first. Bodies see
        `asyncio.CancelledError`; children added from now on are cancelled before they run; each
        node ends `cancelled` whatever its body then does. A second call, or one on a node that is
        done, does nothing: clean-up is not disturbed. Whoever awaits the node gets
        `NodeCancelled`. From another thread or loop it is a `RuntimeError`: there,
        `commander.cancel_threadsafe(node)` is safe.
        """
        require_loop(self, "commander.cancel_threadsafe(node)")
        cancel_subtrees((self,), reason if type(reason) is str else _as_text(reason))

    # --- awaiting

    def __await__(self) -> Generator[Any, None, T_co]:
        """Wait until the node is done; give its result or raise its failure.

        Starts the node as a child of the current node if nobody has. Raises `NodeCancelled` if it
        was cancelled. Cancelling the wait does not cancel the node.
        """
        if self._n_state not in DONE:
            yield from _wait(self)
        return outcome(self)


def _as_text(reason: object) -> str:
    # None would mean that the node is not cancelled.
    try:
        return "" if reason is None else str(reason)
    except Exception:  # noqa: BLE001 - it is a user's, and no reason not to cancel
        return type_name(reason)


def outcome(node: Node[T]) -> T:
    """Return the result of a node that is done, or raise its failure."""
    if node._n_state == "completed":
        return node._n_result
    error = node.error
    assert error is not None
    if node._n_state == "failed":
        node._n_takers += 1
        take_claimed(node)
    else:
        _prefer_own_cancellation()
    # The class's own method: a user's exception may have another one.
    raise BaseException.with_traceback(error, node._n_traceback)


def _prefer_own_cancellation() -> None:
    # Whoever is being cancelled sees that alone, not what it did to the nodes it waited for (T5).
    waiter = CURRENT.get(None)
    if waiter is not None and waiter._n_cancel is not None and not waiter._n_closing:
        raise asyncio.CancelledError


def _wait(node: Node[Any]) -> Generator[Any, None, None]:
    waiter = CURRENT.get(None)
    if node._n_parent is None and not node._n_commander:
        _start_awaited(node, waiter)
    loop = get_running_loop()
    if node._n_commander._n_loop is not loop:
        raise RuntimeError(f"{node!r} belongs to another loop: await it there")
    if waiter is not None:
        _refuse_circle(node, waiter)
    wait = begin_wait(node)
    _add_waiter(node, wait)
    try:
        yield from wait
    except asyncio.CancelledError:
        if wait.done() and not wait.cancelled():
            lose_taker(node)  # the node ended in the very turn in which this wait was cancelled
        raise
    finally:
        del wait.node  # the loop keeps the future until it has gone on to the next step


def add_waiter(node: Node[Any]) -> asyncio.Future[None]:
    """Return a future that is done when the node is; it counts as somebody who awaits it."""
    future: asyncio.Future[None] = node._n_commander._n_loop.create_future()
    _add_waiter(node, future)
    return future


def _add_waiter(node: Node[Any], future: asyncio.Future[None]) -> None:
    if node._n_waiters is None:
        node._n_waiters = [future]
    else:
        node._n_waiters.append(future)


def lose_taker(node: Node[Any]) -> None:
    """Take back that somebody has had the node's failure; left with nobody, it goes its way."""
    node._n_takers -= 1
    if node._n_state == "failed" and not node._n_takers and node._n_parent is not None:
        child_failed(node._n_parent, node)


def _start_awaited(node: Node[Any], waiter: Node[Any] | None) -> None:
    if waiter is node:
        raise RuntimeError(f"{node!r} awaits itself")
    if waiter is None:
        raise RuntimeError(
            f"{node!r} was awaited outside a tree: use 'await commander.run(...)' or run(...)"
        )
    if node._n_queued:
        waiter.put_job(node, claim=True)
    else:
        waiter.call_handler(node, claim=True)


def _refuse_circle(node: Node[Any], waiter: Node[Any]) -> None:
    # Ids grow from parent to child, so the walk stops at the first ancestor older than `node`.
    # A commander is nobody's to await from within: it has id 0 and ends every walk.
    ancestor: Node[Any] | None = waiter
    while ancestor is not None and ancestor._n_id >= node._n_id:
        if ancestor is node:
            what = "itself" if node is waiter else "its ancestor"
            raise RuntimeError(f"{waiter!r} awaits {what} {node!r}: neither could ever end")
        ancestor = ancestor._n_parent


def is_node(given: object) -> bool:
    """Say whether `given` can be put into a tree."""
    return isinstance(given, Record)


def refuse_kind(given: object, wanted: str) -> None:
    """Raise a `TypeError`: `given` is not what is `wanted`."""
    if isinstance(given, Record):
        other = "put_job" if given._n_queued else "call_handler"
        raise TypeError(f"{given!r} is not {wanted}: start it with {other}")
    name = getattr(given, "__name__", None)
    raise TypeError(f"{given!r} is not {wanted}" + (f": make one, {name}(...)" if name else ""))


def _refuse_callback(node: Node[Any]) -> None:
    raise RuntimeError(f"{node!r} is done: a callback added now would never run")


def _add_callback(node: N, moment: Moment, callback: Callback) -> N:
    if node._n_state in DONE:
        _refuse_callback(node)
    if node._n_callbacks is None:
        node._n_callbacks = [moment, callback]
    else:
        node._n_callbacks += (moment, callback)
    return node


# What a subclass may set, but not declare as a field.
OVERRIDABLE = ("task", "policy", "on")

PUBLIC_NAMES = frozenset(
    name for name in vars(Node) if not name.startswith("_") and name not in OVERRIDABLE
)


def _refuse_hidden_names(cls: type[Node[Any]]) -> None:
    fields: dict[str, Any] = inspect.get_annotations(cls)
    for name in (*cls.__dict__, *fields):
        reserved = name in PUBLIC_NAMES or name.startswith("_n_")
        if reserved or (name in fields and name in OVERRIDABLE):
            raise TypeError(f"{cls.__name__}.{name} would hide the node's own {name!r}: rename it")
