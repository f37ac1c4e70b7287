"""`Record`: the engine's state of a node.

The engine's modules work with records. A node has one attribute, `_node_record`, so the engine's
names cannot collide with those of a user's subclass. A record refers to its node until the node
ends. After that it must not: the two would be a reference cycle, which only the garbage collector
frees.
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
    from ._commander import Commander, Tree
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

# In a commander's block it is the commander. A context may outlive the block: see `enclosing`.
CURRENT: ContextVar[Node[Any] | None] = ContextVar("anabranch.current_node")


class Actor(NamedTuple):
    """The agent whose work a node does, and the session of the call.

    A call that names no session has that of the call around it, None if that has none.
    `answers_for` is another agent, if this one gives the answer of that agent, as after a handoff.
    """

    agent: str
    session_id: int | str | None = None
    answers_for: str | None = None


class NodeBase:
    """The engine's attributes of a node: its record, and settings of its class."""

    # Created at first use, because a user's `__init__` need not call ours.
    _node_record: Record | None = None
    # The name in paths, events and logs.
    _node_name: str = "Node"
    # Jobs wait in the commander's queue and count against its limit. Other nodes do neither.
    _node_is_queued: ClassVar[bool] = False
    # The class's options. Those of the put override them.
    _node_timeout: ClassVar[float | None] = None
    _node_retry: ClassVar[Retry | Restart | None] = None
    # It needs a durable run, which records its outcome. Such a node is not plain.
    _node_is_durable: ClassVar[bool] = False
    # It only passes on data that it reads. A cancel of it is not recorded, so that it reads again
    # after a restart.
    _node_is_reader: ClassVar[bool] = False
    # It does work of the node above it, as a step does. A job that waits for it keeps its slot.
    _node_is_work: bool = False
    # The class sets no policy, place, timeout or retry.
    _node_has_defaults: ClassVar[bool] = True
    # In addition, it is not durable.
    _node_is_plain: ClassVar[bool] = True
    # The agent whose work it begins. Such a node is not plain.
    _node_actor: Actor | None = None

    def __getstate__(self) -> Any:
        # Copies and pickles have no record, so they have not started.
        state: Any = object.__getstate__(self)
        values, slots = cast("tuple[Any, Any]", state if type(state) is tuple else (state, None))
        attributes: dict[str, Any] = {**(values or {})}
        attributes.pop("_node_record", None)
        return attributes if slots is None else (attributes, slots)


class Attempts:
    """The attempts of a node with a timeout or a retry."""

    __slots__ = ("context", "failure", "retry", "starts", "timeout", "timer")

    def __init__(self, timeout: float | None, retry: Retry | Restart | None) -> None:
        self.timeout = timeout
        self.retry = retry
        # The putter's context. Each attempt gets a copy, so that no attempt sees the variables that
        # an earlier one set.
        self.context = copy_context()
        # When each attempt began, by the loop's clock.
        self.starts: list[float] = []
        # The failure of the last attempt, until the next body begins. Its traceback refers to the
        # node.
        self.failure: BaseException | None = None
        # The timeout while an attempt runs; between two attempts the start of the next.
        self.timer: asyncio.TimerHandle | None = None

    def start_after(self, record: Record, delay: float) -> None:
        """Start the next attempt after `delay` seconds."""

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

    # Without a dict, so that the garbage collector does not track the instance that all plain
    # records share.
    __slots__ = ()

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...


RARE_DEFAULTS = RareDefaults()


class RareValues(RareDefaults):
    """The rare fields of one node. A field that is not set has the default of the class."""


