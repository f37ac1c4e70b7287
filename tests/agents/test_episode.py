"""Orchestrators with an environment, in the tree: their ends, and their remains."""

import asyncio
from typing import Any

import pytest
from support.leaks import child_processes, thread_ids
from support.orchestrators import (
    CountingEngineer,
    CountState,
    EchoEnvironment,
    counter_agent,
    counting_orchestrator,
    hanging_backend,
)
from support.scripted_server import ScriptedServer, text

from anabranch import (
    Commander,
    connect,
)
from anabranch.agents import Observation, Orchestrator, PromptedAgent
from anabranch.agents.orchestration import Episode, RunningSummary
from anabranch.messages import Usage
from anabranch.testing import ScriptedBackend

# --- environments


async def test_it_plays_with_an_environment_to_the_end() -> None:
    """Each step has an action and its observation."""
    orchestrator, environment = counting_orchestrator("1", "2", "3"), EchoEnvironment()
    steps = [step async for step in orchestrator.over(environment)]
    assert [step.action.content for step in steps] == ["1", "2", "3"]
    assert steps[0].observation == Observation("saw 1")
    assert steps[-1].observation == Observation("the end", 1.0, done=True)


async def test_an_episode_ends_with_a_status() -> None:
    """That of the environment's end, the transition's end, or a limit."""
    assert (await counting_orchestrator("1", "2", "3").play(EchoEnvironment())).status == "over"
    limited = await counting_orchestrator("1", "2", max_steps=2).play(EchoEnvironment())
    assert (limited.status, len(limited.steps)) == ("max_steps", 2)
    assert (
        await counting_orchestrator("a", max_errors=0).play(EchoEnvironment())
    ).status == "max_errors"

    def transition(obs: str | None, state: CountState) -> str | None:
        return None if state.counter.number else "counter"

    agent = counter_agent(ScriptedBackend("5"))
    done = await Orchestrator([agent], transition, CountState()).play(EchoEnvironment())
    assert (done.status, done.steps[-1].action.content) == ("done", "5")
    assert done.steps[-1].observation is None


async def test_an_environment_that_gives_garbage_or_fails_is_an_error() -> None:
    """With the environment's own exception, or one that shows the value."""

    class Garbage(EchoEnvironment):
        async def step(self, action: str) -> Any:
            if action == "1":
                raise OSError("the disk is gone")
            return 7

    with pytest.raises(OSError, match="the disk is gone"):
        await counting_orchestrator("1").play(Garbage())
    with pytest.raises(TypeError, match="a text or an Observation, not 7"):
        await counting_orchestrator("2").play(Garbage())


# --- in the tree


async def test_two_calls_at_once_are_refused() -> None:
    """The state allows one call; the first continues."""
    backend, asked = hanging_backend()
    orchestrator = Orchestrator(
        [counter_agent(backend)], lambda obs, state: "counter", CountState()
    )
    async with asyncio.timeout(10):
        first = asyncio.create_task(orchestrator.forward())
        await asked.wait()
        with pytest.raises(RuntimeError, match="one call at a time"):
            await orchestrator.forward()
        with pytest.raises(RuntimeError, match="is running"):
            orchestrator.reset()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first


async def test_a_model_that_hangs_is_left_after_the_timeout() -> None:
    """Its request is closed."""
    backend, _ = hanging_backend()
    orchestrator = Orchestrator(
        [counter_agent(backend)], lambda obs, state: "counter", CountState(), timeout=0.01
    )
    async with asyncio.timeout(10):
        with pytest.raises(TimeoutError):
            await orchestrator.forward()
    assert backend.opened == backend.closed == 1


async def test_a_cancelled_run_leaves_nothing_behind() -> None:
    """During an answer and during an action: no task, thread or process remains."""
    backend, asked = hanging_backend()

    class Slow(EchoEnvironment):
        async def step(self, action: str) -> str:
            asked.set()
            await asyncio.Event().wait()
            return ""

    slow = counting_orchestrator("1")
    asks = Orchestrator([counter_agent(backend)], lambda obs, state: "counter", CountState())
    before = asyncio.all_tasks(), thread_ids(), child_processes()
    for orchestrator in (asks, slow):
        asked.clear()
        async with asyncio.timeout(10):
            task = asyncio.create_task(orchestrator.play(Slow()))
            await asked.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
    assert (asyncio.all_tasks(), thread_ids(), child_processes()) == before
    assert backend.opened == backend.closed == 1
    assert asks.state.histories == {}
    assert not asks._busy


async def test_each_answer_is_a_node_and_a_limit_of_time_holds_for_all() -> None:
    """With the names of the orchestrator, its agents and its environment."""
    async with Commander() as commander:
        events = commander.events({"started"}, capacity=100)
        result = await commander.run(
            Episode(counting_orchestrator("1", "2", "3"), EchoEnvironment()), timeout=30
        )
    assert result.status == "over"
    names = {event.name async for event in events}
    assert {"orchestrator-episode", "orchestrator", "counter", "act"} <= {
        str(name).partition("#")[0] for name in names
    }


async def test_tokens_are_counted_for_each_agent_and_model() -> None:
    """With mistakes and modules; the commander has the same by model."""
    replies = text("lots"), text("7"), text("sum"), text("8")
    async with (
        ScriptedServer(*replies) as server,
        connect(server.url, model="big") as big,
        connect(server.url, model="small") as small,
        Commander() as commander,
    ):
        agent = PromptedAgent("counter", CountingEngineer(), big, modules=[RunningSummary(small)])
        orchestrator = Orchestrator([agent], lambda obs, state: "counter", CountState())
        await commander.run(orchestrator.call("go"))
        await commander.run(orchestrator.call("on"))
        total = commander.usage()
    spent = {
        "big": Usage(input_tokens=15, output_tokens=21),
        "small": Usage(input_tokens=5, output_tokens=7),
    }
    assert orchestrator.usage == {"counter": spent}
    assert orchestrator.usage_by_model() == spent == total
