"""S7: readers that are too slow: full taps, and slow or broken disks."""

from __future__ import annotations

import errno
import gc
import math
import os
import subprocess
import sys
import threading
import time
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any
from weakref import ref

import pytest
from support.nodes import give
from support.seeds import example_count
from support.waiting import block_until, wait_until

from anabranch import Commander, Job
from anabranch.commander._record import record_of
from anabranch.commander.errors import ConfigurationError
from anabranch.commander.tap import Tap
from anabranch.tracing import _event_thread, _recorder, read, record

pytestmark = pytest.mark.contract("S7")

needs_pipes = pytest.mark.skipif(sys.platform == "win32", reason="NO PIPES WITH NAMES on Windows")


class Leaf(Job[None]):
    async def task(self) -> None:
        pass


class Fan(Job[None]):
    """Puts its children in one step, without an await in between."""

    size: int

    async def task(self) -> None:
        for _ in range(self.size):
            self.put_job(Leaf())


# --- taps


@pytest.mark.parametrize("capacity", [1, 2, 7, 64])
async def test_a_tap_that_takes_when_it_is_called_loses_nothing(capacity: int):
    """All events arrive once, in order, for any number of them in one step of the loop."""
    heard: list[Any] = []

    def hear() -> None:
        heard.extend(tap.take())

    async with Commander() as commander:
        tap = Tap(commander, capacity, hear, ["put", "completed", "missed"])
        await commander.run(Fan(500))
    hear()
    assert [event.node_id for event in heard if event.kind == "put"] == [*range(1, 502)]
    assert sorted(event.node_id for event in heard if event.kind == "completed") == [*range(502)]
    assert tap.missed == 0


