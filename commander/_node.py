"""The node: one piece of work in the tree, and all that a user may ask of it.

This file is the public face; what the engine keeps of a node is its `Record`.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator, Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Self, TypeVar, Unpack

from ._cancel import cancel_subtrees
from ._entry import enter
from ._options import HandlerOptions, JobOptions
from ._place import On
from ._policy import Policy, check_policy, check_retry, check_timeout
from ._record import DONE, Callback, Moment, NodeBase, NodeState, enclosing, record_of, require_loop
from ._report import type_name
from .private import running_loop
from .waiting import outcome, wait_for_end

if TYPE_CHECKING:
    from ._commander import Commander

__all__ = ["Node", "add_callback", "current_node", "require_kind"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
R = TypeVar("R")
N = TypeVar("N", bound="Node[Any]")


def current_node() -> Node[Any]:
    """Return the node in whose body, callback, task or thread this is called.

    In the block of `async with Commander()` that is the commander. It follows the context: it also
    works in tasks and threads that the body or the block started. Where the block's commander is
    done, or belongs to another loop than the one that runs here, it is the node in which that
    commander was entered. Outside a tree it raises `LookupError`.
    """
    for node in enclosing():
        record = record_of(node)
        if record.parent_node is not None or running_loop() in (None, record.tree.loop):
            return node
    raise LookupError("there is no current node: this code does not run in a tree")


class Node(NodeBase, Generic[T_co]):
    """One piece of work: a body, its children, callbacks and one result.

    Subclasses write `task`. A node starts when it is put into a tree (`put_job`,
    `call_handler`, or being awaited inside another node) and is done when its body has returned
    and all its children and final callbacks are done. Awaiting it gives its result.
    """

    policy: ClassVar[Policy] = "fail_fast"
    """What happens when a child fails and nobody awaits it; also an argument of `put_job`."""

    on: ClassVar[On | None] = None
    """Where a job's body runs, if not here: `"ray"` or a place; also an argument of `put_job`."""

    # A class may set `retry` and `timeout` too. They are not declared here, since a job may have
    # fields of these names.

    def __init__(self, name: str = "") -> None:
        """Make a node that goes by `name` in paths, events and logs, by default its class's."""
        if name:
            self._node_name = name

    def __init_subclass__(
        cls, *, internal: bool = False, name: str = "", queued: bool | None = None, **kwargs: Any
    ) -> None:
        options = {each: kwargs.pop(each) for each in CLASS_OPTIONS if each in kwargs}
        _refuse_unknown(cls, kwargs)
        super().__init_subclass__(**kwargs)
        for own in options.keys() & {*OVERRIDABLE}:
            setattr(cls, own, options[own])
        fields: dict[str, Any] = inspect.get_annotations(cls)
        for own in () if internal else (*cls.__dict__, *fields):
            reserved = own in PUBLIC_NAMES or own.startswith("_node_")
            if reserved or (own in fields and own in OVERRIDABLE):
                raise TypeError(
                    f"{cls.__name__}.{own} would hide the node's own {own!r}: rename it"
                )
        check_policy(cls.policy)
        _set_attempts(cls, options)
        cls._node_name = name or cls.__name__
        if queued is not None:
            cls._node_is_queued = queued
        attempts = cls._node_timeout is not None or cls._node_retry is not None
        cls._node_has_defaults = cls.policy == "fail_fast" and cls.on is None and not attempts
        cls._node_is_plain = cls._node_has_defaults and not cls._node_is_durable

    def task(self) -> Awaitable[T_co]:
        """Do the node's work: the body, which subclasses write as `async def task(self)`."""
        raise NotImplementedError(f"{type(self).__name__} has no body: write async def task(self)")

    # --- what it is

    @property
    def node_id(self) -> int:
        """A number unique under its commander, in the order of entry; 0 outside a tree."""
        return record_of(self).id

    @property
    def path(self) -> str:
        """Where the node stands: `Commander/Shout#1/upper#2`, the middle left out if it is long."""
        return record_of(self).path

    @property
    def state(self) -> NodeState:
        """`pending`, `running`, `joining`, then `completed`, `failed` or `cancelled`."""
        return record_of(self).state

    @property
    def parent(self) -> Node[Any] | None:
        """The node this one belongs to; None for a commander and outside a tree."""
        return record_of(self).parent_node

    @property
    def ancestors(self) -> Iterator[Node[Any]]:
        """The parent, its parent, and so on up to the commander."""
        node = self.parent
        while node is not None:
            yield node
            node = node.parent

    @property
    def children(self) -> tuple[Node[Any], ...]:
        """The unfinished children, in the order in which they were put."""
        return tuple(record.node for record in record_of(self).unfinished_children)

    @property
    def commander(self) -> Commander:
        """The commander that drives this tree; outside a tree, a `RuntimeError`."""
        record = record_of(self)
        if not record.tree:
            raise RuntimeError(f"{self!r} is not in a tree yet: put it, call it or await it first")
        return record.tree.commander

    @property
    def result(self) -> T_co | None:
        """What the body returned; None while there is nothing."""
        return record_of(self).result

    @property
    def error(self) -> BaseException | None:
        """What the node failed with, a `NodeCancelled` if it was cancelled, else None."""
        return record_of(self).error

    def __repr__(self) -> str:
        return repr(record_of(self))

    # --- callbacks

    def at_start(self, callback: Callback) -> Self:
        """Run `callback(node)` before the body, at each attempt. Returns the node."""
        record = record_of(self)
        if record.state in DONE:
            raise _too_late(self)
        if record.at_start is None:
            record.at_start = []
        record.at_start.append(callback)
        return self

    def at_retry(self, callback: Callback) -> Self:
        """Run `callback(node)` when the node is tried again, before the next attempt. Returns it.

        After the pause and before `at_start`; `node.error` is what the last attempt failed with,
        None if a `Restart` starts again what had succeeded. One that raises fails the attempt that
        begins. After the last attempt none runs.
        """
        record = record_of(self)
        if record.state in DONE:
            raise _too_late(self)
        if record.at_retry is None:
            record.at_retry = []
        record.at_retry.append(callback)
        return self

    def at_end(self, callback: Callback) -> Self:
        """Run `callback(node)` when the node has completed. Returns the node.

        Callbacks may be plain or async; they run in the node's context in the order in which they
        were added, before anyone who awaits the node is woken. One that raises fails the node.
        """
        return add_callback(self, "end", callback)

    def at_exception(self, callback: Callback) -> Self:
        """Run `callback(node)` when the node has failed; `recover` may be called in it."""
        return add_callback(self, "exception", callback)

    def at_terminate(self, callback: Callback) -> Self:
        """Run `callback(node)` when the node was cancelled."""
        return add_callback(self, "terminate", callback)

    def at_done(self, callback: Callback) -> Self:
        """Run `callback(node)` when the node is done, however it ended.

        Its children have ended by then, which a body that is cancelled cannot rely on: a cancel
        reaches it and its children in one turn, so an `await child` in it is left, with
        `CancelledError`, before the child has cleaned up. What reads what children leave behind
        belongs here.
        """
        return add_callback(self, "done", callback)

    def at_commander_end(self, callback: Callback) -> Self:
        """Run `callback(node)` when the commander closes; the node is kept until then.

        One that raises is logged. A node that never entered a tree never runs it.
        """
        record = record_of(self)
        if record.state in DONE:
            raise _too_late(self)
        if record.at_commander_end is None:
            record.at_commander_end = []
        record.at_commander_end.append(callback)
        return self

    def recover(self, value: Any) -> None:
        """End this failed node as completed, with `value`. Only inside `at_exception`."""
        record = record_of(self)
        require_loop(record, "recover() in the at_exception callback itself")
        if record.moment != "exception" or record.state != "joining":
            raise RuntimeError(f"recover() is for at_exception callbacks; {self!r} runs none now")
        if record.failure is None:
            raise RuntimeError(f"{self!r} has recovered already")
        record.failure = None
        record.result = value

    # --- the tree below

    def put_job(
        self, job: N, *, parent: Node[Any] | None = None, **options: Unpack[JobOptions]
    ) -> N:
        """Put `job` into the commander's queue, as a child of this node or of `parent`.

        Jobs start in the order in which they were put, those of higher `priority` first, on a
        later turn of the loop and when the commander's `max_concurrency` has room. `timeout` is in
        seconds, for each attempt, from the start of its body, for its whole subtree. `policy` says
        how the job treats failures among its own children. With `claim` the caller says that it
        will await the job, so that a failure waits for that instead of going to the parent's
        policy at once. With `on="ray"`, or a place such as `Ray(num_gpus=1)`, its body and all
        below it run there, and what it was made with is sent. `limits`, as `Limits(budget=...)` of
        `anabranch.backends`, hold for the job and all below it, beside those of the nodes above it.
        `key` tells it from others of its kind that are put here, in drawings (`Pack[a-17]`) and in
        the journal of a durable run. Returns the job.

        Raises `NodeClosed` if the parent takes no more children, `RuntimeError` if the job was
        started before or this is not the parent's loop (elsewhere, `commander.put_job_threadsafe`
        is safe), `TypeError` if it is no job.
        """
        if not isinstance(job, NodeBase) or not job._node_is_queued:  # pyright: ignore
            require_kind(job, "a Job")
        above = self if parent is None else parent
        # Without options a call with `**` would cost more than the two names.
        enter(above, job, **options) if options else enter(above, job)
        return job

    def call_handler(
        self, handler: N, *, parent: Node[Any] | None = None, **options: Unpack[HandlerOptions]
    ) -> N:
        """Start `handler` as a child of this node or of `parent`; its body runs from the next turn.

        It passes no queue and counts against no limit. The arguments and errors are those of
        `put_job`. Returns the handler.
        """
        if not isinstance(handler, NodeBase) or handler._node_is_queued:  # pyright: ignore
            require_kind(handler, "a handler")
        above = self if parent is None else parent
        if options:
            if "priority" in options or "on" in options:
                raise TypeError("priority= and on= are for jobs: a handler passes no queue")
            enter(above, handler, **options)
        else:
            enter(above, handler)
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

        call = ThreadCall(function, args, kwargs, abandon=abandon)
        call._node_is_work = self._node_is_work
        return self.call_handler(call)

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

        call = ProcessCall(function, args, kwargs, grace=grace)
        call._node_is_work = self._node_is_work
        return self.call_handler(call)

    def cancel(self, reason: str = "") -> None:
        """Cancel this node and everything below it.

        The whole subtree is marked and told deepest first, over several turns of the loop if it is
        large; no node below this one starts from now on. Bodies see
        `asyncio.CancelledError`; children added from now on are cancelled before they run; each
        node ends `cancelled` whatever its body then does. A second call, or one on a node that is
        done, does nothing: clean-up is not disturbed. Whoever awaits the node gets
        `NodeCancelled`. From another thread or loop it is a `RuntimeError`: there,
        `commander.cancel_threadsafe(node)` is safe.
        """
        record = record_of(self)
        require_loop(record, "commander.cancel_threadsafe(node)")
        try:
            text = "" if reason is None else str(reason)  # pyright: ignore[reportUnnecessaryComparison]
        except Exception:  # noqa: BLE001 - it is a user's, and no reason not to cancel
            text = type_name(reason)
        cancel_subtrees((record,), text)

    # --- awaiting

    def __await__(self) -> Generator[Any, None, T_co]:
        """Wait until the node is done; give its result or raise its failure.

        Starts the node as a child of the current node if nobody has. Raises `NodeCancelled` if it
        was cancelled. Cancelling the wait does not cancel the node, and ends before the node does,
        even if that is cancelled too: see `at_done`.
        """
        record = self._node_record
        if record is None or record.state not in DONE:
            yield from wait_for_end(self)
        return outcome(self)


