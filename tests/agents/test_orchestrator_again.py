"""Orchestrators whose call failed: each answer has happened completely or not at all."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.orchestrators import TalkingEngineer

from anabranch import Agent, BackendUnavailable, Message
from anabranch.agents import (
    Namespace,
    Orchestrator,
    PromptedAgent,
    PromptEngineer,
    State,
    reflexion,
)
from anabranch.agents.errors import LimitReached
from anabranch.agents.orchestration import Action, Module
from anabranch.testing import ScriptedBackend, explore, pause


class Book(Namespace):
    written: list[str] = []  # noqa: RUF012 - pydantic copies it


class BookState(State):
    book: Book = Book()


class Faults:
    """Raises at the moments with the given numbers."""

    def __init__(self, *at: int) -> None:
        self.at = set(at)
        self.moment = 0

    def here(self) -> None:
        self.moment += 1
        if self.moment in self.at:
            raise BackendUnavailable(f"moment {self.moment}")


class Writing(PromptEngineer[BookState]):
    """Writes to as many places of the state as it can; every third answer is unusable."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults

    def render_prompt(self, obs: str | None, history: list[Message], state: BookState) -> None:
        state.book.written.append(f"asked {obs}")
        history.append(Message(role="user", content=f"{obs} {state.agent}"))
        self.faults.here()

    def process_response(
        self, obs: str | None, response: str, history: list[Message], state: BookState
    ) -> str:
        state.book.written.append(f"said {response} {obs}")
        if len(state.book.written) % 3 == 0:
            state.signal_error("a third", "Once more.")
        self.faults.here()
        return response


class Kept(Module):
    def __init__(self, faults: Faults) -> None:
        super().__init__("kept")
        self.faults = faults

    async def before(self, obs: str | None, state: State) -> None:
        self.faults.here()

    async def after(self, response: str, state: State) -> None:
        self.faults.here()


def team(faults: Faults) -> Orchestrator[BookState]:
    """A writer, a listener with a memory, an editor; the editor's answer is the action."""

    async def transition(obs: str | None, state: BookState) -> str:
        state.book.written.append(f"after {state.agent} {obs}")
        faults.here()
        if state.agent == "listener" and state.book.written[-2].startswith("after writer"):
            state.book.written.append("judged")
            state.signal_error("hm", "Listen better.")
        if state.agent == "listener":
            state.step_environment()
        return {"writer": "listener", "listener": "editor"}.get(state.agent or "", "writer")

    def reply(request: Any) -> str:
        faults.here()
        return f"{len(request.messages)}"

    backend = ScriptedBackend(otherwise=reply)
    agents: list[Agent[Any]] = [
        PromptedAgent("writer", Writing(faults), backend, modules=[Kept(faults)]),
        Agent(backend, name="listener"),
        PromptedAgent("editor", Writing(faults), backend, modules=[Kept(faults)]),
    ]
    return Orchestrator(agents, transition, BookState(max_errors=9))


async def play(orchestrator: Orchestrator[Any]) -> list[Action]:
    """Run three steps, and repeat each call until it succeeds."""
    actions: list[Action] = []
    for obs in ("one", "two", "two"):
        for _ in range(30):
            try:
                actions.append(await orchestrator.forward(obs))
            except BackendUnavailable:
                continue
            break
    return actions


def kept(orchestrator: Orchestrator[Any]) -> Any:
    listener = orchestrator.agents["listener"]
    return orchestrator.state.model_dump(), [m.content for m in listener.memory.messages()]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 80), max_size=12))
def test_whatever_fails_the_same_call_goes_on_from_the_last_answer(at: list[int]) -> None:
    """Actions, state and memories are those of a run without failures."""
    smooth, rough = team(Faults()), team(Faults(*at))
    assert asyncio.run(play(rough)) == asyncio.run(play(smooth))
    assert kept(rough) == kept(smooth)


def test_a_cancel_at_any_moment_parts_nothing() -> None:
    """The same call then returns the same action, and the trial has it once."""

    async def main() -> None:
        orchestrator = team(Faults())
        actions: list[Action] = []
        for obs in ("one", "two", "two"):
            call = asyncio.create_task(orchestrator.forward(obs))
            await pause(60)
            call.cancel()
            try:
                actions.append(await call)
            except asyncio.CancelledError:
                actions.append(await orchestrator.forward(obs))
        assert (actions, kept(orchestrator)) == expected

    smooth = team(Faults())
    expected = (asyncio.run(play(smooth)), kept(smooth))
    explore(main, range(150))


async def call_with_failed_model(
    first: ScriptedBackend, second: ScriptedBackend
) -> Orchestrator[State]:
    """Two agents one after the other, called once: the model of the second one failed."""
    orchestrator = Orchestrator(
        [Agent(first, name="first"), Agent(second, name="second")],
        lambda obs, state: {None: "first", "first": "second"}.get(state.agent),
        State(),
    )
    with pytest.raises(BackendUnavailable):
        await orchestrator.forward("begin")
    return orchestrator


