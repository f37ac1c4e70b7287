"""Which node of one trace is which of another.

Each node has a fingerprint of itself and all below it, children in no order: equal ones are the
same, whenever they ran. Of the others the children of two nodes that are the same are paired by
name, and among many of one name by what they have in common. Nothing here calls itself, as trees
may be deep, and no work grows with the square of a fan.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from ._facts import Facts, as_key
from ._trace import Trace, TraceNode

__all__ = ["Pair", "Side", "match"]

# So many pairs of nodes of one name below one node are looked at for the best, and so many in all.
MOST_PAIRS = 4_096
BUDGET = 100_000
# So many nodes below a node say what it is like.
NEAR = 64


class Side:
    """One trace, with what is compared of each node."""

    def __init__(self, trace: Trace, content: bool, numbers: dict[Hashable, int]) -> None:
        self._facts = Facts(trace, content)
        self._looks: dict[TraceNode, tuple[set[tuple[str, str]], Counter[int]]] = {}
        # Of each node: whose work it does; numbers for its own facts, for all below it, for both.
        self.agent: dict[TraceNode, str] = {}
        self.own: dict[TraceNode, int] = {}
        self.below: dict[TraceNode, int] = {}
        self.whole: dict[TraceNode, int] = {}
        nodes = list(trace.root.walk())
        for node in nodes:
            above = "" if node.parent is None else self.agent[node.parent]
            agent = self.agent[node] = node.own_agent or above
            requests = sorted(map(as_key, self.requests(node)))
            own = (as_key(self.facts(node)), agent != above and agent, *requests)
            self.own[node] = numbers.setdefault(own, len(numbers))
        for node in reversed(nodes):
            below = tuple(sorted(self.whole[child] for child in node.children))
            self.below[node] = numbers.setdefault(below, len(numbers))
            both = (self.own[node], self.below[node])
            self.whole[node] = numbers.setdefault(both, len(numbers))

    def facts(self, node: TraceNode) -> dict[str, Any]:
        """Return what is compared of a node, but for its agent and its requests."""
        return self._facts.of(node)

    def requests(self, node: TraceNode) -> list[dict[str, Any]]:
        """Return what is compared of a node's requests."""
        return self._facts.of_requests(node)

    def looks(self, node: TraceNode) -> tuple[set[tuple[str, str]], Counter[int]]:
        """Return what a node is like: its facts, and those of the nodes next below it."""
        if (known := self._looks.get(node)) is not None:
            return known
        facts = {(name, as_key(value)) for name, value in self.facts(node).items()}
        facts |= {
            (f"request {name}", as_key(value))
            for request in self.requests(node)
            for name, value in request.items()
        }
        next_below = node.children[:NEAR]
        for each in next_below:  # which grows meanwhile
            next_below += each.children[: NEAR - len(next_below)]
        near = Counter(self.own[each] for each in next_below)
        self._looks[node] = facts, near
        return facts, near

    def all_but_name(self, node: TraceNode) -> Hashable:
        """Return what a node that was given another name still has."""
        facts = {name: value for name, value in self.facts(node).items() if name != "name"}
        requests = sorted(map(as_key, self.requests(node)))
        return as_key(facts), *requests, self.below[node]

    def call_and_below(self, node: TraceNode) -> Hashable:
        """Return what was called, and what is below it."""
        return _call(node), self.below[node]


class Pair(NamedTuple):
    """A node of each trace, or of one alone. Both are below those of the pair at `above`."""

    before: TraceNode | None
    after: TraceNode | None
    above: int
    same: bool  # with all that is below them


def match(a: Side, b: Side, roots: tuple[TraceNode, TraceNode]) -> list[Pair]:
    """Return all pairs, each before those below it; below a node without a partner there are none.

    The two roots are a pair, whatever they are.
    """
    matcher = _Matcher(a, b)
    pairs: list[Pair] = []
    stack = [Pair(*roots, -1, a.whole[roots[0]] == b.whole[roots[1]])]
    while stack:
        pair = stack.pop()
        pairs.append(pair)
        if pair.before is None or pair.after is None:
            continue
        here = len(pairs) - 1
        for before, after in reversed(matcher.pair_children(pair.before, pair.after)):
            same = before is not None and after is not None and a.whole[before] == b.whole[after]
            stack.append(Pair(before, after, here, same))
    return pairs


