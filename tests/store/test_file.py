"""A journal's file: rows, barriers, calls, leases, letters, forks and purges."""

import asyncio
import sqlite3
import time
import weakref

import pytest
from support.journal_file import IDENT, acquire_run, make_row, open_journal, row_values
from support.waiting import wait_until

from anabranch.store._journal_file import JournalFile, Row
from anabranch.store.errors import (
    JournalError,
    LeaseLost,
    NotStorable,
    RunBusy,
    RunExists,
    RunNotFound,
)

pytestmark = pytest.mark.contract("D1")


@pytest.fixture(params=["file", "memory"])
async def file(request, tmp_path):
    async with open_journal(
        tmp_path / "runs.db" if request.param == "file" else ":memory:"
    ) as file:
        yield file


async def test_rows_come_back_as_they_were_appended_with_number_and_time(file):
    """In order and byte for byte, also empty values and values in their own table."""
    fence, before = await acquire_run(file), time.time()
    given = [b"", b"\0\xff", b"x" * 65_536, b"y" * 65_537, b"z" * 3_000_000, b"y" * 65_537]
    assert [file.append("run", fence, make_row(value)) for value in given] == [1, 2, 3, 4, 5, 6]
    await file.barrier()
    rows = await file.rows("run")
    assert [each.value for each in rows] == given
    assert [each.seq for each in rows] == [1, 2, 3, 4, 5, 6]
    assert all(each.ident == IDENT and each.kind == "result" for each in rows)
    assert before <= rows[0].time <= rows[-1].time <= time.time()


async def test_equal_large_values_are_kept_once(tmp_path):
    """A hundred rows with one value of 200 kB use little more space than one."""
    async with open_journal(tmp_path / "runs.db") as file:
        fence = await acquire_run(file)
        for _ in range(100):
            file.append("run", fence, make_row(b"x" * 200_000))
    assert (tmp_path / "runs.db").stat().st_size < 400_000


async def test_a_value_beyond_the_limit_is_refused_at_the_append(file):
    """It gets no number."""
    fence = await acquire_run(file)
    with pytest.raises(NotStorable, match="67,108,865 bytes"):
        file.append("run", fence, make_row(bytes((64 << 20) + 1)))
    assert file.append("run", fence, make_row()) == 1


async def test_rows_are_written_soon_when_nobody_waits(tmp_path):
    """Another connection sees them without a barrier."""
    async with (
        open_journal(tmp_path / "runs.db") as file,
        open_journal(tmp_path / "runs.db") as other,
    ):
        fence = await acquire_run(file)
        seen = await other.watch()
        file.append("run", fence, make_row(1))
        while await row_values(other) != [b"1"]:
            seen = await other.watch(seen)


async def test_many_barriers_share_a_commit(tmp_path, monkeypatch):
    """A hundred concurrent waits take two commits at most."""
    async with open_journal(tmp_path / "runs.db") as file:
        fence, commits = await acquire_run(file), []
        await file.call(lambda sql: sql.set_trace_callback(commits.append))

        async def effect(number):
            file.append("run", fence, make_row(number))
            await file.barrier("run", fence)

        await asyncio.gather(*(effect(number) for number in range(100)))
        assert commits.count("commit") <= 3  # the first commit belongs to the call above
        assert len(await file.rows("run")) == 100


async def test_a_call_sees_the_rows_before_it_and_only_those(file):
    """It has its place in the order of the appends."""
    fence = await acquire_run(file)
    file.append("run", fence, make_row(1))
    count = "select count(*) from anabranch_row"
    call = asyncio.ensure_future(file.call(lambda sql: sql.execute(count).fetchone()))
    await asyncio.sleep(0)
    file.append("run", fence, make_row(2))
    assert await call == (1,)


