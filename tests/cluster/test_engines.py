"""Engines: backends in actors, which all trees of the cluster use by name."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from contextlib import aclosing
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from support.conformance import HttpSubject, cases, pass_time_after_the_first_delta, show
from support.ray_agents import Held
from support.scripted_server import Reply, ScriptedServer, Step, calls, text, vectors

from anabranch import Commander, Conversation, Message, WorkerLost, connect, tool
from anabranch.agents import ConversableAgent, UserProxyAgent
from anabranch.backends import Backend, Fallback, Limits, Retries, Timeouts
from anabranch.cluster import ActorNotFound, Engine, Ray, remote, serve
from anabranch.commander import (
    BackendUnavailable,
    BudgetExceeded,
    ConfigurationError,
    RateLimited,
)
from anabranch.handlers import View, respond
from anabranch.messages import Request, Usage
from anabranch.testing import ScriptedBackend

pytestmark = pytest.mark.usefixtures("nodes")

HELLO = Request([Message(role="user", content="Say hello.")])
ENGINE_NUMBERS = count()


class RaySubject(HttpSubject):
    """The http backend in an actor, against the scripted server here."""

    async def backend(self, case: str, **settings: Any) -> Backend:
        self.name = f"subject-{next(ENGINE_NUMBERS)}"
        self.wanted = {"timeouts": settings["timeouts"]} if case == "whole timeout" else {}
        await super().backend(case, **settings)
        await self.stack.enter_async_context(serve(self.name, self.served))
        backend = connect(f"ray:{self.name}", **self.wanted)
        if case == "whole timeout":
            pass_time_after_the_first_delta(backend)
        self.stack.push_async_callback(backend.aclose)
        return backend

    def connect(self, address: str, settings: dict[str, Any]) -> Backend:
        self.served = super().connect(address, {} if self.wanted else settings)
        return self.served


@pytest.mark.parametrize(("kind", "case"), cases("ray"))
async def test_an_engine_shows(kind: str, case: str, tmp_path: Path) -> None:
    """Each case of the conformance suite, through the actor."""
    await show(RaySubject(tmp_path), case, seconds=60)


async def test_an_engine_is_used_like_any_backend_in_a_tree() -> None:
    """Tools run locally, options and limits are this tree's, usage is charged to its name."""
    lock = threading.Lock()  # which nothing can send

    @tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        with lock:
            return a + b

    script = [calls(("add", '{"a": 1, "b": 2}')), text("3", ".")]
    async with asyncio.timeout(60), ScriptedServer(*script) as server:
        served = connect(server.url, model="tiny", temperature=1, max_tokens=9)
        async with serve("llm", served):
            backend = connect("ray:llm", temperature=0)
            conversation = Conversation()
            conversation.add("What is 1 plus 2?")
            async with Commander() as commander:
                message = await commander.run(respond(backend, conversation, [add], seed=7))
                assert commander.usage()["llm"].total_tokens > 0
            assert message.content == "3."
            first, second = (request.body for request in server.requests)
            assert (first["temperature"], first["max_tokens"], first["seed"]) == (0, 9, 7)
            assert first["tools"][0]["function"]["name"] == "add"
            assert second["messages"][-1]["content"] == "3"
            async with Commander() as commander:
                commander.limits = Limits(budget=1)
                await commander.run(respond(backend, conversation))
                with pytest.raises(BudgetExceeded):
                    await commander.run(respond(backend, conversation))


async def test_what_only_the_engine_knows_reaches_it_in_extra() -> None:
    """From the settings of a backend and of a request; other unknown options are refused here."""
    async with asyncio.timeout(60), ScriptedServer(text("Hi")) as server:
        async with serve("llm", connect(server.url, model="tiny")):
            backend = connect("ray:llm", extra={"order": "count"})
            assert (await backend.complete(HELLO)).content == "Hi"
        assert server.requests[0].body["order"] == "count"
    with pytest.raises(ConfigurationError, match="RayBackend has no option 'order'"):
        connect("ray:llm", order="count")


async def test_an_engine_embeds_for_every_tree() -> None:
    """Its usage is charged to its name in this tree, and its errors are raised here."""
    refused = Reply.error(429, "slowly", Retry_After="900")
    async with asyncio.timeout(60), ScriptedServer(vectors("a", "bc", usage=40), refused) as server:
        async with serve("llm", connect(server.url, model="tiny", retries=Retries(1))):
            backend = connect("ray:llm")
            async with Commander() as commander:
                assert await backend.embed(["a", "bc"]) == [[1.0, 1.0], [2.0, 1.0]]
                assert commander.usage() == {"llm": Usage(input_tokens=40)}
            with pytest.raises(RateLimited) as caught:
                await backend.embed(["a"])
            assert caught.value.retry_after == 900
        async with serve("none", lambda: Fallback([ScriptedBackend("Hi")])):
            with pytest.raises(ConfigurationError, match="makes no embeddings"):
                await connect("ray:none").embed(["a"])


