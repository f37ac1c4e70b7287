"""Runs whose processes were killed under earlier releases: the current code resumes each.

`tests/data/journals` has a journal for each program in `_killed_runs.py`, a recording and a
cassette. If one of these tests fails after an edit, users' runs break too: keep the stored names
(`commander/stored_names.py`) and the identities, or write a migration.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import _killed_runs
import pytest
from _killed_runs import (
    DID,
    FOLDER,
    JOBS,
    KILLED,
    MODEL,
    cassette,
    chat_partner,
    load,
    notes,
    recording,
    writer,
)
from support.page_client import serve_in_process, wait_for_status

from anabranch import Commander
from anabranch.cli.chat._sessions import open_sessions
from anabranch.handlers import View
from anabranch.store import Journal, JournalMismatch, RunExists
from anabranch.tracing import diff, read

LOADED = ["é 😀"]
SENT = "tool: sent a mail"
# For each program: its result, and the effects that the resumed run performs.
RESULTS: dict[str, tuple[Any, list[str]]] = {
    "step": ([["first", *LOADED], 3, ["second", *LOADED], True], ["load second"]),
    "before_a_call": (["sent first", "sent second", "over"], ["sent second", "over"]),
    "call_done": (["sent first", "sent second", "over"], ["was second sent?", "over"]),
    "call_undone": (
        ["sent first", "sent undone", "over"],
        ["was undone sent?", "sent undone", "over"],
    ),
    "after_a_call": (["sent first", "sent second", "over"], ["over"]),
    "respond": (
        [
            "system: Be short.",
            "user: send it",
            "assistant: I do it.",
            SENT,
            "assistant: After 4: that is all.",
        ],
        ["asked with 4"],
    ),
    "approval": (
        [
            "system: Be short.",
            "user: refund it",
            "assistant: I do it.",
            "tool: refund 500",
            "assistant: After 4: that is all.",
        ],
        ["refund 500", "asked with 4"],
    ),
    "timer": ("before and after", ["after"]),
    "retry": ("sent once, again", ["again"]),
    "signal": ("before on", []),
}


@pytest.fixture
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the journal of this program, as its killed process left it."""
    with closing(sqlite3.connect(tmp_path / "runs.db")) as sql:
        sql.executescript((FOLDER / f"{request.param}.sql").read_text())
    DID.clear()
    return tmp_path / "runs.db"


def of(*names: str) -> Any:
    return pytest.mark.parametrize(("path", "name"), [(n, n) for n in names], indirect=["path"])


def test_each_program_has_its_journal() -> None:
    """So no journal is lost."""
    assert {file.stem for file in FOLDER.glob("*.sql")} == {*KILLED}
    assert {*RESULTS} <= {*JOBS} <= {*KILLED}


@of(*RESULTS)
async def test_a_killed_run_completes_and_repeats_nothing(path: Path, name: str) -> None:
    """The id is sufficient to resume it, as for `anabranch runs resume`."""
    result, left = RESULTS[name]
    async with Journal(path) as journal, asyncio.timeout(20):
        assert (await journal.look(name)).run.state == "running"
        if name == "signal":
            await journal.signal(name, "go", "on")
        for question in await journal.approvals():
            await question.approve()
        live = {"backend": MODEL} if "backend" in JOBS[name]()._node_live() else {}
        assert await journal.take_up(name, live=live) == result
        assert left == DID
        assert await journal.run(JOBS[name](), run_id=name, live=live) == result
        assert left == DID


@of("group", "orchestrator")
async def test_agents_of_a_killed_run_go_on(path: Path, name: str) -> None:
    """The result equals the result of an uninterrupted run.

    Only requests without a journal entry are sent.
    """
    async with Journal(":memory:") as journal:
        result = await journal.run(JOBS[name](), run_id=name, live={"backend": MODEL})
    done = DID.copy()
    DID.clear()
    async with Journal(path) as journal, asyncio.timeout(20):
        assert (await journal.look(name)).run.state == "running"
        assert await journal.take_up(name, live={"backend": MODEL}) == result
    place = done.index(KILLED[name].replace("reply", "asked with"))
    assert done[place:] == DID


