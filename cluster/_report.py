"""What home and a worker say to each other."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

from ..commander import EventKind, Node, NodeState, Policy
from ..commander.remote import policy_of
from ._desk import Address
from ._limits import DistantLimits
from ._parcel import Parcel
from ._seat import Call

__all__ = ["End", "Happened", "Order", "Report", "Rest", "Stand", "Standing", "first_id"]


class Stand(NamedTuple):
    """Where at home something stands that runs elsewhere, and what holds for it."""

    node_id: int
    parent: str
    policy: Policy
    slow_after: float | None
    home: Address | None  # where it is heard; None where that is by a stream of its own
    limits: DistantLimits | None

    @classmethod
    def of(cls, node: Node[Any], call: Call | None) -> Stand:
        """Return where `node` stands."""
        parent, slow_after = node.parent, node.commander.slow_after
        assert parent is not None
        home, limits = (None, None) if call is None else (call.address, call.limits)
        return cls(node.node_id, parent.path, policy_of(node), slow_after, home, limits)


class Order(NamedTuple):
    """What a worker is told: the job, and where it stands.

    `said` are the limit of messages of the conversation in which it was put, and how many are left.
    """

    parcel: Parcel
    stand: Stand
    said: tuple[int, int] | None


Happened: TypeAlias = "tuple[EventKind, int, int | None, str, float, Any]"
"""An event: its kind, the node's id, its parent's, its name, when it happened, and its data."""

Standing: TypeAlias = "tuple[int, int | None, str, NodeState]"
"""An unfinished node: its id, its parent's, its name and state."""

End: TypeAlias = "tuple[Literal['completed', 'failed', 'cancelled', 'exit', 'refused'], Any]"
"""How the job ended: with its pickled result or failure, the reason, or why it never began."""


Rest: TypeAlias = "tuple[int, bytes | None, bytes]"
"""The value of a job's Ray task: how many reports have arrived at home, the next if it was under
way, and the last one, with the end."""


class Report(NamedTuple):
    """What has happened in a worker since the last report, in order.

    `spent` and `said` (messages of agents) are what came since the last report. `nodes` are all
    that are unfinished, where events were lost before the first of these. Times are of the worker's
    monotonic clock, whose zero was at `epoch` by its time of day; `began` and `sent` place them
    between the order and the report's arrival.
    """

    host: str
    pid: int
    epoch: float
    began: float
    sent: float
    events: list[Happened]
    spent: dict[str, Any]
    said: int
    nodes: list[Standing] | None
    end: End | None


# Below a job with the number 7 the nodes in the worker are 7000001, 7000002 and so on: the same
# numbers there, in its logs and errors, as at home.
STEP = 1_000_000


def first_id(node_id: int) -> int:
    """Return the number after which those of the nodes below a job that was sent begin."""
    return node_id * STEP
