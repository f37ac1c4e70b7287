"""An MCP server's tools as tools, over pipes and over HTTP."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from support.aiohttp_server import serve_app
from support.leaks import child_processes, find_leaks, thread_ids
from support.paths import PROGRAMS
from support.waiting import run_turns, wait_until

from anabranch import Part
from anabranch.agents import Agent, AgentMessage, ToolExecutor
from anabranch.commander import (
    Commander,
    ConfigurationError,
    MissingExtra,
    NodeCancelled,
    ToolError,
    current_node,
)
from anabranch.handlers import handler
from anabranch.tools import InvalidArguments, McpServer, _mcp_connection, open_tools

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="counts processes in /proc")

PROGRAM = str(PROGRAMS / "mcp_server.py")
# Prints forever, but slowly enough to leave the processor to others.
GARBAGE = "import time\nwhile not time.sleep(0.001):\n    print('garbage', flush=True)"
STDIO = [sys.executable, PROGRAM, "stdio"]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    command = [sys.executable, PROGRAM, "http"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as serving:
        assert serving.stdout is not None
        yield f"http://127.0.0.1:{int(serving.stdout.readline())}/mcp"
        serving.kill()


@pytest.fixture(params=["stdio", "http"])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[McpServer]:
    target = STDIO if request.param == "stdio" else request.getfixturevalue("url")
    async with asyncio.timeout(60), McpServer(target, timeout=30, max_output=100) as entered:
        yield entered


async def use(server: McpServer, name: str, /, **arguments: Any) -> str:
    async with asyncio.timeout(30):
        return await server.methods[name].run(arguments)


async def test_a_servers_tools_are_tools(server: McpServer):
    """Name, description, schema, results, images, faults; over pipes as over HTTP."""
    add = server.methods["add"]
    assert (add.name, add.description, add.read_only) == ("add", "Add two numbers.", True)
    assert add.parameters["required"] == ["a"]
    effects = [server.methods[name].effect for name in ("add", "odd.name/here", "long")]
    assert effects == [None, "keyed", None]
    assert await use(server, "add", a=2) == "3"
    assert "a" * 50 + "\n[... 900 characters left out ...]" in await use(server, "long")
    picture = await use(server, "picture")
    assert (picture, getattr(picture, "parts", ())) == (
        "[image 1]",
        (Part.from_url("data:image/png;base64,iVBORw0KGgo="),),
    )
    with pytest.raises(InvalidArguments, match="'x' is not of type 'integer'"):
        await use(server, "add", a="x")
    with pytest.raises(InvalidArguments, match="'a' is a required property"):
        await use(server, "add")
    with pytest.raises(ToolError, match="fail"):
        await use(server, "fail")


async def test_outside_a_tree_an_open_server_is_no_tree():
    """The node of the connection does not become a parent of the user's nodes."""
    async with asyncio.timeout(30), McpServer(STDIO):
        with pytest.raises(LookupError):
            current_node()
    async with asyncio.timeout(30), Commander() as commander, McpServer(STDIO):
        assert current_node() is commander
        assert [child.path for child in commander.children] == ["Commander/mcp_connection#1"]


async def test_odd_names_become_such_as_every_model_may_call(server: McpServer):
    """They remain distinct."""
    names = [tool.name for tool in server.tools]

    assert "odd_name_here" in names
    assert "odd_name_here_2" in names
    assert await use(server, "odd.name/here") == "odd"
    assert await use(server, "odd_name_here") == "other"


async def test_an_executor_finds_them_by_name(server: McpServer):
    """A toolkit like any other."""
    executor = ToolExecutor([server])
    for name in ("add", "McpServer.add"):
        call = {"name": name, "parameters": {"a": 1, "b": 1}}
        assert (await executor(AgentMessage(content=call))).content == "2"


@pytest.mark.parametrize("kind", ["stdio", "http"])
async def test_a_tool_that_hangs_is_given_up(kind: str, url: str):
    """The server continues."""
    async with McpServer(STDIO if kind == "stdio" else url, timeout=0.3) as server:
        with pytest.raises(ToolError, match=r"hang did not finish within 0.3 s"):
            await use(server, "hang")
        server.timeout = 30
        assert await use(server, "add", a=1) == "2"


