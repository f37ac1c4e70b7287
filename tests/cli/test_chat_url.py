"""`--url`: a server answers in the chat, over connections that break, and is not trusted."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from support.aiohttp_server import serve_app
from support.chat_command import environment
from support.openai_client import on_uvicorn
from support.seeds import example_count
from support.waiting import wait_until

from anabranch import Agent, Commander, Job, NodeCancelled
from anabranch.cli._http import BadServer, address_of
from anabranch.cli.chat._approval_rules import ApprovalRules
from anabranch.cli.chat._partner import MessageRefused, RunPartner
from anabranch.cli.chat._server_runs import find_server
from anabranch.commander.errors import ConfigurationError
from anabranch.messages import Message, ToolCall, Usage
from anabranch.serve import serve
from anabranch.testing import ScriptedBackend, deltas
from anabranch.tools import AnyTool, Decision, Tool
from tests.cli.test_chat_served import Report, Seen, ask, calling, double, roles, user, wipe

TEXT = "one two three four five six seven"


def writer(*replies: Any, **options: Any) -> Agent[Any]:
    backend = ScriptedBackend(*replies, otherwise=TEXT)
    return Agent(backend, name="writer", **options)


@asynccontextmanager
async def cutting(url: str, cuts: Callable[[int], int | None]) -> AsyncGenerator[str]:
    """A proxy before a server that closes connection n to a run's events after `cuts(n)` bytes."""
    port = int(url.rpartition(":")[2])
    seen = 0

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal seen
        there, back = await asyncio.open_connection("127.0.0.1", port)
        left: int | None = None

        async def forward() -> None:
            nonlocal seen, left
            while data := await reader.read(65536):
                if b"/events?" in data:
                    left = cuts(seen)
                    seen += 1
                back.write(data)

        async def answer() -> None:
            nonlocal left
            while data := await there.read(65536):
                if left is not None:
                    data, left = data[:left], left - len(data)
                writer.write(data)
                with suppress(ConnectionError):
                    await writer.drain()
                if left is not None and left <= 0:
                    return

        forwarding = asyncio.create_task(forward())
        try:
            with suppress(ConnectionError):
                await answer()
        finally:
            forwarding.cancel()
            await asyncio.wait([forwarding])
            for each in writer, back:
                each.close()

    working: set[asyncio.Task[None]] = set()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(pass_on(reader, writer))
        working.add(task)

    server = await asyncio.start_server(begin, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)


class Allowing(Seen):
    """A view that records the tool it is asked about."""

    tool: AnyTool

    async def ask(self, call: ToolCall, tool: AnyTool) -> bool | Decision:
        self.tool = tool
        return True


async def test_always_holds_for_the_tool_as_the_server_defines_it(tmp_path: Path) -> None:
    """The rule applies after a restart, but not to another tool with this name."""

    def remove(disk: str) -> str:
        return f"removed {disk}"

    others = [
        Tool(remove, name="wipe", description=wipe.description, approve=True),
        Tool(wipe.function, name="wipe", description="Wipe gently.", approve=True),
    ]
    seen: list[AnyTool] = []
    for there in (wipe, wipe, *others):
        view = Allowing()
        agent = writer(calling("wipe", disk="a"), "Done.", tools=[there])
        async with on_uvicorn(serve(agent)) as url:
            await ask(await find_server(url), "hi", view)
        view.tool.source = "the same address"
        seen.append(view.tool)
    rules, call = ApprovalRules(tmp_path / "rules.json", tmp_path), ToolCall(id="c", name="wipe")
    rules.add(seen[0])
    assert [rules.allows(call, each) for each in seen] == [True, True, False, False]


