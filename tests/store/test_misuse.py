"""A journal that is used wrongly: one clear error with a remedy, and nothing is lost."""

import asyncio
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.journal_file import journal_process
from support.waiting import TIMEOUT_SECONDS

from anabranch import ConfigurationError, NodeCancelled, run, tool
from anabranch.jobs import Job
from anabranch.store import (
    Durable,
    Journal,
    JournalError,
    JournalMismatch,
    Live,
    NotStorable,
    RunBusy,
    RunExists,
    RunNotFound,
    live,
)

pytestmark = pytest.mark.contract("D1")


class Plain(Durable[str]):
    async def task(self) -> str:
        return "ok"


class Needs(Durable[str]):
    number: int = 0
    thing: Live[Any] = live()

    async def task(self) -> str:
        return f"{self.number} {self.thing}"


class Large(Durable[str]):
    async def task(self) -> str:
        RAN.append(1)
        return "x" * (65 << 20)


class Harms(Durable[str]):
    statement: str

    async def task(self) -> str:
        async with self.durable.transaction() as tx:
            await tx.execute(self.statement)
        return "done"


RAN: list[int] = []
ODD = ["", "\n", "a\0b", "a\x1b[31m", "a\ud800", "x" * 1001, None, 5, b"x", True]


@pytest.mark.parametrize("name", ODD, ids=ascii)
async def test_a_name_that_could_not_be_written_or_shown(name: Any, tmp_path: Path) -> None:
    """Refused at the start of a run; other calls find no such run. Nothing is created."""
    async with Journal(tmp_path / "runs.db") as journal:
        await journal.start(Plain(), run_id="5")
        refused = [
            lambda: journal.start(Plain(), run_id=name),
            lambda: journal.run(Plain(), run_id=name),
            lambda: journal.fork("5", name, at=0),
            lambda: journal.signal("5", name),
        ]
        for call in refused:
            with pytest.raises(ConfigurationError, match="must be a text of 1 to 1,000 characters"):
                await call()
        missing = [
            lambda: journal.look(name),
            lambda: journal.signal(name, "x"),
            lambda: journal.cancel(name),
            lambda: journal.resume(name),
            lambda: journal.take_up(name),
            lambda: journal.fork(name, "new", at=0),
        ]
        for call in missing:
            with pytest.raises(RunNotFound):
                await call()
        assert [each.run_id for each in await journal.runs()] == ["5"]


@pytest.mark.parametrize("name", ["../x", " ", "a/b", "\N{GRINNING FACE}", "x" * 1000, "a'b\"c%_"])
async def test_a_name_may_be_any_text(name: str, tmp_path: Path) -> None:
    """It names a run, not a file."""
    async with Journal(tmp_path / "runs.db") as journal:
        assert await journal.run(Plain(), run_id=name) == "ok"
        assert (await journal.look(name)).run.state == "completed"
        assert [each.run_id for each in await journal.runs(prefix=name)] == [name]
    assert {*os.listdir(tmp_path)} <= {"runs.db", "runs.db-locks"}


@pytest.mark.parametrize("journal", [5, b"runs.db", True, ["runs.db"], {}, Journal, None])
def test_a_journal_is_a_name_or_a_path(journal: Any) -> None:
    """Anything else is a `TypeError`, without an event loop."""
    with pytest.raises(TypeError, match="the name of a journal must be a text or a path"):
        Journal(journal)
    if journal is not None:
        with pytest.raises(TypeError, match="the name of a journal must be a text or a path"):
            run(Plain(), journal=journal, run_id="r")


def test_an_address_is_no_file_and_its_password_is_not_said() -> None:
    """Such a journal does not exist yet."""
    with pytest.raises(JournalError, match="name a file of this machine") as error:
        Journal("postgresql://me:secret@server/runs")
    assert "secret" not in f"{error.value} {error.value.journal}"


