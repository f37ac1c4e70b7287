"""Failed answers of orchestrators: tool calls that have run, and messages of other callers."""

import asyncio
import json
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.seeds import SEED

from anabranch import Agent, BackendUnavailable, ContextTooLong, Message, ToolCall, tool
from anabranch.agents import (
    Orchestrator,
    PromptedAgent,
    PromptEngineer,
    Sequential,
    State,
    StepAgent,
)
from anabranch.agents.orchestration import Action, Module
from anabranch.messages import Request
from anabranch.testing import ScriptedBackend, explore, pause, run_seeded

Kind: TypeAlias = Literal["plain", "prompted", "sequence", "steps"]


class Faults:
    """Raises at the moments with the given numbers, counted over all calls."""

    def __init__(self, *at: int) -> None:
        self.at = set(at)
        self.moment = 0

    def here(self, *_: object) -> None:
        self.moment += 1
        if self.moment in self.at:
            raise BackendUnavailable(f"moment {self.moment}")


class Clerk(PromptEngineer[State]):
    def __init__(self, faults: Faults) -> None:
        self.faults = faults

    def render_prompt(self, obs: str | None, history: list[Message], state: State) -> None:
        history[:] = [Message(role="user", content=f"{obs or state.response}")]

    def process_response(
        self, obs: str | None, response: str, history: list[Message], state: State
    ) -> str:
        self.faults.here()
        return response


class Late(Module):
    def __init__(self, faults: Faults) -> None:
        super().__init__("late")
        self.faults = faults

    async def after(self, response: str, state: State) -> None:
        self.faults.here()


def team(kind: Kind, faults: Faults, paid: list[str]) -> Orchestrator[State]:
    """Two agents that pay by a tool before they answer; the second ends the step."""

    @tool
    async def pay(whom: str) -> str:
        """Pay somebody."""
        paid.append(whom)
        return f"{whom} was paid"

    def replier(whom: str) -> Callable[[Request], Message | str]:
        def reply(request: Request) -> Message | str:
            faults.here()
            # A model that gets its task again starts again, except for the inner agents.
            seen = request.messages[-1:] if kind in ("plain", "prompted") else request.messages
            if any("was paid" in (each.content or "") for each in seen if each.role != "assistant"):
                return f"{whom} is done"
            if kind == "steps":
                action = {"name": "pay", "parameters": {"whom": whom}}
                return f"I pay.\n```json\n{json.dumps(action)}\n```"
            call = ToolCall(id=f"call{faults.moment}", name="pay", arguments={"whom": whom})
            return Message(role="assistant", content="I pay.", tool_calls=[call])

        return reply

    def agent(name: str) -> Agent[Any]:
        backend = ScriptedBackend(otherwise=replier(name))
        if kind == "prompted":
            modules = [Late(faults)]
            return PromptedAgent(name, Clerk(faults), backend, modules=modules, tools=[pay])
        if kind == "steps":
            made: Agent[Any] = StepAgent(backend, plugins=[pay], name=name)
        else:
            made = Agent(backend, name=name, tools=[pay])
        made.after_agent(faults.here)
        if kind != "sequence":
            return made
        last = Agent(ScriptedBackend(otherwise=lambda _: faults.here() or f"{name} is done"))
        return Sequential(made, last, name=name)

    def transition(obs: str | None, state: State) -> str | None:
        faults.here()
        if state.agent == "first":
            state.step_environment()
            return "second"
        return None if state.agent == "second" else "first"

    agents = [agent("first"), agent("second")]
    return Orchestrator(agents, transition, State(), session_id="shared")


