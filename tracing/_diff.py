"""What is different between two recordings."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from ..messages import Usage
from ._cause import drop_what_follows
from ._facts import as_key
from ._match import Pair, Side, match
from ._tell import describe
from ._trace import Trace, TraceNode, read

__all__ = ["Change", "Difference", "Pace", "Spent", "diff"]

# What is told of times: a node that took this many times as long, and so many seconds more.
RATIO, LEAST = 1.5, 0.5
# Of the segments of a long path, so many of its beginning and its end.
HALF = 16


@dataclass(frozen=True, slots=True)
class Change:
    """One difference: a node that was added, with all below it, removed, or has other facts.

    `what` are the facts, each as it was before and is after; None where there is none. `path` names
    the node and all above it; `before` and `after` are its numbers in the recordings, `nodes` how
    many were added or removed.
    """

    kind: Literal["added", "removed", "changed"]
    path: str
    before: int | None
    after: int | None
    what: Mapping[str, tuple[Any, Any]]
    nodes: int = 1


@dataclass(frozen=True, slots=True)
class Pace:
    """A node that took much longer than before, or much shorter: seconds in which it ran."""

    path: str
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Spent:
    """What an agent has spent on a model; costs are None where no price is known."""

    agent: str
    model: str
    before: Usage = field(default_factory=Usage)
    after: Usage = field(default_factory=Usage)
    cost_before: float | None = None
    cost_after: float | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """What is different between two recordings; true if anything is.

    Times are no difference: `slower` and `faster` are the nodes on which far more or less of it was
    spent, most first; of several on one path the lowest that says it. `spent` are the sums for each
    agent and model, `states` how many nodes ended in each state, before and after. `content` says
    whether what was said was compared, `missed` how many events the recordings lack.
    """

    changes: tuple[Change, ...]
    slower: tuple[Pace, ...]
    faster: tuple[Pace, ...]
    spent: tuple[Spent, ...]
    states: Mapping[str, tuple[int, int]]
    content: bool
    missed: tuple[int, int]

    def __bool__(self) -> bool:
        return bool(self.changes)

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self, *, times: bool = False) -> list[str]:
        """Return it for a person to read; with `times`, what became slower and faster too."""
        return describe(self, times)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        said = asdict(self)
        for each in said["changes"]:
            each["what"] = {
                name: {"before": before, "after": after}
                for name, (before, after) in each["what"].items()
            }
        for each in said["spent"]:
            each["before"], each["after"] = each["before"].model_dump(), each["after"].model_dump()
        return json.loads(json.dumps({"different": bool(self), **said}))


def diff(a: str | PathLike[str] | Trace, b: str | PathLike[str] | Trace) -> Difference:
    """Say what is different in `b`, compared with `a`: recordings, or traces that were read.

    Nodes are matched by what they are and by what is below them: children have no order, so it is
    no difference which of several that run at once comes first. Compared are names, agents, states,
    errors and where they were raised, retries, calls of tools, requests to models, tokens; if both
    recordings have content, that too. Times, numbers and machines are not. What follows from
    another difference is not told again: the failure of a node in those above it, a cancel in those
    below. Raises `ConfigurationError` for what is no recording.
    """
    before, after = (each if isinstance(each, Trace) else read(Path(each)) for each in (a, b))
    content = all(life.content for trace in (before, after) for life in trace.lives)
    numbers: dict[Hashable, int] = {}
    one, other = Side(before, content, numbers), Side(after, content, numbers)
    pairs = match(one, other, (before.root, after.root))
    what = _differences(one, other, pairs)
    drop_what_follows(pairs, what)
    paths = _Paths(pairs)
    changes = tuple(
        _change(pair, what[at], paths.of(at))
        for at, pair in enumerate(pairs)
        if pair.before is None or pair.after is None or what.get(at)
    )
    slower, faster = _paces(pairs, paths)
    return Difference(
        changes,
        slower,
        faster,
        _spent(before, after),
        _states(before, after),
        content,
        (before.missed, after.missed),
    )


def _differences(one: Side, other: Side, pairs: list[Pair]) -> dict[int, dict[str, Any]]:
    """Return in which facts the nodes of pairs differ, by the pairs' places."""
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
    """Compare requests: equal ones are the same, the others are so in their order."""
    there = [as_key(each) for each in after]
    left: dict[str, int] = {}
    for key in there:
        left[key] = left.get(key, 0) + 1
    mine: list[tuple[int, dict[str, Any]]] = []
    for number, each in enumerate(before, 1):
        if left.get(key := as_key(each)):
            left[key] -= 1
        else:
            mine.append((number, each))
    theirs: list[tuple[int, dict[str, Any]]] = []
    for number, (each, key) in enumerate(zip(after, there, strict=True), 1):
        if left[key]:
            left[key] -= 1
            theirs.append((number, each))
    found: dict[str, tuple[Any, Any]] = {}
    for (number, one), (_, other) in zip(mine, theirs, strict=False):
        changed = _compare(one, other)
        found |= {f"request {number}: {name}": pair for name, pair in changed.items()}
    for number, one in mine[len(theirs) :]:
        found[f"request {number}"] = _whom(one), None
    for number, other in theirs[len(mine) :]:
        found[f"request {number}"] = None, _whom(other)
    return found


