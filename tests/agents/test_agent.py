"""An agent's call: its request, its memory, its answer and its end."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, aclosing
from typing import Any

import pytest
from support.scripted_server import Reply, ScriptedServer, Step, chunk, text

from anabranch import (
    Agent,
    AgentMessage,
    BackendUnavailable,
    BadResponse,
    BudgetExceeded,
    Commander,
    ConfigurationError,
    Job,
    Memory,
    Message,
    Node,
    NodeCancelled,
    Retry,
    ToolCall,
    ToolExecutor,
    connect,
    current_node,
    tool,
)
from anabranch.agents import Aggregator, Chat, ConversableAgent, GroupChat, StringParser
from anabranch.agents.layers import TOOLS
from anabranch.backends import Limits
from anabranch.dispatch import ReAct
from anabranch.handlers import ConsoleView, View
from anabranch.messages import Request, Usage
from anabranch.testing import ScriptedBackend


@tool(read_only=True)
async def look(place: str) -> str:
    """Look somewhere."""
    return f"seen {place}"


def calling(name: str, says: str | None = None, **arguments: Any) -> Message:
    return Message(
        role="assistant",
        content=says,
        tool_calls=[ToolCall(id="c", name=name, arguments=arguments)],
    )


def said(request: Request) -> list[tuple[str, str | None]]:
    return [(message.role, message.content) for message in request.messages]


def remembered(agent: Agent, session_id: int = 0) -> list[tuple[str, str]]:
    return [(m.sender, m.content) for m in agent.memory.get(session_id)]


def hanging() -> tuple[ScriptedBackend, asyncio.Event]:
    """Return a backend that never answers, and an event that its request sets."""
    asked = asyncio.Event()

    async def reply(request: Request) -> str:
        asked.set()
        await asyncio.Event().wait()
        return ""

    return ScriptedBackend(reply), asked


async def test_it_answers_and_remembers() -> None:
    """The request has the prompt, then the memory."""
    backend = ScriptedBackend("Nile", "Amazon")
    agent = Agent(backend, "You answer in one word.", name="sage")

    first = await agent("Which is the longest river?", session_id=0)
    second = await agent(AgentMessage(content="And the widest?", sender="bob"), session_id=0)

    said_first = AgentMessage(content="Nile", sender="sage", extra={"status": "ok"})
    assert first == said_first.model_copy(update={"usage": first.usage})
    assert first.usage.input_tokens > 0
    assert second.content == "Amazon"
    assert said(backend.requests[1]) == [
        ("system", "You answer in one word."),
        ("user", "Which is the longest river?"),
        ("assistant", "Nile"),
        ("user", "And the widest?"),
    ]
    assert remembered(agent)[2:] == [("bob", "And the widest?"), ("sage", "Amazon")]


async def test_outside_a_tree_it_has_a_commander_of_its_own_and_leaves_nothing() -> None:
    """Afterwards the loop has the same tasks as before."""
    before = asyncio.all_tasks()
    agent = Agent(ScriptedBackend("yes"))

    assert (await agent("Is it so?")).content == "yes"
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize(
    ("call", "instead"),
    [
        (lambda: Agent(ScriptedBackend()).run_sync("Hello"), r"await agent\(\.\.\.\)"),
        (
            lambda: ToolExecutor([]).run_sync(AgentMessage(content="Hello")),
            r"await executor\(\.\.\.\)",
        ),
        (
            lambda: Chat(ConversableAgent("a"), ConversableAgent("b"), "Hello").run_sync(),
            r"await alice\.initiate_chat\(bob, \.\.\.\)",
        ),
    ],
)
async def test_run_sync_in_a_loop_says_what_to_await(
    call: Callable[[], object], instead: str
) -> None:
    """It would block the loop."""
    with pytest.raises(
        RuntimeError, match=rf"run_sync cannot be called inside a .*: use {instead}"
    ):
        call()


def test_an_empty_session_id_is_refused() -> None:
    """A request without a user's name must not read the messages of another."""
    with pytest.raises(ConfigurationError, match="session_id must not be empty"):
        Agent(ScriptedBackend("one")).run_sync("a", session_id="")


def test_run_sync_needs_no_loop() -> None:
    """It may be called again: the memory stays."""
    agent = Agent(ScriptedBackend("one", "two"), memory=Memory())

    assert [agent.run_sync("a").content, agent.run_sync("b").content] == ["one", "two"]
    assert len(agent.memory.get()) == 4


class Asks(Job[str]):
    agent: Agent

    async def task(self) -> str:
        return (await self.agent("?")).content


