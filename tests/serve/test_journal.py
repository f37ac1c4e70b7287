"""Over a restart, in one process: servers on one journal, one after the other."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from support.page_client import (
    GREETING,
    entry_kinds,
    serve_in_process,
    wait_for_status,
    writer_agent,
)
from support.waiting import POLL_SECONDS, settle_loop, wait_until

from anabranch import Agent, Message, Node, Retry, ToolCall, handler, tool
from anabranch.messages import Delta
from anabranch.serve import _run, _runs, serve
from anabranch.store import Durable, Journal, JournalError
from anabranch.testing import ScriptedBackend


async def test_what_has_ended_is_kept_for_a_while(tmp_path: Path) -> None:
    """A run that has ended is there after a restart, for as long as `keep` says."""
    path = tmp_path / "runs.db"
    async with serve_in_process(writer_agent(), journal=path) as client:
        run = (await client.post("/runs", json=GREETING)).json()["id"]
        assert await wait_for_status(client, run, "completed")
        before = (await client.get(f"/runs/{run}/events")).text
    async with serve_in_process(writer_agent(), journal=path) as client:
        assert (await client.get(f"/runs/{run}/events")).text == before
        assert [each["id"] for each in (await client.get("/runs")).json()["runs"]] == [run]
    async with (
        serve_in_process(writer_agent(), journal=path, keep=0) as client,
        Journal(path) as journal,
        asyncio.timeout(6),
    ):
        assert (await client.get(f"/runs/{run}")).status_code == 404
        while await journal.runs():  # noqa: ASYNC110 - the server removes it meanwhile
            await asyncio.sleep(POLL_SECONDS)


async def test_an_owner_is_known_by_the_token_itself(tmp_path: Path) -> None:
    """S14: tokens in another order after a restart hand nobody's runs to another."""
    path, a, b = tmp_path / "runs.db", *({"authorization": f"Bearer {each}"} for each in "ab")
    async with serve_in_process(writer_agent(), journal=path, auth=["a", "b"]) as client:
        run = (await client.post("/runs", json=GREETING, headers=a)).json()["id"]
    async with serve_in_process(writer_agent(), journal=path, auth=["b", "a"]) as client:
        assert (await client.get(f"/runs/{run}", headers=a)).status_code == 200
        assert (await client.get(f"/runs/{run}", headers=b)).status_code == 404
        assert (await client.get("/runs", headers=b)).json()["runs"] == []


async def test_how_a_kept_run_ended_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The line for an answer comes once its end is on disk, and says how it ended."""
    caplog.set_level("INFO", "anabranch.serve")
    async with serve_in_process(writer_agent(), journal=tmp_path / "runs.db") as client:
        run = (await client.post("/runs", json=GREETING)).json()["id"]
        await wait_for_status(client, run, "completed")
    assert [line for line in caplog.messages if line.startswith("writer completed in ")]


async def test_words_that_no_client_could_read_are_kept_as_they_were_told(tmp_path: Path) -> None:
    """S10: half a character is told, and kept, as what stands for it."""
    path = tmp_path / "runs.db"
    async with serve_in_process(writer_agent("one \ud800 two"), journal=path) as client:
        run = (await client.post("/runs", json=GREETING)).json()["id"]
        assert await wait_for_status(client, run, "completed")
        before = (await client.get(f"/runs/{run}/events")).text
    async with serve_in_process(writer_agent(), journal=path) as client:
        assert (await client.get(f"/runs/{run}/events")).text == before


async def test_what_ends_while_the_server_does_is_told_by_the_next(tmp_path: Path) -> None:
    """S10: a run that comes to its end in the last moments has not ended without a word."""
    path, go, acts = tmp_path / "runs.db", asyncio.Event(), list[str]()

    @tool
    async def act() -> str:
        """Do something outside."""
        acts.append("act")
        await go.wait()
        return "done"

    backend = ScriptedBackend(calling("act"), "Well.")
    server = serve(Agent(backend, name="writer", tools=[act]), journal=path)
    transport = httpx.ASGITransport(app=server)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        async with server.running():
            run = (await client.post("/runs", json=GREETING)).json()["id"]
            await wait_until(lambda: acts)
            server.runs.suspend()
            go.set()
            await wait_until(lambda: len(backend.requests) == 2)
            await settle_loop()
        async with server.running():
            await wait_for_status(client, run, "completed")
            kinds = [kind for kind in await entry_kinds(client, run) if kind != "text"]
            assert kinds == ["called", "answered", "completed"]
    assert acts == ["act"]


async def test_other_runs_of_the_file_are_left_alone(tmp_path: Path) -> None:
    """A journal that holds other runs too keeps them, however old they are."""
    async with Journal(tmp_path / "runs.db") as journal:
        await journal.run(Nothing(), run_id="mine")
        await journal.note("mine", "mine", {"a": [1]})
        async with serve_in_process(writer_agent(), journal=journal, keep=0) as client:
            run = (await client.post("/runs", json=GREETING)).json()["id"]
            await wait_for_status(client, run, "completed", "unknown")
        assert (await journal.look("mine")).run.state == "completed"
        assert await journal.notes("mine", "mine") == [{"a": [1]}]
        assert (await journal.look("mine")).letters == []


class Nothing(Durable[None]):
    """A run of another program's."""

    async def task(self) -> None:
        pass


