"""Provider items: servers that refuse a request without their items answer each turn.

`tests/support/strict_server.py` plays the providers. Each conversation has two turns with tools.
"""

from __future__ import annotations

import hashlib
import json
import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from openai import APIError
from support.killed_executions import resume_after_every_row
from support.openai_client import on_uvicorn, open_client
from support.openai_client import serve_to_client as talk_to
from support.scripted_server import DONE, Reply, ScriptedServer, chunk, text
from support.strict_server import KINDS, StrictServer

from anabranch import Agent, Conversation, connect, handler, tool
from anabranch.backends import Backend, Fallback, Retries
from anabranch.commander import Commander, Node
from anabranch.handlers import respond
from anabranch.messages import Message, ProviderItem
from anabranch.serve import serve
from anabranch.store import Durable, Journal, Live, live
from anabranch.testing import ScriptedBackend

SCHEMES = ("http", "openai")
DIGEST = hashlib.sha256(b"ann").hexdigest()


@tool(read_only=True)
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def reach(scheme: str, url: str, **settings: Any) -> Backend:
    """Connect to a server in one of the two ways."""
    if scheme == "http":
        return connect(url, model="tiny", **settings)
    return connect("openai:tiny", base_url=url, api_key="none", **settings)


@handler
async def ask(node: Node[Any], backend: Backend, talk: Conversation, question: str) -> Message:
    talk.add(question)
    return await respond(backend, talk, [add])


async def turn(backend: Backend, talk: Conversation, question: str) -> str | None:
    """Ask a question, and return the answer."""
    async with Commander() as commander:
        return (await commander.run(ask(backend, talk, question))).content


def items(talk: Conversation) -> list[int]:
    """Return how many items each reply has."""
    return [len(each.provider_items) for each in talk if each.role == "assistant"]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fails", [False, True])
async def test_a_server_gets_its_own_data_back(kind: str, scheme: str, fails: bool) -> None:
    """Over two turns with tools, also if each request is sent twice."""
    retries = Retries(attempts=2, backoff=0)
    async with (
        StrictServer(kind, fails=fails) as server,
        reach(scheme, server.url, retries=retries) as backend,
    ):
        talk = Conversation()
        assert await turn(backend, talk, "First?") == "Answer 1."
        assert await turn(backend, talk, "Second?") == "Answer 3."
        assert server.refusals == []
        assert len(server.requests) == 4
        assert items(talk) == ([2, 1, 2, 1] if kind == "gemini" else [1, 1, 1, 1])


@pytest.mark.parametrize("kind", KINDS)
async def test_a_request_without_them_is_refused(kind: str) -> None:
    """Otherwise the server of these tests would prove nothing."""
    async with StrictServer(kind) as server, reach("http", server.url) as backend:
        talk = Conversation()
        await turn(backend, talk, "First?")
        for message in talk:
            message.provider_items.clear()
        with pytest.raises(Exception, match="of reply 0"):
            await turn(backend, talk, "Second?")


@pytest.mark.parametrize("kind", KINDS)
async def test_they_are_left_out_for_another_server(kind: str) -> None:
    """The first server still gets them when the conversation returns to it."""
    async with (
        StrictServer(kind) as one,
        StrictServer("plain") as other,
        reach("http", one.url) as backend,
        reach("openai", other.url) as plain,
    ):
        talk = Conversation()
        await turn(backend, talk, "First?")
        assert await turn(plain, talk, "Second?") == "Answer 3."
        assert other.refusals == []
        del talk.messages[5:]  # they have no items of the first server
        assert await turn(backend, talk, "Third?") == "Answer 3."
        assert one.refusals == []


