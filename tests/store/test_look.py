"""The waits of a run, as another process sees them; a run that is resumed by name."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.journal_file import acquire_run, make_row, open_journal

from anabranch.store import Durable, Journal, RunNotFound

pytestmark = pytest.mark.contract("D1")


class Waiting(Durable[str]):
    """Waits for the first of a signal and a time, and gives up the other wait."""

    async def task(self) -> str:
        async with asyncio.TaskGroup() as group:
            slow = group.create_task(self.durable.sleep(hours=1))
            said = group.create_task(self.durable.signal("said", str, timeout=60))
            await asyncio.wait([slow, said], return_when=asyncio.FIRST_COMPLETED)
            slow.cancel()
        return await self.durable.signal("more", str) + said.result()


async def waits(journal: Journal, run_id: str, *wanted: str) -> None:
    """Return once the run has these waits."""
    async with asyncio.timeout(30):
        seen = None
        while [each.name or each.kind for each in (await journal.look(run_id)).waits] != [*wanted]:
            seen = await journal._file.watch(seen)


async def test_a_run_says_what_it_waits_for(tmp_path: Any) -> None:
    """Waits that have ended, or that the run gave up, are not listed; none after its end."""
    name = str(tmp_path / "runs.db")
    async with Journal(name) as journal, Journal(name) as other:
        await journal.start(Waiting(), run_id="run")
        going = asyncio.create_task(journal.run(Waiting(), run_id="run"))
        await waits(other, "run", "sleep", "said")
        until = [each.until for each in (await other.look("run")).waits]
        assert all(each is not None for each in until)
        await other.signal("run", "said", "b")
        await waits(other, "run", "more")
        assert (await other.look("run")).waits[0].until is None
        going.cancel()
        await asyncio.wait([going])
        assert [each.name for each in (await other.look("run")).waits] == ["more"]
        await other.signal("run", "more", "a")
        assert await other.take_up("run") == "ab"
        found = await other.look("run")
        assert (found.waits, found.result, found.error) == ([], b'"ab"', None)
        with pytest.raises(RunNotFound):
            await other.look("nobody")
        with pytest.raises(RunNotFound):
            await other.take_up("nobody")


async def test_a_fork_has_the_rows_up_to_a_number_that_is_there(tmp_path: Any) -> None:
    """Another number is refused."""
    async with open_journal(tmp_path / "runs.db") as file:
        fence = await acquire_run(file)
        for number in range(3):
            file.append("run", fence, make_row(number))
        await file.release("run", fence, "suspended")
    async with Journal(str(tmp_path / "runs.db")) as journal:
        assert [(await journal.fork("run", f"f{at}", at=at)).rows for at in range(4)] == [
            0,
            1,
            2,
            3,
        ]
        for at in (-1, 4):
            with pytest.raises(ValueError, match="at= must be from 0 to 3"):
                await journal.fork("run", "new", at=at)


async def test_only_what_is_over_is_purged(tmp_path: Any) -> None:
    """Of one state, or of all states of runs that are over."""
    states = ("completed", "failed", "cancelled", "suspended", "parked")
    async with open_journal(tmp_path / "runs.db") as file:
        for state in states:
            await file.release(state, await acquire_run(file, state), state)
        await file.start("pending", "Order", 1, b"{}")
        await acquire_run(file, "running")
        async with Journal(str(tmp_path / "runs.db")) as journal:
            assert await journal.purge(0) == 0
            assert await journal.purge(2e10, state="failed") == 1
            with pytest.raises(ValueError, match="only such runs can be removed"):
                await journal.purge(2e10, state="parked")
            assert await journal.purge(2e10) == 2
            left = {each.run_id for each in await journal.runs()}
            assert left == {"suspended", "parked", "pending", "running"}