async def test_runs_that_are_taken_up_count(tmp_path: Path) -> None:
    """S15: those of an earlier life are among `max_runs`."""
    path, never = tmp_path / "runs.db", asyncio.Event()
    async with serve_in_process(writer_agent([never]), journal=path) as client:
        run = (await client.post("/runs", json=GREETING)).json()["id"]
    async with serve_in_process(writer_agent([never]), journal=path, max_runs=1) as client:
        assert (await client.post("/runs", json=GREETING)).status_code == 429
        await client.post(f"/runs/{run}/cancel")
        assert (await client.get(f"/runs/{run}")).json()["status"] == "cancelled"
        assert (await client.post("/runs", json=GREETING)).status_code == 201
    async with serve_in_process(writer_agent(), journal=path) as client:
        assert (await client.get(f"/runs/{run}")).json()["status"] == "cancelled"


async def test_a_message_that_was_cut_ends_as_incomplete(tmp_path: Path) -> None:
    """What was said of a reply that is not whole stays, ends by `broken`, and is said anew."""
    path, never = tmp_path / "runs.db", asyncio.Event()
    async with serve_in_process(writer_agent(["Hel", never]), journal=path) as client:
        run = (await client.post("/runs", json=GREETING)).json()["id"]
        async with asyncio.timeout(6):
            while not (await client.get(f"/runs/{run}")).json()["last"]:  # noqa: ASYNC110 - over HTTP
                await asyncio.sleep(POLL_SECONDS)
    async with serve_in_process(writer_agent("Hello"), journal=path) as client:
        await wait_for_status(client, run, "completed")
        response = (await client.get(f"/v1/responses/{run}")).json()
        said = [(item["status"], item["content"][0]["text"]) for item in response["output"]]
        assert said == [("incomplete", "Hel"), ("completed", "Hello")]
        assert (await entry_kinds(client, run))[:2] == ["text", "broken"]


async def test_a_run_whose_thing_is_not_served_waits(tmp_path: Path) -> None:
    """Another program's runs are not touched: they go on when their thing is served again."""
    path, never = tmp_path / "runs.db", asyncio.Event()
    async with serve_in_process(writer_agent([never]), journal=path) as client:
        run = (await client.post("/runs", json=GREETING)).json()["id"]
    async with serve_in_process({"other": writer_agent()}, journal=path) as client:
        assert (await client.get(f"/runs/{run}")).status_code == 404
    async with serve_in_process(writer_agent(), journal=path) as client:
        assert await wait_for_status(client, run, "completed")