@pytest.mark.parametrize("kind", KINDS)
async def test_a_fallback_sends_each_server_its_own(kind: str) -> None:
    """The first server is down in the second turn: the other one gets none of its items."""
    async with StrictServer("plain") as other:
        async with StrictServer(kind) as one:
            both = [reach("http", one.url), reach("http", other.url)]
            talk = Conversation()
            await turn(Fallback(both), talk, "First?")
        retries = Retries(attempts=1)
        gone = reach("http", one.url, retries=retries)
        assert await turn(Fallback([gone, both[1]]), talk, "Second?") == "Answer 3."
        assert (one.refusals, other.refusals) == ([], [])
        for each in (*both, gone):
            await each.aclose()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_stored_conversation_keeps_them(kind: str, tmp_path: Path) -> None:
    """As a record, a file and a pickle."""

    def of_file(talk: Conversation) -> Conversation:
        talk.save(tmp_path / "talk.json")
        return Conversation.load(tmp_path / "talk.json")

    def of_record(talk: Conversation) -> Conversation:
        return Conversation.from_record(json.loads(json.dumps(talk.to_record())))

    def of_pickle(talk: Conversation) -> Conversation:
        return pickle.loads(pickle.dumps(talk))

    async with StrictServer(kind) as server, reach("http", server.url) as backend:
        talk = Conversation()
        await turn(backend, talk, "First?")
        for way in (of_record, of_file, of_pickle):
            again = way(talk)
            assert again.to_record()["messages"] == talk.to_record()["messages"]
            assert await turn(backend, again, "Second?") == "Answer 3."
        assert server.refusals == []


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kind", KINDS)
async def test_an_agent_remembers_them(kind: str, scheme: str) -> None:
    """Also if its state is stored between two turns, and if a journal has its sessions."""
    async with StrictServer(kind) as server, reach(scheme, server.url) as backend:
        agent = Agent(backend, name="helper", tools=[add])
        assert (await agent("First?", session_id="s")).content == "Answer 1."
        state = json.loads(json.dumps(agent.state_dict("s")))
        other = Agent(backend, name="helper", tools=[add])
        other.load_state_dict(state, "s")
        for each in agent, other:
            assert (await each("Second?", session_id="s")).content == "Answer 3."
        assert server.refusals == []


async def test_an_agents_sessions_in_a_journal_keep_them(tmp_path: Path) -> None:
    """Another process, here another agent, continues the session."""
    async with StrictServer("deepseek") as server, reach("http", server.url) as backend:
        for number, question in enumerate(["First?", "Second?"]):
            journal = str(tmp_path / "sessions.db")
            agent = Agent(backend, name="helper", tools=[add], journal=journal)
            answer = await agent(question, session_id="s")
            assert answer.content == f"Answer {2 * number + 1}."
            assert answer.reasoning is not None
        assert server.refusals == []


class Talks(Durable[list[str]]):
    backend: Live[Backend] = live()

    async def task(self) -> list[str]:
        talk = self.durable.conversation("talk")
        for question in ("First?", "Second?"):
            talk.add(question)
            await respond(self.backend, talk, [add])
        return [message.model_dump_json() for message in talk]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_run_that_was_killed_sends_the_same_bytes(kind: str, scheme: str) -> None:
    """Killed after each journal entry, it resumes with the requests it would have sent."""
    async with StrictServer(kind) as server, reach(scheme, server.url) as backend:
        began: list[int] = []  # how many requests had come before each execution

        def make() -> Talks:
            began.append(len(server.requests))
            return Talks(backend)

        def check(first: Any, again: Any, rows: int) -> None:
            sent = [json.dumps(body) for body in server.requests]
            replies = sum(row.kind == "reply" for row in first.rows[:rows])
            assert sent[began[-1] :] == sent[: began[1]][replies:]

        await resume_after_every_row(make, check)
        assert began[1] == 4
        assert server.refusals == []


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_cassette_plays_them(kind: str, scheme: str, tmp_path: Path) -> None:
    """Requests of the second turn are found with them, and the messages are equal."""
    talks: list[Conversation] = []
    file = tmp_path / "talk.jsonl"
    async with StrictServer(kind) as server, reach(scheme, server.url) as backend:
        for player in connect(f"cassette:{file}", record=backend), connect(f"cassette:{file}"):
            talks.append(Conversation())
            for question in ("First?", "Second?"):
                await turn(player, talks[-1], question)
        assert len(server.requests) == 4
        assert server.refusals == []
    assert talks[0].messages == talks[1].messages
    with pytest.raises(Exception, match="no reply to this request"):
        talks[1].messages[1].provider_items.clear()
        del talks[1].messages[5:]
        await turn(connect(f"cassette:{file}"), talks[1], "Second?")


