"""The interface between the engine and the journal of durable runs.

A node of a durable run has a `DurableScope`. `find_scope` makes it when the node is put. It knows
then whether the journal has the node's outcome: such a node skips the queue, the callbacks before
the body and the body, and runs its final callbacks. The engine reports to the scope what happens to
the node. Backends and tools get `DurableReply` and `Effect` from the scope. The package `store`
implements all of them.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import ContextVar
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, cast
from weakref import ref

from ._cancel import cancel_subtrees, is_shutting_down
from ._options import NodeLimits
from ._record import CURRENT, Callback, node_in, parent_here, record_of
from ._usage import charge_as, limits_around, payer

if TYPE_CHECKING:
    from ._node import Node
    from ._record import Record

__all__ = [
    "IS_ASIDE",
    "TEXT_GATE",
    "DurableAttempt",
    "DurableReply",
    "DurableRun",
    "DurableScope",
    "Effect",
    "PutOptions",
    "RunOpener",
    "TextGate",
    "attach_scope",
    "cancel_unrecorded",
    "charge_again",
    "charges_of",
    "find_scope",
    "is_commander_ending",
    "is_in_side_task",
    "put_options_of",
    "record_once",
    "scope_here",
    "scope_of",
    "shutdown_check_here",
]

T = TypeVar("T")


class TextGate(Protocol):
    """Decides whether others may see the text of replies."""

    @property
    def is_open(self) -> bool:
        """Whether they may."""
        ...


TEXT_GATE: ContextVar[TextGate | None] = ContextVar("anabranch.text_gate", default=None)
"""The gate of the calls around this, None if there is none. Nodes inherit it."""

IS_ASIDE: ContextVar[bool] = ContextVar("anabranch.is_aside", default=False)
"""Whether work here is not a part of its session's conversation. Journal entries have a mark then.

It is that of guards, and of agents that a tool or a hook calls. Nodes inherit it.
"""


class DurableRun(Protocol):
    """A run that this process owns."""

    async def drive(self, commander: Node[Any], *, timeout: float | None = None) -> None:
        """Put the unfinished nodes below `commander` and wait until they have ended.

        `timeout` is the timeout of the run's first job, in seconds.
        """

    def outcome(self) -> Any:
        """Return the run's result or raise its failure."""


RunOpener: TypeAlias = Callable[
    ["Node[Any]", Any, "str | None", "Mapping[str, Any] | None"],
    AbstractAsyncContextManager[DurableRun],
]
"""Starts or resumes the run of a job: what `run(job, journal=, run_id=, live=)` calls."""

# `store` sets this when it is imported, which every durable job does: the engine cannot import it.
run_opener: RunOpener | None = None


class DurableAttempt:
    """One attempt of a node in one execution of its run, and the attempt of its putter around it.

    It says what becomes of state that the attempt changed and the journal did not record, such as
    the memory of an agent.
    """

    __slots__ = ("end", "execution", "parent")

    def __init__(self, parent: DurableAttempt | None, execution: tuple[str, object]) -> None:
        self.parent: DurableAttempt | None = parent
        # The run's id, and an object that identifies the execution.
        self.execution: tuple[str, object] = execution
        # Why later executions do not run it again: it was "cut" short, or its result is "kept".
        self.end: Literal["", "cut", "kept"] = ""

    def gap_to(self, other: DurableAttempt) -> Literal["", "cut", "kept"]:
        """Return why a later execution that reaches this attempt may have skipped `other`.

        "" if it runs `other` again first.
        """
        if other.execution != self.execution:
            return "cut" if other.execution[0] == self.execution[0] else ""
        around, others = {*self._with_parents()}, other._with_parents()
        ends = {attempt.end for attempt in takewhile(lambda each: each not in around, others)}
        return "cut" if "cut" in ends else "kept" if "kept" in ends else ""

    def _with_parents(self) -> Iterator[DurableAttempt]:
        attempt: DurableAttempt | None = self
        while attempt is not None:
            yield attempt
            attempt = attempt.parent


