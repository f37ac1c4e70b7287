"""What is known at home of a subtree elsewhere: where it is, what it does, how it has ended."""

from __future__ import annotations

import asyncio
import pickle
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..commander import Node, NodeSnapshot, NodeState, charge
from ..commander.remote import DONE, Event, Origin, now, publish, relay
from ._parcel import load_error
from ._report import End, Happened, Report, Standing

if TYPE_CHECKING:
    from ..agents.remote import Scope

__all__ = ["Elsewhere", "ended", "scope_of"]


class Elsewhere:
    """The body of a node that runs elsewhere, and the nodes below it, as it has last told."""

    def __init__(self) -> None:
        self.host: str | None = None  # the machine, once it has begun there
        self.pid: int | None = None
        self._below: dict[int, _Below] = {}
        self._clock = Clock(0)

    def begin(self, node: Node[Any]) -> None:
        """Forget all: what `node` is going to run is ordered now."""
        self.host = None
        self._clock = Clock(now(node))
        self.clear()

    def clear(self) -> None:
        """Forget the nodes."""
        self._below.clear()

    def below(self, depth: int) -> Sequence[NodeSnapshot]:
        """Return the unfinished nodes, each before its children; the uppermost at `depth`."""
        children: dict[int | None, list[_Below]] = {}
        for node in self._below.values():
            above = node.parent if node.parent in self._below else None
            children.setdefault(above, []).append(node)
        found: list[NodeSnapshot] = []
        stack = [(node, depth) for node in reversed(children.get(None, []))]
        while stack:
            node, at = stack.pop()
            inner = children.get(node.number, [])
            found.append(node.snapshot(at, len(inner), self.host))
            stack.extend((child, at + 1) for child in reversed(inner))
        return found

    def take(self, node: Node[Any], report: Report) -> None:
        """Take a report in: the events are told here, and what was spent is charged to `node`."""
        if self.host is None:
            self._began(node, report)
        self._clock.heard(report.epoch + report.began, report.epoch + report.sent, now(node))
        origin = Origin(self._clock.here(report.epoch), report.host)
        if report.nodes is not None:
            self._below = {standing[0]: _Below(standing) for standing in report.nodes}
        for event in report.events:
            if report.nodes is None:
                self._happened(event)
            _relay(node, event, origin)
        for account, amount in report.spent.items():
            charge(account, amount)
        if report.said and (scope := scope_of()) is not None:
            scope.left = max(0, scope.left - report.said)

    def _began(self, node: Node[Any], report: Report) -> None:
        self.host, self.pid = report.host, report.pid
        publish(node, "placed", report.host)

    def _happened(self, event: Happened) -> None:
        kind, number, parent, name, *_ = event
        if kind in DONE:
            self._below.pop(number, None)
        elif kind == "put":
            self._below[number] = _Below((number, parent, name, "pending"))
        elif kind in _STATES and number in self._below:
            self._below[number].state = _STATES[kind]


_STATES: dict[str, NodeState] = {"started": "running", "joining": "joining", "retried": "pending"}


class _Below:
    """A node elsewhere."""

    __slots__ = ("name", "number", "parent", "state")

    def __init__(self, standing: Standing) -> None:
        self.number, self.parent, self.name = standing[:3]
        self.state: NodeState = standing[3]

    def snapshot(self, depth: int, children: int, host: str | None) -> NodeSnapshot:
        return NodeSnapshot(
            self.number, self.parent, depth, self.name, self.state, children, False, host
        )


def _relay(node: Node[Any], event: Happened, origin: Origin) -> None:
    kind, number, parent, name, clock, data = event
    if number == node.node_id:
        above = node.parent
        parent = None if above is None else above.node_id
    elif not parent:  # it was put beside the root, under the far end's own commander
        parent = node.node_id
    relay(node, Event(kind, number, parent, name, clock, origin, data))


def ended(node: Node[Any], end: End) -> Any:
    """Let the body of `node` end as its far end has: return its result, or raise."""
    kind, value = end
    if kind == "completed":
        return pickle.loads(value)  # noqa: S301 - a worker of ours wrote it
    if kind == "failed":
        raise load_error(value)
    if kind == "exit":
        node.commander.exit(pickle.loads(value))  # noqa: S301 - as above
    else:
        node.cancel(value)
    raise asyncio.CancelledError


class Clock:
    """Brings the times of another machine in line with home's.

    A report cannot have been sent after it came, nor a body begun before it was ordered: within
    these bounds the two clocks are taken to agree.
    """

    def __init__(self, ordered: float) -> None:
        self._ordered = ordered
        self._least = float("-inf")
        self._most = float("inf")
        self._ahead = 0.0

    def heard(self, began: float, sent: float, now: float) -> None:
        """Take the bounds that a report sets."""
        self._least = max(self._least, self._ordered - began)
        self._most = min(self._most, now - sent)
        self._ahead = min(max(0.0, self._least), self._most)

    def here(self, time: float) -> float:
        """Return what the clock at home showed."""
        return time + self._ahead


def scope_of() -> Scope | None:
    """Return the conversation in which this runs."""
    # Whoever has not imported the agents is in no conversation of theirs.
    if __name__.replace("cluster._elsewhere", "agents") not in sys.modules:
        return None
    from ..agents.remote import current_scope

    return current_scope()