@pytest.mark.parametrize("kind", KINDS)
async def test_they_come_through_a_server_of_ours(kind: str) -> None:
    """The model's server and ours each get their own items."""
    async with StrictServer(kind) as server, reach("http", server.url) as backend:
        async with on_uvicorn(serve({"model": backend})) as url:
            for scheme in SCHEMES:
                spec = f"{url}/v1"
                model = (
                    connect(spec, model="model")
                    if scheme == "http"
                    else connect("openai:model", base_url=spec, api_key="none")
                )
                async with model:
                    talk = Conversation()
                    assert await turn(model, talk, "First?") == "Answer 1."
                    assert await turn(model, talk, "Second?") == "Answer 3."
                assert "127.0.0.1" not in json.dumps([each.value for each in items_of(talk)])
        assert server.refusals == []


async def call_and_answer(url: str, wire: str, key: str, *, spoil: bool = False) -> None:
    """Ask as "ann"; send the reply and its results back with only the usual fields, as `key`."""
    arguments, question = '{"a": 9, "b": 9}', {"role": "user", "content": "First?"}
    client: Any
    own: Any
    reply: Any
    async with open_client(url, "ann") as client, open_client(url, key) as own:
        if wire == "chat":
            tools: Any = [{"type": "function", "function": TOOL}]
            more: Any = {"model": "model", "tools": tools}
            first = await client.chat.completions.create(messages=[question], **more)
            said: Any = first.choices[0].message
            reply = said.model_dump(include={"role", "content", "tool_calls"})
            if spoil:
                reply["tool_calls"][0]["function"]["arguments"] = arguments
            results = [
                {"role": "tool", "tool_call_id": each.id, "content": "3"}
                for each in said.tool_calls
            ]
            await own.chat.completions.create(messages=[question, reply, *results], **more)
            return
        more = {"model": "model", "tools": [{"type": "function", **TOOL, "strict": False}]}
        response = await client.responses.create(input=[question], **more)
        calls = [each.model_dump() for each in response.output if each.type == "function_call"]
        kind = "function_call_output"
        outputs: Any = [{"type": kind, "call_id": each["call_id"], "output": "3"} for each in calls]
        if spoil:
            calls[0]["arguments"] = arguments
        await own.responses.create(input=[question, *calls, *outputs], **more)


OTHERS = [{"key": "bob"}, {"spoil": True}, {"keep": 0}]


@pytest.mark.parametrize(
    ("kind", "wire", "change"),
    [
        *((kind, wire, {}) for kind in KINDS for wire in ("chat", "responses")),
        *(("gemini", "chat", change) for change in OTHERS),
    ],
)
async def test_a_server_of_ours_adds_what_its_client_has_dropped(
    kind: str, wire: str, change: dict[str, Any]
) -> None:
    """To an unchanged reply with tool calls, for its owner, while it is stored."""
    settings: dict[str, Any] = {"keep": 300, "key": "ann", "spoil": False, **change}
    keep = settings.pop("keep")
    async with StrictServer(kind) as model, reach("http", model.url) as backend:
        server = serve({"model": backend}, auth=["ann", "bob"], keep=keep)
        async with on_uvicorn(server) as url:
            with suppress(APIError):
                await call_and_answer(url, wire, **settings)
            found = server.runs.with_first_call(f"token {DIGEST}", "model", "call_0_0")
            assert len(found) == bool(keep)
            for each in found:
                await server.runs.delete(each)
            assert server.runs.with_first_call(f"token {DIGEST}", "model", "call_0_0") == []
    assert len(model.requests) == 2
    assert bool(model.refusals) == bool(change)


def items_of(talk: Conversation) -> list[ProviderItem]:
    return [item for message in talk for item in message.provider_items]


