"""Readers on real connections: they leave, stop reading, arrive late, reconnect, and are many."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
from support.raw_client import RawConnection, chat_request, http_request, on_uvicorn
from support.seeds import SEED, example_count
from support.waiting import wait_until

from anabranch import Agent
from anabranch.messages import Delta
from anabranch.serve import Server, serve
from anabranch.serve import _http as http
from anabranch.serve._run_log import RunLog
from anabranch.testing import ScriptedBackend

WORDS = ["one ", "two ", "three ", "four "]


END = [Delta(finish_reason="stop"), Delta(done=True)]


def _gated(**options: Any) -> tuple[ScriptedBackend, Server, list[asyncio.Event]]:
    """Serve an agent whose words arrive one by one, each when its event is set."""
    gates = [asyncio.Event() for _ in WORDS]
    steps = [step for pair in zip(gates, WORDS, strict=True) for step in pair]
    backend = ScriptedBackend(otherwise=lambda _: [*steps, *END], size=None)
    return backend, serve(Agent(backend, "You answer.", name="writer"), **options), gates


async def _leave(reader: RawConnection, how: str) -> None:
    match how:
        case "close":
            await reader.close()
        case "reset":
            await reader.reset()
        case _:
            reader.half_close()


async def _begin(port: int, model: str = "writer") -> str:
    """Start a detached run, and return its id."""
    reader = await RawConnection.connect(
        port, http_request("/runs", {"model": model, "input": "hi"})
    )
    head = await reader.head()
    assert b" 201 " in head
    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    said = (await reader.reader.readexactly(length)).decode()
    await reader.close()
    return said.split('"id":"')[1].split('"')[0]


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("how", ["close", "reset", "half-closed"])
async def test_a_client_that_leaves_closes_the_backend_before_its_next_delta(
    how: str, stream: bool
) -> None:
    """S11: at each delta, for each way to close a socket; streamed or complete."""
    backend, app, gates = _gated()

    async def leave_at(word: int) -> None:
        reader = await RawConnection.connect(port, chat_request(stream=stream))
        if stream:
            await reader.head()
            for _ in range(word and word + 1):  # the first chunk has the role only
                await reader.data()
        await wait_until(lambda: app.runs.running == 1)
        run = app.runs.of("")[0]
        await wait_until(lambda: backend.opened == word + 1 and run.log.last == word)
        assert backend.closed == word
        await _leave(reader, how)
        await wait_until(lambda: backend.closed == word + 1)
        await wait_until(lambda: app.runs.running == 0)
        assert run.status == "cancelled"
        assert [entry.kind for entry in run.log.entries()].count("text") == word
        await reader.close()

    async with on_uvicorn(app) as port:
        for word in range(len(WORDS)):
            await leave_at(word)
            gates[word].set()


async def test_an_incomplete_body_starts_no_run(caplog: pytest.LogCaptureFixture) -> None:
    """S11: and is not logged as an error."""
    backend, app, _ = _gated()
    async with on_uvicorn(app) as port:
        reader = await RawConnection.connect(port, chat_request()[:-5])
        await reader.reset()
        await RawConnection.close(await RawConnection.connect(port, http_request("/v1/models")))
    assert backend.opened == 0
    assert not caplog.records


async def test_a_reader_that_stops_delays_no_other_and_needs_little_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S12, S13: the run ends, another reader gets all of it, and the first one gets an error."""
    words = ["x" * 1000] * 5000
    backend = ScriptedBackend(otherwise=lambda _: [*words, *END], size=None)
    app = serve(Agent(backend, "You answer.", name="writer"))
    monkeypatch.setattr("anabranch.serve._run.RunLog", lambda: RunLog(100_000))
    async with on_uvicorn(app) as port:
        run_id = await _begin(port)
        run = app.runs.find(run_id, "")
        assert run is not None
        slow = await RawConnection.connect(
            port, http_request(f"/runs/{run_id}/events"), buffer=4096
        )
        async with run.reading() as entries:
            seen = [entry.number async for entry in entries]
        assert seen == [*range(1, 5002)]
        assert run.log.first > 4900  # the log is bounded
        *_, last = [line for line in (await _all(slow)).split(b"\n") if line.startswith(b"event: ")]
        assert last == b"event: gone"
        late = await RawConnection.connect(port, http_request(f"/runs/{run_id}/events"))
        assert b" 410 " in await late.head()
        await late.close()


async def _all(reader: RawConnection) -> bytes:
    """Read a chunked response to its end, and close the connection."""
    await reader.head()
    parts: list[bytes] = []
    while size := int(await reader.reader.readline(), 16):
        parts.append(await reader.reader.readexactly(size))
        await reader.reader.readexactly(2)
    await reader.close()
    return b"".join(parts)


