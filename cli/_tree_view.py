"""Render a trace as lines for a terminal: a tree that fits the screen, and its totals.

The same trace, size and time always give the same lines.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from itertools import islice

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from ..messages.mask import mask
from ..tracing import TraceNode
from ._output import one_line
from ._tree_model import NO_USAGE, CollapsedNodes, TreeSummary, name_state, visible_rows

__all__ = [
    "ascii_signs",
    "clean_line",
    "draw",
    "format_cost",
    "format_seconds",
    "format_tokens",
    "name_failure",
    "name_node",
    "sum_line",
]

# The sign and the style of each state.
NODE_SIGNS = {
    "pending": ("○", "dim"),
    "running": ("●", "cyan"),
    "joining": ("◐", "cyan"),
    "completed": ("✓", "green"),
    "failed": ("✗", "bold red"),
    "call failed": ("!", "yellow"),
    "cancelled": ("⊘", "yellow"),
    "lost": ("?", "bold magenta"),
}
_ASCII = str.maketrans("○●◐✓✗⊘│├└…⋮·", ".>~+x-||`~:|")
# The place where a request waits for its turn within rate limits: `Turn.wait_ready`,
# or `ready` in older recordings.
_WAITS_FOR_TURN = re.compile(r"_turn\.py:\d+ in (?:wait_)?ready")
MAX_NAME_CHARS, MAX_ERROR_CHARS = 60, 400
COLUMN_GAP = "  "


def draw(
    summary: TreeSummary,
    width: int,
    height: int,
    now: float,
    *,
    title: str = "",
    unicode: bool = True,
) -> list[Text]:
    """Draw a trace `now` seconds after its start, in at most `width` columns and `height` lines.

    Without `unicode`, all signs are ASCII.
    """
    summary.update()
    root = summary.trace.root
    rows: list[tuple[TraceNode | CollapsedNodes, str]] = [(root, "")] if root.requests else []
    rows += visible_rows(summary, max(height - 2 - len(rows), 1))
    lines = _table(summary, rows, width, now, title)
    lines.append(Text(_cut(sum_line(summary, now), width), "bold", end=""))
    if not unicode:
        for line in lines:
            line.plain = ascii_signs(line.plain)
    return lines[-height:]


def ascii_signs(text: str) -> str:
    """Replace the signs of a drawing by ASCII characters."""
    return text.translate(_ASCII)


def _table(
    summary: TreeSummary,
    rows: list[tuple[TraceNode | CollapsedNodes, str]],
    width: int,
    now: float,
    title: str,
) -> list[Text]:
    """Lay out rows in columns; leave out columns without values."""
    total = summary.usage.get(summary.trace.root, NO_USAGE)
    columns = [("time", 7)]
    if total.input or total.output:
        columns += [("in", 6), ("out", 6)]
    if total.cost is not None:
        columns += [("cost", 8)]
    other_columns = sum(len(COLUMN_GAP) + size for _, size in columns)
    names = [_name(summary, item, guides) for item, guides in rows]
    # At most half of the width. The column grows in steps of six, so that it rarely moves.
    widest = max(
        (
            cell_len(name)
            for (item, _), name in zip(rows, names, strict=True)
            if isinstance(item, TraceNode)
        ),
        default=0,
    )
    wide = max(12, min(-(-widest // 6) * 6, (width - other_columns) // 2))
    head = _fit(clean_line(title), wide) + "".join(
        f"{COLUMN_GAP}{name:>{size}}" for name, size in columns
    )
    lines = [Text(_cut(head, width), "dim", end="")]
    for (node, guides), name in zip(rows, names, strict=True):
        if isinstance(node, CollapsedNodes):
            lines.append(Text(_cut(name, width), "dim", end=""))
            continue
        state, usage = name_state(node), summary.usage.get(node, NO_USAGE)
        style = NODE_SIGNS[state][1]
        cells = {
            "time": format_seconds(_duration(node, now)),
            "in": format_tokens(usage.input),
            "out": format_tokens(usage.output),
            "cost": format_cost(usage.cost),
        }
        line = Text(_fit(name, wide), end="")
        line.stylize("dim", 0, len(guides))
        line.stylize(style, len(guides), len(guides) + 1)
        if state in ("completed", "pending"):
            line.stylize("dim", len(guides) + 1)
        agent = f" {clean_line(node.own_agent)}" if node.own_agent else ""
        if agent and (start := name.find(agent, len(guides))) > 0:
            line.stylize("magenta", start, wide)
        for column, size in columns:
            line.append(f"{COLUMN_GAP}{cells[column]:>{size}}", "dim" if column == "time" else "")
        line.append(COLUMN_GAP)
        room = max(width - line.cell_len, 0)
        line.append(_cut(_describe(summary, node, state, now), room), style)
        line.truncate(width)
        lines.append(line)
    return lines


def _name(summary: TreeSummary, item: TraceNode | CollapsedNodes, guides: str) -> str:
    """Return the first column of a row."""
    if isinstance(item, TraceNode):
        name, agent = name_node(item), clean_line(item.own_agent) if item.own_agent else ""
        shown_agent = f" {agent}" if agent and agent not in name else ""
        return f"{guides}{NODE_SIGNS[name_state(item)][0]} {name}{shown_agent}"
    if item.levels:
        return f"{guides}⋮ {item.levels:,} levels"
    node, shown = item.node, item.shown
    kinds = summary.kinds[node] - Counter((each.name, name_state(each)) for each in shown)
    below = summary.below[node] - len(node.children) - sum(summary.below[each] for each in shown)
    common = kinds.most_common(3)
    words = [f"{many:,} {clean_line(name)} {state}" for (name, state), many in common]
    if others := kinds.total() - sum(many for _, many in common):
        words.append(f"{others:,} others")
    if below:
        words.append(f"{below:,} below")
    return f"{guides}… {', '.join(words)}"


def _duration(node: TraceNode, now: float) -> float:
    """Return the seconds for which a node has run, or has waited to start."""
    if not node.intervals:
        return (now if node.ended is None else node.ended) - node.put
    return sum(
        (now if interval.end is None else interval.end) - interval.start
        for interval in node.intervals
    )


def _describe(summary: TreeSummary, node: TraceNode, state: str, now: float) -> str:
    """Return the state of a node in words, with its error, or with the nodes it waits for."""
    match state:
        case "failed":
            words = f"failed after {len(node.retried) + 1} attempts" if node.retried else "failed"
            words += f": {node.error}" if node.error else ""
        case "call failed":
            words = "invalid call" if node.status == "invalid" else "call failed"
            words += f": {node.result}" if node.result else ""
        case "completed" | "cancelled":
            words = f"{state}: {node.reason}" if node.reason else state
            words += ", from the journal" if node.recorded else ""
        case "lost":
            words = "lost: its process ended first"
        case _:
            words = _describe_open(summary, node, now)
    if node.retried and node.is_open:
        _, error = node.retried[-1]
        words += f", attempt {len(node.retried) + 1} after {error.type if error else 'a failure'}"
    if node.slow:
        _, longest, at = max(node.slow, key=lambda each: each[1])
        words += f", blocked the loop for {format_seconds(longest)} at {at}"
    if node.host:
        words += f", on {node.host}"
    return clean_line(words, MAX_ERROR_CHARS)


def _describe_open(summary: TreeSummary, node: TraceNode, now: float) -> str:
    request = next((each for each in reversed(node.requests) if each.end is None), None)
    if request is not None:
        model, waited = request.model, format_seconds(now - request.start)
        if request.first is not None:
            return f"reads {model}, {waited}"
        if _WAITS_FOR_TURN.fullmatch(node.waits_at):
            return f"waits for its turn in the limits of {model}, {waited}"
        return f"waits for {model}'s first token, {waited}"
    # A note that the node is pending is out of date once it has started.
    noted_pending = node.waits.startswith("is pending")
    if node.state == "pending":
        _, _, why = node.waits.partition(", ")
        return f"pending, {why}" if noted_pending and why else "pending"
    awaited = () if noted_pending or node.state == "joining" else node.waits_for
    found = map(summary.trace.node, awaited)
    others = [each for each in found if each is not None and each.is_open and each is not node]
    many = len(others)
    place = "" if noted_pending or not node.waits_at else f" at {node.waits_at}"
    if not (others or place):
        many = summary.open[node]
        others = [*islice((each for each in node.children if each.is_open), 2 if many else 0)]
    if others:
        more = f" and {many - 2:,} more" if many > 2 else ""
        return f"waits for {', '.join(map(name_node, others[:2]))}{more}"
    if node.tool:
        return f"runs {node.tool}{f' at {node.waits_at}' if node.waits_at else ''}"
    return f"{node.state}{place}"


def sum_line(summary: TreeSummary, now: float) -> str:
    """Return the totals: seconds, nodes by state, tokens, cost, missed events."""
    counts = summary.counts
    waiting = sum(1 for node in summary.running if summary.open[node])
    words = [format_seconds(now)]
    for state, many in (
        ("running", counts["running"] + counts["joining"] - waiting),
        ("waiting", waiting),
        *((state, counts[state]) for state in NODE_SIGNS if state not in ("running", "joining")),
    ):
        if many:
            words.append(f"{many:,} {state}")
    usage = summary.usage.get(summary.trace.root, NO_USAGE)
    if usage.input or usage.output:
        words.append(f"{format_tokens(usage.input)} in, {format_tokens(usage.output)} out")
    if usage.cost is not None:
        words.append(f"cost {format_cost(usage.cost)}")
    if summary.trace.missed:
        words.append(f"{summary.trace.missed:,} events missed")
    return " · ".join(words)


def name_failure(node: TraceNode) -> str:
    """Return the name of a failed node or call, and the reason."""
    if node.state == "failed":
        text = f"{name_node(node)} failed: {node.error or 'reason unknown'}"
    else:
        text = f"{name_node(node)} {node.status}: {node.result or 'a call of ' + node.tool}"
    return clean_line(text, MAX_ERROR_CHARS)


def name_node(node: TraceNode) -> str:
    """Return the name and number of a node."""
    return f"{clean_line(node.name)}#{node.number}"


@lru_cache(8192)
def clean_line(text: str, limit: int = MAX_NAME_CHARS) -> str:
    """Return a recorded text without line ends, control characters and secrets."""
    return one_line(mask(text), limit)


def format_seconds(length: float) -> str:
    """Format a duration in seven characters."""
    length = max(length, 0.0)
    if length < 9.995:
        return f"{length:.2f} s"
    if length < 999.95:
        return f"{length:.1f} s"
    minutes, rest = divmod(int(length), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02}"
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def format_tokens(count: int) -> str:
    """Format a number of tokens in six characters; zero is an empty string."""
    if not count:
        return ""
    for unit, size in (("", 1), ("k", 1e3), ("M", 1e6), ("G", 1e9)):
        if (number := count / size) < 999.5:
            return f"{number:.1f}{unit}" if unit and number < 99.95 else f"{number:.0f}{unit}"
    return f"{count:.0e}"


def format_cost(cost: float | None) -> str:
    """Format a cost with its significant digits."""
    if cost is None:
        return ""
    return f"{cost:.4f}" if cost < 10 else f"{cost:,.2f}"


def _fit(text: str, width: int) -> str:
    """Cut or pad a text to a number of columns."""
    return set_cell_size(_cut(text, width), width)


def _cut(text: str, width: int) -> str:
    """Cut a text to a number of columns."""
    if cell_len(text) <= width:
        return text
    return f"{set_cell_size(text, max(width - 1, 0)).rstrip()}…"[: max(width, 0)]