TOOL: Any = {"name": add.name, "description": add.description, "parameters": {**add.parameters}}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_client_that_adds_what_it_got_sends_them_back(kind: str) -> None:
    """OpenAI's client with client tools, over chat completions and Responses."""
    async with StrictServer(kind) as server, reach("http", server.url) as backend:
        async with talk_to({"model": backend}) as client:
            tools: Any = [{"type": "function", "function": TOOL}]
            said: list[Any] = []
            for question in ("First?", "Second?"):
                said.append({"role": "user", "content": question})
                for _ in range(2):
                    made = await client.chat.completions.create(
                        model="model", messages=said, tools=tools
                    )
                    reply = made.choices[0].message
                    said.append(reply)
                    said += [
                        {"role": "tool", "tool_call_id": call.id, "content": "3"}
                        for call in reply.tool_calls or ()
                    ]
            assert said[-1].content == "Answer 3."
            tools, listed, answer = [{"type": "function", **TOOL}], list[Any](), ""
            for question in ("First?", "Second?"):
                listed.append({"role": "user", "content": question})
                for _ in range(2):
                    response = await client.responses.create(
                        model="model", input=listed, tools=tools
                    )
                    listed += response.output
                    answer = response.output_text
                    for each in response.output:
                        if each.type == "function_call":
                            result = {"call_id": each.call_id, "output": "3"}
                            listed.append({"type": "function_call_output", **result})
            assert answer == "Answer 3."
        assert server.refusals == []
        assert "127.0.0.1" not in str(said) + str(listed)


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_key_in_them_is_not_written(scheme: str, tmp_path: Path) -> None:
    """If a server echoes the key in an item, no file has it."""
    key = "sk-secret-0123456789/+="
    echo = chunk({"reasoning_content": f"The key is {key[:9]}"})
    call = {"index": 0, "id": "c", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
    signed = {**call, "extra_content": {"signature": key}}
    reply = [echo, chunk({"reasoning_content": key[9:]}), chunk({"tool_calls": [signed]})]
    file, journal = tmp_path / "talk.jsonl", tmp_path / "runs.db"
    async with ScriptedServer(Reply([*reply, chunk(finish="tool_calls"), DONE])) as server:
        settings: Any = {"api_key": key}
        spec = server.url if scheme == "http" else "openai:m"
        settings |= {"model": "m"} if scheme == "http" else {"base_url": server.url}
        async with connect(spec, **settings) as backend:
            recorded = connect(f"cassette:{file}", record=backend)
            talk = Conversation()
            talk.add("First?")
            message = await recorded.complete(talk.request(tools=[add]))
            server.script(Reply([*reply, chunk(finish="tool_calls"), DONE]), text("Answer."))
            async with Journal(journal) as kept:
                await kept.run(Asks(backend), run_id="r")
    assert [key in item.data for item in message.provider_items] == [True, True]
    written = b"".join(each.read_bytes() for each in (file, *files_of(journal)))
    assert key.encode() not in written
    assert key[9:].encode() not in written


def files_of(journal: Path) -> list[Path]:
    return [each for each in journal.parent.glob(f"{journal.name}*") if each.is_file()]


class Asks(Durable[str]):
    backend: Live[Backend] = live()

    async def task(self) -> str:
        talk = self.durable.conversation("talk")
        talk.add("First?")
        return (await respond(self.backend, talk, [add])).content or ""


async def test_a_reply_without_tools_has_none() -> None:
    """No server needs the reasoning of such a reply, so it is not stored twice."""
    async with StrictServer("deepseek") as server, reach("http", server.url) as backend:
        talk = Conversation()
        talk.add("First?")
        message = await backend.complete(talk.request())
        assert message.reasoning
        assert message.provider_items == []


def test_who_has_made_them_is_the_host_of_a_server() -> None:
    """A service has one name by any address; other backends have names of their kind."""
    for spec, settings, name in (
        ("openai:m", {}, "api.openai.com"),
        ("https://api.OpenAI.com/v1", {"model": "m"}, "api.openai.com"),
        ("openai:m", {"base_url": "https://api.deepseek.com"}, "api.deepseek.com"),
        ("mistral:m", {}, "api.mistral.ai"),
        ("http://localhost:8000/v1?key=secret", {"model": "m"}, "localhost:8000"),
    ):
        backend = connect(spec, api_key="none", **settings)  # type: ignore[arg-type]
        assert backend.item_provider == name
    assert connect("https://me:pw@localhost", model="m").item_provider == "localhost"
    assert connect("local").item_provider == "local"
    assert ScriptedBackend("hi").item_provider == "scripted"