def _whom(request: Mapping[str, Any]) -> str:
    return f"{request['provider']}:{request['model']}"


def _change(pair: Pair, what: Mapping[str, tuple[Any, Any]], path: str) -> Change:
    before, after = pair.before, pair.after
    if before is not None and after is not None:
        return Change("changed", path, before.number, after.number, what)
    if before is not None:
        return Change("removed", path, before.number, None, what, sum(1 for _ in before.walk()))
    assert after is not None
    return Change("added", path, None, after.number, what, sum(1 for _ in after.walk()))


class _Paths:
    """Names nodes by those above them; of a long path the middle is left out."""

    def __init__(self, pairs: list[Pair]) -> None:
        self._pairs = pairs
        # Of each pair: how deep it is, and the beginning of its path.
        self._places: list[tuple[int, str]] = []
        for pair in pairs:
            if pair.above < 0:
                self._places.append((0, ""))
                continue
            depth, head = self._places[pair.above]
            if depth < HALF:
                head = f"{head}/{_of(pair).name}" if head else _of(pair).name
            self._places.append((depth + 1, head))

    def of(self, at: int) -> str:
        """Return the path of a pair."""
        depth, head = self._places[at]
        node = _of(self._pairs[at])
        if depth == 0:
            return node.name
        if depth <= HALF:
            return head
        last = islice(node.upwards(), min(HALF, depth - HALF))
        tail = "/".join(reversed([each.name for each in last]))
        between = depth - 2 * HALF
        return f"{head}/...{between} more.../{tail}" if between > 0 else f"{head}/{tail}"


def _of(pair: Pair) -> TraceNode:
    node = pair.before if pair.after is None else pair.after
    assert node is not None
    return node


def _paces(pairs: list[Pair], paths: _Paths) -> tuple[tuple[Pace, ...], tuple[Pace, ...]]:
    """Return the nodes that became slower, and those that became faster."""
    # How much of each pair's change the nodes listed below it account for: longer, and shorter.
    told = [[0.0, 0.0] for _ in pairs]
    listed: tuple[list[Pace], list[Pace]] = ([], [])
    for at in range(len(pairs) - 1, 0, -1):
        before, after, above, _ = pairs[at]
        took, takes = _ran(before), _ran(after)
        if took is not None and takes is not None:
            for way, (less, more) in enumerate([(took, takes), (takes, took)]):
                rest = more - less - told[at][way]
                if rest >= LEAST and more >= RATIO * less:
                    told[at][way] = more - less
                    listed[way].append(Pace(paths.of(at), took, takes))
        for way in 0, 1:
            told[above][way] += told[at][way]
    slower, faster = (
        tuple(sorted(each, key=lambda pace: -abs(pace.after - pace.before))) for each in listed
    )
    return slower, faster


def _ran(node: TraceNode | None) -> float | None:
    """Return for how many seconds a node ran that has ended."""
    if node is None or node.is_open or not node.spells:
        return None
    if any(spell.end is None for spell in node.spells):
        return None
    return sum((spell.end or 0.0) - spell.start for spell in node.spells)


def _spent(before: Trace, after: Trace) -> tuple[Spent, ...]:
    spent = before.usage_by_agent(), after.usage_by_agent()
    # Where one recording has no price, it is as in the other.
    prices = {**after.prices, **before.prices}, {**before.prices, **after.prices}
    found: list[Spent] = []
    for agent in sorted({*spent[0], *spent[1]}):
        models = [each.get(agent, {}) for each in spent]
        for model in sorted({*models[0], *models[1]}):
            used = [each.get(model, Usage()) for each in models]
            costs = [
                known[model].of(each) if model in known else None
                for known, each in zip(prices, used, strict=True)
            ]
            found.append(Spent(agent, model, used[0], used[1], costs[0], costs[1]))
    return tuple(found)


def _states(before: Trace, after: Trace) -> dict[str, tuple[int, int]]:
    found: dict[str, list[int]] = {}
    for side, trace in enumerate((before, after)):
        for node in trace:
            found.setdefault(node.state, [0, 0])[side] += 1
    return {state: (one, other) for state, (one, other) in sorted(found.items())}
