"""The session of a message in memory: the named one, else one of the call."""

from __future__ import annotations

import asyncio
import gc
import pickle
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.seeds import example_count, seeds

from anabranch import (
    Agent,
    AgentMessage,
    BackendUnavailable,
    Commander,
    Memory,
    Message,
    Retry,
    Tool,
    tool,
)
from anabranch.agents import Orchestrator, Sequential, State, StepAgent
from anabranch.messages import Request
from anabranch.testing import ScriptedBackend, explore
from anabranch.tools import PerSession, Toolkit


def secrets(request: Request) -> set[str]:
    """Return the words of a request that begin with an at sign."""
    text = " ".join(message.content or "" for message in request.messages)
    return {word for word in text.split() if word.startswith("@")}


def echo(request: Request) -> str:
    return f"I have read {' '.join(sorted(secrets(request)))} ."


class Pair(Agent):
    """Asks a writer and a critic twice, in its own session."""

    def __init__(self, backend: ScriptedBackend) -> None:
        super().__init__()
        self.writer = Agent(backend, name="writer")
        self.critic = Agent(backend, name="critic")

    async def forward(self, message: AgentMessage, session_id: int | str = 0) -> AgentMessage:
        for _ in range(2):
            message = await self.writer(message, session_id=session_id)
            message = await self.critic(message, session_id=session_id)
        return message


def shared(kind: str, backend: ScriptedBackend) -> Agent[Any]:
    if kind == "plain":
        return Agent(backend)
    if kind == "steps":
        return StepAgent(backend)
    if kind == "layers":
        return Pair(backend)
    return Sequential(Agent(backend, name="a"), Pair(backend))


@pytest.mark.parametrize("kind", ["plain", "steps", "layers", "chain"])
def test_callers_who_share_an_agent_never_read_each_other(kind: str) -> None:
    """At the same time and one after the other, in many orders of events; no message remains."""

    async def main() -> None:
        backend = ScriptedBackend(otherwise=echo, delay=0.1)
        agent = shared(kind, backend)

        async def user(name: str) -> str:
            await asyncio.sleep(random.uniform(0, 20))
            return (await agent(f"My secret is @{name} .")).text

        async with Commander():
            said = await asyncio.gather(*(user(f"u{n}") for n in range(6)))

        assert said == [f"I have read @u{n} ." for n in range(6)]
        assert all(len(secrets(request)) == 1 for request in backend.requests)
        assert not any(each.memory.sessions for each in agent.named_agents().values())

    explore(main, seeds(example_count(30, 600)))


async def test_a_session_that_is_named_is_remembered() -> None:
    """A call without a session does not read it."""
    backend = ScriptedBackend(otherwise=echo)
    agent = Agent(backend)
    await agent("@one", session_id=7)

    assert (await agent("@two", session_id=7)).text == "I have read @one @two ."
    assert (await agent("@three")).text == "I have read @three ."
    assert agent.memory.sessions == [7]


@pytest.mark.parametrize("kind", [Agent, StepAgent])
async def test_with_a_memory_of_ones_own_every_call_is_remembered(kind: type[Agent[Any]]) -> None:
    """In session 0, the default of `state_dict` and the like."""
    agent = kind(ScriptedBackend(otherwise=echo), memory=Memory())
    await agent("@one")

    assert (await agent("@two")).text == "I have read @one @two ."
    assert len(agent.get_steps()) == 2


async def test_agents_below_remember_as_long_as_the_call() -> None:
    """Those in its session: the writer reads its first draft again."""
    backend = ScriptedBackend(otherwise="A draft.")
    await Pair(backend)("Rivers")

    assert [message.content for message in backend.requests[2].messages] == [
        *("Rivers", "A draft.", "A draft.")
    ]


async def test_an_agent_that_is_no_attribute_forgets_too() -> None:
    """An agent that a tool calls in the session of the outer call."""
    helper = Agent(ScriptedBackend(otherwise="Yes."))
    heard: list[int | str] = []

    class Asks(Agent):
        async def forward(self, message: AgentMessage, session_id: int | str = 0) -> AgentMessage:
            heard.append(session_id)
            return await helper(message, session_id=session_id)

    await Asks()("Well?")
    assert helper.memory.sessions == []
    assert pickle.loads(pickle.dumps(heard[0])) == heard[0]


