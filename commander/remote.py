"""What a place needs to run a node's body elsewhere: on both sides of the way.

Here, `send` gives a node's body to an `Away`, `inputs` are what travels, and what happens there is
told with `publish` and `relay`. There, a `SubtreeCommander` drives the node and what is below it.
"""

from __future__ import annotations

from typing import Any

from ._cancel import cancel_subtrees
from ._commander import Commander
from ._events import Event, EventKind, Origin, Tap
from ._events import publish as _publish
from ._events import relay as _relay
from ._node import Node, add_waiter
from ._place import Away
from ._policy import Policy
from ._record import DONE

__all__ = [
    "DONE",
    "Event",
    "Origin",
    "SubtreeCommander",
    "Tap",
    "cancel_reason",
    "inputs",
    "now",
    "policy_of",
    "publish",
    "relay",
    "send",
]


def send(node: Node[Any], away: Away) -> None:
    """Let `away` run the body of `node`, which has not started."""
    node._n_away = away
    node._n_special = True


def inputs(node: Node[Any]) -> dict[str, Any]:
    """Return what `node` was made with and what its own code has set: all but the engine's."""
    return {name: value for name, value in vars(node).items() if not name.startswith("_n_")}


def policy_of(node: Node[Any]) -> Policy:
    """Return how `node` treats failures among its children."""
    return node._n_policy


def cancel_reason(node: Node[Any]) -> str | None:
    """Return the reason if `node` was cancelled, else None."""
    return node._n_cancel


def now(node: Node[Any]) -> float:
    """Return the time of day in seconds, as the events of the node's tree have it."""
    commander = node._n_commander
    return commander._n_origin.epoch + commander._n_clock()


def publish(node: Node[Any], kind: EventKind, data: object = None) -> None:
    """Tell those who listen to the node's commander; nobody listening, it does nothing."""
    if node._n_commander._n_listeners:
        _publish(node, kind, data)


def relay(node: Node[Any], event: Event) -> None:
    """Tell those who listen to the node's commander of what happened elsewhere, in the past."""
    _relay(node._n_commander, event)


class SubtreeCommander(Commander, internal=True):
    """Drives a node of a tree whose own commander is elsewhere, and all below that node.

    `parent` is the path of the node's parent there: paths here begin with it.
    """

    def __init__(self, parent: str, *, slow_after: float | None) -> None:
        super().__init__(slow_after=slow_after)
        self._n_name = parent

    def put_numbered(self, node: Node[Any], *, number: int, below: int, policy: Policy) -> None:
        """Start `node` under the `number` that it has there; ids of those below come after `below`.

        Its outcome is taken: nobody here has to await it.
        """
        self._n_count = number - 1
        self._n_put(node, policy=policy)
        self._n_count = below
        add_waiter(node)

    def cancel_all(self, reason: str) -> None:
        """Cancel the tree and take no new top-level nodes; the block ends as otherwise."""
        if self.state in ("running", "joining"):
            self._n_open = False
            cancel_subtrees(self.children, reason)

    @property
    def exit_value(self) -> tuple[Any] | None:
        """What `exit` was called with, in a tuple; None if it was not."""
        return self._n_exit

    @property
    def epoch(self) -> float:
        """The time of day at the zero of `clock`."""
        return self._n_origin.epoch

    def clock(self) -> float:
        """Return the time of the events' own clock."""
        return self._n_clock()

    def take_charges(self) -> dict[str, Any]:
        """Return what was charged in this tree since the last call, by account."""
        charges, self._n_spent = self._n_spent or {}, None
        return charges
