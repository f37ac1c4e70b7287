"""Seeing a tree: a snapshot of it, the snapshot as text, and what a node that hangs waits for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ._library import is_library
from ._node import Node
from ._record import DONE, NodeState
from ._waits import awaited, frames, reach

__all__ = ["NodeSnapshot", "TreeSnapshot", "draw", "explain", "snapshot"]

LINES = 200
LEAVES = 20


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """What one node was at the moment of the snapshot.

    `depth` is 0 for the root. `host` is the machine, if the node runs on another one.
    """

    node_id: int
    parent_id: int | None
    depth: int
    name: str
    state: NodeState
    children: int
    cancelling: bool
    host: str | None = None


@dataclass(frozen=True, slots=True)
class TreeSnapshot:
    """The unfinished nodes of a tree, each before its children, those in the order of entry.

    Its string is a drawing, cut off after the first lines of a large tree.
    """

    nodes: tuple[NodeSnapshot, ...]

    def __len__(self) -> int:
        return len(self.nodes)

    def __iter__(self) -> Iterator[NodeSnapshot]:
        return iter(self.nodes)

    def __str__(self) -> str:
        return draw(self)


def snapshot(root: Node[Any]) -> TreeSnapshot:
    """Return a snapshot of the subtree below and with `root`; of any depth, without recursion."""
    nodes: list[NodeSnapshot] = []
    stack = [(root, 0)]
    while stack:
        node, depth = stack.pop()
        children = node.children
        away = () if node._n_away is None else node._n_away.below(depth + 1)
        top = sum(each.depth == depth + 1 for each in away)
        nodes.append(_snap(node, depth, len(children) + top))
        nodes.extend(away)
        stack.extend((child, depth + 1) for child in reversed(children))
    return TreeSnapshot(tuple(nodes))


def _snap(node: Node[Any], depth: int, children: int) -> NodeSnapshot:
    parent = node.parent
    return NodeSnapshot(
        node_id=node.node_id,
        parent_id=None if parent is None else parent.node_id,
        depth=depth,
        name=node._n_name,
        state=node.state,
        children=children,
        cancelling=node._n_cancel is not None and node.state not in DONE,
        host=None if node._n_away is None else node._n_away.host,
    )


def draw(tree: TreeSnapshot) -> str:
    """Draw a snapshot with one line a node."""
    lines: list[str] = []
    # Whether the ancestor at each depth has siblings still to come: their line is carried on.
    left = [1]
    for node in tree.nodes[:LINES]:
        del left[node.depth + 1 :]
        left[node.depth] -= 1
        lines.append(_branch(left, node.depth) + _label(node))
        left.append(node.children)
    if len(tree) > LINES:
        lines.append(f"... and {len(tree) - LINES} more")
    return "\n".join(lines)


def _branch(left: list[int], depth: int) -> str:
    if depth == 0:
        return ""
    shown = left[max(1, depth - 8) : depth]
    indent = ("… " if depth > 9 else "") + "".join("│  " if more else "   " for more in shown)
    return indent + ("├─ " if left[depth] else "└─ ")


def _label(node: NodeSnapshot) -> str:
    number = f"#{node.node_id}" if node.node_id else ""
    where = f" on {node.host}" if node.host else ""
    note = ", being cancelled" if node.cancelling else ""
    return f"{node.name}{number} {node.state}{where}{note}"


# --- what a node waits for


def explain(node: Node[Any]) -> str:
    """Say what `node` is waiting for, down to the leaves and their lines."""
    lines: list[str] = []
    seen: set[int] = set()
    stack = [(node, 0)]
    while stack and len(lines) < LEAVES * 4:
        at, depth = stack.pop()
        if id(at) in seen:
            lines.append(f"{'  ' * min(depth, 20)}{_short(at)}: see above")
            continue
        seen.add(id(at))
        why, others = _waits(at)
        lines.append(f"{'  ' * min(depth, 20)}{_short(at)} {why}")
        lines += _lines_away(at, depth)
        stack.extend((other, depth + 1) for other in reversed(others[:LEAVES]))
        if len(others) > LEAVES:
            lines.append(f"{'  ' * min(depth + 1, 20)}... and {len(others) - LEAVES} more")
    if stack:
        lines.append(f"... and {len(stack)} more branches")
    return "\n".join(lines)


def _lines_away(node: Node[Any], depth: int) -> list[str]:
    """Return a line for each unfinished node on another machine; its lines of code stay there."""
    if node._n_away is None:
        return []
    below = node._n_away.below(depth + 1)
    lines = [f"{'  ' * min(each.depth, 20)}{_label(each)}" for each in below[:LEAVES]]
    if len(below) > LEAVES:
        lines.append(f"{'  ' * min(depth + 1, 20)}... and {len(below) - LEAVES} more")
    return lines


def _short(node: Node[Any]) -> str:
    return f"{node._n_name}#{node.node_id}" if node.node_id else node._n_name


def _waits(node: Node[Any]) -> tuple[str, tuple[Node[Any], ...]]:
    if node.state in DONE:
        return f"is {node.state}: it waits for nothing", ()
    if node._n_task is None or node.parent is None:
        return _waits_without_task(node)
    if node._n_away is not None and node.state == "running":
        return f"is running, {node._n_away.explain()}", node.children
    doing = "runs a callback" if node._n_closing else f"is {node.state}"
    if node._n_place is not None and node._n_place.wanted:
        return f"{doing}, waits to have one of {_places(node)} again", ()
    coroutine = node._n_task.get_coro()
    tasks, waits, _ = reach(coroutine, awaited(node._n_task))
    line = _line(coroutine) or next(filter(None, (_line(each.get_coro()) for each in tasks)), "")
    nodes = tuple(sorted({wait.node for wait in waits}, key=lambda node: node._n_id))
    if nodes:
        return f"{doing}, awaits {', '.join(map(_short, nodes[:LEAVES]))}{line}", nodes
    if line:
        return f"{doing}, stands{line}", ()
    return ("is about to start", ()) if node.state == "pending" else (doing, node.children)


def _places(node: Node[Any]) -> str:
    return f"{node.commander.max_concurrency} places"


def _waits_without_task(node: Node[Any]) -> tuple[str, tuple[Node[Any], ...]]:
    children = node.children
    if node.parent is None and node.state == "running":
        return f"is open, with {len(children)} children", children
    if node.state == "joining":
        return f"is joining: its body has returned, it waits for {len(children)} children", children
    if node._n_attempts is not None and node._n_attempts.timer is not None:
        tries = len(node._n_attempts.starts)
        return f"is pending: attempt {tries + 1} begins after a pause", ()
    if node.commander.max_concurrency is None:
        return "is pending: it starts on the next turn of the loop", ()
    return f"is pending: it waits for one of {_places(node)}", ()


def _line(coroutine: object) -> str:
    """Return where the user's own code stands: the innermost frame that no library owns."""
    own = [each for each in frames(coroutine) if not is_library(each.f_code.co_filename)]
    if not own:
        return ""
    frame = own[-1]
    return f" at {Path(frame.f_code.co_filename).name}:{frame.f_lineno} in {frame.f_code.co_name}"
