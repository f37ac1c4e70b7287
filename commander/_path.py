"""Where a node stands, as text: made on demand, and short however deep the tree."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._node import Node

__all__ = ["node_path"]

SEGMENTS = 32
HALF = SEGMENTS // 2


def node_path(node: Node[Any]) -> str:
    """Return the path from the root, its middle left out beyond `SEGMENTS` segments.

    A failure that goes up a deep tree asks for the path of one node after the other: so the walk
    to the root, which only a long path needs, is made once for nodes that are near each other.
    """
    below = [node, *islice(node.ancestors, SEGMENTS)]
    if len(below) <= SEGMENTS:
        return _joined(below)
    depth, top = _find_landmark(node, below)
    return f"{top}/...{depth - SEGMENTS} more.../{_joined(below[:HALF])}"


def _find_landmark(node: Node[Any], below: list[Node[Any]]) -> tuple[int, str]:
    """Return how many segments the path of `node` has, and the uppermost of them."""
    commander = node._n_commander
    number, depth, top = commander._n_landmark
    for distance, each in enumerate(below):
        if each._n_id == number:
            depth += distance
            break
    else:
        nodes = [node, *node.ancestors]
        depth, top = len(nodes), _joined(nodes[-HALF:])
    commander._n_landmark = (below[HALF]._n_id, depth - HALF, top)
    return depth, top


def _joined(nodes: list[Node[Any]]) -> str:
    return "/".join(map(_segment, reversed(nodes)))


def _segment(node: Node[Any]) -> str:
    return f"{node._n_name}#{node._n_id}" if node._n_id else node._n_name