class DurableScope(ABC):
    """A node of a durable run: its identity there, and what the journal has recorded of it.

    The engine calls the methods on the run's loop, in the order of the node's life: `enter` of the
    putter's scope, `recorded_attempts`, `wait_for_turn`, `begin_attempt`, `record_outcome`,
    `may_end`. A recorded node gets `schedule_replay` and `load_outcome` instead of an attempt.
    """

    # The journal has the outcome: `load_outcome` returns it, and no attempt is made.
    is_recorded: bool = False
    # Its final callbacks have run too, and do not run again.
    has_run_callbacks: bool = False
    # It was put outside of the run's tree. `record_root_outcome` is called for such nodes only.
    is_root: bool = False
    # The reason of a cancel that the journal has: no attempt is made.
    cancel_reason: str | None = None
    # Returns the node that put it, if that is not its parent; None if that node has been freed.
    putter: Callable[[], Node[Any] | None] | None = None

    @property
    @abstractmethod
    def identity(self) -> tuple[str, str]:
        """The run's id, and the node's identity in it, equal in all executions."""

    @property
    @abstractmethod
    def is_suspended(self) -> bool:
        """Whether the run is suspended, so that the node's end here does not end it in the run."""

    @property
    @abstractmethod
    def limits(self) -> NodeLimits | None:
        """The limits of the run. Each of its roots gets them."""

    @property
    @abstractmethod
    def counted_limits(self) -> Iterable[NodeLimits]:
        """The limits that counted the usage of earlier executions when this one began."""

    @abstractmethod
    def enter(
        self,
        node: Node[Any],
        key: str | None,
        loop: asyncio.AbstractEventLoop,
        is_root: bool,
        in_side_task: bool,
        may_retry: bool,
        in_callback: bool,
    ) -> DurableScope:
        """Return the scope of `node`, which this scope's node puts. Raises to refuse the node.

        `loop` is the running loop. `is_root`: the node is put outside of the run's tree, such as
        the next round of a loop. `in_side_task`: a task other than that of the putter's body puts
        it. The order of such puts differs from one execution to the next. `may_retry`: the node has
        a `retry`. `in_callback`: a final callback of the putter puts it.
        """

    def set_putter(self, putter: Node[Any]) -> None:
        """Remember the node that put it, which is not its parent."""
        self.putter = ref(putter)

    @abstractmethod
    def recorded_attempts(self, node: Node[Any], now: float) -> tuple[list[float], float]:
        """Return when the recorded attempts began, and the rest of the pause before the next one.

        In seconds of the loop's clock, which shows `now`. Charges the node with the usage of
        earlier executions that will not occur again.
        """

    @abstractmethod
    async def wait_for_turn(self, node: Node[Any]) -> None:
        """Wait until nodes have ended that ended before this one began in an earlier execution."""

    @abstractmethod
    def begin_attempt(self, node: Node[Any], timeout: float | None) -> float | None:
        """Record the start of an attempt. Return the rest of its timeout, in seconds.

        Raises the recorded failure if the journal has that this attempt was aborted.
        """

    @abstractmethod
    def schedule_replay(self, node: Node[Any], end: Callable[[Node[Any]], None]) -> None:
        """Call `end(node)` when the recorded outcome is next in order, on a later turn of the loop.

        Charges the node's recorded usage at once.
        """

    @abstractmethod
    def load_outcome(self, node: Node[Any]) -> Any:
        """Return the recorded result or raise the recorded failure; the node is ending."""

    @abstractmethod
    async def wait_for_recorded_cancel(self, node: Node[Any]) -> None:
        """Wait until a node whose cancel is recorded is cancelled again."""

    @abstractmethod
    def record_retry(self, node: Node[Any], delay: float) -> None:
        """Record that the attempt has ended and the next begins after `delay` seconds."""

    @abstractmethod
    def record_outcome(
        self,
        node: Node[Any],
        ending: Literal["completed", "failed", "cancelled"],
        result: Any,
        error: BaseException | None,
        *,
        leaving: bool,
    ) -> Any:
        """Record how the node ends, before its final callbacks. Return its result.

        A completed node gets the returned result. If this raises, the node fails with that.
        `leaving`: the commander is ending, so a cancel is not an outcome in the run.
        """

    @abstractmethod
    def may_end(self, node: Node[Any], end: Callable[[Node[Any]], None]) -> bool:
        """Return whether a recorded node may end now, before its final callbacks.

        If not, calls `end(node)` when it is next in order. No cancel reaches the node until then.
        """

    @abstractmethod
    def record_abandoned_wait(self, waiter: DurableScope | None) -> None:
        """Record that `waiter` stopped awaiting the node and continues, as after a timeout."""

    @abstractmethod
    def record_lost_failure(self, error: BaseException) -> None:
        """Remember a failure, of the node or a child, that no code has received when it ends."""

    @abstractmethod
    def record_abort(
        self, error: BaseException, *, timed_out: bool = False, awaited: bool = False
    ) -> None:
        """Record that this attempt fails with a child's failure or a timeout.

        `awaited`: something awaits the node. An interrupt suspends the run instead.
        """

    @abstractmethod
    def suspend(self, error: BaseException | None = None) -> asyncio.Future[None] | None:
        """Suspend the run, as its commander or `error` ends it; None if nothing is under way.

        A `ContextError` only waits in a run that it has stopped.

        If effects are under way, returns a future that is done after they had time to end. The run
        has cancelled its tree by then.
        """

    @abstractmethod
    def record_cancel(
        self, scopes: Sequence[DurableScope], reason: str, *, failed: DurableScope | None
    ) -> None:
        """Record the cancel of all these nodes as one entry; a failure at `failed` caused it."""

    @abstractmethod
    def record_root_outcome(
        self,
        node: Node[Any],
        ending: Literal["completed", "failed", "cancelled"],
        result: Any,
        error: BaseException | None,
    ) -> Any:
        """Record how a root ends after its final callbacks, which may change that.

        Returns and raises as `record_outcome`.
        """

    # --- for other packages, which work for the node

    @abstractmethod
    def current_attempt(self) -> DurableAttempt:
        """Return the node's attempt that runs now."""

    @abstractmethod
    def effect(
        self,
        name: str,
        inputs: Mapping[str, Any],
        *,
        harmless: bool = False,
        early: bool = False,
        key: str | None = None,
    ) -> Effect:
        """Return the node's effect with this name and these inputs.

        A `key` identifies it in the whole run, whatever its node and name. A `harmless` effect,
        such as a read, may be repeated when its outcome is unknown; its result holds for its
        attempt only. Unless `early`, the effect first waits for replies that are still streaming to
        the node: after a crash the model could reply differently.
        """

    @abstractmethod
    def unique_name(self, what: str) -> str:
        """Return a name that nothing else in the run has, equal in all executions."""

    @abstractmethod
    def has_reply(self, request: str, redact: Callable[[str], str]) -> bool:
        """Return whether the journal has the reply that `reply` would return next."""

    @abstractmethod
    def note(self, name: str, value: Any) -> None:
        """Record plain JSON with the node, for later executions, whatever the attempt."""

    @abstractmethod
    def notes(self, name: str) -> list[Any]:
        """Return the values that all executions recorded under this name, oldest first."""

    @abstractmethod
    def reply(self, request: str, redact: Callable[[str], str]) -> DurableReply:
        """Return the next reply to this request, recorded or not.

        From now on the journal applies `redact`, which removes keys, to all that it writes of the
        run.
        """