@pytest.mark.parametrize(
    "options", [{"grace": -1}, {"grace": math.nan}, {"max_recoveries": -1}], ids=str
)
def test_options_of_a_journal_are_checked(options: dict[str, Any]) -> None:
    """In the constructor."""
    with pytest.raises(ValueError, match=f"{next(iter(options))}= must be a number"):
        Journal("runs.db", **options)


def test_run_opens_a_journal_that_is_not_open(tmp_path: Path) -> None:
    """So its options can be set; a path works as well as a name."""
    journal = Journal(tmp_path / "runs.db", grace=1)
    assert run(Plain(), journal=journal, run_id="r") == "ok"
    assert not journal.is_open
    assert run(Plain(), journal=tmp_path / "runs.db", run_id="r") == "ok"


async def test_a_journal_before_after_and_again(tmp_path: Path) -> None:
    """One that is not open says so; a second opening is refused, but not after a close."""
    journal = Journal(tmp_path / "runs.db")
    with pytest.raises(JournalError, match="open it here: async with Journal"):
        await journal.runs()
    async with journal:
        with pytest.raises(JournalError, match="is open already"):
            async with journal:
                pass
        await journal.start(Plain(), run_id="r")
    with pytest.raises(JournalError, match="is closed: open it again"):
        await journal.runs()
    async with journal:
        assert await journal.run(Plain(), run_id="r") == "ok"


async def test_a_journal_belongs_to_the_loop_that_opened_it(tmp_path: Path) -> None:
    """In another loop it raises; another journal of the same file works there."""

    def elsewhere(journal: Journal) -> None:
        with pytest.raises(JournalError, match="open another Journal of this file here"):
            asyncio.run(journal.runs())
        assert run(Plain(), journal=tmp_path / "runs.db", run_id="r") == "ok"

    async with Journal(tmp_path / "runs.db") as journal:
        await asyncio.to_thread(elsewhere, journal)
        assert await journal.run(Plain(), run_id="r") == "ok"


class Hears(Durable[list[str]]):
    async def task(self) -> list[str]:
        return [await self.durable.signal("word", str) for _ in range(4)]


@pytest.mark.parametrize("name", ["runs.db", ":memory:"])
def test_a_journal_hears_what_is_sent_in_each_loop_that_opens_it(name: str, tmp_path: Path) -> None:
    """One loop after the other, as `asyncio.run` creates them: none disturbs the next."""
    journal = Journal(name if name == ":memory:" else tmp_path / name)

    async def letters_of(run_id: str) -> int:
        for _ in range(5):  # then the journal begins to wait for letters
            rows = (await journal.look(run_id)).rows
        return sum(row.kind == "letter" for row in rows)

    async def live(word: str) -> None:
        async with journal:
            await journal.start(Hears(), run_id="r")
            before = await letters_of("r")
            running = asyncio.create_task(journal.run(Hears(), run_id="r"))
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while not await journal.runs("running"):
                    pass
                await letters_of("r")
                await journal.signal("r", "word", word)
                while await letters_of("r") == before:
                    pass
        await asyncio.wait([running])
        assert isinstance(running.exception(), NodeCancelled)  # it is suspended

    for word in "abc":
        asyncio.run(live(word))


@pytest.mark.parametrize("given", [5, "thing", [("thing", 1)]])
async def test_what_is_wrong_with_live_leaves_the_run_free(given: Any, tmp_path: Path) -> None:
    """After that the run is free, and can be resumed."""
    async with Journal(tmp_path / "runs.db") as journal:
        with pytest.raises(TypeError, match="live= must be a dict"):
            await journal.run(Needs(), run_id="r", live=given)
        with pytest.raises(ConfigurationError, match=r"Needs.thing is missing"):
            await journal.run(Needs(), run_id="r", live={"number": 5})
        assert await journal.run(Needs(), run_id="r", live={"thing": 1, "other": 2}) == "0 1"


