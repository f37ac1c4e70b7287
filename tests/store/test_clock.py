"""D10: the `timeout=` of a node counts the time for which its run has had an owner."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from support.killed_executions import (
    Execution,
    Kill,
    effects_in_doubt,
    kill_everywhere,
    run_execution,
)
from support.memory_journal import (
    RUN_ID,
    Disk,
    MemoryFile,
    act,
    current_disk,
    journal_of,
    use_disk_clock,
)

from anabranch.commander import Node, Retry
from anabranch.commander.durable import scope_here
from anabranch.handlers import handler
from anabranch.store import Durable, Journal
from anabranch.store._journal_file import JournalFile, Row
from anabranch.testing import run_seeded

pytestmark = pytest.mark.contract("D10")

DAY = 86400.0
USED: list[float] = []


class Works(Durable[str]):
    """Works in pieces of 20 s; each leaves a row."""

    pieces: int

    async def task(self) -> str:
        return await work(self.pieces)


async def work(pieces: int) -> str:
    began = asyncio.get_running_loop().time()
    try:
        for piece in range(pieces):
            await act("begins", piece)
            await asyncio.sleep(20)
            await act("ended", piece)
    finally:
        USED.append(asyncio.get_running_loop().time() - began)
    return "worked"


@handler
async def works(node: Node[Any], pieces: int) -> str:
    return await work(pieces)


class Limits(Durable[list[Any]]):
    """Gives a node 100 s in each of one or two attempts."""

    kept: bool
    attempts: int = 1
    pieces: int = 30

    async def task(self) -> list[Any]:
        retry = Retry(attempts=self.attempts, on=TimeoutError, jitter=0, backoff=30)
        options: dict[str, Any] = {"timeout": 100, "claim": True}
        if self.attempts > 1:
            options["retry"] = retry
        try:
            if self.kept:
                return [await self.put_job(Works(self.pieces), **options)]
            return [await self.call_handler(works(self.pieces), **options)]
        except TimeoutError as error:
            return [str(error)]


@pytest.mark.parametrize("attempts", [1, 2])
@pytest.mark.parametrize("kept", [True, False])
def test_each_second_that_is_known_counts_once(kept: bool, attempts: int) -> None:
    """Killed after any row, and resumed a day later, a node has the rest of its 100 s."""

    def check(execution: Execution) -> None:
        rows = execution.rows[: execution.before]
        begun = [row for row in rows if row.kind == "began"]
        failed = [row for row in rows if row.kind == "aborted"]
        left = [100.0] * (attempts - len(begun))
        if len(begun) > len(failed):
            left.insert(0, 100 - (rows[-1].time - begun[-1].time))
        assert [pytest.approx(each, abs=1e-3) for each in left if each > 0] == USED
        USED.clear()

    USED.clear()
    first = run_execution(lambda: Limits(kept, attempts))
    assert "not done within 100 s" in first.result[0]
    assert [pytest.approx(100)] * attempts == USED
    USED.clear()
    make = lambda: Limits(kept, attempts)  # noqa: E731
    kill_everywhere(make, away=DAY, check=check, first=first, same_effects=False)


class Quiet(Durable[str]):
    """Works for 70 s without a row."""

    async def task(self) -> str:
        return await quiet_work()


async def quiet_work() -> str:
    began = asyncio.get_running_loop().time()
    try:
        await asyncio.sleep(70)
    finally:
        USED.append(asyncio.get_running_loop().time() - began)
    return "worked"


@handler
async def quiet(node: Node[Any]) -> str:
    return await quiet_work()


class Long(Durable[list[str]]):
    kept: bool = True

    async def task(self) -> list[str]:
        first: Node[str] = (
            self.put_job(Quiet(), timeout=100)
            if self.kept
            else self.call_handler(quiet(), timeout=100)
        )
        found = [await first]
        await self.durable.sleep(days=3)
        return [*found, await self.put_job(Quiet(), timeout=100)]


@pytest.mark.parametrize("kept", [True, False])
def test_what_had_ended_in_time_is_late_in_no_later_life(kept: bool) -> None:
    """A plain node that had ended runs again in each execution, with its whole timeout."""
    first = kill_everywhere(lambda: Long(kept), away=DAY)
    assert first.result == ["worked", "worked"]


def leave_after(seconds: float, disk: Disk) -> None:
    """Let a process own the run for some time, then suspend it; a day passes."""

    async def main() -> None:
        with use_disk_clock(disk):
            async with journal_of(disk) as journal:
                running = asyncio.create_task(journal.run(Long(), run_id=RUN_ID))
                await asyncio.sleep(seconds)
                running.cancel()
                await asyncio.wait([running])

    run_seeded(main)
    disk.now += DAY


def test_lives_that_were_suspended_count_up_to_their_end() -> None:
    """Also without a row since the node began; all executions count."""
    disk = Disk()
    leave_after(40, disk)
    leave_after(50, disk)
    USED.clear()
    execution = run_execution(Long, disk)
    assert "not done within 100 s" in str(execution.error)
    assert [pytest.approx(10, abs=1e-3)] == USED


def test_what_is_resumed_has_all_of_its_time() -> None:
    """A node that was late in an earlier execution gets its whole timeout again."""
    disk = Disk()
    for _ in range(2):
        leave_after(60, disk)
    assert isinstance(run_execution(Long, disk.cut(1000, {})).error, TimeoutError)

    async def resume() -> None:
        with use_disk_clock(disk):
            async with journal_of(disk) as journal:
                await journal.resume(RUN_ID)

    run_seeded(resume)
    assert run_execution(Long, disk).result == ["worked", "worked"]


async def test_a_file_knows_how_long_a_run_had_an_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to the release, or the last row of an owner that died; a fork continues from its row."""
    now = 1000.0
    monkeypatch.setattr(time, "time", lambda: now)

    async def live(seconds: float, *, release: bool) -> float:
        nonlocal now
        file = JournalFile(str(tmp_path / "runs.db"))
        await file.open()
        await file.start("r", "C", 1, b"{}")
        run, _ = await file.acquire("r", "me")
        now += seconds
        value = b'{"clock": %f}' % (run.clock + seconds)
        file.append("r", run.fence, Row(bytes(16), "began", value))
        now += 3
        if release:
            await file.release("r", run.fence, "suspended")
        await file.close()
        now += DAY
        return run.clock

    assert [await live(5, release=True) for _ in range(3)] == [0, 8, 16]
    assert [await live(5, release=False) for _ in range(3)] == [24, 29, 34]
    async with Journal(str(tmp_path / "runs.db")) as journal:
        assert (await journal.fork("r", "f", at=3)).clock == 21
        assert (await journal.fork("r", "g", at=0)).clock == 0


