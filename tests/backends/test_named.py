"""Backends by name: one pool of connections for each loop, which no run leaves open."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import pickle
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.scripted_server import DONE, chunk
from support.threaded_server import ThreadedServer, serve_in_thread

from anabranch.agents import Agent, prompt
from anabranch.backends import Fallback, as_backend, connect
from anabranch.backends._named import _pools
from anabranch.commander import Commander, run
from anabranch.commander.errors import BackendError, ConfigurationError
from anabranch.handlers import respond
from anabranch.jobs import ResponseJob
from anabranch.messages import Conversation, Message, Request
from anabranch.testing import ScriptedBackend

HELLO = Request([Message(role="user", content="hi")])


class ChatServer:
    """Answers "river"; a question "fail" is refused, "hang" has no end."""

    def __init__(self) -> None:
        self.requests = 0
        self.clients: list[Any] = []
        self.keys: set[bytes] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            raise RuntimeError("only HTTP")
        body = b""
        while (message := await receive()).get("more_body"):
            body += message["body"]
        body += message.get("body", b"")
        self.requests += 1
        self.clients.append(scope["client"])
        self.keys |= {value for name, value in scope["headers"] if name == b"authorization"}
        asked = json.loads(body)["messages"][-1]["content"]
        status, kind = (400, b"text/plain") if asked == "fail" else (200, b"text/event-stream")
        headers = [(b"content-type", kind)]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        if asked == "hang":
            first = chunk({"content": "ri"})
            await send({"type": "http.response.body", "body": first, "more_body": True})
            while (await receive())["type"] != "http.disconnect":
                pass
        reply = chunk({"content": "river"}, "stop") + DONE
        await send({"type": "http.response.body", "body": b"no" if status == 400 else reply})


@pytest.fixture(scope="module")
def server() -> Generator[ThreadedServer]:
    with serve_in_thread(ChatServer()) as served:
        yield served


@pytest.fixture(autouse=True)
def address(
    server: ThreadedServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Generator[None]:
    monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}v1")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
        gc.collect()
    assert "Unclosed" not in caplog.text
    assert not any(loop for loop in _pools if not loop.is_closed())


def open_sockets() -> int:
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
    return found


def require_no_connection(server: ThreadedServer, sockets: int) -> None:
    """Wait until the server's side has seen the close, which is another thread's work."""
    deadline = time.monotonic() + 20
    while server.do(lambda: len(server.server.server_state.connections)):
        assert time.monotonic() < deadline, "a connection stays open"
    while open_sockets() > sockets:
        assert time.monotonic() < deadline, "a socket stays open"


# --- property: no program leaves a task or a connection

AGENT = Agent("openai:river")
OTHER = Agent(Fallback(["openai:river", "openai:delta"]))


async def ask(question: str) -> None:
    """Ask, directly or through another backend of the same name."""
    try:
        if question.startswith("complete"):
            text = (await as_backend("openai:river").complete(HELLO)).content
        else:
            agent = OTHER if question == "other" else AGENT
            text = (await agent(question)).text
        assert text == "river"
    except BackendError:
        assert question == "fail"


async def in_commander(questions: list[str]) -> None:
    async with Commander() as commander:
        calls = [commander.call_handler(AGENT.call(each)) for each in questions]
        for call in calls:
            with suppress(BackendError):
                await call


async def cancelled(begun: Callable[[], Coroutine[Any, Any, Any]], turns: int) -> None:
    """Cancel after some turns of the loop, or as soon as the reply has begun."""
    task = asyncio.create_task(begun())
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError, BackendError):
        await task


async def left_early() -> None:
    stream = as_backend("openai:river").stream(Request([Message(role="user", content="hang")]))
    async for _ in stream:
        break
    await stream.aclose()


SLOW = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
QUESTIONS = st.sampled_from(["hi", "other", "fail", "complete"])
ACTIONS: st.SearchStrategy[Callable[[], Awaitable[Any]]] = st.one_of(
    QUESTIONS.map(lambda each: lambda: ask(each)),
    st.lists(QUESTIONS.filter(lambda q: q != "complete"), max_size=3).map(
        lambda each: lambda: in_commander(each)
    ),
    st.integers(0, 60).map(lambda turns: lambda: cancelled(lambda: ask("hang"), turns)),
    st.integers(0, 60).map(
        lambda turns: lambda: cancelled(lambda: in_commander(["hi", "hang"]), turns)
    ),
    st.just(left_early),
)


async def program(actions: list[Callable[[], Awaitable[Any]]], together: bool) -> None:
    if together:
        await asyncio.gather(*(each() for each in actions))
    else:
        for each in actions:
            await each()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert _pools == {}


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("loop"), st.lists(ACTIONS, max_size=3), st.booleans()),
            st.tuples(st.just("run"), st.sampled_from(["hi", "fail"]), st.just(False)),
            st.tuples(st.just("thread"), st.just("hi"), st.just(False)),
        ),
        min_size=1,
        max_size=3,
    )
)
@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=SLOW,
)
def test_no_sequence_of_runs_leaves_a_task_or_a_connection(
    server: ThreadedServer, programs: list[tuple[str, Any, bool]]
) -> None:
    sockets = open_sockets()
    for kind, what, together in programs:
        if kind == "loop":
            asyncio.run(program(what, together))
        elif kind == "run":
            with suppress(BackendError):
                assert run(AGENT.call(what)).text == "river"
        else:
            thread = threading.Thread(target=AGENT.run_sync, args=(what,))
            thread.start()
            thread.join()
        require_no_connection(server, sockets)


# --- the pool


async def test_calls_under_one_commander_share_connections(server: ThreadedServer) -> None:
    """Of all agents with that name, also of commanders inside; the next commander opens another."""
    app: ChatServer = server.app
    app.clients.clear()

    async def inside() -> None:
        async with Commander() as inner:
            await inner.run(Agent("openai:river").call("hi"))

    async with Commander() as commander:
        await commander.run(AGENT.call("hi"))
        await inside()
        assert (await as_backend("openai:river").complete(HELLO)).content == "river"
        assert len(_pools) == 1
    assert len(app.clients) == 3
    assert len({*app.clients}) == 1
    assert _pools == {}

    await AGENT("hi")
    await AGENT("hi")
    assert len({*app.clients}) == 3


async def test_a_commander_beside_keeps_the_pool_open(server: ThreadedServer) -> None:
    async with Commander() as commander:
        await commander.run(AGENT.call("hi"))
        pool = [*_pools.values()]
        await asyncio.create_task(AGENT("hi"))
        assert [*_pools.values()] == pool
    assert _pools == {}


async def test_entering_a_backend_keeps_its_pool_open(server: ThreadedServer) -> None:
    app: ChatServer = server.app
    app.clients.clear()
    backend = as_backend("openai:river")
    async with backend:
        await AGENT("hi")
        async with backend:
            await AGENT("hi")
        await AGENT("hi")
    await backend.aclose()
    assert len(app.clients) == 3
    assert len({*app.clients}) == 1
    assert _pools == {}


async def test_a_block_needs_no_key_where_the_models_are_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    backend = as_backend("openai:river")
    with AGENT.override(backend=ScriptedBackend("replaced")):
        async with backend:
            assert (await AGENT("hi")).text == "replaced"
        assert _pools == {}
    with pytest.raises(ConfigurationError, match="no key"):  # at the start of a real server
        await backend.__aenter__()
    assert _pools == {}


async def test_the_key_is_read_at_each_opening(
    server: ThreadedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    app: ChatServer = server.app
    monkeypatch.delenv("OPENAI_API_KEY")
    agent = Agent("openai:river")
    with pytest.raises(ConfigurationError, match=r"openai: no key\. Set OPENAI_API_KEY"):
        await agent("hi")
    assert _pools == {}
    for key in "sk-first-12345678", "sk-second-12345678":
        monkeypatch.setenv("OPENAI_API_KEY", key)
        await agent("hi")
        assert f"Bearer {key}".encode() in app.keys
        assert key not in as_backend("openai:river").redact(f"the key {key}.")
        assert key not in repr(agent)


async def test_everything_that_takes_a_backend_takes_a_name() -> None:
    @prompt
    def question(about: str) -> None:
        """Where is {about}?"""

    conversation = Conversation()
    conversation.add("hi")
    assert await question.with_backend("openai:river")("it") == "river"
    async with Commander() as commander:
        job = ResponseJob("openai:river", conversation)
        assert (await commander.run(job)).content == "river"
        handler = respond("openai:river", conversation)
        assert (await commander.run(handler)).content == "river"


def test_a_name_pickles_and_has_no_settings() -> None:
    agent = pickle.loads(pickle.dumps(AGENT.backend))
    assert repr(agent) == "NamedBackend('openai:river')"
    assert (agent.model, agent.provider, agent.item_provider) == (
        "river",
        "openai",
        connect("openai:river").item_provider,
    )
    assert agent.server == connect("openai:river").server


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("oepnai:gpt-5", r"unknown model 'oepnai:gpt-5': did you mean 'openai:gpt-5'\?"),
        ("gpt-5", "put the provider before it, such as 'openai:gpt-5'"),
        ("openai:", "no model: use 'openai:MODEL'"),
        ("local:foo", "no local model 'foo'"),
        ("http://user:secret@h:1/v1", r"'http://h:1/v1' is the address of a server, which needs"),
        ("http://h:70000/v1", "is not the address of a server"),
    ],
)
def test_a_wrong_name_is_refused_when_the_agent_is_made(name: str, why: str) -> None:
    makers: list[Callable[[], Any]] = [
        lambda: Agent(name),
        lambda: as_backend(name),
        lambda: Fallback([ScriptedBackend(), name]),
    ]
    for make in makers:
        with pytest.raises(ConfigurationError, match=why) as caught:
            make()
        assert "secret" not in str(caught.value)


def test_an_agent_by_name_imports_no_sdk_before_its_first_use() -> None:
    code = (
        "import sys; from anabranch.agents import Agent\n"
        "from anabranch.testing import ScriptedBackend\n"
        "agent = Agent('openai:gpt-5-mini')\n"
        "with agent.override(backend=ScriptedBackend('x')): print(agent.run_sync('Hi').text)\n"
        "print([name for name in ('openai', 'aiohttp') if name in sys.modules])"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OPENAI")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment
    )
    assert (done.stdout, done.stderr) == ("x\n[]\n", "")
