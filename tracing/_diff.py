"""`diff`: the differences between two recordings, as data and as text."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from ..messages import Usage
from ._match import Pair, Side, as_key, match
from ._read import read
from ._trace import Trace
from ._trace_node import TraceError, TraceNode

__all__ = ["Change", "Difference", "DurationChange", "UsageChange", "diff"]

# A node counts as slower if its time exceeds both this ratio and this difference.
SLOWER_RATIO, SLOWER_SECONDS = 1.5, 0.5
# Segments at the start, and at the end, of a long path.
MAX_SEGMENTS = 16
# Characters of a shown value, and those before the first difference.
MAX_SHOWN_CHARS, CHARS_BEFORE_DIFFERENCE = 100, 30
# The facts of an added or removed node in the text.
SHOWN_FACTS = ("state", "status", "error", "arguments")
# Facts that the failure of a node below changes; the last three are those of tool calls.
FAILURE_FACTS = ("state", "error", "status", "result", "size of result")
# States of a child and its parent, if one of them ended the other.
ENDED_TOGETHER = {("cancelled", "cancelled"), ("cancelled", "failed"), ("lost", "lost")}


@dataclass(frozen=True, slots=True)
class Change:
    """One difference: a node that was added or removed with all nodes below it, or has changed.

    `what` maps each fact that differs to its values before and after, with None for no value.
    `path` has the names of the node's ancestors and its own. `before` and `after` are its numbers
    in the recordings. `nodes` is the number of added or removed nodes.
    """

    kind: Literal["added", "removed", "changed"]
    path: str
    before: int | None
    after: int | None
    what: Mapping[str, tuple[Any, Any]]
    nodes: int = 1


@dataclass(frozen=True, slots=True)
class DurationChange:
    """A node that took much more or much less time: the seconds that it ran."""

    path: str
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class UsageChange:
    """The usage of a model by an agent; a cost is None if the model's price is unknown."""

    agent: str
    model: str
    before: Usage = field(default_factory=Usage)
    after: Usage = field(default_factory=Usage)
    cost_before: float | None = None
    cost_after: float | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """The differences between two recordings; true if it has `changes`.

    `slower` and `faster` are nodes whose durations differ much, which is not a change; the largest
    difference is first. If a node explains the difference of those above it, only that node is
    listed. `spent` is the usage by agent and model. `states` is the number of nodes by state,
    before and after. `content` says whether texts were compared. `missed` are the numbers of events
    that the recordings lack.
    """

    changes: tuple[Change, ...]
    slower: tuple[DurationChange, ...]
    faster: tuple[DurationChange, ...]
    spent: tuple[UsageChange, ...]
    states: Mapping[str, tuple[int, int]]
    content: bool
    missed: tuple[int, int]

    def __bool__(self) -> bool:
        return bool(self.changes)

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self, *, times: bool = False) -> list[str]:
        """Return it as text for people; with `times`, also slower and faster nodes.

        Lines that belong to the one above them are indented.
        """
        lines = [line for change in self.changes for line in _change_lines(change)]
        if not lines:
            lines.append("no differences")
        for number, side in zip(self.missed, ("first", "second"), strict=True):
            if number:
                lines.append(f"the {side} recording lacks {number:,} events")
        spent = [
            _spent_line(each)
            for each in self.spent
            if (each.before, each.cost_before) != (each.after, each.cost_after)
        ]
        if spent:
            lines += ["tokens", *spent]
        states = [
            f"    {state}: {before:,} -> {after:,}"
            for state, (before, after) in self.states.items()
            if before != after
        ]
        if states:
            lines += ["nodes by state", *states]
        if times:
            for name, nodes in ("slower", self.slower), ("faster", self.faster):
                lines.append(name if nodes else f"no node became much {name}")
                lines += [f"    {n.path}: {n.before:.2f} s -> {n.after:.2f} s" for n in nodes]
        return lines

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        found = asdict(self)
        for each in found["changes"]:
            each["what"] = {
                name: {"before": before, "after": after}
                for name, (before, after) in each["what"].items()
            }
        for each in found["spent"]:
            each["before"], each["after"] = each["before"].model_dump(), each["after"].model_dump()
        return json.loads(json.dumps({"different": bool(self), **found}))