async def test_a_call_that_raises_takes_back_only_its_own(file):
    """The rows before it stay, and the next call works."""
    fence = await acquire_run(file)
    file.append("run", fence, make_row(1))

    def broken(sql):
        sql.execute("create table orders (id)")
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await file.call(broken)
    assert await row_values(file) == [b"1"]
    await file.call(lambda sql: sql.execute("create table orders (id)"))


@pytest.mark.parametrize("error", [StopIteration, KeyboardInterrupt, SystemExit])
async def test_whatever_a_call_raises_reaches_whoever_waits(file, error):
    """Also an exception that a future refuses; one that is not an `Exception` stops the thread."""

    def broken(sql):
        raise error("odd")

    with pytest.raises(RuntimeError if error is StopIteration else JournalError):
        await asyncio.wait_for(file.call(broken), 10)


async def test_what_a_call_gave_is_not_kept(file):
    """While the thread waits it holds no object of the last call."""

    class Result:
        pass

    result = weakref.ref(await file.call(lambda sql: Result()))
    await wait_until(lambda: result() is None)


async def test_cancelling_whoever_awaits_a_call_does_not_undo_it(file):
    """The call is executed."""
    call = asyncio.ensure_future(file.start("run", "Order", 1, b""))
    await asyncio.sleep(0)
    call.cancel()
    assert (await file.run("run")).state == "pending"


async def test_a_transaction_and_its_row_stand_or_fall_together(file):
    """If it raises, neither is written, and no other row is harmed; the number stays unused."""
    fence = await acquire_run(file)
    await file.call(lambda sql: sql.execute("create table orders (id integer primary key)"))

    def order(sql):
        sql.execute("insert into orders values (1)")
        return make_row(b"ordered")

    assert await file.transact("run", fence, order) == 1
    with pytest.raises(sqlite3.IntegrityError):
        await file.transact("run", fence, order)
    with pytest.raises(NotStorable):
        await file.transact("run", fence, lambda sql: make_row(bytes((64 << 20) + 1)))
    assert file.append("run", fence, make_row(b"after")) == 4
    assert [(each.seq, each.value) for each in await file.rows("run")] == [
        (1, b"ordered"),
        (4, b"after"),
    ]


@pytest.mark.parametrize(
    "end",
    [
        lambda sql: sql.execute("commit"),
        lambda sql: sql.execute("rollback"),
        lambda sql: sql.execute("release call"),
        lambda sql: sql.commit(),
        lambda sql: sql.rollback(),
        lambda sql: sql.executescript("select 1"),
    ],
)
async def test_a_transaction_cannot_end_the_one_that_others_rows_are_in(file, end):
    """The user's function gets an error; the journal continues."""
    fence = await acquire_run(file)
    file.append("run", fence, make_row(1))

    def broken(sql):
        sql.execute("create table orders (id)")
        end(sql)
        return make_row(2)

    with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
        await file.transact("run", fence, broken)
    assert await row_values(file) == [b"1"]
    await file.call(lambda sql: sql.execute("create table orders (id)"))


async def test_the_same_start_is_the_same_run_and_another_is_refused(file):
    """The error names the difference, but never the inputs."""
    first = await file.start("run", "Order", 1, b"secret-1", "orders")
    assert await file.start("run", "Order", 2, b"secret-1") == first
    assert (first.state, first.queue, first.version, first.rows) == ("pending", "orders", 1, 0)
    with pytest.raises(RunExists, match="it is a Order, not a Report"):
        await file.start("run", "Report", 1, b"secret-1")
    with pytest.raises(RunExists, match="other inputs") as refused:
        await file.start("run", "Order", 1, b"secret-2")
    assert "secret" not in str(refused.value)


async def test_a_run_that_is_not_there_is_said_to_be_missing(file):
    """By each call with a name."""
    for asked in (
        file.run("none"),
        file.rows("none"),
        file.acquire("none", "me"),
        file.letters("none"),
        file.post("none", "signal", "x", b""),
        file.fork("none", 1, "new"),
    ):
        with pytest.raises(RunNotFound, match="no run 'none'"):
            await asked