class Where(Agent):
    async def forward(self, message: AgentMessage, session_id: int | str = 0) -> str:
        return current_node().path


async def test_inside_a_node_it_is_a_child() -> None:
    """The node has the agent's name, and its ancestors pay for its usage."""
    usage = Usage(input_tokens=3, output_tokens=1)
    backend = ScriptedBackend(Message(role="assistant", content="x", usage=usage))
    async with Commander() as commander:
        assert await commander.run(Asks(Where(name="where"))) == "Commander/Asks#1/where#2"
        assert await commander.run(Agent(backend).call("?")) is not None


@pytest.mark.parametrize(
    "system",
    [
        "Be brief.",
        Message(role="system", content="Be brief."),
        {"role": "system", "content": "Be brief."},
        [{"role": "system", "content": "Be brief."}],
    ],
)
async def test_the_prompt_may_be_text_a_message_or_a_list(system: Any) -> None:
    """All forms give the same request."""
    assert Agent(ScriptedBackend(), system).aggregate() == [
        Message(role="system", content="Be brief.")
    ]


async def test_options_of_a_call_win_over_the_agents() -> None:
    """Both have the wire's names."""
    backend = ScriptedBackend("a", "b")
    agent = Agent(backend, temperature=0.5, stop=["x"])

    await agent("?", stop=["y"])
    await agent("?")

    assert [request.options for request in backend.requests] == [
        {"temperature": 0.5, "stop": ["y"]},
        {"temperature": 0.5, "stop": ["x"]},
    ]


async def test_what_is_no_message_is_refused() -> None:
    """The error shows the value, and nothing is remembered."""
    agent = Agent(ScriptedBackend())
    wrong: Any = 42

    with pytest.raises(TypeError, match="a Message of the user, not 42"):
        await agent(wrong)
    with pytest.raises(ValueError, match="'role' and a 'content'"):
        Agent(ScriptedBackend(), {"content": "no role"})
    with pytest.raises(ConfigurationError, match="Agent has no backend"):
        await Agent()("?")
    assert agent.memory.sessions == []


async def test_forward_gives_a_message_or_a_string() -> None:
    """A string becomes the agent's message; any other type is an error."""

    class Gives(Agent):
        given: Any = "text"

        async def forward(self, message: AgentMessage, session_id: int | str = 0) -> Any:
            return self.given

    agent = Gives(memory=Memory())
    assert await agent("?") == AgentMessage(content="text", sender="Gives")
    agent.given = None
    with pytest.raises(TypeError, match="must return a message or a text, not None"):
        await agent("?")
    assert len(agent.memory.get()) == 2


async def test_calls_of_tools_are_remembered_with_their_results() -> None:
    """The next request has them in the wire's form."""
    backend = ScriptedBackend(calling("look", "A moment.", place="Oslo"), "Nice.", "Still nice.")
    agent = Agent(backend, tools=[look])

    answer = await agent("How is Oslo?", session_id=0)
    await agent("And now?", session_id=0)

    assert (answer.content, answer.extra["status"]) == ("Nice.", "ok")
    assert [m.type for m in agent.memory.get()] == [None, TOOLS, None, None, None]
    assert said(backend.requests[2]) == [
        ("user", "How is Oslo?"),
        ("assistant", "A moment."),
        ("tool", "seen Oslo"),
        ("assistant", "Nice."),
        ("user", "And now?"),
    ]
    assert [step["kind"] for step in agent.get_steps()[:5]] == [
        *("thought", "call", "result", "thought", "thought")
    ]


async def test_at_max_rounds_the_model_has_to_answer() -> None:
    """The status is "max_rounds"; a model that still calls tools is an error."""
    more = calling("look", place="x")
    backend = ScriptedBackend(more, more, "Enough.")
    answer = await Agent(backend, tools=[look], max_rounds=2)("?")

    assert (answer.content, answer.extra["status"]) == ("Enough.", "max_rounds")
    assert backend.requests[2].options == {"tool_choice": "none"}
    with pytest.raises(BadResponse, match="had to answer without tools"):
        await Agent(ScriptedBackend(otherwise=more), tools=[look], max_rounds=2)("?")


async def test_an_answer_that_was_cut_off_says_so() -> None:
    """The status of a reply at its maximum length is "length"."""
    cut = Message(role="assistant", content="I am", finish_reason="length")

    assert (await Agent(ScriptedBackend(cut))("?")).extra["status"] == "length"


