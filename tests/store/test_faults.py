"""D19: a run whose disk fails ends with one clear error, and can be resumed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.failing_disk import FailingDisk
from support.seeds import example_count
from support.waiting import wait_until

from anabranch.commander import Node
from anabranch.commander.durable import scope_here
from anabranch.handlers import handler
from anabranch.store import Durable, Journal, JournalError, Live, live

pytestmark = pytest.mark.contract("D19")

PATIENCE = 20.0


class Waits(Durable[list[str]]):
    """Waits in one of the ways, with an effect before and one after it."""

    how: str
    at: Live[list[str]] = live()

    async def task(self) -> list[str]:
        done = [await self.pay("before")]
        self.at.append("there")
        match self.how:
            case "effect":
                done.append(await self.pay("slow"))
            case "sleep":
                await self.durable.sleep(0.5)
            case "signal":
                done.append(await self.durable.signal("go", str))
            case "child":
                done.append(await self.put_job(Child()))
            case "step":
                done.append(await self.durable.step(slow_step))
            case "plain":
                done.append(await self.call_handler(plain()))
            case _:
                pass
        return [*done, await self.pay("after")]

    async def pay(self, name: str) -> str:
        effect = scope_here().effect(name, {})  # type: ignore[union-attr]

        async def work() -> str:
            await GO["go"].wait() if name == "slow" else None
            self.at.append(name)
            return name

        return await effect.do(work, again=True)


class Child(Durable[str]):
    async def task(self) -> str:
        await GO["go"].wait()
        return "child"


async def slow_step() -> str:
    await GO["go"].wait()
    return "step"


@handler
async def plain(node: Node[Any]) -> str:
    await GO["go"].wait()
    return "plain"


GO: dict[str, asyncio.Event] = {}
HOW = ["effect", "sleep", "signal", "child", "step", "plain"]


@pytest.mark.parametrize("after", range(example_count(3, 12)))
@pytest.mark.parametrize("how", HOW)
async def test_a_run_ends_with_the_journals_error_whatever_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, after: int
) -> None:
    """All waiters get it, in the tree and outside; nothing hangs; the run can be resumed."""
    disk, at = FailingDisk(monkeypatch), list[str]()
    GO["go"] = asyncio.Event()
    async with asyncio.timeout(PATIENCE), Journal(str(tmp_path / "runs.db")) as journal:
        running = asyncio.create_task(journal.run(Waits(how), run_id="r", live={"at": at}))
        await wait_until(lambda: "there" in at)
        await journal._file.barrier()  # the earlier payment is on disk
        disk.fail_after(after)
        told = await asyncio.gather(
            *(journal.signal("r", f"x{number}", number) for number in range(after + 1)),
            journal.start(Waits("none"), run_id="other"),
            return_exceptions=True,
        )
        GO["go"].set()
        with pytest.raises(JournalError, match="could not be read or written") as error:
            await running
        assert "resume its runs" in error.value.remedy
        for each in [
            *told,
            *await asyncio.gather(
                journal.look("r"), journal.cancel("r"), journal.approvals(), return_exceptions=True
            ),
        ]:
            assert each is None or isinstance(each, JournalError)
        assert isinstance(told[-1], JournalError)
    disk.mend()
    assert "after" not in at
    async with asyncio.timeout(PATIENCE), Journal(str(tmp_path / "runs.db")) as journal:
        await journal.signal("r", "go", "went")
        done = await journal.run(Waits(how), run_id="r", live={"at": at})
    assert done[0] == "before"
    assert done[-1] == "after"
    assert at.count("before") == 1
