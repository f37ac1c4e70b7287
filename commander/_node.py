"""`Node`: one piece of work in the tree; its public methods. The engine's state is in `Record`."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator, Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Self, TypeVar, Unpack

from ._cancel import cancel_subtrees
from ._entry import enter, enter_with
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
    """Return the node whose body or callback calls this, also from its tasks and threads.

        current_node().put_job(Ask("..."))

    In the block of `async with Commander()` that is the commander. The node is found by the
    context, so this works in all tasks and threads that the body or the block started. If the
    block's commander is done, or belongs to another loop than the running one, returns the node
    whose body entered that commander. Raises `LookupError` outside of a tree.
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
    and all its children and final callbacks are done. Awaiting it returns its result.
    """

    policy: ClassVar[Policy] = "fail_fast"
    """What happens when a child fails and nobody awaits it; also an argument of `put_job`."""

    on: ClassVar[On | None] = None
    """Where a job's body runs, if not here: `"ray"` or a place; also an argument of `put_job`."""

    # A class may set `retry` and `timeout` too. They are not declared here, since a job may have
    # fields of these names.

    def __init__(self, name: str = "") -> None:
        """Create a node; `name` is for paths, events and logs, by default the class's name."""
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

    # --- state

    @property
    def node_id(self) -> int:
        """A number unique under its commander, in the order of entry; 0 outside a tree."""
        return record_of(self).id

    @property
    def path(self) -> str:
        """The labels from the root: `Commander/Shout#1/upper#2`. A long path is shortened."""
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
        """The unfinished children, in the order of their puts."""
        return tuple(record.node for record in record_of(self).unfinished_children)

    @property
    def commander(self) -> Commander:
        """The commander of this tree. Raises `RuntimeError` outside of a tree."""
        record = record_of(self)
        if not record.tree:
            raise RuntimeError(f"{self!r} is not in a tree yet: put it, call it or await it first")
        return record.tree.commander

    @property
    def result(self) -> T_co | None:
        """The value that the body returned; None before that."""
        return record_of(self).result

    @property
    def error(self) -> BaseException | None:
        """The failure, a `NodeCancelled` if it was cancelled, else None."""
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
        """Run `callback(node)` before each further attempt. Returns the node.

        After the pause and before `at_start`. `node.error` is the failure of the last attempt, None
        if a `Restart` restarts a node that succeeded. If the callback raises, the attempt fails.
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

            job.at_end(lambda job: print(job.result))

        Callbacks may be plain or async. They run in the node's context, in the order of their
        addition, before awaiters of the node continue. If one raises, the node fails.
        """
        return add_callback(self, "end", callback)

    def at_exception(self, callback: Callback) -> Self:
        """Run `callback(node)` when the node has failed. It may call `node.recover`."""
        return add_callback(self, "exception", callback)

    def at_terminate(self, callback: Callback) -> Self:
        """Run `callback(node)` when the node was cancelled."""
        return add_callback(self, "terminate", callback)

    def at_done(self, callback: Callback) -> Self:
        """Run `callback(node)` when the node is done, however it ended.

        All children have ended by then. A cancelled body cannot rely on that: a cancel reaches it
        and its children in the same turn, so its `await child` raises `CancelledError` before the
        child has cleaned up. Code that needs the children's clean-up belongs here.
        """
        return add_callback(self, "done", callback)

    def at_commander_end(self, callback: Callback) -> Self:
        """Run `callback(node)` when the commander closes. The node stays in memory until then.

        Errors are logged. The callback of a node that never entered a tree does not run.
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
        """Put `job` into the commander's queue, as a child of this node or of `parent`. Return it.

            job = node.put_job(Ask("..."), timeout=60, retry=Retry(attempts=3))
            answer = await job

        Jobs start on a later turn of the loop, as soon as `max_concurrency` allows it: those of
        higher `priority` first, then in the order of the puts.

        - `timeout`: seconds for each attempt, from the start of its body to the end of its subtree
        - `retry`: a `Retry` or a `Restart`
        - `policy`: how the job treats failures of its children
        - `claim`: the caller will await the job, so a failure does not go to the parent's policy
          before the join
        - `on`: a place, such as `"ray"` or `Ray(num_gpus=1)`, where the body and all nodes below it
          run; the job's attributes are sent there
        - `limits`: such as `Limits(budget=...)`, for the job and all nodes below it, in addition to
          the limits of the nodes above
        - `context`: a value that all code of the job and below it can read, see `Context`
        - `key`: distinguishes equal jobs, in drawings (`Pack[a-17]`) and in a durable run

        Raises `NodeClosed` if the parent takes no more children, `RuntimeError` if the job was
        started before or this is not the parent's loop (use `commander.put_job_threadsafe` there),
        `TypeError` if it is not a job.
        """
        if not isinstance(job, NodeBase) or not job._node_is_queued:  # pyright: ignore
            require_kind(job, "a Job")
        above = self if parent is None else parent
        if not options:  # a call with `**` would cost more than the two names
            enter(above, job)
        elif "context" in options:
            enter_with(above, job, options)
        else:
            enter(above, job, **options)  # pyright: ignore[reportCallIssue]
        return job

    def call_handler(
        self, handler: N, *, parent: Node[Any] | None = None, **options: Unpack[HandlerOptions]
    ) -> N:
        """Start `handler` as a child of this node or of `parent`. Return it.

        Its body starts on the next turn of the loop, without a queue or a slot. Takes the options
        of `put_job`, except `priority` and `on`, and raises the same errors.
        """
        if not isinstance(handler, NodeBase) or handler._node_is_queued:  # pyright: ignore
            require_kind(handler, "a handler")
        above = self if parent is None else parent
        if options:
            if "priority" in options or "on" in options:
                raise TypeError("a handler takes no priority= and on=: use a job")
            if "context" in options:
                enter_with(above, handler, options)
            else:
                enter(above, handler, **options)  # pyright: ignore[reportCallIssue]
        else:
            enter(above, handler)
        return handler

    def in_thread(
        self, function: Callable[..., R], *args: Any, abandon: bool = False, **kwargs: Any
    ) -> Node[R]:
        """Run a blocking function in a worker thread, as a child of this node.

            text = await node.in_thread(path.read_text)

        The function sees this node's context. A cancelled child is done only after the function has
        returned, so long work should call `check_cancelled()`. With `abandon`, the child does not
        wait for a cancelled function, which continues in its thread; its result is dropped.
        """
        from ._blocking import ThreadCall

        call = ThreadCall(function, args, kwargs, abandon=abandon)
        call._node_is_work = self._node_is_work
        return self.call_handler(call)

    def in_process(
        self, function: Callable[..., R], *args: Any, grace: float = 5.0, **kwargs: Any
    ) -> Node[R]:
        """Run a function in a new process, as a child of this node.

        The function must be importable, and its arguments and result picklable. A cancel sends
        SIGTERM to the process, which raises `CancelledError` in the function. After `grace` seconds
        the process is killed, with all processes that it started. If it dies without a result, the
        node fails with `WorkerLost`. Output of the function goes to standard error.
        """
        from ._blocking import ProcessCall

        call = ProcessCall(function, args, kwargs, grace=grace)
        call._node_is_work = self._node_is_work
        return self.call_handler(call)

    def cancel(self, reason: str = "") -> None:
        """Cancel this node and all nodes below it.

        The tasks are cancelled children first, over several turns of the loop if there are many.
        From now on no node below this one starts. Bodies get `asyncio.CancelledError`. Each node
        ends as `cancelled`, whatever its body does then. A second call, or one on a node that is
        done, does nothing, so it cannot disturb a clean-up. Awaiters of the node get
        `NodeCancelled`. Raises `RuntimeError` in another thread or loop; use
        `commander.cancel_threadsafe(node)` there.
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
        """Wait until the node is done; return its result or raise its failure.

        Starts the node as a child of the current node if it has not started. Raises `NodeCancelled`
        if it was cancelled. Cancelling the wait does not cancel the node. If both are cancelled,
        the wait ends before the node: see `at_done`.
        """
        record = self._node_record
        if record is None or record.state not in DONE:
            yield from wait_for_end(self)
        return outcome(self)


