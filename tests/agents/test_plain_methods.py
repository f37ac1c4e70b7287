"""A plain method in place of an async one is an error with its class and name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support.orchestrators import CountState, counter_agent

from anabranch import Agent, Commander, Conversation, Job, Node
from anabranch.agents import AgentMessage, ConversableAgent, Memory, Orchestrator
from anabranch.agents.orchestration import Module, Retrieval
from anabranch.jobs import ChatJob
from anabranch.testing import ScriptedBackend


class Shout(Job[Any]):
    def task(self) -> Any:
        return None


class Bare(Node[Any]):
    def task(self) -> Any:
        return "x"


class Sage(Agent):
    def forward(self, *messages: Any, **options: Any) -> Any:
        return "42"


class Talker(ConversableAgent):
    def forward(self, *messages: Any, **options: Any) -> Any:
        return "42"


class Before(Module):
    def before(self, obs: Any, state: Any) -> Any:
        return None


class After(Module):
    def after(self, response: Any, state: Any) -> Any:
        return None


class World:
    async def reset(self) -> str:
        return "begin"

    def step(self, action: str) -> Any:
        return "seen"


class Still(World):
    def reset(self) -> Any:
        return "begin"


class Forgetful(Memory):
    def prepare(self, session_id: Any) -> Any:
        return None


class Reads(ChatJob):
    def read(self) -> Any:
        return None


def play(world: Any, *modules: Module) -> Awaitable[Any]:
    agent = counter_agent(ScriptedBackend(otherwise="1"))
    agent.modules = list(modules)
    return Orchestrator([agent], lambda obs, state: "counter", CountState()).play(world)


async def put(node: Node[Any], **options: Any) -> None:
    async with Commander() as commander:
        await commander.run(node, **options)


async def ask_talker(agent: ConversableAgent) -> None:
    await agent.receive(AgentMessage(content="hi", sender="bob"))


CASES: dict[str, Callable[[], Awaitable[Any]]] = {
    "Shout.task": lambda: put(Shout()),
    "Bare.task": lambda: put(Bare()),
    "Sage.forward": lambda: Sage()("hi"),
    "Talker.forward": lambda: ask_talker(Talker("t", ScriptedBackend())),
    "Before.before": lambda: play(World(), Before("b")),
    "After.after": lambda: play(World(), After("a")),
    "Retrieval.search": lambda: play(World(), Retrieval(lambda text: ["x"])),
    "World.step": lambda: play(World()),
    "Still.reset": lambda: play(Still()),
    "Forgetful.prepare": lambda: Agent(ScriptedBackend("x"), memory=Forgetful())("hi"),
    "ConversableAgent.human_input": lambda: ask_talker(
        ConversableAgent("t", human_input_mode="ALWAYS", human_input=lambda text: "x")
    ),
    "Reads.read": lambda: put(Reads(ScriptedBackend(), Conversation())),
}


@pytest.mark.parametrize("method", CASES)
async def test_a_plain_method_is_named(method: str) -> None:
    """The error says what to write."""
    with pytest.raises(TypeError, match=f"^{method} is not async: write 'async def") as told:
        await CASES[method]()

    assert "None" not in str(told.value)


@pytest.mark.parametrize("options", [{"timeout": 9}, {"priority": 1}])
async def test_a_plain_task_is_named_however_it_was_put(options: dict[str, Any]) -> None:
    """Also with the timeout of a node."""
    with pytest.raises(TypeError, match=r"Shout\.task is not async"):
        await put(Shout(), **options)


async def test_a_type_error_of_a_body_stays_as_it_is() -> None:
    """Only a missing `async` gets this explanation."""

    class Fails(Job[None]):
        async def task(self) -> None:
            await None

    class Awaitables(Job[int]):
        def task(self) -> Awaitable[int]:
            async def later() -> int:
                return len(3)

            return later()

    for job in Fails(), Awaitables():
        with pytest.raises(TypeError) as told:
            await put(job)
        assert "write 'async def" not in str(told.value)
