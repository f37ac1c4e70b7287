"""States with mappings whose keys cannot be written in UTF-8."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from anabranch import Agent, AgentMessage
from anabranch.agents import Namespace, State
from anabranch.testing import ScriptedBackend

halves = st.text(st.sampled_from("a\ud800\udfff\ufffd"), max_size=3)
values = st.recursive(
    halves | st.integers() | st.none(),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.tuples(inner)
        | st.dictionaries(halves | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


class Noted(BaseModel):
    notes: dict[str, Any]


@dataclass
class Kept:
    notes: dict[str, Any] = field(default_factory=dict[str, Any])


def count(value: Any) -> int:
    """Return the number of entries in all mappings of a value."""
    if isinstance(value, dict):
        return len(value) + sum(map(count, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(count, value))
    return 0


@given(st.dictionaries(halves, values, max_size=3))
def test_a_memory_is_saved_whatever_the_keys_are(drawn: dict[str, Any]) -> None:
    """Also in models and dataclasses: none is lost, and the saved memory can be loaded."""
    agent = Agent(ScriptedBackend(), name="a")
    for output in (drawn, Noted(notes=drawn), Kept(drawn)):
        agent.memory.add(AgentMessage(content=drawn, output=output, extra=drawn))
    before = repr(agent.memory.messages())
    state = agent.state_dict()
    assert json.loads(json.dumps(state, ensure_ascii=False).encode()) == state
    for record in state["memory"]:
        output = record["formatted"]
        output = output.get("notes", output) if record is not state["memory"][0] else output
        assert count(record["content"]) == count(record["extra"]) == count(output) == count(drawn)
    agent.load_state_dict(state, 1)
    assert agent.state_dict(1) == state
    assert repr(agent.memory.messages()) == before


@given(st.dictionaries(halves, st.integers()), st.dictionaries(halves, values, max_size=3))
def test_an_orchestrator_s_state_is_saved_whatever_the_keys_are(
    typed: dict[str, int], untyped: dict[str, Any]
) -> None:
    """All of them are restored; the state itself is unchanged."""

    class Noting(Namespace):
        typed: dict[str, int] = {}  # noqa: RUF012 - pydantic copies it
        untyped: dict[Any, Any] = {}  # noqa: RUF012 - pydantic copies it

    class NotingState(State):
        own: Noting = Noting()

    state = NotingState(own=Noting(typed=typed, untyped=untyped), notes=dict.fromkeys(typed, ""))
    text = state.model_dump_json()
    again = NotingState.model_validate_json(text.encode())
    assert again.model_dump_json() == text
    assert len(again.notes) == len(again.own.typed) == len(typed)
    assert count(again.own.untyped) == count(untyped)
    assert (state.own.typed, state.own.untyped) == (typed, untyped)


@given(st.dictionaries(halves, st.none(), min_size=1, max_size=4))
def test_a_state_has_a_path_for_agents_under_such_keys(drawn: dict[str, None]) -> None:
    """One in UTF-8 that leads to the same agent."""

    def team() -> Agent[Any]:
        above: Any = Agent(name="above")
        above.below = {key: Agent(name="below") for key in drawn}
        return above

    above = team()
    for number, below in enumerate(above.below.values()):
        below.memory.add(f"{number}")
    state = json.loads(json.dumps(above.state_dict(), ensure_ascii=False).encode())
    assert len(state) == len(drawn) + 1
    other = team()
    other.load_state_dict(state)
    for key, below in above.below.items():
        assert other.below[key].memory.save() == below.memory.save()
