"""Agents made of agents: their structure, state, hooks and streams."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from pydantic import BaseModel

from anabranch import (
    Agent,
    AgentMessage,
    BackendUnavailable,
    Commander,
    ConfigurationError,
    Job,
    Message,
    ToolCall,
    ToolExecutor,
    tool,
)
from anabranch.agents import (
    AgentHook,
    FewShotAggregator,
    JsonParser,
    Sequential,
    ToolAggregator,
    ToolParser,
)
from anabranch.agents import Aggregator as Default
from anabranch.agents.layers import TextCall
from anabranch.messages import Request
from anabranch.testing import ScriptedBackend

SessionId = int | str


class Blogger(Agent):
    """A writer with a critic."""

    def __init__(self, writer: ScriptedBackend, critic: ScriptedBackend, turns: int = 1) -> None:
        super().__init__(max_rounds=turns)
        self.writer = Agent(writer, "Write.", name="writer")
        self.critics = [Agent(critic, "Criticise.", name="critic")]

    async def forward(self, message: AgentMessage, session_id: SessionId = 0) -> AgentMessage:
        for _ in range(self.max_rounds):
            message = await self.writer(message, session_id=session_id)
            message = await self.critics[0](message, session_id=session_id)
        return await self.writer(message, session_id=session_id)


def blogger() -> Blogger:
    return Blogger(ScriptedBackend("Draft.", "Final."), ScriptedBackend("Longer!"))


# --- structure and state


async def test_the_state_has_attribute_paths_and_comes_back() -> None:
    """It is JSON, and that of one session."""
    agent = blogger()
    answer = await agent("Rivers", session_id="s")
    state = json.loads(json.dumps(agent.state_dict("s")))

    assert answer.content == "Final."
    assert list(state) == ["memory", "writer.memory", "critics.0.memory"]
    assert [m["content"] for m in state["writer.memory"]] == [
        *("Rivers", "Draft.", "Longer!", "Final.")
    ]
    other = blogger()
    other.load_state_dict(state, session_id=5)
    assert other.state_dict(5) == state
    assert other.state_dict() == {key: [] for key in state}
    assert other.writer.aggregate(5) == agent.writer.aggregate("s")


async def test_reset_forgets_one_session_here_or_below_too() -> None:
    """`recursive=False` leaves the agents below unchanged."""
    agent = blogger()
    await agent("Rivers", session_id=0)
    agent.reset(recursive=False)
    assert [len(memory) for memory in agent.state_dict().values()] == [0, 4, 2]
    agent.reset(session_id=1)
    assert len(agent.writer.memory.get()) == 4
    agent.reset()
    assert not any(agent.state_dict().values())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"writer.memory": None}, r"lacks \['writer.memory'\]"),
        ({"editor.memory": []}, r"Blogger has no memories for \['editor.memory'\]"),
        ({"critics.0.memory": [{"sender": 3}]}, "not a saved memory"),
        ({"critics.0.memory": [3]}, "a message was expected, not 3"),
    ],
)
async def test_a_state_that_does_not_fit_changes_nothing(
    change: dict[str, Any], message: str
) -> None:
    """The error names the fault."""
    agent = blogger()
    await agent("Rivers", session_id=0)
    before = agent.state_dict()
    state = {k: v for k, v in {**before, "memory": [], **change}.items() if v is not None}

    with pytest.raises(ConfigurationError, match=message):
        agent.load_state_dict(state)
    assert agent.state_dict() == before


async def test_what_a_parser_made_comes_back_as_it_was() -> None:
    """A pydantic model is restored as a model."""

    class River(BaseModel):
        name: str

    agent = Agent(ScriptedBackend('{"name": "Nile"}'), output_format=JsonParser(River))
    await agent("?", session_id=0)
    agent.load_state_dict(json.loads(json.dumps(agent.state_dict())), session_id=1)

    assert agent.memory.get(1)[1].output == River(name="Nile")


def test_repr_shows_the_structure() -> None:
    """As in PyTorch, also where agents contain each other."""
    agent = blogger()
    agent.critics[0].__dict__["boss"] = agent

    assert repr(agent).splitlines() == [
        "Blogger('Blogger')",
        "  (writer): Agent('writer', ScriptedBackend('scripted'))",
        "  (critics.0): Agent('critic', ScriptedBackend('scripted'))",
        "    (boss): Blogger('Blogger') ...",
    ]
    assert list(agent.state_dict()) == ["memory", "writer.memory", "critics.0.memory"]


async def test_five_topics_at_once_do_not_mix() -> None:
    """`asyncio.gather` over sessions of one agent made of agents."""

    def about(request: Request) -> str:
        return (request.messages[1].content or "").split()[-1]

    agent = Blogger(ScriptedBackend(otherwise=about), ScriptedBackend(otherwise=about), turns=2)
    topics = ["AI", "biology", "energy", "games", "music"]
    answers = await asyncio.gather(
        *(agent(f"Write about {topic}", session_id=n) for n, topic in enumerate(topics))
    )

    assert [answer.content for answer in answers] == topics
    for n, topic in enumerate(topics):
        said = agent.state_dict(n)["writer.memory"]
        assert [m["content"] for m in said[1:]] == [topic] * 5


async def test_sequential_hands_each_answer_on() -> None:
    """By number or name; `exit_at` ends early; all get the options."""

    def shout(request: Request) -> str:
        return f"{request.messages[-1].content}!"

    agents = {name: Agent(ScriptedBackend(otherwise=shout), name=name) for name in "abc"}
    chain = Sequential(agents)

    assert (await chain("hi")).content == "hi!!!"
    assert (await chain("hi", session_id=1, exit_at=1, stop=["x"])).content == "hi!!"
    assert list(chain.state_dict()) == [
        *("memory", "agents.a.memory", "agents.b.memory", "agents.c.memory")
    ]
    assert (len(chain), chain[0], chain["b"]) == (3, agents["a"], agents["b"])
    assert list(Sequential(*agents.values()).agents) == ["0", "1", "2"]
    with pytest.raises(ValueError, match="at least one"):
        Sequential()


async def test_cancelling_a_structure_ends_all_its_models() -> None:
    """No task remains, and no memory has an incomplete call."""
    asked = asyncio.Event()

    async def hang(request: Request) -> str:
        asked.set()
        await asyncio.Event().wait()
        return ""

    critic = ScriptedBackend(hang)
    agent = Blogger(ScriptedBackend("Draft."), critic)
    before = asyncio.all_tasks()
    async with asyncio.timeout(5), Commander() as commander:
        call = commander.call_handler(agent.call("Rivers", session_id=0), claim=True)
        await asked.wait()
        call.cancel()

    assert (critic.opened, critic.closed) == (1, 1)
    assert asyncio.all_tasks() == before
    assert [len(memory) for memory in agent.state_dict().values()] == [0, 2, 0]


# --- hooks


class Prefix(AgentHook):
    def before_agent(
        self, agent: Any, message: AgentMessage, session_id: object
    ) -> AgentMessage | None:
        if message.sender != "writer":
            return None
        return message.model_copy(update={"content": f"Criticise this: {message.content}"})


async def test_hooks_of_an_agent_change_what_comes_and_goes_until_removed() -> None:
    """Plain or async; with a new message or a change of their copy."""
    backend = ScriptedBackend(otherwise=lambda request: str(request.messages[-1].content))
    agent = Agent(backend, hooks=[Prefix()])

    async def shout(agent: Agent, message: AgentMessage, session_id: object) -> None:
        message.content = message.content.upper()

    handle = agent.after_agent(shout)
    draft = AgentMessage(content="a draft", sender="writer")

    assert (await agent(draft, session_id=0)).content == "CRITICISE THIS: A DRAFT"
    assert agent.memory.get()[1].content == "Criticise this: a draft"
    assert draft.content == "a draft"
    handle.remove()
    handle.remove()
    assert (await agent("as it is", session_id=1)).content == "as it is"


async def test_action_hooks_see_and_change_calls_and_results() -> None:
    """On agents and on executors."""

    @tool
    async def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    class Doubles(AgentHook):
        async def before_action(
            self, agent: Any, message: AgentMessage, session_id: object
        ) -> AgentMessage:
            call: ToolCall = message.output
            doubled = {name: 2 * value for name, value in call.arguments.items()}
            call = call.model_copy(update={"arguments": doubled})
            return message.model_copy(update={"output": call})

        def after_action(self, agent: Any, message: AgentMessage, session_id: object) -> None:
            message.content = f"about {message.content}"

    call = ToolCall(id="c", name="add", arguments={"a": 1, "b": 2})
    calls = Message(role="assistant", tool_calls=[call])
    backend = ScriptedBackend(calls, "done", calls, "done")
    agent = Agent(backend, tools=[add])
    handle = agent.add_hook(Doubles())
    await agent("?", session_id=0)
    handle.remove()
    await agent("?", session_id=0)

    results = [m.content for m in backend.requests[3].messages if m.role == "tool"]
    assert results == ["about 6", "3"]


async def test_a_hook_that_raises_fails_the_call() -> None:
    """Around a tool, the tool fails and the model reads the error."""

    @tool
    async def act() -> str:
        """Act."""
        return "done"

    def wrong(agent: Any, message: AgentMessage, session_id: object) -> None:
        raise ValueError("a bad hook")

    calls = Message(role="assistant", tool_calls=[ToolCall(id="c", name="act")])
    backend = ScriptedBackend(calls, "fine")
    agent = Agent(backend, tools=[act])
    handle = agent.before_agent(wrong)
    with pytest.raises(ValueError, match="a bad hook"):
        await agent("?")
    handle.remove()
    agent.before_action(wrong)

    assert (await agent("?")).content == "fine"
    assert backend.requests[1].messages[-1].content == "Error: ValueError: a bad hook"


# --- aggregators

HISTORY = [
    AgentMessage(content="one"),
    AgentMessage(content="two", sender="bob"),
    AgentMessage(content="yes", sender="me"),
    AgentMessage(content="42", sender="python", type="tool_result"),
]


def roles(messages: list[Message]) -> list[tuple[str, str | None]]:
    return [(message.role, message.content) for message in messages]


def test_the_sender_decides_the_role_and_user_messages_merge() -> None:
    """All messages but the agent's own are the user's."""
    assert roles(Default().aggregate(HISTORY, "me", None, "Be.")) == [
        *(("system", "Be."), ("user", "one\ntwo"), ("assistant", "yes"), ("user", "42"))
    ]


def test_few_shots_stand_between_the_prompt_and_the_memory() -> None:
    """They do not merge with the user's message."""
    shots = [{"role": "user", "content": "today?"}, {"role": "assistant", "content": "[sunny]"}]
    assert roles(FewShotAggregator(shots).aggregate(HISTORY[:1], "me", None, "Be.")) == [
        *(("system", "Be."), ("user", "today?"), ("assistant", "[sunny]"), ("user", "one"))
    ]


