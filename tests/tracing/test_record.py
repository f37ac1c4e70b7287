"""`record`: where it may be called, how it ends, and its file."""

import asyncio
import errno
import fcntl
import json
import multiprocessing
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.waiting import wait_until

from anabranch import Commander, Node, handler
from anabranch.commander import ConfigurationError, Event, emit
from anabranch.commander._record import record_of
from anabranch.commander.tap import Tap
from anabranch.tracing import live, read, record
from anabranch.tracing._recording_file import is_recorded

pytestmark = pytest.mark.contract("S1")


@handler
async def give(node: Node, value: Any = None) -> Any:
    return value


@handler
async def hang(node: Node) -> None:
    await asyncio.Event().wait()


def names(file: Path) -> list[str]:
    return [node.name for node in read(file)]


# --- where it may be called


async def test_it_is_refused_outside_the_block(tmp_path: Path) -> None:
    """Before and after: the file is not changed."""
    commander = Commander()
    with pytest.raises(RuntimeError, match="must be called inside the block"):
        record(commander, tmp_path / "r")
    async with commander:
        pass
    with pytest.raises(RuntimeError, match="must be called inside the block"):
        record(commander, tmp_path / "r")
    assert not (tmp_path / "r").exists()


async def test_it_is_refused_in_another_thread_and_on_another_loop(tmp_path: Path) -> None:
    """Two loops would change the tree."""

    async def elsewhere() -> None:
        record(commander, tmp_path / "r")

    async with Commander() as commander:
        with pytest.raises(RuntimeError, match="in the thread of the commander's event loop"):
            await asyncio.to_thread(record, commander, tmp_path / "r")
        with pytest.raises(RuntimeError, match="in the thread of the commander's event loop"):
            await asyncio.to_thread(asyncio.run, elsewhere())
    assert not (tmp_path / "r").exists()


async def test_one_tree_may_have_several_recordings(tmp_path: Path) -> None:
    """Each has all events from its start; a second one of the same file is refused."""
    async with Commander() as commander, record(commander, tmp_path / "a"):
        await commander.call_handler(give())
        with record(commander, tmp_path / "b"):
            with pytest.raises(TimeoutError):
                await commander.call_handler(hang(), timeout=0.01)
            for append in (False, True):
                with pytest.raises(ConfigurationError, match="another recorder writes this file"):
                    record(commander, tmp_path / "a", append=append)
    assert names(tmp_path / "a") == ["give", "hang"]
    assert names(tmp_path / "b") == ["hang"]


async def test_a_nested_commander_has_a_separate_recording(tmp_path: Path) -> None:
    """Its tree has separate numbers, from 0 on."""

    @handler
    async def inner(node: Node) -> None:
        async with Commander() as below, record(below, tmp_path / "inner"):
            await below.call_handler(give())

    async with Commander() as commander, record(commander, tmp_path / "outer"):
        await commander.call_handler(inner())
    assert names(tmp_path / "inner") == ["give"]
    assert names(tmp_path / "outer") == ["inner"]


# --- the end


async def test_the_block_may_end_before_the_tree(tmp_path: Path) -> None:
    """It continues until no node runs; then the file ends, even if the commander continues."""
    async with Commander() as commander:
        with record(commander, tmp_path / "r"):
            node = commander.call_handler(hang())
        assert is_recorded(tmp_path / "r")
        below = commander.call_handler(give())
        await below
        node.cancel()
        await wait_until(lambda: not is_recorded(tmp_path / "r"))
        await commander.call_handler(give())
        assert len(record_of(commander).tree.listeners) == 0
    assert names(tmp_path / "r") == ["hang", "give"]
    assert {node.state for node in read(tmp_path / "r")} == {"cancelled", "completed"}


async def test_without_a_block_it_ends_with_the_tree(tmp_path: Path) -> None:
    """Also if the tree's block ends by an exception or a cancel."""
    for error in (None, ValueError("out"), asyncio.CancelledError()):
        try:
            async with Commander() as commander:
                recorder = record(commander, tmp_path / "r")
                commander.call_handler(hang() if error else give())
                await asyncio.sleep(0)
                if error:
                    raise error
        except (ValueError, asyncio.CancelledError):
            pass
        assert recorder.error is None
        (node,) = recorder.trace()
        assert node.state == ("cancelled" if error else "completed")


