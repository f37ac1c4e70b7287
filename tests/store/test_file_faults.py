"""D19: a failing disk gives all callers a clear error, and the runs can be resumed."""

import asyncio
import errno
import logging
import os
import shutil
import sqlite3

import pytest
from support.failing_disk import FailingDisk
from support.journal_file import acquire_run, journal_process, make_row, open_journal, row_values

from anabranch import Agent, Commander
from anabranch.files import sqlite
from anabranch.store import Durable, Journal, _file_thread, _open_file
from anabranch.store._journal_file import JournalFile
from anabranch.store.errors import JournalError
from anabranch.testing import ScriptedBackend

pytestmark = pytest.mark.contract("D19")


async def all_waiting(file: JournalFile, fence: int) -> list[object]:
    """Wait in all ways at once; no wait hangs."""
    asked = [
        file.barrier(),
        file.barrier("run", fence),
        file.call(lambda sql: 1),
        file.transact("run", fence, lambda sql: make_row()),
        file.start("other", "Order", 1, b""),
        file.post("run", "signal", "x", b""),
        file.rows("run"),
        file.watch(),
        file.release("run", fence, "completed"),
    ]
    async with asyncio.timeout(20):
        return await asyncio.gather(*asked, return_exceptions=True)


@pytest.mark.parametrize("after", range(12))
async def test_whichever_statement_fails_all_who_wait_are_told(tmp_path, monkeypatch, after):
    """Nothing hangs, later appends fail at once, and the file can be opened again."""
    disk = FailingDisk(monkeypatch)
    async with open_journal(tmp_path / "runs.db") as file:
        fence = await acquire_run(file)
        file.append("run", fence, make_row(1))
        await file.barrier("run", fence)
        file.append("run", fence, make_row(2))
        disk.fail_after(after)
        errors = await all_waiting(file, fence)
        failed = [each for each in errors if isinstance(each, BaseException)]
        assert failed
        assert {type(each) for each in failed} == {JournalError}
        assert len({id(each) for each in failed}) == len(failed)  # or they would share a traceback
        assert all("could not be read or written" in str(each) for each in failed)
        with pytest.raises(JournalError, match="check the disk, and whether it is full, then"):
            await file.barrier()
    disk.mend()
    async with open_journal(tmp_path / "runs.db") as file:
        assert (await row_values(file))[:1] == [b"1"]
        await file.acquire("run", "next")


async def test_a_disk_that_fails_within_a_call_fails_the_whole(tmp_path):
    """SQLite may have rolled back the transaction by then, with the rows of others."""
    async with open_journal(tmp_path / "runs.db") as file:
        fence = await acquire_run(file)

        def broken(sql):
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error

        for error in await asyncio.gather(
            file.call(broken), file.barrier(), file.rows("run"), return_exceptions=True
        ):
            assert isinstance(error, JournalError)
            assert "has no room left" in str(error)
        with pytest.raises(JournalError):
            file.append("run", fence, make_row())


async def test_a_statement_of_the_store_that_fails_fails_alone(tmp_path):
    """Its caller gets the cause, such as a missing table."""
    async with open_journal(tmp_path / "runs.db") as file:
        await acquire_run(file)
        await file.call(lambda sql: sql.execute("drop table anabranch_mail"))
        with pytest.raises(JournalError, match="no such table: anabranch_mail"):
            await file.letters("run")
        assert await row_values(file) == []


async def test_an_append_is_told_at_once_after_a_failure(tmp_path, monkeypatch):
    """Also for a run whose own rows were written."""
    disk = FailingDisk(monkeypatch)
    async with open_journal(tmp_path / "runs.db") as file:
        fence = await acquire_run(file)
        disk.fail_after(0)
        file.append("run", fence, make_row(1))
        with pytest.raises(JournalError):
            await file.barrier()
        with pytest.raises(JournalError, match=r"disk I/O error") as error:
            file.append("run", fence, make_row(1))
        assert isinstance(error.value.__cause__, sqlite3.OperationalError)


async def test_a_failure_that_nobody_heard_of_is_raised_by_the_close(tmp_path, monkeypatch):
    """Once; an error that a caller got is not raised again."""
    disk = FailingDisk(monkeypatch)
    file = JournalFile(str(tmp_path / "runs.db"))
    await file.open()
    fence = await acquire_run(file)
    disk.fail_after(0)
    file.append("run", fence, make_row(1))
    with pytest.raises(JournalError, match="could not be read or written"):
        await file.close()
    await file.close()


async def test_a_full_disk(tmp_path, monkeypatch):
    """The rows on disk stay; with space again the run is resumed where it was."""
    path, connect = tmp_path / "runs.db", _open_file.connect

    def small(name):
        connection = connect(name)
        connection.execute("pragma max_page_count = 40")
        return connection

    with monkeypatch.context() as patch:
        patch.setattr(_file_thread, "connect", small)
        async with open_journal(path) as file:
            fence = await acquire_run(file)
            with pytest.raises(JournalError, match="has no room left") as error:
                for number in range(100):
                    file.append("run", fence, make_row(b"x" * 3000))
                    await file.barrier()
                    written = number + 1
            assert "make room on the disk" in error.value.remedy
            errors = await all_waiting(file, fence)
            assert {type(each) for each in errors} == {JournalError}
    async with open_journal(path) as file:
        assert len(await row_values(file)) == written
        fence = (await file.acquire("run", "next"))[0].fence
        file.append("run", fence, make_row(b"x" * 3000))
        await file.barrier()