@pytest.mark.parametrize("shared", [False, True], ids=["file", "journal"])
async def test_a_journal_has_one_server(tmp_path: Path, shared: bool) -> None:
    """A second one does not start, and the first goes on; when that has ended, another starts."""
    path, go = tmp_path / "runs.db", asyncio.Event()
    async with Journal(path) as journal:
        used = journal if shared else path
        reply = ["Hel", go, "lo", Delta(finish_reason="stop")]
        async with serve_in_process(writer_agent(reply), journal=used) as first:
            run = (await first.post("/runs", json=GREETING)).json()["id"]
            other = serve(writer_agent("wrong"), journal=used)
            with pytest.raises(JournalError, match=rf"server of process {os.getpid()}: .*workers"):
                async with other.running():
                    pass
            go.set()
            assert await wait_for_status(first, run, "completed")
        async with serve_in_process(writer_agent(), journal=used) as second:
            assert await wait_for_status(second, run, "completed")


async def test_a_server_of_a_journal_in_memory_has_it_alone() -> None:
    """There is nothing to share, so there is no lock."""
    async with (
        serve_in_process(writer_agent(), journal=":memory:") as one,
        serve_in_process(writer_agent(), journal=":memory:") as other,
    ):
        for client in (one, other):
            run = (await client.post("/runs", json=GREETING)).json()["id"]
            assert await wait_for_status(client, run, "completed")


async def test_two_workers_of_uvicorn_do_not_share_a_journal(tmp_path: Path) -> None:
    """They would not know each other's runs; the one that comes second says so and ends."""
    program = """
from anabranch import Agent
from anabranch.serve import serve
from anabranch.testing import ScriptedBackend
app = serve(Agent(ScriptedBackend(otherwise="Hello."), name="writer"), journal="runs.db")
"""
    (tmp_path / "app.py").write_text(program, "utf-8")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "uvicorn", "app:app", "--workers", "2", "--port", "0"),
        cwd=tmp_path,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        while line := await process.stderr.readline():
            if b"is in use by the server of process" in line:
                break
        assert b"runs.db" in line
        assert b"--workers 1" in line
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.stderr.read()
        await process.wait()


@pytest.mark.parametrize(("again", "done"), [(True, 2), (False, 1)])
async def test_a_call_in_doubt_is_asked_about(tmp_path: Path, again: bool, done: int) -> None:
    """A tool that was cut is not called again without a yes; the page is asked."""
    path, never, acts = tmp_path / "runs.db", asyncio.Event(), list[str]()

    @tool
    async def act() -> str:
        """Do something outside."""
        acts.append("act")
        if len(acts) == 1:
            await never.wait()
        return "done"

    call = Message(role="assistant", tool_calls=[ToolCall(id="c1", name="act", arguments={})])
    agent = writer_agent(call, "Well.", tools=[act])
    async with (
        Journal(path, grace=0) as journal,
        serve_in_process(agent, journal=journal) as client,
    ):
        run = (await client.post("/runs", json=GREETING)).json()["id"]
        await wait_until(lambda: acts)
    async with serve_in_process(writer_agent("Well.", tools=[act]), journal=path) as client:
        async with asyncio.timeout(6):
            yes = {"approved": again}
            while (await client.post(f"/runs/{run}/answers/1", json=yes)).status_code != 200:  # noqa: ASYNC110 - over HTTP
                await asyncio.sleep(POLL_SECONDS)
        await wait_for_status(client, run, "completed")
        assert len(acts) == done
        kinds = [kind for kind in await entry_kinds(client, run) if kind != "text"]
        assert kinds == ["called", "asked", "decided", "answered", "completed"]