@pytest.mark.parametrize("before", ["2026-01-01", None, math.nan])
async def test_a_purge_needs_a_time(before: Any, tmp_path: Path) -> None:
    """SQLite sorts a text after all numbers, and would remove everything."""
    async with Journal(tmp_path / "runs.db") as journal:
        await journal.run(Plain(), run_id="r")
        with pytest.raises(TypeError, match=r"as time\.time\(\) returns it"):
            await journal.purge(before)
        with pytest.raises(ValueError, match="not 'over'"):
            await journal.runs("over")
        with pytest.raises(ValueError, match="limit= must be a number"):
            await journal.runs(limit=-1)
        assert len(await journal.runs()) == 1


async def test_a_result_that_is_too_large_is_a_failure_that_is_kept(tmp_path: Path) -> None:
    """It is not repeated forever."""
    RAN.clear()
    for _ in range(2):
        async with Journal(tmp_path / "runs.db") as journal:
            with pytest.raises(NotStorable, match="too large for a journal"):
                await journal.run(Large(), run_id="r")
            assert (await journal.look("r")).run.state == "failed"
    assert len(RAN) == 1


@pytest.mark.parametrize(
    "statement",
    [
        "drop table anabranch_row",
        "delete from anabranch_run",
        "update ANABRANCH_run set fence = 9",
        "insert into anabranch_mail select * from anabranch_mail",
        "create trigger t after insert on anabranch_row begin select 1; end",
        "create index i on anabranch_row (kind)",
        "alter table anabranch_row rename to x",
        "pragma user_version = 99",
        "pragma writable_schema = 1",
        "attach 'x.db' as x",
    ],
)
async def test_a_transaction_cannot_harm_the_journal(statement: str, tmp_path: Path) -> None:
    """The journal's tables are read-only there, and the file's settings cannot be changed."""
    async with Journal(tmp_path / "runs.db") as journal:
        with pytest.raises(Exception, match="not authorized"):
            await journal.run(Harms(statement), run_id="r")
        assert await journal.run(Harms("select count(*) from anabranch_run"), run_id="s") == "done"


async def test_a_transaction_of_a_run_that_is_lost_does_not_wait(tmp_path: Path) -> None:
    """The journal refuses it before its first statement."""

    class Lost(Durable[str]):
        async def task(self) -> str:
            await journal._file.call(lambda sql: sql.execute("update anabranch_run set fence = 9"))
            async with self.durable.transaction() as tx:
                await tx.execute("select 1")
            return "never"

    async with Journal(tmp_path / "runs.db") as journal, asyncio.timeout(20):
        with pytest.raises(Exception, match="no longer owns the run"):
            await journal.run(Lost(), run_id="r")


def test_the_lock_stands_beside_the_file_wherever_the_process_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run has one owner, also after the process has changed its folder."""
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)

    async def main() -> None:
        async with Journal("runs.db") as here, Journal(tmp_path / "runs.db") as other:
            await here.start(Plain(), run_id="r")
            os.chdir("sub")
            await here._file.acquire("r", "here")
            with pytest.raises(RunBusy):
                await other._file.acquire("r", "other")

    asyncio.run(main())


def test_the_class_of_a_run_may_stand_in_a_function(tmp_path: Path) -> None:
    """If the job is passed; another class of that name belongs to another run."""

    def make(result: str) -> Durable[str]:
        class Inner(Durable[str]):
            number: int = 1

            async def task(self) -> str:
                return result

        return Inner()

    path = tmp_path / "runs.db"
    assert run(make("a"), journal=path, run_id="r") == "a"
    assert run(make("b"), journal=path, run_id="r") == "a"
    with pytest.raises(RunExists):
        run(Plain(), journal=path, run_id="r")


async def test_a_mismatch_leaves_a_run_that_is_over_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays completed, and does not wait for a person."""
    async with Journal(tmp_path / "runs.db") as journal:
        await journal.run(Plain(), run_id="r")
        monkeypatch.setattr(Plain, "_node_version", 2)
        with pytest.raises(JournalMismatch, match="has version 2"):
            await journal.run(Plain(), run_id="r")
        assert (await journal.look("r")).run.state == "completed"


