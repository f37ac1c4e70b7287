"""What a node that hangs is waiting for: the path from it to the leaves, and where those stand."""

from __future__ import annotations

from pathlib import Path

from ._cpu import cpu_note
from ._reach import awaited, reach
from ._record import DONE, Record, record_of
from ._snapshot import label
from ._stack import frames, is_library

__all__ = ["explain"]

# So many nodes are named below each one; in all, about four times as many lines.
LEAVES = 20


def explain(record: Record) -> str:
    """Say what a node is waiting for, down to the leaves and their lines."""
    lines: list[str] = []
    seen: set[Record] = set()
    stack = [(record, 0)]
    while stack and len(lines) < LEAVES * 4:
        at, depth = stack.pop()
        indent, below = "  " * min(depth, 20), "  " * min(depth + 1, 20)
        if at in seen:
            lines.append(f"{indent}{at.label}: see above")
            continue
        seen.add(at)
        why, others = _explain_one(at)
        branches = _side_branches(at)
        lines.append(f"{indent}{at.label} {why}{cpu_note(at.cpu)}")
        lines += [f"{below}... and {each}" for each in branches[:LEAVES]]
        # Of nodes on another machine there is a line each; their lines of code stay there.
        away = () if at.away is None else at.away.below(depth + 1)
        lines += [f"{'  ' * min(each.depth, 20)}{label(each)}" for each in away[:LEAVES]]
        stack.extend((other, depth + 1) for other in reversed(others[:LEAVES]))
        for many in (away, others, branches):
            if len(many) > LEAVES:
                lines.append(f"{below}... and {len(many) - LEAVES} more")
    if stack:
        lines.append(f"... and {len(stack)} more branches")
    return "\n".join(lines)


def _explain_one(record: Record) -> tuple[str, list[Record]]:
    """Say what a node waits for, and return those of the nodes for which it waits."""
    children, since = record.living, ""
    if record.state in DONE:
        return f"is {record.state}: it waits for nothing", []
    if record.since is not None:
        seconds = int(record.tree.clock() - record.since)
        for unit, length in (("s", 1), ("min", 60), ("h", 3600)):
            if seconds >= length:
                since = f" (for {seconds // length} {unit})"
    if record.task is None or record.parent is None:
        if record.parent is None and record.state == "running":
            return f"is open{since}, with {len(children)} children", children
        if record.state == "joining":
            many = f"it waits for {len(children)} children"
            return f"is joining{since}: its body has returned, {many}", children
        if not record.tree:
            return "is pending: it is in no tree", []
        if record.attempts is not None and record.attempts.timer is not None:
            attempt = len(record.attempts.starts) + 1
            return f"is pending{since}: attempt {attempt} begins after a pause", []
        if record.tree.max_concurrency is None:
            return f"is pending{since}: it starts on the next turn of the loop", []
        many = f"{record.tree.max_concurrency} slots"
        return f"is pending{since}: it waits for one of {many}", []
    if record.away is not None and record.state == "running":
        return f"is running{since}, {record.away.explain()}", children
    doing = "runs a callback" if record.closing else f"is {record.state}{since}"
    if record.seat is not None and record.seat.wanted:
        slots = f"{record.tree.max_concurrency} slots"
        return f"{doing}, waits to have one of {slots} again", []
    coroutine = record.task.get_coro()
    tasks, waits, _ = reach(coroutine, awaited(record.task))
    line = _line(coroutine) or next(filter(None, (_line(each.get_coro()) for each in tasks)), "")
    nodes = sorted({record_of(wait.node) for wait in waits}, key=lambda each: each.id)
    if nodes:
        names = ", ".join(each.label for each in nodes[:LEAVES])
        return f"{doing}, awaits {names}{line}", nodes
    if line:
        return f"{doing}, stands{line}", []
    return ("is about to start", []) if record.state == "pending" else (doing, children)


def _side_branches(record: Record) -> list[str]:
    """Say where the branches of a `gather` or the like stand that do not wait for nodes."""
    if record.task is None or record.parent is None or record.away is not None:
        return []
    _, waits, ends = reach(record.task.get_coro(), awaited(record.task))
    if len(waits) + len(ends) < 2:
        return []  # the line of the node itself says it
    branches: list[str] = []
    for coroutine, _ in ends:
        innermost = list(frames(coroutine))[-1:]
        where = _line(coroutine) or "".join(f" in {each.f_code.co_qualname}" for each in innermost)
        branches.append(
            f"a branch that stands{where}" if where else "a branch that awaits a future"
        )
    return branches


def _line(coroutine: object) -> str:
    """Return where the user's own code stands: the innermost frame that no library owns."""
    own = [each for each in frames(coroutine) if not is_library(each.f_code.co_filename)]
    if not own:
        return ""
    frame = own[-1]
    return f" at {Path(frame.f_code.co_filename).name}:{frame.f_lineno} in {frame.f_code.co_name}"
