"""Other models for one call, or for all calls in a block."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.paths import ROOT

from anabranch.agents import (
    Agent,
    ConversableAgent,
    Sequential,
    StepAgent,
    SummaryMemory,
    prompt,
    single_agent,
)
from anabranch.commander import run
from anabranch.commander.errors import ConfigurationError
from anabranch.messages import Message, ToolCall
from anabranch.store import Durable, Journal, Live, live
from anabranch.testing import ScriptedBackend
from anabranch.tools import tool


def named(name: str) -> ScriptedBackend:
    return ScriptedBackend(otherwise=name)


async def test_a_call_asks_another_model_and_so_do_all_agents_below() -> None:
    inner = Agent("openai:gpt-5-mini", name="inner")

    @tool
    async def ask() -> str:
        """Ask."""
        return (await asyncio.create_task(inner("Hi"))).text

    @tool
    def block() -> str:
        """Ask in a thread."""
        return inner.run_sync("Hi").text

    outer = Agent("openai:gpt-5-mini", tools=[ask, block], name="outer")
    calls = [ToolCall(id=name, name=name) for name in ("ask", "block")]
    script = ScriptedBackend(
        Message(role="assistant", tool_calls=calls), "from below", "from below", "done"
    )

    answer = await outer("Hi", backend=script)
    assert answer.text == "done"
    results = [each.content for each in script.requests[-1].messages if each.role == "tool"]
    assert results == ["from below", "from below"]
    assert [m.text async for m in outer.stream("Hi", backend=named("s"))][-1] == "s"
    assert (await Sequential(outer, inner)("Hi", backend=named("chain"))).text == "chain"


def test_a_call_that_blocks_asks_another_model() -> None:
    assert Agent("openai:gpt-5-mini").run_sync("Hi", backend=named("x")).text == "x"


async def test_a_block_holds_for_its_agent_alone_and_for_tasks_that_start_in_it() -> None:
    one, two = Agent(named("one"), name="one"), Agent(named("two"), name="two")

    with one.override(backend=named("test")):
        assert (await one("Hi")).text == "test"
        assert (await two("Hi")).text == "two"
        task = asyncio.create_task(ask(one))
        with one.override(backend=named("nested")):
            assert (await one("Hi")).text == "nested"
            assert (await one("Hi", backend=named("call"))).text == "call"
        assert (await one("Hi")).text == "test"
    assert await task == "test"
    assert (await one("Hi")).text == "one"


async def ask(agent: Agent[Any], **options: Any) -> str:
    return (await agent("Hi", **options)).text


@given(
    layers=st.lists(st.tuples(st.sampled_from(["team", "writer", "other"]), st.booleans())),
    call=st.booleans(),
)
@settings(max_examples=60)
async def test_the_innermost_replacement_wins(layers: list[tuple[str, bool]], call: bool) -> None:
    """Of blocks around the call, the call's own backend, and blocks in agents' code."""

    class Team(Agent[Any]):
        def __init__(self) -> None:
            super().__init__(named("own"), name="team")
            self.writer = Agent(named("own"), name="writer")

        async def forward(self, *messages: Any, **options: Any) -> str:
            return await within([layer for layer in layers if layer[1]], lambda: ask(self.writer))

    team, other = Team(), Agent(named("own"), name="other")
    agents = {"team": team, "writer": team.writer, "other": other}

    async def within(blocks: list[tuple[str, bool]], then: Any) -> str:
        if not blocks:
            return await then()
        (name, inside), *rest = blocks
        place = layers.index((name, inside))
        with agents[name].override(backend=named(f"{name}{place}{inside}")):
            return await within(rest, then)

    outside = [layer for layer in layers if not layer[1]]
    options = {"backend": named("call")} if call else {}
    said = await within(outside, lambda: ask(team, **options))

    # A block of the team inside its call is for its later calls only.
    order = [(name, False) for name, _ in outside if name != "other"]
    order += [("call", True)] if call else []
    order += [(name, True) for name, inside in layers if inside and name == "writer"]
    last = order[-1] if order else ("own", False)
    expected = last[0] if last[0] in ("call", "own") else f"{last[0]}{layers.index(last)}{last[1]}"
    assert said == expected


async def test_every_model_that_a_call_asks_is_replaced() -> None:
    """Of summaries, prompts as functions, conversations, and agents that call tools in text."""

    @prompt
    def greeting(name: str) -> None:
        """Greet {name}."""

    greet = greeting.with_backend("openai:gpt-5-mini")

    @tool
    async def hello() -> str:
        """Greet."""
        return await greet("Ada")

    memory = SummaryMemory("openai:gpt-5-mini", max_tokens=10)
    agent = Agent("openai:gpt-5-mini", tools=[hello], memory=memory)
    agent.memory.add("long " * 30, "long " * 30)
    script = ScriptedBackend(
        "a summary",
        Message(role="assistant", tool_calls=[ToolCall(id="1", name="hello")]),
        "Hello Ada",
        "done",
    )
    assert (await agent("Hi", backend=script)).text == "done"
    assert len(script.requests) == 4

    step = StepAgent("openai:gpt-5-mini")
    assert (await step("Hi", backend=named("x"))).text == "x"
    alice, bob = (ConversableAgent(name, "openai:gpt-5-mini") for name in ("alice", "bob"))
    with bob.override(backend=named("bye")):
        assert (await alice.initiate_chat(bob, "Hi", max_turns=1)).text == "bye"
    assert repr(single_agent("openai:gpt-5-mini", "x")).count("openai:gpt-5-mini") <= 1


async def test_an_agent_without_a_model_can_be_given_one() -> None:
    with pytest.raises(ConfigurationError, match=r"Agent has no backend\. Give it one"):
        await Agent()("Hi")
    assert (await Agent()("Hi", backend=named("x"))).text == "x"


@pytest.mark.parametrize("wrong", [5, ScriptedBackend, None])
def test_another_value_is_no_backend(wrong: Any) -> None:
    agent = Agent("openai:gpt-5-mini")
    with pytest.raises(TypeError, match="backend must be one that connect"):
        agent.override(backend=wrong)
    if wrong is not None:
        with pytest.raises(TypeError, match="or the name of a model"):
            agent.call("Hi", backend=wrong)
    with pytest.raises(ConfigurationError, match="did you mean 'openai:x'"):
        agent.call("Hi", backend="opnai:x")
    assert repr(agent) == "Agent('Agent', NamedBackend('openai:gpt-5-mini'))"


async def test_a_session_in_a_journal_asks_another_model(tmp_path: Path) -> None:
    async with Journal(tmp_path / "runs.db") as journal:
        agent = Agent("openai:gpt-5-mini", name="sage", journal=journal)
        assert (await agent("Hi", session_id="s", backend=named("x"))).text == "x"
        with agent.override(backend=named("y")):
            again = await agent("Hi", session_id="s")
        assert again.text == "y"
        assert [each.content for each in again.new_messages()] == ["Hi", "y"]


class Ask(Durable[str]):
    """Ask an agent, and end the process."""

    stops: Live[bool] = live()
    backend: Live[Any] = live()

    async def task(self) -> str:
        text = await ask(Agent("openai:gpt-5-mini"), backend=self.backend)
        if self.stops:
            raise KeyboardInterrupt
        return text


def test_a_resumed_run_replays_whatever_the_backend_is(tmp_path: Path) -> None:
    """Also without one: then the named model is asked nothing, and needs no key."""
    file, first = tmp_path / "runs.db", named("x")
    with pytest.raises(KeyboardInterrupt):
        run(Ask(), journal=file, run_id="r", live={"stops": True, "backend": first})

    with pytest.raises(KeyboardInterrupt):
        run(Ask(), journal=file, run_id="r", live={"stops": True, "backend": named("y")})
    assert run(Ask(), journal=file, run_id="r", live={"stops": False, "backend": None}) == "x"


def test_the_program_of_the_page_about_tests_runs() -> None:
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    (block,) = (b for b in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "override" in b)
    exec(compile(block, "testing.md", "exec"), {})