def diff(a: str | PathLike[str] | Trace, b: str | PathLike[str] | Trace) -> Difference:
    """Return the differences between two recordings, `a` before and `b` after.

        difference = diff("before.jsonl", "after.jsonl")
        assert not difference, str(difference)

    `a` and `b` are files or traces. It pairs nodes by their facts and by those of the nodes below
    them. It ignores the order of children. It compares names, agents, states, errors and the lines
    that raised them, retries, tool calls, requests to models, and tokens; also texts, if both
    recordings have content. It does not compare times, numbers and machines. It leaves out
    differences that follow from another one: the failure of a node in the nodes above, and a cancel
    in the nodes below. Raises `ConfigurationError` for a file that is not a recording.
    """
    before, after = (each if isinstance(each, Trace) else read(Path(each)) for each in (a, b))
    content = all(each.content for trace in (before, after) for each in trace.executions)
    numbers: dict[Hashable, int] = {}
    one, other = Side(before, content, numbers), Side(after, content, numbers)
    pairs = match(one, other, (before.root, after.root))
    facts = _differences(one, other, pairs)
    _drop_failures(pairs, facts)
    _drop_ends(pairs, facts)
    paths = _paths(pairs)
    changes = tuple(
        _change(pair, facts[at], paths[at])
        for at, pair in enumerate(pairs)
        if pair.before is None or pair.after is None or facts.get(at)
    )
    slower, faster = _durations(pairs, paths)
    missed = before.missed, after.missed
    states = _states(before, after)
    return Difference(changes, slower, faster, _spent(before, after), states, content, missed)


def _differences(one: Side, other: Side, pairs: list[Pair]) -> dict[int, dict[str, Any]]:
    """Return the facts that differ between the nodes of a pair, by the index of the pair."""
    found: dict[int, dict[str, Any]] = {}
    for at, (before, after, above, same) in enumerate(pairs):
        if same:
            continue
        if before is None or after is None:
            facts = one.facts(before) if before else other.facts(after) if after else {}
            found[at] = {
                name: (value, None) if before else (None, value) for name, value in facts.items()
            }
        elif one.own[before] != other.own[after]:
            what = _compare(one.facts(before), other.facts(after))
            agents = one.agent[before], other.agent[after]
            inherited = ("", "")
            if above >= 0 and before.parent and after.parent:
                inherited = one.agent[before.parent], other.agent[after.parent]
            if agents[0] != agents[1] and agents != inherited:
                what["agent"] = agents
            what |= _compare_requests(one.requests(before), other.requests(after))
            if what:
                found[at] = what
    return found


def _compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    found: dict[str, tuple[Any, Any]] = {}
    for name in {**before, **after}:
        pair = before.get(name), after.get(name)
        if as_key(pair[0]) != as_key(pair[1]):
            found[name] = pair
    return found


def _compare_requests(
    before: list[dict[str, Any]], after: list[dict[str, Any]]
) -> dict[str, tuple[Any, Any]]:
    """Compare requests: pair equal ones first, then the others in order."""
    keys_after = [as_key(each) for each in after]
    counts: dict[str, int] = {}
    for key in keys_after:
        counts[key] = counts.get(key, 0) + 1
    unpaired_before: list[tuple[int, dict[str, Any]]] = []
    for number, each in enumerate(before, 1):
        if counts.get(key := as_key(each)):
            counts[key] -= 1
        else:
            unpaired_before.append((number, each))
    unpaired_after: list[tuple[int, dict[str, Any]]] = []
    for number, (each, key) in enumerate(zip(after, keys_after, strict=True), 1):
        if counts[key]:
            counts[key] -= 1
            unpaired_after.append((number, each))
    found: dict[str, tuple[Any, Any]] = {}
    for (number, one), (_, other) in zip(unpaired_before, unpaired_after, strict=False):
        changed = _compare(one, other)
        found |= {f"request {number}: {name}": pair for name, pair in changed.items()}
    for number, one in unpaired_before[len(unpaired_after) :]:
        found[f"request {number}"] = _model_of(one), None
    for number, other in unpaired_after[len(unpaired_before) :]:
        found[f"request {number}"] = None, _model_of(other)
    return found


def _model_of(request: Mapping[str, Any]) -> str:
    return f"{request['provider']}:{request['model']}"


