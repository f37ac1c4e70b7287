"""A recording as a trace for Perfetto: nested tracks, in order of time."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.seeds import example_count
from support.traces import Spec, make_trace, specs

from anabranch.agents import Agent
from anabranch.commander import Commander, ConfigurationError
from anabranch.messages import Message, ToolCall
from anabranch.testing import ScriptedBackend
from anabranch.tools import tool
from anabranch.tracing import Trace, read, record
from anabranch.tracing._perfetto import MAX_NESTED_SLICES, _write

pytestmark = pytest.mark.contract("S9")

EXAMPLES = settings(max_examples=example_count(60, 1_000), deadline=None)


@tool
def weather(city: str) -> str:
    """Return the weather of a city."""
    raise LookupError(city)


def refuse(name: str) -> None:
    raise AssertionError(f"{name} is no number of JSON")


def written(trace: Trace) -> list[dict[str, Any]]:
    """Return the events, which are valid JSON."""
    found = json.loads("".join(_write(trace)), parse_constant=refuse)
    assert set(found) == {"displayTimeUnit", "otherData", "traceEvents"}
    return found["traceEvents"]


def check(events: list[dict[str, Any]]) -> None:
    """Check the rules that each reader relies on."""
    named = {(each["pid"], each.get("tid")) for each in events if each["ph"] == "M"}
    rest = [each for each in events if each["ph"] != "M"]
    assert events[len(events) - len(rest) :] == rest  # names come first
    assert [each["ts"] for each in rest] == sorted(each["ts"] for each in rest)
    assert all(type(each["ts"]) is int for each in rest)
    tracks: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for each in rest:
        assert (each["pid"], each.get("tid")) in named
        if each["ph"] == "X":
            start, end = each["ts"], each["ts"] + each["dur"]
            assert end >= start
            inside = tracks[each["pid"], each["tid"]]
            while inside and inside[-1][1] <= start:
                inside.pop()
            assert not inside or (inside[-1][0] <= start and end <= inside[-1][1])
            inside.append((start, end))
            assert len(inside) <= MAX_NESTED_SLICES


def spread(top: Spec, seed: int) -> Trace:
    """Return a trace whose nodes run for random parts of their parents' times.

    A few end later, as nodes of another machine may.
    """
    chance = random.Random(seed)
    trace = Trace()
    trace.feed({"recording": 1, "time": 9e8, "pid": 1, "host": "box", "content": True})
    lines: list[tuple[float, int, dict[str, Any]]] = []
    waiting, number = [(0, 0.0, 9.0, each) for each in top.children], 0
    while waiting:
        parent, low, high, spec = waiting.pop()
        number += 1
        start, end = sorted(round(chance.uniform(low, high), 1) for _ in range(2))
        end = end if chance.random() < 0.9 else end + 5
        put = {"e": "put", "p": parent, "name": spec.name, "host": "" if number % 7 else "other"}
        asked = {"provider": "p", "model": "m", "q": number}
        for at, what in [
            (start, put),
            (start, {"e": "started"}),
            (start, {"e": "request", **asked}),
            ((start + end) / 2, {"e": "first_chunk", "q": number}),
            (end, {"e": "reply", "q": number, "chunks": 1, "usage": {"m": {"input_tokens": 1}}}),
            (end, {"e": spec.state, "error": {"type": "E"}} if spec.error else {"e": spec.state}),
        ]:
            lines.append((at, len(lines), {"n": number, "t": at, **what}))
        waiting += [(number, start, end, each) for each in spec.children]
    for _, _, line in sorted(lines, key=lambda line: line[:2]):
        trace.feed(line)
    if seed % 2:
        trace.feed({"e": "end", "t": 99.0, "usage": {}})
    trace.lose_open()
    return trace


@EXAMPLES
@given(specs(), st.integers(0, 99))
def test_slices_nest_on_every_track(top: Spec, seed: int) -> None:
    """For any overlap of nodes; each node, request and first chunk appears once."""
    trace = spread(top, seed)
    events = written(trace)
    check(events)
    numbers = sorted(int(each["name"].split("#")[1]) for each in events if "#" in each["name"])
    assert numbers == list(range(1, len(trace) + 1))
    kinds = [each.get("cat") for each in events]
    assert kinds.count("request") == len(trace)
    assert [each["name"] for each in events].count("first chunk") == len(trace)
    counts = [each["args"] for each in events if each["ph"] == "C"]
    assert counts[-1] == {"input": len(trace), "output": 0}


@EXAMPLES
@given(specs(), st.integers(0, 9))
def test_any_trace_is_drawn(top: Spec, seed: int) -> None:
    """With retries, failures, recorded outcomes, and nodes without duration."""
    check(written(make_trace(top, seed=seed)))


def test_concurrent_nodes_have_tracks_which_are_reused() -> None:
    """As few as nodes at one time; sequential nodes share the track of their parent."""
    trace = Trace()
    trace.feed({"recording": 1, "time": 9e8, "pid": 1, "host": "box", "content": False})
    for number in range(1, 101):
        at = number // 5  # five at a time
        trace.feed({"e": "put", "t": at, "n": number, "p": 0, "name": "w"})
        trace.feed({"e": "started", "t": at, "n": number})
    for number in range(1, 101):
        trace.feed({"e": "completed", "t": number // 5 + 1, "n": number})
    trace.feed({"e": "end", "t": 22, "usage": {}})
    events = written(trace)
    check(events)
    lanes = [each["args"]["name"] for each in events if each["name"] == "thread_name"]
    assert lanes == [f"lane {number}" for number in range(1, 6)]


def test_events_of_a_node_are_marks() -> None:
    """Failures, retries, a blocked loop, a node that never started."""
    trace = Trace()
    for line in [
        {"recording": 1, "time": 9e8, "pid": 1, "host": "box", "content": False},
        {"e": "put", "t": 0, "n": 1, "p": 0, "name": "a"},
        {"e": "put", "t": 0.5, "n": 2, "p": 0, "name": "b"},
        {"e": "started", "t": 1, "n": 1},
        {"e": "retried", "t": 2, "n": 1, "error": {"type": "OSError"}},
        {"e": "started", "t": 3, "n": 1},
        {"e": "slow", "t": 4, "n": 1, "seconds": 0.5, "at": "app.py:3 in task"},
        {"e": "failed", "t": 5, "n": 1, "error": {"type": "KeyError", "at": "app.py:4 in task"}},
        {"e": "cancelled", "t": 6, "n": 2},
        {"e": "end", "t": 6, "usage": {}},
    ]:
        trace.feed(line)
    events = written(trace)
    check(events)
    assert [(each["ts"], each["name"], each["args"]) for each in events if each["ph"] == "i"] == [
        (2_000_000, "retried", {"error": "OSError"}),
        (4_000_000, "blocked the loop", {"seconds": 0.5, "at": "app.py:3 in task"}),
        (5_000_000, "failed: KeyError", {"error": "KeyError (app.py:4 in task)"}),
        (6_000_000, "b#2 never started: cancelled", {}),
    ]
    slices = [each for each in events if each["ph"] == "X" and each["name"] == "a#1"]
    assert [(each["ts"], each["dur"]) for each in slices] == [
        (10**6, 10**6),
        (3 * 10**6, 2 * 10**6),
    ]
    assert slices[0]["args"]["waited to start (s)"] == 1


def test_each_execution_and_each_machine_is_a_process() -> None:
    """A node of two executions is in both."""
    trace = Trace()
    for life in 1, 2:
        trace.feed({"recording": 1, "time": 9e8 + life, "pid": life, "host": "box", "content": 0})
        for number, host in (1, ""), (2, "other"):
            place = {"run": "r", "id": str(number), "host": host}
            trace.feed({"e": "put", "t": 0, "n": number, "p": number - 1, "name": "a", **place})
            trace.feed({"e": "started", "t": 0.1, "n": number})
        trace.feed({"e": "completed", "t": 0.5, "n": 2})
    trace.lose_open()
    events = written(trace)
    check(events)
    names = [each["args"]["name"] for each in events if each["name"] == "process_name"]
    assert names == ["process 1 on box", "process 2 on box", "other", "other"]
    assert [each["pid"] for each in events if each["name"] == "a#1" and each["ph"] == "X"] == [1, 2]


@pytest.mark.parametrize("shape", ["deep", "wide"])
def test_a_large_trace_is_written(shape: str) -> None:
    """Thousands of nodes below each other, or concurrently."""
    count = example_count(2_000, 20_000)
    spec = Spec(seconds=0)
    for number in range(count):
        if shape == "deep":
            spec = Spec(children=[spec], seconds=number / 1e3)
        else:
            spec.children.append(Spec(seconds=1.0))
    events = written(make_trace(spec if shape == "wide" else Spec(children=[spec])))
    check(events)
    assert sum(each["ph"] == "X" for each in events) >= count


async def test_a_recording_is_written_as_a_file(tmp_path: Path) -> None:
    """Its slices have the agent, its requests and its tools, with content if recorded."""
    call = ToolCall(id="c", name="weather", arguments={"city": "Rome"})
    replies = Message(role="assistant", tool_calls=[call]), "half a pair: \ud800"
    async with Commander() as commander:
        recorder = record(commander, tmp_path / "run.jsonl", content=True)
        await asyncio.gather(
            *(Agent(ScriptedBackend(*replies), tools=[weather], name="ann")("?") for _ in range(3))
        )
        recorder.close()
        recorder.perfetto(tmp_path / "run.json")
    events = json.loads((tmp_path / "run.json").read_text("utf-8"), parse_constant=refuse)
    check(events["traceEvents"])
    by_kind = defaultdict[str, list[dict[str, Any]]](list)
    for each in events["traceEvents"]:
        by_kind[each.get("cat", "")].append(each)
    assert len(by_kind["request"]) == 6
    assert len(by_kind["tool"]) == 3
    assert by_kind["tool"][0]["args"]["status"] == "failed"
    assert "Rome" in str(by_kind["tool"][0]["args"]["arguments"])
    assert sorted(os.listdir(tmp_path)) == ["run.json", "run.jsonl"]


def test_a_number_that_json_lacks_is_written_as_text() -> None:
    """A model may have sent one; readers would refuse the complete file."""
    call = Spec("call", size=3, arguments={"day": float("nan")})
    events = written(make_trace(Spec(children=[call]), content=True))
    [said] = [each["args"] for each in events if each.get("cat") == "tool"]
    assert said["arguments"] == "{'day': nan}"


def test_a_file_is_replaced_completely_or_not_at_all(tmp_path: Path) -> None:
    """The old file stays if writing fails; a link still points to the same place."""
    trace = make_trace(Spec(children=[Spec()]))
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    trace.root.children[0].others["strange"] = object()  # type: ignore[assignment]
    with pytest.raises(TypeError):
        trace.perfetto(tmp_path / "link.json")
    assert (tmp_path / "real.json").read_text() == "old"
    trace.root.children[0].others.clear()
    trace.perfetto(tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert json.loads((tmp_path / "real.json").read_text())["traceEvents"]
    assert sorted(os.listdir(tmp_path)) == ["link.json", "real.json"]


def test_a_recording_is_never_overwritten(tmp_path: Path) -> None:
    """Neither by a page nor by a file for Perfetto."""
    file = tmp_path / "run.jsonl"
    file.write_text('{"recording":1,"time":1.0,"pid":1,"host":"h","content":false}\n')
    said, trace = file.read_text(), read(file)
    for write in trace.perfetto, trace.html:
        with pytest.raises(ConfigurationError, match="it is a recording, and would be overwritten"):
            write(file)
    assert file.read_text() == said


@pytest.mark.skipif(sys.platform == "win32", reason="files have other rights there")
def test_a_replaced_file_keeps_its_permissions(tmp_path: Path) -> None:
    """For example of a page with content."""
    file = tmp_path / "run"
    file.touch(0o600)
    trace = make_trace(Spec())
    for write in trace.perfetto, trace.html:
        write(file)
        assert file.stat().st_mode & 0o777 == 0o600


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """The error names it: a folder, a missing folder, an impossible name."""
    trace = make_trace(Spec())
    for place in tmp_path, tmp_path / "missing" / "a.json", f"{tmp_path}/a\0b":
        for write in trace.perfetto, trace.html:
            with pytest.raises(ConfigurationError, match="cannot write"):
                write(place)
    assert os.listdir(tmp_path) == []
