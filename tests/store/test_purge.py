"""A purge removes runs in small transactions: others can write, and see no incomplete run."""

import asyncio
import itertools
import random
import sqlite3
import time
from contextlib import suppress

import pytest
from support.journal_file import acquire_run, journal_process, make_row, open_journal, row_values
from support.seeds import SEED, example_count

from anabranch.store import Durable, Journal, JournalError, RunNotFound, _purge
from anabranch.store._journal_file import JournalFile

pytestmark = pytest.mark.contract("D12")

TABLES = ("run", "row", "mail", "blob", "purge", "key")


class Clock:
    """A clock that advances a second per call, so that each batch is small."""

    def __init__(self, started: float = 0) -> None:
        self.monotonic = itertools.count(started).__next__
        self.time = time.time


async def counts(file: JournalFile) -> dict[str, int]:
    def select(sql: sqlite3.Connection) -> dict[str, int]:
        select = "select count(*) from anabranch_"
        return {each: sql.execute(select + each).fetchone()[0] for each in TABLES}

    return await file.call(select)


async def fill(file: JournalFile, name: str, rng: random.Random, *, over: bool = True) -> None:
    """Create a run with rows, shared large values, and letters."""
    fence = await acquire_run(file, name)
    for number in range(rng.randrange(200)):
        large = bytes([rng.randrange(4)]) * 70_000
        file.append(name, fence, make_row(large if rng.random() < 0.1 else number))
    signals = [b"y" * rng.choice((1, 70_000)) for _ in range(rng.randrange(60))]
    await asyncio.gather(*(file.post(name, "signal", "x", value) for value in signals))
    await file.release(name, fence, "completed" if over else "suspended")


@pytest.mark.parametrize("example", range(example_count(3, 100)))
async def test_a_purge_that_is_cut_short_shows_no_part_and_is_completed(
    tmp_path, monkeypatch, example
):
    """By a cancel, or by the end of its process, after any of its transactions."""
    rng = random.Random(f"{SEED} {example}")
    monkeypatch.setattr(_purge, "time", Clock())
    monkeypatch.setattr(_purge, "BATCH_SECONDS", rng.randrange(2, 6))
    monkeypatch.setattr(_purge, "MAX_RUNS", rng.randrange(1, 4))
    path, over = tmp_path / "runs.db", [f"over {number}" for number in range(4)]
    async with open_journal(path) as file:
        for name in over:
            await fill(file, name, rng)
        await fill(file, "left", rng, over=False)
        sizes = {run.run_id: run.rows for run in await file.runs()}
        kept = await file.look("left")
    for life in range(100):
        async with open_journal(path) as file, open_journal(path) as other:
            purging = asyncio.ensure_future(file.purge(time.time() + 1))
            for _ in range(rng.randrange(4)):
                await other.post("left", "signal", "more", b"")
            if rng.random() < 0.8 and life < 99:
                purging.cancel()
            await asyncio.wait([purging])
            for name in [*over, "left"]:
                with suppress(RunNotFound):
                    run, rows, _ = await other.look(name)
                    assert len(rows) == run.rows == sizes[name]
            if not purging.cancelled():
                break
            names = {run.run_id for run in await file.runs()}
            if rng.random() < 0.5 and over[0] not in names:  # the same name again, without rows
                sizes[over[0]] = 0
                await file.release(over[0], await acquire_run(file, over[0]), "completed")
    async with open_journal(path) as file:
        found = await file.look("left")
        assert found[1] == kept[1]
        shared = {each.value for each in kept[1] if len(each.value) > 70_000 - 1}
        assert await counts(file) == {
            "run": 1,
            "row": len(kept[1]),
            "mail": len(found[2]),
            "blob": len(shared),
            "purge": 0,
            "key": 0,
        }


async def test_others_write_while_a_large_run_is_removed(tmp_path):
    """They wait for one batch at most."""
    path = tmp_path / "runs.db"
    async with open_journal(path) as file, open_journal(path) as other:
        await file.release("run", await acquire_run(file), "completed")
        numbers = "with recursive n(i) as (select 1 union all select i + 1 from n where i < 60000)"
        insert = f"{numbers} insert into anabranch_row select 1, i, x'00', 'k', x'', null, 1 from n"
        await file.call(lambda sql: sql.execute(insert))
        await other.start("beside", "C", 1, b"")
        purging = asyncio.ensure_future(file.purge(time.time() + 1))
        for _ in range(3):
            await other.post("beside", "signal", "x", b"")
        assert not purging.done()
        assert await purging == 1
        assert (await counts(file))["row"] == 0


