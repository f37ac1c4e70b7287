"""The differences between two recordings (contract S8)."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.seeds import example_count
from support.traces import Spec, make_trace, specs

from anabranch.agents import Agent
from anabranch.backends import connect
from anabranch.commander import Commander, ConfigurationError
from anabranch.messages import Message, Request, ToolCall
from anabranch.testing import ScriptedBackend
from anabranch.tools import tool
from anabranch.tracing import Change, Difference, diff, record

pytestmark = pytest.mark.contract("S8")

DEPTH, WIDTH = example_count(5_000, 50_000), example_count(2_000, 10_000)
EXAMPLES = settings(max_examples=example_count(50, 1_000), deadline=None)
CITIES = ["Rome", "Bern", "Kyiv", "Lima"]


@tool
def weather(city: str) -> str:
    """Return the weather of a city."""
    if city == "Atlantis":
        raise LookupError(city)
    return f"sunny in {city}"


async def recorded(folder: Path, cities: list[str], *, order: int = 1, content: bool) -> Path:
    """Record agents, one for each question, with a cassette that calls for these cities."""
    folder.mkdir()  # noqa: ASYNC240 - once, before anything runs

    def reply(request: Request) -> Message:
        said = [each for each in request.messages if each.role == "tool"]
        asked = next(each.content or "" for each in request.messages if each.role == "user")
        city = cities[int(asked.split()[-1])]
        if said:
            return Message(role="assistant", content=f"I have answered {asked}")
        call = ToolCall(id="c", name="weather", arguments={"city": city})
        return Message(role="assistant", tool_calls=[call])

    async def ask_all(backend: Any, file: Path | None) -> None:
        async with Commander() as commander, backend:
            recorder = record(commander, file, content=content) if file else None
            agents = [
                Agent(backend, tools=[weather], name="ann")(f"question {number}")
                for number in range(len(cities))
            ]
            await asyncio.gather(*agents[::order])
            if recorder:
                recorder.close()

    cassette, file = folder / "talk.jsonl", folder / "run.jsonl"
    await ask_all(connect(f"cassette:{cassette}", record=ScriptedBackend(otherwise=reply)), None)
    await ask_all(connect(f"cassette:{cassette}"), file)
    return file


@pytest.mark.parametrize("content", [True, False])
async def test_a_second_run_of_a_cassette_has_no_differences(tmp_path: Path, content: bool) -> None:
    """Although concurrent agents are put in another order."""
    first = await recorded(tmp_path / "a", CITIES, content=content)
    again = await recorded(tmp_path / "b", CITIES, order=-1, content=content)
    found = diff(first, again)
    assert not found
    assert str(found) == "no differences"
    assert found.content is content


async def test_one_changed_call_is_one_change(tmp_path: Path) -> None:
    """With other arguments of equal or different length; or if it fails."""
    first = await recorded(tmp_path / "a", CITIES, content=True)
    for number, city in enumerate(["Oslo", "Reykjavik", "Atlantis"]):
        cities = ["Rome", "Bern", city, "Lima"]
        other = await recorded(tmp_path / str(number), cities, order=-1, content=True)
        [change] = diff(first, other).changes
        assert change.kind == "changed"
        assert change.path.endswith("/weather")
        assert change.what["arguments"] == ({"city": "Kyiv"}, {"city": city})
        assert change.what["result"][0] == "sunny in Kyiv"
        assert ("status" in change.what) == (city == "Atlantis")


async def test_without_content_a_changed_call_is_seen_by_its_size(tmp_path: Path) -> None:
    """If one recording lacks content; a call of equal size is not seen."""
    first = await recorded(tmp_path / "a", CITIES, content=False)
    same = await recorded(tmp_path / "b", ["Rome", "Bern", "Oslo", "Lima"], content=True)
    assert not diff(first, same)
    longer = await recorded(tmp_path / "c", ["Rome", "Bern", "Reykjavik", "Lima"], content=True)
    [change] = diff(first, longer).changes
    assert change.what == {"size of arguments": (16, 21), "size of result": (13, 18)}
    assert diff(longer, first).changes[0].what["size of result"] == (18, 13)


@EXAMPLES
@given(specs(), st.integers(0, 9), st.booleans())
def test_the_order_of_siblings_and_times_are_ignored(top: Spec, seed: int, content: bool) -> None:
    """And numbers; all facts are equal."""
    other = top.copy()
    for spec in other.walk():
        random.Random(seed).shuffle(spec.children)
    found = diff(make_trace(top, content=content), make_trace(other, seed=seed, content=content))
    assert not found.changes
    assert all(before == after for before, after in found.states.values())


def _mutate(spec: Spec, how: str) -> None:
    match how:
        case "name":
            spec.name = "other"
        case "agent":
            spec.agent = "cyd"
        case "state":
            failed = spec.state == "failed"
            spec.state, spec.error = ("completed", "") if failed else ("failed", "New")
        case "model":
            spec.model = "x"
        case "options":
            spec.model, spec.options = spec.model or "m", {"temperature": 2}
        case "tokens":
            spec.model, spec.tokens = spec.model or "m", 100
        case "size":
            spec.size += 1
        case "retries":
            spec.retries += 2
        case "kept":
            spec.kept = not spec.kept
        case "added":
            spec.children.append(Spec("new", [Spec("below")]))
        case _:
            spec.children.pop()


MUTATIONS = ["name", "agent", "state", "model", "options", "tokens", "size", "retries", "kept"]


@EXAMPLES
@given(specs(), st.sampled_from([*MUTATIONS, "added", "removed"]), st.integers(0, 9), st.data())
def test_one_mutation_is_one_change(top: Spec, how: str, seed: int, data: st.DataObject) -> None:
    """At any node, while all other nodes have another order."""
    other = top.copy()
    places = [
        spec
        for spec in other.walk()
        if (spec is not other or how == "added") and (how != "removed" or spec.children)
    ]
    if not places:
        return
    spec = data.draw(st.sampled_from(places))
    _mutate(spec, how)
    [change] = diff(make_trace(top), make_trace(other, seed=seed)).changes
    assert change.kind == (how if how in ("added", "removed") else "changed")
    assert (change.nodes == 2) if how == "added" else True
    if how in ("name", "agent"):
        assert change.what[how][1] == getattr(spec, how)


def _mirrored(found: Difference) -> list[tuple[Any, ...]]:
    kinds = {"added": "removed", "removed": "added", "changed": "changed"}
    return [
        (
            kinds[each.kind],
            each.after or 0,
            each.before or 0,
            sorted((name, str(pair[::-1])) for name, pair in each.what.items()),
        )
        for each in found.changes
    ]


@EXAMPLES
@given(specs(), specs())
def test_added_nodes_are_removed_in_the_other_direction(one: Spec, two: Spec) -> None:
    """And each fact has its values exchanged; each node counts once."""
    a, b = make_trace(one), make_trace(two, seed=1)
    there, back = diff(a, b), diff(b, a)
    plain = [
        (
            each.kind,
            each.before or 0,
            each.after or 0,
            sorted((name, str(pair)) for name, pair in each.what.items()),
        )
        for each in there.changes
    ]
    assert sorted(plain) == sorted(_mirrored(back))
    signs = {"added": 1, "removed": -1, "changed": 0}
    assert sum(signs[each.kind] * each.nodes for each in there.changes) == len(b) - len(a)
    assert bool(there) == bool(there.changes) == bool(back)
    json.dumps(there.to_json())


def _line(depth: int, last: str) -> Spec:
    spec = Spec(last)
    for _ in range(depth):
        spec = Spec("step", [spec])
    return Spec(children=[spec])


def test_a_deep_tree_is_compared_and_its_paths_stay_short() -> None:
    """For any depth."""
    [change] = diff(make_trace(_line(DEPTH, "end")), make_trace(_line(DEPTH, "last"))).changes
    assert change.what == {"name": ("end", "last")}
    assert change.path.count("/") < 40
    assert "more.../" in change.path
    assert change.path.endswith("/step/last")


def test_a_wide_tree_is_compared() -> None:
    """Thousands of changed nodes in another order: each finds its partner."""
    calls = [Spec("call", size=number + 1) for number in range(WIDTH)]
    before = make_trace(Spec(children=calls))
    changed = [Spec("call", size=each.size, model="m") for each in calls]
    after = make_trace(Spec(children=changed), seed=3)
    found = diff(before, after)
    assert len(found.changes) == WIDTH
    assert all(list(each.what) == ["request 1"] for each in found.changes)


def test_a_failure_is_listed_at_its_origin_only() -> None:
    """Not in the nodes above that failed because of it, nor a cancel in the nodes below."""

    def run(failed: str, cancelled: str) -> Spec:
        error = "ValueError" if failed == "failed" else ""
        leaf = Spec("leaf", state=failed, error=error)
        above = Spec("above", [leaf], state=failed, error=error)
        below = Spec("below", [Spec("low", state=cancelled)], state=cancelled)
        return Spec(children=[Spec("top", [above], state=failed, error=error), below])

    found = diff(make_trace(run("completed", "completed")), make_trace(run("failed", "cancelled")))
    assert [(each.path, list(each.what)) for each in found.changes] == [
        ("top/above/leaf", ["state", "error"]),
        ("below", ["state"]),
    ]
    assert found.states == {"cancelled": (0, 2), "completed": (5, 0), "failed": (0, 3)}


def test_another_tool_in_the_place_of_a_call_is_one_change() -> None:
    """Although name, size and result differ."""
    before = Spec(children=[Spec("search", size=9), Spec("clock", size=3)])
    after = Spec(children=[Spec("clock", size=3), Spec("fetch", size=4)])
    [change] = diff(make_trace(before), make_trace(after)).changes
    assert change.what["tool"] == ("search", "fetch")


def test_slower_nodes_are_listed_at_the_lowest_node() -> None:
    """Also a node with many slightly slower children; it is not a change."""

    def run(one: float, many: float) -> Spec:
        slow = Spec("outer", [Spec("inner", seconds=one)], seconds=one + 0.1)
        little = [Spec("step", seconds=many) for _ in range(10)]
        return Spec(children=[slow, Spec("loop", little, seconds=10 * many)])

    found = diff(make_trace(run(1, 0.1)), make_trace(run(4, 0.3)))
    assert not found
    assert [(each.path, each.before, each.after) for each in found.slower] == [
        ("outer/inner", 1, 4),
        ("loop", pytest.approx(1), 3),
    ]
    assert not found.faster
    assert "    outer/inner: 1.00 s -> 4.00 s" in found.lines(times=True)
    assert "slower" not in str(found)
    back = diff(make_trace(run(4, 0.3)), make_trace(run(1, 0.1)))
    assert [each.path for each in back.faster] == ["outer/inner", "loop"]


def test_sums_are_listed_for_each_agent_and_model() -> None:
    """With their cost, if either recording has a price."""
    before = make_trace(Spec(children=[Spec("a", agent="ann", model="m", tokens=1_000_000)]))
    after = make_trace(Spec(children=[Spec("a", agent="ann", model="m", tokens=2_000_000)]))
    after.feed({"e": "price", "model": "m", "input": 3.0, "output": 1.0, "cached_input": 1.0})
    found = diff(before, after)
    [spent] = found.spent
    assert (spent.agent, spent.model, spent.cost_before, spent.cost_after) == ("ann", "m", 3, 6)
    assert "    ann, m: 1,000,000 in, 0 out, cost 3 -> 2,000,000 in, 0 out, cost 6" in str(found)
    assert "    input tokens of m: 1000000 -> 2000000" in str(found)


def test_long_values_show_the_part_that_differs() -> None:
    """In one line, for any length."""
    text = "word " * 500
    before, after = (
        make_trace(Spec(children=[Spec("call", size=9, arguments=text + each)]), content=True)
        for each in ("north", "south")
    )
    found = diff(before, after)
    assert isinstance(found.changes[0], Change)
    [line] = [line for line in found.lines() if "arguments" in line]
    assert len(line) < 300
    assert line.endswith('north"' if line.endswith('"') else "south")


def test_other_files_are_refused(tmp_path: Path) -> None:
    """With the name of the file."""
    file = tmp_path / "a.jsonl"
    file.write_text('{"e": "put"}\n')
    with pytest.raises(ConfigurationError, match=r"a\.jsonl"):
        diff(file, str(file))
    with pytest.raises(ConfigurationError, match="missing"):
        diff(file.with_name("missing"), file)
