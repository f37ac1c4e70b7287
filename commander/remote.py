"""The engine's interface for places that run a node's body in another process or machine.

In the node's own process, `run_remotely` hands the body to a `RemoteBody`, `inputs_of` returns the
attributes to send, and `publish` and `relay` report the remote events. In the other process, a
`SubtreeCommander` drives the node and the nodes below it.
"""

from __future__ import annotations

from typing import Any

from ._commander import Commander
from ._entry import enter
from ._event import Event, EventKind, EventSource, Origin
from ._events import publish as _publish
from ._events import relay as _relay
from ._node import Node
from ._place import RemoteBody
from ._policy import Policy
from ._record import DONE, record_of
from ._report import is_a, note, notes_of, type_name

__all__ = [
    "DONE",
    "Event",
    "EventSource",
    "Origin",
    "SubtreeCommander",
    "cancel_reason",
    "event_time",
    "has_listeners",
    "inputs_of",
    "is_a",
    "make_node",
    "note",
    "notes_of",
    "policy_of",
    "publish",
    "relay",
    "run_remotely",
    "type_name",
]


def run_remotely(node: Node[Any], away: RemoteBody) -> None:
    """Let `away` run the body of `node`, which must not have started."""
    record = record_of(node)
    record.remote = away


def inputs_of(node: Node[Any]) -> dict[str, Any]:
    """Return the attributes of `node` without those of the engine."""
    return {name: value for name, value in vars(node).items() if not name.startswith("_node_")}


def make_node(kind: type[Node[Any]], given: dict[str, Any]) -> Node[Any]:
    """Return a new node of the class `kind` with these attributes, without a call of `__init__`."""
    node: Node[Any] = object.__new__(kind)
    vars(node).update(given)
    return node


def policy_of(node: Node[Any]) -> Policy:
    """Return the policy of `node`."""
    return record_of(node).policy


def cancel_reason(node: Node[Any]) -> str | None:
    """Return the reason of the node's cancellation; None if it was not cancelled."""
    return record_of(node).cancel_reason


def event_time(node: Node[Any]) -> float:
    """Return the time of day, in seconds since 1970, by the clock of the tree's events."""
    tree = record_of(node).tree
    return tree.origin.epoch + tree.clock()


def has_listeners(node: Node[Any]) -> bool:
    """Return whether the node's commander has listeners."""
    return bool(record_of(node).tree.listeners)


def publish(node: Node[Any], kind: EventKind, data: object = None) -> None:
    """Publish an event of the node; do nothing without listeners."""
    record = record_of(node)
    if record.tree.listeners:
        _publish(record, kind, data)


def relay(node: Node[Any], event: Event) -> None:
    """Publish an event from another process in the node's tree."""
    record = record_of(node)
    _relay(record.tree, event)
    if event.kind == "text" and record.tree.texts is not None:
        record.tree.texts.take_remote(event, record)


class SubtreeCommander(Commander, internal=True):
    """Drives one node of a tree whose commander is in another process, and all nodes below it.

    `parent` is the path of the node's parent in that process. Paths in this process begin with it.
    An interrupt that a node raises is an ordinary failure here, and is sent to that process.
    """

    def __init__(self, parent: str, *, slow_after: float | None) -> None:
        super().__init__(slow_after=slow_after)
        self._tree.root.name = parent
        self._tree.stops_loop = False

    def put_numbered(self, node: Node[Any], *, number: int, below: int, policy: Policy) -> None:
        """Start `node` with its id in the parent's process. Later nodes get ids above `below`.

        A failure of the node does not reach the policy of this commander.
        """
        tree = self._tree
        tree.last_id = number - 1
        record = enter(self, node, policy=policy, claim=True)
        # An awaiter, because the policy gets the failures of nodes without one.
        record.waiters = [tree.loop.create_future()]
        if record.attempts is not None:
            record.attempts = None  # the parent's process handles its retry and timeout
        tree.last_id = below

    def cancel_all(self, reason: str) -> None:
        """Cancel all nodes and close the commander to new ones."""
        if self.state in ("running", "joining"):
            self._cancel_all(reason)

    @property
    def exit_value(self) -> tuple[Any] | None:
        """The argument of `exit`, in a tuple; None if it was not called."""
        return self._tree.exit_result

    @property
    def epoch(self) -> float:
        """The time of day, in seconds since 1970, at the zero of `clock`."""
        return self._tree.origin.epoch

    def clock(self) -> float:
        """Return the time of the events' clock."""
        return self._tree.clock()

    def take_charges(self) -> dict[str, Any]:
        """Return the amounts charged in this tree since the last call, by account."""
        root = self._tree.root
        charges, root.charges = root.charges or {}, None
        return charges
