"""Orchestrators: the next agent, repeated answers, and the end."""

import asyncio
import logging
from typing import Any

import pytest
from pydantic import ValidationError
from support.orchestrators import (
    Counter,
    CountState,
    TalkingEngineer,
    backend_of,
    counter_agent,
    counting_orchestrator,
    role_contents,
)

from anabranch import (
    Agent,
    BackendUnavailable,
    ConfigurationError,
)
from anabranch.agents import Orchestrator, PromptedAgent, State
from anabranch.agents.errors import LimitReached, UnknownAgent
from anabranch.agents.orchestration import Action, ListMemory
from anabranch.testing import ScriptedBackend

# --- the next agent


async def test_the_transition_names_the_next_until_the_environment_is_to_act() -> None:
    """It is called after each answer, gets the observation once, and may be async."""
    asked: list[tuple[str | None, str | None]] = []

    async def transition(obs: str | None, state: CountState) -> str:
        asked.append((obs, state.agent))
        return "counter" if state.agent == "talker" else "talker"

    talker = PromptedAgent("talker", TalkingEngineer(), ScriptedBackend("blah", "blah"))
    agents: list[Agent[Any]] = [talker, counter_agent(ScriptedBackend("1", "2"))]
    orchestrator = Orchestrator(agents, transition, CountState())

    assert await orchestrator.forward("go") == Action("1", "counter")
    assert await orchestrator.forward("on", reward=0.5) == Action("2", "counter")
    assert asked == [("go", None), (None, "talker"), ("on", "counter"), (None, "talker")]
    assert orchestrator.state.counter.number == 2
    assert (orchestrator.state.steps, orchestrator.state.reward) == (2, 0.5)


async def test_a_transition_that_names_nobody_ends_it() -> None:
    """The last answer is the result."""

    def transition(obs: str | None, state: State) -> str | None:
        return "talker" if state.agent is None else None

    talker = PromptedAgent("talker", TalkingEngineer(), ScriptedBackend("blah"))
    orchestrator = Orchestrator([talker], transition, State())
    assert await orchestrator.forward() == Action("blah", "talker", done=True)


async def test_any_agent_may_be_orchestrated() -> None:
    """It reads the observation, or the previous answer; and its mistakes."""

    def transition(obs: str | None, state: State) -> str | None:
        if state.agent == "critic" and state.response != "good":
            state.signal_error("no judgement", "Say good or bad.")
        return {None: "writer", "writer": "critic"}.get(state.agent)

    writer, critic = ScriptedBackend("a text"), ScriptedBackend("hm", "good")
    agents = [Agent(writer, name="writer"), Agent(critic, "Judge.", name="critic")]
    orchestrator = Orchestrator(agents, transition, State())

    assert await orchestrator.forward("Write.") == Action("good", "critic", done=True)
    assert role_contents(writer.requests[0]) == [("user", "Write.")]
    assert role_contents(critic.requests[0]) == [("system", "Judge."), ("user", "a text")]
    assert role_contents(critic.requests[1])[-1] == ("user", "Say good or bad.")


async def test_an_unknown_name_is_an_error_that_says_who_is_there() -> None:
    """So is another type; the same call may be made again."""
    names: list[Any] = ["nobody", 7, "counter"]
    orchestrator = Orchestrator(
        [counter_agent(ScriptedBackend("1"))], lambda obs, state: names.pop(0), CountState()
    )
    with pytest.raises(UnknownAgent, match="'nobody' in orchestrator: it has counter"):
        await orchestrator.forward()
    with pytest.raises(TypeError, match="a name or None, not 7"):
        await orchestrator.forward()
    assert (await orchestrator.forward()).content == "1"


def test_agents_need_names_of_their_own() -> None:
    """And at least one agent is required."""
    backend = ScriptedBackend()
    with pytest.raises(ValueError, match="two agents called 'counter'"):
        Orchestrator(
            [counter_agent(backend), counter_agent(backend)], lambda obs, state: None, CountState()
        )
    with pytest.raises(ValueError, match="at least one agent"):
        Orchestrator([], lambda obs, state: None, State())


# --- the state


def test_the_state_is_typed_and_has_a_namespace_for_each_agent() -> None:
    """An unknown name or an invalid value is refused at the assignment."""
    state = CountState()
    with pytest.raises(ValidationError):
        state.counter.number = "many"  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ValidationError):
        CountState(counters=Counter())  # pyright: ignore[reportCallIssue]
    with pytest.raises(ValueError, match="numbr"):
        state.counter.numbr = 1  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ValidationError):
        CountState(max_errors=-1)
    assert CountState().counter is not state.counter


async def test_a_run_goes_on_from_its_saved_state() -> None:
    """The state has everything, also the histories of the models."""
    first = counting_orchestrator("1")
    await first.forward("go")
    saved = first.state.model_dump_json()

    second = counting_orchestrator("2")
    second.state = CountState.model_validate_json(saved)
    assert (await second.forward("on")).content == "2"
    assert role_contents(backend_of(second).requests[0]) == [
        ("user", "go"),
        ("assistant", "1"),
        ("user", "on"),
    ]


