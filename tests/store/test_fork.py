"""Forks share rows up to a point and continue alone; a purge removes unshared values."""

import sqlite3
import time
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

import pytest

from anabranch import Message, ToolCall, tool
from anabranch.handlers import respond
from anabranch.store import Durable, Journal, Live, NotDone, effect_key, live
from anabranch.testing import ScriptedBackend

pytestmark = pytest.mark.contract("D22")

DONE: list[str] = []
KEYS: list[str] = []


@tool(effect="keyed")
def charge(cents: int) -> str:
    """Charge."""
    DONE.append(f"charge {cents}")
    KEYS.append(effect_key())
    return "paid"


def not_done(effect_key: str) -> NotDone:
    return NotDone()


@tool(reconcile=not_done, reconcile_after=0)
def mail() -> str:
    """Send a mail."""
    DONE.append("mail")
    return "sent"


def play(request: Any) -> Any:
    done = sum(message.role == "tool" for message in request.messages)
    if done == 2:
        return "All done."
    name = ["charge", "mail"][done]
    call = ToolCall(id=name, name=name, arguments={"cents": 5} if name == "charge" else {})
    return Message(role="assistant", tool_calls=[call])


def large() -> str:
    DONE.append("large")
    return "large " * 20_000


class Part(Durable[int]):
    number: int

    async def task(self) -> int:
        DONE.append(f"part {self.number}")
        return self.number


class Round(Durable[int]):
    number: int

    def __post_init__(self) -> None:
        self.at_end(put_next)

    async def task(self) -> int:
        DONE.append(f"round {self.number}")
        return self.number


def put_next(job: Any) -> None:
    if job.number < 3:
        job.put_job(Round(job.number + 1), parent=job.commander)


class Order(Durable[str]):
    name: str
    backend: Live[ScriptedBackend] = live()

    async def task(self) -> str:
        talk = self.durable.conversation("talk")
        talk.add(f"Handle {self.name}.")
        answer = await self.call_handler(respond(self.backend, talk, [charge, mail]))
        text = await self.durable.step(large)
        parts = [await job for job in [self.put_job(Part(number)) for number in range(3)]]
        return f"{answer.content} {len(text)} {parts} {len(talk)}"


def given() -> dict[str, Any]:
    return {"backend": ScriptedBackend(otherwise=play)}


async def test_a_fork_at_each_row_ends_as_the_run_it_came_from(tmp_path: Path) -> None:
    """It executes the effects after that row once, with new keys, and none before it."""
    async with Journal(tmp_path / "runs.db") as journal:
        gave = await journal.run(Order("A"), run_id="order", live=given())
        whole = [*DONE]
        rows = (await journal.look("order")).rows
        before = len(whole) + 1
        for at in range(len(rows) + 1):
            DONE.clear()
            assert (await journal.fork("order", f"fork-{at}", at=at)).state == "pending"
            assert await journal.take_up(f"fork-{at}", live=given()) == gave
            assert set(DONE) <= set(whole)
            assert len(DONE) == len(set(DONE)) <= before
            before = len(DONE)
            after = (await journal.look(f"fork-{at}")).rows
            assert after[:at] == rows[:at]
        assert not DONE
        assert len(KEYS) == len(set(KEYS)) > 1
        assert (await journal.look("order")).rows == rows


async def test_a_fork_of_a_chain_of_rounds_goes_on_at_its_last_one(tmp_path: Path) -> None:
    """Like a resumed run."""
    async with Journal(tmp_path / "runs.db") as journal:
        DONE.clear()
        await journal.run(Round(1), run_id="rounds")
        whole = ["round 1", "round 2", "round 3"]
        assert whole == DONE
        rows = (await journal.look("rounds")).rows
        for at in range(len(rows) + 1):
            DONE.clear()
            await journal.fork("rounds", f"fork-{at}", at=at)
            await journal.take_up(f"fork-{at}")
            assert whole[3 - len(DONE) :] == DONE
        assert not DONE


class TakenBack(Durable[int]):
    async def task(self) -> int:
        with suppress(KeyError):
            async with self.durable.transaction() as tx:
                await tx.execute("create table mine (name text)")
                raise KeyError
        return await self.durable.step(part)


def part() -> int:
    DONE.append("part")
    return 1


async def test_a_fork_counts_rows_by_their_numbers(tmp_path: Path) -> None:
    """Also if a number is unused, such as that of a rolled-back transaction."""
    async with Journal(tmp_path / "runs.db") as journal:
        await journal.run(TakenBack(), run_id="r")
        view = await journal.look("r")
        last = view.rows[-1].seq
        assert last == view.run.rows > len(view.rows)
        with pytest.raises(ValueError, match=f"at= must be from 0 to {last}"):
            await journal.fork("r", "more", at=last + 1)
        DONE.clear()
        for name, at in ("all", None), ("last", last):
            await journal.fork("r", name, at=at)
            assert (await journal.look(name)).rows == view.rows
            assert await journal.take_up(name) == 1
        assert not DONE


async def test_a_purge_takes_large_values_with_the_last_run_that_has_them(tmp_path: Path) -> None:
    """In any order of the purges; a fork keeps shared values."""
    path = tmp_path / "runs.db"
    async with Journal(path) as journal:
        await journal.run(Order("A"), run_id="order", live=given())
        rows = (await journal.look("order")).rows
        await journal.fork("order", "fork", at=len(rows))
        assert await journal.purge(time.time() + 1) == 1
        assert (await journal.look("fork")).rows == rows
        await journal.take_up("fork", live=given())
        assert await journal.purge(time.time() + 1) == 1
    with sqlite3.connect(path) as raw:
        for table in ("run", "row", "blob", "mail"):
            assert raw.execute(f"select count(*) from anabranch_{table}").fetchone() == (0,)
    raw.close()


async def test_a_name_that_was_purged_begins_anew_with_the_same_keys(tmp_path: Path) -> None:
    """So a receiver that still knows a key repeats nothing."""
    keys: list[list[str]] = []
    async with Journal(tmp_path / "runs.db") as journal:
        for _ in range(2):
            KEYS.clear()
            await journal.run(Order("A"), run_id="order", live=given())
            keys.append([*KEYS])
            assert await journal.purge(time.time() + 1) == 1
    assert keys[0] == keys[1] != []


async def test_a_note_is_read_as_it_was_kept(tmp_path: Path) -> None:
    """Also an infinity, and keys that are not texts."""
    values: list[Any] = [1, "a", None, [1.5, {"b": True}], {"c": inf}, {1: "d"}, {"$dict": 2}]
    async with Journal(tmp_path / "runs.db") as journal:
        async with journal.session("a/s"):
            pass
        for value in values:
            await journal.note("a/s", "kept", value)
        assert await journal.notes("a/s", "kept") == values
        assert await journal.notes("a/s", "other") == []
