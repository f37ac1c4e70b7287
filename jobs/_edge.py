"""Edges: a node that has completed starts the next, along a graph that may have cycles.

An edge is an `at_end` callback and nothing more, so it goes with whatever else happens to the
node. The next node becomes a child of the first one's parent: beside it, not below it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeGuard, TypeVar, cast

from ..commander import Node
from ..commander.pattern import keep_pattern, start

__all__ = ["Target", "add_conditional_edge", "add_edge"]

N = TypeVar("N", bound=Node[Any])

Maker: TypeAlias = Callable[[Any], Node[Any]]

Target: TypeAlias = Node[Any] | Maker
"""Where an edge leads: a node, or a function that makes one from the node that has completed."""


def add_edge(source: N, target: Target) -> N:
    """Start `target` whenever `source`, or a copy of it, has completed. Returns `source`.

    A node has any number of edges; they are followed in the order in which they were added. The
    first time, `target` itself runs; each further time, as in a cycle, a copy with the same inputs
    and callbacks (its edges among them). Inputs are those from before the node's first edge was
    added, and the copies share them: a list or an object given as data is the same one for all.
    Callbacks are those from before its body began: what a run adds is its own. The options of the
    put (priority, timeout, retry, policy, place) go with the copies too.
    Nodes must not have started when they get an edge: `RuntimeError`. A node that fails or is
    cancelled follows no edge.
    """
    _keep_pattern(source, target)
    source.at_end(lambda node: _follow(node, target))
    return source


def add_conditional_edge(
    source: N, targets: Mapping[Any, Target], *, default: Target | None = None
) -> N:
    """Start the target that `source`'s result names, once it has completed. Returns `source`.

    A result that is not among `targets` leads to `default`, and without one the path ends there.
    A result that cannot be a key (it is not hashable) fails the node. The rest is as in `add_edge`.
    """
    _keep_pattern(source, *targets.values(), default)
    chosen = dict(targets)

    def follow(node: Node[Any]) -> None:
        target = chosen.get(node.result, default)
        if target is not None:
            _follow(node, target)

    source.at_end(follow)
    return source


def _keep_pattern(*ends: Target | None) -> None:
    for node in filter(_is_node, ends):
        keep_pattern(node)


def _is_node(target: Target | None) -> TypeGuard[Node[Any]]:
    return isinstance(target, Node)


def _follow(source: Node[Any], target: Target) -> None:
    parent = source.parent
    assert parent is not None
    start(target if _is_node(target) else cast("Maker", target)(source), parent)