async def test_elsewhere_a_call_in_doubt_is_denied(tmp_path: Path) -> None:
    """Where nobody can be asked it is not called again, and the model is told so."""
    path, never, acts = tmp_path / "runs.db", asyncio.Event(), list[str]()

    @tool
    async def act() -> None:
        """Do something outside."""
        acts.append("act")
        await never.wait()

    call = Message(role="assistant", tool_calls=[ToolCall(id="c1", name="act", arguments={})])
    ask = {**GREETING, "background": True}
    async with (
        Journal(path, grace=0) as journal,
        serve_in_process(writer_agent(call, tools=[act]), journal=journal) as client,
    ):
        run = (await client.post("/v1/responses", json=ask)).json()["id"].removeprefix("resp_")
        await wait_until(lambda: acts)
    async with serve_in_process(writer_agent("Well.", tools=[act]), journal=path) as client:
        await wait_for_status(client, run, "completed")
        output = (await client.get(f"/v1/responses/{run}")).json()["output"]
        assert "nobody knows" in output[0]["output"]
        assert len(acts) == 1


async def test_a_model_that_cancels_itself_has_cancelled_its_run(tmp_path: Path) -> None:
    """What is cancelled from within, and not by the end of the server, is over."""

    def reply(_: object) -> str:
        raise asyncio.CancelledError

    async with serve_in_process(
        {"writer": ScriptedBackend(otherwise=reply)}, journal=tmp_path / "r"
    ) as client:
        run = await begin(client)
        assert await wait_for_status(client, run, "cancelled")


async def test_what_cannot_be_kept_is_served_all_the_same(tmp_path: Path) -> None:
    """A handler's runs are in memory alone: a restart forgets them."""

    @handler
    async def say(node: Node[Any], text: str) -> str:
        return text.upper()

    asked = {"model": "say", "input": "hi"}
    async with serve_in_process({"say": say}, journal=tmp_path / "runs.db") as client:
        run = (await client.post("/runs", json=asked)).json()["id"]
        assert await wait_for_status(client, run, "completed")
    async with serve_in_process({"say": say}, journal=tmp_path / "runs.db") as client:
        assert (await client.get(f"/runs/{run}")).status_code == 404


ASK = {**GREETING, "background": True}


async def begin(client: httpx.AsyncClient, **more: Any) -> str:
    """Begin a response in the background; return its id among the runs."""
    response = (await client.post("/v1/responses", json={**ASK, **more})).json()
    return response["id"].removeprefix("resp_")


def calling(name: str) -> Message:
    """Make a reply that calls a tool."""
    return Message(role="assistant", tool_calls=[ToolCall(id="c1", name=name, arguments={})])


async def test_a_yes_that_nobody_can_give_is_denied_with_a_journal_too(tmp_path: Path) -> None:
    """S16: on OpenAI's wire the call is denied at once, and does not wait in the journal."""

    @tool(approve=True)
    async def act() -> None:
        """Do something outside."""
        raise AssertionError

    agent = writer_agent(calling("act"), "Well.", tools=[act])
    async with serve_in_process(agent, journal=tmp_path / "runs.db") as client:
        run = await begin(client)
        assert await wait_for_status(client, run, "completed")
        output = (await client.get(f"/v1/responses/{run}")).json()["output"]
        assert "nobody is there to ask" in output[0]["output"]


@pytest.mark.parametrize("asks", [True, False])
async def test_a_call_that_its_timeout_cut_is_in_doubt_at_once(tmp_path: Path, asks: bool) -> None:
    """What would be tried again, were it not in doubt, is asked about in the same life."""
    never, acts = asyncio.Event(), list[str]()

    @tool(timeout=0.01, retry=Retry(attempts=3))
    async def act() -> str:
        """Do something outside."""
        acts.append("act")
        if len(acts) == 1:
            await never.wait()
        return "done"

    agent = writer_agent(calling("act"), "Well.", tools=[act])
    async with serve_in_process(agent, journal=tmp_path / "runs.db") as client:
        if asks:
            run = (await client.post("/runs", json=GREETING)).json()["id"]
            await answered(client, run)
        else:
            run = await begin(client)
        assert await wait_for_status(client, run, "completed")
        assert len(acts) == 1 + asks


