"""A client in a thread that waits for a model stops at once when its node is cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch import Agent, Commander, Job, Message, NodeCancelled, ToolCall, tool
from anabranch.backends import Backend
from anabranch.messages import Delta, Request
from anabranch.testing import ScriptedBackend

ASK = Request([Message(role="user", content="?")])


class Stalls(Backend):
    """Sends some deltas and then nothing; records when a stream is closed."""

    def __init__(self, given: int) -> None:
        super().__init__("stalls")
        self.given = given
        self.stalled = threading.Event()
        self.closed = threading.Event()

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        try:
            for number in range(self.given):
                yield Delta(str(number))
            self.stalled.set()
            await asyncio.Event().wait()
        finally:
            self.closed.set()


class Reads(Job[None]):
    backend: Stalls
    seen: list[str]
    abandon: bool = False

    def read(self) -> None:
        for delta in self.backend.stream_sync(ASK):
            self.seen.append(delta.text)

    async def task(self) -> None:
        await self.in_thread(self.read, abandon=self.abandon)


async def wait(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, 20)


@given(st.integers(0, 3), st.booleans())
async def test_a_cancel_closes_the_connection_of_a_client_that_waits(
    given: int, abandon: bool
) -> None:
    """At once, although the server sends nothing, and whether or not the thread is awaited."""
    backend, seen = Stalls(given), list[str]()
    async with asyncio.timeout(60), Commander() as commander:
        job = commander.put_job(Reads(backend, seen, abandon))
        await wait(backend.stalled)
        job.cancel()
        with pytest.raises(NodeCancelled):
            await job
        await wait(backend.closed)
    assert seen == [str(number) for number in range(given)]


async def test_a_client_that_is_told_between_two_deltas_stops_at_the_next() -> None:
    """No other delta is requested."""
    backend, seen = Stalls(2), list[str]()
    between, go_on = threading.Event(), threading.Event()

    class Pauses(Reads):
        def read(self) -> None:
            deltas = self.backend.stream_sync(ASK)
            seen.append(next(deltas).text)
            between.set()
            go_on.wait(20)
            seen.append(next(deltas).text)

    async with asyncio.timeout(60), Commander() as commander:
        job = commander.put_job(Pauses(backend, seen))
        await wait(between)
        job.cancel()
        asyncio.get_running_loop().call_soon(go_on.set)
    assert seen == ["0"]
    assert backend.closed.is_set()


@pytest.mark.parametrize("runs", [False, True])
async def test_a_plain_tool_that_asks_a_model_is_told(runs: bool) -> None:
    """Directly or through an agent: its thread continues, its connection does not."""
    backend = Stalls(1)

    @tool
    def ask() -> str:
        """Ask."""
        if runs:
            return Agent(backend).run_sync("?").text
        return "".join(delta.text for delta in backend.stream_sync(ASK))

    calls = Message(role="assistant", tool_calls=[ToolCall(id="c", name="ask")])
    agent = Agent(ScriptedBackend(calls, "done"), tools=[ask])
    async with asyncio.timeout(60), Commander() as commander:
        call = commander.call_handler(agent.call("?"))
        await wait(backend.stalled)
        call.cancel()
        await wait(backend.closed)
