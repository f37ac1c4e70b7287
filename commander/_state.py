"""The states of a node: the table of all transitions, and `advance`, which makes them.

    pending ──> running ──> joining ──> completed | failed | cancelled

A node is `pending` until its body begins, `running` while it runs, `joining` while it waits for its
children or its final callbacks run. A transition that is not in the table is a bug of the engine.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from ._events import publish
from ._record import NodeState, Record

__all__ = ["Step", "Verdict", "advance"]

Verdict: TypeAlias = Literal["completed", "failed", "cancelled"]
Step: TypeAlias = Literal["opened", "started", "joining", "closing", "retried"] | Verdict

# For each transition: the states before it, and the state after it.
STEPS: dict[Step, dict[NodeState, NodeState]] = {
    # The commander's block begins. No event.
    "opened": {"pending": "running"},
    # The body begins.
    "started": {"pending": "running"},
    # The body has ended and children are unfinished, or it returned a node and waits for that. A
    # pending node joins if it is cancelled, or a child fails it, while it has children.
    "joining": {"running": "joining", "pending": "joining"},
    # Body and children have ended and there are final callbacks. No event.
    "closing": {"running": "joining", "pending": "joining", "joining": "joining"},
    # The attempt has ended and another one will begin.
    "retried": {"running": "pending", "joining": "pending", "pending": "pending"},
    "completed": {"running": "completed", "joining": "completed"},
    # A pending node may end without its body: cancelled, or failed by a child or by a task factory.
    "failed": {"running": "failed", "joining": "failed", "pending": "failed"},
    "cancelled": {"running": "cancelled", "joining": "cancelled", "pending": "cancelled"},
}
SILENT = frozenset[Step](("opened", "closing"))


def advance(record: Record, step: Step, data: object = None) -> None:
    """Make a transition and publish its event. Raises `KeyError` if the table does not have it.

    The hottest callers inline this, which saves five calls for each node (benchmarks/NOTES.md).
    """
    record.state = STEPS[step][record.state]
    record.state_since = record.tree.clock()
    if record.tree.listeners and step not in SILENT:
        publish(record, step, data)  # type: ignore[arg-type]
