"""What the engine keeps of a node; shared by the modules of this room and by nobody else.

All names begin with `_n_`, so that no attribute of a user's subclass meets them. They are
class-level defaults: a node pays only for what it uses, and a subclass may write an `__init__`
that does not call ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context, ContextVar, copy_context
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, cast

from ._policy import Policy, Restart, Retry

if TYPE_CHECKING:
    from ._commander import Commander
    from ._node import Node
    from ._place import Away
    from ._seat import Seat

__all__ = [
    "CURRENT",
    "DONE",
    "STATE",
    "After",
    "Attempts",
    "Callback",
    "Moment",
    "NodeState",
    "Record",
    "share_layout",
]

NodeState: TypeAlias = Literal["pending", "running", "joining", "completed", "failed", "cancelled"]
Moment: TypeAlias = Literal["end", "exception", "terminate", "done"]
After: TypeAlias = Literal["commander_end", "closed"]
Callback: TypeAlias = Callable[[Any], Awaitable[object] | object]

DONE = frozenset[NodeState](("completed", "failed", "cancelled"))

CURRENT: ContextVar[Node[Any]] = ContextVar("anabranch.current_node")


class Attempts:
    """What only nodes with a timeout or a retry need: their settings, and the tries so far."""

    __slots__ = ("context", "retry", "starts", "timeout", "timer")

    def __init__(self, timeout: float | None, retry: Retry | Restart | None) -> None:
        self.timeout = timeout
        self.retry = retry
        # The putter's context, of which each attempt gets a copy of its own.
        self.context = copy_context()
        # When each attempt began, by the loop's clock.
        self.starts: list[float] = []
        # The pending timeout while an attempt runs; the pending start between two attempts.
        self.timer: asyncio.TimerHandle | None = None


class Record:
    """The engine's side of a node."""

    # Jobs wait in the commander's queue and count against its limit; other nodes do neither.
    _n_queued: ClassVar[bool] = False

    # What the node goes by: its class's name, or what its maker calls it.
    _n_name: str = "Node"
    _n_id: int = 0
    _n_state: NodeState = "pending"
    # Both are set once, when the node enters the tree; a commander is its own `_n_commander`.
    _n_parent: Node[Any] | None = None
    _n_commander: Commander = cast("Commander", None)
    _n_policy: Policy = "fail_fast"
    # Whether anything beside the plain course has to be looked at: a timeout, a start callback, a
    # quorum, a cancellation, a failure. Once set it stays; a plain node pays for one look.
    _n_special: bool = False
    # Whether children may enter: from the node's own entry to its first final callback.
    _n_open: bool = False
    _n_attempts: Attempts | None = None
    # What runs the body, of a job that was put on another machine.
    _n_away: Away | None = None
    # The unfinished children by id, in the order in which they were put.
    _n_children: dict[int, Node[Any]] | None = None
    # The task that runs the body or an async final callback; None while neither runs.
    _n_task: asyncio.Task[None] | None = None
    # A copy of the body's context, kept from the end of the body to the end of the node.
    _n_context: Context | None = None
    _n_result: Any = None
    _n_error: BaseException | None = None
    # The error's traceback at the node's end: each await raises the error with this one, which
    # would else grow by every await.
    _n_traceback: TracebackType | None = None
    # The reason, once the node is marked for cancellation; the mark stays.
    _n_cancel: str | None = None
    # It entered below an ending node: it never runs, and puts nothing below one.
    _n_doomed: bool = False
    # The failure with which the node must end though its body has not: a child's, or a timeout.
    _n_abort: BaseException | None = None
    # Children's failures by id that wait for the join: collected, or claimed and not yet taken.
    _n_failures: dict[int, Node[Any]] | None = None
    # How many children have completed; counted under a quorum only.
    _n_completed: int = 0
    # From the first final callback on.
    _n_closing: bool = False
    # Of the final callback that runs, unless the node is plain.
    _n_moment: Moment | None = None
    # Put with claim=True: the putter says that it will await the node.
    _n_claimed: bool = False
    # How many awaiters have had the failure; one that lost it to its own cancellation is taken off.
    _n_takers: int = 0
    _n_waiters: list[asyncio.Future[None]] | None = None
    _n_starts: list[Callback] | None = None
    # Moments and callbacks in turn, in one list: a tuple for each pair would be one more object
    # for the garbage collector to walk.
    _n_callbacks: list[Any] | None = None
    # What is called once the node is done: when the commander ends, or at once.
    _n_after: list[tuple[After, Callback]] | None = None
    # Of a node with edges: what the copies are made of.
    _n_pattern: Any = None
    # What was charged at and below this node, by account.
    _n_spent: dict[str, Any] | None = None
    # A job's, which says who goes first.
    _n_priority: int = 0
    # This job's place under a limit, from its start to the end of its body.
    _n_place: Seat | None = None


# The names of all that the engine keeps; the rest of a node's attributes are its inputs, and so is
# the name that its maker gave it.
STATE = frozenset(Record.__annotations__) - {"_n_name"}

# What every node of a tree has of its own, by the time it ends.
HOT = (
    "_n_callbacks",
    "_n_children",
    "_n_claimed",
    "_n_closing",
    "_n_commander",
    "_n_context",
    "_n_id",
    "_n_open",
    "_n_parent",
    "_n_result",
    "_n_special",
    "_n_state",
    "_n_task",
    "_n_waiters",
)


def share_layout(cls: type[Record]) -> None:
    """Let CPython know the attributes of a new class before its first instance is made.

    Instances then share one layout (PEP 412). Otherwise those that are made in a row before any
    of them is started get a dictionary each, at twice the time and memory.
    """
    blank = object.__new__(cls)
    for name in HOT:
        object.__setattr__(blank, name, None)
