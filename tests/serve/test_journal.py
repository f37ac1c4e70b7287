"""Restarts in one process: several servers use one journal, one after the other."""

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


async def test_an_ended_run_survives_a_restart_for_a_while(tmp_path: Path) -> None:
    """For `keep` seconds after its end."""
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


async def test_an_owner_is_identified_by_the_token(tmp_path: Path) -> None:
    """S14: another order of the tokens after a restart does not change the owners."""
    path, a, b = tmp_path / "runs.db", *({"authorization": f"Bearer {each}"} for each in "ab")
    async with serve_in_process(writer_agent(), journal=path, auth=["a", "b"]) as client:
        run = (await client.post("/runs", json=GREETING, headers=a)).json()["id"]
    async with serve_in_process(writer_agent(), journal=path, auth=["b", "a"]) as client:
        assert (await client.get(f"/runs/{run}", headers=a)).status_code == 200
        assert (await client.get(f"/runs/{run}", headers=b)).status_code == 404
        assert (await client.get("/runs", headers=b)).json()["runs"] == []


async def test_the_end_of_a_durable_run_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The line appears when the end is on disk, with the kind of the end."""
    caplog.set_level("INFO", "anabranch.serve")
    async with serve_in_process(writer_agent(), journal=tmp_path / "runs.db") as client:
        run = (await client.post("/runs", json=GREETING)).json()["id"]
        await wait_for_status(client, run, "completed")
    assert [line for line in caplog.messages if line.startswith("writer completed in ")]


async def test_single_surrogates_are_replaced_in_the_journal_too(tmp_path: Path) -> None:
    """S10: clients get U+FFFD before and after a restart."""
    path = tmp_path / "runs.db"
    async with serve_in_process(writer_agent("one \ud800 two"), journal=path) as client:
        run = (await client.post("/runs", json=GREETING)).json()["id"]
        assert await wait_for_status(client, run, "completed")
        before = (await client.get(f"/runs/{run}/events")).text
    async with serve_in_process(writer_agent(), journal=path) as client:
        assert (await client.get(f"/runs/{run}/events")).text == before


async def test_a_run_that_ends_with_the_server_is_complete_in_the_next(tmp_path: Path) -> None:
    """S10: its last entries are not lost."""
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
    """A server does not purge other programs' runs of any age."""
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
    """A run of another program."""

    async def task(self) -> None:
        pass


async def test_resumed_runs_count(tmp_path: Path) -> None:
    """S15: among `max_runs`."""
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


async def test_an_interrupted_message_ends_as_incomplete(tmp_path: Path) -> None:
    """Its text stays, `broken` ends it, and the model answers again."""
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


async def test_a_run_of_a_model_that_is_not_served_waits(tmp_path: Path) -> None:
    """It continues when a server serves its model again."""
    path, never = tmp_path / "runs.db", asyncio.Event()
    async with serve_in_process(writer_agent([never]), journal=path) as client:
        run = (await client.post("/runs", json=GREETING)).json()["id"]
    async with serve_in_process({"other": writer_agent()}, journal=path) as client:
        assert (await client.get(f"/runs/{run}")).status_code == 404
    async with serve_in_process(writer_agent(), journal=path) as client:
        assert await wait_for_status(client, run, "completed")


@pytest.mark.parametrize("shared", [False, True], ids=["file", "journal"])
async def test_a_journal_has_one_server(tmp_path: Path, shared: bool) -> None:
    """A second server does not start; after the end of the first one it does."""
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


async def test_a_journal_in_memory_needs_no_lock() -> None:
    """Other servers cannot share it."""
    async with (
        serve_in_process(writer_agent(), journal=":memory:") as one,
        serve_in_process(writer_agent(), journal=":memory:") as other,
    ):
        for client in (one, other):
            run = (await client.post("/runs", json=GREETING)).json()["id"]
            assert await wait_for_status(client, run, "completed")


async def test_two_workers_of_uvicorn_do_not_share_a_journal(tmp_path: Path) -> None:
    """They would not know each other's runs. The second one ends with an error."""
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
async def test_the_page_asks_about_a_call_in_doubt(tmp_path: Path, again: bool, done: int) -> None:
    """An interrupted tool call is repeated only after a yes."""
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


async def test_a_call_in_doubt_is_denied_on_other_wires(tmp_path: Path) -> None:
    """No person can be asked there, so it is not repeated, and the model learns that."""
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
        assert "its outcome is unknown" in output[0]["output"]
        assert len(acts) == 1


async def test_a_model_that_cancels_itself_has_cancelled_its_run(tmp_path: Path) -> None:
    """A cancel from inside is the run's end, unlike the end of the server."""

    def reply(_: object) -> str:
        raise asyncio.CancelledError

    async with serve_in_process(
        {"writer": ScriptedBackend(otherwise=reply)}, journal=tmp_path / "r"
    ) as client:
        run = await begin(client)
        assert await wait_for_status(client, run, "cancelled")