async def test_a_claim_gives_all_rows_and_numbers_go_on(file):
    """Each acquisition has a higher fence; an append with an old one raises at once."""
    fence = await acquire_run(file)
    file.append("run", fence, make_row(1))
    await file.release("run", fence, "suspended")
    with pytest.raises(LeaseLost):
        file.append("run", fence, make_row(2))
    run, rows = await file.acquire("run", "next")
    assert (run.fence, run.owner, run.state, run.rows) == (fence + 1, "next", "running", 1)
    assert [each.value for each in rows] == [b"1"]
    with pytest.raises(LeaseLost):
        file.append("run", fence, make_row(2))
    assert file.append("run", run.fence, make_row(2)) == 2
    await file.barrier("run", run.fence)


async def test_a_release_writes_what_was_appended_and_the_end(file):
    """State, error and rows are one commit; after it the run can be acquired."""
    fence = await acquire_run(file)
    file.append("run", fence, make_row(1))
    release = asyncio.ensure_future(file.release("run", fence, "failed", b"why"))
    await asyncio.sleep(0)
    with pytest.raises(LeaseLost):
        file.append("run", fence, make_row(2))  # it would come after the release
    await release
    run = await file.run("run")
    assert (run.state, run.error, run.owner, run.rows) == ("failed", b"why", "", 1)
    with pytest.raises(LeaseLost):
        await file.release("run", fence, "completed")


@pytest.mark.parametrize("kind", ["file", "memory"])
async def test_a_run_has_one_owner_in_a_process(tmp_path, kind):
    """Two journals of one process exclude each other too, and one excludes itself."""
    path = tmp_path / "runs.db" if kind == "file" else ":memory:"
    async with open_journal(path) as file:
        fence = await acquire_run(file)
        with pytest.raises(RunBusy, match=r"journal of this process"):
            await file.acquire("run", "me")
        if kind == "file":
            async with open_journal(path) as other:
                with pytest.raises(RunBusy, match=r"journal of this process \(\d+\) since 20") as e:
                    await other.acquire("run", "me")
                assert e.value.since == pytest.approx(time.time(), abs=60)
                await file.release("run", fence, "suspended")
                run, _ = await other.acquire("run", "other")
                assert run.fence == fence + 1


async def test_closing_frees_the_runs_and_leaves_no_lock(tmp_path):
    """The next acquisition counts it as left by an owner that died."""
    async with open_journal(tmp_path / "runs.db") as file:
        await acquire_run(file)
    assert list((tmp_path / "runs.db-locks").iterdir()) == []
    async with open_journal(tmp_path / "runs.db") as file:
        run, _ = await file.acquire("run", "next")
        assert run.recoveries == 1


async def test_recoveries_count_owners_that_died_without_a_new_row(tmp_path):
    """A new row resets the count; a released run does not count."""
    counts = []
    for event in ("dies", "dies", "rows", "dies", "given back", "dies", "end"):
        async with open_journal(tmp_path / "runs.db") as file:
            await file.start("run", "Order", 1, b"")
            run, _ = await file.acquire("run", "x")
            counts.append(run.recoveries)
            if event == "rows":
                file.append("run", run.fence, make_row())
            if event == "given back":
                await file.release("run", run.fence, "suspended")
    assert counts == [0, 1, 2, 0, 1, 1, 2]


async def test_rows_that_each_life_may_add_again_are_no_new_ones(tmp_path):
    """Partial replies and effects that do not end do not count: the run is parked."""
    counts = []
    for kind in ("intent", "partial", "intent", "withdrawn", "ended", "gave", "partial", "end"):
        async with open_journal(tmp_path / "runs.db") as file:
            await file.start("run", "Order", 1, b"")
            run, _ = await file.acquire("run", "x")
            counts.append(run.recoveries)
            for _ in range(3):
                file.append("run", run.fence, make_row()._replace(kind=kind))
    assert counts == [0, 1, 2, 3, 4, 5, 0, 1]