@pytest.mark.parametrize("where", ["loop", "thread", "both"])
async def test_it_may_be_closed_at_any_time_in_any_thread(where: str, tmp_path: Path) -> None:
    """Twice is harmless; later events are not recorded, and open nodes stay open."""
    async with Commander() as commander:
        recorder = record(commander, tmp_path / "r")
        first = commander.call_handler(hang())
        await asyncio.sleep(0)
        if where != "thread":
            recorder.close()
        if where != "loop":
            await asyncio.gather(*(asyncio.to_thread(recorder.close) for _ in range(5)))
        await wait_until(lambda: not is_recorded(tmp_path / "r"))
        await commander.call_handler(give())
        first.cancel()
    recorder.close()
    assert [node.state for node in recorder.trace()] == ["lost"]


async def test_it_can_be_read_from_any_thread_at_any_time(tmp_path: Path) -> None:
    """With all earlier events."""
    async with Commander() as commander, record(commander, tmp_path / "r") as recorder:
        for count in range(1, 4):
            await commander.call_handler(give())
            trace = await asyncio.to_thread(recorder.trace)
            assert [node.state for node in trace] == ["completed"] * count
            assert len(recorder.trace()) == count
            assert trace.live


# --- taps


async def test_a_tap_that_closes_another_one_disturbs_no_third() -> None:
    """During an event: each of the others gets it, and all later ones."""
    heard: dict[str, list[str]] = {"closer": [], "closed": [], "last": []}
    closes: list[str] = []

    def hear(name: str) -> None:
        heard[name] += [event.kind for event in taps[name].take()]
        if name == "closer" and len(heard[name]) == 2:
            taps["closed"].close()
            taps["closer"].close()

    async with Commander() as commander:
        taps = {
            name: Tap(
                commander, 1, lambda name=name: hear(name), None, lambda n=name: closes.append(n)
            )
            for name in heard
        }
        await commander.call_handler(give())
    assert heard["closer"] == ["put", "started"]
    assert heard["closed"] == ["put"]
    assert heard["last"][:3] == ["put", "started", "completed"]
    assert sorted(closes) == ["closed", "closer", "last"]


@given(capacity=st.integers(1, 9), late=st.integers(0, 3), count=st.integers(0, 60))
def test_a_tap_that_takes_in_its_callback_loses_nothing(
    capacity: int, late: int, count: int
) -> None:
    """Inside `notify` or some calls later; events stay in order."""
    taken: list[Event] = []
    calls = 0

    def hear() -> None:
        nonlocal calls
        calls += 1
        if late == 0 or calls % late == 0 or len(tap.buffer) > 10 * capacity:
            taken.extend(tap.take())

    async def main() -> None:
        nonlocal tap
        async with Commander() as commander:
            tap = Tap(commander, capacity, hear, ["put", "completed", "missed"])
            for _ in range(count):
                commander.call_handler(give())
        taken.extend(tap.take())

    tap: Any = None
    asyncio.run(main())
    missed = sum(event.data for event in taken if event.kind == "missed")
    own = [event for event in taken if event.kind != "missed" and event.node_id]
    assert len(own) + missed >= 2 * count
    if late < 2:
        assert missed == 0
        assert [event.node_id for event in own if event.kind == "put"] == [*range(1, count + 1)]


@pytest.mark.contract("S2")
async def test_a_batch_without_a_complete_word_leaves_no_blank_line(tmp_path: Path) -> None:
    """For a slow model; recordings of earlier releases have such lines."""

    @handler
    async def talks(node: Node) -> None:
        for text in "Hel", "lo":
            emit(node, "text", text)
            assert recorder._thread.flush()

    async with Commander() as commander:
        recorder = record(commander, tmp_path / "r", content=True)
        await commander.call_handler(talks())
    lines = (tmp_path / "r").read_text().splitlines()
    assert all(lines)
    (tmp_path / "r").write_text("\n\n".join(lines) + "\n")
    [node] = read(tmp_path / "r")
    assert node.text == "Hello"


