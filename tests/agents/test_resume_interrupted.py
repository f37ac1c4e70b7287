"""After a restart, the open questions of all sessions wait before a user speaks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from programs import killed_at_questions as killed
from support.paths import TESTS

from anabranch import Agent, Approvals, Commander, ConfigurationError
from anabranch.store import Journal
from anabranch.testing import ScriptedBackend

START = "import asyncio; from programs.killed_at_questions import main; asyncio.run(main())"


@pytest.fixture(scope="module")
def killed_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the program, as a module of the same name as here, until it kills itself."""
    folder = tmp_path_factory.mktemp("killed")
    command = [sys.executable, "-c", START, str(folder / "runs.db")]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    assert subprocess.run(command, env=environment, check=False).returncode == -9
    return folder


@pytest.fixture
def path(killed_folder: Path, tmp_path: Path) -> str:
    """Give a copy of the journal that the killed process has left."""
    return str(shutil.copytree(killed_folder, tmp_path / "copy") / "runs.db")


def sessions_of(approvals: Approvals) -> Counter[Any]:
    return Counter(each.session_id for each in approvals.pending)


async def test_the_questions_of_a_killed_process_wait_again(path: str) -> None:
    """Each session has its own again; the answers continue the calls where they were."""
    async with Journal(path) as journal:
        agent, approvals = killed.make_agent(journal)
        async with Commander() as commander:
            calls = await agent.resume_interrupted(parent=commander)
            assert sessions_of(approvals) == killed.SESSIONS
            assert calls.keys() == killed.SESSIONS.keys()
            for question in approvals.pending:
                if question.session_id == 7 and question.call.arguments["amount"] == 2:
                    question.deny("too much")
                else:
                    question.approve()
            assert (await calls["ann"]).text == "paid 1"
            assert "too much" in (await calls[7]).text
            assert (await calls["8"]).text == "paid 1"
            assert not approvals.pending
            assert await journal.approvals() == []
        async with Commander() as commander:
            assert await agent.resume_interrupted(parent=commander) == {}
        assert [each.text for each in await agent.recall("ann")][::2] == ["1", "paid 1"]


@pytest.mark.parametrize("is_async", [False, True])
async def test_each_resumed_call_has_the_context_of_its_own_session(
    path: str, is_async: bool
) -> None:
    """The function gets the id of each session, once; it may be async."""
    loaded: list[Any] = []

    def load(session_id: int | str) -> str:
        loaded.append(session_id)
        return f"the user {session_id!r}"

    async def load_later(session_id: int | str) -> str:
        return load(session_id)

    async with Journal(path) as journal:
        agent, approvals = killed.make_agent(journal)
        async with Commander() as commander:
            calls = await agent.resume_interrupted(
                parent=commander, context=load_later if is_async else load
            )
            for question in approvals.pending:
                question.approve()
            assert sorted(map(str, loaded)) == ["7", "8", "ann"]
            for session_id, call in calls.items():
                for paid in (await call).text.split(", "):
                    assert paid.endswith(f"to the user {session_id!r}")


async def test_one_context_for_all_sessions_is_refused(path: str) -> None:
    """The error names the function that is needed, and not the value. No call has started."""

    def fail(session_id: object) -> None:
        raise LookupError(session_id)

    async with Journal(path) as journal:
        agent, approvals = killed.make_agent(journal)
        async with Commander() as commander:
            wrong: Any = {"password": "hunter2"}
            with pytest.raises(ConfigurationError, match=r"lambda session_id: load_user") as caught:
                await agent.resume_interrupted(parent=commander, context=wrong)
            assert "hunter2" not in str(caught.value)
            with pytest.raises(LookupError):
                await agent.resume_interrupted(parent=commander, context=fail)
            assert not commander.children
        assert not approvals.pending


async def test_a_second_restart_asks_once_more(path: str) -> None:
    """Closing the tree and the journal keeps the questions, and each waits only once."""
    for _ in range(2):
        async with Journal(path, grace=0) as journal:
            agent, approvals = killed.make_agent(journal)
            async with Commander() as commander:
                await agent.resume_interrupted(parent=commander)
                assert sessions_of(approvals) == killed.SESSIONS
                await journal.__aexit__(None, None, None)


async def test_a_next_message_waits_for_the_resumed_call(path: str) -> None:
    """A user who speaks first gets an answer after the open question is decided."""
    async with Journal(path) as journal:
        agent, approvals = killed.make_agent(journal)
        async with Commander() as commander:
            calls = await agent.resume_interrupted(parent=commander)
            following = commander.call_handler(agent.call("0", session_id="ann"))
            for question in approvals.pending:
                question.approve()
            assert (await following).text == "nothing"
            assert calls["ann"].state == "completed"


async def test_a_journal_of_its_own_is_opened_for_it(path: str) -> None:
    """`journal=` may be a path."""
    async with Journal(path) as journal:
        agent, approvals = killed.make_agent(journal)
    agent.journal = path
    async with Commander() as commander:
        calls = await agent.resume_interrupted(parent=commander)
        assert sessions_of(approvals) == killed.SESSIONS
        for question in approvals.pending:
            question.approve()
        assert (await calls[7]).text == "paid 1, paid 2"


async def test_no_question_of_an_ended_call_stays_open(path: str) -> None:
    """Neither after `end_interrupted`, nor one that changed code did not ask again."""
    async with Journal(path) as journal:
        agent, approvals = killed.make_agent(journal)
        assert len(await journal.approvals("cashier/ann")) == 1
        assert await agent.end_interrupted("ann")
        assert await journal.approvals("cashier/ann") == []
        agent.tools = []  # the call now differs from the recorded one, and asks nothing
        async with Commander() as commander:
            calls = await agent.resume_interrupted(parent=commander)
            assert calls.keys() == {7, "8"}
        assert not approvals.pending
        assert await journal.approvals() == []


async def test_it_needs_a_journal_and_a_tree(path: str) -> None:
    """Both errors say so."""
    agent = Agent(ScriptedBackend("no"), name="cashier")
    with pytest.raises(ConfigurationError, match="Give it journal="):
        await agent.resume_interrupted()
    agent.journal = path
    with pytest.raises(ConfigurationError, match="give it parent="):
        await agent.resume_interrupted()