async def test_a_claim_that_nobody_awaits_any_more_is_given_back(tmp_path):
    """Whenever the wait was cancelled, the next owner can acquire the run."""
    async with open_journal(tmp_path / "runs.db") as file:
        await file.start("run", "Order", 1, b"")
        for _ in range(5):
            claim = asyncio.ensure_future(file.acquire("run", "x"))
            await asyncio.sleep(0)
            claim.cancel()
            with pytest.raises(asyncio.CancelledError):
                await claim
            run, _ = await file.acquire("run", "y")
            await file.release("run", run.fence, "suspended")


async def test_a_stale_fence_writes_nothing_and_harms_nobody_else(tmp_path):
    """Its appends, barriers, transactions and release raise `LeaseLost`; others can write."""
    async with open_journal(tmp_path / "runs.db") as file:
        old, good = await acquire_run(file, "old"), await acquire_run(file, "good")
        file.append("old", old, make_row(1))
        await file.barrier("old", old)
        await file.call(
            lambda sql: sql.execute("update anabranch_run set fence = 9 where run_id = 'old'")
        )
        file.append("old", old, make_row(2))
        file.append("good", good, make_row(3))
        results = await asyncio.gather(
            file.barrier("old", old),
            file.transact("old", old, lambda sql: make_row(4)),
            file.release("old", old, "completed"),
            file.barrier("good", good),
            file.barrier(),
            return_exceptions=True,
        )
        assert [type(each) for each in results[:3]] == [LeaseLost] * 3
        assert results[3:] == [None, None]
        with pytest.raises(LeaseLost):
            file.append("old", old, make_row(5))
        assert await row_values(file, "old") == [b"1"]
        assert await row_values(file, "good") == [b"3"]
        assert (await file.run("old")).state == "running"


async def test_a_barrier_of_a_run_asks_for_the_fence_also_when_there_is_nothing_to_write(tmp_path):
    """So that it can be the last check before an effect."""
    async with (
        open_journal(tmp_path / "runs.db") as file,
        open_journal(tmp_path / "runs.db") as other,
    ):
        fence = await acquire_run(file)
        await file.barrier("run", fence)
        await other.call(lambda sql: sql.execute("update anabranch_run set fence = fence + 1"))
        with pytest.raises(LeaseLost):
            await file.barrier("run", fence)
        with pytest.raises(LeaseLost):
            file.append("run", fence, make_row())  # at once from then on


async def test_runs_are_found_by_state_and_by_the_beginning_of_their_names(file):
    """The newest first; `%`, `_` and `*` have no special meaning."""
    for name in ("a-1", "a-2", "b%", "b_1", "b*"):
        await file.start(name, "Order", 1, b"")
    await file.acquire("a-2", "me")
    assert [run.run_id for run in await file.runs()] == ["b*", "b_1", "b%", "a-2", "a-1"]
    assert [run.run_id for run in await file.runs(limit=2)] == ["b*", "b_1"]
    assert [run.run_id for run in await file.runs(state="running")] == ["a-2"]
    assert [run.run_id for run in await file.runs(prefix="b%")] == ["b%"]
    assert [run.run_id for run in await file.runs("pending", "a", 5)] == ["a-1"]


async def test_mail_is_kept_in_its_order(file):
    """Also before the run reads them; the number says how far a reader has read."""
    for name in ("run", "other"):
        await file.start(name, "Order", 1, b"")
    first = await file.post("run", "signal", "feedback", b"fine")
    await file.post("other", "signal", "feedback", b"no")
    second = await file.post("run", "cancel", "", b"x" * 100_000)
    mail = await file.letters("run")
    assert [each[:4] for each in mail] == [
        (first, "signal", "feedback", b"fine"),
        (second, "cancel", "", b"x" * 100_000),
    ]
    assert await file.letters("run", after=first) == mail[1:]