def require_kind(
    given: object, wanted: Literal["a job or a handler", "a Job", "a handler"]
) -> None:
    """Raise a `TypeError` with the remedy unless `given` is of the `wanted` kind."""
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
    """Raise `TypeError` for unknown keywords of a class statement; suggest the nearest."""
    if not keywords:
        return
    bases = [base for base in cls.__mro__[1:] if "__init_subclass__" in base.__dict__]
    above = bases[bases.index(Node) + 1 :]
    if not {*above} <= {Generic, object}:
        return  # another base class may take them
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
    """Set a class's `retry` and `timeout` from keywords, or from attributes (not fields)."""
    for name, check in (("retry", check_retry), ("timeout", check_timeout)):
        found, value = name in options, options.get(name)
        for base in () if found else cls.__mro__:
            if f"_node_{name}" in base.__dict__:
                break  # the base class was processed; its setting is inherited
            if name in base.__dict__:
                value = base.__dict__[name]
                field = inspect.get_annotations(base).get(name, ClassVar)
                # A method, a property or a field of this name has another meaning.
                found = "ClassVar" in str(field) and not hasattr(value, "__get__")
                break
        if found:
            try:
                check(value)
            except TypeError as error:
                raise TypeError(f"{cls.__name__}: {error}") from None
            setattr(cls, f"_node_{name}", value)


def add_callback(node: N, moment: Moment, callback: Callback) -> N:
    """Add a final callback for `moment`. Returns the node."""
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


# Names that a subclass may set, but not declare as a field.
OVERRIDABLE = ("task", "policy", "on")
# The options that a class may set, as keywords or as attributes.
CLASS_OPTIONS = ("policy", "on", "retry", "timeout")
# Keywords of Anabranch's own classes.
INTERNAL = {"internal", "queued"}

PUBLIC_NAMES = frozenset(
    name for name in vars(Node) if not name.startswith("_") and name not in OVERRIDABLE
)
