"""D9, D10, D12: times, signals, attempts and transactions continue after restarts."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.killed_executions import Kill, kill_everywhere, run_execution
from support.memory_journal import RUN_ID, act

from anabranch import messages
from anabranch.commander import ConfigurationError, Retry, charge, run
from anabranch.commander.durable import scope_here
from anabranch.handlers import handler
from anabranch.store import Durable, Journal

pytestmark = pytest.mark.contract("D9")


class Sleeps(Durable[list[Any]]):
    async def task(self) -> list[Any]:
        began = self.durable.now()
        await act("a")
        await self.durable.sleep(days=3)
        await act("b")
        draws = [self.durable.random()]
        return [began.isoformat(), draws, (self.durable.now() - began).days]


def test_times_and_numbers_are_those_of_the_first_life() -> None:
    """A sleep has an absolute end; a random number is drawn once."""
    first = kill_everywhere(
        Sleeps, check=lambda execution: _slept(execution.disk.now - first_began)
    )
    assert first.result[2] == 3


first_began = 1_700_000_000.0


def _slept(seconds: float) -> None:
    assert 3 * 86400 <= seconds < 3 * 86400 + 60


class Tries(Durable[list[Any]]):
    async def task(self) -> list[Any]:
        began = self.durable.now()
        retry = Retry(attempts=4, on=KeyError, backoff=50, factor=1, jitter=0)
        found = await self.call_handler(fails_three_times(), retry=retry)
        total = self.commander.usage(self)["m"]
        return [found, (self.durable.now() - began).seconds // 50, total.input_tokens]


@handler
async def fails_three_times(node: Any) -> int:
    attempt = scope_here().attempt  # type: ignore[union-attr]
    charge("m", messages.Usage(input_tokens=10))
    await act("try", attempt)
    if attempt < 4:
        raise KeyError(attempt)
    return attempt


def test_attempts_their_pauses_and_their_cost_go_on() -> None:
    """Four attempts in all, 50 s apart, after any kills; the usage of each counts once."""
    first = kill_everywhere(Tries)
    assert first.result == [4, 3, 40]


class Waits(Durable[str]):
    seconds: float

    async def task(self) -> str:
        await act("before")
        await self.durable.sleep(self.seconds)
        return await act("after")


@pytest.mark.parametrize("seconds", [10, 1000])
def test_a_run_s_timeout_counts_all_lives_together(seconds: float) -> None:
    """Passed again, it continues; a run that has failed because of it stays failed."""
    first = run_execution(lambda: Waits(seconds), timeout=100)
    assert first.disk.now - first_began == pytest.approx(min(seconds, 100), abs=1)
    assert first.state == ("completed" if seconds < 100 else "failed")
    for rows in range(len(first.rows) + 1):
        left = Kill(rows, frozenset()).of(first)
        again = run_execution(lambda: Waits(seconds), left, timeout=100)
        assert (again.outcome, again.state) == (first.outcome, first.state)


async def test_what_is_no_timeout_or_limit_of_a_run_is_refused_before_it_starts() -> None:
    """No run is created in the journal."""
    async with Journal(":memory:") as journal:
        for wrong in ({"timeout": "10"}, {"limits": 10}):
            with pytest.raises(TypeError, match=f"{next(iter(wrong))} must be"):
                await journal.run(Waits(1), run_id=RUN_ID, **wrong)  # type: ignore[arg-type]
        assert await journal.runs() == []


def test_run_with_a_journal_has_a_timeout() -> None:
    """The journal records the failure."""
    with pytest.raises(TimeoutError):
        run(Asks(), timeout=0.05, journal=":memory:", run_id=RUN_ID)


class Asks(Durable[list[Any]]):
    timeout: float | None = None

    async def task(self) -> list[Any]:
        found: list[Any] = [await self.durable.signal("word", str) for _ in range(2)]
        await act("between", found)
        try:
            found.append(await self.durable.signal("number", int, timeout=self.timeout))
        except TimeoutError:
            found.append("late")
        return found


async def send(journal: Journal) -> None:
    await asyncio.sleep(0)
    await journal.signal(RUN_ID, "word", "one")
    await asyncio.sleep(20)
    await journal.signal(RUN_ID, "word", "two")
    await journal.signal(RUN_ID, "word", "three")
    await asyncio.sleep(20)
    await journal.signal(RUN_ID, "number", 7)


@pytest.mark.parametrize(("timeout", "third"), [(None, 7), (30.0, 7), (10.0, "late")])
def test_signals_are_kept_and_taken_once_in_order(timeout: float | None, third: object) -> None:
    """After every kill: earlier signals are there, and late ones stay late."""
    first = run_execution(lambda: Asks(timeout), beside=send)
    assert first.result == ["one", "two", third]
    for rows in range(len(first.rows) + 1):
        disk = Kill(rows, frozenset()).of(first)
        disk.now = first.disk.now  # all had been sent by then
        execution = run_execution(lambda: Asks(timeout), disk)
        assert execution.result == first.result


class Moves(Durable[list[Any]]):
    fails: bool = False

    async def task(self) -> list[Any]:
        async with self.durable.transaction() as tx:
            await tx.execute("create table if not exists account (name text, cents int)")
            await tx.execute("insert into account values (?, ?)", "a", 100)
        await act("between")
        try:
            async with self.durable.transaction() as tx:
                await tx.execute("update account set cents = cents - 30")
                if self.fails:
                    raise ValueError("no")
        except ValueError:
            pass
        async with self.durable.transaction() as tx:
            return await tx.execute("select name, cents from account")


@pytest.mark.parametrize("fails", [False, True])
def test_a_transaction_is_done_once_with_its_row_or_not_at_all(fails: bool) -> None:
    """A kill is before or after it; the database matches the rows."""
    first = run_execution(lambda: Moves(fails))
    assert first.error is None
    assert first.result == [["a", 100 if fails else 70]]
    again = run_execution(lambda: Moves(fails), Kill(len(first.rows), frozenset()).of(first))
    assert again.outcome == first.outcome
    last = [row.seq for row in first.rows if row.kind == "transaction"][-1]
    again = run_execution(lambda: Moves(fails), Kill(last, frozenset()).of(first))
    assert again.outcome == first.outcome


class Inserts(Durable[int]):
    async def task(self) -> int:
        async with self.durable.transaction() as tx:
            await tx.execute("create table mine (name text)")
            await tx.execute("insert into mine values (?)", await self.durable_name())
        if not STOPPED:
            STOPPED.append(True)
            raise KeyboardInterrupt
        return 1

    async def durable_name(self) -> str:
        return "x"


STOPPED: list[bool] = []


def test_a_transaction_stands_in_the_journals_own_file(tmp_path: Path) -> None:
    """It is executed once; the second execution, which would fail, does not repeat it."""
    name = str(tmp_path / "runs.db")
    with pytest.raises(KeyboardInterrupt):
        run(Inserts(), journal=name, run_id="r")
    assert run(Inserts(), journal=name, run_id="r") == 1
    with closing(sqlite3.connect(name)) as connection:
        assert connection.execute("select * from mine").fetchall() == [("x",)]


class Inside(Durable[str]):
    what: str

    async def task(self) -> str:
        async with self.durable.transaction():
            if self.what == "effect":
                await act("x")
            elif self.what == "step":
                await self.durable.step(len, "abc")
            elif self.what == "sleep":
                await self.durable.sleep(1)
            elif self.what == "signal":
                await self.durable.signal("x")
            elif self.what == "transaction":
                async with self.durable.transaction():
                    pass
            else:
                await Inside("")
        return ""


@pytest.mark.parametrize("what", ["effect", "step", "sleep", "signal", "transaction", "node"])
def test_nothing_else_stands_in_a_transaction(what: str) -> None:
    """It is refused, and the transaction is rolled back."""
    execution = run_execution(lambda: Inside(what))
    assert isinstance(execution.error, ConfigurationError)
    assert "one commit" in str(execution.error)
    assert not [row for row in execution.rows if row.kind == "transaction"]
