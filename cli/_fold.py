"""Which nodes of a tree are shown where there is no room for all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice, zip_longest

from ..tracing import Trace, TraceNode
from ._survey import Survey

__all__ = ["Choice", "choose"]

# Nodes of one name below one parent that are shown before others of the same; how many nodes are
# looked at for that, and below how many of the first.
ALIKE, LOOKED_AT, FEW = 4, 2000, 3


class Choice:
    """Nodes that are chosen until their lines, with those of what is folded, fill the room."""

    def __init__(self, trace: Trace, room: int) -> None:
        self._room = room
        self.lines = 1  # what is folded below the root
        self.shown: set[TraceNode] = {trace.root}
        # Of a chain that is too long to be shown whole, those that are left out of it.
        self.passed: set[TraceNode] = set()
        # How many those are, by the first of them.
        self.chains: dict[TraceNode, int] = {}
        self._hidden: dict[TraceNode, int] = {trace.root: len(trace.root.children)}

    def add(self, node: TraceNode) -> bool:
        """Show a node, and those above it, if there is room."""
        if node in self.shown:
            return True
        path: list[TraceNode] = []
        above: TraceNode | None = node
        while above is not None and above not in self.shown and above not in self.passed:
            path.append(above)
            above = above.parent
        path.reverse()
        most = max(4, self._room // 2)
        kept = path if len(path) <= most else [*path[:2], *path[2 - most :]]
        hidden: dict[TraceNode, int] = {}
        if above in self._hidden:
            hidden[above] = self._hidden[above] - 1
        inner = set(path[:-1])
        for each in kept:
            hidden[each] = len(each.children) - (each in inner)
        before = sum(1 for each in hidden if self._hidden.get(each))
        lines = len(kept) + sum(1 for many in hidden.values() if many) - before
        lines += len(kept) < len(path)
        if self.lines + lines > self._room:
            return False
        self.lines += lines
        self._hidden.update(hidden)
        self.shown.update(kept)
        if len(kept) < len(path):
            self.passed.update(path[2 : len(path) - most + 2])
            self.chains[path[2]] = len(path) - most
        return True

    def below(self) -> dict[TraceNode, list[TraceNode]]:
        """Return the children of each node that are shown, or lead to such nodes, in order."""
        found: dict[TraceNode, list[TraceNode]] = {}
        for node in sorted(self.shown | self.passed, key=lambda node: (node.put, node.number)):
            if node.parent is not None:
                found.setdefault(node.parent, []).append(node)
        return found

    def add_last(self) -> None:
        """Show those that take no more room than what stands for them."""
        for node, many in tuple(self._hidden.items()):
            if many == 1:
                for child in node.children:
                    if child not in self.shown and child not in self.passed:
                        self.add(child)


def choose(survey: Survey, room: int) -> Choice:
    """Choose what works and what failed in turn, the oldest first; then the newest of the rest.

    What waits for its children comes with them. Of many that are alike, most come after the top of
    the tree.
    """
    choice = Choice(survey.trace, room)
    busy = (node for node in survey.running if not survey.open.get(node))
    running, more_running = _some_of_each(busy, room)
    bad, more_bad = _some_of_each(survey.bad, room)
    top, _ = _some_of_each(_top(survey), room)
    for nodes in (
        _in_turn(running, bad),
        top,
        _in_turn(more_running, more_bad),
        islice(survey.running, room),
        islice(reversed(survey.other), room),
    ):
        for node in nodes:
            choice.add(node)
        if choice.lines >= room:
            break
    choice.add_last()
    return choice


def _some_of_each(nodes: Iterable[TraceNode], most: int) -> tuple[list[TraceNode], list[TraceNode]]:
    """Return the first few of each name below one parent, and the first of the rest."""
    some: list[TraceNode] = []
    more: list[TraceNode] = []
    seen = Counter[tuple[TraceNode | None, str]]()
    for node in islice(nodes, LOOKED_AT):
        kind = node.parent, node.name
        seen[kind] += 1
        if seen[kind] <= ALIKE:
            some.append(node)
            if len(some) == most:
                break
        elif len(more) < most:
            more.append(node)
    return some, more


def _in_turn(*lists: list[TraceNode]) -> Iterator[TraceNode]:
    return (node for each in zip_longest(*lists) for node in each if node is not None)


def _top(survey: Survey) -> Iterator[TraceNode]:
    """Yield nodes of the two upper levels, the last first."""
    first = survey.trace.root.children
    for nodes in (first, *(each.children for each in first[:FEW])):
        yield from filter(survey.other.__contains__, islice(reversed(nodes), LOOKED_AT))
