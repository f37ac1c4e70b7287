"""The executor takes and returns messages, and every failure is a result."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch import ConfigurationError
from anabranch.agents import AgentHook, AgentMessage, ToolExecutor
from anabranch.commander import Commander, NodeCancelled, ToolError, current_node
from anabranch.handlers import handler
from anabranch.messages import Message, ToolCall
from anabranch.tools import Toolkit, tool


@tool(read_only=True)
async def add(a: int, b: int = 1) -> int:
    """Add."""
    return a + b


@tool
def broken() -> str:
    raise OSError("disk full")


@tool(timeout=0.01)
async def slow() -> None:
    await asyncio.Event().wait()


class Shelf(Toolkit):
    def __init__(self) -> None:
        self.books: list[str] = []

    @tool(name="shelf_put")
    async def put(self, title: str) -> int:
        """Put a book on the shelf."""
        self.books.append(title)
        return len(self.books)


def call(name: str, **parameters: Any) -> AgentMessage:
    return AgentMessage(sender="writer", content={"name": name, "parameters": parameters})


async def test_a_call_in_a_message_is_answered_by_a_message():
    """Its content is text, its `output` the results, and it goes back to the sender."""
    answer = await ToolExecutor([add])(call("add", a=2))

    assert (answer.content, answer.sender, answer.receiver) == ("3", "ToolExecutor", "writer")
    assert answer.extra == {"status": "ok"}
    assert [(r.content, r.name, r.status) for r in answer.output] == [("3", "add", "ok")]


@pytest.mark.parametrize(
    "said",
    [
        {"name": "add", "arguments": {"a": 2}},
        {"name": "add", "arguments": '{"a": 2}'},
        '{"name": "add", "parameters": {"a": 2}}',
        {"tool_type": "plugin", "thought": "", "action": {"name": "add", "parameters": {"a": 2}}},
        {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}},
        ToolCall(id="c", name="add", arguments={"a": 2}),
        Message(role="assistant", tool_calls=[ToolCall(id="c", name="add", arguments={"a": 2})]),
        [{"name": "add", "parameters": {"a": 2}}],
    ],
)
async def test_a_call_may_be_written_in_the_usual_ways(said: Any):
    """A mapping, JSON text, a parser's action, the wire's shape, a `ToolCall`, a `Message`."""
    executor = ToolExecutor([add])

    assert (await executor(AgentMessage(content=said))).content == "3"
    assert (await executor(AgentMessage(content="text", output=said))).content == "3"


async def test_a_toolkits_method_is_called_by_its_dotted_name_and_by_its_tools_name():
    """`Shelf.put` is the method, `shelf_put` what a model reads."""
    shelf = Shelf()
    executor = ToolExecutor([shelf])

    assert (await executor(call("Shelf.put", title="a"))).content == "1"
    assert (await executor(call("shelf_put", title="b"))).content == "2"
    assert (await executor(call("Shelf.shelf_put", title="c"))).content == "3"
    assert shelf.books == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("message", "status", "said"),
    [
        (call("nothing"), "invalid", "no tool 'nothing'; the tools are: add, broken, slow"),
        (call("add", a="x"), "invalid", "a: Input should be a valid integer"),
        (call("add"), "invalid", "a: Field required"),
        (call("broken"), "failed", "OSError: disk full"),
        (call("slow"), "failed", "slow did not finish within 0.01 seconds"),
        (AgentMessage(content="no json"), "invalid", "not a tool call in JSON"),
        (AgentMessage(content="[" * 100_000), "invalid", "not a tool call in JSON"),
        (AgentMessage(content=None), "invalid", "not a tool call with 'name'"),
        (AgentMessage(content=[]), "invalid", "holds no tool call"),
        (AgentMessage(content=[3]), "invalid", "not a tool call with 'name'"),
        (AgentMessage(content={"name": 3}), "invalid", "has no 'name'"),
        (AgentMessage(content={"name": "add", "parameters": [1]}), "invalid", "a JSON object"),
        (AgentMessage(content={"name": "add", "parameters": "{"}), "invalid", "not valid JSON"),
        (AgentMessage(content={"name": "add", "id": 3}), "invalid", "not a tool call"),
    ],
)
async def test_whatever_is_wrong_is_a_result_with_a_status(
    message: AgentMessage, status: str, said: str
):
    """The executor itself never raises."""
    answer = await ToolExecutor([add, broken, slow])(message)

    assert answer.extra == {"status": status}
    assert said in answer.content


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(["add", "{}"]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["name", "parameters", "action", "function", "id", "a"]), inner
            )
        ),
        max_leaves=8,
    )
)
def test_no_message_makes_the_executor_raise(content: Any):
    """Invalid messages give a result too."""
    answer = asyncio.run(ToolExecutor([add])(AgentMessage(content=content)))

    assert answer.extra["status"] in ("ok", "invalid", "failed")
    assert answer.output
    json.dumps(answer.content)


async def test_one_wrong_call_concerns_no_other():
    """The calls of a message run at once and answer in order."""
    calls = [{"name": n, "parameters": p} for n, p in [("broken", {}), ("add", {"a": 1})]]
    answer = await ToolExecutor([add, broken])(AgentMessage(content=calls))

    assert [each.status for each in answer.output] == ["failed", "ok"]
    assert answer.content == "Error: OSError: disk full\n2"


async def test_each_call_is_a_node_below_the_node_that_asked():
    """Its path shows its position in the tree."""
    paths: list[str] = []

    @tool
    async def where() -> None:
        paths.append(current_node().path)

    @handler
    async def ask(node: Any) -> AgentMessage:
        return await ToolExecutor([where])(call("where"))

    async with Commander() as commander:
        await commander.run(ask())

    assert paths == ["Commander/ask#1/execute_tools#2/where#3"]


async def test_cancelling_the_asker_cancels_the_calls():
    """No call continues in the background."""
    started, stopped = asyncio.Event(), asyncio.Event()

    @tool
    async def hang() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    @handler
    async def ask(node: Any) -> AgentMessage:
        return await ToolExecutor([hang])(call("hang"))

    async with asyncio.timeout(5), Commander() as commander:
        asking = commander.call_handler(ask(), claim=True)
        await started.wait()
        asking.cancel("enough")
        with pytest.raises(NodeCancelled):
            await asking

    assert stopped.is_set()


async def test_hooks_see_and_change_messages_until_they_are_removed():
    """Plain and async hooks run before and after, in the order of their registration."""
    executor = ToolExecutor([add])
    seen: list[str] = []

    def before(owner: Any, message: AgentMessage, session_id: object) -> AgentMessage:
        assert owner is executor
        seen.append("before")
        return message.model_copy(update={"content": {"name": "add", "parameters": {"a": 40}}})

    async def after(owner: Any, message: AgentMessage, session_id: object) -> None:
        seen.append(f"after {message.content}")

    handles = [executor.before_action(before), executor.after_action(after)]

    assert (await executor(call("add", a=1))).content == "41"
    assert seen == ["before", "after 41"]

    for handle in (*handles, *handles):
        handle.remove()
    assert (await executor(call("add", a=1))).content == "2"
    assert len(seen) == 2


@pytest.mark.parametrize("moment", ["before_action", "after_action"])
async def test_a_hook_that_raises_is_a_failed_result(moment: str):
    """The result names the error."""
    executor = ToolExecutor([add])

    async def bad(owner: Any, message: AgentMessage, session_id: object) -> None:
        raise ToolError("not today")

    getattr(executor, moment)(bad)
    answer = await executor(call("add", a=1))

    assert answer.extra == {"status": "failed"}
    assert "not today" in answer.content


def test_two_tools_of_one_name_are_refused():
    """A model could not tell them apart."""
    with pytest.raises(ValueError, match="two tools called 'add'"):
        ToolExecutor([add, add])


# --- hooks and the blocking form


class Doubling(AgentHook):
    """Doubles the argument of `add`, and notes the results."""

    def __init__(self) -> None:
        self.results: list[str] = []

    def before_action(self, agent: Any, message: AgentMessage, session_id: Any) -> AgentMessage:
        found = {"name": "add", "parameters": {"a": 2 * message.content["parameters"]["a"]}}
        return message.model_copy(update={"content": found})

    async def after_action(self, agent: Any, message: AgentMessage, session_id: Any) -> None:
        self.results.append(message.text)


class After:
    """Not an `AgentHook`, and with one of the methods."""

    def after_action(self, agent: Any, message: AgentMessage, session_id: Any) -> AgentMessage:
        return message.model_copy(update={"content": f"{message.text}!"})


async def test_objects_with_hooks_are_called_around_the_calls_until_they_are_removed() -> None:
    doubling = Doubling()
    executor = ToolExecutor([add], hooks=[doubling, After()])
    assert (await executor(call("add", a=3))).text == "7!"
    assert doubling.results == ["7"]
    handle = executor.add_hook(After())
    assert (await executor(call("add", a=3))).text == "7!!"
    handle.remove()
    assert (await executor(call("add", a=3))).text == "7!"


def test_an_object_without_a_hook_for_actions_is_refused() -> None:
    class BeforeAgent:
        def before_agent(self, *_: Any) -> None: ...

    class Misspelt:
        def before_actions(self, *_: Any) -> None: ...

    with pytest.raises(ConfigurationError, match="neither before_action nor after_action"):
        ToolExecutor([add], hooks=[BeforeAgent()])
    with pytest.raises(ConfigurationError, match="did you mean 'before_action'"):
        ToolExecutor([add], hooks=[Misspelt()])


def test_the_blocking_form_runs_in_a_loop_of_its_own() -> None:
    assert ToolExecutor([add]).run_sync(call("add", a=3), timeout=10).text == "4"
    with pytest.raises(TimeoutError):
        ToolExecutor([endless]).run_sync(call("endless"), timeout=0.01)


@tool
async def endless() -> None:
    await asyncio.Event().wait()
