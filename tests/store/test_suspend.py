"""D20: the end of a process leaves a run that can continue, and nothing else."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from support.killed_executions import run_execution
from support.memory_journal import RUN_ID, Disk, journal_of, use_disk_clock
from support.seeds import seeds

from anabranch import Message, ToolCall, tool
from anabranch.commander import Commander, Node, NodeCancelled, run
from anabranch.handlers import handler, respond
from anabranch.messages import Request
from anabranch.store import Durable, Journal
from anabranch.store.errors import JournalMismatch, LeaseLost, RunParked
from anabranch.testing import ScriptedBackend, run_seeded
from tests.store.test_effects import left_after, require_alike

pytestmark = pytest.mark.contract("D20")

ENDS: list[str] = []


class Child(Durable[str]):
    async def task(self) -> str:
        await self.durable.sleep(50)
        return "child"


class Parent(Durable[list[str]]):
    def __post_init__(self) -> None:
        self.at_terminate(lambda _: ENDS.append("terminated"))

    async def task(self) -> list[str]:
        children: list[Any] = [self.put_job(Child(), key=key) for key in "ab"]
        children.append(self.call_handler(plain()))
        return [await child for child in children]


@handler
async def plain(node: Node[Any]) -> str:
    return await node.put_job(Child())


OUTCOMES = {"result", "failure", "cancelled", "over", "aborted"}


@pytest.mark.parametrize("how", ["exit", "cancel", "error", "commander", "lease", "fail fast"])
@pytest.mark.parametrize("seed", [None, *seeds(3)])
def test_leaving_a_run_suspends_it(how: str, seed: int | None) -> None:
    """Nothing is recorded as cancelled or failed, and the next execution continues the run."""
    disk = Disk()

    async def leave(commander: Commander, journal: Journal, driver: asyncio.Task[Any]) -> None:
        await asyncio.sleep(10)
        if how == "exit":
            commander.exit()
        elif how == "cancel":
            driver.cancel()
        elif how == "commander":
            commander.cancel("all of it")
        elif how == "lease":
            disk.runs[RUN_ID] = disk.runs[RUN_ID]._replace(fence=7)
        elif how == "fail fast":
            commander.call_handler(breaks())

    async def main() -> None:
        with use_disk_clock(disk):
            await leave_it()

    async def leave_it() -> None:
        async with journal_of(disk, grace=1) as journal:
            try:
                async with Commander(policy="fail_fast") as commander:
                    driver = asyncio.create_task(journal.run(Parent(), run_id=RUN_ID))
                    other = asyncio.create_task(leave(commander, journal, driver))
                    await asyncio.sleep(10)
                    if how == "error":
                        raise ZeroDivisionError
                    await asyncio.wait([driver, other])
            finally:
                await asyncio.wait([driver, other])
            driver.result()

    with pytest.raises((ZeroDivisionError, asyncio.CancelledError, LeaseLost, NodeCancelled)):
        run_seeded(main, seed)
    assert not {row.kind for row in disk.rows[RUN_ID]} & OUTCOMES
    if how != "lease":
        assert disk.runs[RUN_ID].state == "suspended"
    execution = run_execution(Parent, disk, seed=seed)
    assert execution.error is None
    assert execution.result == ["child"] * 3


@handler
async def breaks(node: Node[Any]) -> None:
    raise ZeroDivisionError


@tool(effect="keyed")
async def note(n: int) -> str:
    return f"noted {n}"


def model(request: Request) -> Message | str:
    if any(message.role == "tool" for message in request.messages):
        return "done"
    calls = [ToolCall(id=str(n), name="note", arguments={"n": n}) for n in range(3)]
    return Message(role="assistant", tool_calls=calls)


class Noting(Durable[str]):
    async def task(self) -> str:
        talk = self.durable.conversation("talk")
        talk.add("Take notes.")
        backend = ScriptedBackend(otherwise=model)
        await self.call_handler(respond(backend, talk, [note]))
        await self.durable.sleep(50)
        return str([message.content for message in talk])


@pytest.mark.parametrize("seed", [None, *seeds(3)])
def test_a_life_may_be_suspended_while_it_plays_what_is_kept(
    seed: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    """At any moment: nodes that it cut off have recorded ends, and the run is not parked."""
    first = run_execution(Noting, seed=seed)
    assert first.error is None
    for turns in range(100):
        disk = left_after(first, len(first.rows) - 2, done=True)

        async def main(disk: Disk = disk, turns: int = turns) -> None:
            with use_disk_clock(disk):
                async with journal_of(disk) as journal:
                    driver = asyncio.create_task(journal.run(Noting(), run_id=RUN_ID))
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    driver.cancel()
                    await asyncio.wait([driver])

        run_seeded(main, seed)
        assert disk.runs[RUN_ID].state != "parked", turns
        assert not caplog.text, turns
        require_alike(
            first, run_execution(Noting, disk, seed=seed), f"suspended after {turns} turns"
        )


def test_a_signal_suspends_the_run_of_a_program(tmp_path: Path) -> None:
    """SIGTERM ends the process with 143, and the same line continues the run."""
    name = str(tmp_path / "runs.db")
    with pytest.raises(SystemExit) as left:
        run(Stops(True), journal=name, run_id="r", live={})
    assert left.value.code == 143
    assert run(Stops(True), journal=name, run_id="r") == "went on"
    assert run(Stops(True), journal=name, run_id="r") == "went on"


STOPPED: list[bool] = []


class Stops(Durable[str]):
    stops: bool

    async def task(self) -> str:
        if not STOPPED:
            STOPPED.append(True)
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.get_running_loop().create_future()
        return "went on"


class Changed(Durable[str], version=1):
    async def task(self) -> str:
        return "x"


def test_a_run_of_another_version_is_parked(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what to do; with the right code it continues."""
    disk = Disk()

    async def start() -> None:
        async with journal_of(disk) as journal:
            await journal.start(Changed(), run_id=RUN_ID)

    run_seeded(start)
    monkeypatch.setattr(Changed, "_node_version", 2)
    execution = run_execution(Changed, disk)
    assert isinstance(execution.error, JournalMismatch)
    assert "version 1" in str(execution.error)
    assert execution.state == "parked"
    assert disk.runs[RUN_ID].error == str(execution.error).encode()
    monkeypatch.setattr(Changed, "_node_version", 1)
    assert run_execution(Changed, disk).result == "x"


def test_a_run_that_is_taken_up_in_vain_is_parked() -> None:
    """After `max_recoveries` executions without a row; resumed by name it continues."""
    disk = Disk()
    run_execution(Changed, disk)
    disk = disk.cut(0, {})
    disk.runs[RUN_ID] = disk.runs[RUN_ID]._replace(recoveries=6)
    execution = run_execution(Changed, disk)
    assert isinstance(execution.error, RunParked)
    assert execution.state == "parked"