async def test_a_server_that_dies_fails_its_calls_alone(url: str):
    """The program and other servers continue."""
    async with McpServer(STDIO) as one, McpServer(url) as two:
        with pytest.raises(ToolError, match="the MCP server failed: Connection closed"):
            await use(one, "die")
        with pytest.raises(ToolError, match="the MCP server failed"):
            await use(one, "add", a=1)
        assert await use(two, "add", a=1) == "2"
    with pytest.raises(KeyError):
        await use(two, "add", a=1)


async def test_a_cancelled_call_is_cancelled_on_the_server(tmp_path: Path):
    """The server gets the cancellation, and continues with other calls."""
    async with asyncio.timeout(30), McpServer(STDIO) as server, Commander() as commander:

        @handler
        async def work(node: Any) -> Any:
            call = {"name": "hang", "parameters": {"path": str(tmp_path)}}
            return await ToolExecutor([server])(AgentMessage(content=call))

        working = commander.call_handler(work(), claim=True)
        await wait_until((tmp_path / "started").exists)
        working.cancel()
        with pytest.raises(NodeCancelled):
            await working
        await wait_until((tmp_path / "cancelled").exists)
        assert await use(server, "add", a=1) == "2"


@pytest.mark.parametrize("first", [0, 1, 3, 6, 10, 20, 50, 100, 200])
async def test_cancelled_again_in_every_turn_while_connecting_no_process_is_left(first: int):
    """The SDK's own clean-up can be interrupted by a second cancel, so it is sent one at most."""
    before = child_processes()
    connection = _mcp_connection.Connection(
        McpServer([sys.executable, "-c", "import sys; sys.stdin.read()"])
    )
    holding = asyncio.create_task(connection.task())
    await run_turns(first)
    while not holding.done():
        holding.cancel()
        await asyncio.sleep(0)
    assert holding.cancelled()
    assert child_processes() <= before