class RareField(Generic[T]):
    """A field of `Record` that few nodes set. Setting it marks the node as special.

    The value is in `record.rare`. The class replaces it by a property with a getter in C, because a
    getter in Python would cost a call for each read.
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
    """The engine's state of one node.

    Fields that every node needs are slots. There are few, because the garbage collector visits each
    of them in each of its rounds. All other fields are `RareField`s, which cost a node nothing
    until it sets one.
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

    # Deleted at the node's end: see the module's docstring.
    node: Node[Any]
    name: str
    # Set once, when the node enters the tree. A commander has a tree and no parent.
    id: int
    tree: Tree
    parent_node: Node[Any] | None
    # Only `advance` writes it, and inlined copies of it that use the same table: see `_state.py`.
    state: NodeState
    # When it entered that state, by the tree's clock; None before the first change.
    state_since: float | None
    policy: Policy
    # Whether a rare field was ever set, such as a timeout, a cancellation or a failure. Never
    # unset. Hot paths check only this before they read rare fields.
    is_special: bool
    # The values of the rare fields; RARE_DEFAULTS until the first is set.
    rare: RareDefaults
    # Put with claim=True: the putter promises to await the node, so the parent's policy does not
    # get a failure before the join.
    is_claimed: bool
    # Whether children may enter: from the node's own entry until its final callbacks.
    is_open: bool
    # The unfinished children by id, in the order of their puts. A child removes itself
    # when it ends; the node cannot end before this is empty.
    children: dict[int, Record] | None
    # The task that runs the body or an async final callback; None while neither runs. A task that
    # is not the record's task must leave the node alone: the queue may have called the job back.
    task: asyncio.Task[None] | None
    # Before the body, a queued job's context: the job ends in it if it is cancelled in the queue.
    # After the body, a copy of the body's context for the final callbacks. None from the node's end
    # on, because it refers to the node.
    context: Context | None
    result: Any
    # Set before the first final callback. No cancel reaches the node after that, except an async
    # callback.
    is_closing: bool
    # The futures of those who await the node. They get a failure, so it does not go to the policy.
    waiters: list[asyncio.Future[None]] | None
    # The first final callback and its moment; few nodes have more than one.
    callback: Callback | None
    callback_moment: Moment

    # Further final callbacks: moment, callback, moment, callback, ...
    more_callbacks: RareField[list[Any] | None] = RareField(None)
    # The moment of the callback that runs, final or at a retry; None while none runs, and for a
    # plain node.
    moment: RareField[Moment | None] = RareField(None)
    failure: RareField[BaseException | None] = RareField(None)
    # The failure's traceback at the node's end. Every await raises the failure with this one;
    # otherwise each await would add its frames.
    traceback: RareField[TracebackType | None] = RareField(None)
    # The reason, from the moment the node is marked for cancellation. Never unset.
    cancel_reason: RareField[str | None] = RareField(None)
    # It entered below a node that is ending: its body never runs, and it gets no children.
    never_runs: RareField[bool] = RareField(False)
    # A failure that ends the node while its body still runs: a child's, or a timeout.
    abort_error: RareField[BaseException | None] = RareField(None)
    # Failed children by id that wait for the join: under `collect` or a quorum, or claimed and not
    # awaited yet.
    failures: RareField[dict[int, Record] | None] = RareField(None)
    # The number of completed children. Only counted under a quorum.
    completed: RareField[int] = RareField(0)
    # How many awaiters received the failure. An awaiter that was cancelled in the same turn, and so
    # lost it, is subtracted. At 0 the failure goes to the parent's policy.
    failure_receivers: RareField[int] = RareField(0)
    at_start: RareField[list[Callback] | None] = RareField(None)
    at_retry: RareField[list[Callback] | None] = RareField(None)
    at_commander_end: RareField[list[Callback] | None] = RareField(None)
    # Futures that are done when the node is. Unlike `waiters`, they receive no failure.
    observers: RareField[list[asyncio.Future[None]] | None] = RareField(None)
    attempts: RareField[Attempts | None] = RareField(None)
    # The body of a node that runs at another place.
    remote: RareField[RemoteBody | None] = RareField(None)
    # The template for copies of the node, which edges start.
    pattern: RareField[Pattern | None] = RareField(None)
    # The limits of the node and all nodes below it. The engine only stores them.
    limits: RareField[NodeLimits | None] = RareField(None)
    # The value of its own `context=`, for code that has no context variables of the node.
    own_context: RareField[tuple[Any] | None] = RareField(None)
    # The amounts charged to this node and all nodes below it, by account.
    charges: RareField[dict[str, Any] | None] = RareField(None)
    # The node's own `_node_actor`, for events after its end.
    own_actor: RareField[Actor | None] = RareField(None)
    # Jobs with a higher priority start first.
    priority: RareField[int] = RareField(0)
    # CPU seconds of the steps of its body, in all attempts, and of its async final callbacks; None
    # before the first start, and if they are not measured.
    cpu: RareField[float | None] = RareField(None)
    # The node in its durable run. What the node puts gets its own scope from this one.
    scope: RareField[DurableScope | None] = RareField(None)
    # The number of `lend_slot` blocks in a node that does work of a job. While there are any, the
    # job lends its slot although it waits for its own work.
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
        """Whether the node ends early: it was cancelled, or a failure aborted its body."""
        return self.cancel_reason is not None or self.abort_error is not None

    @property
    def error(self) -> BaseException | None:
        """The failure, a `NodeCancelled` if it was cancelled, else None."""
        if self.moment == "retry" and self.attempts is not None:
            return self.attempts.failure
        if self.failure is not None or self.cancel_reason is None:
            return self.failure
        if self.is_closing or self.state == "cancelled":
            return NodeCancelled(self.path, self.cancel_reason)
        return None

    @property
    def unfinished_children(self) -> list[Record]:
        """The unfinished children, in the order of their puts."""
        return list(self.children.values()) if self.children else []

    @property
    def parent_id(self) -> int | None:
        """The parent's number; None for a commander and outside a tree."""
        above = self.parent_node
        return None if above is None else above._node_record.id  # type: ignore[union-attr]

    @property
    def origin(self) -> Origin:
        """The clock and the machine of the node's tree."""
        return self.tree.origin

    @property
    def actor(self) -> Actor | None:
        """The node's own actor, or that of the nearest node above that has one."""
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
        """The labels from the root to the node; the middle is cut beyond `MAX_PATH_SEGMENTS`.

        A failure that goes up a deep tree asks for the path of one node after the other. So the
        walk to the root, which a long path needs for its depth, starts at a cached node near by.
        """
        below = [self, *islice(self.ancestors(), MAX_PATH_SEGMENTS)]
        if len(below) <= MAX_PATH_SEGMENTS:
            return _join(below)
        number, depth, top = self.tree.path_cache
        for distance, each in enumerate(below):
            if each.id == number:
                depth += distance
                break
        else:
            line = [self, *self.ancestors()]
            depth, top = len(line), _join(line[-HALF_PATH:])
        self.tree.path_cache = (below[HALF_PATH].id, depth - HALF_PATH, top)
        return f"{top}/...{depth - MAX_PATH_SEGMENTS} more.../{_join(below[:HALF_PATH])}"

    def later_callbacks(self, at: int) -> Iterator[tuple[Moment, Callback]]:
        """Yield the callbacks in the list from `at` on, also those added during the iteration."""
        while self.more_callbacks is not None and at < len(self.more_callbacks):
            yield self.more_callbacks[at], self.more_callbacks[at + 1]
            at += 2