async def test_a_file_that_may_grow_no_further(tmp_path):
    """By a limit of the system on the size of files, in another process."""
    with journal_process(
        tmp_path / "runs.db",
        """
import resource
async def main():
    file, fence = await taken("run")
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
    written = 0
    try:
        while True:
            file.append("run", fence, Row(bytes(16), "result", bytes(3000)))
            await file.barrier()
            written += 1
    except JournalError as error:
        print(written, error.why)
    try:
        file.append("run", fence, row(1))
    except JournalError as error:
        print("at once")
    await file.close()
asyncio.run(main())
""",
    ) as child:
        said, _ = child.communicate(timeout=30)
        assert child.returncode == 0
        assert "at once" in said
        async with open_journal(tmp_path / "runs.db") as file:
            assert len(await row_values(file)) == int(said.split()[0]) > 0


@pytest.mark.parametrize(
    ("number", "why"),
    [
        (errno.ENOSPC, "has no room left to grow.*make room"),
        (errno.EROFS, "may not be written to.*in which this user can write"),
        (errno.EACCES, "may not be used.*in which this user can write"),
        (errno.EMFILE, r"too many open files.*ulimit -n"),
        (errno.EXDEV, "could not be used.*see the cause"),
    ],
)
async def test_a_run_for_which_no_lock_can_be_made(tmp_path, monkeypatch, number, why):
    """It fails alone, with a remedy; others continue."""
    async with open_journal(tmp_path / "runs.db") as file:
        fence = await acquire_run(file)
        await file.start("other", "Order", 1, b"{}")

        def refuse(*_):
            raise OSError(number, "no")

        with monkeypatch.context() as patch:
            patch.setattr(os, "open", refuse)
            with pytest.raises(JournalError, match=why):
                await file.acquire("other", "test")
        file.append("run", fence, make_row(1))
        await file.acquire("other", "test")
        assert await row_values(file) == [b"1"]


async def test_a_large_change_needs_no_other_file(tmp_path):
    """SQLite would put a part of it into a temporary file, which may be impossible."""
    with journal_process(
        tmp_path / "runs.db",
        """
import resource
async def main():
    file, fence = await taken("run")
    for number in range(2000):
        file.append("run", fence, Row(bytes(16), "result", bytes(1000)))
    await file.release("run", fence, "completed")
    used = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (used - 1, used))
    print(await file.purge(float("inf")))
    await file.close()
asyncio.run(main())
""",
    ) as child:
        said, _ = child.communicate(timeout=30)
        assert said == "1\n"


@pytest.mark.parametrize("what", ["removed", "replaced", "wal", "shm", "folder"])
async def test_a_file_that_is_taken_away_while_it_is_open(tmp_path, what):
    """SQLite itself would write to a file that cannot be found any more."""
    folder = tmp_path / "data"
    folder.mkdir()
    path = folder / "runs.db"
    async with open_journal(path) as file:
        fence = await acquire_run(file)
        file.append("run", fence, make_row(1))
        await file.barrier()
        if what == "removed":
            path.unlink()
        elif what == "replaced":
            shutil.copy(path, folder / "copy")
            os.replace(folder / "copy", path)
        elif what in ("wal", "shm"):
            (folder / f"runs.db-{what}").unlink()
        else:
            shutil.rmtree(folder)
        file.append("run", fence, make_row(2))
        errors = await all_waiting(file, fence)
        assert {type(each) for each in errors} == {JournalError}
        assert all("was removed or replaced" in str(each) for each in errors)


async def test_another_processs_long_transaction_is_waited_for_and_then_said(tmp_path, monkeypatch):
    """The remedy names possible causes."""
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.05)
    async with open_journal(tmp_path / "runs.db") as file:
        fence = await acquire_run(file)
        other = sqlite3.connect(tmp_path / "runs.db", isolation_level=None)
        other.execute("begin immediate")
        assert await row_values(file) == []  # reading continues
        await file.barrier("run", fence)
        file.append("run", fence, make_row(1))
        with pytest.raises(JournalError, match=r"locked by another process.*open transaction"):
            await file.barrier()
        other.execute("rollback")
        other.close()


class Forever(Durable[None]):
    async def task(self) -> None:
        self.durable.now()
        await asyncio.Event().wait()


async def test_a_cancel_after_a_failure_of_the_disk_gives_the_failure(tmp_path, monkeypatch):
    """The run could not be released, and the caller of the cancel has to know."""
    disk = FailingDisk(monkeypatch)
    async with asyncio.timeout(20), Journal(tmp_path / "runs.db") as journal:
        running = asyncio.create_task(journal.run(Forever(), run_id="r"))
        while not (await journal.runs("running")):  # noqa: ASYNC110 - no event for this
            await asyncio.sleep(0)
        disk.fail_after(0)
        running.cancel()
        with pytest.raises(JournalError, match="could not be read or written"):
            await running
    disk.mend()
    async with Journal(tmp_path / "runs.db") as journal:
        assert [run.state for run in await journal.runs()] == ["running"]


@pytest.mark.parametrize("after", [0, 10, 20, *range(33, 44)])
async def test_a_run_whose_journal_fails_says_so_by_its_outcome_alone(
    tmp_path, monkeypatch, caplog, after
):
    """No node of it logs the failure again with a traceback."""
    disk = FailingDisk(monkeypatch)
    backend = ScriptedBackend(*(["A word. " * 500] * 50))
    with caplog.at_level(logging.ERROR), pytest.raises(JournalError):
        async with Journal(tmp_path / "runs.db") as journal, Commander(policy="isolate") as tree:
            agent = Agent(backend, name="a", journal=journal)
            await tree.run(agent.call("first", session_id="s"))
            disk.fail_after(after)
            for number in range(40):
                await tree.run(agent.call(f"{number}", session_id="s"))
    assert not caplog.records