async def test_a_live_trace_has_the_nodes_of_a_recording(tmp_path: Path) -> None:
    """Although a recording writes most lines without records."""

    @handler
    async def leaf(node: Node, number: int) -> None:
        if number % 3 == 0:
            raise ValueError(f"number {number}")
        emit(node, "text", f"leaf {number}")

    @handler
    async def fan(node: Node) -> None:
        for number in range(9):
            node.call_handler(leaf(number))

    async with Commander(policy="collect") as commander:
        seen = live(commander, content=True)
        recorder = record(commander, tmp_path / "r", content=True)
        fans = [commander.call_handler(fan()) for _ in range(5)]
        await asyncio.gather(*map(asyncio.ensure_future, fans), return_exceptions=True)
        recorder.close()
        seen.close()
    here, there = (
        [(n.label, n.parent and n.parent.label, n.state, n.text, str(n.error)) for n in trace]
        for trace in (seen.trace(), read(tmp_path / "r"))
    )
    assert here == there
    assert len(here) == 50


@pytest.mark.contract("S7")
async def test_malformed_data_ends_no_recording(tmp_path: Path) -> None:
    """S7: a program may `emit` any data; unreadable data is left out."""
    kinds: list[Any] = [
        "called", "answered", "request", "first_chunk", "reply", "charged", "text", "placed",
        "slow", "waiting", "tool_call", "failed", "cancelled", "retried",
    ]  # fmt: skip

    class Odd:
        def __str__(self) -> str:
            raise ValueError("no text")

    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    many = [10**5000, float("nan"), {1: {2: {3}}}, Odd(), deep, "\ud800", {"usage": {}}, None]

    @handler
    async def tells(node: Node) -> None:
        for kind in kinds[:-3]:
            for data in many:
                emit(node, kind, data)

    @handler
    async def fails(node: Node) -> None:
        class Bad(Exception):
            def __str__(self) -> str:
                raise KeyError

        raise ExceptionGroup("g", [Bad(), ValueError("\ud800")])

    async with Commander() as commander:
        recorder = record(commander, tmp_path / "r", content=True)
        await commander.call_handler(tells())
        with pytest.raises(ExceptionGroup):
            await commander.call_handler(fails())
        await commander.call_handler(give())
    assert recorder.error is None
    assert [node.state for node in recorder.trace()] == ["completed", "failed", "completed"]
    while deep:  # or its end is deep too
        deep = deep[0]


# --- the file


@pytest.mark.parametrize("place", ["no/such/folder/r", ".", "\0", "/dev/full", "/proc/nothing"])
async def test_a_file_that_cannot_be_written_is_refused(place: str, tmp_path: Path) -> None:
    """With the system's message; the tree continues, and no file is left."""
    threads = threading.active_count()
    async with Commander() as commander:
        with pytest.raises(ConfigurationError, match="cannot record to"):
            record(commander, tmp_path / place)
        assert await commander.call_handler(give(1)) == 1
        assert record_of(commander).tree.listeners == []
    await wait_until(lambda: threading.active_count() <= threads)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
async def test_a_read_only_file_is_refused(tmp_path: Path) -> None:
    """Like others that cannot be written."""
    (tmp_path / "r").touch(mode=0o400)
    async with Commander() as commander:
        with pytest.raises(ConfigurationError, match="Permission denied"):
            record(commander, tmp_path / "r")


async def test_a_pipe_may_be_recorded_to(tmp_path: Path) -> None:
    """If it has a reader; else it is refused at once."""
    os.mkfifo(tmp_path / "p")
    async with Commander() as commander:
        with pytest.raises(ConfigurationError, match=os.strerror(errno.ENXIO)):
            record(commander, tmp_path / "p")
    reader = os.open(tmp_path / "p", os.O_RDONLY | os.O_NONBLOCK)
    async with Commander() as commander, record(commander, tmp_path / "p"):
        assert not is_recorded(tmp_path / "p")
        await commander.call_handler(give())
    lines = os.read(reader, 1_000_000).splitlines()
    os.close(reader)
    assert [json.loads(line).get("e") for line in lines][:2] == [None, "put"]


