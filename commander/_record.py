"""What the engine keeps of each node: its `Record`.

The engine's modules take and pass records. A node has one attribute for its record, so nothing of
the engine's meets the names of a user's subclass. While a node is in the tree its record leads to
it; from its end on it does not, or the two would be a circle that only the garbage collector frees.
"""

from __future__ import annotations

import asyncio
from asyncio import current_task
from collections.abc import Awaitable, Callable, Iterator
from contextvars import Context, ContextVar, copy_context
from itertools import islice
from operator import attrgetter
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Literal,
    NamedTuple,
    TypeAlias,
    TypeVar,
    cast,
)

from ._policy import Policy, Restart, Retry
from .errors import NodeCancelled
from .private import running_loop

if TYPE_CHECKING:
    from ._commander import Tree
    from ._event import Origin
    from ._node import Node
    from ._options import NodeLimits
    from ._place import RemoteBody
    from ._slot import Slot
    from .durable import DurableScope
    from .pattern import Pattern

__all__ = [
    "CURRENT",
    "DONE",
    "RARE_DEFAULTS",
    "Actor",
    "Attempts",
    "Callback",
    "Moment",
    "NodeBase",
    "NodeState",
    "RareValues",
    "Record",
    "enclosing",
    "node_in",
    "parent_here",
    "record_of",
    "require_loop",
]

T = TypeVar("T")

NodeState: TypeAlias = Literal["pending", "running", "joining", "completed", "failed", "cancelled"]
Moment: TypeAlias = Literal["retry", "end", "exception", "terminate", "done"]
Callback: TypeAlias = Callable[[Any], Awaitable[object] | object]

DONE = frozenset[NodeState](("completed", "failed", "cancelled"))

# In a commander's block it is the commander, and contexts outlive blocks: see `enclosing`.
CURRENT: ContextVar[Node[Any] | None] = ContextVar("anabranch.current_node")


class Actor(NamedTuple):
    """Whose work a node does: an agent's, in the session that was named, or None."""

    agent: str
    session_id: int | str | None = None


class NodeBase:
    """What a node has for the engine: its record, and what is true of all nodes of its class."""

    # Made when it is first needed: a user's `__init__` need not call ours.
    _node_record: Record | None = None
    # What the node goes by in paths, events and logs.
    _node_name: str = "Node"
    # Jobs wait in the commander's queue and count against its limit; other nodes do neither.
    _node_is_queued: ClassVar[bool] = False
    # What its class says of its attempts; the options of the put go before these.
    _node_timeout: ClassVar[float | None] = None
    _node_retry: ClassVar[Retry | Restart | None] = None
    # Whether it may run in a run alone, as its outcome is to be kept; such a node is not plain.
    _node_is_durable: ClassVar[bool] = False
    # Whether it only reads for others, who see what came before a cancel: one that was cancelled in
    # a run reads again in the run's next life.
    _node_is_reader: ClassVar[bool] = False
    # Whether it does work of the node above it, as a step does: a job that waits for it keeps its
    # slot.
    _node_is_work: bool = False
    # Whether the class has no policy and no place of its own.
    _node_has_defaults: ClassVar[bool] = True
    # Whether it is not durable either.
    _node_is_plain: ClassVar[bool] = True
    # Whose work it does, where that is not said above it; such a node is not plain.
    _node_actor: Actor | None = None

    def __getstate__(self) -> Any:
        # What a copy and a pickle are made of: they have no record, so they have not started.
        state: Any = object.__getstate__(self)
        values, slots = cast("tuple[Any, Any]", state if type(state) is tuple else (state, None))
        kept: dict[str, Any] = {**(values or {})}
        kept.pop("_node_record", None)
        return kept if slots is None else (kept, slots)