async def test_a_server_answers_with_its_tools_and_hears_what_was_said() -> None:
    """S19: each request has the earlier messages; tool calls and texts are shown."""
    agent = writer(calling("double", number=4), "It is 8.", "And more.", tools=[double])
    async with on_uvicorn(serve(agent)) as url:
        partner, view = await find_server(f"{url}/"), Seen()
        assert partner.name == "writer"
        assert (await ask(partner, "hi", view)).content == "It is 8."
        await ask(partner, "more", view)
    assert view.said == ["Let me see.", "It is 8.", "And more."]
    assert view.shown == ["double {'number': 4}", "-> 8 ok"]
    backend: Any = agent.backend
    assert [each.content for each in backend.requests[-1].messages][-3:] == [
        "hi",
        "It is 8.",
        "more",
    ]


async def test_what_is_used_there_is_charged_here() -> None:
    """The tree charges the tokens of a run under the name of its agent."""
    usage = Usage(input_tokens=3, output_tokens=4)
    agent = writer(Message(role="assistant", content="hi", usage=usage))
    async with on_uvicorn(serve(agent)) as url:
        partner = await find_server(url)
        async with Commander() as tree:
            await tree.call_handler(partner.answer(user("q"), Seen()))
    assert tree.usage()["writer"].total_tokens == 7


@pytest.mark.parametrize(
    ("says", "told"),
    [(True, "wiped a"), (False, "Error"), (Decision(True, {"disk": "b"}), "Error")],
)
async def test_the_person_says_whether_a_tool_runs_there(says: Any, told: str) -> None:
    """S16: a yes approves exactly that call; edited arguments cannot be sent and deny it."""
    agent = writer(calling("wipe", disk="a"), "Done.", tools=[wipe])
    async with on_uvicorn(serve(agent)) as url:
        partner, view = await find_server(url), Seen(says)
        assert (await ask(partner, "hi", view)).content == "Done."
    assert [each.arguments for each in view.asked] == [{"disk": "a"}]
    assert told in view.shown[-1]


async def test_a_connection_may_break_at_every_byte() -> None:
    """Wherever the connection breaks, the text arrives once, complete and in order."""
    agent = writer(calling("double", number=4), *[TEXT] * 3000, tools=[double])
    notes: list[str] = []
    async with on_uvicorn(serve(agent)) as url:
        for at in range(0, 1300, example_count(131, 3)):
            async with cutting(url, lambda n, at=at: at if n < 3 else None) as cut:
                partner = await find_server(cut, note=notes.append, pauses=[0.0] * 5)
                view = Seen()
                answer = await ask(partner, "hi", view)
                assert answer.content == TEXT
                assert view.said[-1] == TEXT
                assert "".join(view.said).count("seven") == 1
    assert len(notes) > 10


async def test_a_server_that_is_lost_is_given_up_and_the_part_is_kept() -> None:
    """After the last attempt an error says so, and the text so far stays."""
    notes: list[str] = []
    async with (
        on_uvicorn(serve(writer([*deltas(TEXT), asyncio.Event()]))) as url,
        cutting(url, lambda n: 800 if n == 0 else 0) as cut,
    ):
        partner, view = await find_server(cut, note=notes.append, pauses=[0.0] * 3), Seen()
        with pytest.raises(BadServer, match="3 times"):
            await ask(partner, "hi", view)
    assert len(notes) == 3
    kept = roles(partner)
    assert kept[-1][0] == "assistant"
    assert TEXT.startswith(kept[-1][1] or "-")
    assert view.said == [kept[-1][1]]


async def test_a_cancel_stops_the_run_there() -> None:
    """Ctrl-C at any moment stops the run on the server and keeps the messages."""
    draw = random.Random(1)
    for _ in range(example_count(8, 60)):
        app = serve(writer([*deltas(TEXT), asyncio.Event()]))
        async with on_uvicorn(app) as url:
            partner, view = await find_server(url), Seen()
            async with Commander(policy="isolate") as tree:
                node = tree.call_handler(partner.answer(user("q"), view))
                wait = draw.randrange(0, 400)
                for _ in range(wait):
                    await asyncio.sleep(0)
                node.cancel("stop")
                with suppress(NodeCancelled):
                    await node
            assert roles(partner)[0] == ("user", "q")
            await wait_until(lambda app=app: not app.runs.running)
            assert "".join(view.said) == (roles(partner)[1][1] if len(roles(partner)) > 1 else "")