async def test_a_file_is_replaced_or_extended(tmp_path: Path) -> None:
    """With `append`, the incomplete line of a killed process is removed."""
    for append, half in ((False, ""), (True, '{"e":"put","t":1'), (True, ""), (False, "x")):
        with (tmp_path / "r").open("a") as file:
            file.write(half)
        async with Commander() as commander, record(commander, tmp_path / "r", append=append):
            await commander.call_handler(give())
        trace = read(tmp_path / "r")
        assert len(trace) == len(trace.executions)
    assert len(trace.executions) == 1


async def test_readers_do_not_block_a_recorder(tmp_path: Path) -> None:
    """A reader's lock lasts a moment, and the recorder waits for it."""
    file = tmp_path / "r"
    file.touch()
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            is_recorded(file)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        async with Commander() as commander:
            for _ in range(100):
                record(commander, file).close()
                await wait_until(lambda: not _is_held(file))
    finally:
        over.set()
        looking.join()


def _is_held(file: Path) -> bool:
    with file.open() as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


# --- the process


PROGRAM = """
import asyncio, os, sys
from anabranch import Commander, Node, handler
from anabranch.tracing import record

@handler
async def give(node: Node): pass

@handler
async def hang(node: Node): await asyncio.Event().wait()

async def main():
    async with Commander() as c, record(c, sys.argv[1]):
        await c.call_handler(give())
        c.call_handler(hang())
        await asyncio.sleep(float(sys.argv[3]))
        {leave}
{run}
"""


def left_by(leave: str, file: Path, pause: float = 0.0, run: str = "asyncio.run(main())") -> Any:
    program = PROGRAM.replace("{leave}", leave).replace("{run}", run)
    command = [sys.executable, "-c", program, str(file), "", str(pause)]
    subprocess.run(command, timeout=60, capture_output=True)
    return read(file)


@pytest.mark.parametrize("leave", ["sys.exit(3)", "raise KeyboardInterrupt", "1/0", "c.exit()"])
def test_a_program_that_ends_in_the_middle_records_everything(leave: str, tmp_path: Path) -> None:
    """S1: the tree is closed at its exit, and each node has its end."""
    trace = left_by(leave, tmp_path / "r")
    assert [node.state for node in trace] == ["completed", "cancelled"]
    assert trace.executions[0].ended


@pytest.mark.contract("S4")
def test_a_program_that_leaves_its_loop_records_its_events(tmp_path: Path) -> None:
    """S4: the tree is never closed, and the end of the program writes the events."""
    run = """
loop = asyncio.new_event_loop()
task = loop.create_task(main())
loop.run_until_complete(asyncio.wait([task], timeout=0.02))
os.environ["x"] = "1"
"""
    trace = left_by("", tmp_path / "r", 60, run)
    assert [node.state for node in trace] == ["completed", "lost"]
    assert not trace.executions[0].ended


@pytest.mark.contract("S4")
def test_a_program_that_exits_at_once_leaves_a_readable_file(tmp_path: Path) -> None:
    """S4: `os._exit` waits for no thread."""
    trace = left_by("os._exit(1)", tmp_path / "r", 0.5)
    assert [node.state for node in trace] == ["completed", "lost"]
    assert trace.root.state == "lost"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
async def test_a_fork_keeps_no_recording_open(tmp_path: Path) -> None:
    """The child has neither the file nor its lock, and ends as usual."""
    context = multiprocessing.get_context("fork")
    go_on = context.Event()
    async with Commander() as commander, record(commander, tmp_path / "r"):
        await commander.call_handler(give())
        child = context.Process(target=go_on.wait)
        child.start()
        await commander.call_handler(give())
    try:
        await wait_until(lambda: not is_recorded(tmp_path / "r"))  # the child has started
        assert [node.state for node in read(tmp_path / "r")] == ["completed"] * 2
    finally:
        go_on.set()
        child.join()
    assert child.exitcode == 0
