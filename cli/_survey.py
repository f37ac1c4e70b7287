"""What a large tree comes to, kept up to date by its changes alone: counts and sums."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ..tracing import Trace, TraceNode

__all__ = ["NOTHING", "Spent", "Survey", "state_of"]


@dataclass(frozen=True, slots=True)
class Spent:
    """What was spent: tokens in and out, and money as far as prices are known."""

    taken: int = 0
    given: int = 0
    cost: float | None = None

    def __add__(self, other: Spent) -> Spent:
        cost = self.cost if other.cost is None else other.cost + (self.cost or 0.0)
        return Spent(self.taken + other.taken, self.given + other.given, cost)

    def __sub__(self, other: Spent) -> Spent:
        cost = self.cost if other.cost is None else (self.cost or 0.0) - other.cost
        return Spent(self.taken - other.taken, self.given - other.given, cost)


NOTHING = Spent()
_OPEN = ("pending", "running", "joining")


def state_of(node: TraceNode) -> str:
    """Return a node's state as it is shown."""
    return "call failed" if node.status and node.is_bad and not node.is_open else node.state


class Survey:
    """The sums of one trace. `update` brings them up to date; the root is not counted.

    A frame of a tree with very many nodes must not look at each of them. States are those of
    `TraceNode`, and "call failed" of a call of a tool that has ended and gave no result.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.counts = Counter[str]()
        # Of each node with children: nodes below it, children that are open, and by name and state.
        self.below = Counter[TraceNode]()
        self.open = Counter[TraceNode]()
        self.kinds: dict[TraceNode, Counter[tuple[str, str]]] = {}
        # What was spent by each node and all below it, where that is anything.
        self.spent: dict[TraceNode, Spent] = {}
        # In the order in which they became so.
        self.running: dict[TraceNode, None] = {}
        self.bad: dict[TraceNode, None] = {}
        self.other: dict[TraceNode, None] = {}
        self._known: dict[TraceNode, str] = {}
        self._own: dict[TraceNode, Spent] = {}
        # What is there already is news too.
        trace.changed = dict.fromkeys(trace.root.walk())

    def update(self) -> None:
        """Take in what has changed since the last call."""
        changed = self.trace.changed or {}
        self.trace.changed = {}
        for node in changed:
            if node.parent is not None:
                self._place(node, node.parent)
            if node.usage or node in self._own:
                self._charge(node)

    def _place(self, node: TraceNode, parent: TraceNode) -> None:
        state, before = state_of(node), self._known.get(node)
        if state == before:
            return
        self._known[node] = state
        kinds = self.kinds.setdefault(parent, Counter())
        if before is None:
            above: TraceNode | None = parent
            while above is not None:
                self.below[above] += 1
                above = above.parent
        else:
            self.counts[before] -= 1
            kinds[node.name, before] -= 1
            if self._shelf(before) is not self._shelf(state):
                self._shelf(before).pop(node, None)
            self.open[parent] -= before in _OPEN
        self.counts[state] += 1
        kinds[node.name, state] += 1
        self._shelf(state)[node] = None
        self.open[parent] += state in _OPEN

    def _shelf(self, state: str) -> dict[TraceNode, None]:
        match state:
            case "running" | "joining":
                return self.running
            case "failed" | "call failed":
                return self.bad
            case _:
                return self.other

    def _charge(self, node: TraceNode) -> None:
        before = self._own.get(node, NOTHING)
        now = Spent(
            sum(used.input_tokens for used in node.usage.values()),
            sum(used.output_tokens for used in node.usage.values()),
            self.trace.cost(node.usage),
        )
        if now == before:
            return
        self._own[node] = now
        more = now - before
        above: TraceNode | None = node
        while above is not None:
            self.spent[above] = self.spent.get(above, NOTHING) + more
            above = above.parent