def test_the_tool_aware_one_marks_what_executors_say() -> None:
    """It restores the end of a call that a stop word took."""
    parser = ToolParser(TextCall("code", "<run>", "</run>", instruction="Use <run></run>."))
    aggregator = ToolAggregator("<out>", "</out>", role="tool")
    said = [AgentMessage(content="Hm <run>6*7", sender="me"), HISTORY[3], HISTORY[0]]

    assert roles(aggregator.aggregate(said, "me", parser)) == [
        ("system", "Use <run></run>."),
        ("assistant", "Hm <run>6*7</run>"),
        ("tool", "<out>42</out>"),
        ("user", "one"),
    ]


async def test_an_aggregator_of_ones_own_is_one_method() -> None:
    """It gets all arguments."""

    class Last(Default):
        def aggregate(self, messages: Any, name: Any, parser: Any = None, system: Any = None):
            return [Message(role="user", content=f"{name}: {messages[-1].content}")]

    backend = ScriptedBackend("ok", "ok")
    agent = Agent(backend, aggregator=Last())
    await agent("a")
    await agent("b")
    assert roles(list(backend.requests[1].messages)) == [("user", "Agent: b")]


# --- streams


async def taken(stream: AsyncIterator[AgentMessage]) -> list[tuple[str, str, str]]:
    return [(m.sender, m.stream_state, m.content) async for m in stream]