async def test_a_watch_ends_at_a_post_here_for_everybody(file):
    """At once, also for a post before the watch."""
    await file.start("run", "Order", 1, b"")
    seen = await file.watch()
    watchers = [asyncio.ensure_future(file.watch(seen)) for _ in range(3)]
    await file.barrier()
    await file.post("run", "signal", "a", b"")
    async with asyncio.timeout(10):
        assert {seen} != set(await asyncio.gather(*watchers)) == {await file.watch(seen)}


async def test_a_watch_ends_when_another_journal_writes(tmp_path):
    """It polls several times per second."""
    async with (
        open_journal(tmp_path / "runs.db") as file,
        open_journal(tmp_path / "runs.db") as other,
    ):
        await file.start("run", "Order", 1, b"")
        seen = await other.watch()
        watcher = asyncio.ensure_future(other.watch(seen))
        await file.post("run", "signal", "a", b"")
        async with asyncio.timeout(10):
            assert await watcher != seen
        assert [each.name for each in await other.letters("run")] == ["a"]


async def test_a_fork_has_the_rows_up_to_a_point(file):
    """With their times and large values; then both continue independently."""
    fence = await acquire_run(file)
    for value in (b"1", b"2" * 100_000, b"3"):
        file.append("run", fence, make_row(value))
    new = await file.fork("run", 2, "new")
    assert (new.state, new.rows, new.class_name, new.inputs) == ("pending", 2, "Order", b"{}")
    assert await file.rows("new") == (await file.rows("run"))[:2]
    run, _ = await file.acquire("new", "x")
    assert file.append("new", run.fence, make_row(b"other")) == 3
    assert await row_values(file, "new") == [b"1", b"2" * 100_000, b"other"]
    assert await row_values(file) == [b"1", b"2" * 100_000, b"3"]
    with pytest.raises(RunExists):
        await file.fork("run", 2, "new")


async def test_a_purge_takes_what_ended_before_a_time_and_nothing_else(file):
    """Their rows, letters and large values, except values that other runs have."""
    shared, own = b"s" * 70_000, b"o" * 70_000
    for name in ("live", "done-1", "done-2", "done-3"):
        fence = await acquire_run(file, name)
        file.append(name, fence, make_row(shared))
        await file.post(name, "signal", "x", b"")
        if name != "live":
            file.append(name, fence, make_row(own))
            await file.release(name, fence, "completed")
    assert await file.purge(0) == 0
    assert await file.purge(time.time() + 1) == 3
    assert [run.run_id for run in await file.runs()] == ["live"]
    assert await row_values(file, "live") == [shared]
    for table, left in (("row", 1), ("blob", 1), ("mail", 1)):
        count = f"select count(*) from anabranch_{table}"
        assert await file.call(lambda sql, count=count: sql.execute(count).fetchone()) == (left,)


async def test_closing_writes_what_was_appended_and_is_harmless_twice(tmp_path):
    """Later calls say that it is closed; SQLite's other files are removed."""
    file = JournalFile(str(tmp_path / "runs.db"))
    await file.close()
    await file.open()
    fence = await acquire_run(file)
    for number in range(100):
        file.append("run", fence, make_row(number))
    await asyncio.gather(file.close(), file.close())
    await file.close()
    with pytest.raises(LeaseLost):
        file.append("run", fence, make_row())
    for asked in (file.barrier(), file.runs(), file.watch()):
        with pytest.raises(JournalError, match="is closed"):
            await asked
    assert {each.name for each in tmp_path.iterdir()} == {"runs.db", "runs.db-locks"}
    async with open_journal(tmp_path / "runs.db") as file:
        assert len(await row_values(file)) == 100


async def test_a_row_says_what_it_is():
    """Its number and time are set by the file."""
    assert Row(IDENT, "result", b"") == (IDENT, "result", b"", 0, 0.0)
