"""With a journal, runs survive the end of the server's process (S10, S14)."""

from __future__ import annotations

import asyncio
import random
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2 as httpx
import openai
import pytest
from openai import AsyncOpenAI
from programs.restarting import ACTS, WORDS
from support.paths import PROGRAMS
from support.seeds import SEED, example_count
from support.waiting import POLL_SECONDS, wait_until

ENDS = ("response.completed", "response.incomplete", "response.failed")


class Life:
    """A server that can be killed and restarted, on one port and one file."""

    def __init__(self, folder: Path, delay: float) -> None:
        self.folder = folder
        self.delay = delay
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    async def begin(self) -> None:
        """Start the process, and wait until it accepts requests."""
        command = [sys.executable, str(PROGRAMS / "restarting.py"), str(self.folder)]
        with (self.folder / "log.txt").open("ab") as log:
            self.process = subprocess.Popen(  # noqa: ASYNC220 - it is waited for below
                [*command, str(self.port), str(self.delay)], stderr=log
            )
        await wait_until(self._answers)

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "log.txt").read_text()
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def end(self, sig: int = signal.SIGKILL) -> None:
        """End the process, by default with SIGKILL."""
        if self.process is not None:
            self.process.send_signal(sig)
            self.process.wait()
            self.process = None

    def client(self, key: str = "a") -> AsyncOpenAI:
        """Return OpenAI's client for it."""
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0)

    def acts(self) -> list[str]:
        """Return the recorded acts of the tool."""
        path = self.folder / "outside.txt"
        return path.read_text().split() if path.exists() else []


@asynccontextmanager
async def life(folder: Path, delay: float = 0.002) -> AsyncGenerator[Life]:
    """Provide a started server; kill it at the end."""
    one = Life(folder, delay)
    await one.begin()
    try:
        yield one
    finally:
        one.end()


async def read(client: AsyncOpenAI, events: list[Any], response_id: str = "") -> None:
    """Start a response, or reconnect after the last event; read until it or the connection ends."""
    if response_id:
        after: Any = {"starting_after": events[-1].sequence_number} if events else {}
        stream: Any = await client.responses.retrieve(response_id, stream=True, **after)
    else:
        stream = await client.responses.create(
            model="writer", input="hi", background=True, stream=True
        )
    async with stream:
        async for event in stream:
            events.append(event)  # noqa: PERF401 - others look at them meanwhile


def messages(response: Any) -> list[tuple[str, str]]:
    """Return the status and text of each message of the response."""
    return [
        (item.status, item.content[0].text) for item in response.output if item.type == "message"
    ]


def check(response: Any, acts: list[str]) -> None:
    """No finished message lacks text, no text is repeated, and no act happened twice."""
    said = messages(response)
    whole = [text for status, text in said if status == "completed"]
    form = r"<(\d) [0-9a-f]{8} " + re.escape(WORDS) + r"\1>"
    found = [re.fullmatch(form, text) for text in whole]
    assert all(found), said
    assert [each[1] for each in found if each] == [str(n) for n in range(ACTS + 1)], said
    assert {status for status, _ in said} <= {"completed", "incomplete"}
    calls = [item for item in response.output if item.type == "mcp_call"]
    assert [call.name for call in calls] == ["act"] * ACTS
    assert all(call.status in ("completed", "failed") for call in calls)
    assert len(set(acts)) == len(acts)
    # A missing act was a call in doubt: its outcome is unknown, and it was not repeated.
    assert set(acts) >= {
        str(n) for n, call in enumerate(calls) if "done" in (call.output or "").split()
    }


async def test_a_client_reconnects_after_kills(tmp_path: Path) -> None:
    """S10: after random kills the run continues; the client gets each event once, in order."""
    chance = random.Random(SEED)
    events: list[Any] = []
    async with life(tmp_path) as server, server.client() as client:
        reading = asyncio.create_task(read(client, events))
        await wait_until(lambda: events)
        response_id = events[0].response.id
        for _ in range(example_count(2, 12)):
            count = len(events) + chance.randrange(12)
            await wait_until(lambda n=count, r=reading: len(events) >= n or r.done())
            server.end()
            with suppress(openai.APIError, httpx.HTTPError):
                await reading
            if events[-1].type in ENDS:
                break
            await server.begin()
            reading = asyncio.create_task(read(client, events, response_id))
        if server.process is None:
            await server.begin()
        else:
            await reading
        numbers = [event.sequence_number for event in events]
        assert numbers == list(range(len(events)))
        assert events[-1].type == "response.completed", events[-1]
        check(events[-1].response, server.acts())
        again: list[Any] = []
        await read(client, again, response_id)
        assert again == events
        assert await client.responses.retrieve(response_id) == events[-1].response


