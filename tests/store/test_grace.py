"""D20: effects in progress get time to end, however a run is suspended."""

from __future__ import annotations

import asyncio
import contextvars
from functools import partial
from typing import Any

import pytest
from support.killed_executions import run_execution
from support.memory_journal import RUN_ID, Disk, journal_of, use_disk_clock
from support.seeds import example_count, seeds

from anabranch.commander import Commander, Node, NodeCancelled
from anabranch.commander.durable import scope_here
from anabranch.handlers import handler
from anabranch.store import Durable, Journal
from anabranch.testing import run_seeded

pytestmark = pytest.mark.contract("D20")

LEAVE: list[str] = []
OUTCOMES = {"result", "failure", "cancelled", "over", "aborted", "failed"}


class Works(Durable[list[str]]):
    """Has an effect in progress, and another one that begins later."""

    async def task(self) -> list[str]:
        jobs = [self.call_handler(sends("sent", 4)), self.call_handler(later())]
        jobs.append(self.call_handler(leaves(self)))
        return [await job for job in jobs]


@handler
async def sends(node: Node[Any], name: str, seconds: float) -> str:
    effect = scope_here().effect(name, {})  # type: ignore[union-attr]
    return await effect.do(lambda: asyncio.sleep(seconds, name), again=True)


@handler
async def later(node: Node[Any]) -> str:
    await asyncio.sleep(2)
    return await node.call_handler(sends("later", 0))


@handler
async def leaves(node: Node[Any], job: Works) -> str:
    if not LEAVE:
        return "stayed"
    how = LEAVE.pop()
    await asyncio.sleep(1)
    match how:
        case "exit":
            node.commander.exit()
        case "SystemExit":
            raise SystemExit(3)
        case "KeyboardInterrupt":
            raise KeyboardInterrupt
        case "commander.cancel":
            node.commander.cancel("all")
        case "fail fast":
            raise_at(node.commander)
        case _:
            pass
    await asyncio.get_running_loop().create_future()
    return ""


def raise_at(commander: Commander) -> None:
    @handler
    async def fails(node: Node[Any]) -> None:
        raise ZeroDivisionError

    outside = contextvars.Context()
    put = partial(commander.call_handler, fails())
    asyncio.get_running_loop().call_soon(put, context=outside)


WAYS = ["cancel", "exit", "commander.cancel", "fail fast", "error", "journal", "two cancels"]


def leave(disk: Disk, how: str, grace: float, seed: int | None) -> None:
    """End an execution in this way after a second."""

    async def main() -> None:
        with use_disk_clock(disk):
            await in_journal(how)

    async def in_journal(how: str) -> None:
        driver = None
        try:
            async with journal_of(disk, grace=grace) as journal:
                driver = asyncio.create_task(in_commander(journal, how))
                await asyncio.sleep(1)
                if how == "journal":
                    raise ZeroDivisionError
                if how in ("cancel", "two cancels"):
                    driver.cancel()
                if how == "two cancels":
                    await asyncio.sleep(1)
                    driver.cancel()
                await asyncio.wait([driver])
        finally:
            assert driver is not None
            await asyncio.wait([driver])
        driver.result()

    async def in_commander(journal: Journal, how: str) -> None:
        async with Commander(policy="fail_fast"):
            driving = asyncio.create_task(journal.run(Works(), run_id=RUN_ID))
            if how == "error":
                await asyncio.sleep(1)
                driving.add_done_callback(lambda task: task.cancelled() or task.exception())
                raise ZeroDivisionError
            try:
                await asyncio.shield(driving)
            except asyncio.CancelledError:
                driving.cancel()
                await asyncio.wait([driving])
                raise

    LEAVE[:] = [how]
    with pytest.raises((ZeroDivisionError, asyncio.CancelledError, NodeCancelled)):
        run_seeded(main, seed)
    LEAVE.clear()


@pytest.mark.parametrize("grace", [1, 10])
@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("seed", [None, *seeds(example_count(2, 20))])
def test_effects_under_way_get_their_time_and_are_kept(
    how: str, grace: float, seed: int | None
) -> None:
    """No new effect begins; no end is recorded because of it, and the same code continues."""
    disk = Disk()
    leave(disk, how, grace, seed)
    kinds = [row.kind for row in disk.rows[RUN_ID]]
    assert kinds.count("intent") == 1
    assert kinds.count("gave") == (grace == 10)
    assert not set(kinds) & OUTCOMES
    assert disk.runs[RUN_ID].state == "suspended"
    assert disk.now - disk.rows[RUN_ID][0].time == pytest.approx(4 if grace == 10 else 2, abs=0.1)
    execution = run_execution(Works, disk, seed=seed)
    assert execution.error is None
    assert execution.result[::2] == ["sent", "stayed"]
