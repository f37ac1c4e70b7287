"""Two tools of one name are refused wherever tools are put together, and the error names both."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.paths import PROGRAMS

from anabranch.agents import Agent, StepAgent, ToolExecutor
from anabranch.commander import Commander, ConfigurationError
from anabranch.handlers import call_tools, respond
from anabranch.messages import Conversation, Message, ToolCall
from anabranch.testing import ScriptedBackend
from anabranch.tools import McpServer, PythonKernel, Toolkit, describe, open_tools, tool


@tool(name="delete", approve=True)
def careful(path: str) -> str:
    """Delete a file."""
    return path


@tool(name="delete", read_only=True)
def careless(path: str) -> str:
    """Delete a file at once."""
    return path


class Files(Toolkit):
    @tool
    def delete(self, path: str) -> str:
        """Delete a file."""
        return path


class Twins(Toolkit):
    @tool(name="delete")
    def one(self) -> str:
        return ""

    @tool(name="delete")
    def two(self) -> str:
        return ""


async def none() -> Any:
    return
    yield


async def answer(tools: Any) -> object:
    async with Commander() as commander:
        return await commander.run(respond(ScriptedBackend(["hi"]), Conversation(), tools))


PLACES: list[Callable[[Any], Any]] = [
    lambda tools: Agent(ScriptedBackend(["hi"]), tools=tools),
    ToolExecutor,
    describe,
    answer,
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("tools", [[careful, careless], [careless, careful], [careful, Files()]])
async def test_two_tools_of_one_name_are_refused(
    place: Callable[[Any], Any], tools: list[Any]
) -> None:
    """In any order; the error has the origin of both."""
    with pytest.raises(ConfigurationError, match="two tools called 'delete'") as raised:
        if (made := place(tools)) is not None and hasattr(made, "__await__"):
            await made

    for each in tools:
        assert (Files().tools[0] if isinstance(each, Files) else each).source in str(raised.value)


@pytest.mark.parametrize("tools", [[careful, careless], [careless, careful], [careful, careful]])
async def test_calls_are_not_run_with_two_tools_of_one_name(tools: list[Any]) -> None:
    """Nor if the same tool is listed twice, which a provider would refuse."""
    with pytest.raises(ConfigurationError, match="two tools called 'delete'"):
        call_tools(none(), tools)


async def test_the_model_is_not_asked_with_two_tools_of_one_name() -> None:
    """The exchange fails before the request."""
    backend = ScriptedBackend(["hi"])
    async with Commander() as commander:
        with pytest.raises(ConfigurationError):
            await commander.run(respond(backend, Conversation(), [careful, careless]))

    assert backend.requests == []


def test_no_request_is_made_with_two_tools_of_one_name() -> None:
    """Whichever way the tools reach a backend."""
    with pytest.raises(ConfigurationError, match="two tools called 'delete'"):
        Conversation().request(tools=[careful, careless])


def test_the_second_of_a_thousand_names_is_found_at_once() -> None:
    """Names are not compared pairwise, because a client's request may have many."""
    compared = 0

    class Name(str):
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    tools = [{"name": Name(f"f{number}")} for number in [*range(1000), 999]]
    with pytest.raises(ConfigurationError, match="two tools called 'f999'"):
        Conversation().request(tools=tools)
    assert compared < 5000


def test_a_toolkit_with_two_tools_of_one_name_has_none() -> None:
    """Reading its tools raises."""
    with pytest.raises(ConfigurationError, match=r"Twins\.one and from .*Twins\.two"):
        _ = Twins().tools


def test_an_executor_that_refuses_a_toolkit_takes_nothing_of_it() -> None:
    """Not even the tools before the duplicate."""

    class More(Files):
        @tool
        def another(self) -> str:
            return ""

    executor = ToolExecutor([careful])
    with pytest.raises(ConfigurationError):
        executor.add(More())

    assert list(executor.tools) == ["delete"]
    assert executor.find("delete") is careful
    assert executor.find("More.another") is None


def test_a_long_name_of_two_tools_finds_neither() -> None:
    """With two toolkits of one class, the second does not answer for the first."""

    class Named(Toolkit):
        def __init__(self, name: str, approve: bool) -> None:
            self._made = tool(name=name, approve=approve)(lambda: name)

        @property
        def methods(self) -> dict[str, Any]:
            return {"delete": self._made}

    executor = ToolExecutor([Named("a", True), Named("b", False)])

    assert executor.find("Named.delete") is None
    assert executor.find("Named.a") is executor.find("a")


SERVER = [sys.executable, str(PROGRAMS / "mcp_server.py"), "stdio"]


async def test_tools_of_several_servers_are_told_apart() -> None:
    """By a prefix; without one they are refused, and the error names both servers."""
    async with McpServer(SERVER) as one, McpServer([*SERVER, "again"]) as two:
        with pytest.raises(ConfigurationError) as raised:
            call_tools(none(), [*one.tools, *two.tools])
        assert repr(one) in str(raised.value)
        assert repr(two) in str(raised.value)
        assert "which calls itself 'demo'" in str(raised.value)
    async with McpServer(SERVER) as one, McpServer(SERVER, prefix="b_") as two:
        call_tools(none(), [*one.tools, *two.tools])


async def test_tools_opened_by_name_are_refused_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From two modules."""
    for name in ("names_one", "names_two"):
        (tmp_path / f"{name}.py").write_text(
            "from anabranch import tool\n\n@tool\ndef send() -> str:\n    return ''\n"
        )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=r"names_one\.send and from names_two\.send"):
        async with open_tools("names_one", "names_two"):
            pass


@pytest.mark.parametrize("what", [PythonKernel, print, "python"])
def test_what_is_no_tool_is_refused_where_it_is_given(what: Any):
    """Also the class of a toolkit, whose tools would have no session."""
    for take in lambda: Agent(tools=[what]), lambda: ToolExecutor([what]):
        with pytest.raises(TypeError, match="is not a tool; pass a function"):
            take()
    with pytest.raises(TypeError, match="interpreter must be a Toolkit or None, not"):
        StepAgent(ScriptedBackend(), interpreter=what)


def shout(text: str, times: int = 1) -> str:
    """Repeat a text in capitals."""
    return text.upper() * times


class Speaker:
    def greet(self, name: str) -> str:
        """Greet a person."""
        return f"Hello {name}"


async def test_functions_in_a_list_are_tools_as_by_the_decorator():
    """In agents, executors and `respond`; two of one name are refused as tools are."""
    call = ToolCall(id="1", name="shout", arguments={"text": "hey", "times": 2})
    backend = ScriptedBackend(Message(role="assistant", tool_calls=[call]), "Done.")
    agent = Agent(backend, tools=[shout, Speaker().greet])
    declared = (tool(shout), tool(Speaker().greet))
    assert [each.definition for each in agent.tools] == [each.definition for each in declared]
    assert (await agent("Shout.")).text == "Done."
    assert backend.requests[-1].messages[-1].content == "HEYHEY"
    assert list(ToolExecutor([shout]).tools) == ["shout"]
    with pytest.raises(ConfigurationError, match="two tools called 'shout'"):
        Agent(backend, tools=[shout, tool(shout)])
    with pytest.raises(TypeError, match="a lambda must have name="):
        Agent(backend, tools=[lambda text: text])
