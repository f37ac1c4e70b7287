"""The totals of a tree, and the choice of the nodes that get a line on the screen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest

from ..tracing import Trace, TraceNode

__all__ = ["NO_USAGE", "CollapsedNodes", "TreeSummary", "TreeUsage", "name_state", "visible_rows"]

# `MAX_ALIKE` siblings with the same name get lines first; more of them get lines only after nodes
# with other names. `MAX_EXAMINED` nodes of each list are considered. The newest nodes are looked
# for in the first level and among the children of its first `FIRST_PARENTS` nodes.
MAX_ALIKE, MAX_EXAMINED, FIRST_PARENTS = 4, 2000, 3
OPEN_STATES = ("pending", "running", "joining")


@dataclass(frozen=True, slots=True)
class TreeUsage:
    """Tokens, and their cost in so far as prices are known."""

    input: int = 0
    output: int = 0
    cost: float | None = None

    def plus(self, other: TreeUsage, sign: int = 1) -> TreeUsage:
        """Return the sum, or the difference for a sign of -1."""
        cost = self.cost if other.cost is None else (self.cost or 0.0) + sign * other.cost
        return TreeUsage(self.input + sign * other.input, self.output + sign * other.output, cost)


NO_USAGE = TreeUsage()


def name_state(node: TraceNode) -> str:
    """Return the state of a node, "call failed" for a tool call that ended without a result."""
    return "call failed" if node.status and node.is_bad and not node.is_open else node.state


class TreeSummary:
    """The totals of a trace without its root. `update` processes the changed nodes only.

    So the time for a frame depends on the changes and not on the size of the tree.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.counts = Counter[str]()  # nodes by state
        # For each node with children: the number of nodes below it, of its open children, and of
        # its children by name and state.
        self.below = Counter[TraceNode]()
        self.open = Counter[TraceNode]()
        self.kinds: dict[TraceNode, Counter[tuple[str, str]]] = {}
        # The usage of a node and all nodes below it; nodes without usage are missing.
        self.usage: dict[TraceNode, TreeUsage] = {}
        # Nodes by the order of their last change of state, so the oldest come first.
        self.running: dict[TraceNode, None] = {}
        self.failed: dict[TraceNode, None] = {}
        self.other: dict[TraceNode, None] = {}
        self._states: dict[TraceNode, str] = {}
        self._own_usage: dict[TraceNode, TreeUsage] = {}
        trace.changed = dict.fromkeys(trace.root.walk())

    def update(self) -> None:
        """Process the nodes that have changed since the last call."""
        changed = self.trace.changed or {}
        self.trace.changed = {}
        for node in changed:
            if node.parent is not None:
                self._update_state(node, node.parent)
            if node.usage or node in self._own_usage:
                self._update_usage(node)

    def _update_state(self, node: TraceNode, parent: TraceNode) -> None:
        state, before = name_state(node), self._states.get(node)
        if state == before:
            return
        self._states[node] = state
        kinds = self.kinds.setdefault(parent, Counter())
        if before is None:
            for above in parent.upwards():
                self.below[above] += 1
        else:
            self.counts[before] -= 1
            kinds[node.name, before] -= 1
            if self._group(before) is not self._group(state):
                self._group(before).pop(node, None)
            self.open[parent] -= before in OPEN_STATES
        self.counts[state] += 1
        kinds[node.name, state] += 1
        self._group(state)[node] = None
        self.open[parent] += state in OPEN_STATES

    def _group(self, state: str) -> dict[TraceNode, None]:
        if state in ("running", "joining"):
            return self.running
        return self.failed if state in ("failed", "call failed") else self.other

    def _update_usage(self, node: TraceNode) -> None:
        before = self._own_usage.get(node, NO_USAGE)
        now = TreeUsage(
            sum(used.input_tokens for used in node.usage.values()),
            sum(used.output_tokens for used in node.usage.values()),
            self.trace.cost(node.usage),
        )
        if now == before:
            return
        self._own_usage[node] = now
        for above in node.upwards():
            self.usage[above] = self.usage.get(above, NO_USAGE).plus(now).plus(before, -1)


@dataclass(frozen=True, slots=True)
class CollapsedNodes:
    """A line that stands for hidden nodes: for children of `node`, or for `levels` of a chain."""

    node: TraceNode
    shown: Sequence[TraceNode] = ()  # children with a line, or with a line below them
    levels: int = 0


