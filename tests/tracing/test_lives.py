"""A durable run that is killed and resumed is one trace, for any kills."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.killed_executions import Execution, Kill, effects_in_doubt, run_execution
from support.memory_journal import Disk, MemoryFile
from support.paths import PROGRAMS
from support.random_program_draw import draw_body
from support.random_programs import LIVE, program, send_signals
from support.seeds import SEED, example_count, seeds

from anabranch.commander import Commander
from anabranch.messages import Usage
from anabranch.tracing import Recorder, Trace, TraceNode, read, record

pytestmark = pytest.mark.contract("S4")

Key = tuple[str, str]


class Recorded:
    """Executions that record to one file; it notes the file's length after each journal row."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sizes: dict[int, int] = {}
        self.usage: dict[str, Any] = {}
        self._recorder: Recorder | None = None

    @asynccontextmanager
    async def around(self) -> AsyncGenerator[None]:
        async with Commander() as commander, record(commander, self.path, append=True) as recorder:
            self._recorder = recorder
            yield
        self.usage = commander.usage()

    def file(self, disk: Disk) -> MemoryFile:
        noted = self

        class Noted(MemoryFile):
            def append(self, run_id: str, fence: int, row: Any) -> int:
                number = super().append(run_id, fence, row)
                assert noted._recorder is not None
                assert noted._recorder._thread.flush()
                noted.sizes[number] = noted.path.stat().st_size
                return number

        return Noted(disk)

    def live(self, body: Any, seed: int, disk: Disk | None = None) -> Execution:
        self.sizes = {}
        return run_execution(
            program(body),
            disk,
            seed=seed,
            live=LIVE,
            beside=send_signals(body),
            around=self.around,
            file=self.file,
        )


def places(trace: Trace) -> dict[Key, TraceNode]:
    """Return the nodes by identity; each exists once.

    Except nodes whose inputs differ in each execution: a time, a random number, a reply.
    """
    found: dict[Key, TraceNode] = {}
    for node in trace:
        if node.name == "echo":
            continue
        if not node.identity:
            assert not node.run_id
            continue
        assert found.setdefault((node.run_id, node.identity), node) is node, node
    return found


def parent_of(node: TraceNode) -> Key:
    assert node.parent is not None
    return node.parent.run_id, node.parent.identity


@pytest.mark.parametrize("seed", seeds(example_count(12, 300)))
def test_a_run_that_was_killed_is_one_tree(seed: int, tmp_path: Path) -> None:
    """Each node once, ended, below its parent; the usage is counted by the last execution."""
    body, draw = draw_body(f"tracing {seed}", 1 + seed % 3), random.Random(seed)
    lives = Recorded(tmp_path / "lives.jsonl")
    life = first = lives.live(body, seed)
    assert first.error is None
    expected = places(read(lives.path))
    assert read(lives.path).usage() == lives.usage

    lossless = True
    for _ in range(draw.randint(1, 3)):
        rows = draw.randint(min(life.before + 1, len(life.rows)), len(life.rows))
        if rows in lives.sizes:
            size = lives.sizes[rows]
            if draw.random() < 0.5:  # the last events were not on disk yet
                size, lossless = draw.randint(0, size), False
            os.truncate(lives.path, size)
        done = frozenset(key for key in effects_in_doubt(life, rows) if draw.random() < 0.5)
        life = lives.live(body, draw.randrange(1 << 30), Kill(rows, done).of(life))
        assert life.outcome == first.outcome

    trace = read(lives.path)
    found = places(trace)
    assert trace.missed == 0
    assert found.keys() <= expected.keys(), body
    assert found.keys() == expected.keys() or not lossless, body
    for key, node in found.items():
        assert parent_of(node) == parent_of(expected[key]), (node, body)
        assert not node.is_open
        assert node.state in (expected[key].state, "lost"), (node, body)
    last_life = lives.path.read_text().rpartition('{"recording"')[2]
    if '"e":"put"' in last_life:  # else the run had ended
        assert trace.usage() == lives.usage, body
    assert trace.root.usage == {}


def test_killed_processes_leave_one_trace(tmp_path: Path) -> None:
    """With `kill -9` at any moment, in a run with agents, retries and races, and a session."""
    script = str(PROGRAMS / "recorded_lives.py")
    command = [sys.executable, script, str(tmp_path), str(example_count(6, 60)), str(SEED)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)

    trace = read(tmp_path / "run.jsonl")
    found = places(trace)
    assert len(trace.executions) > 1
    assert not trace.executions[0].ended
    assert trace.executions[-1].ended
    assert {node.run_id for node in trace if node.run_id} == {"desk", "clerk/7"}
    desk, *others = [node for node in trace if node.name == "Desk"]
    assert not others
    assert (
        desk.executions >= len(desk.intervals) > 1
    )  # a kill may happen between its put and its start
    assert desk.state == "completed"
    assert len([node for node in trace if node.name == "Fails"]) == 1
    for node in found.values():
        assert not node.is_open
        assert all(interval.end is not None for interval in node.intervals)
    spent = {model: Usage(**used) for model, used in said["usage"].items()}
    assert trace.executions[-1].usage == spent
    assert trace.usage(desk) == {"scripted": Usage(input_tokens=33, output_tokens=9)}  # 3 replies
    assert trace.root.usage == {}
    # If the kill lost an agent's lines, its usage belongs to the recorded node above it.
    assert {"clerk"} <= trace.usage_by_agent().keys() <= {"clerk", "writer", ""}


@pytest.mark.parametrize("kills", [1, 2, 3])
def test_a_kill_ends_each_interval_of_a_node_below_a_parent_that_is_not_durable(kills: int) -> None:
    """Each execution has its own parent; the durable node stays below the first."""
    trace = Trace()
    for execution in range(kills + 1):
        last = execution == kills
        trace.feed({"recording": 1, "time": execution, "pid": 1, "host": "h", "content": False})
        trace.feed({"e": "put", "t": 0.1, "n": 1, "p": 0, "name": "plain"})
        trace.feed({"e": "started", "t": 0.1, "n": 1})
        child = {"e": "put", "t": 0.2, "n": 2, "p": 1, "name": "Step", "run": "r", "id": "x"}
        trace.feed(child)
        trace.feed({"e": "started", "t": 0.3, "n": 2})
        for number in (2, 1) if last else ():
            trace.feed({"e": "completed", "t": 0.4, "n": number})
    (step,) = [node for node in trace if node.name == "Step"]
    assert [interval.end is not None for interval in step.intervals] == [True] * (kills + 1)