async def play(orchestrator: Orchestrator[State], saved: bool) -> Action:
    """Call `forward` until it returns an action, each time from the saved state if requested."""
    while True:
        try:
            return await orchestrator.forward("begin")
        except BackendUnavailable:
            if saved:
                text = orchestrator.state.model_dump_json()
                orchestrator.state = State.model_validate_json(text)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(["plain", "prompted", "sequence", "steps"]),
    st.sets(st.integers(1, 16), max_size=10),
    st.booleans(),
)
def test_whatever_fails_each_call_runs_once(kind: Kind, at: set[int], saved: bool) -> None:
    """The model reads its calls and their results when it answers again."""
    paid: list[str] = []
    action = asyncio.run(play(team(kind, Faults(*at), paid), saved))
    assert (action.agent, action.content) == ("second", "second is done")
    assert paid == ["first", "second"]


@pytest.mark.parametrize("kind", ["plain", "prompted", "sequence"])
def test_a_cancel_at_any_moment_repeats_no_call(kind: Kind) -> None:
    """The same call continues from there."""

    async def main() -> None:
        paid: list[str] = []
        orchestrator = team(kind, Faults(), paid)
        call = asyncio.create_task(orchestrator.forward("begin"))
        await pause(60)
        call.cancel()
        await asyncio.wait([call])
        action = await orchestrator.forward("begin") if call.cancelled() else call.result()
        assert (action.content, paid) == ("second is done", ["first", "second"])

    explore(main, range(60))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["plain", "sequence", "steps"]),
    st.sets(st.integers(1, 16), max_size=10),
    st.integers(0, 40),
    st.integers(0, 2**20),
)
def test_what_other_callers_say_in_the_session_stays(
    kind: Kind, at: set[int], turns: int, seed: int
) -> None:
    """At any moment: the orchestrator removes only its own messages."""
    orchestrator = team(kind, Faults(*at), [])
    first = orchestrator.agents["first"]

    async def others() -> None:
        for number in range(4):
            await pause(turns // 4)
            for agent in first.named_agents().values():
                agent.memory.add(f"other {number}", session_id="shared")

    async def main() -> None:
        await asyncio.gather(play(orchestrator, saved=False), others())

    run_seeded(main, seed=SEED + seed)
    for agent in first.named_agents().values():
        said = [each.text for each in agent.memory.messages("shared")]
        assert [text for text in said if "other" in text] == [f"other {n}" for n in range(4)]
        assert said.count("begin") <= 1 + len(at)


async def test_a_failed_answer_without_calls_leaves_nothing() -> None:
    """Neither the question nor the broken text."""
    agent = Agent(ScriptedBackend(BackendUnavailable("gone"), "ok"), name="talker")
    agent.memory.add("earlier", session_id="shared")
    orchestrator = Orchestrator(
        [agent], lambda _, state: None if state.agent else "talker", State(), session_id="shared"
    )
    with pytest.raises(BackendUnavailable):
        await orchestrator.forward("begin")
    assert [each.text for each in agent.memory.messages("shared")] == ["earlier"]
    await orchestrator.forward("begin")
    said = [each.text for each in agent.memory.messages("shared")]
    assert said == ["earlier", "begin", "ok"]


async def test_calls_whose_results_are_too_long_are_shortened_and_not_repeated() -> None:
    """A prompted agent's request fits in the end, and the tool has run once."""
    runs: list[str] = []

    @tool
    async def read() -> str:
        """Read something long."""
        runs.append("read")
        return "x" * 50_000

    def reply(request: Request) -> Message | str:
        length = sum(len(each.content or "") for each in request.messages)
        if length > 10_000:
            raise ContextTooLong(f"{length} characters are too many")
        if request.messages[-1].role == "tool":
            return "read"
        return Message(role="assistant", tool_calls=[ToolCall(id="1", name="read", arguments={})])

    backend = ScriptedBackend(otherwise=reply)
    agent = PromptedAgent("reader", Clerk(Faults()), backend, tools=[read])
    orchestrator = Orchestrator([agent], lambda _, s: None if s.agent else "reader", State())
    assert (await orchestrator.forward("begin")).content == "read"
    assert runs == ["read"]