class DurableReply(ABC):
    """A model's reply that the journal has, or will have when it is complete."""

    # The reply that an earlier execution recorded; None if the model must be asked.
    recorded: str | None
    # The usage of earlier executions that ended before the reply did, by account.
    earlier_charges: Sequence[tuple[str, Any]] = ()
    # Whether the text must go to `publish_text` while it grows, for a reader of the journal.
    has_reader: bool = False

    @abstractmethod
    def publish_text(self, text: str) -> None:
        """Publish the next piece of the text before the reply is complete."""

    @abstractmethod
    def receiving(self) -> AbstractContextManager[None]:
        """Mark the reply as incomplete during the block, which reads it from the model."""

    @abstractmethod
    def record(self, text: str) -> None:
        """Record the complete reply. Called before any code sees that it is complete."""

    @abstractmethod
    def record_interruption(self, text: str, error: BaseException) -> None:
        """Record the part of the reply before `error`, and `error`.

        `GeneratorExit` and `CancelledError` mean that the reader left; that is not a failure.
        """

    @abstractmethod
    async def finish_replay(self) -> None:
        """End a recorded reply as it ended, after its last delta.

        Returns if it was complete and raises the failure if it failed. If its reader was cancelled,
        waits until this call is cancelled too.
        """


class Effect(ABC):
    """Something that a node does outside of the process, once in its run over all attempts."""

    @property
    @abstractmethod
    def key(self) -> str:
        """A unique name of this effect, equal in all attempts and executions."""

    @property
    @abstractmethod
    def forgotten(self) -> bool:
        """Whether an earlier execution had such effects, so that its process state is lost."""

    @abstractmethod
    def with_inputs(self, inputs: Mapping[str, Any]) -> Effect:
        """Return this effect with other inputs; itself if they are equal."""

    @abstractmethod
    async def ask(
        self,
        inputs: Mapping[str, Any],
        here: Callable[[Mapping[str, Any]], Awaitable[dict[str, Any] | None]],
        check: Callable[[Mapping[str, Any]], Any] | None = None,
    ) -> tuple[Mapping[str, Any], dict[str, Any]]:
        """Ask a person once in the run. Return the inputs of the question, and the answer.

        Takes the first answer, from another process or from `here`, which returns None if no person
        is there. Both are plain JSON. Raises what `here` raised, or `check` for the answered
        inputs, again in each execution; a resume of a run that failed by it asks again.
        """

    @abstractmethod
    async def do(
        self,
        work: Callable[[], Awaitable[Any]],
        *,
        again: bool = False,
        reconcile: Callable[[str], Awaitable[Any]] | None = None,
        horizon: float = 0.0,
        timeout: float | None = None,
        check: Callable[[Mapping[str, Any]], Any] | None = None,
        prepare: Callable[[], object] | None = None,
    ) -> Any:
        """Call `work` unless an execution recorded its result. Return text or an object.

        `prepare` is called before the effect begins. If it raises, the effect has not begun.

        `work` has `timeout` seconds; `TimeoutError` fails it after that. A failure is recorded, and
        raised again for the same attempt in each execution.

        An effect is in doubt from its start until its outcome is recorded. After a restart, one in
        doubt is repeated if it is harmless, or if the service ignores repetitions of its key
        (`again`). Otherwise `reconcile` is called, at the earliest `horizon` seconds after the
        effect began. It returns the effect's result, False if it did not happen, None if that is
        unknown. If it is unknown, a person is asked, and again while `check` raises `ValueError`.
        The value of `check` is recorded.
        """