async def test_leaving_an_embedding_ends_it_there() -> None:
    """The engine's connection closes before the cancel is over."""
    async with (
        asyncio.timeout(60),
        ScriptedServer(Reply([Step.HANG])) as server,
        serve("llm", connect(server.url, model="tiny")),
    ):
        asking = asyncio.create_task(connect("ray:llm").embed(["a"]))
        await server.asked.wait()
        asking.cancel()
        await asyncio.wait([asking])
        assert asking.cancelled()
        await server.gone.wait()


async def test_an_agent_elsewhere_uses_an_engine_elsewhere() -> None:
    """By its name, and nothing else is sent."""
    async with (
        asyncio.timeout(60),
        serve("llm", ScriptedBackend("The Nile."), on=Ray(num_cpus=0, resources={"left": 1})),
        remote(ConversableAgent, "bob", connect("ray:llm")) as bob,
    ):
        user = UserProxyAgent(human_input_mode="NEVER", max_consecutive_auto_reply=0)
        assert (await user.send("Which is the longest river?", bob)).text == "The Nile."


def test_code_without_a_loop_reads_the_same_stream() -> None:
    """Each call runs in a separate loop."""
    engine = asyncio.run(_served("llm", ScriptedBackend(otherwise="The Nile.")))
    backend = connect("ray:llm")
    for _ in range(2):
        assert "".join(delta.text for delta in backend.stream_sync(HELLO)) == "The Nile."
    asyncio.run(engine.close())


async def _served(name: str, backend: Backend) -> Engine:
    return await serve(name, backend)


class Killing(View):
    """Kills the process of a model after its first text."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, text: str) -> None:
        os.kill(int((self.folder / "pid").read_text()), signal.SIGKILL)


async def test_an_engine_that_is_killed_is_lost(tmp_path: Path) -> None:
    """The received text stays; the same backend reaches a new engine with the name."""
    async with asyncio.timeout(60):
        await serve("llm", Held(tmp_path))
        backend = connect("ray:llm")
        conversation = Conversation()
        conversation.add("Well?")
        with pytest.raises(WorkerLost, match="went away"):
            async with Commander() as commander:
                await commander.run(respond(backend, conversation, view=Killing(tmp_path)))
        assert [message.content for message in conversation.messages] == ["Well?", "Half of it"]
        async with serve("llm", ScriptedBackend("Hello.")):
            assert (await backend.complete(HELLO)).content == "Hello."


async def test_a_cancel_is_heard_whatever_is_under_way() -> None:
    """Also while the engine is located."""
    async with asyncio.timeout(60), serve("llm", ScriptedBackend(otherwise="Hello.", delay=0.1)):
        for tenths in range(1, 81):
            timeouts = Timeouts(first_token=tenths / 10_000)
            with pytest.raises(BackendUnavailable, match="no first token"):
                await connect("ray:llm", timeouts=timeouts, retries=Retries(1)).complete(HELLO)


async def test_a_reader_who_takes_its_time_is_waited_for(tmp_path: Path) -> None:
    """A slow reader renews its lease while its process runs."""
    (tmp_path / "go").touch()
    async with asyncio.timeout(60), serve("llm", Held(tmp_path)):
        said = ""
        async with aclosing(connect("ray:llm", lease=0.6).stream(HELLO)) as deltas:
            async for delta in deltas:
                said += delta.text
                await asyncio.sleep(0.8)  # longer than its lease
    assert said == "Half of it, and the rest."


async def test_no_key_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way to send one is refused with a remedy."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-0123456789")
    for make in (
        lambda: serve("llm", "openai:tiny", api_key="sk-secret-0123456789"),
        lambda: serve("llm", connect("openai:tiny", api_key="sk-secret-0123456789")),
        lambda: serve("llm", ScriptedBackend("sk-secret-0123456789")),
        lambda: serve("llm", "http://127.0.0.1:1/v1?api-key=sk-secret-0123456789", model="tiny"),
    ):
        with pytest.raises(ConfigurationError, match=r"environment|by name") as refused:
            make()
        assert "sk-" not in str(refused.value)


def test_settings_that_nothing_would_use_are_refused() -> None:
    """They are for `connect`; an existing backend has its own."""
    with pytest.raises(TypeError, match="temperature"):
        serve("llm", ScriptedBackend([text("said")]), temperature=0)


async def test_what_cannot_be_loaded_says_so_as_it_does_here() -> None:
    """The name stays free."""
    async with asyncio.timeout(60):
        with pytest.raises(ConfigurationError, match=r"no/such\.gguf"):
            await serve("llm", "local:/no/such.gguf")
        with pytest.raises(ActorNotFound, match="no engine called 'llm'"):
            await connect("ray:llm").complete(HELLO)


async def test_where_no_cluster_is_an_error_says_so() -> None:
    """In a separate process with a wrong address."""
    program = (
        "import asyncio, anabranch as a\n"
        "from anabranch.messages import Request\n"
        "asyncio.run(a.connect('ray:llm').complete(Request([])))"
    )
    async with asyncio.timeout(60):
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            program,
            env=os.environ | {"RAY_ADDRESS": "127.0.0.1:9"},
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await process.communicate()
    assert "ConfigurationError: there is no Ray cluster at 127.0.0.1:9" in said.decode()
