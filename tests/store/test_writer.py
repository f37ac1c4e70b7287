"""The journal's thread processes everything that any thread queues, and ends with its loop."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.journal_file import acquire_run, journal_process, make_row, open_journal, row_values
from support.seeds import example_count

from anabranch.files import sqlite
from anabranch.store import Journal, _file_thread, _open_file
from anabranch.store._journal_file import JournalFile
from anabranch.store.errors import JournalError
from anabranch.testing import run_seeded

pytestmark = pytest.mark.contract("D2")

unix = pytest.mark.skipif(sys.platform == "win32", reason="there are no timers' signals")

SIGNALLED = """
async def main():
    file, fence = await taken("run")
    came = 0
    def append(*_):
        nonlocal came
        came += 1
        file.append("run", fence, row(came))
        file._thread.follow(lambda sql: None)
    signal.signal(signal.SIGALRM, append)
    signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
    while came < int(sys.argv[2]):
        for _ in range(100):
            file.append("run", fence, row(0))
            file._thread.follow(lambda sql: None)
        await asyncio.sleep(0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    await file.barrier("run", fence)
    rows = await file.rows("run")
    came = sorted(int(each.value) for each in rows if each.value != b"0")
    print(came == list(range(1, len(came) + 1)), flush=True)
    print([each.seq for each in rows] == list(range(1, len(rows) + 1)), flush=True)
    await file.close()
asyncio.run(main())
"""


@unix
def test_something_may_be_queued_while_something_is_queued(tmp_path: Path) -> None:
    """By a signal handler or a finalizer: no deadlock, and no row is lost."""
    with journal_process(
        tmp_path / "runs.db", SIGNALLED, str(example_count(1_000, 10_000))
    ) as child:
        said, _ = child.communicate(timeout=60)
    assert said == "True\nTrue\n"


async def test_what_many_loops_queue_at_once_is_all_answered(tmp_path: Path) -> None:
    """Threads with a journal each on one file: no wait is forgotten, rows keep their order."""
    path, rounds = str(tmp_path / "runs.db"), example_count(10, 100)
    kept: dict[str, list[bytes]] = {}

    async def work(name: str) -> None:
        async with open_journal(path) as file:
            fence = await acquire_run(file, name)

            async def ask() -> None:
                for _ in range(rounds):
                    file.append(name, fence, make_row(0))
                    await asyncio.wait_for(file.barrier(name, fence), 60)

            await asyncio.gather(*(ask() for _ in range(5)))
            kept[name] = await row_values(file, name)

    threads = [
        threading.Thread(target=asyncio.run, args=(work(f"run {number}"),)) for number in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    assert [len(each) for each in kept.values()] == [5 * rounds] * 4


class Unsaid(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


class BadCodec:
    bad = False

    def encode(self, data: bytes) -> bytes:
        if self.bad:
            raise Unsaid
        return data

    def decode(self, data: bytes) -> bytes:
        return data


async def test_a_codec_whose_error_has_no_text_fails_all_who_wait(tmp_path: Path) -> None:
    """Its `__str__` raises: all waiters get the failure nevertheless."""
    codec = BadCodec()
    file = JournalFile(str(tmp_path / "runs.db"), codec)
    await file.open()
    fence = await acquire_run(file)
    codec.bad = True
    file.append("run", fence, make_row(1))
    async with asyncio.timeout(20):
        with pytest.raises(JournalError, match="Unsaid"):
            await file.barrier("run", fence)
        await file.close()


CLOSED = """
from anabranch.store import Durable, Journal
class Block(Durable[None]):
    async def task(self):
        async with self.durable.transaction() as sql:
            await sql.execute("create table mine (x)")
            asyncio.get_running_loop().stop()
            await asyncio.sleep(3_600)
sys.stderr = open(os.devnull, "w")
journal = Journal(sys.argv[1])
loop = asyncio.new_event_loop()
loop.run_until_complete(journal.__aenter__())
running = loop.create_task(journal.run(Block(), run_id="block"))
loop.run_forever()
loop.close()
writer = journal._file._thread
writer._at_exit()  # which waits for 10 seconds at most
print(writer._thread.is_alive(), flush=True)
"""


async def test_a_transaction_whose_loop_is_closed_holds_nobody_up(tmp_path: Path) -> None:
    """Its block can never end: none of it is done, and the thread ends with the loop."""
    with journal_process(tmp_path / "runs.db", CLOSED) as child:
        said, _ = child.communicate(timeout=60)
    assert said == "False\n"
    async with open_journal(tmp_path / "runs.db") as file:
        mine = "select count(*) from sqlite_schema where name = 'mine'"
        assert await file.call(lambda sql: sql.execute(mine).fetchone()) == (0,)


async def test_a_thread_that_is_told_to_end_ends_whatever_is_queued_after(tmp_path: Path) -> None:
    """Another thread's loop may still append while the interpreter ends: nothing is lost."""
    file = JournalFile(str(tmp_path / "runs.db"))
    await file.open()
    fence = await acquire_run(file)
    writer = file._thread
    held, hold = threading.Event(), threading.Event()

    def wait(_: object) -> None:
        held.set()
        hold.wait()

    writer.follow(wait)
    await asyncio.to_thread(held.wait)
    file.append("run", fence, make_row(1))
    refusal, writer._refusal = writer._refusal, None
    writer._stop(None)
    writer._refusal = refusal  # as the other thread has seen it just before
    file.append("run", fence, make_row(2))
    hold.set()
    await asyncio.to_thread(writer._thread.join, 20)
    assert not writer._thread.is_alive()
    await file.close()
    async with open_journal(tmp_path / "runs.db") as again:
        assert await row_values(again) == [b"1", b"2"]


async def test_a_journal_whose_opening_was_cancelled_can_be_opened_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread may still be about to open the file then."""
    go, connect = threading.Event(), _file_thread.connect

    def slowly(name: str) -> Any:
        go.wait()
        return connect(name)

    monkeypatch.setattr(_file_thread, "connect", slowly)
    journal = Journal(tmp_path / "runs.db")
    opening = asyncio.create_task(journal.__aenter__())
    await asyncio.sleep(0)
    opening.cancel()
    await asyncio.wait([opening])
    again = asyncio.create_task(journal.__aenter__())
    await asyncio.sleep(0)
    go.set()
    assert await again is journal
    await journal.__aexit__(None, None, None)


def test_however_many_watch_the_file_is_looked_at_once(tmp_path: Path) -> None:
    """A thousand runs that wait for a signal cost one poll per quarter of a second."""
    asked = 0

    async def main() -> None:
        nonlocal asked
        async with open_journal(tmp_path / "runs.db") as file:
            call = file.call

            async def counted(*args: Any, **options: Any) -> Any:
                nonlocal asked
                asked += 1
                return await call(*args, **options)

            file.call = counted  # type: ignore[method-assign]
            seen = await file.watch()
            watching = [asyncio.create_task(file.watch(seen)) for _ in range(1_000)]
            await asyncio.sleep(10)
            for each in watching[::2]:
                each.cancel()
            await asyncio.wait(watching[::2])
            file.call = call  # type: ignore[method-assign]
            await file.start("run", "Order", 1, b"{}")
            await file.post("run", "signal", "x", b"")
            assert len(set(await asyncio.gather(*watching[1::2]))) == 1
            assert len(asyncio.all_tasks()) == 1

    run_seeded(main)
    assert asked < 50


def test_a_file_that_another_one_makes_at_this_moment_is_no_strangers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its state is read in one snapshot, whenever the other process creates the tables."""
    path, connect = str(tmp_path / "runs.db"), sqlite3.connect
    for number in range(8):
        count = 0

        class Slow(sqlite3.Connection):
            def execute(self, sql: str, *args: Any) -> Any:
                nonlocal count
                found = super().execute(sql, *args).fetchall() if "pragma app" in sql else None
                count += 1
                if count == number:  # noqa: B023
                    with suppress(JournalError), monkeypatch.context() as patch:
                        patch.setattr(sqlite, "BUSY_SECONDS", 0)
                        patch.setattr(sqlite3, "connect", connect)
                        _open_file.connect(path).close()
                return super().execute(sql, *args) if found is None else iter_of(found)

        def iter_of(found: list[Any]) -> Any:
            return SimpleNamespace(fetchone=lambda: found[0])

        monkeypatch.setattr(sqlite3, "connect", partial(connect, factory=Slow))
        _open_file.connect(path).close()
        monkeypatch.setattr(sqlite3, "connect", connect)
        for each in tmp_path.iterdir():
            each.unlink()