class PutOptions(NamedTuple):
    """The options of a node's put, and its callbacks."""

    timeout: float | None
    retry: Any
    policy: Any
    priority: int
    on: Any
    limits: Any
    # Moments, such as "end" or "start", and callbacks, in the order of their run.
    callbacks: list[tuple[str, Callback]]


def put_options_of(node: Node[Any]) -> PutOptions:
    """Return the options and callbacks of `node`."""
    record = record_of(node)
    attempts = record.attempts
    callbacks: list[tuple[str, Callback]] = []
    if record.callback is not None:
        callbacks.append((record.callback_moment, record.callback))
    callbacks += record.later_callbacks(0)
    for moment in ("start", "retry", "commander_end"):
        callbacks += [(moment, each) for each in getattr(record, f"at_{moment}") or ()]
    return PutOptions(
        None if attempts is None else attempts.timeout,
        None if attempts is None else attempts.retry,
        record.policy,
        record.priority,
        None if record.remote is None else record.remote.place,
        record.limits,
        callbacks,
    )


def scope_of(node: Node[Any]) -> DurableScope | None:
    """Return the node's scope; None if it is in no durable run."""
    return record_of(node).scope


def scope_here(*, any_loop: bool = False) -> DurableScope | None:
    """Return the scope of the current node; None outside of a durable run.

    With `any_loop` the node may belong to another loop, as in a thread of `in_thread`.
    """
    node = payer() if any_loop else parent_here()
    return None if node is None else scope_around(record_of(node))


def scope_around(record: Record) -> DurableScope | None:
    """Return a node's scope; for a commander, the scope of its outer node."""
    scope: DurableScope | None = record.rare.scope
    if scope is not None or record.parent_node is not None or record.tree.outer is None:
        return scope
    return scope_around(record_of(record.tree.outer))