async def test_the_second_agent_hears_the_first_when_the_call_is_made_again() -> None:
    """Its request is the same; the first agent is not called again."""
    first, second = ScriptedBackend("from the first"), ScriptedBackend(BackendUnavailable(""), "ok")
    orchestrator = await call_with_failed_model(first, second)
    assert await orchestrator.forward("begin") == Action("ok", "second", done=True)
    heard = [[m.content for m in each.requests[-1].messages] for each in (first, second)]
    assert heard == [["begin"], ["from the first"]]


async def test_another_observation_is_heard_after_an_error() -> None:
    """By the next agent."""
    first, second = ScriptedBackend("one"), ScriptedBackend(BackendUnavailable(""), "ok")
    orchestrator = await call_with_failed_model(first, second)
    await orchestrator.forward("it rains")
    assert second.requests[-1].messages[-1].content == "it rains"


@pytest.mark.parametrize("prompted", [True, False])
async def test_another_observation_is_heard_by_an_agent_that_has_a_mistake_to_mend(
    prompted: bool,
) -> None:
    """Together with the mistake; the same observation is not repeated."""
    backend = ScriptedBackend("blah", BackendUnavailable(""), BackendUnavailable(""), "1")
    name = "talker"
    agent = (
        PromptedAgent(name, TalkingEngineer(), backend) if prompted else Agent(backend, name=name)
    )

    def transition(obs: str | None, state: State) -> str | None:
        if state.response == "blah":
            state.signal_error("no number", "Say a number.")
        return None if state.response else name

    orchestrator = Orchestrator([agent], transition, State())
    for obs in ("one", "it rains"):
        with pytest.raises(BackendUnavailable):
            await orchestrator.forward(obs)
    assert (await orchestrator.forward("it rains")).content == "1"
    heard = [each.messages[-1].content or "" for each in backend.requests[1:]]
    assert "it rains" not in heard[0]
    assert all("Say a number." in each for each in heard)
    assert [each.count("it rains") for each in heard] == [0, 1, 1]


@given(st.dictionaries(st.text(max_size=2), st.floats()), st.floats(), st.floats() | st.none())
def test_a_state_has_any_number_and_comes_back_from_json(
    each: dict[str, float], best: float, reward: float | None
) -> None:
    """Also infinities, which are usual as the first best value, and NaN."""

    class Search(Namespace):
        best: float = float("inf")
        each: dict[str, float] = {}  # noqa: RUF012 - pydantic copies it

    class SearchState(State):
        search: Search = Search()

    state = SearchState(search=Search(best=best, each=each), reward=reward)
    text = state.model_dump_json()
    json.dumps(json.loads(text), allow_nan=False)
    assert repr(SearchState.model_validate_json(text)) == repr(state)


async def test_a_run_that_broke_off_goes_on_from_its_saved_state() -> None:
    """In another process too: the state has its position."""
    smooth, rough, other = team(Faults()), team(Faults(9)), team(Faults())
    action = await smooth.forward("one")
    with pytest.raises(BackendUnavailable):
        await rough.forward("one")
    assert rough.state.transitions
    other.state = BookState.model_validate_json(rough.state.model_dump_json())
    assert await other.forward("one") == action
    assert other.state == smooth.state


async def test_a_state_is_json_whatever_was_seen_and_said() -> None:
    """UTF-8 cannot write half a surrogate pair: it becomes U+FFFD; the state is unchanged."""

    class Shown(State):
        seen: dict[str, list[str]] = {}  # noqa: RUF012 - pydantic copies it

    backend = ScriptedBackend("\udfff")
    agent = PromptedAgent("talker", TalkingEngineer(), backend)
    orchestrator = Orchestrator([agent], lambda obs, state: state.agent or "talker", Shown())
    orchestrator.state.max_transitions = 1
    with pytest.raises(LimitReached):
        await orchestrator.forward("a \ud83d")
    orchestrator.state.seen["seen"] = ["\ud83d\ude00"]
    again = Shown.model_validate_json(orchestrator.state.model_dump_json())
    assert again.model_dump(mode="json") == orchestrator.state.model_dump(mode="json")
    assert (again.obs, again.response, again.seen) == ("a \ufffd", "\ufffd", {"seen": ["😀"]})
    assert orchestrator.state.obs == "a \ud83d"


async def test_a_limit_that_was_reached_stays_reached() -> None:
    """A new call asks no model, until the limit is raised."""
    backend = ScriptedBackend(otherwise="blah")
    orchestrator = Orchestrator(
        [Agent(backend, name="talker")], lambda obs, state: "talker", State(max_transitions=3)
    )
    for _ in range(3):
        with pytest.raises(LimitReached, match="max_transitions=3"):
            await orchestrator.forward("go")
    assert len(backend.requests) == 3


async def test_a_trial_of_reflexion_has_each_action_once() -> None:
    """Also if a later part of the answer failed."""

    class Late(Module):
        async def after(self, response: str, state: State) -> None:
            if not state.notes:
                state.notes["late"] = "failed once"
                raise ConnectionError("no index")

    backend = ScriptedBackend(otherwise="Action: push")
    orchestrator = reflexion(backend, "Open it.", modules=[Late("late")])
    with pytest.raises(ConnectionError):
        await orchestrator.forward("A door.")
    await orchestrator.forward("A door.")
    assert [past.action for past in orchestrator.state.actor.trial] == ["push"]