MAX_PATH_SEGMENTS = 32
HALF_PATH = MAX_PATH_SEGMENTS // 2


def _join(records: list[Record]) -> str:
    return "/".join(record.label for record in reversed(records))


def record_of(node: NodeBase) -> Record:
    """Return the record of `node`; create it if there is none."""
    record = node._node_record
    if record is None:
        if isinstance(node, type):  # its nodes would share the record
            raise TypeError(f"{node.__name__} is a class: create a node, {node.__name__}(...)")
        record = node._node_record = Record()
        # `enter` has an inlined copy of this: a new field must be set in both.
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
    """Yield the current node, then the outer node of its commander, and so on outwards.

    Each belongs to another tree. Commanders that are done are skipped: a task that was started in a
    commander's block keeps its context after the block has ended.
    """
    node = CURRENT.get(None)
    while node is not None:
        record = record_of(node)
        if record.parent_node is not None or record.state not in DONE:
            yield node
        node = record.tree.outer


def parent_here() -> Node[Any] | None:
    """Return the parent for a node that starts here.

    That is the innermost node around this code on the running loop. If this returns None, the
    caller must create a commander.
    """
    loop = running_loop()
    for node in enclosing():
        if record_of(node).tree.loop is loop:
            return node
    return None


def outermost_commander() -> Commander | None:
    """Return the outermost commander around this code on the running loop; None if there is none.

    All other commanders around this code on this loop end before it.
    """
    loop = running_loop()
    trees = [record_of(node).tree for node in enclosing()]
    found = [tree.commander for tree in trees if tree.loop is loop]
    return found[-1] if found else None


def node_in(tree: Tree) -> Record | None:
    """Return the record of the current node in `tree`; None if this code runs outside of it."""
    for node in enclosing():
        if (record := record_of(node)).tree is tree:
            return record
    return None


# --- a tree belongs to one loop


def require_loop(record: Record, instead: str) -> None:
    """Raise `RuntimeError` for a call from another thread or loop than the node's.

    The message says what to do `instead`. A loop that does not run may be used from anywhere:
    nothing can run on it at the same time.
    """
    if record.tree:
        loop = record.tree.loop
        if running_loop() is not loop:
            if loop.is_running():
                raise wrong_loop(record, instead)
        elif current_task(loop) is None:
            # The caller may be a signal handler while the loop sleeps in its selector. Wake it, or
            # it would not see the change.
            loop.call_soon_threadsafe(lambda: None)


def wrong_loop(record: Record, instead: str) -> RuntimeError:
    """Return the error for a call from another thread or loop; the caller raises it."""
    return RuntimeError(f"{record!r} belongs to another thread's event loop: use {instead}")