class Broken(Job[str]):
    question: str

    async def task(self) -> str:
        raise ValueError("a secret of the inside")


async def test_failures_and_refusals_are_told_as_the_server_tells_them() -> None:
    """A failed run and a refused message are one line each."""
    async with on_uvicorn(serve(Broken, Report)) as url:
        with pytest.raises(BadServer, match="Broken: The run failed"):
            await ask(await find_server(url, "Broken"), "hi")
        report = await find_server(url, "Report")
        with pytest.raises(MessageRefused, match="'pages' is missing"):
            await ask(report, "hi")
        assert report.messages() == ()
        with pytest.raises(ConfigurationError, match=r"--name\. It serves: Broken, Report"):
            await find_server(url)
        with pytest.raises(ConfigurationError, match=r"unknown 'x'\. It serves"):
            await find_server(url, "x")

        async def choose(names: Any) -> str:
            return names[1]

        assert (await find_server(url, choose=choose)).name == "Report"


async def test_a_key_comes_from_the_environment_and_is_never_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ANABRANCH_TOKEN is sent without a line end after it, and no error contains it."""
    async with on_uvicorn(serve(writer(), auth="sesame-1")) as url:
        with pytest.raises(BadServer, match="ANABRANCH_TOKEN"):
            await find_server(url)
        monkeypatch.setenv("ANABRANCH_TOKEN", "sesame-1\n")
        partner = await find_server(url)
        assert (await ask(partner, "hi")).content == TEXT
        assert "sesame" not in repr(vars(partner))
    monkeypatch.setenv("ANABRANCH_TOKEN", "se\nsame")
    with pytest.raises(ConfigurationError) as error:
        await find_server(url)
    assert "same" not in str(error.value)


# --- servers of another kind


async def raw(answers: dict[str, Any]) -> web.Application:
    async def answer(request: web.Request) -> web.StreamResponse:
        found = answers[f"{request.method} {request.path}"]
        if callable(found):
            return await found(request)
        return found if isinstance(found, web.StreamResponse) else web.json_response(found)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    return app


MODELS = {"object": "list", "data": [{"id": "m"}]}


def events(*chunks: bytes, hang: bool = False) -> Any:
    """Send chunks over the first connection, and nothing over later ones."""
    left = [*chunks]

    async def send(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        while left:
            await response.write(left.pop(0))
        if hang:
            await asyncio.Event().wait()
        return response

    return send


def entry(number: Any, kind: str = "text", **data: Any) -> bytes:
    said = {"number": number, "text": "part", "speech": "1", "agent": "m", **data}
    return f"event: {kind}\ndata: {json.dumps(said)}\n\n".encode()


async def talk_to(*chunks: bytes, **answers: Any) -> tuple[RunPartner, Seen, BaseException]:
    """Send a message to a server whose run sends these chunks; return the outcome."""
    app = await raw(
        {
            "GET /runs": {"runs": []},
            "GET /v1/models": MODELS,
            "POST /runs": {"id": "r/1"},
            "GET /runs/r/1/events": events(*chunks),
            "POST /runs/r/1/cancel": {},
            **answers,
        }
    )
    async with serve_app(app) as url:
        partner, view = await find_server(url, pauses=[0.0]), Seen()
        with pytest.raises(BadServer) as error:
            await ask(partner, "hi", view)
    return partner, view, error.value


@pytest.mark.parametrize(
    ("chunks", "why"),
    [
        ([b"data: {\n\n"], "sent an invalid entry"),
        ([b"data: [1]\n\n"], "not a JSON object"),
        ([b"data: " + b"[" * 100_000 + b"\n\n"], "Recursion"),
        ([b"data: \xc3\n\n"], "utf-8"),
        ([entry(2)], "entry 2 comes after entry 0"),
        ([entry(1), entry(1)], "entry 1 comes after entry 1"),
        ([entry(-1)], "not a number"),
        ([entry(True)], "not a number"),
        ([entry(1e30)], "not a number"),
        ([entry("1")], "not a number"),
        ([entry(1, text=5)], "the field text is missing"),
        ([entry(1, "called", arguments="{}", call="x")], "the field name is missing"),
        ([entry(1, "answered", call="1", status="odd")], "status"),
        ([entry(1, "asked", question=[])], "not a number"),
        ([entry(1, "gone")], "discarded a part"),
        ([entry(1, "failed", message={"a": "\x1b[31m"})], "m: {'a'"),
        ([entry(1, "cancelled")], "stopped on the server"),
        ([entry(1), b'event: text\ndata: {"number": 2'], "failed 1 times more"),
        ([b"event: text\ndata: \xe2\x82"], "failed 1 times more"),
        ([], "failed 1 times more"),
        ([b"x" * 17_000_000], "too long"),
        ([b"data: x\n"] * 100 + [b"data: " + b"x" * 1_700_000 + b"\n"] * 10, "a line is too long"),
    ],
)
async def test_a_hostile_server_gives_an_error_and_the_part_is_kept(
    chunks: list[bytes], why: str
) -> None:
    """Any invalid data gives an error of one line, and the text before stays."""
    partner, view, error = await talk_to(*chunks)
    assert why in str(error)
    assert str(error).isprintable()
    assert len(str(error)) < 700
    before = "part" if chunks and chunks[0] == entry(1) else None
    assert (roles(partner)[1][1] if len(roles(partner)) > 1 else None) == before
    assert view.said == ([before] if before else [])


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"id": 5}, "has no id"),
        ({"id": ".."}, "has no id"),
        ([], "not a JSON object"),
        ({}, "'id'"),
        (web.Response(status=500, text="<html>"), "Is it an Anabranch server"),
        (web.Response(status=307, headers={"Location": "http://x:y@evil/?a"}), "redirects to"),
    ],
)
async def test_a_run_that_cannot_begin(answer: Any, why: str) -> None:
    """An invalid response is an error; a redirect is not followed, since it would get the key."""
    _, _, error = await talk_to(**{"POST /runs": answer})
    assert why in str(error)
    assert "x:y" not in str(error)


ASKED = entry(1, "asked", question=7, name="wipe", arguments='{"disk": "a"}')


async def test_a_question_that_is_settled_elsewhere_is_asked_no_more() -> None:
    """If the page answers or the run ends, the question disappears."""
    for rest in (
        [entry(2, "decided", question=7), entry(3, "completed", status="ok")],
        [entry(2, "completed", status="ok")],
    ):
        answers = {
            "GET /runs": {"runs": []},
            "GET /v1/models": MODELS,
            "POST /runs": {"id": "r"},
            "GET /runs/r/events": events(ASKED, *rest),
        }
        async with serve_app(await raw(answers)) as url:
            view = Seen(asyncio.Event())
            await ask(await find_server(url), "hi", view)


@pytest.mark.parametrize(
    ("status", "why"),
    [(500, "Is it an Anabranch server"), (401, "requires a valid key"), (404, "Is it an")],
)
async def test_an_answer_that_is_not_taken_ends_the_turn(status: int, why: str) -> None:
    """An answer that the server refuses is an error."""

    async def hang(request: web.Request) -> web.StreamResponse:
        return await events(ASKED, hang=True)(request)

    answer = web.Response(status=status)
    more = {"GET /runs/r/1/events": hang, "POST /runs/r/1/answers/7": answer}
    _, view, error = await talk_to(**more)
    assert view.asked
    assert why in str(error)


async def test_an_answer_to_what_is_settled_already_is_told_and_harmless() -> None:
    """The first of two answers counts, and the second gets a note."""
    told = asyncio.Event()

    async def settled(request: web.Request) -> web.Response:
        told.set()
        return web.Response(status=409)

    async def later(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(ASKED)
        await told.wait()
        await response.write(entry(2) + entry(3, "completed", status="ok"))
        return response

    answers = {
        "GET /runs": {"runs": []},
        "GET /v1/models": MODELS,
        "POST /runs": {"id": "r"},
        "GET /runs/r/events": later,
        "POST /runs/r/answers/7": settled,
    }
    async with serve_app(await raw(answers)) as url:
        assert (await ask(await find_server(url), "hi", Seen())).content == "part"


async def test_an_end_without_a_stream_of_its_own_is_asked_again() -> None:
    """The chat waits for a server that restarts; a lost run is an error."""
    _, _, error = await talk_to(**{"GET /runs/r/1/events": web.Response(status=404)})
    assert "no longer has this run" in str(error)


async def test_a_server_that_only_speaks_openais_wire_is_told_apart() -> None:
    """An error suggests --model for a server with models and without runs."""

    async def nothing(request: web.Request) -> web.Response:
        return web.Response(status=404)

    async with serve_app(await raw({"GET /runs": nothing, "GET /v1/models": MODELS})) as url:
        with pytest.raises(ConfigurationError, match=f"--model {url}/v1"):
            await find_server(f"{url}/v1/")
    async with serve_app(await raw({"GET /runs": nothing, "GET /v1/models": nothing})) as url:
        with pytest.raises(BadServer, match="Is it an Anabranch server"):
            await find_server(url)
    with pytest.raises(BadServer, match="cannot reach"):
        await find_server(url)


@pytest.mark.parametrize(
    "url", ["", "x", "ftp://x", "http://", "http://[", "http://x:99999", "http://x:y", "https://:1"]
)
def test_what_is_no_address(url: str) -> None:
    """An invalid address is an error before any request."""
    with pytest.raises(ConfigurationError, match="not an http address"):
        address_of(url)


def test_a_key_in_an_address_is_not_shown() -> None:
    """The error says to use the environment variable."""
    with pytest.raises(ConfigurationError) as error:
        address_of("http://me:hunter2@host/")
    assert "hunter2" not in str(error.value)


RESTARTED = """
import asyncio
from pathlib import Path
from anabranch import Agent
from anabranch.testing import ScriptedBackend, deltas

