"""The work of `benchmarks/durable.py` as durable runs, and in bare SQLite."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from anabranch import Job, run
from anabranch.commander.durable import scope_here
from anabranch.handlers import handler
from anabranch.store import Durable, Journal, Live, live
from anabranch.store import _file_thread as writer

GAVE = "x" * 40  # the result of an effect
TEXT = 1_000  # characters of a message
BLOCK = 20  # effects, and then as many inserts


class Contender:
    """One way to store work. Methods for work that it cannot express are missing."""

    name = ""
    note = ""

    def can(self, what: str) -> bool:
        return hasattr(self, what)


# --- this engine


class PlainCell(Job[int]):
    number: int

    async def task(self) -> int:
        return self.number


class Cell(Durable[int]):
    number: int

    async def task(self) -> int:
        return self.number


@handler
async def plain_step(node: Any, number: int) -> int:
    return number


async def step(number: int) -> int:
    return number


async def put_cells(node: Any, count: int, shape: str) -> int:
    """Put children of one kind: jobs at once, jobs one after the other, or steps."""
    durable = isinstance(node, Durable)
    if shape == "steps":
        call = node.durable.step if durable else None
        steps = [call(step, n) if call else node.call_handler(plain_step(n)) for n in range(count)]
        return sum([await each for each in steps])
    cell = Cell if durable else PlainCell
    if shape == "in turn":
        return sum([await node.put_job(cell(number)) for number in range(count)])
    cells = [node.put_job(cell(number)) for number in range(count)]
    return sum([await each for each in cells])


class PlainCells(Job[int]):
    """Puts a number of children and awaits all of them."""

    count: int
    shape: str = "at once"

    async def task(self) -> int:
        return await put_cells(self, self.count, self.shape)


class Cells(Durable[int]):
    """The same with durable children. In a first execution it can stop before its end."""

    count: int
    shape: str = "at once"
    first_life: Live[asyncio.Event | None] = live()

    async def task(self) -> int:
        total = await put_cells(self, self.count, self.shape)
        if self.first_life is not None:
            self.first_life.set()
            await asyncio.get_running_loop().create_future()
        return total


async def give() -> str:
    return GAVE


class Effects(Durable[list[float]]):
    """A number of effects, one by one or all at once, and the same number of bare inserts.

    Returns the seconds of both. They take turns in short blocks, as a disk has slow moments.
    """

    count: int
    at_once: bool
    beside: str

    async def task(self) -> list[float]:
        took = [0.0, 0.0]
        with closing(Bare(Path(self.beside))) as bare:
            for start in range(0, self.count, self.count if self.at_once else BLOCK):
                block = range(start, start + (self.count if self.at_once else BLOCK))
                started = time.perf_counter()
                if self.at_once:
                    await asyncio.gather(*(effect(number) for number in block))
                else:
                    for number in block:
                        await effect(number)
                took[0] += time.perf_counter() - started
                took[1] += bare.insert(len(block))
        return [each / self.count for each in took]


async def effect(number: int) -> None:
    scope: Any = scope_here()
    await scope.effect("charge", {"number": number}).do(give)


class Talk(Durable[int]):
    """A conversation with a number of messages."""

    count: int

    async def task(self) -> int:
        talk = self.durable.conversation("talk")
        for number in range(self.count):
            talk.add(message(number))
        return len(talk)


def message(number: int) -> str:
    return f"{number:08} ".ljust(TEXT, "-")


class Ours(Contender):
    """Durable runs of this engine, in a file."""

    name = "anabranch"

    def nodes(self, folder: Path, count: int) -> None:
        total = run(Cells(count, first_life=None), journal=str(folder / "nodes.db"), run_id="nodes")
        assert total == sum(range(count))

    def effects(self, folder: Path, count: int, *, at_once: bool = False) -> list[float]:
        """Return the seconds for one effect, and for one bare insert."""
        job = Effects(count, at_once, str(folder))
        return run(job, journal=str(folder / "effects.db"), run_id="effects")

    def commits(self, folder: Path, count: int) -> float:
        """Return the commits for each of a number of sequential effects."""
        said: list[str] = []
        connect = writer.connect

        def traced(name: str) -> sqlite3.Connection:
            connection = connect(name)
            connection.set_trace_callback(said.append)
            return connection

        writer.connect = traced  # type: ignore[attr-defined]
        try:
            self.effects(folder, count)
        finally:
            writer.connect = connect  # type: ignore[attr-defined]
        return said.count("begin immediate") / count

    def conversation(self, folder: Path, count: int) -> int:
        """Return the bytes that a conversation takes on the disk."""
        file = folder / "talk.db"
        assert run(Talk(count), journal=str(file), run_id="talk") == count
        return sum(each.stat().st_size for each in folder.glob("talk.db*") if each.is_file())

    def finish_children(self, file: Path, count: int, shape: str = "at once") -> None:
        """Create a journal with a running run whose children have all ended."""

        async def main() -> None:
            done = asyncio.Event()
            async with Journal(str(file)) as journal:
                first = asyncio.create_task(journal.run(Cells(count, shape, done), run_id="run"))
                await done.wait()
                first.cancel()
                await asyncio.wait([first])

        asyncio.run(main())

    def take_up(self, file: Path, count: int, shape: str = "at once") -> None:
        total = run(Cells(count, shape, None), journal=str(file), run_id="run")
        assert total == sum(range(count))


def run_plain(count: int, shape: str = "at once") -> None:
    assert run(PlainCells(count, shape)) == sum(range(count))


# --- bare SQLite


class Bare:
    """Inserts with one commit each, as safe as those of a journal."""

    def __init__(self, folder: Path) -> None:
        self._connection = sqlite3.connect(folder / "bare.db", isolation_level=None)
        self._connection.execute("pragma journal_mode = wal")
        self._connection.execute("pragma synchronous = full")
        self._connection.execute("create table row (id integer primary key, value blob)")

    def insert(self, count: int) -> float:
        """Return the seconds for a number of inserts."""
        started = time.perf_counter()
        for _ in range(count):
            self._connection.execute("insert into row (value) values (?)", (GAVE.encode(),))
        return time.perf_counter() - started

    def close(self) -> None:
        self._connection.close()


def bare_inserts(folder: Path, count: int) -> float:
    """Return the seconds for one insert."""
    with closing(Bare(folder)) as bare:
        return bare.insert(count) / count
