"""What agents spend: each call is counted for its agent and its session, however it ends."""

from __future__ import annotations

from threading import Lock
from typing import Any, Generic, TypeVar, cast

from ...commander import Node, payers
from ...messages import Usage
from ._memory import SessionId

__all__ = ["CountedCall", "Spending", "add_usage", "spent_by"]


T_co = TypeVar("T_co", covariant=True)

# An agent may be called in several threads at once.
_counting = Lock()


def spent_by(node: Node[Any]) -> dict[str, Usage]:
    """Return what a node and all below it have spent so far, by model."""
    if not node.node_id:
        return {}
    charges = cast("dict[str, Any]", node.commander.usage(node))  # others may charge any type
    return {model: used for model, used in charges.items() if isinstance(used, Usage)}


def add_usage(total: dict[str, Usage], models: dict[str, Usage]) -> None:
    """Add what was spent to `total`, model by model."""
    for model, used in models.items():
        total[model] = total.get(model, Usage()) + used


class Spending:
    """What one agent has spent, in all and in each session that it remembers."""

    def __init__(self) -> None:
        self.total: dict[str, Usage] = {}
        self.sessions: dict[SessionId, dict[str, Usage]] = {}


class CountedCall(Node[T_co], Generic[T_co], internal=True):
    """A call of an agent in a session: what it takes is counted for both, however it ends."""

    _spending: Spending | None = None
    _session: SessionId | None = None
    _counted = False

    @property
    def usage(self) -> Usage:
        """What it and all below it have taken so far; `commander.usage(call)` has it by model."""
        return sum(spent_by(self).values(), Usage())

    def count_for(self, spending: Spending, session_id: SessionId | None) -> None:
        """Count it at its end, once for all attempts; one inside another of its agent is a part."""
        self._spending, self._session, self._counted = spending, session_id, False
        self.at_done(self._count)

    @staticmethod
    def _count(call: CountedCall[Any]) -> None:
        spending, session_id = call._spending, call._session
        if spending is None or call._counted:
            return
        spent, call._counted = spent_by(call), True
        calls = [each for each in payers(call) if isinstance(each, CountedCall)]
        # One that ended first, as a commander may outlive it, has not counted all of this.
        around = [
            each._session for each in calls if each._spending is spending and not each._counted
        ]
        if spent:
            with _counting:
                if not around:
                    add_usage(spending.total, spent)
                if session_id is not None and session_id not in around:
                    add_usage(spending.sessions.setdefault(session_id, {}), spent)