async def test_a_purge_that_is_killed_is_completed_by_the_next(tmp_path):
    """After SIGKILL; a process that opens the file sees nothing of the run."""
    path = tmp_path / "runs.db"
    with journal_process(
        path,
        """
async def main():
    file, fence = await taken("run")
    numbers = "with recursive n(i) as (select 1 union all select i + 1 from n where i < 60000)"
    insert = numbers + " insert into anabranch_row select 1, i, x'00', 'k', x'', null, 1 from n"
    await file.call(lambda sql: sql.execute(insert))
    await file.release("run", fence, "completed")
    purging = asyncio.ensure_future(file.purge(2e10))
    while await file.runs():
        pass
    print("begun", flush=True)
    await purging
asyncio.run(main())
""",
    ) as child:
        assert child.stdout.readline() == "begun\n"
        child.kill()
        child.wait()
    async with open_journal(path) as file:
        assert not await file.runs()
        left = await counts(file)
        assert left["row"] > 0 < left["purge"]
        fence = await acquire_run(file)
        file.append("run", fence, make_row(b"own"))
        assert await file.purge(0) == 0
        assert await row_values(file) == [b"own"]
        assert (await counts(file)) == {**left, "run": 1, "row": 1, "purge": 0}


# --- repeated signals


class Waits(Durable[list[int]]):
    async def task(self) -> list[int]:
        return [await self.durable.signal("n", int) for _ in range(2)]


async def test_a_key_is_delivered_once_over_restarts_ends_and_purges(tmp_path):
    """D12: a retry never raises, whatever happened to the run; other keys are separate."""
    path = tmp_path / "runs.db"
    async with Journal(path) as journal:
        await journal.start(Waits(), run_id="r")
        await journal.signal("r", "n", 1, key="a")
        await journal.signal("r", "n", 2, key="a")
    async with Journal(path) as journal, Journal(path) as other:
        both = (each.signal("r", "n", 3, key="b") for each in (journal, other) * 5)
        await asyncio.gather(*both, journal.signal("r", "other", 0, key="a"))
        assert await journal.run(Waits(), run_id="r") == [1, 3]
        await journal.signal("r", "n", 4, key="a")
        with pytest.raises(JournalError, match="accepts no signal"):
            await journal.signal("r", "n", 4, key="c")
        await journal.start(Waits(), run_id="s")
        await journal.signal("s", "n", 5, key="a")
        assert [each.name for each in (await journal.look("s")).letters] == ["n"]
        await journal.purge(time.time() + 1)
        await journal.signal("r", "n", 4, key="a")
        with pytest.raises(RunNotFound):
            await journal.signal("r", "n", 4, key="c")
    async with Journal(path) as journal:
        await journal.start(Waits(), run_id="r")
        for key in ("a", "b", "c"):
            await journal.signal("r", "n", 6, key=key)
        assert [each.value for each in (await journal.look("r")).letters] == [b"6"]


async def test_a_key_is_forgotten_30_days_after_it_was_sent_if_its_run_is_gone(
    tmp_path, monkeypatch
):
    """By the next purge; the key of an existing run stays."""
    async with Journal(tmp_path / "runs.db") as journal:
        for name in ("gone", "there"):
            await journal.start(Waits(), run_id=name)
            await journal.signal(name, "n", 1, key="a")
        await journal.cancel("gone")
        assert await journal.purge(time.time() + 1) == 1
        await journal.signal("gone", "n", 1, key="a")
        later = time.time() + 30 * 86400 + 1
        monkeypatch.setattr(_purge.time, "time", lambda: later)
        await journal.purge(0)
        monkeypatch.undo()
        with pytest.raises(RunNotFound):
            await journal.signal("gone", "n", 1, key="a")
        await journal.signal("there", "n", 2, key="a")
        assert [each.value for each in (await journal.look("there")).letters] == [b"1"]


@pytest.mark.parametrize("key", ["", "\n", 7, "x" * 1001])
async def test_a_key_is_a_name(tmp_path, key):
    """With the rules for names of runs."""
    async with Journal(tmp_path / "runs.db") as journal:
        await journal.start(Waits(), run_id="r")
        with pytest.raises(Exception, match="key= must be a text of 1 to 1,000 characters"):
            await journal.signal("r", "n", 1, key=key)
