"""The states of a node: the table of all steps from one to another, and their one writer.

    pending ──> running ──> joining ──> completed | failed | cancelled

A node is `pending` until its body begins, `running` while it runs, `joining` while children are
alive or final callbacks run. What is in no row cannot happen.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from ._events import publish
from ._record import NodeState, Record

__all__ = ["Step", "Verdict", "advance"]

Verdict: TypeAlias = Literal["completed", "failed", "cancelled"]
Step: TypeAlias = Literal["opened", "started", "joining", "closing", "retried"] | Verdict

# For each step the states from which it can be made, and where it leads.
STEPS: dict[Step, dict[NodeState, NodeState]] = {
    # The commander's block begins. Nobody is told of it.
    "opened": {"pending": "running"},
    # The body begins.
    "started": {"pending": "running"},
    # The body is over and children are alive, or it has returned a node and waits for that. A node
    # that has not begun may be cancelled, or failed by a child, while children are alive.
    "joining": {"running": "joining", "pending": "joining"},
    # Body and children are over and there are final callbacks. Nobody is told of it.
    "closing": {"running": "joining", "pending": "joining", "joining": "joining"},
    # The attempt has failed, or its node is one that is kept alive: the next one is to begin.
    "retried": {"running": "pending", "joining": "pending", "pending": "pending"},
    "completed": {"running": "completed", "joining": "completed"},
    # A node may end without having begun: cancelled, or failed by a child or whoever ran its task.
    "failed": {"running": "failed", "joining": "failed", "pending": "failed"},
    "cancelled": {"running": "cancelled", "joining": "cancelled", "pending": "cancelled"},
}
SILENT = frozenset[Step](("opened", "closing"))


def advance(record: Record, step: Step, data: object = None) -> None:
    """Make a step, and tell those who listen. A step that the table does not have is a KeyError."""
    record.state = STEPS[step][record.state]
    record.state_since = record.tree.clock()
    if record.tree.listeners and step not in SILENT:
        publish(record, step, data)  # type: ignore[arg-type]