def _change(pair: Pair, what: Mapping[str, tuple[Any, Any]], path: str) -> Change:
    before, after = pair.before, pair.after
    if before is not None and after is not None:
        return Change("changed", path, before.number, after.number, what)
    if before is not None:
        return Change("removed", path, before.number, None, what, sum(1 for _ in before.walk()))
    assert after is not None
    return Change("added", path, None, after.number, what, sum(1 for _ in after.walk()))


# --- differences that follow from others


def _drop_failures(pairs: list[Pair], facts: dict[int, dict[str, Any]]) -> None:
    """Keep a failure at its origin, and drop it in the nodes above that failed because of it.

    If a tool call differs in more than its failure, keep the failure there instead.
    """
    # The failed nodes so far, with the pair that has their failure: their own, or the origin's.
    origins: dict[TraceNode, int | None] = {}
    for at in range(len(pairs) - 1, -1, -1):
        here, pair = facts.get(at), pairs[at]
        if here is None:
            continue
        both = pair.before is not None and pair.after is not None
        if both and not here.keys() & {"state", "error", "status"}:
            continue
        bad = [node for node in pair[:2] if node is not None and node.is_bad]
        if not bad:
            continue
        places = [_origin(node, origins) for node in bad]
        if not both or None in places:
            places = [at] * len(bad)
        elif any(node.tool for node in bad) and not here.keys() <= set(FAILURE_FACTS):
            for place in places:
                _drop(facts, place, ("state", "error"))
            places = [at] * len(bad)
        else:
            _drop(facts, at, FAILURE_FACTS)
        origins.update(zip(bad, places, strict=True))


def _drop(facts: dict[int, dict[str, Any]], at: int | None, names: tuple[str, ...]) -> None:
    if at is not None and at in facts:
        facts[at] = {name: value for name, value in facts[at].items() if name not in names}


def _origin(node: TraceNode, origins: dict[TraceNode, int | None]) -> int | None:
    """Return the pair that has the failure of a node, if one of its children caused it."""
    errors = {_error_key(each) for each in (node.error, *node.error.of)} if node.error else ()
    for child in node.children:
        # A failed tool call answers normally, without an error.
        if child in origins and child.error and (_error_key(child.error) in errors or node.status):
            return origins[child]
    return None


def _error_key(error: TraceError) -> tuple[str, str, str]:
    return error.type, error.at, error.message


def _drop_ends(pairs: list[Pair], facts: dict[int, dict[str, Any]]) -> None:
    """Keep a cancel, and the end of a killed process, only in the topmost nodes that it ended."""
    changed: dict[int, tuple[str, str]] = {}
    for at, pair in enumerate(pairs):
        if pair.before is None or pair.after is None or "state" not in (here := facts.get(at, {})):
            continue
        changed[at] = here["state"]
        above = changed.get(pair.above)
        if above and set(zip(here["state"], above, strict=True)) & ENDED_TOGETHER:
            _drop(facts, at, ("state",))


# --- paths and durations


def _paths(pairs: list[Pair]) -> list[str]:
    """Return the path of each pair, without the middle of a long path."""
    # The depth of each pair, and the beginning of its path.
    places: list[tuple[int, str]] = []
    paths: list[str] = []
    for pair in pairs:
        node = pair.before if pair.after is None else pair.after
        assert node is not None
        if pair.above < 0:
            places.append((0, ""))
            paths.append(node.name)
            continue
        above, head = places[pair.above]
        depth = above + 1
        if depth <= MAX_SEGMENTS:
            head = f"{head}/{node.name}" if head else node.name
        places.append((depth, head))
        if depth <= MAX_SEGMENTS:
            paths.append(head)
            continue
        last = islice(node.upwards(), min(MAX_SEGMENTS, depth - MAX_SEGMENTS))
        tail = "/".join(reversed([each.name for each in last]))
        between = depth - 2 * MAX_SEGMENTS
        paths.append(f"{head}/...{between} more.../{tail}" if between > 0 else f"{head}/{tail}")
    return paths