def attach_scope(node: Node[Any], scope: DurableScope, parent: Node[Any]) -> None:
    """Give a root `node`, which will be put below `parent`, its scope."""
    record_of(node).scope = scope
    record_of(parent).tree.has_scopes = True


def shutdown_check_here() -> Callable[[], bool]:
    """Return a function that says whether the commander around this code is ending."""
    return partial(is_shutting_down, record_of(cast("Node[Any]", payer())).tree)


def is_commander_ending(node: Node[Any]) -> bool:
    """Return whether the node's commander is ending, which decides nothing about a durable run."""
    return is_shutting_down(record_of(node).tree)


def find_scope(
    parent: Record, node: Node[Any], record: Record, key: str | None
) -> DurableScope | None:
    """Return the scope of a node that is put below `parent`; None outside of a durable run.

    The putter identifies the node, not the parent: a body or a callback puts in a reproducible
    order, but several of them may put below the same parent, in any order.
    """
    if record.is_special and record.scope is not None:
        return record.scope
    around = CURRENT.get(None)
    putter = None if around is None else around._node_record
    # In a commander's block, or in the context of another tree, the current node belongs to another
    # tree or is a commander. Search outwards for the nearest node of this tree.
    if putter is None or putter.tree is not parent.tree or putter.parent_node is None:
        putter = node_in(parent.tree)
    if putter is None or (scope := scope_around(putter)) is None:
        putter = parent
        if (scope := scope_around(parent)) is None:
            return None
    own = record.attempts if record.is_special else None
    loop = putter.tree.loop
    is_root = putter is not parent and scope_around(parent) is None
    in_side_task = not putter.is_closing and putter.task is not asyncio.current_task(loop)
    may_retry = own is not None and own.retry is not None
    if is_root and scope.limits is not None and record.limits is None:
        record.limits = scope.limits
    # Positional: every node passes here, and a call with keywords takes twice as long in CPython.
    entered = scope.enter(node, key, loop, is_root, in_side_task, may_retry, putter.is_closing)
    if putter is not parent and scope_around(putter) is scope:
        entered.set_putter(putter.node)
    return entered


def charges_of(node: Node[Any]) -> Mapping[str, Any]:
    """Return the amounts charged to `node` and the nodes below it so far, by account."""
    return record_of(node).charges or {}


async def record_once(name: str, work: Callable[[], Awaitable[T]]) -> T:
    """Return the recorded result of `work`; on the first execution, call it and record that.

        line = await record_once("input", read_line)

    For input from outside that changes nothing there, such as a typed line. The result must be
    plain JSON. The order of the calls with one name in a node identifies them. Outside of a durable
    run this only calls `work`.
    """
    if (scope := scope_here()) is None:
        return await work()

    async def boxed() -> dict[str, T]:
        return {"value": await work()}

    return (await scope.effect(name, {}, harmless=True).do(boxed))["value"]


def cancel_unrecorded(nodes: Iterable[Node[Any]], reason: str) -> None:
    """Cancel nodes without recording it, because each execution's code cancels them again."""
    cancel_subtrees(map(record_of, nodes), reason, is_recorded=False)


def is_in_side_task() -> bool:
    """Return whether this runs in another task than that of the current node's body."""
    node = parent_here()
    if node is None or (record := record_of(node)).is_closing:
        return False
    return record.task is not asyncio.current_task()


def charge_again(
    account: str, amount: Any, node: Node[Any] | None = None, own: Iterable[NodeLimits] = ()
) -> None:
    """Charge usage of an earlier execution, and count it in the budgets around.

    Also in `own`, limits that hold for the spender alone. Limits around the whole run counted it
    when the execution began. Listeners get an event of kind `charged_again`.
    """
    by = payer() if node is None else node
    charge_as("charged_again", account, amount, by)
    scope = None if by is None else scope_around(record_of(by))
    every = {id(each): each for each in (*limits_around(by), *own)}
    for limits in () if scope is None else scope.counted_limits:
        every.pop(id(limits), None)
    for limits in every.values():
        limits.count_again(account, amount)
