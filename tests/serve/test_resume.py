"""A restarted server answers at once, and resumes persisted runs in the background."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from support.page_client import (
    GREETING,
    entry_kinds,
    serve_in_process,
    wait_for_status,
    writer_agent,
)
from support.seeds import example_count, seeds
from support.waiting import settle_loop

from anabranch.serve import _durable_run, _runs
from anabranch.store import Durable, Journal, _journal
from anabranch.store._codec import Codec
from anabranch.testing import ScriptedBackend

RunLog = _runs.RunLog


class Gate:
    """Blocks the resume of each run until it is opened, and notes the order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened: list[str] = []
        self.closed = True
        self.let = asyncio.Event()
        real = RunLog.open

        async def held(journal: Journal, run_id: str) -> RunLog:
            self.opened.append(run_id.removeprefix("serve/"))
            if self.closed:
                await self.let.wait()
            return await real(journal, run_id)

        monkeypatch.setattr(RunLog, "open", held)

    def open(self) -> None:
        """Open all gates."""
        self.closed = False
        self.let.set()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """The gate before each run."""
    return Gate(monkeypatch)


@asynccontextmanager
async def interrupted(path: Path, count: int, ended: int = 0) -> AsyncGenerator[list[str]]:
    """Yield the ids of runs that a server has left, oldest first; some of them have ended."""
    replies = [*["Hello."] * ended, *[["Hel", asyncio.Event()]] * count]
    async with serve_in_process(writer_agent(*replies), journal=path) as client:
        runs = [(await client.post("/runs", json=GREETING)).json()["id"] for _ in range(ended)]
        for run in runs:
            await wait_for_status(client, run, "completed")
        runs += [(await client.post("/runs", json=GREETING)).json()["id"] for _ in range(count)]
    yield runs


async def test_a_server_answers_before_its_runs_are_resumed(tmp_path: Path, gate: Gate) -> None:
    """At once, also new runs; runs that wait count among `max_runs`."""
    path = tmp_path / "runs.db"
    async with (
        interrupted(path, 3, ended=2) as runs,
        serve_in_process(writer_agent(), journal=path, max_runs=4) as client,
    ):
        assert (await client.get("/v1/models")).status_code == 200
        new = (await client.post("/runs", json=GREETING)).json()["id"]
        assert (await client.post("/runs", json=GREETING)).status_code == 429
        assert "completed" in await entry_kinds(client, new)
        assert (await client.get("/runs/unknown")).status_code == 404
        assert gate.opened == runs[:1]
        gate.open()
        for run in runs:
            assert await wait_for_status(client, run, "completed")
        listed = [each["id"] for each in (await client.get("/runs")).json()["runs"]]
        assert listed == [new, *reversed(runs)]
        for _ in range(4):
            assert (await client.post("/runs", json=GREETING)).status_code == 201


async def test_a_run_that_a_client_asks_for_comes_first(tmp_path: Path, gate: Gate) -> None:
    """The client waits for that run only, on each wire; a list waits for all."""
    path = tmp_path / "runs.db"
    async with (
        interrupted(path, 6) as runs,
        serve_in_process(writer_agent(), journal=path) as client,
    ):
        asking = [
            asyncio.create_task(client.get(address))
            for address in ("/runs", f"/runs/{runs[4]}", f"/v1/responses/resp_{runs[5]}")
        ]
        await settle_loop()
        assert not any(each.done() for each in asking)
        gate.open()
        assert [(await each).status_code for each in asking] == [200, 200, 200]
        assert len(asking[0].result().json()["runs"]) == 6
        assert sorted(gate.opened) == sorted(runs)
        assert gate.opened[:3] == [runs[0], runs[4], runs[5]]


@pytest.mark.parametrize("seed", seeds(example_count(3, 40)))
async def test_clients_get_their_runs_in_any_order(tmp_path: Path, gate: Gate, seed: int) -> None:
    """Each run is resumed once, for any number of requests at any time."""
    draw, path = Random(seed), tmp_path / "runs.db"
    async with (
        interrupted(path, draw.randint(1, 6), ended=draw.randint(0, 3)) as runs,
        serve_in_process(writer_agent(), journal=path) as client,
    ):
        asked = draw.choices(runs, k=draw.randint(1, 8))
        before = [asyncio.create_task(client.get(f"/runs/{run}/events")) for run in asked]
        if draw.random() < 0.5:
            await settle_loop()
        gate.open()
        answers = [await each for each in before]
        assert all("event: completed" in each.text for each in answers)
        for run in runs:
            assert await wait_for_status(client, run, "completed")
        assert sorted(gate.opened) == sorted(runs)


