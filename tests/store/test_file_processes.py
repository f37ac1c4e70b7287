"""A journal among processes: kill -9, concurrent processes, a fork, an end without a close."""

import asyncio
import os
import random
import signal
import sqlite3
from contextlib import ExitStack

import pytest
from support.journal_file import acquire_run, journal_process, make_row, open_journal, row_values
from support.seeds import SEED, example_count

from anabranch.store import Journal, RunBusy, _open_file

pytestmark = pytest.mark.contract("D2")

# Appends numbers that continue the last ones, some rows per barrier, and prints how far barriers
# have returned. Several of these start at once, on a file that does not exist.
APPENDS = """
async def main():
    file, fence = await taken(sys.argv[2])
    number = len(await file.rows(sys.argv[2]))
    while True:
        for _ in range(int(sys.argv[3])):
            number += 1
            file.append(sys.argv[2], fence, row(number))
        await file.barrier(sys.argv[2], fence)
        print(number, flush=True)
asyncio.run(main())
"""


async def test_what_a_barrier_has_seen_survives_kill_9_and_the_rest_is_a_prefix(tmp_path):
    """Two processes create a file at once, with a run each; then the runs are resumed.

    Each execution continues at the last row of the one before.
    """
    path, rng = tmp_path / "runs.db", random.Random(SEED)
    sizes = [1, 300]
    for life in range(example_count(2, 10)):
        with ExitStack() as stack:
            starts = [journal_process(path, APPENDS, f"run-{size}", str(size)) for size in sizes]
            children = [stack.enter_context(start) for start in starts]
            said = [
                [child.stdout.readline() for _ in range(rng.randrange(1, 5))] for child in children
            ]
            for child in children:
                child.kill()
            rests = [child.communicate()[0].splitlines() for child in children]
            lasts = [int([*before, *rest][-1]) for before, rest in zip(said, rests, strict=True)]
        async with open_journal(path) as file:
            for size, last in zip(sizes, lasts, strict=True):
                run, rows = await file.acquire(f"run-{size}", "test")
                assert [int(each.value) for each in rows] == list(range(1, len(rows) + 1))
                assert [each.seq for each in rows] == list(range(1, len(rows) + 1))
                assert len(rows) >= last > 0
                assert (run.fence, run.recoveries) == (2 * life + 2, 0)
                await file.release(f"run-{size}", run.fence, "suspended")


async def test_a_run_that_another_process_has_is_refused_until_that_is_killed(tmp_path):
    """The error names it; the lock ends with the process, although a fork of it still runs."""
    with journal_process(
        tmp_path / "runs.db",
        """
async def main():
    file, fence = await taken("run")
    if not os.fork():
        print(os.getpid(), flush=True)
        sys.stdin.readline()  # lives until the test closes it
        os._exit(0)
    await asyncio.Event().wait()
asyncio.run(main())
""",
    ) as child:
        fork = int(child.stdout.readline())
        async with open_journal(tmp_path / "runs.db") as file:
            with pytest.raises(RunBusy, match=rf"process {child.pid} since 20\d\d-") as error:
                await file.acquire("run", "test")
            assert error.value.pid == child.pid
            fence = await acquire_run(file, "another")
            file.append("another", fence, make_row(1))
            await file.barrier("another", fence)
            child.kill()
            child.wait()
            os.kill(fork, 0)  # still there
            run, _ = await file.acquire("run", "test")
            assert (run.fence, run.recoveries) == (2, 1)
        child.communicate()


async def test_a_journal_does_not_live_on_in_a_fork(tmp_path):
    """Waits in it raise an error, and the parent's file and runs are not changed."""
    with journal_process(
        tmp_path / "runs.db",
        """
async def use(file):
    for asked in (file.barrier(), file.rows("run"), file.close(), file.close()):
        try:
            await asked
            print("closed")
        except JournalError as error:
            print(error.why)
async def main():
    file, fence = await taken("run")
    if not (pid := os.fork()):
        asyncio.run(use(file))
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(pid, 0)
    file.append("run", fence, row(1))
    await file.release("run", fence, "suspended")
    await file.close()
asyncio.run(main())
""",
    ) as child:
        said, _ = child.communicate(timeout=30)
        assert child.returncode == 0
        assert said.splitlines() == ["is not open in this process"] * 2 + [
            "closed",
            "closed",
        ]
        async with open_journal(tmp_path / "runs.db") as file:
            assert await row_values(file) == [b"1"]


async def test_a_fork_does_not_open_what_is_open_where_it_was_forked(tmp_path):
    """SQLite would take the locks of the parent for its own, and write to a lost file."""
    with journal_process(
        tmp_path / "runs.db",
        """
async def use():
    for name in (sys.argv[1], sys.argv[1] + ".other"):
        file = JournalFile(name)
        try:
            await file.open()
            await file.close()
            print("opened")
        except JournalError as error:
            print(error.why)
def fork():
    if not (pid := os.fork()):
        asyncio._set_running_loop(None)
        asyncio.run(use())
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(pid, 0)
async def main():
    file = JournalFile(sys.argv[1])
    await file.open()
    fork()
    await file.close()
    fork()
asyncio.run(main())
""",
    ) as child:
        said, _ = child.communicate(timeout=30)
        assert child.returncode == 0
        first, *others = said.splitlines()
        assert first.startswith("was open when this process was forked")
        assert others == ["opened"] * 3