async def test_a_clock_that_is_set_back_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows keep their order, the run ends, and can be viewed and purged."""
    clock = time.time
    async with Journal(tmp_path / "runs.db") as journal:
        await journal.start(Needs(), run_id="r")
        monkeypatch.setattr(time, "time", lambda: clock() - 1e8)
        await journal.run(Needs(), run_id="r", live={"thing": 1})
        seen = await journal.look("r")
        assert [row.seq for row in seen.rows] == [1, 2]
        monkeypatch.undo()
        assert await journal.purge(clock() + 1) == 1


def test_a_journal_of_a_parent_is_not_the_childs(tmp_path: Path) -> None:
    """The fork gets an error, and the parent continues."""
    text = """
from anabranch.store import Durable, Journal
class P(Durable[str]):
    async def task(self): return "ok"
async def use(journal):
    try:
        await journal.run(P(), run_id="r")
    except JournalError as error:
        print(error.why, flush=True)
async def main():
    async with Journal(sys.argv[1]) as journal:
        if not (pid := os.fork()):
            asyncio.events._set_running_loop(None)
            asyncio.run(use(journal))
            os._exit(0)
        os.waitpid(pid, 0)
        print(await journal.run(P(), run_id="r"))
asyncio.run(main())
"""
    with journal_process(tmp_path / "runs.db", text) as child:
        said, _ = child.communicate(timeout=30)
    assert said.splitlines() == ["is not open in this process", "ok"]


WITHOUT_STORE = """
import sys
from anabranch.commander import run
from anabranch.jobs import Job

class Fetch(Job[str]):
    async def task(self) -> str:
        return "ok"

try:
    run(Fetch(), journal="runs.db", run_id="r")
except TypeError as error:
    print("anabranch.store" in sys.modules, error)
"""


def test_run_with_a_journal_names_a_job_that_is_not_durable(tmp_path: Path) -> None:
    """In the same words, whether the program has imported the store or not. No file is created."""

    class Fetch(Job[str]):
        async def task(self) -> str:
            return "ok"

    wanted = r"Fetch.* is not durable: only a Durable job can run in a journal"
    with pytest.raises(TypeError, match=wanted):
        run(Fetch(), journal=tmp_path / "runs.db", run_id="r")
    without = [sys.executable, "-c", WITHOUT_STORE]
    printed = subprocess.check_output(without, text=True, cwd=tmp_path, timeout=TIMEOUT_SECONDS)
    assert re.fullmatch(f"False .*{wanted}\n", printed)
    assert not [*tmp_path.iterdir()]


def test_run_with_a_journal_cannot_stay_open(tmp_path: Path) -> None:
    """The message names the argument to change. No file is created."""
    with pytest.raises(TypeError, match=r"^journal= needs auto_exit=True, because"):
        run(Plain(), journal=tmp_path / "runs.db", run_id="r", auto_exit=False)
    assert not [*tmp_path.iterdir()]


@tool
def charge(order: str) -> str:
    return f"charged {order}"


@tool(read_only=True)
def look_up(order: str) -> str:
    return f"found {order}"


class Steps(Durable[list[str]]):
    async def task(self) -> list[str]:
        with pytest.raises(ConfigurationError, match=r"Use durable.call\(charge, ...\)"):
            await self.durable.step(charge, "A")
        return [await self.durable.call(charge, "A"), await self.durable.step(look_up, "A")]


def test_a_step_refuses_a_tool_whose_effect_it_could_repeat(tmp_path: Path) -> None:
    """Tools without effects may be steps."""
    found = run(Steps(), journal=tmp_path / "runs.db", run_id="r")
    assert found == ["charged A", "found A"]
