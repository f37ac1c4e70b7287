"""A growing trace: of a tree in this process, and of a recording that another process writes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from support.waiting import wait_until

from anabranch import Commander, ConfigurationError, Job
from anabranch.commander._record import record_of
from anabranch.tracing import Trace, follow, live, record

pytestmark = pytest.mark.contract("S4")

FIRST_BYTES: dict[str, Any] = {"recording": 1, "time": 1.0, "pid": 1, "host": "h", "content": False}
PUT: dict[str, Any] = {"e": "put", "t": 0.1, "n": 1, "p": 0, "name": "Leaf"}
STARTED: dict[str, Any] = {"e": "started", "t": 0.2, "n": 1}
END: dict[str, Any] = {"e": "end", "t": 0.5, "usage": {}}
WRITER = """
import asyncio, sys
from anabranch import Commander, Job
from anabranch.tracing import record

class Stay(Job):
    async def task(self):
        await asyncio.Event().wait()

async def main():
    async with Commander() as commander:
        record(commander, sys.argv[1])
        await commander.run(Stay())

asyncio.run(main())
"""


class Leaf(Job[int]):
    async def task(self) -> int:
        return 1


class Hold(Job[None]):
    go_on: asyncio.Event

    async def task(self) -> None:
        await self.put_job(Leaf())
        await self.go_on.wait()


def lines(*said: dict[str, Any]) -> str:
    return "".join(f"{json.dumps(each)}\n" for each in said)


def states(trace: Trace) -> list[tuple[str, str]]:
    return [(node.name, node.state) for node in trace]


async def to_the_end(traces: AsyncIterator[Trace]) -> list[Trace]:
    return [trace async for trace in traces]


async def test_a_tree_is_seen_while_it_runs() -> None:
    """Its trace has running and ended nodes; after the end it has everything."""
    go_on = asyncio.Event()
    async with Commander() as commander:
        seen = live(commander)
        job = commander.put_job(Hold(go_on))
        await wait_until(lambda: ("Leaf", "completed") in states(seen.trace()))
        assert states(seen.trace()) == [("Hold", "running"), ("Leaf", "completed")]
        assert seen.trace().live
        go_on.set()
        await job
    assert states(seen.trace()) == [("Hold", "completed"), ("Leaf", "completed")]
    assert not seen.trace().live


async def test_a_live_trace_lists_changed_nodes() -> None:
    """In a dictionary that the caller sets and clears."""
    async with Commander() as commander:
        seen = live(commander)
        await commander.run(Leaf())
        seen.flush()
        seen.trace().changed = {}
        await commander.run(Leaf())
        seen.flush()
        changed = seen.trace().changed
    assert changed is not None
    assert [node.number for node in changed if node.number] == [2]


def test_live_is_refused_outside_the_block() -> None:
    """The error names the right place."""
    with pytest.raises(RuntimeError, match="must be called inside the block"):
        live(Commander())


async def test_live_is_refused_outside_the_trees_loop() -> None:
    """In another thread or loop it does nothing: two threads would change the tree."""
    async with Commander() as commander:

        async def elsewhere() -> None:
            live(commander)

        for begin in (lambda: live(commander), lambda: asyncio.run(elsewhere())):
            with pytest.raises(RuntimeError, match="in the thread of the commander's event loop"):
                await asyncio.to_thread(begin)
        assert record_of(commander).tree.listeners == []


async def test_a_recording_is_followed_to_its_end(tmp_path: Path) -> None:
    """Each growth is visible, in the same trace."""
    file, go_on = tmp_path / "run.jsonl", asyncio.Event()
    async with Commander() as commander:
        recorder = record(commander, file)
        job = commander.put_job(Hold(go_on))
        seen: list[list[tuple[str, str]]] = []
        traces: list[Trace] = []
        async with aclosing(follow(file)) as following:
            async for trace in following:
                traces.append(trace)
                seen.append(states(trace))
                if ("Leaf", "completed") in seen[-1] and not go_on.is_set():
                    assert trace.live
                    go_on.set()
                    await job
                    recorder.close()
    assert [("Hold", "running"), ("Leaf", "completed")] in seen
    assert seen[-1] == [("Hold", "completed"), ("Leaf", "completed")]
    assert len(set(map(id, traces))) == 1
    assert not traces[-1].live


async def test_an_incomplete_line_waits_for_its_rest(tmp_path: Path) -> None:
    """For any pieces that the writer writes."""
    file = tmp_path / "run.jsonl"
    text = lines(FIRST_BYTES, PUT, STARTED, END)
    file.write_text(text[:1])
    with file.open("a") as writer:
        following = asyncio.create_task(to_the_end(follow(file)))
        for sign in text[1:]:
            writer.write(sign)
            writer.flush()
            await asyncio.sleep(0)
        traces = await following
    assert states(traces[-1]) == [("Leaf", "running")]
    assert traces[-1].executions[-1].ended


async def test_a_replaced_recording_is_a_new_trace(tmp_path: Path) -> None:
    """After truncation, or another file with this name: the old nodes disappear."""
    for anew in ("truncate", "replace"):
        file = tmp_path / f"{anew}.jsonl"
        file.write_text(lines(FIRST_BYTES, PUT, STARTED))
        traces: list[Trace] = []
        async with aclosing(follow(file)) as following:
            traces.append(await anext(following))
            text = lines(FIRST_BYTES | {"time": 2.0}, PUT | {"name": "Other"}, STARTED, END)
            if anew == "truncate":
                file.write_text(text)
            else:
                (tmp_path / "new").write_text(text)
                (tmp_path / "new").replace(file)
            traces += [trace async for trace in following]
        assert states(traces[0]) == [("Leaf", "running")]
        assert states(traces[-1]) == [("Other", "running")]


async def test_a_deleted_recording_is_read_while_it_is_written(tmp_path: Path) -> None:
    """Its process still writes, so the trace gets its end."""
    file, go_on = tmp_path / "run.jsonl", asyncio.Event()
    async with Commander() as commander:
        recorder = record(commander, file)
        job = commander.put_job(Hold(go_on))
        async with aclosing(follow(file)) as following:
            await anext(following)
            file.unlink()
            go_on.set()
            await job
            recorder.close()
            trace = [trace async for trace in following][-1]
    assert states(trace) == [("Hold", "completed"), ("Leaf", "completed")]


async def test_a_killed_process_is_noticed(tmp_path: Path) -> None:
    """Open nodes are lost, and following ends."""
    file = tmp_path / "run.jsonl"
    writer = await asyncio.create_subprocess_exec(sys.executable, "-c", WRITER, str(file))
    try:
        await wait_until(lambda: file.exists() and "started" in file.read_text())
        async with aclosing(follow(file)) as following:
            trace = await anext(following)
            assert states(trace) == [("Stay", "running")]
            os.kill(writer.pid, signal.SIGKILL)
            trace = [trace async for trace in following][-1]
    finally:
        await writer.wait()
    assert states(trace) == [("Stay", "lost")]
    assert trace.root.state == "lost"
    assert not trace.live


async def test_a_follower_does_not_block_a_recorder(tmp_path: Path) -> None:
    """The check for a writer locks the file for a moment; a recorder waits for it."""
    from anabranch.tracing import _recording_file

    file = tmp_path / "run.jsonl"
    file.touch()
    asking = True

    def ask() -> None:
        while asking:
            _recording_file.is_recorded(file)

    asker = asyncio.create_task(asyncio.to_thread(ask))
    try:
        for _ in range(20):
            async with Commander() as commander:
                recorder = record(commander, file)
            recorder.close()
    finally:
        asking = False
        await asker


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty: it must be a recording"),
        ("{}\n", "its first line is a different one"),
        ("hello\n", "not a recording, or is damaged at line 1"),
        (lines(FIRST_BYTES, PUT) + "\n", "damaged at line 3"),
        (lines(FIRST_BYTES | {"recording": 99}), "a newer Anabranch wrote this recording"),
    ],
)
async def test_other_files_are_refused(text: str, says: str, tmp_path: Path) -> None:
    """The error names the file and the line."""
    file = tmp_path / "run.jsonl"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=says) as raised:
        await to_the_end(follow(file))
    assert "run.jsonl" in str(raised.value)


async def test_a_pipe_is_refused(tmp_path: Path) -> None:
    """At once, although no process writes into it."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigurationError, match="is a pipe: it must be a file"):
        await to_the_end(follow(tmp_path / "pipe"))


async def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """At once, and so is a folder."""
    for path in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(ConfigurationError, match="cannot read the recording"):
            await to_the_end(follow(path))