async def test_the_end_of_the_server_is_reported_to_waiting_clients(
    tmp_path: Path, gate: Gate
) -> None:
    """With 503; the next server resumes the other runs."""
    path = tmp_path / "runs.db"
    async with interrupted(path, 2) as runs:
        async with serve_in_process(writer_agent(), journal=path) as client:
            asking = [asyncio.create_task(client.get(f"/runs/{run}")) for run in runs]
            await settle_loop()
        for each in asking:
            answer = await each
            assert answer.status_code == 503
            assert answer.headers["retry-after"]
        gate.open()
        async with serve_in_process(writer_agent(), journal=path) as client:
            for run in runs:
                assert await wait_for_status(client, run, "completed")


async def test_a_damaged_run_does_not_block_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients get 404 for it, and it does not count among `max_runs`."""
    path, real = tmp_path / "runs.db", RunLog.open
    async with interrupted(path, 2) as (bad, good):

        async def failing(journal: Journal, run_id: str) -> RunLog:
            if run_id.endswith(bad):
                raise ValueError("no such thing")
            return await real(journal, run_id)

        monkeypatch.setattr(RunLog, "open", failing)
        async with serve_in_process(writer_agent(), journal=path, max_runs=1) as client:
            assert (await client.get(f"/runs/{bad}")).status_code == 404
            assert await wait_for_status(client, good, "completed")
            assert (await client.post("/runs", json=GREETING)).status_code == 201
    assert f"cannot resume run serve/{bad}" in caplog.text


# --- long inputs


LONG = [
    [("user", "x" * 300_000)],
    [("user", 'é"\\\n\u2028\x00' * 30_000)],
    [(role, f"{number} " * 500) for number in range(200) for role in ("user", "assistant")],
    [("user", "short")] * 700,
]


@pytest.mark.parametrize("said", LONG)
async def test_a_long_input_is_encoded_in_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[tuple[str, str]]
) -> None:
    """No step encodes more than one message or a small note, and the next server reads all."""
    sizes: list[int] = []

    real = Codec.encode

    def counting(codec: Codec, value: Any) -> bytes:
        sizes.append(len(data := real(codec, value)))
        return data

    monkeypatch.setattr(Codec, "encode", counting)
    path = tmp_path / "runs.db"
    messages = [{"role": role, "content": text} for role, text in [*said, ("user", "end")]]
    async with serve_in_process(
        {"writer": ScriptedBackend([asyncio.Event()])}, journal=path
    ) as client:
        run = (await client.post("/runs", json={"model": "writer", "input": messages})).json()["id"]
    longest = max(len(json.dumps(json.dumps(each))) for each in messages)
    assert max(sizes) <= 3 * _durable_run.MAX_NOTE_CHARS + longest
    backend = ScriptedBackend(otherwise="Hello.")
    async with serve_in_process({"writer": backend}, journal=path) as client:
        assert await wait_for_status(client, run, "completed")
    heard = [(each.role, each.content) for each in backend.requests[-1].messages]
    assert heard == [*said, ("user", "end")]


@pytest.mark.parametrize("stored", [0, 1, 2])
async def test_an_incompletely_stored_input_is_given_up(tmp_path: Path, stored: int) -> None:
    """No client knows of that run, and its server has ended."""
    path = tmp_path / "runs.db"
    async with Journal(path) as journal:
        about = {"owner": "", "created": 1.0, "traced": True, "asks": True, "notes": 3}
        await journal.start(_durable_run.DurableAnswer("writer", about), run_id="serve/a")
        for _ in range(stored):
            await journal.note("serve/a", _durable_run.INPUT_NOTE, "{}")
    async with serve_in_process(writer_agent(), journal=path) as client:
        assert (await client.get("/runs")).json()["runs"] == []
    async with Journal(path) as journal:
        assert (await journal.look("serve/a")).run.state == "cancelled"


class Nothing(Durable[None]):
    """A run that has only notes."""

    async def task(self) -> None:
        pass


async def test_notes_share_their_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Making a writer takes longer than the note, and a server writes many."""
    made: list[Any] = []

    def counting(*given: Any) -> Codec:
        made.append(given)
        return Codec(*given)

    monkeypatch.setattr(_journal, "Codec", counting)
    _journal._note_codec.cache_clear()
    async with Journal(":memory:") as journal:
        await journal.start(Nothing(), run_id="a")
        for number in range(5):
            await journal.note("a", "said", number)
        assert await journal.notes("a", "said") == [*range(5)]
    assert len(made) == 1
