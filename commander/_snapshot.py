"""Seeing a tree: a snapshot of it, and the snapshot as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ._record import DONE, NodeState, Record
from ._usage import cpu_note

__all__ = ["NodeSnapshot", "TreeSnapshot", "draw", "label", "snapshot"]

LINES = 200


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """What one node was at the moment of the snapshot.

    `depth` is 0 for the root. `host` is the machine, if the node runs on another one. `cpu` is
    the CPU time in seconds of the node's own steps; None before its start, for the commander, and
    if that does not measure it.
    """

    node_id: int
    parent_id: int | None
    depth: int
    name: str
    state: NodeState
    children: int
    cancelling: bool
    host: str | None = None
    cpu: float | None = None


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


def snapshot(root: Record) -> TreeSnapshot:
    """Return a snapshot of the subtree below and with `root`; of any depth, without recursion."""
    nodes: list[NodeSnapshot] = []
    stack = [(root, 0)]
    while stack:
        record, depth = stack.pop()
        children = record.unfinished_children
        away = () if record.remote is None else record.remote.descendants(depth + 1)
        top = sum(each.depth == depth + 1 for each in away)
        node = NodeSnapshot(
            node_id=record.id,
            parent_id=None if record.parent is None else record.parent.id,
            depth=depth,
            name=record.name,
            state=record.state,
            children=len(children) + top,
            cancelling=record.cancel_reason is not None and record.state not in DONE,
            host=None if record.remote is None else record.remote.host,
            cpu=record.cpu,
        )
        nodes.append(node)
        nodes.extend(away)
        stack.extend((child, depth + 1) for child in reversed(children))
    return TreeSnapshot(tuple(nodes))


def draw(tree: TreeSnapshot) -> str:
    """Draw a snapshot with one line a node."""
    lines: list[str] = []
    # Whether the ancestor at each depth has siblings still to come: their line is carried on.
    left = [1]
    for node in tree.nodes[:LINES]:
        del left[node.depth + 1 :]
        left[node.depth] -= 1
        line = ""
        if node.depth > 0:
            line = "… " if node.depth > 9 else ""
            above = left[max(1, node.depth - 8) : node.depth]
            line += "".join("│  " if more else "   " for more in above)
            line += "├─ " if left[node.depth] else "└─ "
        lines.append(line + label(node))
        left.append(node.children)
    if len(tree) > LINES:
        lines.append(f"... and {len(tree) - LINES} more")
    return "\n".join(lines)


def label(node: NodeSnapshot) -> str:
    """Say in a few words what a node is."""
    number = f"#{node.node_id}" if node.node_id else ""
    where = f" on {node.host}" if node.host else ""
    note = ", being cancelled" if node.cancelling else ""
    return f"{node.name}{number} {node.state}{where}{cpu_note(node.cpu)}{note}"