async def test_a_stream_gives_the_text_as_it_grows_and_then_the_answer() -> None:
    """`extra["delta"]` is the new text."""
    agent = Agent(ScriptedBackend("abcdefgh", size=3))
    deltas = ""
    states: list[str] = []
    async for message in agent.stream("?"):
        deltas += message.extra.get("delta", "")
        assert message.content == (deltas if message.stream_state != "end" else "abcdefgh")
        states.append(message.stream_state)

    assert deltas == "abcdefgh"
    assert (states[0], states[-1], set(states[1:-1])) == ("begin", "end", {"streaming"})


@pytest.mark.parametrize("inside", [False, True])
async def test_a_stream_tells_of_agents_below(inside: bool) -> None:
    """Each is a sender; the last message is the answer of the outer agent."""
    seen: list[tuple[str, str, str]] = []

    class Listens(Job[None]):
        async def task(self) -> None:
            seen.extend(await taken(blogger().stream("Rivers")))

    if inside:
        async with Commander() as commander:
            await commander.run(Listens())
    else:
        seen = await taken(blogger().stream("Rivers"))

    ends = [(sender, content) for sender, state, content in seen if state == "end"]
    assert ends == [
        *(("writer", "Draft."), ("critic", "Longer!"), ("writer", "Final."), ("writer", "Final."))
    ]
    assert ("critic", "begin", "Long") in seen