class Attempts:
    """What only nodes with a timeout or a retry need: their settings, and the tries so far."""

    __slots__ = ("context", "failure", "retry", "starts", "timeout", "timer")

    def __init__(self, timeout: float | None, retry: Retry | Restart | None) -> None:
        self.timeout = timeout
        self.retry = retry
        # The putter's context, of which each attempt gets a copy of its own.
        self.context = copy_context()
        # When each attempt began, by the loop's clock.
        self.starts: list[float] = []
        # What the last attempt failed with.
        self.failure: BaseException | None = None
        # The pending timeout while an attempt runs; the pending start between two attempts.
        self.timer: asyncio.TimerHandle | None = None

    def start_after(self, record: Record, delay: float) -> None:
        """Let the next attempt begin in so many seconds."""

        def start() -> None:
            self.timer = None
            context = self.context.copy()
            if record.node._node_is_queued:
                record.tree.queue.put_again(record, context)
            else:
                record.tree.spawn(record, context)

        self.timer = record.tree.loop.call_later(delay, start)


class RareDefaults:
    """The defaults of the fields that few nodes need; `RareField` adds them to the class."""

    # So the garbage collector has nothing to do with the instance that all plain records share.
    __slots__ = ()

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...


RARE_DEFAULTS = RareDefaults()


class RareValues(RareDefaults):
    """The same for one node that has some of it; what it has not is as in the class."""


class RareField(Generic[T]):
    """An attribute of `Record` that few nodes need, kept in `rare`; to set it makes a node special.

    It becomes a property whose getter is in C: without that it would cost a call each time.
    """

    def __init__(self, default: T) -> None:
        self._default = default

    def __set_name__(self, owner: type, name: str) -> None:
        def store(record: Record, value: T) -> None:
            record.is_special = True
            if record.rare is RARE_DEFAULTS:
                record.rare = RareValues()
            setattr(record.rare, name, value)

        setattr(RareDefaults, name, self._default)
        setattr(owner, name, property(attrgetter(f"rare.{name}"), store))

    if TYPE_CHECKING:

        def __get__(self, record: Record, owner: type) -> T: ...
        def __set__(self, record: Record, value: T) -> None: ...