async def answered(client: httpx.AsyncClient, run: str) -> None:
    """Say yes to the first question of a run, once it is asked."""
    async with asyncio.timeout(6):
        yes = {"approved": True}
        while (await client.post(f"/runs/{run}/answers/1", json=yes)).status_code != 200:  # noqa: ASYNC110 - over HTTP
            await asyncio.sleep(POLL_SECONDS)


async def test_a_question_that_waits_for_too_long_is_denied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S16: also the one about a call in doubt; no run waits for ever."""
    monkeypatch.setattr(_run, "ANSWER_SECONDS", -1.0)
    never = asyncio.Event()

    @tool(timeout=0.01, retry=Retry(attempts=3))
    async def act() -> None:
        """Do something outside."""
        await never.wait()

    agent = writer_agent(calling("act"), "Well.", tools=[act])
    async with serve_in_process(agent, journal=tmp_path / "runs.db") as client:
        run = (await client.post("/runs", json=GREETING)).json()["id"]
        assert await wait_for_status(client, run, "completed")


async def test_one_run_that_cannot_be_taken_up_holds_up_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor does another's run of such a name keep the server from beginning."""
    path, never = tmp_path / "runs.db", asyncio.Event()
    async with serve_in_process(writer_agent(["Hel", never]), journal=path) as client:
        first, second = [(await client.post("/runs", json=GREETING)).json()["id"] for _ in "12"]
        async with asyncio.timeout(6):
            while not (await client.get(f"/runs/{second}")).json()["last"]:  # noqa: ASYNC110 - over HTTP
                await asyncio.sleep(POLL_SECONDS)
    async with Journal(path) as journal:
        await journal.start(Nothing(), run_id="serve/mine")
    with closing(sqlite3.connect(path)) as file, file:
        damage = "update anabranch_mail set value = x'00' where run = (select id from anabranch_run"
        file.execute(f"{damage} where run_id = ?)", (f"serve/{first}",))
    async with serve_in_process(writer_agent(), journal=path) as client:
        assert await wait_for_status(client, second, "completed")
        assert (await client.get(f"/runs/{first}")).status_code == 404
    assert [line for line in caplog.messages if f"cannot resume the run serve/{first}" in line]


async def test_a_run_waits_until_its_thing_is_one_that_is_kept(tmp_path: Path) -> None:
    """A handler that has got the agent's name does not answer for it."""
    path, never = tmp_path / "runs.db", asyncio.Event()

    @handler
    async def say(node: Node[Any], text: str) -> str:
        raise AssertionError

    async with serve_in_process(writer_agent([never]), journal=path) as client:
        run = await begin(client)
    async with serve_in_process({"writer": say}, journal=path) as client:
        assert (await client.get(f"/runs/{run}")).status_code == 404
    async with serve_in_process(writer_agent(), journal=path) as client:
        assert await wait_for_status(client, run, "completed")


async def test_a_run_fails_whose_question_is_refused_now(tmp_path: Path) -> None:
    """What a model took an agent does not: the client is told so, in each later life."""
    path, never = tmp_path / "runs.db", asyncio.Event()
    async with serve_in_process({"writer": ScriptedBackend([never])}, journal=path) as client:
        run = await begin(client, temperature=0.5)
    for _ in "12":
        async with serve_in_process(writer_agent(), journal=path) as client:
            assert await wait_for_status(client, run, "failed")
    async with Journal(path) as journal:
        assert (await journal.look(f"serve/{run}")).run.state == "failed"


async def test_what_the_journal_cannot_take_is_refused(tmp_path: Path) -> None:
    """No id is given for a run that nobody would find again; other wires go on."""
    path = tmp_path / "runs.db"
    async with serve_in_process(writer_agent(), journal=path) as client:
        path.unlink()
        asked = [
            ("/runs", GREETING),
            ("/v1/responses", ASK),
            ("/v1/responses", {**ASK, "stream": True}),
        ]
        for address, body in asked:
            assert (await client.post(address, json=body)).status_code == 503
        assert (await client.get("/runs")).json()["runs"] == []
        assert (await client.post("/v1/responses", json=GREETING)).json()["status"] == "completed"