async def test_a_tap_calls_back_rarely():
    """Once after it was emptied, and when it is full; not at each event."""
    calls: list[bool] = []

    def hear() -> None:
        calls.append(tap.full)
        if tap.full:
            tap.take()

    async with Commander() as commander:
        tap = Tap(commander, 50, hear)
        await commander.run(Fan(1_000))
    events = 3 * 1_001 + 2
    assert calls.count(True) == events // 101
    assert len(calls) <= 2 * (events // 101) + 2
    assert tap.missed == 0


async def test_a_late_tap_gets_the_number_of_lost_events():
    """The newest stay; one event in the place of the others has their number."""
    async with Commander() as commander:
        tap = Tap(commander, 10, lambda: None, ["put"])
        for _ in range(100):
            await commander.run(give())
        events = [*tap.take()]
    assert events[0].kind == "missed"
    assert events[0].data == tap.missed
    assert [event.node_id for event in events[1:]] == [*range(events[0].data + 1, 101)]


async def test_a_body_that_puts_many_at_once_is_recorded_completely(tmp_path: Path):
    """More than the tap's capacity in one step of the loop: no event is lost, in few batches."""
    file = tmp_path / "run.jsonl"
    async with Commander(slow_after=None) as commander, record(commander, file):
        await commander.run(Fan(20_000))
    trace = read(file)
    assert trace.missed == 0
    assert len(trace) == 20_001
    assert {node.state for node in trace} == {"completed"}


async def test_a_sink_that_is_far_behind_never_blocks_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The loop never sleeps or waits for it: excess events are dropped, and a gap reports them."""

    def sleep(seconds: float) -> None:
        raise AssertionError("the loop has slept")

    monkeypatch.setattr(_event_thread, "MAX_BATCH_EVENTS", 10)
    monkeypatch.setattr(_event_thread, "MAX_QUEUED_EVENTS", 1_000)
    monkeypatch.setattr(
        _event_thread, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic)
    )
    disk = Disk(monkeypatch)
    async with Commander(slow_after=None) as commander, record(commander, tmp_path / "r") as seen:
        for number in range(1_000):  # while the sink works
            await commander.run(Fan(10))
            if number % 100 == 0:
                seen._thread.flush()
        disk.goes.clear()
        for _ in range(100):  # while it is blocked
            await commander.run(Fan(10))
        disk.goes.set()
    trace = read(tmp_path / "r")
    assert trace.missed > 0
    assert not [node for node in trace if node.is_open]


# --- disks


class Disk:
    """A file whose `write` waits until `goes` is set, and fails after `spare` bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.goes = threading.Event()
        self.goes.set()
        self.stuck = False
        self.spare: float = math.inf
        self.file: IO[bytes] | None = None
        opened = _recorder.open_recording

        def open_disk(path: Path, append: bool) -> Any:
            self.file = opened(path, append)
            return self

        monkeypatch.setattr(_recorder, "open_recording", open_disk)

    def write(self, data: bytes | memoryview) -> int:
        assert self.file is not None
        self.stuck = not self.goes.is_set()
        assert self.goes.wait(30)
        self.stuck = False
        if not self.spare:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self.file.write(data[: int(min(len(data), self.spare))])
        self.spare -= written
        return written

    def close(self) -> None:
        assert self.file is not None
        self.file.close()


async def test_a_disk_that_hangs_delays_no_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The nodes run to their ends while writes hang; afterwards the file has everything."""
    disk = Disk(monkeypatch)
    file = tmp_path / "run.jsonl"
    async with Commander() as commander, record(commander, file) as recorder:
        await commander.run(give())
        disk.goes.clear()
        await commander.run(give())
        await wait_until(lambda: disk.stuck)
        for _ in range(20):
            await commander.run(Fan(100))
        assert disk.stuck
        assert recorder.error is None
        disk.goes.set()
    trace = read(file)
    assert trace.missed == 0
    assert len(trace) == 2 + 20 * 101


async def test_the_end_of_a_tree_does_not_wait_for_a_disk_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The block ends while the disk hangs; the rest is written later."""
    disk = Disk(monkeypatch)
    file = tmp_path / "run.jsonl"
    async with Commander() as commander, record(commander, file) as recorder:
        await commander.run(give())
        disk.goes.clear()
        recorder._thread._wait = 0.01
    assert disk.stuck
    disk.goes.set()
    assert block_until(lambda: disk.file is not None and disk.file.closed)
    trace = read(file)
    assert [node.state for node in trace] == ["completed"]
    assert trace.executions[0].ended


@pytest.mark.parametrize("spare", [0, 1, 1_000, 50_000])
async def test_a_full_disk_ends_the_recording_only(
    spare: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """No node fails; one log record and `error` have the cause; the written part can be read."""
    disk = Disk(monkeypatch)
    file = tmp_path / "run.jsonl"
    async with Commander() as commander, record(commander, file) as recorder:
        disk.spare = spare
        assert await commander.run(give(7)) == 7
        for _ in range(10):
            await commander.run(Fan(100))
            recorder.trace()
        await wait_until(
            lambda: not record_of(commander).tree.listeners
        )  # it costs nothing from now on
        assert commander.state == "running"
    assert isinstance(recorder.error, OSError)
    assert recorder.error.errno == errno.ENOSPC
    logged = [each for each in caplog.records if each.name == "anabranch.tracing"]
    assert [str(file) in each.getMessage() for each in logged] == [True]
    assert disk.file is not None
    assert disk.file.closed
    whole, _, _ = file.read_text().rpartition("\n")
    assert len(read(file)) == whole.count('"put"')


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is NO /dev/full here")
async def test_a_disk_that_is_full_at_the_start_is_an_error():
    """The file lacks its first line; the tree continues."""
    async with Commander() as commander:
        with pytest.raises(ConfigurationError, match="/dev/full"):
            record(commander, "/dev/full")
        assert await commander.run(give(7)) == 7


FILLS = """
import asyncio, logging, resource, signal, sys
from anabranch import Commander, Job
from anabranch.tracing import record

class Leaf(Job[int]):
    async def task(self):
        return 1

async def main():
    async with Commander(slow_after=None) as commander:
        recorder = record(commander, sys.argv[1])
        done = [await commander.run(Leaf()) for _ in range(3_000)]
    print(sum(done), type(recorder.error).__name__)

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="NO LIMITS OF A PROCESS on Windows")
def test_a_file_size_limit_stops_no_program(tmp_path: Path):
    """In a real process with a real limit: all nodes run, and the written part can be read."""
    file = tmp_path / "run.jsonl"
    command = [sys.executable, "-c", FILLS, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["3000", "OSError"]
    assert done.stderr.count("ends here") == 1
    assert file.stat().st_size <= 100_000
    assert len(read(file)) > 100


@needs_pipes
async def test_a_pipe_that_is_not_read_delays_no_node(tmp_path: Path):
    """The thread waits in a real `write`; the nodes do not. A reader that leaves ends it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        async with Commander() as commander, record(commander, pipe) as recorder:
            for _ in range(30):
                await commander.run(Fan(100))
            await wait_until(lambda: recorder._thread._taken)
            assert recorder._thread._taken < recorder._thread._queued + recorder._thread._missed
            assert recorder.error is None
            os.close(reader)
            reader = -1
            await wait_until(lambda: recorder.error is not None)
            assert await commander.run(give(7)) == 7
        assert isinstance(recorder.error, BrokenPipeError)
    finally:
        if reader >= 0:
            os.close(reader)


# --- memory


async def record_many(file: Path, rounds: int) -> list[int]:
    """Record some rounds of a thousand nodes; return the memory of Python's objects after each."""
    sizes: list[int] = []
    async with Commander(slow_after=None) as commander, record(commander, file) as recorder:
        for _ in range(rounds):
            await commander.run(Fan(1_000))
            recorder._thread.flush()
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
    assert recorder.error is None
    return sizes


async def test_memory_does_not_grow_with_the_nodes_that_were_recorded(tmp_path: Path):
    """Neither in the loop nor in the thread: ended and written nodes are freed."""
    tracemalloc.start()
    try:
        sizes = await record_many(tmp_path / "run.jsonl", example_count(12, 200))
    finally:
        tracemalloc.stop()
    assert min(sizes[-4:]) - min(sizes[4:8]) < 50_000  # 4,000 nodes later, or 190,000


async def test_a_recording_keeps_no_results(tmp_path: Path):
    """An idle recorded tree references neither ended nodes nor their results."""

    class Result:
        pass

    class Gives(Job[Result]):
        async def task(self) -> Result:
            return Result()

    async with Commander() as commander, record(commander, tmp_path / "run.jsonl"):
        result = ref(await commander.run(Gives()))
        await wait_until(lambda: result() is None)