def require_kind(
    given: object, wanted: Literal["a job or a handler", "a Job", "a handler"]
) -> None:
    """Raise a `TypeError` that names the remedy unless `given` is what is `wanted`."""
    if isinstance(given, NodeBase):
        kind = "a Job" if given._node_is_queued else "a handler"
        if wanted in (kind, "a job or a handler"):
            return
        other = "put_job" if given._node_is_queued else "call_handler"
        raise TypeError(f"{given!r} is not {wanted}: start it with {other}")
    if inspect.iscoroutine(given):
        raise TypeError(
            f"{given!r} is not {wanted} but a coroutine: await it, or put its work into a node,"
            " such as agent.call(...) or a @handler"
        )
    name = getattr(given, "__name__", None)
    raise TypeError(f"{given!r} is not {wanted}" + (f": make one, {name}(...)" if name else ""))


def _too_late(node: Node[Any]) -> RuntimeError:
    return RuntimeError(f"{node!r} is done: a callback added now would never run")


def _refuse_unknown(cls: type[Node[Any]], keywords: dict[str, Any]) -> None:
    """Refuse keywords of a class statement that no class takes, and name what was meant."""
    if not keywords:
        return
    bases = [base for base in cls.__mro__[1:] if "__init_subclass__" in base.__dict__]
    above = bases[bases.index(Node) + 1 :]
    if not {*above} <= {Generic, object}:
        return  # they may be meant for one of these
    known = {*CLASS_OPTIONS}
    for base in bases[: bases.index(Node) + 1]:
        method: Any = base.__dict__["__init_subclass__"]
        parameters = inspect.signature(method.__func__).parameters.values()
        known |= {each.name for each in parameters if each.kind is each.KEYWORD_ONLY}
    known -= INTERNAL
    keyword = next(iter(keywords))
    close = get_close_matches(keyword, known, n=1)
    meant = f"did you mean {close[0]}=?" if close else f"it takes {', '.join(sorted(known))}"
    raise TypeError(f"{cls.__name__} has no class keyword {keyword!r}: {meant}")