def _durations(
    pairs: list[Pair], paths: list[str]
) -> tuple[tuple[DurationChange, ...], tuple[DurationChange, ...]]:
    """Return the nodes that became slower, and those that became faster."""
    # The part of each pair's change, to longer and to shorter, that listed nodes below it explain.
    explained = [[0.0, 0.0] for _ in pairs]
    listed: tuple[list[DurationChange], list[DurationChange]] = ([], [])
    for at in range(len(pairs) - 1, 0, -1):
        before, after, above, _ = pairs[at]
        seconds_before, seconds_after = _ran(before), _ran(after)
        if seconds_before is not None and seconds_after is not None:
            directions = (seconds_before, seconds_after), (seconds_after, seconds_before)
            for way, (less, more) in enumerate(directions):
                rest = more - less - explained[at][way]
                if rest >= SLOWER_SECONDS and more >= SLOWER_RATIO * less:
                    explained[at][way] = more - less
                    listed[way].append(DurationChange(paths[at], seconds_before, seconds_after))
        for way in 0, 1:
            explained[above][way] += explained[at][way]
    slower, faster = (
        tuple(sorted(each, key=lambda change: -abs(change.after - change.before)))
        for each in listed
    )
    return slower, faster


def _ran(node: TraceNode | None) -> float | None:
    """Return the seconds that a node ran; None if it has not ended."""
    if node is None or node.is_open or not node.intervals:
        return None
    if any(interval.end is None for interval in node.intervals):
        return None
    return sum((interval.end or 0.0) - interval.start for interval in node.intervals)


def _spent(before: Trace, after: Trace) -> tuple[UsageChange, ...]:
    spent = before.usage_by_agent(), after.usage_by_agent()
    # If one recording lacks a price, use that of the other.
    prices = {**after.prices, **before.prices}, {**before.prices, **after.prices}
    found: list[UsageChange] = []
    for agent in sorted({*spent[0], *spent[1]}):
        models = [each.get(agent, {}) for each in spent]
        for model in sorted({*models[0], *models[1]}):
            used = [each.get(model, Usage()) for each in models]
            costs = [
                known[model].of(each) if model in known else None
                for known, each in zip(prices, used, strict=True)
            ]
            found.append(UsageChange(agent, model, used[0], used[1], costs[0], costs[1]))
    return tuple(found)


def _states(before: Trace, after: Trace) -> dict[str, tuple[int, int]]:
    found: dict[str, list[int]] = {}
    for side, trace in enumerate((before, after)):
        for node in trace:
            found.setdefault(node.state, [0, 0])[side] += 1
    return {state: (one, other) for state, (one, other) in sorted(found.items())}


# --- as text


def _change_lines(change: Change) -> Iterator[str]:
    if change.before is not None and change.after is not None:
        same = change.before == change.after
        numbers = f"#{change.before}" if same else f"#{change.before}, now #{change.after}"
        yield f"changed {change.path} ({numbers})"
        for name, (before, after) in change.what.items():
            one, other = _shown(before, after)
            yield f"    {name}: {one} -> {other}"
        return
    number, place = (change.after, 1) if change.before is None else (change.before, 0)
    below = f", with {change.nodes - 1:,} below it" if change.nodes > 1 else ""
    yield f"{change.kind} {change.path} (#{number}{below})"
    for name in SHOWN_FACTS:
        if name in change.what:
            yield f"    {name}: {_shown(change.what[name][place])[0]}"


def _shown(value: Any, other: Any = None) -> tuple[str, str]:
    """Return two values in one line each; for long values, the part that differs."""
    one, two = _text(value), _text(other)
    if max(len(one), len(two)) <= MAX_SHOWN_CHARS:
        return one, two
    start = next((at for at, (x, y) in enumerate(zip(one, two, strict=False)) if x != y), 0)
    start = max(0, start - CHARS_BEFORE_DIFFERENCE)
    return _cut(one, start), _cut(two, start)


def _cut(text: str, start: int) -> str:
    end = start + MAX_SHOWN_CHARS
    return f"{'...' if start else ''}{text[start:end]}{'...' if len(text) > end else ''}"


def _text(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, str) and value and value.isprintable() and value.strip() == value:
        return value
    return json.dumps(value, ensure_ascii=False)


def _spent_line(spent: UsageChange) -> str:
    name = f"{spent.agent}, {spent.model}" if spent.agent else spent.model
    before = _amount(spent.before, spent.cost_before)
    return f"    {name}: {before} -> {_amount(spent.after, spent.cost_after)}"


def _amount(used: Usage, cost: float | None) -> str:
    tokens = f"{used.input_tokens:,} in, {used.output_tokens:,} out"
    return tokens if cost is None else f"{tokens}, cost {cost:.4g}"
