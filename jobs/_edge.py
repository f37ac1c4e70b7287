"""Edges: a node that has completed starts the next, along a graph that may have cycles.

An edge is a callback and nothing more, so it goes with whatever else happens to the node. The next
node becomes a child of the first one's parent: beside it, not below it. `Graph` is such a parent,
which ends when the graph does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeAlias, TypeGuard, TypeVar, cast, overload

from ..commander import Node
from ..commander.kinds import FUNCTION, require
from ..commander.pattern import keep_template, start
from ._job import Job

__all__ = ["Graph", "Target", "add_conditional_edge", "add_edge"]

N = TypeVar("N", bound=Node[Any])
Sources = TypeVar("Sources", bound=tuple[Node[Any], ...])

Maker: TypeAlias = Callable[..., Node[Any]]

Target: TypeAlias = Node[Any] | Maker
"""Where an edge leads: a node, or a function that makes one from what has completed."""


class Graph(Job[Any]):
    """Run the nodes at which a graph begins, and all to which edges lead, to the end.

        add_edge((fetch, look_up), write)
        text = await commander.run(Graph(fetch, look_up))

    Its result is that of the node where the graph ended: of the last one that started among those
    that led nowhere further. A node that fails or is cancelled fails the graph, which cancels the
    others. A graph with `retry` begins anew with copies. The graph itself stays in this process: to
    send it, or to copy it by `deepcopy`, is a `TypeError`; its nodes may go elsewhere.
    """

    def __init__(self, *starts: Node[Any]) -> None:
        if not starts:
            raise ValueError("a graph needs a node at which it begins")
        _keep_patterns(starts)
        self._starts = _Starts(starts)

    async def task(self) -> Any:
        """Wait for each node; those to which it leads start before its wait is over."""
        self._unfinished: deque[Node[Any]] = deque()  # in the order in which they started
        self._leading: set[int] = set()  # the ids of those unfinished that led on
        self._joins: dict[_Join, dict[int, Node[Any]]] = {}  # what each has waited for so far
        result = None
        for node in self._starts:
            self._unfinished.append(start(node, self))
        while self._unfinished:
            node = self._unfinished[0]
            given = await node
            if node.node_id not in self._leading:
                result = given
            self._leading.discard(node.node_id)
            self._unfinished.popleft()
        return result


@overload
def add_edge(source: N, target: Target) -> N: ...
@overload
def add_edge(source: Sources, target: Target) -> Sources: ...
def add_edge(source: Node[Any] | tuple[Node[Any], ...], target: Target) -> Any:
    """Start `target` whenever `source`, or a copy of it, has completed. Returns `source`.

    With several sources, `add_edge((a, b), c)`, the target starts once, when all have completed; in
    a cycle, once more when all have completed again. One of them that fails, is cancelled or never
    starts, keeps it from starting. A function as target is called with all that have completed, in
    the order of the sources.

    A node has any number of edges; they are followed in the order in which they were added. The
    first time, `target` itself runs; each further time, as in a cycle, a copy with the same inputs
    and callbacks (its edges among them). Inputs are those from before the node's first edge was
    added, and the copies share them: a list or an object given as data is the same one for all.
    Callbacks are those from before its body began: what a run adds is its own. The options of the
    put (priority, timeout, retry, policy, place, limits) go with the copies too.
    Nodes must not have started when they get an edge: `RuntimeError`. How a node ends counts once
    its other callbacks have run: one that has recovered follows its edges, and one that fails, in a
    callback too, or is cancelled follows none. Awaiting a target does not start it, since its edge
    does: that is a `RuntimeError`; await the `Graph`.
    """
    if isinstance(source, tuple):
        _Join(source, target)
    else:
        _keep_patterns((source,), target)
        _when_completed(source, lambda node: _follow((node,), target))
    return source


def add_conditional_edge(
    source: N, targets: Mapping[Any, Target], *, default: Target | None = None
) -> N:
    """Start the target that `source`'s result names, once it has completed. Returns `source`.

    A result that is not among `targets` leads to `default`, and without one the path ends there.
    A result that cannot be a key (it is not hashable) fails the node. The rest is as in `add_edge`.
    """
    require(targets, Mapping, "the targets must be a mapping from results to nodes")
    _keep_patterns((source,), *targets.values(), default)
    chosen = dict(targets)

    def follow(node: Node[Any]) -> None:
        target = chosen.get(node.result, default)
        if target is not None:
            _follow((node,), target)

    _when_completed(source, follow)
    return source


class _Starts(tuple[Node[Any], ...]):
    """The nodes at which a graph begins: copies of them would have no edges."""

    def __reduce__(self) -> Any:
        raise TypeError("a graph cannot be sent or copied: its nodes would lose their edges")


class _Join:
    """An edge with several sources."""

    def __init__(self, sources: tuple[Node[Any], ...], target: Target) -> None:
        if not sources:
            raise ValueError("an edge needs a node from which it leads")
        _keep_patterns(sources, target)
        # By identity: a user's nodes may be equal.
        distinct = {id(source): source for source in sources}.values()
        self.count = len(distinct)
        self.target = target
        self.completed: dict[int, Node[Any]] = {}  # outside a graph, which keeps its own
        for number, source in enumerate(distinct):
            _when_completed(source, partial(self.arrive, number))

    def arrive(self, number: int, node: Node[Any]) -> None:
        """Note that a source, or a copy of it, has completed; follow the edge if all have."""
        parent = node.parent
        completed = self.completed
        if isinstance(parent, Graph):
            completed = parent._joins.setdefault(self, {})
        completed[number] = node
        if len(completed) == self.count:
            nodes = [completed[number] for number in range(self.count)]
            completed.clear()
            _follow(nodes, self.target)


def _when_completed(source: Node[Any], follow: Callable[[Node[Any]], None]) -> None:
    """Call `follow` once `source` has completed, whatever its callbacks make of how it ends."""

    def last(node: Node[Any]) -> None:
        if node.error is None:
            follow(node)

    # Added only at the end, it comes after all others: one may still recover the node, or fail it.
    source.at_done(lambda node: node.at_done(last))


def _keep_patterns(sources: Iterable[Node[Any]], *targets: Target | None) -> None:
    sources = [*sources]
    for each in targets:
        require(each, Node | FUNCTION | None, "where an edge leads must be a node or a function")
    for node in sources:
        require(
            node, Node, "a graph and an edge must begin at a node, or an edge at several, (a, b)"
        )
    for node in sources:
        keep_template(node)
    for node in filter(_is_node, targets):
        # One that leads to itself may be where the graph begins.
        keep_template(node, awaits_edge=all(node is not each for each in sources))


def _is_node(target: Target | None) -> TypeGuard[Node[Any]]:
    return isinstance(target, Node)


def _follow(sources: Iterable[Node[Any]], target: Target) -> None:
    *_, last = sources
    parent = last.parent
    assert parent is not None
    node = start(target if _is_node(target) else cast("Maker", target)(*sources), parent)
    if isinstance(parent, Graph):
        parent._leading.add(last.node_id)
        parent._unfinished.append(node)
