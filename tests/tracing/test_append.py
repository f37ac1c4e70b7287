"""`record(..., append=True)`: accepted and refused files, and recordings of several executions."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from support.waiting import wait_until

from anabranch import Commander, Node, handler
from anabranch.commander import ConfigurationError
from anabranch.store import Durable, Journal
from anabranch.tracing import read, record

pytestmark = pytest.mark.contract("S4")


@handler
async def work(node: Node[None]) -> None:
    pass


async def live(path: Path) -> None:
    async with Commander() as commander, record(commander, path, append=True):
        await commander.run(work())


@pytest.mark.parametrize(
    "data",
    [
        b"dear diary\n",
        b"dear diary",
        b"[]\n",
        b'"recording"\n',
        b'{"name": "x"}\n{"recording": 1}\n',
        b"\x00\xff\xfe\n",
        b"\n",
        b'{"recording":2,"time":1,"pid":1,"host":"h","content":false}\n{"e":"new',
        b'{"recording":"1"}\n',
    ],
)
async def test_other_files_are_not_changed(data: bytes, tmp_path: Path) -> None:
    """Nor a later version's recording; the error comes before anything runs, and frees the file."""
    path = tmp_path / "run.jsonl"
    path.write_bytes(data)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"run\.jsonl.*Use another file"):
            await live(path)
        assert path.read_bytes() == data
    async with Commander() as commander, record(commander, path):
        await commander.run(work())
    assert [node.name for node in read(path)] == ["work"]


async def test_an_incomplete_line_is_removed(tmp_path: Path) -> None:
    """A killed process leaves it at the end; the next execution follows the complete lines."""
    whole = tmp_path / "whole.jsonl"
    await live(whole)
    data = whole.read_bytes()
    lines = data.splitlines(keepends=True)
    for size in range(0, len(data) + 1, 9):
        path = tmp_path / "cut.jsonl"
        path.write_bytes(data[:size])
        await live(path)
        kept = data[:size].count(b"\n")
        assert path.read_bytes().startswith(b"".join(lines[:kept]))
        trace = read(path)
        assert len(trace.executions) == (2 if kept else 1)
        names = [node.name for node in trace]
        assert names == ["work"] * (2 if kept > 1 else 1)
        assert not any(node.is_open for node in trace)
        for line in path.read_text().splitlines():
            json.loads(line)


class Two(Durable[int]):
    async def task(self) -> int:
        return await self.durable.step(one) + await self.durable.step(two)


def one() -> int:
    return 1


ready = False


async def two() -> int:
    await wait_until(lambda: ready)
    return 2


async def test_a_run_that_one_process_resumes_is_one_node(tmp_path: Path) -> None:
    """With an interval for each execution; recorded outcomes are marked."""
    global ready
    ready = False
    async with (
        Journal(str(tmp_path / "runs.db")) as journal,
        Commander() as commander,
        record(commander, tmp_path / "run.jsonl") as recorder,
    ):
        first = asyncio.create_task(journal.run(Two(), run_id="two"))
        await wait_until(lambda: any(node.name == "two" for node in commander.tree()))
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        ready = True
        assert await journal.run(Two(), run_id="two") == 3
    trace = recorder.trace()
    [top] = [node for node in trace if node.name == "Two"]
    assert top.executions == len(top.intervals) == 2
    assert top.state == "completed"
    first_step, second_step = top.children
    assert (first_step.recorded, first_step.executions) == (True, 2)
    assert (second_step.recorded, second_step.executions) == (False, 2)
    assert len(trace) == len({node.identity for node in trace})


def test_executions_follow_each_other_for_any_clock(tmp_path: Path) -> None:
    """The clock may be set back between two: no time is negative, and none decreases."""
    path = tmp_path / "run.jsonl"
    with path.open("w") as file:
        for number, time in enumerate((5000.0, 4000.0, 9000.0)):
            begin = {"recording": 1, "time": time, "pid": 1, "host": "h", "content": False}
            put = {"e": "put", "t": 1.0, "n": 1, "p": 0, "name": f"work{number}"}
            end = {"e": "end", "t": 3.0, "usage": {}}
            file.writelines(json.dumps(line) + "\n" for line in (begin, put, end))
    trace = read(path)
    assert [life.offset for life in trace.executions] == [0.0, 3.0, 4000.0]
    assert [node.put for node in trace] == [1.0, 4.0, 4001.0]
    assert trace.end == 4003.0


@pytest.mark.parametrize("wrong", ["NaN", "Infinity", "1e999", "9" * 400, "[" * 100_000])
@pytest.mark.parametrize("field", ["time", "t"])
def test_an_invalid_time_is_a_damaged_line(wrong: str, field: str, tmp_path: Path) -> None:
    """Reading raises an error, so no page or picture meets it later."""
    path = tmp_path / "run.jsonl"
    time, at = (wrong, "1") if field == "time" else ("1", wrong)
    begin = f'{{"recording":1,"time":{time},"pid":1,"host":"h","content":false}}'
    path.write_text(f'{begin}\n{{"e":"put","t":{at},"n":1,"p":0,"name":"x"}}\n')
    with pytest.raises(ConfigurationError, match=r"run\.jsonl.* is not a recording"):
        read(path)
