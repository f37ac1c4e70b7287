"""Edges: a completed node starts the next one, in a graph that may have cycles.

An edge is only a callback, so it works with everything else that happens to the node. The next node
becomes a child of the first one's parent: a sibling, not a child. `Graph` is such a parent, and
ends with its nodes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
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
"""The target of an edge: a node, or a function that makes one from the completed nodes."""

SOURCE_DEMAND = "the source of an edge must be a node, or several in a tuple, (a, b)"


class Graph(Job[Any]):
    """Run the given nodes and all nodes that edges start, until all have ended.

        add_edge((fetch, look_up), write)
        text = await commander.run(Graph(fetch, look_up))

    The result is that of the last node: the last to start among those that started no other. A node
    that fails or is cancelled fails the graph, which cancels the others. A graph with `retry`
    starts again with copies. The graph itself stays in this process: to send it or to copy it by
    `deepcopy` raises `TypeError`. Its nodes may run in other processes.
    """

    def __init__(self, *starts: Node[Any]) -> None:
        if not starts:
            raise ValueError("a graph needs at least one node to begin with")
        _keep_templates("a graph must begin at a node", starts)
        self._starts = _Starts(starts)

    async def task(self) -> Any:
        """Wait for each node. The nodes that it starts are started before its wait ends."""
        self._unfinished: deque[Node[Any]] = deque()  # in the order of their start
        self._leading: set[int] = set()  # ids of unfinished nodes that started another one
        self._joins: dict[_Join, dict[int, Node[Any]]] = {}  # the completed sources of each
        result = None
        for node in self._starts:
            self._unfinished.append(start(node, self))
        while self._unfinished:
            node = self._unfinished[0]
            value = await node
            if node.node_id not in self._leading:
                result = value
            self._leading.discard(node.node_id)
            self._unfinished.popleft()
        return result


@overload
def add_edge(source: N, target: Target) -> N: ...
@overload
def add_edge(source: Sources, target: Target) -> Sources: ...
def add_edge(source: Node[Any] | tuple[Node[Any], ...], target: Target) -> Any:
    """Start `target` whenever `source`, or a copy of it, has completed. Returns `source`.

        add_edge(draft, review)
        result = await commander.run(Graph(draft))

    With several sources, `add_edge((a, b), c)`, the target starts when all have completed; in a
    cycle, again when all have completed again. If one fails, is cancelled or never starts, the
    target does not start. A target function is called with the completed nodes, in the order of the
    sources.

    A node's edges are followed in the order of their addition. The first time `target` itself runs.
    After that, as in a cycle, a copy runs with the same inputs, callbacks (with its edges) and
    options of the put (priority, timeout, retry, policy, place, limits). A copy gets the inputs
    that the node had before its first edge was added, and shares them: a list or an object is the
    same one for all. It gets the callbacks that the node had before its body began.

    Raises `RuntimeError` if a node has started already. Edges are followed after the node's other
    callbacks: a node that recovered follows its edges; one that fails, also in a callback, or is
    cancelled follows none. Awaiting a target does not start it, because its edge does, and raises
    `RuntimeError`; await the `Graph`.
    """
    if isinstance(source, tuple):
        _Join(source, target)
    else:
        _keep_templates(SOURCE_DEMAND, (source,), target)
        _when_completed(source, lambda node: _follow((node,), target))
    return source


def add_conditional_edge(
    source: N, targets: Mapping[Any, Target], *, default: Target | None = None
) -> N:
    """Start the target for `source`'s result, when it has completed. Returns `source`.

        add_conditional_edge(review, {"good": publish, "bad": draft})

    A result that is not in `targets` starts `default`; without one the path ends there. A result
    that is not hashable fails the node. Otherwise this works as `add_edge`.
    """
    require(targets, Mapping, "the targets must be a mapping from results to nodes")
    wanted = "the source of a conditional edge must be a single node"
    _keep_templates(wanted, (source,), *targets.values(), default)
    chosen = dict(targets)

    def follow(node: Node[Any]) -> None:
        target = chosen.get(node.result, default)
        if target is not None:
            _follow((node,), target)

    _when_completed(source, follow)
    return source


class _Starts(tuple[Node[Any], ...]):
    """The nodes at which a graph begins. Copies of them would lose their edges."""

    def __reduce__(self) -> Any:
        raise TypeError(
            "a graph cannot be sent or copied, because its nodes would lose their edges"
        )


class _Join:
    """An edge with several sources."""

    def __init__(self, sources: tuple[Node[Any], ...], target: Target) -> None:
        if not sources:
            raise ValueError("an edge needs at least one source")
        _keep_templates(SOURCE_DEMAND, sources, target)
        # By identity, because a user's nodes may be equal.
        distinct = {id(source): source for source in sources}.values()
        self.count = len(distinct)
        self.target = target
        # outside a graph; in one, `Graph._joins` has them
        self.completed: dict[int, Node[Any]] = {}
        for number, source in enumerate(distinct):
            _when_completed(source, partial(self.arrive, number))

    def arrive(self, number: int, node: Node[Any]) -> None:
        """Count a source, or a copy of it, as completed; follow the edge if all have completed."""
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
    """Call `follow` when `source` has completed, after all its callbacks."""

    def follow_if_completed(node: Node[Any]) -> None:
        if node.error is None:
            follow(node)

    # Added at the end, so that it runs after all other callbacks, which may still recover or fail
    # the node.
    source.at_done(lambda node: node.at_done(follow_if_completed))


def _keep_templates(wanted: str, sources: Sequence[Node[Any]], *targets: Target | None) -> None:
    """Prepare the nodes for copies. If a source is not a node, raise `TypeError`: `wanted`."""
    for each in targets:
        require(each, Node | FUNCTION | None, "the target of an edge must be a node or a function")
    for node in sources:
        require(node, Node, wanted)
    for node in sources:
        keep_template(node)
    for node in filter(_is_node, targets):
        # A node with an edge to itself may be the beginning of the graph.
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