def _set_attempts(cls: type[Node[Any]], options: dict[str, Any]) -> None:
    """Take the `retry` and the `timeout` of a class: keywords, or attributes that are no fields."""
    for name, check in (("retry", check_retry), ("timeout", check_timeout)):
        found, value = name in options, options.get(name)
        for base in () if found else cls.__mro__:
            if f"_node_{name}" in base.__dict__:
                break  # it has been looked at, and is inherited
            if name in base.__dict__:
                value = base.__dict__[name]
                field = inspect.get_annotations(base).get(name, ClassVar)
                # A method, a property and a field of this name are the user's own.
                found = "ClassVar" in str(field) and not hasattr(value, "__get__")
                break
        if found:
            try:
                check(value)
            except TypeError as error:
                raise TypeError(f"{cls.__name__}: {error}") from None
            setattr(cls, f"_node_{name}", value)


def add_callback(node: N, moment: Moment, callback: Callback) -> N:
    """Let `callback` be called at `moment`, one of the final ones. Returns the node."""
    record = node._node_record or record_of(node)
    if record.state in DONE:
        raise _too_late(node)
    if record.callback is None:
        record.callback, record.callback_moment = callback, moment
    elif record.more_callbacks is None:
        record.more_callbacks = [moment, callback]
    else:
        record.more_callbacks += (moment, callback)
    return node


# What a subclass may set, but not declare as a field.
OVERRIDABLE = ("task", "policy", "on")
# What a class statement may have as a keyword, or its body as an attribute.
CLASS_OPTIONS = ("policy", "on", "retry", "timeout")
# Keywords of the package's own classes.
INTERNAL = {"internal", "queued"}

PUBLIC_NAMES = frozenset(
    name for name in vars(Node) if not name.startswith("_") and name not in OVERRIDABLE
)
