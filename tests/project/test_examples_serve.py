"""The examples that serve an agent: as a program, and inside a FastAPI application."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
import uvicorn
from openai import AsyncOpenAI
from support.aiohttp_server import stop_accepting
from support.chat_command import environment
from support.examples import EXAMPLES, load_example
from support.scripted_server import Reply, ScriptedServer, Step, calls, chunk, text
from support.waiting import wait_until

from anabranch import connect

FILE = EXAMPLES / "serve_agent.py"


def free_port() -> str:
    """Return a port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return str(free.getsockname()[1])


@asynccontextmanager
async def program(server: ScriptedServer) -> AsyncGenerator[str]:
    """Run serve_agent.py with a model of this server; yield the address that it prints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(FILE), "--model", "openai:tiny", "--port", free_port()),
        env=environment(OPENAI_BASE_URL=server.url, OPENAI_API_KEY="sk-test"),
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        yield (await process.stdout.readline()).decode().split()[-1]
    finally:
        process.terminate()
        await process.communicate()


@asynccontextmanager
async def running(app: Any) -> AsyncGenerator[str]:
    """Serve an application on a free port."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        await wait_until(lambda: server.started)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        await stop_accepting(listening.fileno())
        server.should_exit = True
        await serving
        listening.close()


async def test_the_served_agent_answers_a_client_of_openais() -> None:
    """The agent calls its tool. This client cannot approve calls, so others are denied."""
    both = calls(("opening_hours", '{"day": "Sunday"}'), ("reserve", '{"title": "Emma"}'))
    async with (
        asyncio.timeout(60),
        ScriptedServer(both, text("Closed.")) as server,
        program(server) as url,
        AsyncOpenAI(base_url=f"{url}v1", api_key="none", max_retries=0) as client,
    ):
        said = [
            chunk.choices[0].delta.content or ""
            async for chunk in await client.chat.completions.create(
                model="librarian", messages=[{"role": "user", "content": "Open?"}], stream=True
            )
            if chunk.choices
        ]
        heard = {m["tool_call_id"]: m["content"] for m in server.requests[1].body["messages"][-2:]}
    assert "".join(said) == "Closed."
    hours, reserved = heard.values()
    assert hours == "The library is closed on Sunday."
    assert "is reserved" not in reserved


async def test_the_page_of_the_served_agent_reserves_after_a_yes() -> None:
    """Over the page's own wire: question, approval, end."""
    async with (
        asyncio.timeout(60),
        ScriptedServer(calls(("reserve", '{"title": "Emma"}')), text("Done.")) as server,
        program(server) as url,
        aiohttp.ClientSession(url) as client,
    ):
        async with client.get("") as page:
            assert page.content_type == "text/html"
        begin = {"model": "librarian", "input": "Emma, please"}
        async with client.post("runs", json=begin) as answer:
            run = (await answer.json())["id"]
        kinds: list[str] = []
        async with client.get(f"runs/{run}/events") as events:
            async for line in events.content:
                if line.startswith(b"event: "):
                    kinds.append(line.decode().split()[1])
                if line == b"event: asked\n":
                    yes = await client.post(f"runs/{run}/answers/1", json={"approved": True})
                    assert yes.status == 200
                    yes.release()
        assert server.requests[1].body["messages"][-1]["content"] == "'Emma' is reserved."
    assert [kinds[0], kinds[1], kinds[-1]] == ["asked", "decided", "completed"]


def test_a_model_or_a_port_that_cannot_be_had_is_one_line() -> None:
    """The program prints no traceback."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for options, why in (
            (["--model", "nothing"], "unknown model 'nothing'"),
            (["--model", "openai:tiny", "--port", port], "cannot serve at 127.0.0.1"),
        ):
            done = subprocess.run(
                [sys.executable, str(FILE), *options],
                env=environment(OPENAI_API_KEY="sk-test"),
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
            assert done.returncode == 1, done.stderr
            assert done.stderr.startswith(why)
            assert len(done.stderr.splitlines()) == 1


async def test_an_application_has_its_routes_and_the_agent_below() -> None:
    """/health is the application's. /ai answers OpenAI clients and serves the page."""
    embed = load_embed()
    async with (
        asyncio.timeout(60),
        ScriptedServer(text("Hello!")) as server,
        running(embed.application(connect(server.url, model="tiny"))) as url,
        aiohttp.ClientSession() as web,
        AsyncOpenAI(base_url=f"{url}/ai/v1", api_key="none", max_retries=0) as client,
    ):
        async with web.get(f"{url}/health") as answer:
            assert await answer.json() == {"status": "ok"}
        done = await client.chat.completions.create(
            model="writer", messages=[{"role": "user", "content": "Hello"}]
        )
        assert done.choices[0].message.content == "Hello!"
        async with web.get(f"{url}/ai/") as page:
            assert page.content_type == "text/html"


async def test_a_client_that_leaves_stops_the_model_of_the_application() -> None:
    """S11: the model's server sees its connection close."""
    embed = load_embed()
    hang = Reply([chunk({"content": "Once"}), Step.HANG])
    async with (
        asyncio.timeout(60),
        ScriptedServer(hang) as server,
        running(embed.application(connect(server.url, model="tiny"))) as url,
        aiohttp.ClientSession() as web,
    ):
        asked = {"model": "writer", "stream": True}
        asked |= {"messages": [{"role": "user", "content": "Hello"}]}
        answer = await web.post(f"{url}/ai/v1/chat/completions", json=asked)
        assert (await answer.content.readline()).startswith(b"data: ")
        answer.close()
        await server.gone.wait()


def load_embed() -> Any:
    """Import the example. The tests then set its model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANABRANCH_MODEL", "openai:tiny")
        patch.setenv("OPENAI_API_KEY", "sk-test")
        return load_example("embed_fastapi")