async def test_a_response_that_is_not_stored_is_in_no_file(tmp_path: Path) -> None:
    """`store=False` says that nobody comes back to it, also where its wire would keep it."""
    path = tmp_path / "runs.db"
    async with serve_in_process(
        writer_agent(), journal=path, on_leave={"openai": "detach"}
    ) as client:
        for store in (True, False):
            body = {**GREETING, "store": store}
            assert (await client.post("/v1/responses", json=body)).json()["status"] == "completed"
    async with Journal(path) as journal:
        assert len(await journal.runs()) == 1


async def test_an_end_that_two_servers_have_told_is_one(tmp_path: Path) -> None:
    """What stands behind the end of a log is no part of it, and the server begins."""
    path = tmp_path / "runs.db"
    async with serve_in_process(writer_agent(), journal=path) as client:
        run = (await client.post("/runs", json=GREETING)).json()["id"]
        assert await wait_for_status(client, run, "completed")
        before = await entry_kinds(client, run)
    async with Journal(path) as journal:
        await journal.note(f"serve/{run}", "said", [["completed", {"usage": {}, "status": "ok"}]])
    async with serve_in_process(writer_agent(), journal=path) as client:
        assert await entry_kinds(client, run) == before


async def test_what_has_ended_is_removed_while_the_server_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `keep` seconds nothing of a run is in the file, without another run or a restart."""
    monkeypatch.setattr(_runs, "PURGE_SECONDS", 0.0)
    async with (
        Journal(tmp_path / "runs.db") as journal,
        serve_in_process(writer_agent(), journal=journal, keep=0) as client,
    ):
        await client.post("/runs", json=GREETING)
        async with asyncio.timeout(6):
            while await journal.runs():  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(POLL_SECONDS)


async def test_a_run_that_is_cancelled_while_the_server_ends_is_refused(tmp_path: Path) -> None:
    """What is left to the next life is not said to be cancelled, on neither wire."""
    server = serve(writer_agent([asyncio.Event()]), journal=tmp_path / "runs.db")
    transport = httpx.ASGITransport(app=server)
    async with (
        server.running(),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        run = await begin(client)
        server.runs.suspend()
        for address in (f"/runs/{run}", f"/v1/responses/{run}"):
            assert (await client.post(f"{address}/cancel")).status_code == 503


async def test_a_run_that_comes_no_further_fails(tmp_path: Path) -> None:
    """It is told to each life that follows; the message that was cut is no answer."""
    path, never = tmp_path / "runs.db", asyncio.Event()
    async with serve_in_process(writer_agent(["Hel", never]), journal=path) as client:
        run = (await client.post("/runs", json=GREETING)).json()["id"]
        async with asyncio.timeout(6):
            while not (await client.get(f"/runs/{run}")).json()["last"]:  # noqa: ASYNC110 - over HTTP
                await asyncio.sleep(POLL_SECONDS)
    with closing(sqlite3.connect(path)) as file, file:
        killed = "update anabranch_run set state = 'running', recoveries = 5, claimed_at_row = 1000"
        file.execute(killed)
    for _ in "12":
        async with serve_in_process(writer_agent(), journal=path) as client:
            assert await wait_for_status(client, run, "failed")
            assert await entry_kinds(client, run) == ["text", "broken", "failed"]


def test_a_journal_that_is_none_is_named_before_the_server_begins(tmp_path: Path) -> None:
    """Whoever begins it sees what is wrong with the file, and not uvicorn's traceback."""
    (tmp_path / "runs.db").write_text("this is no journal, " * 100)
    with pytest.raises(JournalError, match="is no SQLite file"):
        serve(writer_agent(), journal=tmp_path / "runs.db").run(port=0)