@pytest.mark.parametrize("end", ["pass", "raise SystemExit(0)", "os.kill(os.getpid(), 2)"])
async def test_a_program_that_forgets_to_close_ends_and_loses_nothing(tmp_path, end):
    """Appended rows are written when the interpreter ends."""
    with journal_process(
        tmp_path / "runs.db",
        f"""
async def main():
    file, fence = await taken("run")
    for number in range(5000):
        file.append("run", fence, row(number))
    {end}
try:
    asyncio.run(main())
except KeyboardInterrupt:
    pass
""",
    ) as child:
        child.communicate(timeout=30)
        assert child.returncode == 0
        async with open_journal(tmp_path / "runs.db") as file:
            assert len(await row_values(file)) == 5000
            await file.acquire("run", "next")


async def test_a_stopped_owner_that_wakes_writes_nothing(tmp_path):
    """Another process owns the run by then; its earlier rows are there."""
    path = tmp_path / "runs.db"
    with journal_process(
        path,
        """
async def main():
    file, fence = await taken("run")
    for number in (1, 2):
        file.append("run", fence, row(number))
        try:
            await file.barrier("run", fence)
            print("written", flush=True)
        except LeaseLost:
            print("lost", flush=True)
        sys.stdin.readline()
asyncio.run(main())
""",
    ) as child:
        assert child.stdout.readline() == "written\n"
        os.kill(child.pid, signal.SIGSTOP)
        async with open_journal(path) as file:
            await file.call(lambda sql: sql.execute("update anabranch_run set fence = fence + 1"))
        os.kill(child.pid, signal.SIGCONT)
        said, _ = child.communicate("\n\n", timeout=30)
        assert said == "lost\n"
        async with open_journal(path) as file:
            assert await row_values(file) == [b"1"]


async def test_the_run_of_an_owner_that_was_stopped_in_a_commit_is_busy(tmp_path):
    """An acquisition fails at once, although nothing can be written during that time."""
    path = tmp_path / "runs.db"
    with journal_process(
        path,
        """
import time
def stop(sql):
    print("commits", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(1)  # the other threads stop first, perhaps
async def main():
    file, _ = await taken("run")
    await file.start("session", "anabranch.store:Session", 1, b"{}")
    await file.acquire("session", "child")
    await file.call(stop)
asyncio.run(main())
""",
    ) as child:
        assert child.stdout.readline() == "commits\n"
        await asyncio.to_thread(os.waitid, os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        async with asyncio.timeout(20), Journal(path) as journal:
            busy = rf"in use by process {child.pid} since"
            with pytest.raises(RunBusy, match=busy):
                await journal._file.acquire("run", "test")
            with pytest.raises(RunBusy, match=busy):
                async with journal.session("session"):
                    pass
            assert len(await journal.runs("running")) == 2
            child.kill()
            child.wait()
            run, _ = await journal._file.acquire("run", "test")
            assert run.recoveries == 1


async def test_mail_and_changes_of_another_process_are_noticed(tmp_path):
    """A watch ends, and the letters are there."""
    path = tmp_path / "runs.db"
    async with open_journal(path) as file:
        await file.start("run", "C", 1, b"{}")
        seen = await file.watch()
        with journal_process(
            path,
            """
async def main():
    file = JournalFile(sys.argv[1])
    await file.open()
    await file.post("run", "signal", "feedback", b"fine")
    await file.close()
asyncio.run(main())
""",
        ) as child:
            async with asyncio.timeout(30):
                while not (mail := await file.letters("run")):
                    seen = await file.watch(seen)
            assert [each.value for each in mail] == [b"fine"]
            child.communicate(timeout=30)


async def test_the_wal_is_small_again_after_a_long_reader(tmp_path):
    """During the read it grows, and nothing waits; then it is truncated."""
    path = tmp_path / "runs.db"
    async with open_journal(path) as file:
        fence = await acquire_run(file)
        reader = sqlite3.connect(path, isolation_level=None)
        reader.execute("begin")
        reader.execute("select count(*) from anabranch_row").fetchall()
        for _ in range(25):
            for _ in range(10):
                file.append("run", fence, make_row(b"x" * 60_000))
            await file.barrier("run", fence)
        assert os.stat(f"{path}-wal").st_size > 14 << 20
        reader.execute("rollback")
        reader.close()
        for _ in range(3):
            file.append("run", fence, make_row(b"x"))
            await file.barrier("run", fence)
        assert os.stat(f"{path}-wal").st_size <= 8 << 20


def test_a_file_that_others_add_pages_to_while_it_is_opened_is_not_damaged(
    tmp_path, monkeypatch, request
):
    """Between any two statements: their pages are in the WAL, and the file is shorter."""
    name = str(tmp_path / "runs.db")
    other = _open_file.connect(name)
    request.addfinalizer(other.close)
    other.execute("pragma wal_autocheckpoint = 0")
    other.execute("create table more (value)")
    connect, checkpoints = sqlite3.connect, []

    class Interleaved(sqlite3.Connection):
        def execute(self, sql, *parameters):
            cursor = super().execute(sql, *parameters)
            if not self.in_transaction:
                other.execute("insert into more values (zeroblob(100000))")
            if "wal_checkpoint" in sql:
                checkpoints.append(sql)
            return cursor

    monkeypatch.setattr(
        "anabranch.files.sqlite.sqlite3.connect",
        lambda name, **options: connect(name, **options, factory=Interleaved),
    )
    connection = _open_file.connect(name)
    connection.close()
    assert checkpoints