async def test_models_that_are_not_durable_are_served_too(tmp_path: Path) -> None:
    """A handler's runs are in memory only: a restart forgets them."""

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
    """Start a background response; return its run id."""
    response = (await client.post("/v1/responses", json={**ASK, **more})).json()
    return response["id"].removeprefix("resp_")


def calling(name: str) -> Message:
    """Make a reply that calls a tool."""
    return Message(role="assistant", tool_calls=[ToolCall(id="c1", name=name, arguments={})])


async def test_approvals_are_denied_on_openais_wire_with_a_journal_too(tmp_path: Path) -> None:
    """S16: at once; the call does not wait in the journal."""

    @tool(approve=True)
    async def act() -> None:
        """Do something outside."""
        raise AssertionError

    agent = writer_agent(calling("act"), "Well.", tools=[act])
    async with serve_in_process(agent, journal=tmp_path / "runs.db") as client:
        run = await begin(client)
        assert await wait_for_status(client, run, "completed")
        output = (await client.get(f"/v1/responses/{run}")).json()["output"]
        assert "no person can be asked" in output[0]["output"]


@pytest.mark.parametrize("asks", [True, False])
async def test_a_call_with_a_timeout_is_in_doubt_at_once(tmp_path: Path, asks: bool) -> None:
    """The page asks about it in the same execution, instead of a retry."""
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
    """Answer yes to the first question of a run."""
    async with asyncio.timeout(6):
        yes = {"approved": True}
        while (await client.post(f"/runs/{run}/answers/1", json=yes)).status_code != 200:  # noqa: ASYNC110 - over HTTP
            await asyncio.sleep(POLL_SECONDS)


async def test_a_question_that_waits_for_too_long_is_denied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S16: also one about a call in doubt; no run waits for ever."""
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


async def test_a_run_that_cannot_be_resumed_does_not_block_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A foreign run with such a name does not prevent the server's start either."""
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
    assert [line for line in caplog.messages if f"cannot resume run serve/{first}" in line]


async def test_a_run_waits_until_its_model_is_durable(tmp_path: Path) -> None:
    """A handler with the agent's name does not answer for it."""
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


async def test_a_run_whose_input_is_refused_after_a_restart_fails(tmp_path: Path) -> None:
    """The new model refuses the input: the client gets the error in each later execution."""
    path, never = tmp_path / "runs.db", asyncio.Event()
    async with serve_in_process({"writer": ScriptedBackend([never])}, journal=path) as client:
        run = await begin(client, temperature=0.5)
    for _ in "12":
        async with serve_in_process(writer_agent(), journal=path) as client:
            assert await wait_for_status(client, run, "failed")
    async with Journal(path) as journal:
        assert (await journal.look(f"serve/{run}")).run.state == "failed"


async def test_a_run_that_the_journal_cannot_store_is_refused(tmp_path: Path) -> None:
    """The client gets no id that a restart could not find; other wires still work."""
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
    """`store=False` prevents it, because no client can reconnect."""
    path = tmp_path / "runs.db"
    async with serve_in_process(
        writer_agent(), journal=path, on_leave={"openai": "detach"}
    ) as client:
        for store in (True, False):
            body = {**GREETING, "store": store}
            assert (await client.post("/v1/responses", json=body)).json()["status"] == "completed"
    async with Journal(path) as journal:
        assert len(await journal.runs()) == 1


async def test_only_the_first_of_two_ends_counts(tmp_path: Path) -> None:
    """Entries after the end of a stored log are ignored, and the server starts."""
    path = tmp_path / "runs.db"
    async with serve_in_process(writer_agent(), journal=path) as client:
        run = (await client.post("/runs", json=GREETING)).json()["id"]
        assert await wait_for_status(client, run, "completed")
        before = await entry_kinds(client, run)
    async with Journal(path) as journal:
        await journal.note(f"serve/{run}", "said", [["completed", {"usage": {}, "status": "ok"}]])
    async with serve_in_process(writer_agent(), journal=path) as client:
        assert await entry_kinds(client, run) == before


async def test_expired_runs_are_purged_while_the_server_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `keep` seconds the file contains nothing of a run, even without a restart."""
    monkeypatch.setattr(_runs, "PURGE_SECONDS", 0.0)
    async with (
        Journal(tmp_path / "runs.db") as journal,
        serve_in_process(writer_agent(), journal=journal, keep=0) as client,
    ):
        await client.post("/runs", json=GREETING)
        async with asyncio.timeout(6):
            while await journal.runs():  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(POLL_SECONDS)


async def test_a_cancel_during_the_servers_end_is_refused(tmp_path: Path) -> None:
    """A run that continues after a restart is not reported as cancelled, on both wires."""
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


async def test_a_run_that_cannot_continue_fails(tmp_path: Path) -> None:
    """In each later execution; its interrupted message is not an answer."""
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


def test_a_file_that_is_not_a_journal_is_an_error_before_the_start(tmp_path: Path) -> None:
    """The error names the problem with the file, without uvicorn's traceback."""
    (tmp_path / "runs.db").write_text("this is no journal, " * 100)
    with pytest.raises(JournalError, match="is no SQLite file"):
        serve(writer_agent(), journal=tmp_path / "runs.db").run(port=0)