class Sends(Durable[list[Any]]):
    """Has 100 s to send for 70 s, while another node runs."""

    async def task(self) -> list[Any]:
        jobs = [self.call_handler(sends()), self.call_handler(acts())]
        return [await job for job in jobs]


@handler
async def sends(node: Node[Any]) -> str:
    effect = scope_here().effect("send", {})  # type: ignore[union-attr]
    return await effect.do(lambda: asyncio.sleep(70, "sent"), again=True, timeout=100)


@handler
async def acts(node: Node[Any]) -> str:
    await asyncio.sleep(60)
    return await act("beside")


def test_what_is_sent_again_has_all_of_its_time() -> None:
    """A call in doubt that is repeated is a new call: the time of the old one does not count."""
    assert kill_everywhere(Sends, away=DAY).result[0] == "sent"


class Repeats(Durable[float]):
    """Tries twice with a pause of 50 s, works for 20 s, and reconciles after 60 s."""

    async def task(self) -> float:
        retry = Retry(attempts=2, on=KeyError, backoff=50, jitter=0)
        await self.call_handler(fails_once(), retry=retry)
        await self.call_handler(quiet(), timeout=100)
        effect = scope_here().effect("send", {})  # type: ignore[union-attr]

        async def send() -> str:
            return current_disk().do(effect.key, "send")

        async def was_sent(key: str) -> str | bool:
            return current_disk().done.get(key, False)

        await effect.do(send, reconcile=was_sent, horizon=60)
        return asyncio.get_running_loop().time()


