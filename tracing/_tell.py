"""A difference in words."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ..messages import Usage

if TYPE_CHECKING:
    from ._diff import Change, Difference, Pace, Spent

__all__ = ["describe"]

# The most characters that are shown of a value, and so many before the place that differs.
LONGEST, BEFORE = 100, 30
# The facts that are told of a node which was added or removed.
TELLING = ("state", "status", "error", "arguments")


def describe(difference: Difference, times: bool) -> list[str]:
    """Return it line by line; lines that belong to the one above begin with spaces."""
    lines = [line for change in difference.changes for line in _change(change)]
    if not lines:
        lines.append("no difference")
    for number, which in zip(difference.missed, ("first", "second"), strict=True):
        if number:
            lines.append(f"the {which} recording lacks {number:,} events")
    spent = [_spent(each) for each in difference.spent if _differs(each)]
    if spent:
        lines += ["tokens", *spent]
    states = [
        f"    {state}: {before:,} -> {after:,}"
        for state, (before, after) in difference.states.items()
        if before != after
    ]
    if states:
        lines += ["nodes by state", *states]
    if times:
        for name, paces in ("slower", difference.slower), ("faster", difference.faster):
            lines += [name, *map(_pace, paces)] if paces else [f"nothing became much {name}"]
    return lines


def _change(change: Change) -> list[str]:
    if change.before is not None and change.after is not None:
        same = change.before == change.after
        numbers = f"#{change.before}" if same else f"#{change.before}, now #{change.after}"
        lines = [f"changed {change.path} ({numbers})"]
        for name, (before, after) in change.what.items():
            one, other = _shown(before, after)
            lines.append(f"    {name}: {one} -> {other}")
        return lines
    number, place = (change.after, 1) if change.before is None else (change.before, 0)
    below = f", with {change.nodes - 1:,} below it" if change.nodes > 1 else ""
    lines = [f"{change.kind} {change.path} (#{number}{below})"]
    for name in TELLING:
        if name in change.what:
            lines.append(f"    {name}: {_shown(change.what[name][place])[0]}")
    return lines


def _shown(value: Any, other: Any = None) -> tuple[str, str]:
    """Return two values in one line each; of long ones the part in which they differ."""
    one, two = _text(value), _text(other)
    if max(len(one), len(two)) <= LONGEST:
        return one, two
    start = next((at for at, (x, y) in enumerate(zip(one, two, strict=False)) if x != y), 0)
    start = max(0, start - BEFORE)
    return _cut(one, start), _cut(two, start)


def _cut(text: str, start: int) -> str:
    end = start + LONGEST
    return f"{'...' if start else ''}{text[start:end]}{'...' if len(text) > end else ''}"


def _text(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, str) and value and value.isprintable() and value.strip() == value:
        return value
    return json.dumps(value, ensure_ascii=False)


def _differs(spent: Spent) -> bool:
    return (spent.before, spent.cost_before) != (spent.after, spent.cost_after)


def _spent(spent: Spent) -> str:
    whose = f"{spent.agent}, {spent.model}" if spent.agent else spent.model
    before = _amount(spent.before, spent.cost_before)
    return f"    {whose}: {before} -> {_amount(spent.after, spent.cost_after)}"


def _amount(used: Usage, cost: float | None) -> str:
    tokens = f"{used.input_tokens:,} in, {used.output_tokens:,} out"
    return tokens if cost is None else f"{tokens}, cost {cost:.4g}"


def _pace(pace: Pace) -> str:
    return f"    {pace.path}: {pace.before:.2f} s -> {pace.after:.2f} s"