@of("agent")
async def test_a_killed_session_of_an_agent_goes_on(path: Path, name: str) -> None:
    """Only the second question is sent to the model again."""
    async with Journal(path) as journal, asyncio.timeout(20):
        agent = notes(journal)
        answer = await agent("And now?", session_id="s")
        assert answer.content == "After 6: that is all."
        assert DID == ["asked with 6"]
        said = [each["content"] for each in agent.memory.save("s")]
        turn = ["send it", "I do it.", "After 4: that is all."]
        assert said == [*turn, "And now?", answer.content]


@of("chat")
async def test_a_killed_chat_goes_on(path: Path, name: str) -> None:
    """The interrupted turn is answered. The earlier turn is in the history."""
    async with open_sessions(path) as sessions, asyncio.timeout(20):
        partner = chat_partner(sessions, await sessions.newest())
        await partner.open()
        cut = await partner.interrupted_turn()
        assert cut is not None
        assert cut.message.content == "And now?"
        async with Commander() as commander:
            await commander.run(partner.answer(None, View()))
        said = [f"{each.role}: {each.content}" for each in partner.messages()]
        assert await partner.interrupted_turn() is None
    turn = ["user: send it", "assistant: I do it.", SENT, "assistant: After 4: that is all."]
    again = ["user: And now?", "assistant: After 6: that is all."]
    assert said == ["system: Be kind.", *turn, *again]
    assert DID == ["asked with 6"]


@of("served")
async def test_a_killed_server_s_run_goes_on(path: Path, name: str) -> None:
    """The next server resumes it at its start. Its readers get the complete reply."""
    async with serve_in_process(writer(), journal=path) as client:
        (run,) = (await client.get("/runs")).json()["runs"]
        assert await wait_for_status(client, run["id"], "completed")
        lines = (await client.get(f"/runs/{run['id']}/events")).text.splitlines()
    told = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    said: dict[str, str] = {}
    for each in told:
        if "speech" in each:
            said[each["speech"]] = said.get(each["speech"], "") + each["text"]
    assert [*said.values()] == ["I do it.", "After 3: ", "After 3: that is all."]
    assert told[-1]["usage"]["total_tokens"] == 6
    assert DID == ["asked with 3"]


async def test_a_recording_is_read_and_compared(tmp_path: Path) -> None:
    """It equals a recording of the same program by the current code."""
    await recording(tmp_path / "new.jsonl")
    old, new = read(FOLDER / "recording.jsonl"), read(tmp_path / "new.jsonl")
    assert [str(each) for each in old][-2:] == ["<hangs#11 cancelled>", "<fails#12 failed>"]
    assert len([*old]) == 12
    assert str(diff(old, new)) == "no differences"


async def test_a_cassette_is_played() -> None:
    """Replies, failures and embeddings are played."""
    assert await cassette(FOLDER / "cassette.jsonl") == [
        "It is sent.",
        "RateLimited 3: too many",
        "StreamInterrupted None: cut",
        "256 1.372",
    ]


# --- the promises of docs/compatibility.md about a user's own names


class Counts(_killed_runs.Steps):
    """`Steps`, renamed."""


class Sums(_killed_runs.Adds):
    """`Adds`, renamed."""


def fetch(what: str) -> list[str]:
    return load(what)


@of("step")
async def test_a_users_run_whose_class_moved_is_resumed_by_its_old_name(
    path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the old name the run is parked, and the renamed class does not start it again."""
    monkeypatch.delattr(_killed_runs, "Steps")
    async with Journal(path) as journal:
        with pytest.raises(JournalMismatch, match="cannot import _killed_runs:Steps"):
            await journal.take_up(name)
        assert (await journal.look(name)).run.state == "parked"
        monkeypatch.setattr(_killed_runs, "Steps", Counts, raising=False)
        with pytest.raises(RunExists):
            await journal.run(Counts(), run_id=name)
        await journal.resume(name)
        assert await journal.take_up(name) == RESULTS["step"][0]
    assert DID == ["load second"]


@of("step")
@pytest.mark.parametrize(
    ("old", "new", "again"),
    [
        ("load", fetch, ["load first", "load second"]),
        ("Adds", Sums, ["add (1, 2)", "load second"]),
    ],
)
async def test_what_a_user_renames_runs_again(
    path: Path,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    old: str,
    new: Any,
    again: list[str],
) -> None:
    """A warning names the journal's entries."""
    monkeypatch.setattr(_killed_runs, old, new)
    async with Journal(path) as journal:
        assert await journal.take_up(name) == RESULTS["step"][0]
    assert again == DID
    assert "did not replay these recorded entries" in caplog.text
