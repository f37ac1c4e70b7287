"""Explains a node's wait: the nodes it awaits, the nodes those await, and the lines of code."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from ._frames import frames, is_library
from ._record import DONE, NodeState, Record, record_of
from ._task_waits import awaited, reach
from ._usage import cpu_note

__all__ = ["Explanation", "draw_explanations", "explain", "explain_one"]

# The limit of listed nodes below each node. The whole text has about four times as many lines.
MAX_LISTED_NODES = 20

AGAIN = "see above"


@dataclass(frozen=True, slots=True)
class Explanation:
    """The activity of one node: its wait, or its current work.

    `text` describes it in words. `waits_for` has the ids of the first twenty nodes that it awaits;
    for a joining node, of its unfinished children. `at` is the line where its body is suspended, as
    `"file.py:12 in task"`, or empty. `branches` are the lines of parallel branches, such as those
    of a `gather`, that do not wait for nodes. `seconds` is the time since the node entered its
    state, or None if the engine did not record that. `cpu` is as in `tree()`. `depth` is 0 for the
    explained node. `more` is the number of omitted nodes and branches below this one. If several
    nodes wait for the same node, it is explained once; after that its text is "see above".
    """

    node_id: int
    depth: int
    name: str
    state: NodeState
    text: str
    waits_for: tuple[int, ...] = ()
    at: str = ""
    branches: tuple[str, ...] = ()
    seconds: float | None = None
    host: str | None = None
    cpu: float | None = None
    more: int = 0


def explain(record: Record) -> tuple[Explanation, ...]:
    """Explain a node, then the nodes that it waits for, recursively: each before those below it."""
    found: list[Explanation] = []
    seen: set[Record] = set()
    lines, stack = 0, [(record, 0)]
    while stack and lines < MAX_LISTED_NODES * 4:
        at, depth = stack.pop()
        lines += 1
        if at in seen:
            found.append(Explanation(at.id, depth, at.name, at.state, AGAIN))
            continue
        seen.add(at)
        # Nodes on another machine get one line each: their frames are not in this process.
        away = () if at.remote is None else at.remote.descendants(depth + 1)
        own, others = explain_one(at, depth, len(away))
        found.append(own)
        for each in away[:MAX_LISTED_NODES]:
            about = (each.node_id, each.depth, each.name, each.state, each.state)
            found.append(Explanation(*about, host=each.host, cpu=each.cpu))
        lines += len(own.branches) + len(away[:MAX_LISTED_NODES]) + bool(own.more)
        stack.extend((other, depth + 1) for other in reversed(others[:MAX_LISTED_NODES]))
    if stack:
        more = found[0].more + len(stack)
        found[0] = replace(found[0], more=more)
    return tuple(found)


def draw_explanations(explanations: Iterable[Explanation]) -> str:
    """Return explanations as lines of text, each node indented below one that waits for it."""
    lines: list[str] = []
    for each in explanations:
        indent, below = "  " * min(each.depth, 20), "  " * min(each.depth + 1, 20)
        number = f"#{each.node_id}" if each.node_id else ""
        if each.text == AGAIN:
            lines.append(f"{indent}{each.name}{number}: {AGAIN}")
            continue
        where = f" on {each.host}" if each.host else ""
        lines.append(f"{indent}{each.name}{number} {each.text}{where}{cpu_note(each.cpu)}")
        lines += [f"{below}... and {branch}" for branch in each.branches]
        if each.more:
            lines.append(f"{below}... and {each.more} more")
    return "\n".join(lines)


def explain_one(record: Record, depth: int = 0, away: int = 0) -> tuple[Explanation, list[Record]]:
    """Return one node's explanation and its awaited nodes; `away` counts its remote nodes."""
    text, at, others = _text_of(record)
    branches = _side_branches(record)
    explanation = Explanation(
        record.id,
        depth,
        record.name,
        record.state,
        text,
        tuple(each.id for each in others[:MAX_LISTED_NODES]),
        at,
        tuple(branches[:MAX_LISTED_NODES]),
        None if record.state_since is None else record.tree.clock() - record.state_since,
        cpu=record.cpu,
        more=sum(max(0, many - MAX_LISTED_NODES) for many in (away, len(others), len(branches))),
    )
    return explanation, others


def _text_of(record: Record) -> tuple[str, str, list[Record]]:
    """Return a node's text, the line of its body, and the nodes that it waits for."""
    children, since = record.unfinished_children, ""
    if record.state in DONE:
        return f"is {record.state}: it waits for nothing", "", []
    if record.state_since is not None:
        seconds = int(record.tree.clock() - record.state_since)
        for unit, length in (("s", 1), ("min", 60), ("h", 3600)):
            if seconds >= length:
                since = f" (for {seconds // length} {unit})"
    if record.task is None or record.parent is None:
        if record.parent is None and record.state == "running":
            return f"is open{since}, with {len(children)} children", "", children
        if record.state == "joining":
            many = f"it waits for {len(children)} children"
            return f"is joining{since}: its body has returned, {many}", "", children
        if not record.tree:
            return "is pending: it is in no tree", "", []
        if record.attempts is not None and record.attempts.timer is not None:
            attempt = len(record.attempts.starts) + 1
            return f"is pending{since}: attempt {attempt} begins after a pause", "", []
        if record.tree.max_concurrency is None:
            return f"is pending{since}: it starts on the next turn of the loop", "", []
        many = f"{record.tree.max_concurrency} slots"
        return f"is pending{since}: it waits for one of {many}", "", []
    if record.remote is not None and record.state == "running":
        return f"is running{since}, {record.remote.explain()}", "", children
    doing = "runs a callback" if record.is_closing else f"is {record.state}{since}"
    if record.slot is not None and record.slot.wanted:
        slots = f"{record.tree.max_concurrency} slots"
        return f"{doing}, waits to have one of {slots} again", "", []
    coroutine = record.task.get_coro()
    tasks, waits, _ = reach(coroutine, awaited(record.task))
    at = _line(coroutine) or next(filter(None, (_line(each.get_coro()) for each in tasks)), "")
    nodes = sorted({record_of(wait.node) for wait in waits}, key=lambda each: each.id)
    if nodes:
        names = ", ".join(each.label for each in nodes[:MAX_LISTED_NODES])
        return f"{doing}, awaits {names}{at and ' at '}{at}", at, nodes
    if at:
        return f"{doing}, stands at {at}", at, []
    if record.state == "pending":
        return "is about to start", "", []
    return doing, "", children


def _side_branches(record: Record) -> list[str]:
    """Describe the parallel branches of a body, as of a `gather`, that do not wait for nodes."""
    if record.task is None or record.parent is None or record.remote is not None:
        return []
    _, waits, ends = reach(record.task.get_coro(), awaited(record.task))
    if len(waits) + len(ends) < 2:
        return []  # a single wait: the text of the node describes it
    branches: list[str] = []
    for coroutine, _ in ends:
        innermost = list(frames(coroutine))[-1:]
        line = _line(coroutine)
        where = f" at {line}" if line else ""
        where = where or "".join(f" in {each.f_code.co_qualname}" for each in innermost)
        branches.append(
            f"a branch that stands{where}" if where else "a branch that awaits a future"
        )
    return branches


def _line(coroutine: object) -> str:
    """Return the line of the innermost frame with the user's own code."""
    own = [each for each in frames(coroutine) if not is_library(each.f_code.co_filename)]
    if not own:
        return ""
    frame = own[-1]
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} in {frame.f_code.co_name}"
