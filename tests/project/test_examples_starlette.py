"""The example of a commander inside a Starlette application, called over ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.examples import load_example

from anabranch import Backend, Commander
from anabranch.messages import Request
from anabranch.testing import ScriptedBackend, deltas

EMBED = load_example("embed_starlette")


class Client:
    """One ASGI request. The test reads its response in pieces, and may disconnect."""

    def __init__(self, app: Any, state: dict[str, Any], question: str, user: str = "") -> None:
        self.said: asyncio.Queue[str] = asyncio.Queue()
        self.status = 0
        self._gone = asyncio.Event()
        self._sent = False
        self._question = question
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "path": "/ask",
            "raw_path": b"/ask",
            "query_string": f"user={user}".encode() if user else b"",
            "headers": [],
            "state": dict(state),
        }
        self.answering = asyncio.create_task(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if not self._sent:
            self._sent = True
            return {"type": "http.request", "body": self._question.encode(), "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        self.status = message.get("status", self.status)
        if message.get("body"):
            self.said.put_nowait(message["body"].decode())

    async def read(self) -> str:
        """Read to the end."""
        await self.answering
        return "".join(self.said.get_nowait() for _ in range(self.said.qsize()))

    def leave(self) -> None:
        """Close the connection."""
        self._gone.set()


@asynccontextmanager
async def running(backend: Backend) -> AsyncGenerator[tuple[Any, dict[str, Any], Commander]]:
    app = EMBED.application(backend)
    async with asyncio.timeout(20), app.router.lifespan_context(app) as state:
        yield app, state, state["commander"]


def heard(request: Request) -> str:
    return " ".join(message.content or "" for message in request.messages[1:])


async def test_an_answer_streams_and_each_user_is_remembered_alone() -> None:
    """The client gets the first words before the model continues. Users do not see each other."""
    gate = asyncio.Event()
    first = [*deltas("Paris.")[:1], gate, *deltas("Paris.")[1:]]
    async with running(ScriptedBackend(first, otherwise=heard)) as (app, state, commander):
        client = Client(app, state, "Where?", "ann")
        assert await client.said.get() == "Pari"
        gate.set()
        assert await client.read() == "s.\n"
        asking = [("And then?", "ann"), ("Who?", "ben"), ("Why?", "")]
        clients = [Client(app, state, *each) for each in asking]
        assert [await each.read() for each in clients] == [
            *("Where? Paris. And then?\n", "Who?\n", "Why?\n")
        ]
        assert not commander.children
        assert sorted(state["agent"].memory.sessions) == ["ann", "ben"]


@pytest.mark.parametrize("before", [[], deltas("Paris.")[:1]], ids=["silent", "speaking"])
async def test_a_client_that_goes_away_cancels_its_answer(before: list[Any]) -> None:
    """The model's stream is closed, and the commander is empty. Others continue."""
    asked = asyncio.Event()

    def hang(request: Request) -> list[Any]:
        asked.set()
        return [*before, asyncio.Event()]

    backend = ScriptedBackend(hang, "Paris.")
    async with running(backend) as (app, state, commander):
        client = Client(app, state, "Where?")
        await asked.wait()
        if before:
            await client.said.get()
        assert commander.children
        client.leave()
        await client.answering
        assert not commander.children
        assert (backend.opened, backend.closed) == (1, 1)
        assert await Client(app, state, "Where?").read() == "Paris.\n"


async def test_the_end_of_the_application_waits_for_its_answers() -> None:
    """A response in progress is sent to its end."""
    gate, asked = asyncio.Event(), asyncio.Event()

    def late(request: Request) -> list[Any]:
        asked.set()
        return [gate, *deltas("Paris.")]

    backend = ScriptedBackend(late)
    async with running(backend) as (app, state, commander):
        client = Client(app, state, "Where?")
        await asked.wait()
        assert commander.children
        asyncio.get_running_loop().call_soon(gate.set)
    assert await client.read() == "Paris.\n"