@handler
async def fails_once(node: Node[Any]) -> None:
    if scope_here().attempt == 1:  # type: ignore[union-attr]
        raise KeyError


def test_a_wall_clock_that_is_set_back_makes_nothing_wait_longer() -> None:
    """Pauses and reconciliation are late by their own length at most."""
    first = run_execution(Repeats)
    assert first.result == 120
    for rows in range(len(first.rows)):
        for done in {frozenset[str](), frozenset(effects_in_doubt(first, rows))}:
            left = Kill(rows, done).of(first)
            left.now -= DAY
            execution = run_execution(Repeats, left)
            assert execution.error is None
            assert execution.result is None or execution.result <= 120 + 60


def test_a_timeout_is_never_longer_than_it_was_said_to_be() -> None:
    """Also if the wall clock was set back after the node began."""
    first = run_execution(lambda: Limits(False))
    began = next(row.seq for row in first.rows if row.kind == "began")
    left = Kill(began, frozenset()).of(first)
    left.runs[RUN_ID] = left.runs[RUN_ID]._replace(clock=-DAY)
    USED.clear()
    run_execution(lambda: Limits(False), left)
    assert [pytest.approx(100)] == USED


class Jumping(MemoryFile):
    """A wall clock that jumps after some number of rows."""

    def __init__(self, disk: Disk, at: int, by: float) -> None:
        super().__init__(disk)
        self._at = at
        self._by = by

    def append(self, run_id: str, fence: int, row: Row) -> int:
        number = super().append(run_id, fence, row)
        if number == self._at:
            now, by = time.time, self._by
            time.time = lambda: now() + by
        return number


@pytest.mark.parametrize("by", [-10 * DAY, -50.0, 3600.0, 100 * DAY])
@pytest.mark.parametrize("kept", [True, False])
def test_setting_the_clock_of_the_wall_changes_no_timeout(kept: bool, by: float) -> None:
    """Forward or back, in an execution that is killed or suspended: a node has its 100 s."""
    make = lambda: Limits(kept)  # noqa: E731
    for at in (2, 5):
        USED.clear()
        first = run_execution(make, file=lambda disk, at=at: Jumping(disk, at, by))
        assert [pytest.approx(100)] == USED
        real = [row.time - by * (row.seq > at) for row in first.rows]
        began = next(row.seq for row in first.rows if row.kind == "began")
        aborted = next(row.seq for row in first.rows if row.kind == "aborted")
        for rows in range(began, aborted):
            USED.clear()
            left = Kill(rows, frozenset(effects_in_doubt(first, rows))).of(first)
            left.now = first.rows[rows - 1].time + DAY
            assert "not done within 100 s" in run_execution(make, left).result[0]
            assert [pytest.approx(100 - (real[rows - 1] - real[began - 1]), abs=1e-3)] == USED


async def test_a_file_goes_by_the_rows_that_say_that_the_clock_was_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For an owner that died; one that releases the run measures the time itself."""
    now = 1000.0
    monkeypatch.setattr(time, "time", lambda: now)
    file = JournalFile(str(tmp_path / "runs.db"))
    await file.open()
    await file.start("r", "C", 1, b"{}")
    run, _ = await file.acquire("r", "me")
    for seconds, kind, value in [
        (4, "began", b"{}"),
        (-500, "clock", b'{"clock": 6}'),
        (3, "x", b""),
    ]:
        now += seconds
        file.append("r", run.fence, Row(bytes(16), kind, value))
    await file.close()
    now += DAY
    await file.open()
    run, _ = await file.acquire("r", "me")
    assert run.clock == 9
    now += DAY
    await file.release("r", run.fence, "suspended", clock=run.clock + 2)
    assert (await file.run("r")).clock == 11
    await file.close()