async def test_only_harmless_variables_reach_the_server(monkeypatch: pytest.MonkeyPatch):
    """The server also gets the variables in `env`."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    async with McpServer(STDIO, env={"GIVEN": "yes"}) as server:
        assert await use(server, "environment", name="OPENAI_API_KEY") == "unset"
        assert await use(server, "environment", name="GIVEN") == "yes"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("/nowhere/server", "No such file"),
        ("/bin/false", "Connection closed"),
        ([sys.executable, "-c", "import sys; sys.exit('no such option')"], "no such option"),
        ("sleep 1000", "did not answer within 0.2 s"),
        ([sys.executable, "-c", GARBAGE], "did not answer within 0.2 s"),
        ("http://127.0.0.1:9/mcp", "ConnectError"),
        ("", "it is empty"),
        ("'unclosed", "No closing quotation"),
    ],
    ids=["missing", "dead", "refusing", "hanging", "garbage", "unreachable", "empty", "quotes"],
)
async def test_what_is_no_server_is_a_clear_error(command: Any, said: str):
    """No process is left."""
    before = child_processes()
    timeout = 0.2 if "within 0.2 s" in said else 20
    with pytest.raises(ConfigurationError, match=r".") as raised:
        async with asyncio.timeout(30), McpServer(command, connect_timeout=timeout):
            pass

    assert said in str(raised.value)
    assert not find_leaks(child_processes, before)


@pytest.mark.parametrize("answer", ["html", "500", "hang"])
async def test_a_web_server_that_speaks_no_mcp_is_a_clear_error(answer: str):
    """Whatever the server answers."""

    async def reply(request: web.Request) -> web.Response:
        if answer == "hang":
            await asyncio.Event().wait()
        return web.Response(status=500 if answer == "500" else 200, text="<html>", headers={
            "Content-Type": "text/html"})  # fmt: skip

    timeout = 0.2 if answer == "hang" else 20
    app = web.Application()
    app.router.add_route("*", "/mcp", reply)
    async with serve_app(app) as url:
        with pytest.raises(ConfigurationError, match=r"127.0.0.1"):
            async with asyncio.timeout(30), McpServer(f"{url}/mcp", connect_timeout=timeout):
                pass


def test_a_cancelled_conversation_leaves_no_server_behind():
    """The connection is a child of the node that entered it."""
    before = child_processes()

    async def main() -> None:
        ready = asyncio.Event()

        @handler
        async def talk(node: Any) -> None:
            async with McpServer(STDIO) as server:
                assert [child.path for child in node.children] == [
                    "Commander/talk#1/mcp_connection#2"
                ]
                ready.set()
                await use(server, "hang")

        async with asyncio.timeout(60), Commander(slow_after=None) as commander:
            talking = commander.call_handler(talk(), claim=True)
            await ready.wait()
            assert child_processes() - before
            talking.cancel()
            with pytest.raises(NodeCancelled):
                await talking
            assert not find_leaks(child_processes, before)

    asyncio.run(main())
    still = thread_ids()
    asyncio.run(main())
    assert not find_leaks(thread_ids, still)
    assert not find_leaks(child_processes, before)


async def test_a_server_is_entered_once_at_a_time(url: str):
    """It may be entered again after its block."""
    server = McpServer(url)
    async with server:
        with pytest.raises(RuntimeError, match="already connected"):
            await server.__aenter__()
        assert await use(server, "add", a=1) == "2"
    async with server:
        assert await use(server, "add", a=1) == "2"
    await server.aclose()


async def test_tools_are_opened_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str):
    """Python, web, servers and modules in one list; harmful tools wait for approval."""
    (tmp_path / "mine.py").write_text("def one(): 'One.'\ndef two(): 'Two.'\n")
    monkeypatch.chdir(tmp_path)
    async with open_tools("python, web,mine:one,two", f"mcp:{url}") as tools:
        approve = {tool.name: tool.approve for tool in tools}
        assert list(approve)[:5] == ["python", "web_search", "web_read", "one", "two"]
        assert approve["python"] is approve["add"] is True
        assert approve["web_search"] is approve["one"] is False

    command = f"mcp:{sys.executable} -c 'import sys; sys.exit(\"a,b\")'"
    with pytest.raises(ConfigurationError, match="a,b"):
        async with open_tools(command):
            pass


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("no_such_module", "cannot import the tools module"),
        ("python,python", "two tools called .python., from .*PythonKernel"),
        ("mcp:", "it is empty"),
        ("web,mcp:/nowhere/x", "No such file"),
        ("mcp:'x", "No closing quotation"),
    ],
)
async def test_a_wrong_name_says_what_is_wrong(spec: str, said: str):
    """One error, and nothing stays open."""
    before = child_processes()
    with pytest.raises(ConfigurationError, match=said):
        async with open_tools(spec):
            pass
    assert not find_leaks(child_processes, before)


async def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch):
    """The error comes when the server is entered."""
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(MissingExtra, match=r"anabranch\[mcp\]"):
        async with McpServer("x"):
            pass


async def test_an_agents_hooks_leave_a_servers_schema_as_it_is(url: str):
    """The model sees the server's schema, and arguments are checked by it."""
    async with McpServer(url) as server:
        agent = Agent(tools=[server])
        agent.before_action(lambda agent, message, session_id: None)
        hooked = {tool.name: tool for tool in agent.hooked_tools(0)}["add"]

        assert hooked.parameters == server.methods["add"].parameters
        with pytest.raises(InvalidArguments):
            hooked.check({"a": "many"})


async def test_a_server_with_two_tools_of_one_name_is_refused(monkeypatch: pytest.MonkeyPatch):
    """The second would answer for the first. Nothing stays open."""
    before = child_processes()
    listed = _mcp_connection._list_tools

    async def twice(client: Any) -> Any:
        return 2 * await listed(client)

    monkeypatch.setattr(_mcp_connection, "_list_tools", twice)
    with pytest.raises(ConfigurationError, match="has two tools called 'add'"):
        async with McpServer(STDIO):
            pass
    await wait_until(lambda: child_processes() == before)