async def test_reset_begins_anew() -> None:
    """The state is the first one, and everything except the usage is forgotten."""
    orchestrator = counting_orchestrator("1", "2", "3", modules=[ListMemory()])
    await orchestrator.forward("go")
    await orchestrator.forward("on")
    orchestrator.reset()
    assert orchestrator.state == CountState()
    agent = orchestrator.agents["counter"]
    assert isinstance(agent, PromptedAgent)
    assert agent.memory.messages() == []
    assert agent.prompt_engineer.resets == 1
    await orchestrator.forward("go")
    assert orchestrator.state.notes == {}


async def test_orchestrators_may_share_their_agents() -> None:
    """At the same time, each with its state."""
    shared = counter_agent(
        ScriptedBackend(otherwise=lambda request: str(request.messages[-1].content))
    )
    orchestrators = [
        Orchestrator([shared], lambda obs, state: "counter", CountState(), session_id=number)
        for number in range(5)
    ]
    actions = await asyncio.gather(
        *(each.forward(number) for each, number in zip(orchestrators, "12345", strict=True))
    )
    assert [action.content for action in actions] == list("12345")
    assert [each.state.counter.number for each in orchestrators] == [1, 2, 3, 4, 5]


# --- errors and limits


async def test_a_signalled_error_asks_the_same_agent_again(caplog: Any) -> None:
    """It reads its own answer and the improvement; the transition is not called."""
    caplog.set_level(logging.INFO, "anabranch.agents")
    orchestrator = counting_orchestrator("lots", "7")
    assert (await orchestrator.forward()).content == "7"
    assert role_contents(backend_of(orchestrator).requests[1]) == [
        ("user", "Count."),
        ("assistant", "lots"),
        ("user", "Say a number."),
    ]
    assert "cannot be used: no number" in caplog.text
    assert orchestrator.state.errors == 0


async def test_too_many_errors_in_a_row_end_it() -> None:
    """`max_errors` are allowed; the next ends it, also in a new call."""
    orchestrator = counting_orchestrator("a", "b", "c", max_errors=2)
    with pytest.raises(LimitReached, match=r"counter gave no usable answer: no number") as caught:
        await orchestrator.forward()
    assert (caught.value.limit, caught.value.value, caught.value.agent) == (
        "max_errors",
        2,
        "counter",
    )
    with pytest.raises(LimitReached, match="max_errors"):
        await orchestrator.forward()
    assert len(backend_of(orchestrator).requests) == 3


async def test_the_environment_is_asked_max_steps_times() -> None:
    """After that it sends no request to a model."""
    orchestrator = counting_orchestrator("1", "2", "3", max_steps=2)
    await orchestrator.forward()
    await orchestrator.forward()
    with pytest.raises(LimitReached, match="max_steps=2"):
        await orchestrator.forward()
    assert len(backend_of(orchestrator).requests) == 2


async def test_agents_who_only_talk_come_to_an_end() -> None:
    """After `max_transitions` answers without an environment step."""
    talker = PromptedAgent("talker", TalkingEngineer(), ScriptedBackend(otherwise="blah"))
    orchestrator = Orchestrator([talker], lambda obs, state: "talker", State(max_transitions=4))
    with pytest.raises(LimitReached, match="max_transitions=4"):
        await orchestrator.forward()
    assert len(backend_of(orchestrator, "talker").requests) == 4


async def test_an_error_before_anybody_answered_is_refused() -> None:
    """No agent could answer again."""

    def transition(obs: str | None, state: State) -> str:
        state.signal_error("too early", "?")
        return "counter"

    orchestrator = Orchestrator([counter_agent(ScriptedBackend())], transition, CountState())
    with pytest.raises(RuntimeError, match="before the first answer"):
        await orchestrator.forward()


async def test_a_failed_answer_can_be_asked_for_again() -> None:
    """The state equals the one after the last answer, with the mistake to correct."""
    orchestrator = counting_orchestrator("lots", BackendUnavailable("gone"), "7")
    with pytest.raises(BackendUnavailable):
        await orchestrator.forward()
    assert (await orchestrator.forward()).content == "7"
    assert role_contents(backend_of(orchestrator).requests[1]) == role_contents(
        backend_of(orchestrator).requests[2]
    )
    assert orchestrator.state.errors == 0


@pytest.mark.parametrize("given", [None, 7])
async def test_an_engineer_that_gives_no_text_is_named(given: Any) -> None:
    """The same holds for an engineer that renders no messages."""

    class Bad(TalkingEngineer):
        def process_response(self, *_: Any) -> str:
            return given

    class Empty(TalkingEngineer):
        def render_prompt(self, *_: Any) -> None: ...

    for engineer, fault in (
        (Bad(), "process_response of bad must return a text"),
        (Empty(), "render_prompt of bad must leave"),
    ):
        agent = PromptedAgent("bad", engineer, ScriptedBackend("x"))
        orchestrator = Orchestrator([agent], lambda obs, state: "bad", State())
        with pytest.raises(TypeError, match=fault):
            await orchestrator.forward()


async def test_a_prompted_agent_alone_says_what_it_needs() -> None:
    """Its prompt is made of a state that only an orchestrator has."""
    with pytest.raises(ConfigurationError, match="counter needs the state of an Orchestrator"):
        await counter_agent(ScriptedBackend())("go")
