"""A snapshot of a tree, and its drawing as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ._record import DONE, NodeState, Record
from ._usage import cpu_note

__all__ = ["NodeSnapshot", "TreeSnapshot", "draw", "label", "snapshot"]

MAX_DRAWN_NODES = 200


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """One node at the moment of the snapshot.

    `depth` is 0 for the root. `host` is the machine, if the node runs on another one. `cpu` is
    the CPU time in seconds of the node's own steps; None before its start, for the commander, and
    without `Commander(cpu_time=True)`.
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
    """The unfinished nodes of a tree, each before its children, oldest child first.

    `str` draws it, the first 200 nodes of a large tree.
    """

    nodes: tuple[NodeSnapshot, ...]

    def __len__(self) -> int:
        return len(self.nodes)

    def __iter__(self) -> Iterator[NodeSnapshot]:
        return iter(self.nodes)

    def __str__(self) -> str:
        return draw(self)


def snapshot(root: Record) -> TreeSnapshot:
    """Return a snapshot of `root` and all nodes below it. Works without recursion, at any depth."""
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
    """Draw a snapshot with one line for each node."""
    lines: list[str] = []
    # The number of siblings still to come at each depth. Where there are any, the vertical line
    # continues.
    left = [1]
    for node in tree.nodes[:MAX_DRAWN_NODES]:
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
    if len(tree) > MAX_DRAWN_NODES:
        lines.append(f"... and {len(tree) - MAX_DRAWN_NODES} more")
    return "\n".join(lines)


def label(node: NodeSnapshot) -> str:
    """Describe a node in a few words."""
    number = f"#{node.node_id}" if node.node_id else ""
    where = f" on {node.host}" if node.host else ""
    note = ", being cancelled" if node.cancelling else ""
    return f"{node.name}{number} {node.state}{where}{cpu_note(node.cpu)}{note}"