async def test_a_restarted_server_resumes_the_run_for_its_owner(tmp_path: Path) -> None:
    """S14: it resumes without a client; other users do not find the run."""
    async with (
        life(tmp_path) as server,
        server.client() as client,
        server.client("b") as other,
    ):
        response = await client.responses.create(model="writer", input="hi", background=True)
        await wait_until(server.acts)
        server.end()
        await server.begin()
        with pytest.raises(openai.NotFoundError):
            await other.responses.retrieve(response.id)
        await wait_until(lambda: len(server.acts()) >= ACTS - 1)
        events: list[Any] = []
        await read(client, events, response.id)
        check(events[-1].response, server.acts())


@pytest.mark.long
async def test_a_cancelled_run_stays_cancelled(tmp_path: Path) -> None:
    """A run that a client cancelled does not continue after a restart."""
    async with life(tmp_path, 0.05) as server, server.client() as client:
        response = await client.responses.create(model="writer", input="hi", background=True)
        cancelled = await client.responses.cancel(response.id)
        assert cancelled.status == "cancelled"
        server.end()
        await server.begin()
        assert (await client.responses.retrieve(response.id)).status == "cancelled"
        assert server.acts() == []


@pytest.mark.long
async def test_sigterm_suspends_open_runs(tmp_path: Path) -> None:
    """The next server resumes them, and ends the open message."""
    events: list[Any] = []
    async with life(tmp_path, 0.5) as server, server.client() as client:
        reading = asyncio.create_task(read(client, events))
        await wait_until(lambda: len(events) > 4)  # the message takes seconds
        server.delay = 0.002
        server.end(signal.SIGTERM)
        with suppress(openai.APIError, httpx.HTTPError):
            await reading
        assert events[-1].type not in ENDS
        await server.begin()
        await read(client, events, events[0].response.id)
        assert [event.sequence_number for event in events] == list(range(len(events)))
        check(events[-1].response, server.acts())
        assert messages(events[-1].response)[0][0] == "incomplete"


async def test_a_question_waits_again(tmp_path: Path) -> None:
    """S16: a call that waited for approval waits again, with its number, and can be approved."""
    headers = {"Authorization": "Bearer a"}
    async with (
        life(tmp_path) as server,
        httpx.AsyncClient(base_url=server.url, headers=headers, timeout=30) as client,
    ):
        asked = {"model": "writer", "input": "please"}
        run = (await client.post("/runs", json=asked)).json()["id"]
        last = await numbered(client, run, 0, "asked")
        for number in range(1, ACTS + 1):
            if number <= example_count(1, ACTS):
                server.end()
                await server.begin()
            assert (await client.get(f"/runs/{run}")).json()["last"] == last
            address, yes = f"/runs/{run}/answers/{number}", {"approved": True}

            async def answered(address: str = address, yes: Any = yes) -> bool:
                return (await client.post(address, json=yes)).status_code == 200

            while not await answered():  # noqa: ASYNC110 - it is asked again when the run is there
                await asyncio.sleep(POLL_SECONDS)
            last = await numbered(client, run, last, "asked" if number < ACTS else "completed")
        assert server.acts() == [str(n) for n in range(ACTS)]


async def numbered(client: httpx.AsyncClient, run: str, after: int, kind: str) -> int:
    """Read a run after an entry until one of this kind; return its number."""
    number = after
    async with client.stream("GET", f"/runs/{run}/events?after={after}") as stream:
        async for line in stream.aiter_lines():
            if line.startswith("id: "):
                assert int(line[4:]) == number + 1
                number += 1
            found = re.fullmatch(r"event: (\w+)", line)
            if found and found[1] == kind:
                return number + (0 if line.startswith("id") else 1)
    raise AssertionError(f"there was no {kind}")
