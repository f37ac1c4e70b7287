"""A damaged file: each call returns the written data or an error, and nothing else."""

import asyncio
import random
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from support.seeds import example_count, seeds

from anabranch import AnabranchError
from anabranch.store import Durable, Journal, JournalError

pytestmark = pytest.mark.contract("D2")


class Part(Durable[str]):
    number: int

    async def task(self) -> str:
        return f"part {self.number} " * 30


class Whole(Durable[list[str]]):
    size: int

    async def task(self) -> list[str]:
        self.durable.now()
        self.durable.conversation("talk").add("Hello, here is a message.")
        large = await self.durable.step(text, self.size)
        return [large, *[await self.put_job(Part(number)) for number in range(5)]]


def content(path: str) -> bytes:
    return Path(path).read_bytes()


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def text(size: int) -> str:
    return "abcdefghij" * size


async def filled(path: Path) -> dict[str, list[str]]:
    """Create a journal with some runs; return their data."""
    async with Journal(path) as journal:
        found = {name: await journal.run(Whole(10_000), run_id=name) for name in ("a", "b")}
        await journal.start(Whole(10), run_id="c")
        await journal.signal("c", "name", "value")
    return found


def spoil(path: Path, rng: random.Random) -> None:
    """Change something in the file, as a disk or a bad copy does."""
    data = bytearray(path.read_bytes())
    at, size = rng.randrange(len(data)), len(data)
    match rng.randrange(5):
        case 0:
            data[at] ^= 1 << rng.randrange(8)
        case 1:
            for _ in range(30):
                data[rng.randrange(size)] = rng.randrange(256)
        case 2:
            del data[at:]
        case 3:
            end = min(size, at + rng.randrange(1, 9000))
            data[at:end] = bytes(end - at)
        case _:
            one, other = (rng.randrange(size // 4096) * 4096 for _ in range(2))
            data[one : one + 4096] = data[other : other + 4096]
    path.write_bytes(data)


async def asked(path: Path, call: Any) -> Any:
    """Return the result of a call, or its error; nothing hangs."""
    try:
        async with asyncio.timeout(20), Journal(path) as journal:
            return await call(journal)
    except AnabranchError as error:
        return error


async def test_what_can_be_read_of_a_damaged_file_is_what_was_written(tmp_path: Path) -> None:
    """Results, rows and letters, whatever has changed.

    SQLite may not notice the loss of a whole page, which looks as if it was never written.
    """
    whole, path = tmp_path / "whole.db", tmp_path / "runs.db"
    gave = await filled(whole)
    async with Journal(whole) as journal:
        rows = {name: (await journal.look(name)).rows for name in gave}
        letters = (await journal.look("c")).letters
    refused = 0
    for seed in seeds(example_count(25, 400)):
        shutil.copy(whole, path)
        spoil(path, random.Random(seed))
        for name, result in gave.items():
            found = await asked(path, lambda journal, name=name: journal.look(name))
            assert isinstance(found, AnabranchError) or {*found.rows} <= {*rows[name]}
            refused += isinstance(found, JournalError)
            found = await asked(path, lambda journal, name=name: journal.take_up(name))
            assert isinstance(found, AnabranchError) or found == result
        found = await asked(path, lambda journal: journal.look("c"))
        assert isinstance(found, AnabranchError) or {*found.letters} <= {*letters}
        for call in (Journal.runs, Journal.approvals, Journal.doubts):
            await asked(path, call)
    assert refused


@pytest.mark.parametrize(("table", "word"), [("row", "part"), ("blob", "abc")])
async def test_a_damaged_value_harms_no_other_run(table: str, word: str, tmp_path: Path) -> None:
    """Each look at it raises the error; the other runs of the file continue."""
    path = tmp_path / "runs.db"
    async with Journal(path) as journal:
        await journal.run(Whole(10_000), run_id="a")
        await journal.run(Part(1), run_id="other")
    with sqlite3.connect(path) as raw:
        raw.execute(
            f"update anabranch_{table} set value = cast(replace(value, :old, upper(:old)) as blob)"
            f" where rowid = (select min(rowid) from anabranch_{table} where instr(value, :old))",
            {"old": word},
        )
    raw.close()
    async with Journal(path) as journal:
        for call in (journal.look("a"), journal.run(Whole(10_000), run_id="a")):
            with pytest.raises(JournalError, match=r"is damaged.*a backup"):
                await call
        assert await journal.run(Part(1), run_id="other") == "part 1 " * 30
        await journal.run(Part(2), run_id="new")


@pytest.mark.parametrize("what", ["empty", "garbage", "cut"])
async def test_a_damaged_wal_leaves_a_prefix(what: str, tmp_path: Path) -> None:
    """The last commits are lost, as after a power failure; no commit is there in part."""
    whole, path = tmp_path / "whole.db", tmp_path / "runs.db"
    async with Journal(whole) as journal:
        await journal.run(Whole(10), run_id="a")
        rows = (await journal.look("a")).rows
        shutil.copy(whole, path)
        wal = content(f"{whole}-wal")
    kept = {"empty": b"", "garbage": b"x" * 5000, "cut": wal[: len(wal) * 2 // 3]}[what]
    shutil.copy(write(tmp_path / "wal", kept), f"{path}-wal")
    async with Journal(path) as journal:
        if await journal.runs():
            assert (found := (await journal.look("a")).rows) == rows[: len(found)]
        await journal.run(Whole(10), run_id="a")
