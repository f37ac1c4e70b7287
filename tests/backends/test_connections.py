"""Open connections are closed with their loop."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import warnings
from typing import Any

import pytest
from support.scripted_server import ScriptedServer, text

from anabranch.agents import Agent
from anabranch.backends import Backend, connect
from anabranch.messages import Message, Request

HELLO = Request([Message(role="user", content="hi")])


def open_backend(kind: str, server: ScriptedServer) -> Backend:
    if kind == "http":
        return connect(server.url, model="m")
    return connect("openai:m", base_url=server.url, api_key="k")


@pytest.fixture
def no_complaints(caplog: pytest.LogCaptureFixture) -> Any:
    """Fail if asyncio, aiohttp or the collector reports something left open."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
        gc.collect()
    assert "Unclosed" not in caplog.text


@pytest.mark.usefixtures("no_complaints")
@pytest.mark.parametrize("kind", ["http", "openai"])
async def test_a_backend_that_is_not_closed_leaves_no_connection_behind(kind: str) -> None:
    """With `asyncio.run` in another thread, and with an agent that blocks."""

    def in_a_loop_of_its_own(backend: Backend) -> str | None:
        return asyncio.run(backend.complete(HELLO)).content

    async with asyncio.timeout(60), ScriptedServer(text("river")) as server:
        backend = open_backend(kind, server)
        agent = Agent(open_backend(kind, server))
        for _ in range(2):
            assert await asyncio.to_thread(in_a_loop_of_its_own, backend) == "river"
            assert (await asyncio.to_thread(agent.run_sync, "hi")).content == "river"


def test_a_first_request_does_not_wait_for_modules_of_the_sdk() -> None:
    """The imports take as long as a short reply, and happen when the backend is made."""
    code = (
        "import asyncio, sys; from anabranch.backends import Retries, connect\n"
        "from anabranch.messages import Message, Request\n"
        "address = 'http://127.0.0.1:9/v1'\n"
        "once = Retries(attempts=1)\n"
        "backend = connect('openai:m', base_url=address, api_key='k', retries=once)\n"
        "before = {*sys.modules}\n"
        "hello = Request([Message(role='user', content='Hi')])\n"
        "for asked in backend.complete(hello), backend.embed(['Hi']):\n"
        "    try: asyncio.run(asked)\n"
        "    except Exception as error: assert '127.0.0.1' in str(error)\n"
        "print(sorted(name for name in {*sys.modules} - before if name.startswith('openai')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("[]\n", "")
