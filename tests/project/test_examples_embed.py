"""The example of a commander inside an aiohttp application, over loopback."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from support.aiohttp_server import serve_app
from support.examples import EXAMPLES, load_example
from support.scripted_server import Reply, ScriptedServer, Step, chunk, text

from anabranch import Commander, connect

FILE = EXAMPLES / "embed_aiohttp.py"
EMBED = load_example("embed_aiohttp")


@asynccontextmanager
async def _running(server: ScriptedServer) -> AsyncIterator[tuple[str, Commander]]:
    app = EMBED.application(connect(server.url, model="tiny"))
    async with serve_app(app) as url:
        yield f"{url}/ask", app[EMBED.COMMANDER]


async def test_an_answer_streams_while_the_model_speaks() -> None:
    """The client gets the first words before the model continues."""
    gate = asyncio.Event()
    said = Reply([chunk({"content": "Par"}), gate, chunk({"content": "is."}, "stop")])
    async with (
        asyncio.timeout(20),
        ScriptedServer(said) as server,
        _running(server) as (url, commander),
        aiohttp.ClientSession() as client,
        client.post(url, data="Where?") as response,
    ):
        assert await response.content.read(3) == b"Par"
        gate.set()
        assert await response.text() == "is.\n"
        assert not list(commander.children)
    assert server.requests[0].body["messages"][-1] == {"role": "user", "content": "Where?"}


@pytest.mark.parametrize("before", [[], [chunk({"content": "Par"})]], ids=["silent", "speaking"])
async def test_a_client_that_goes_away_cancels_its_tree(before: list[bytes]) -> None:
    """The model's server sees the connection close, and the commander is empty. Others continue."""
    async with (
        asyncio.timeout(20),
        ScriptedServer(Reply([*before, Step.HANG])) as server,
        _running(server) as (url, commander),
        aiohttp.ClientSession() as client,
    ):
        asking = asyncio.create_task(client.post(url, data="Where?"))
        await server.asked.wait()
        (job,) = commander.children
        ended = asyncio.Event()
        job.at_done(lambda _: ended.set())
        if before:
            assert await (await asking).content.read(3) == b"Par"
            asking.result().close()
        asking.cancel()

        await server.gone.wait()
        await ended.wait()
        assert job.state == "cancelled"
        server.script(text("Paris."))
        async with client.post(url, data="Where?") as response:
            assert await response.text() == "Paris.\n"
        assert not list(commander.children)


async def test_a_model_that_fails_is_told_to_the_client() -> None:
    """A failure before the first words gives an error status. A later one closes the connection."""
    cut = Reply([chunk({"content": "Par"}), Step.DROP])
    async with (
        asyncio.timeout(20),
        ScriptedServer(Reply.error(404, {"message": "no model 'tiny'"}), cut) as server,
        _running(server) as (url, commander),
        aiohttp.ClientSession() as client,
    ):
        async with client.post(url, data="Where?") as response:
            assert (response.status, await response.text()) == (502, "no model 'tiny' (404)\n")
        with pytest.raises(aiohttp.ClientPayloadError):
            async with client.post(url, data="Where?") as response:
                await response.read()
        assert not list(commander.children)


async def test_the_program_says_where_it_listens_and_what_to_try() -> None:
    """The printed command works, and the model of `--model` answers."""
    async with asyncio.timeout(40), ScriptedServer(text("Paris.")) as server:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, str(FILE), "--model", "openai:tiny", "--port", port),
            env={**os.environ, "OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "sk-test"},
            stdout=subprocess.PIPE,
        )
        assert program.stdout is not None
        try:
            await program.stdout.readline()
            (address,) = (
                word
                for word in (await program.stdout.readline()).decode().split()
                if word.startswith("http")
            )
            async with aiohttp.ClientSession() as client, client.post(address, data="?") as reply:
                assert await reply.text() == "Paris.\n"
        finally:
            program.terminate()
            await program.wait()


def test_a_model_that_nobody_knows_is_one_line() -> None:
    """The program prints no traceback."""
    done = subprocess.run(
        [sys.executable, str(FILE), "--model", "nothing"],
        capture_output=True,
        text=True,
        check=False,
        timeout=40,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("unknown model 'nothing'")
    assert len(done.stderr.splitlines()) == 1