first = [*deltas("one two three"), asyncio.Event()]
again = Path("begun").exists()
Path("begun").touch()
agent = Agent(ScriptedBackend("one two three four" if again else first), name="writer")
"""


@asynccontextmanager
async def a_process(folder: Path, port: int) -> AsyncGenerator[asyncio.subprocess.Process]:
    """Serve things in a separate process."""
    command = [sys.executable, "-m", "anabranch", "serve", "things:agent", "--journal", "runs.db"]
    process = await asyncio.create_subprocess_exec(
        *command, "-p", str(port), cwd=folder, stderr=asyncio.subprocess.PIPE, env=environment()
    )
    try:
        assert process.stderr is not None
        assert b"serving" in await process.stderr.readline()
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


@pytest.mark.long
async def test_a_server_that_was_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    """After kill -9 and a restart, the answer arrives complete and without repetition."""
    (tmp_path / "things.py").write_text(RESTARTED)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    view = Seen()
    async with a_process(tmp_path, port) as process:
        partner = await find_server(f"http://127.0.0.1:{port}", pauses=[0.5] * 60)
        async with Commander(policy="isolate") as tree:
            node = tree.call_handler(partner.answer(user("q"), view))
            await wait_until(lambda: "three" in view.texts[-1])
            process.kill()
            await process.wait()
            async with a_process(tmp_path, port):
                assert (await node).content == "one two three four"
    assert view.said == ["one two three", "one two three four"]
