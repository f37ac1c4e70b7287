"""Any sequence of appends, barriers, calls and crashes of the thread, against a model."""

import asyncio
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.failing_disk import FailingDisk
from support.journal_file import make_row, open_journal
from support.seeds import example_count

from anabranch.store._journal_file import JournalFile
from anabranch.store.errors import JournalError, LeaseLost

pytestmark = pytest.mark.contract("D2")

RUNS = ["a", "b"]
QUICK = "/dev/shm" if os.path.isdir("/dev/shm") else None  # where a sync is free
run_ids = st.sampled_from(RUNS)
steps = st.one_of(
    st.tuples(
        st.just("append"), run_ids, st.sampled_from([1, 2, 50]), st.sampled_from([3, 70_000])
    ),
    st.tuples(st.just("barrier"), run_ids),
    st.tuples(st.just("several"), st.integers(1, 5)),
    st.tuples(st.just("call"), st.booleans()),
    st.tuples(st.just("transact"), run_ids, st.booleans()),
    st.tuples(st.just("steal"), run_ids),
    st.tuples(st.just("release"), run_ids),
    st.tuples(st.just("turn")),
)
# The steps of an execution, and the statement at which the disk fails, if it does.
lives = st.lists(
    st.tuples(
        st.lists(steps, max_size=12), st.none() | st.tuples(st.integers(0, 15), st.booleans())
    ),
    min_size=1,
    max_size=3,
)


class Model:
    """The appended rows in order, and how many of them must survive."""

    def __init__(self) -> None:
        self.appended: dict[str, list[tuple[int, bytes]]] = {run: [] for run in RUNS}
        self.safe: dict[str, int] = dict.fromkeys(RUNS, 0)  # rows before a barrier that returned
        self.next: dict[str, int] = {}  # the number of the next row
        self.fences: dict[str, int] = {}
        self.number = 0
        self.calls = 0  # that returned

    def sure(self, *runs: str) -> None:
        for run in runs:
            self.safe[run] = len(self.appended[run])

    async def append(self, file: JournalFile, run: str, count: int, size: int) -> None:
        for _ in range(count):
            self.number += 1
            value = b"%d" % self.number + bytes(size)
            try:
                seq = file.append(run, self.fences[run], make_row(value))
            except LeaseLost:
                assert run not in self.owned
                return
            assert seq == self.next[run]
            self.next[run] += 1
            self.appended[run].append((seq, value))

    async def turn(self, file: JournalFile) -> None:
        await asyncio.sleep(0)

    async def barrier(self, file: JournalFile, run: str) -> None:
        try:
            await file.barrier(run, self.fences[run])
        except LeaseLost:
            assert run not in self.owned
        else:
            assert run in self.owned
            self.sure(*self.owned)

    async def several(self, file: JournalFile, count: int) -> None:
        await asyncio.gather(*(file.barrier() for _ in range(count)))
        self.sure(*self.owned)

    async def call(self, file: JournalFile, well: bool) -> None:
        def change(sql):
            sql.execute("insert into changes values (1)")
            if not well:
                raise KeyError("taken back")

        try:
            await file.call(change)
            self.calls += 1
        except KeyError:
            assert not well
        self.sure(*self.owned)

    async def transact(self, file: JournalFile, run: str, well: bool) -> None:
        value = b"transaction"

        def change(sql):
            sql.execute("insert into changes values (1)")
            if not well:
                raise KeyError("taken back")
            return make_row(value)

        before = list(self.appended[run])
        if well and run in self.owned:  # if the thread fails, the row may be there or not
            self.appended[run].append((self.next[run], value))
        self.next[run] += 1
        try:
            seq = await file.transact(run, self.fences[run], change)
        except KeyError:
            assert not well
        except LeaseLost:
            assert run not in self.owned
            return
        else:
            self.calls += 1
            assert self.appended[run] == [*before, (seq, value)]
        self.sure(*self.owned)

    async def steal(self, file: JournalFile, run: str) -> None:
        """Give the run another owner: later appends are not written."""
        await file.barrier()
        self.sure(*self.owned)
        self.owned.discard(run)
        await file.call(
            lambda sql: sql.execute(
                "update anabranch_run set fence = fence + 1 where run_id = ?", run
            )
        )
        with pytest.raises(LeaseLost):
            await file.barrier(run, self.fences[run])

    async def release(self, file: JournalFile, run: str) -> None:
        try:
            await file.release(run, self.fences[run], "suspended")
        except LeaseLost:
            assert run not in self.owned
        self.sure(*self.owned)
        self.owned.discard(run)

    async def take_up(self, file: JournalFile) -> None:
        """Check the surviving rows, and continue after them."""
        self.owned = set(RUNS)
        for run in RUNS:
            await file.start(run, "Order", 1, b"")
            claimed, rows = await file.acquire(run, "x")
            survived = [(each.seq, each.value) for each in rows]
            assert survived == self.appended[run][: len(survived)]
            assert len(survived) >= self.safe[run]
            assert claimed.fence > self.fences.get(run, 0)
            self.appended[run], self.fences[run] = survived, claimed.fence
            self.next[run] = claimed.rows + 1
            self.sure(run)
        await file.call(lambda sql: sql.execute("create table if not exists changes (one)"))
        (changes,) = await file.call(
            lambda sql: sql.execute("select count(*) from changes").fetchone()
        )
        assert changes >= self.calls
        self.calls = changes


@settings(max_examples=example_count(60, 1000))
@given(lives=lives)
def test_what_was_promised_is_there_after_any_death(lives):
    """The rows of each run are a prefix of the appends; a barrier that returned holds."""

    async def play(path: Path, patch: pytest.MonkeyPatch) -> None:
        model, disk = Model(), FailingDisk(patch)
        for plan, death in lives:
            try:
                async with asyncio.timeout(60), open_journal(path) as file:
                    await model.take_up(file)
                    if death is not None:
                        disk.fail_after(death[0], done=death[1])
                    for what, *how in plan:
                        await getattr(model, what)(file, *how)
            except JournalError:
                assert death is not None
            disk.mend()
        async with open_journal(path) as file:
            await model.take_up(file)

    with tempfile.TemporaryDirectory(dir=QUICK) as folder, pytest.MonkeyPatch.context() as patch:
        asyncio.run(play(Path(folder) / "runs.db", patch))