class _Matcher:
    def __init__(self, a: Side, b: Side) -> None:
        self._a = a
        self._b = b
        self._budget = BUDGET

    def pair_children(
        self, before: TraceNode, after: TraceNode
    ) -> list[tuple[TraceNode | None, TraceNode | None]]:
        """Pair the children of two nodes: those of the first in their order, then those added."""
        a, b = self._a, self._b
        found: dict[TraceNode, TraceNode] = {}
        xs, ys = _in_order(found, before.children, after.children, a.whole.get, b.whole.get)
        for some, others in _groups(xs, ys):
            self._pair_alike(found, some, others)
        taken = set(found.values())
        xs, ys = [x for x in xs if x not in found], [y for y in ys if y not in taken]
        xs, ys = _in_order(found, xs, ys, a.all_but_name, b.all_but_name)
        # Of what is left, calls took the place of calls: of another tool.
        calls = [x for x in xs if x.tool], [y for y in ys if y.tool]
        _in_order(found, *calls, bool, bool)
        matched = [(each, found.get(each)) for each in before.children]
        taken = set(found.values())
        return [*matched, *((None, each) for each in after.children if each not in taken)]

    def _pair_alike(
        self, found: dict[TraceNode, TraceNode], xs: list[TraceNode], ys: list[TraceNode]
    ) -> None:
        """Pair nodes of one name: those that have most in common, as far as that can be afforded.

        Else those with the same facts, calls with the same arguments (and before them those that
        have the same below them, too), and the rest in order.
        """
        a, b = self._a, self._b
        cost = len(xs) * len(ys)
        if cost > 1 and cost <= min(MOST_PAIRS, self._budget):
            self._budget -= cost
            scored = [
                (-self._likeness(x, y), abs(i - j), i + j, i, j)
                for i, x in enumerate(xs)
                for j, y in enumerate(ys)
            ]
            rows, columns = set[int](), set[int]()
            for *_, i, j in sorted(scored):
                if i not in rows and j not in columns:
                    rows.add(i)
                    columns.add(j)
                    found[xs[i]] = ys[j]
            return
        if cost > 1:
            xs, ys = _in_order(found, xs, ys, a.own.get, b.own.get)
            xs, ys = _in_order(found, xs, ys, a.call_and_below, b.call_and_below)
            xs, ys = _in_order(found, xs, ys, _call, _call)
        found.update(zip(xs, ys, strict=False))

    def _likeness(self, x: TraceNode, y: TraceNode) -> float:
        facts, near = self._a.looks(x)
        others, nearby = self._b.looks(y)
        own = len(facts & others) / max(len(facts), len(others))
        most = max(near.total(), nearby.total())
        return own + ((near & nearby).total() / most if most else 1.0)


def _call(node: TraceNode) -> Hashable:
    return node.tool, node.call_size, as_key(node.arguments)


def _in_order(
    found: dict[TraceNode, TraceNode],
    xs: list[TraceNode],
    ys: list[TraceNode],
    key: Callable[[TraceNode], Hashable],
    other: Callable[[TraceNode], Hashable],
) -> tuple[list[TraceNode], list[TraceNode]]:
    """Pair nodes with equal keys, in order; return those that are left."""
    if not xs or not ys:
        return xs, ys
    waiting: defaultdict[Hashable, deque[TraceNode]] = defaultdict(deque)
    for y in ys:
        waiting[other(y)].append(y)
    taken = set[TraceNode]()
    for x in xs:
        if some := waiting.get(key(x)):
            found[x] = some.popleft()
            taken.add(found[x])
    return [x for x in xs if x not in found], [y for y in ys if y not in taken]


def _groups(
    xs: list[TraceNode], ys: list[TraceNode]
) -> list[tuple[list[TraceNode], list[TraceNode]]]:
    """Return the nodes of each name that is on both sides."""
    named: dict[str, tuple[list[TraceNode], list[TraceNode]]] = {}
    for x in xs:
        named.setdefault(x.name, ([], []))[0].append(x)
    for y in ys:
        named.setdefault(y.name, ([], []))[1].append(y)
    return [group for group in named.values() if group[0] and group[1]]
