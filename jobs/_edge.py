"""Edges: a node that has completed starts the next, along a graph that may have cycles.

An edge is an `at_end` callback and nothing more, so it goes with whatever else happens to the
node. The next node becomes a child of the first one's parent: beside it, not below it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeGuard, TypeVar, cast

from ..commander import Callback, Node
from ..commander._record import STATE

__all__ = ["Target", "add_conditional_edge", "add_edge"]

N = TypeVar("N", bound=Node[Any])

Maker: TypeAlias = Callable[[Any], Node[Any]]

# At the start, at the end with their moments, and at the commander's end.
_Callbacks: TypeAlias = tuple[list[Callback], list[Any], list[Callback]]

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
        if node.parent is not None:
            raise RuntimeError(f"{node!r} has started: give it its edges before")
        if node._n_pattern is None:
            node._n_pattern = _Pattern(node)


class _Pattern:
    """What the copies of a node are made of: its inputs, and the callbacks that its maker added."""

    def __init__(self, node: Node[Any]) -> None:
        self.inputs = {name: value for name, value in vars(node).items() if name not in STATE}
        # As they were when the first run began: what it adds itself is not for the others.
        self.callbacks: _Callbacks | None = None
        node.at_start(self.begin)
        assert node._n_starts is not None
        node._n_starts.insert(0, node._n_starts.pop())  # before one that adds callbacks

    def begin(self, node: Node[Any]) -> None:
        """Note the callbacks of `node`, whose body is about to begin."""
        if self.callbacks is None:
            self.callbacks = _callbacks_of(node)


def _callbacks_of(node: Node[Any]) -> _Callbacks:
    # The other kind of `after` belongs to somebody who waits for this very node.
    after = [callback for moment, callback in node._n_after or () if moment == "commander_end"]
    return list(node._n_starts or ()), list(node._n_callbacks or ()), after


def _is_node(target: Target | None) -> TypeGuard[Node[Any]]:
    return isinstance(target, Node)


def _follow(source: Node[Any], target: Target) -> None:
    parent = source.parent
    assert parent is not None
    node = target if _is_node(target) else cast("Maker", target)(source)
    attempts, priority = node._n_attempts, node._n_priority
    options: dict[str, Any] = {"policy": node._n_policy}
    if node._n_away is not None:
        options["on"] = node._n_away.place
    if attempts is not None:
        options |= {"timeout": attempts.timeout, "retry": attempts.retry}
    if node.parent is not None:
        node = _copy(node)
    if node._n_queued:
        parent.put_job(node, priority=priority, **options)
    else:
        parent.call_handler(node, **options)


def _copy(node: Node[Any]) -> Node[Any]:
    """Return a node that has not started, with the inputs and callbacks of one that has."""
    pattern: _Pattern | None = node._n_pattern
    if pattern is None:
        raise RuntimeError(f"an edge's function returned {node!r}, which has started before")
    copy = object.__new__(type(node))
    vars(copy).update(pattern.inputs)
    copy._n_pattern = pattern
    starts, callbacks, after = pattern.callbacks or _callbacks_of(node)
    for callback in starts:
        copy.at_start(callback)
    copy._n_callbacks = [*callbacks]
    for callback in after:
        copy.at_commander_end(callback)
    return copy