async def test_a_tool_that_wants_a_yes_is_refused_if_nobody_is_there() -> None:
    """A view may approve it."""

    @tool(approve=True)
    async def send(text: str) -> str:
        """Send."""
        return "sent"

    class Yes(View):
        async def approve(self, call: ToolCall) -> bool:
            return True

        def write(self, text: str) -> None: ...

    for view, expected in [(None, "nobody is there to ask"), (Yes(), "sent")]:
        backend = ScriptedBackend(calling("send", text="x"), "done")
        await Agent(backend, tools=[send], view=view)("?")
        assert expected in (backend.requests[1].messages[-1].content or "")


async def test_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """A view may print."""
    await Agent(ScriptedBackend("quiet"))("?")
    assert capsys.readouterr().out == ""
    await Agent(ScriptedBackend("loud"), view=ConsoleView())("?")
    assert capsys.readouterr().out == "loud\n"


async def test_sessions_run_at_once_and_know_nothing_of_each_other() -> None:
    """Fifty calls of one agent, each in another session."""

    def echo(request: Request) -> str:
        return f"{len(request.messages)} {request.messages[-1].content}"

    agent = Agent(ScriptedBackend(otherwise=echo, seed=1), "Echo.")
    for turn in (2, 4):
        answers = await asyncio.gather(*(agent(f"s{n}", session_id=n) for n in range(50)))
        assert [answer.content for answer in answers] == [f"{turn} s{n}" for n in range(50)]


# --- what ends a call


async def test_a_call_that_fails_at_once_leaves_the_memory_as_it_was() -> None:
    """So a retry sends the same request once."""
    backend = ScriptedBackend(BackendUnavailable("down"), "up")
    agent = Agent(backend)
    async with Commander() as commander:
        answer = await commander.run(agent.call("?", session_id=0), retry=Retry(attempts=2))

    assert answer.content == "up"
    assert remembered(agent) == [("user", "?"), ("Agent", "up")]


async def test_a_reply_that_broke_off_is_remembered_as_that() -> None:
    """The memory has its text in state "failed"."""
    agent = Agent(ScriptedBackend(["Once upon", BackendUnavailable("gone")]))

    with pytest.raises(BackendUnavailable):
        await agent("Tell me.", session_id=0)

    assert [(m.content, m.stream_state) for m in agent.memory.get()] == [
        ("Tell me.", "end"),
        ("Once upon", "failed"),
    ]


async def test_a_timeout_reaches_the_model() -> None:
    """Its stream is closed, and the memory is unchanged."""
    backend = ScriptedBackend([asyncio.Event()])
    agent = Agent(backend)
    async with asyncio.timeout(5), Commander() as commander:
        with pytest.raises(TimeoutError):
            await commander.run(agent.call("?", session_id=0), timeout=0.01)

    assert (backend.opened, backend.closed) == (1, 1)
    assert agent.memory.get() == []


@pytest.mark.parametrize("inside", [False, True])
async def test_cancelling_the_call_cancels_the_model(inside: bool) -> None:
    """In a tree too, where a node that is only awaited would continue."""
    backend, asked = hanging()
    agent = Agent(backend)

    async def ask() -> None:
        with pytest.raises(asyncio.CancelledError):
            task = asyncio.ensure_future(agent("?", session_id=0))
            await asked.wait()
            task.cancel()
            await task
        assert backend.closed == 1

    class Inside(Job[None]):
        async def task(self) -> None:
            await ask()

    async with asyncio.timeout(5):
        if inside:
            async with Commander() as commander:
                await commander.run(Inside())
        else:
            await ask()
    assert agent.memory.get() == []


async def test_cancelling_the_node_ends_what_is_below() -> None:
    """A waiter gets `NodeCancelled`."""
    backend, asked = hanging()
    async with asyncio.timeout(5), Commander() as commander:
        node: Node[Any] = commander.call_handler(Agent(backend).call("?"), claim=True)
        await asked.wait()
        node.cancel("enough")
        with pytest.raises(NodeCancelled, match="enough"):
            await node
        assert backend.closed == 1


async def test_the_trees_limits_and_accounts_hold() -> None:
    """An agent's requests count against its commander's budget, which is charged for them."""
    async with ScriptedServer(text("one"), text("two")) as server, Commander() as commander:
        async with connect(server.url, model="tiny") as backend:
            commander.limits = Limits(budget=1)
            await commander.run(Agent(backend).call("?"))
            with pytest.raises(BudgetExceeded):
                await commander.run(Agent(backend).call("?"))
        assert commander.usage()["tiny"].total_tokens > 1


