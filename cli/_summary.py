"""A recording in text, for machines without a browser: tree, sums, slowest, first failure."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text

from ..messages import Usage
from ..tracing import Trace, TraceNode
from ._tree_model import TreeSummary
from ._tree_view import clean, draw, label, money, name_failure, seconds, tokens

__all__ = ["summarize"]

SLOWEST = 10
# Characters of a path to a node.
PATH = 100


def summarize(trace: Trace, title: str, width: int, height: int, *, unicode: bool) -> list[Text]:
    """Return the lines; the tree has at most `height` of them."""
    lines = draw(TreeSummary(trace), width, height, trace.end, title=title, unicode=unicode)
    for life in trace.lives:
        if life.content:
            lines += [Text("with content: prompts, replies and arguments stand in it", "dim")]
            break
    lines += _sums("by agent", trace, trace.usage_by_agent().items())
    by_model = [(model, {model: used}) for model, used in trace.usage().items()]
    lines += _sums("by model", trace, by_model)
    slowest = sorted(_leaves(trace), key=lambda node: -_own_seconds(node, trace.end))[:SLOWEST]
    if slowest:
        lines += [Text(), Text("slowest, without what they waited for below them", "bold")]
        for node in slowest:
            lines.append(Text(f"{seconds(_own_seconds(node, trace.end)):>9}  {_path(node)}"))
    if (first := trace.first_failure) is not None:
        lines += [Text(), Text("first failure", "bold"), Text(f"  {name_failure(first)}", "red")]
        lines.append(Text(f"  {_path(first)}, after {seconds(first.ended or 0.0)}"))
    blocked = [(each, node) for node in trace for each in node.slow]
    if blocked:
        lines += [Text(), Text("blocked the loop", "bold")]
        for (_, length, at), node in sorted(blocked, key=lambda each: -each[0][1])[:SLOWEST]:
            lines.append(Text(f"{seconds(length):>9}  {label(node)} at {clean(at, PATH)}"))
    return lines


def _sums(title: str, trace: Trace, sums: Iterable[tuple[str, dict[str, Usage]]]) -> list[Text]:
    rows = [(clean(name) or "(no agent)", used) for name, used in sums]
    if not rows:
        return []
    wide = max(len(name) for name, _ in rows)
    lines = [Text(), Text(f"{title:<{wide + 2}}      in     out      cost", "bold")]
    for name, used in sorted(
        rows, key=lambda row: -sum(each.total_tokens for each in row[1].values())
    ):
        taken = tokens(sum(each.input_tokens for each in used.values())) or "0"
        given = tokens(sum(each.output_tokens for each in used.values())) or "0"
        lines.append(
            Text(f"  {name:<{wide}}  {taken:>6}  {given:>6}  {money(trace.cost(used)):>8}")
        )
    return lines


def _leaves(trace: Trace) -> Iterable[TraceNode]:
    return (node for node in trace if node.spells)


def _own_seconds(node: TraceNode, end: float) -> float:
    """Return for how long a node ran while nothing below it did."""
    own = sum((end if each.end is None else each.end) - each.start for each in node.spells)
    below = [
        (spell.start, end if spell.end is None else spell.end)
        for child in node.children
        for spell in child.spells
    ]
    reached = 0.0
    for start, stop in sorted(below):
        own -= max(0.0, stop - max(start, reached))
        reached = max(reached, stop)
    return max(own, 0.0)


def _path(node: TraceNode) -> str:
    above = [each for each in node.upwards() if each.parent is not None]
    return clean(" > ".join(label(each) for each in reversed(above)), PATH)
