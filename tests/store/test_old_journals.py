"""Journals of every earlier version can be resumed, and nothing is repeated.

If this fails because the format or the identities have changed: write a migration (`MIGRATIONS` in
`store/_open_file.py`) for the old files, and create a new file beside them with
`tests/data/_old_journals.py`. The file of a released version is never created again: it stands for
the runs of users.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import _old_turns
import pytest
from _old_journals import DATA, DID, LIVE, RETRIED, RUNS, STANDS, Failure
from support.killed_executions import execute_in_loop
from support.memory_journal import RUN_ID, Disk
from support.seeds import SEED

from anabranch.commander import NodeCancelled
from anabranch.store import Journal
from anabranch.store._journal_file import Row
from anabranch.store._open_file import MIGRATIONS

pytestmark = pytest.mark.contract("D2")

VERSIONS = range(1, len(MIGRATIONS) + 1)
TOLD = ["system: Be short.", "user: Hello, é 😀", "assistant: After 2."]
OVER = {
    "sums": [3, 3],
    "loaded": ["load x", "é 😀"],
    "error": ["caught", 7],
    "now": "2023-11-14T22:13:20+00:00",
    "random": 0.8444218515250481,
    "sent": ["mail 0", "mail 0"],
}


@pytest.fixture(params=VERSIONS, ids=lambda version: f"v{version}")
async def journal(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Journal]:
    """A journal of this version, from its file."""
    async with opened(f"durable-v{request.param}", tmp_path) as journal:
        yield journal


@asynccontextmanager
async def opened(name: str, folder: Path) -> AsyncIterator[Journal]:
    with closing(sqlite3.connect(folder / "runs.db")) as sql:
        sql.executescript((DATA / f"{name}.sql").read_text())
    DID.clear()
    async with Journal(str(folder / "runs.db")) as journal:
        yield journal


async def taken_up(journal: Journal, name: str) -> Any:
    assert (await journal.look(name)).run.state == STANDS[name]
    async with asyncio.timeout(30):  # a new one would wait for answers that were given
        return await journal.run(RUNS[name](), run_id=name, live=LIVE)


def test_each_version_has_its_file() -> None:
    """A migration comes with a new file, and no file is removed."""
    assert {path.name for path in DATA.glob("durable-v*.sql")} == {
        f"durable-v{version}.sql" for version in VERSIONS
    }


async def test_a_run_that_is_over_gives_what_it_gave(journal: Journal) -> None:
    """Any result, failure or cancel is read, and nothing runs."""
    assert await taken_up(journal, "over") == OVER
    with pytest.raises(Failure, match="for good") as failure:
        await taken_up(journal, "failed")
    assert failure.value.code == 7
    with pytest.raises(NodeCancelled, match="not wanted"):
        await taken_up(journal, "cancelled")
    assert DID == []


async def test_a_run_that_was_only_accepted_begins(journal: Journal) -> None:
    """With the inputs of its start, decoded from the journal."""
    assert await journal.take_up("pending") == 9
    assert DID == ["sum (4, 5)"]


async def test_a_failed_run_is_resumed(journal: Journal) -> None:
    """Its completed parts stay."""
    await journal.resume("failed")
    with pytest.raises(Failure):
        await journal.run(RUNS["failed"](), run_id="failed")
    assert DID == []


async def test_a_chain_of_rounds_goes_on_in_the_middle_of_one(journal: Journal) -> None:
    """The round's step is not repeated; the next round is put."""
    await journal.signal("round", "go", "went on")
    assert await taken_up(journal, "round") == 2
    assert DID == ["went on", "load round 0"]
    assert (await journal.look("round")).run.state == "completed"


async def test_an_approval_is_given(journal: Journal) -> None:
    """The question is still open, and the answer lets the call run."""
    (question,) = await journal.approvals()
    assert (question.run_id, question.tool, question.arguments) == (
        "approval",
        "refund",
        {"cents": 500},
    )
    await question.approve()
    said = await taken_up(journal, "approval")
    assert said[-3:] == ["assistant: I ask.", "tool: refund 500", "assistant: After 6."]
    assert DID == ["refund 500", "asked with 6"]


async def test_a_conversation_goes_on(journal: Journal) -> None:
    """Its messages keep their places, and no reply is requested again."""
    told = [*TOLD, "user: It goes on.", "user: And now?", "assistant: After 5."]
    assert await taken_up(journal, "talk") == told
    assert DID == ["asked with 5"]


@pytest.mark.parametrize(("name", "n"), [("doubt", 1), ("not done", 2)])
async def test_what_was_in_doubt_is_asked_for(journal: Journal, name: str, n: int) -> None:
    """It is called if it was not done, and else not repeated."""
    assert await taken_up(journal, name) == ["mail 0", f"mail {n}"]
    expected = [f"was {n} mailed?", "mail 2"][:n]
    assert expected == DID


async def test_attempts_and_timers_go_on(journal: Journal) -> None:
    """They are due by now; the third attempt is the first of this execution."""
    assert await taken_up(journal, "tries") == ["attempt 3", True]
    assert DID == ["attempt 3"]


async def test_an_old_turn_goes_on_wherever_it_was_cut(tmp_path: Path) -> None:
    """It has the messages of the whole turn, and repeats nothing that has a row.

    New messages have shorter rows, and such a run can be resumed at every row too.
    """
    with closing(sqlite3.connect(tmp_path / "runs.db")) as sql:
        sql.executescript(_old_turns.FILE.read_text())
    async with Journal(str(tmp_path / "runs.db")) as journal:
        old = await journal.look("turn")
    assert any(b'"above"' in row.value for row in old.rows)

    async def cut(rows: list[Row], number: int) -> list[Row]:
        """Resume the turn with the first rows, and return all rows that it has then."""
        disk = Disk()
        disk.rows[RUN_ID] = rows[:number]
        _old_turns.DID.clear()
        execution = await execute_in_loop(_old_turns.Turn(), disk, _old_turns.LIVE)
        assert execution.result == json.loads(old.result or b"")
        news = [row for row in execution.rows[number:] if row.kind in ("reply", "gave", "result")]
        assert len(_old_turns.DID) == max(0, len(news) - 1)  # the turn's result is not work
        return execution.rows

    for number in range(len(old.rows) + 1):
        mixed = await cut(old.rows, number)
        for again in range(number + 1, len(mixed), 5) if number % 6 == SEED % 6 else ():
            await cut(mixed, again)


@pytest.mark.parametrize("name", RETRIED)
async def test_an_effect_that_an_earlier_release_recorded_below_a_retry_is_found(
    name: str, tmp_path: Path
) -> None:
    """It named the effects of later attempts in another way."""
    async with opened("retried", tmp_path) as journal:
        await journal.signal(name, "go", "on")
        assert await journal.run(RETRIED[name](), run_id=name) == RESULTS.get(name, "paid 1")
        assert DID == []


RESULTS = {"round of a callback": None}