async def test_late_returning_and_concurrent_readers_get_the_same() -> None:
    """S10, S12: each gets the same events with the same numbers, from any start."""
    _, app, gates = _gated()
    async with on_uvicorn(app) as port:
        run_id = await _begin(port)
        first = await RawConnection.connect(port, http_request(f"/runs/{run_id}/events"))
        gates[0].set()
        gates[1].set()
        assert [(await first.data())["number"] for _ in range(2)] == [1, 2]
        await first.reset()
        run = app.runs.find(run_id, "")
        assert run is not None
        for gate in gates:
            gate.set()
        every = [
            await RawConnection.connect(port, http_request(f"/runs/{run_id}/events?after={after}"))
            for after in (0, 0, 2, 5, 9)
        ]
        texts = [await _all(reader) for reader in every]
        assert texts[0] == texts[1]
        assert texts[0].endswith(texts[2])
        assert texts[2].startswith(b"event: text\nid: 3\n")
        assert texts[3:] == [b"", b""]
        assert run.status == "completed"


async def test_a_silent_connection_gets_comments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S12: they are not events."""
    monkeypatch.setattr(http, "HEARTBEAT_SECONDS", 0.01)
    _, app, gates = _gated()
    async with on_uvicorn(app) as port:
        reader = await RawConnection.connect(port, chat_request())
        await reader.reader.readuntil(b": still here\n\n")
        await reader.reader.readuntil(b": still here\n\n")
        for gate in gates:
            gate.set()
        texts: list[str] = []
        while (event := await reader.data()) != "[DONE]":
            texts += [choice["delta"].get("content") or "" for choice in event["choices"]]
        assert "".join(texts) == "".join(WORDS)
        await reader.close()


async def test_more_than_max_runs_are_refused() -> None:
    """S15: 429 with Retry-After; after the end of a run the next one can start."""
    _, app, gates = _gated(max_runs=2)
    async with on_uvicorn(app) as port:
        held = [await RawConnection.connect(port, chat_request()) for _ in range(2)]
        await wait_until(lambda: app.runs.running == 2)
        refused = await RawConnection.connect(port, chat_request())
        head = await refused.head()
        assert b" 429 " in head
        assert b"retry-after: 5" in head.lower()
        await held[0].close()
        await wait_until(lambda: app.runs.running == 1)
        for gate in gates:
            gate.set()
        taken = await RawConnection.connect(port, chat_request())
        assert b" 200 " in await taken.head()
        for reader in (refused, taken, held[1]):
            await reader.close()


def _left_open() -> dict[str, int]:
    gc.collect()
    return {
        "tasks": len(asyncio.all_tasks()),
        "threads": threading.active_count(),
        "files": len(os.listdir("/proc/self/fd")),
    }


LEAVE: list[Callable[[RawConnection], Any]] = [RawConnection.close, RawConnection.reset]


async def test_after_random_disconnects_nothing_is_left() -> None:
    """S11: no task, thread, socket, run or open backend, on any wire and at any moment."""
    chance = random.Random(SEED)
    backend = ScriptedBackend(otherwise="word " * 20, size=5, delay=0.001)
    agent = Agent(backend, "You answer.", name="writer")
    app = serve(agent, max_runs=1000, keep=0.0)
    async with on_uvicorn(app) as port:
        await RawConnection.close(await RawConnection.connect(port, http_request("/v1/models")))
        await wait_until(lambda: len(asyncio.all_tasks()) <= 3)
        before = _left_open()

        async def come_and_go() -> None:
            ask = {"model": "writer", "input": "hi", "stream": True}
            asks = [
                chat_request(),
                chat_request(stream=False),
                http_request("/v1/responses", ask),
                http_request("/v1/responses", {**ask, "background": True}),
                http_request("/runs", {"model": "writer", "input": "hi"}),
                chat_request()[:-5],
            ]
            reader = await RawConnection.connect(port, chance.choice(asks))
            for _ in range(chance.randint(0, 40)):
                if chance.random() < 0.5:
                    await asyncio.sleep(0)
                    continue
                try:
                    async with asyncio.timeout(0.001):
                        await reader.reader.readline()
                except (TimeoutError, ConnectionError):
                    break
            await chance.choice(LEAVE)(reader)

        for _ in range(example_count(6, 50)):
            await asyncio.gather(*(come_and_go() for _ in range(20)))
        await wait_until(lambda: app.runs.running == 0)
        await wait_until(lambda: backend.opened == backend.closed)
        await wait_until(lambda: not app.runs.of(""))
        await wait_until(lambda: _left_open() == before)
        assert not agent.memory._sessions