class Record:
    """What the engine keeps of one node.

    A node pays for what it uses. What every node needs has a slot, and no more have one than must:
    the garbage collector comes by all of them, again and again. What few need is `RareField`.
    """

    __slots__ = (
        "__weakref__",
        "callback",
        "callback_moment",
        "children",
        "context",
        "id",
        "is_claimed",
        "is_closing",
        "is_open",
        "is_special",
        "name",
        "node",
        "parent_node",
        "policy",
        "rare",
        "result",
        "state",
        "state_since",
        "task",
        "tree",
        "waiters",
    )

    # Until the node's end.
    node: Node[Any]
    name: str
    # Set once, when the node enters the tree. A commander has a tree and no parent.
    id: int
    tree: Tree
    parent_node: Node[Any] | None
    # Written by `advance`, or in place by the table's rows: see `_state.py`.
    state: NodeState
    # When it came into that state, by the tree's clock; None before the first step.
    state_since: float | None
    policy: Policy
    # Whether the node takes the slow path, as it has something that few have: a timeout, a start
    # callback, a place, a cancellation, a failure, an observer. Never unset; a plain node pays for
    # this one check.
    is_special: bool
    # All that.
    rare: RareDefaults
    # Put with claim=True: the putter says that it will await the node.
    is_claimed: bool
    # Whether children may enter: from the node's own entry to its first final callback.
    is_open: bool
    # The unfinished children by id, in the order in which they were put.
    children: dict[int, Record] | None
    # The task that runs the body or an async final callback; None while neither runs.
    task: asyncio.Task[None] | None
    # A copy of the body's context, kept from the end of the body to the end of the node; a waiting
    # job's, in which it ends if it is cancelled there.
    context: Context | None
    result: Any
    # From the first final callback on.
    is_closing: bool
    waiters: list[asyncio.Future[None]] | None
    # The first final callback and when it is due; few nodes have more than one.
    callback: Callback | None
    callback_moment: Moment

    # Further final callbacks: moments, callbacks in turn.
    more_callbacks: RareField[list[Any] | None] = RareField(None)
    # Which kind of callback is running, a final one or one at a retry; None while none is, and of
    # a plain node.
    moment: RareField[Moment | None] = RareField(None)
    failure: RareField[BaseException | None] = RareField(None)
    # The failure's traceback at the node's end. Every await raises the failure with it; otherwise
    # it would grow by each await.
    traceback: RareField[TracebackType | None] = RareField(None)
    # The reason, once the node is marked for cancellation; the mark stays.
    cancel_reason: RareField[str | None] = RareField(None)
    # It entered below a node that is ending: it never runs, and gets no children.
    never_runs: RareField[bool] = RareField(False)
    # The failure with which the node must end though its body has not: a child's, or a timeout.
    abort_error: RareField[BaseException | None] = RareField(None)
    # Children's failures by id that wait for the join: collected, or claimed and not yet taken.
    failures: RareField[dict[int, Record] | None] = RareField(None)
    # How many children have completed; counted under a quorum only.
    completed: RareField[int] = RareField(0)
    # How many awaiters have had the failure; one that lost it to its own cancellation is taken off.
    failure_receivers: RareField[int] = RareField(0)
    at_start: RareField[list[Callback] | None] = RareField(None)
    at_retry: RareField[list[Callback] | None] = RareField(None)
    at_commander_end: RareField[list[Callback] | None] = RareField(None)
    # Futures that are done when the node is, of those who only look on.
    observers: RareField[list[asyncio.Future[None]] | None] = RareField(None)
    attempts: RareField[Attempts | None] = RareField(None)
    # What runs the body, of a node that runs elsewhere.
    remote: RareField[RemoteBody | None] = RareField(None)
    # What copies of the node are made of.
    pattern: RareField[Pattern | None] = RareField(None)
    # What bounds the node and all below it; the engine only keeps it.
    limits: RareField[NodeLimits | None] = RareField(None)
    # What was charged at and below this node, by account.
    charges: RareField[dict[str, Any] | None] = RareField(None)
    # The node's own `_node_actor`, beyond its end.
    own_actor: RareField[Actor | None] = RareField(None)
    # Of jobs, which of them goes first.
    priority: RareField[int] = RareField(0)
    # CPU seconds of the steps of its body, in all attempts, and of its async final callbacks; None
    # before the first start, and where they are not measured.
    cpu: RareField[float | None] = RareField(None)
    # Its place in a run that is kept in a journal, and so that of all that it puts.
    scope: RareField[DurableScope | None] = RareField(None)
    # How many waits for others are under way in a node that does work of a job's: while there are
    # any, the job lends its slot all the same.
    waits_for_others: RareField[int] = RareField(0)
    # This job's slot under a limit, from its start to the end of its body.
    slot: RareField[Slot | None] = RareField(None)

    def __repr__(self) -> str:
        return f"<{self.label} {self.state}>"

    @property
    def parent(self) -> Record | None:
        """The parent's record; None for a commander and outside a tree."""
        return None if self.parent_node is None else self.parent_node._node_record

    @property
    def label(self) -> str:
        """The node's name and number: `Shout#1`."""
        return f"{self.name}#{self.id}" if self.id else self.name

    @property
    def is_ending(self) -> bool:
        """Whether the node ends early: it was cancelled, or a failure has cut its body short."""
        return self.cancel_reason is not None or self.abort_error is not None

    @property
    def error(self) -> BaseException | None:
        """What the node failed with, a `NodeCancelled` if it was cancelled, else None."""
        if self.moment == "retry" and self.attempts is not None:
            return self.attempts.failure
        if self.failure is not None or self.cancel_reason is None:
            return self.failure
        if self.is_closing or self.state == "cancelled":
            return NodeCancelled(self.path, self.cancel_reason)
        return None

    @property
    def unfinished_children(self) -> list[Record]:
        """The unfinished children, in the order in which they were put."""
        return list(self.children.values()) if self.children else []

    @property
    def parent_id(self) -> int | None:
        """The parent's number; None for a commander and outside a tree."""
        above = self.parent_node
        return None if above is None else above._node_record.id  # type: ignore[union-attr]

    @property
    def origin(self) -> Origin:
        """Whose clock the node has: its tree's."""
        return self.tree.origin

    @property
    def actor(self) -> Actor | None:
        """Whose work the node does: its own, or what is said nearest above it."""
        record: Record | None = self
        while record is not None and record.own_actor is None:
            record = record.parent
        return None if record is None else record.own_actor

    def ancestors(self) -> Iterator[Record]:
        """Yield the parent, its parent, and so on up to the commander's."""
        record = self.parent
        while record is not None:
            yield record
            record = record.parent

    @property
    def path(self) -> str:
        """Where the node stands, its middle left out beyond `SEGMENTS` segments.

        A failure that goes up a deep tree asks for the path of one node after the other: so the
        walk to the root, which only a long path needs, is made once for nodes near each other.
        """
        below = [self, *islice(self.ancestors(), SEGMENTS)]
        if len(below) <= SEGMENTS:
            return _join(below)
        number, depth, top = self.tree.path_cache
        for distance, each in enumerate(below):
            if each.id == number:
                depth += distance
                break
        else:
            line = [self, *self.ancestors()]
            depth, top = len(line), _join(line[-HALF:])
        self.tree.path_cache = (below[HALF].id, depth - HALF, top)
        return f"{top}/...{depth - SEGMENTS} more.../{_join(below[:HALF])}"

    def later_callbacks(self, at: int) -> Iterator[tuple[Moment, Callback]]:
        """Yield the callbacks in the list from `at` on, also those that are added meanwhile."""
        while self.more_callbacks is not None and at < len(self.more_callbacks):
            yield self.more_callbacks[at], self.more_callbacks[at + 1]
            at += 2


