"""A trace as lines of a terminal: its tree, folded to what fits, with the sums at its foot.

Nothing here knows a clock or a screen: the same trace, size and time give the same lines.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from ..messages.mask import mask
from ..tracing import TraceNode
from ._fold import choose
from ._survey import NOTHING, Spent, Survey, state_of
from ._terminal import in_line

__all__ = [
    "COLOURS",
    "clean",
    "draw",
    "foot",
    "label",
    "money",
    "name_failure",
    "seconds",
    "tokens",
]

COLOURS = {
    "pending": "dim",
    "running": "cyan",
    "joining": "cyan",
    "completed": "green",
    "failed": "bold red",
    "call failed": "yellow",
    "cancelled": "yellow",
    "lost": "bold magenta",
}
SIGNS = {
    "pending": "○",
    "running": "●",
    "joining": "◐",
    "completed": "✓",
    "failed": "✗",
    "call failed": "!",
    "cancelled": "⊘",
    "lost": "?",
}
# For terminals whose encoding has no others.
PLAIN_SIGNS = dict(zip(SIGNS, ".>~+x!-?", strict=True))
GUIDES = ("│ ", "├ ", "└ ", "  ", "…", "⋮")
PLAIN_GUIDES = ("| ", "|-", "`-", "  ", "...", ":")
# Where a request stands that limits hold back: in `Turn.ready` of the backends.
_IN_LINE = re.compile(r"_turn\.py:\d+ in ready")
# Characters of a name, of an error, and of the words before an error is cut.
NAME, ERROR = 60, 400
GAP = "  "


@dataclass(slots=True)
class _Row:
    """A line, before it is known how wide its columns are."""

    guides: str
    state: str
    name: str
    agent: str = ""
    time: str = ""
    spent: Spent = NOTHING
    detail: str = ""
    style: str = ""
    fold: bool = False


def draw(
    survey: Survey, width: int, height: int, now: float, *, title: str = "", signs: bool = True
) -> list[Text]:
    """Draw a trace at a time, in seconds since it began, in at most so many columns and lines.

    `signs` says whether the terminal can show more than ASCII.
    """
    survey.update()
    root = survey.trace.root
    room = max(height - 2 - bool(root.requests), 1)
    rows = [_row(survey, root, "", now)] if root.requests else []
    rows += _rows(survey, room, now, GUIDES if signs else PLAIN_GUIDES)
    lines = _table(survey, rows, width, title, SIGNS if signs else PLAIN_SIGNS)
    last = Text(_cut(foot(survey, now), width), "bold", end="")
    if not signs:
        for line in (*lines, last):
            line.plain = line.plain.replace("…", "~").replace("·", "|")
    return [*lines, last][-height:]


def _rows(survey: Survey, room: int, now: float, guides: Sequence[str]) -> list[_Row]:
    """Return the lines between head and foot, each node before what stands below it."""
    bar, tee, corner, blank, dots, gap = guides
    root = survey.trace.root
    choice = None if survey.below[root] <= room else choose(survey, room)
    chosen = None if choice is None else choice.below()
    rows: list[_Row] = []
    # With the guides before it, and whether it is its parent's last.
    stack: list[tuple[TraceNode | _Row, str, bool]] = []

    def push(node: TraceNode, indent: str) -> None:
        below: list[TraceNode | _Row] = [*(node.children if chosen is None else ())]
        if choice is not None and chosen is not None:
            below = [*chosen.get(node, ())]
            if len(below) < len(node.children) and node in choice.shown:
                below.append(_fold(survey, node, chosen.get(node, ()), dots))
        stack.extend((each, indent, not last) for last, each in enumerate(reversed(below)))

    push(root, "")
    while stack:
        item, indent, last = stack.pop()
        if isinstance(item, _Row):
            item.guides = indent + corner
            rows.append(item)
        elif choice is not None and item in choice.passed:
            if many := choice.chains.get(item):
                rows.append(_Row(indent, "", f"{gap} {many:,} levels", fold=True))
            push(item, indent)
        elif item.parent is root:
            rows.append(_row(survey, item, "", now))
            push(item, "")
        else:
            rows.append(_row(survey, item, indent + (corner if last else tee), now))
            push(item, indent + (blank if last else bar))
    return rows


def _row(survey: Survey, node: TraceNode, guides: str, now: float) -> _Row:
    state = state_of(node)
    return _Row(
        guides,
        state,
        label(node),
        clean(node.own_agent) if node.own_agent else "",
        seconds(_elapsed(node, now)),
        survey.spent.get(node, NOTHING),
        _detail(survey, node, state, now),
        COLOURS[state],
    )


def _fold(survey: Survey, node: TraceNode, shown: Sequence[TraceNode], dots: str) -> _Row:
    """Make the line that stands for those children of a node which are not shown."""
    kinds = survey.kinds[node] - Counter((each.name, state_of(each)) for each in shown)
    below = survey.below[node] - len(node.children) - sum(survey.below[each] for each in shown)
    words = [f"{many:,} {clean(name)} {state}" for (name, state), many in kinds.most_common(3)]
    if rest := kinds.total() - sum(many for _, many in kinds.most_common(3)):
        words.append(f"{rest:,} others")
    if below:
        words.append(f"{below:,} below")
    return _Row("", "", f"{dots} {', '.join(words)}", fold=True)


def _elapsed(node: TraceNode, now: float) -> float:
    """Return for how long it ran, or waits to."""
    if not node.spells:
        return (now if node.ended is None else node.ended) - node.put
    return sum((now if spell.end is None else spell.end) - spell.start for spell in node.spells)


def _detail(survey: Survey, node: TraceNode, state: str, now: float) -> str:
    """Say in words how it stands, and what it waits for."""
    words = _STATES.get(state, _say_open)(survey, node, now)
    if node.retried and node.is_open:
        _, error = node.retried[-1]
        words += f", attempt {len(node.retried) + 1} after {error.type if error else 'a failure'}"
    if node.slow:
        _, longest, at = max(node.slow, key=lambda each: each[1])
        words += f", blocked the loop for {seconds(longest)} at {at}"
    if node.host:
        words += f", on {node.host}"
    return clean(words, ERROR)


def _say_failed(survey: Survey, node: TraceNode, now: float) -> str:
    after = f" after {len(node.retried) + 1} attempts" if node.retried else ""
    return f"failed{after}: {node.error}" if node.error else f"failed{after}"


def _say_call_failed(survey: Survey, node: TraceNode, now: float) -> str:
    what = "invalid call" if node.status == "invalid" else "call failed"
    return f"{what}: {node.result}" if node.result else what


def _say_ended(survey: Survey, node: TraceNode, now: float) -> str:
    words = node.state
    if node.reason:
        words += f": {node.reason}"
    if node.kept:
        words += ", kept from before"
    return words


def _say_lost(survey: Survey, node: TraceNode, now: float) -> str:
    return "lost: its process ended before it"


def _say_open(survey: Survey, node: TraceNode, now: float) -> str:
    asked = next((each for each in reversed(node.requests) if each.end is None), None)
    if asked is not None and asked.first is None:
        if _IN_LINE.fullmatch(node.waits_at):
            return (
                f"waits for its turn in the limits of {asked.model}, {seconds(now - asked.start)}"
            )
        return f"waits for {asked.model}'s first token, {seconds(now - asked.start)}"
    if asked is not None:
        return f"reads {asked.model}, {seconds(now - asked.start)}"
    if node.state == "pending":
        told, _, why = node.waits.partition(", ")
        if told.startswith("is pending") and why:
            return f"pending, {why}"
        return "pending"
    stale = node.waits.startswith("is pending")
    awaited = map(survey.trace.node, () if stale or node.state == "joining" else node.waits_for)
    others = [each for each in awaited if each is not None and each.is_open and each is not node]
    many = len(others)
    if not (others or (node.waits_at and not stale)):
        many = survey.open[node]
        others = list(islice((each for each in node.children if each.is_open), 2 if many else 0))
    if others:
        more = f" and {many - 2:,} more" if many > 2 else ""
        return f"waits for {', '.join(map(label, others[:2]))}{more}"
    if node.tool:
        return f"runs {node.tool}{_at(node)}"
    return f"{node.state}{'' if stale else _at(node)}"


def _at(node: TraceNode) -> str:
    return f" at {node.waits_at}" if node.waits_at else ""


_STATES = {
    "failed": _say_failed,
    "call failed": _say_call_failed,
    "completed": _say_ended,
    "cancelled": _say_ended,
    "lost": _say_lost,
}


def _table(
    survey: Survey, rows: list[_Row], width: int, title: str, signs: dict[str, str]
) -> list[Text]:
    """Lay lines out in columns; those that would be empty are left out."""
    total = survey.spent.get(survey.trace.root, NOTHING)
    columns = [("time", 7)]
    if total.taken or total.given:
        columns += [("in", 6), ("out", 6)]
    if total.cost is not None:
        columns += [("cost", 8)]
    taken = sum(len(GAP) + size for _, size in columns)
    names = [_left(row, signs) for row in rows]
    # Of the width a half at most; in steps, so that columns stay where they are for a while.
    widest = max(
        (cell_len(name) for row, name in zip(rows, names, strict=True) if not row.fold), default=0
    )
    wide = max(12, min(-(-widest // 6) * 6, (width - taken) // 2))
    head = f"{_fit(clean(title), wide)}" + "".join(f"{GAP}{name:>{size}}" for name, size in columns)
    lines = [Text(_cut(head, width), "dim", end="")]
    for row, name in zip(rows, names, strict=True):
        if row.fold:
            line = Text(_cut(name, width), "dim", end="")
            lines.append(line)
            continue
        cells = {
            "time": row.time,
            "in": tokens(row.spent.taken),
            "out": tokens(row.spent.given),
            "cost": money(row.spent.cost),
        }
        line = Text(end="")
        line.append(_fit(name, wide))
        line.stylize("dim", 0, len(row.guides))
        line.stylize(row.style, len(row.guides), len(row.guides) + 1)
        if row.state in ("completed", "pending"):
            line.stylize("dim", len(row.guides) + 1)
        if row.agent and (start := name.find(f" {row.agent}", len(row.guides))) > 0:
            line.stylize("magenta", start, wide)
        for column, size in columns:
            line.append(f"{GAP}{cells[column]:>{size}}", "dim" if column == "time" else "")
        line.append(GAP)
        line.append(_cut(row.detail, max(width - cell_len(line.plain), 0)), row.style)
        line.truncate(width)
        lines.append(line)
    return lines


def _left(row: _Row, signs: dict[str, str]) -> str:
    if row.fold:
        return f"{row.guides}{row.name}"
    agent = f" {row.agent}" if row.agent and row.agent not in row.name else ""
    return f"{row.guides}{signs[row.state]} {row.name}{agent}"


def foot(survey: Survey, now: float) -> str:
    """Return the sums: seconds, nodes by their states, tokens, money, and what is lacking."""
    counts = survey.counts
    waiting = sum(1 for node in survey.running if survey.open[node])
    words = [seconds(now)]
    for state, many in (
        ("running", counts["running"] + counts["joining"] - waiting),
        ("waiting", waiting),
        *((state, counts[state]) for state in ("pending", "completed", "failed")),
        *((state, counts[state]) for state in ("call failed", "cancelled", "lost")),
    ):
        if many:
            words.append(f"{many:,} {state}")
    spent = survey.spent.get(survey.trace.root, NOTHING)
    if spent.taken or spent.given:
        words.append(f"{tokens(spent.taken)} in, {tokens(spent.given)} out")
    if spent.cost is not None:
        words.append(f"cost {money(spent.cost)}")
    if survey.trace.missed:
        words.append(f"{survey.trace.missed:,} events missed")
    return " · ".join(words)


def name_failure(node: TraceNode) -> str:
    """Say what failed, and with what."""
    if node.state == "failed":
        return clean(f"{label(node)} failed: {node.error or 'nobody knows why'}", ERROR)
    return clean(f"{label(node)} {node.status}: {node.result or 'a call of ' + node.tool}", ERROR)


def label(node: TraceNode) -> str:
    """Return what a node goes by."""
    return f"{clean(node.name)}#{node.number}"


@lru_cache(8192)
def clean(text: str, most: int = NAME) -> str:
    """Return what was read from a recording in one line that cannot steer, without keys."""
    return in_line(mask(text), most)


def seconds(length: float) -> str:
    """Say a length of time in seven characters."""
    length = max(length, 0.0)
    if length < 9.995:
        return f"{length:.2f} s"
    if length < 999.95:
        return f"{length:.1f} s"
    minutes, rest = divmod(int(length), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02}"
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def tokens(count: int) -> str:
    """Say a number of tokens in six characters; none as nothing."""
    if not count:
        return ""
    for unit, size in (("", 1), ("k", 1e3), ("M", 1e6), ("G", 1e9)):
        if (number := count / size) < 999.5:
            return f"{number:.1f}{unit}" if unit and number < 99.95 else f"{number:.0f}{unit}"
    return f"{count:.0e}"


def money(cost: float | None) -> str:
    """Say a cost, with as many digits as tell something."""
    if cost is None:
        return ""
    return f"{cost:.4f}" if cost < 10 else f"{cost:,.2f}"


def _fit(text: str, width: int) -> str:
    """Return a text that takes so many columns."""
    return set_cell_size(_cut(text, width), width)


def _cut(text: str, width: int) -> str:
    """Return a text that takes at most so many columns."""
    if cell_len(text) <= width:
        return text
    return f"{set_cell_size(text, max(width - 1, 0)).rstrip()}…"[: max(width, 0)]