async def test_a_stream_may_be_a_child_of_a_commander_elsewhere() -> None:
    """The commander's limits hold, and closing the stream cancels the call below the commander."""
    hangs = Reply([chunk({"content": "One"}), Step.HANG])
    async with (
        asyncio.timeout(20),
        ScriptedServer(hangs, text("two"), text("three")) as server,
        Commander() as commander,
        connect(server.url, model="tiny") as backend,
    ):
        commander.limits = Limits(budget=15)
        agent = Agent(backend)

        async def serve(leave: bool) -> str:  # a task that knows nothing of the commander
            said = ""
            async with aclosing(agent.stream("?", parent=commander)) as stream:
                async for message in stream:
                    said = message.text
                    if leave:
                        assert commander.children
                        break
            assert not commander.children
            return said

        assert await asyncio.create_task(serve(True)) == "One"
        assert await asyncio.create_task(serve(False)) == "two"
        with pytest.raises(BudgetExceeded):
            await asyncio.create_task(serve(False))


@pytest.mark.parametrize("given", [True, False])
async def test_calls_written_as_text_run_as_others_do(given: bool) -> None:
    """By the formats of the agent or its backend; hooks and memory see the same call."""
    backend = ScriptedBackend(
        'I look.\nAction: look\nAction Input: {"place": "Oslo"}', "It is cold in Oslo."
    )
    if not given:
        backend.formats = [ReAct()]
    agent = Agent(backend, tools=[look], formats=[ReAct()] if given else None)
    seen: list[str] = []
    agent.before_action(lambda _, message, session_id: seen.append(message.output.name))

    assert (await agent("How is Oslo?", session_id=0)).content == "It is cold in Oslo."
    assert seen == ["look"]
    assert [step["kind"] for step in agent.get_steps()] == ["thought", "call", "result", "thought"]
    assert "- look: " in str(backend.requests[0].messages[0].content)
    assert str(backend.requests[1].messages[-1].content).startswith("Observation: ")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"backend": 5}, r"connect\(\.\.\.\) makes, the name of a model or None, not 5$"),
        ({"memory": Memory}, r"create one, Memory\(\.\.\.\)$"),
        ({"aggregator": Aggregator}, r"create one, Aggregator\(\.\.\.\)$"),
        ({"output_format": StringParser}, r"create one, StringParser\(\.\.\.\)$"),
        ({"approve": True}, r"a function that is asked, Approvals\(\) or None, not True$"),
    ],
)
def test_what_an_agent_cannot_be_made_of_is_refused_when_it_is_made(
    given: dict[str, Any], said: str
) -> None:
    """A number, a class or a bool as an argument is refused before the first call."""
    with pytest.raises(TypeError, match=said):
        Agent(**given)


def test_a_group_whose_speaker_is_no_function_is_refused_when_it_is_made() -> None:
    """Also the name of a policy as a string."""
    with pytest.raises(TypeError, match="such as round_robin, not 'round_robin'"):
        GroupChat("team", ["ann", "bob"], speaker="round_robin")  # type: ignore[arg-type]


@pytest.mark.parametrize("inside", [True, False])
async def test_a_stream_has_the_timeout_and_the_limits_that_it_is_given(inside: bool) -> None:
    """As a call that is put, in a commander and without one."""
    slow = ScriptedBackend([asyncio.Event()], "Yes.")
    dear = ScriptedBackend("Yes.", "No.", model="m")
    async with AsyncExitStack() as stack:
        if inside:
            await stack.enter_async_context(Commander())
        with pytest.raises(TimeoutError):
            async for _ in Agent(slow).stream("?", timeout=0.01):
                pass
        limits = Limits(budget=1)
        agent = Agent(dear)
        async for part in agent.stream("?", limits=limits):
            assert part.stream_state in ("begin", "streaming", "end")
        with pytest.raises(BudgetExceeded):
            async for _ in agent.stream("?", limits=limits):
                pass
    assert limits.spent == agent.usage()["m"].total_tokens > 0
    assert slow.opened == slow.closed


async def test_the_result_of_a_tool_that_ends_the_turn_is_the_answer() -> None:
    """The agent remembers the call, its result and the answer, as after any turn."""

    @tool(ends_turn=True)
    async def book(seat: int) -> str:
        return f"Seat {seat} is booked."

    backend = ScriptedBackend(calling("book", "One moment.", seat=3), "You are welcome.")
    agent = Agent(backend, tools=[book], name="Ann")

    answer = await agent("Seat 3, please.", session_id=1)
    await agent("Thanks!", session_id=1)

    assert answer.content == answer.output == "Seat 3 is booked."
    assert [role for role, _ in said(backend.requests[1])] == [
        *("user", "assistant", "tool", "assistant", "user")
    ]