async def test_a_call_that_is_tried_again_is_one_call() -> None:
    """The next attempt reads the text of the failed one, as in a session."""
    backend = ScriptedBackend(["Half @a", BackendUnavailable("gone")], echo)
    agent = Agent(backend)
    async with Commander() as commander:
        answer = await commander.run(agent.call("@q"), retry=Retry(attempts=2))

    assert answer.text == "I have read @a @q ."
    assert agent.memory.sessions == []


async def test_orchestrators_that_share_an_agent_have_a_session_each() -> None:
    """The session is forgotten with the orchestrator."""
    agent = Agent(ScriptedBackend(otherwise=echo), name="one")

    def end(obs: str | None, state: State) -> str | None:
        return "one" if state.agent is None else None

    def begin(secret: str) -> Orchestrator[State]:
        return Orchestrator([agent], end, State())

    first, second = begin("@a"), begin("@b")
    assert (await first.forward("@a")).content == "I have read @a ."
    assert (await second.forward("@b")).content == "I have read @b ."
    assert len(agent.memory.sessions) == 2
    del first, second
    gc.collect()
    assert agent.memory.sessions == []


class SessionStore(Toolkit):
    """Stores an object for each session, and may fail to close it."""

    def __init__(self, fault: Exception | None, closed: list[SessionStore]) -> None:
        def close(_: object) -> None:
            closed.append(self)
            if fault is not None:
                raise fault

        self.kept = PerSession(object, close)

    @tool
    async def keep(self) -> str:
        """Keep it."""
        self.kept.get()
        return "kept"


class Stubborn(Memory):
    """May raise after it has forgotten."""

    fault: Exception | None = None

    def reset(self, session_id: int | str = 0) -> None:
        super().reset(session_id)
        if self.fault is not None:
            raise self.fault


@given(st.lists(st.tuples(*[st.booleans()] * 3), min_size=1, max_size=4), st.booleans())
def test_a_reset_forgets_all_and_raises_together_what_failed(
    faulty: list[tuple[bool, bool, bool]], orchestrated: bool
) -> None:
    """Memories and the state of tools, in all agents, whichever raises."""
    closed: list[SessionStore] = []
    faults: list[Exception] = []

    def fault(raises: bool) -> Exception | None:
        faults.extend([OSError(str(len(faults)))] if raises else [])
        return faults[-1] if raises else None

    agents: list[Agent[Any]] = []
    for number, raises in enumerate(faulty):
        memory = Stubborn()
        memory.fault = fault(raises[0])
        kits = [SessionStore(fault(each), closed) for each in raises[1:]]
        tools = [Tool(kit.keep.function, name=f"keep{n}") for n, kit in enumerate(kits)]
        call = [{"function": {"name": each.name, "arguments": "{}"}} for each in tools]
        calls = Message.from_wire({"role": "assistant", "tool_calls": call})
        backend = ScriptedBackend(calls, "Done.")
        agents.append(Agent(backend, name=str(number), memory=memory, tools=tools))
    chain = Sequential(*agents)
    asyncio.run(use(chain))
    orchestrator = Orchestrator(agents, lambda obs, state: None, State(), session_id=7)
    orchestrator.state.steps = 3
    raised: list[BaseException] = []
    try:
        (orchestrator if orchestrated else chain).reset(*([] if orchestrated else [7]))
    except BaseExceptionGroup as group:
        raised = [*leaves(group)]
    except OSError as error:
        raised = [error]
    assert {str(each) for each in raised} == {str(each) for each in faults}
    assert len(closed) == 2 * len(agents)
    assert all(agent.memory.get(7) == [] for agent in agents)
    assert not any(agent.usage(7) for agent in agents)
    assert orchestrator.state.steps == (0 if orchestrated else 3)


async def use(agent: Agent[Any]) -> None:
    await agent("Keep it.", session_id=7)


def leaves(group: BaseExceptionGroup[Any]) -> Iterator[BaseException]:
    for each in group.exceptions:
        if isinstance(each, BaseExceptionGroup):
            yield from leaves(each)
        else:
            yield each