def visible_rows(
    summary: TreeSummary, room: int
) -> Iterator[tuple[TraceNode | CollapsedNodes, str]]:
    """Yield the items for at most `room` lines, parents first, each with its tree guides."""
    root = summary.trace.root
    choice = None if summary.below[root] <= room else _choose(summary, room)
    children = None if choice is None else choice.children()
    # Each item with the guides of its siblings, and whether it is the last sibling.
    stack: list[tuple[TraceNode | CollapsedNodes, str, bool]] = []

    def push(node: TraceNode, guides: str) -> None:
        below: list[TraceNode | CollapsedNodes] = [*node.children]
        if choice is not None and children is not None:
            shown = children.get(node, [])
            below = [*shown]
            if len(shown) < len(node.children) and node in choice.shown:
                below.append(CollapsedNodes(node, shown))
        stack.extend((each, guides, not place) for place, each in enumerate(reversed(below)))

    push(root, "")
    while stack:
        item, guides, last = stack.pop()
        if isinstance(item, CollapsedNodes):
            yield item, f"{guides}└ "
        elif choice is not None and item in choice.skipped:
            if levels := choice.chains.get(item):
                yield CollapsedNodes(item, levels=levels), guides
            push(item, guides)
        elif item.parent is root:
            yield item, ""
            push(item, "")
        else:
            yield item, guides + ("└ " if last else "├ ")
            push(item, guides + ("  " if last else "│ "))


class _Choice:
    """Chooses nodes until their lines, and the lines for collapsed nodes, fill the room."""

    def __init__(self, root: TraceNode, room: int) -> None:
        self._room = room
        self.lines = 1  # the line for collapsed children of the root
        self.shown = {root}
        # Hidden inner nodes of chains that are too long; for the first of each chain, their number.
        self.skipped: set[TraceNode] = set()
        self.chains: dict[TraceNode, int] = {}
        # For each shown node, the number of children without a line.
        self._hidden = {root: len(root.children)}

    def add(self, node: TraceNode) -> None:
        """Show a node and the nodes above it, if there is room."""
        path: list[TraceNode] = []
        above: TraceNode | None = node
        while above is not None and above not in self.shown and above not in self.skipped:
            path.append(above)
            above = above.parent
        if not path:
            return
        path.reverse()
        limit = max(4, self._room // 2)
        skipped = path[2 : len(path) - limit + 2] if len(path) > limit else []
        visible = [*path[:2], *path[len(skipped) + 2 :]]
        hidden = {each: len(each.children) - (each is not node) for each in visible}
        if above in self._hidden:
            hidden[above] = self._hidden[above] - 1
        collapsed_before = sum(1 for each in hidden if self._hidden.get(each))
        collapsed = sum(1 for many in hidden.values() if many)
        lines = len(visible) + bool(skipped) + collapsed - collapsed_before
        if self.lines + lines > self._room:
            return
        self.lines += lines
        self._hidden |= hidden
        self.shown.update(visible)
        self.skipped.update(skipped)
        if skipped:
            self.chains[skipped[0]] = len(skipped)

    def add_single(self) -> None:
        """Show each node that would be alone behind a collapsed line, which needs the same room."""
        for node, hidden in tuple(self._hidden.items()):
            if hidden == 1:
                for child in node.children:
                    if child not in self.skipped:
                        self.add(child)

    def children(self) -> dict[TraceNode, list[TraceNode]]:
        """Return the children of each node that are shown or lead to shown nodes, in order."""
        found: dict[TraceNode, list[TraceNode]] = {}
        for node in sorted(self.shown | self.skipped, key=lambda node: (node.put, node.number)):
            if node.parent is not None:
                found.setdefault(node.parent, []).append(node)
        return found


def _choose(summary: TreeSummary, room: int) -> _Choice:
    """Choose running and failed nodes alternately, oldest first, then the newest of the others.

    A node that only waits for its children appears together with them. Of many siblings with the
    same name, a few are chosen first, and more of them only if lines are left.
    """
    choice = _Choice(summary.trace.root, room)
    busy = (node for node in summary.running if not summary.open.get(node))
    running, more_running = _some_of_each(busy, room)
    failed, more_failed = _some_of_each(summary.failed, room)
    first = summary.trace.root.children
    newest = (
        node
        for nodes in (first, *(each.children for each in first[:FIRST_PARENTS]))
        for node in islice(reversed(nodes), MAX_EXAMINED)
        if node in summary.other
    )
    for nodes in (
        _alternate(running, failed),
        _some_of_each(newest, room)[0],
        _alternate(more_running, more_failed),
        islice(summary.running, room),
        islice(reversed(summary.other), room),
    ):
        for node in nodes:
            choice.add(node)
        if choice.lines >= room:
            break
    choice.add_single()
    return choice


def _some_of_each(
    nodes: Iterable[TraceNode], limit: int
) -> tuple[list[TraceNode], list[TraceNode]]:
    """Return the first few siblings of each name, and then the first of the remaining nodes."""
    some: list[TraceNode] = []
    more: list[TraceNode] = []
    seen = Counter[tuple[TraceNode | None, str]]()
    for node in islice(nodes, MAX_EXAMINED):
        seen[node.parent, node.name] += 1
        if seen[node.parent, node.name] <= MAX_ALIKE:
            some.append(node)
            if len(some) == limit:
                break
        elif len(more) < limit:
            more.append(node)
    return some, more


def _alternate(*lists: list[TraceNode]) -> Iterator[TraceNode]:
    return (node for each in zip_longest(*lists) for node in each if node is not None)