async def test_a_stream_that_fails_says_what_came_and_raises() -> None:
    """The state of the broken message is "failed"."""
    agent = Agent(ScriptedBackend(["Once upon", BackendUnavailable("gone")]))
    seen: list[AgentMessage] = []
    with pytest.raises(BackendUnavailable, match="gone"):
        async for message in agent.stream("?"):
            seen.append(message)  # noqa: PERF401 - it raises

    assert (seen[-1].stream_state, seen[-1].content) == ("failed", "Once upon")


@pytest.mark.parametrize("inside", [False, True])
async def test_leaving_a_stream_cancels_its_call(inside: bool) -> None:
    """No task remains, and the memory has the text so far in state "failed"."""
    backend = ScriptedBackend(["Once upon", asyncio.Event()])
    agent = Agent(backend)
    before = asyncio.all_tasks()

    async def leave() -> None:
        async with aclosing(agent.stream("?", session_id=0)) as stream:
            async for message in stream:
                if message.content == "Once upon":
                    break
        assert backend.closed == 1

    class Leaves(Job[None]):
        async def task(self) -> None:
            await leave()

    async with asyncio.timeout(5):
        if inside:
            async with Commander() as commander:
                await commander.run(Leaves())
        else:
            await leave()
    assert asyncio.all_tasks() == before
    assert [m.stream_state for m in agent.memory.get()] == ["end", "failed"]


async def test_a_stream_tells_of_calls_and_results() -> None:
    """When they happen, with the call or result itself."""

    @tool(read_only=True)
    async def look(place: str) -> str:
        """Look."""
        return f"seen {place}"

    call = ToolCall(id="c", name="look", arguments={"place": "Oslo"})
    backend = ScriptedBackend(Message(role="assistant", tool_calls=[call]), "Nice.")
    seen = [message async for message in Agent(backend, tools=[look]).stream("?")]

    assert [(m.type, m.content) for m in seen[:2]] == [
        *(("tool_call", '{"place": "Oslo"}'), ("tool_result", "seen Oslo"))
    ]
    assert seen[1].output.status == "ok"


async def test_an_action_that_cannot_be_used_does_not_run() -> None:
    """The executor reports the fault."""
    executor = ToolExecutor([])
    half = {"tool_type": "code", "thought": "", "action": "rm(", "status": "invalid"}
    told = await executor(AgentMessage(output={**half, "error": "it was cut off"}))

    assert "it was cut off" in told.content
    assert told.extra["status"] == "invalid"


async def test_an_executor_takes_an_action_as_a_parser_found_it() -> None:
    """So an agent, a parser and an executor make a loop of three lines."""

    @tool
    async def python(code: str) -> str:
        """Run."""
        return f"ran {code}"

    executor = ToolExecutor([python])
    agent = Agent(
        ScriptedBackend("So: <run>6*7", "42"),
        output_format=ToolParser(TextCall("python", "<run>", "</run>", argument="code")),
        aggregator=ToolAggregator(),
    )
    message = await agent("?", session_id=0)
    while message.output["tool_type"]:
        message = await agent(await executor(message), session_id=0)

    assert message.content == "42"
    assert [m.content for m in agent.memory.get()] == ["?", "So: <run>6*7", "ran 6*7", "42"]
    assert [step["kind"] for step in agent.get_steps()] == [
        *("thought", "call", "result", "thought")
    ]