# Of a long path.
SEGMENTS = 32
HALF = SEGMENTS // 2


def _join(records: list[Record]) -> str:
    return "/".join(record.label for record in reversed(records))


def record_of(node: NodeBase) -> Record:
    """Return what the engine keeps of `node`."""
    record = node._node_record
    if record is None:
        if isinstance(node, type):  # all its nodes would share the record
            raise TypeError(f"{node.__name__} is a class: make a node of it, {node.__name__}(...)")
        record = node._node_record = Record()
        # As `enter` does, which needs no call for it.
        record.name, record.node = node._node_name, cast("Node[Any]", node)
        record.id = 0
        record.tree = cast("Tree", None)
        record.state = "pending"
        record.policy = "fail_fast"
        record.is_open = record.is_closing = record.is_claimed = record.is_special = False
        record.rare = RARE_DEFAULTS
        record.parent_node = record.state_since = record.children = None
        record.task = record.context = record.result = record.waiters = record.callback = None
    return record


def enclosing() -> Iterator[Node[Any]]:
    """Yield the current node, then that in which its commander was entered, and so on outwards.

    So each is of another tree. A commander that is done is passed over: its block is over, though
    the context of a task that was started in it goes on.
    """
    node = CURRENT.get(None)
    while node is not None:
        record = record_of(node)
        if record.parent_node is not None or record.state not in DONE:
            yield node
        node = record.tree.outer


def parent_here() -> Node[Any] | None:
    """Return the node of which a call made here becomes a child.

    That is the innermost around this code that lives on the running loop; None if there is none:
    such a call needs a commander of its own.
    """
    loop = running_loop()
    for node in enclosing():
        if record_of(node).tree.loop is loop:
            return node
    return None


def node_in(tree: Tree) -> Record | None:
    """Return the record of the node of `tree` around this code, None if there is none."""
    for node in enclosing():
        if (record := record_of(node)).tree is tree:
            return record
    return None


# --- a tree lives on one loop


def require_loop(record: Record, instead: str) -> None:
    """Refuse a call from another thread or loop than the node's, naming what to do `instead`.

    A loop that stands still is everybody's: nothing else happens on it meanwhile, and it looks at
    what was changed when it runs again.
    """
    if record.tree:
        loop = record.tree.loop
        if running_loop() is not loop:
            if loop.is_running():
                raise wrong_loop(record, instead)
        elif current_task(loop) is None:
            # Perhaps a signal handler's call, while the loop sleeps in its selector: it is woken.
            loop.call_soon_threadsafe(lambda: None)


def wrong_loop(record: Record, instead: str) -> RuntimeError:
    """Return the refusal of a call from elsewhere, to be raised."""
    return RuntimeError(
        f"{record!r} lives on a loop that does not run in this thread: use {instead}"
    )
