"""The `output` of a message, and the stored forms of earlier releases, which say `formatted`."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from anabranch.agents import Agent, AgentMessage, JsonParser, Sequential
from anabranch.store._codec import Codec
from anabranch.store._json import canonical
from anabranch.testing import ScriptedBackend


class City(BaseModel):
    """A city."""

    name: str


values = st.none() | st.integers() | st.text() | st.lists(st.integers(), max_size=2)


@given(values)
def test_the_earlier_name_is_read_wherever_a_message_was_stored(value: Any) -> None:
    """In JSON, in a pickle, in a state, and as the result of a durable job."""
    message = AgentMessage(content="x", output=value)
    fields = {**message.model_dump(), "formatted": value}
    del fields["output"]
    assert AgentMessage.model_validate(fields) == message
    assert AgentMessage.model_validate_json(json.dumps(fields)) == message

    state = message.__getstate__()
    state["__dict__"] = {
        ("formatted" if name == "output" else name): each for name, each in message
    }
    state["__pydantic_fields_set__"] = {"content", "formatted"}
    make, (kind, _) = message.__reduce__()
    assert pickle.loads(pickle.dumps(_Earlier(make, kind, state))) == message

    agent = Agent(ScriptedBackend(), name="a")
    agent.memory.add(message)
    (record,) = agent.state_dict()["memory"]
    assert record["formatted"] == value
    assert "output" not in record
    agent.load_state_dict({"memory": [record]})
    assert agent.memory.messages() == [message]

    codec = Codec(AgentMessage, "a result")
    assert codec.decode(codec.encode(message)) == message
    assert codec.decode(json.dumps(fields).encode()) == message


class _Earlier:
    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __reduce__(self) -> Any:
        make, kind, state = self.parts
        return make, (kind, state)


async def test_the_output_of_an_agent_without_a_parser_is_its_text() -> None:
    """Also of one whose `forward` returns a string, and after a hook that changes the text."""

    class Plain(Agent):
        async def forward(self, *messages: Any, **options: Any) -> str:
            return "from forward"

    agent = Agent(ScriptedBackend("Nile", "Nile"), name="sage")
    first = await agent("?", session_id=1)
    assert first.output == first.content == "Nile"
    assert first == AgentMessage(content="Nile", sender="sage", extra={"status": "ok"}).model_copy(
        update={"usage": first.usage}
    )
    assert pickle.loads(pickle.dumps(first)).output == "Nile"
    assert (await Plain()("?")).output == "from forward"
    agent.after_agent(lambda _, answer, session_id: answer.model_copy(update={"content": "Po"}))
    assert (await agent("?")).output == "Po"
    both = Sequential(
        Agent(ScriptedBackend("1"), name="one"),
        Agent(ScriptedBackend('{"name": "Oslo"}'), name="two", output_format=JsonParser(City)),
    )
    assert (await both("?")).output == City(name="Oslo")


async def test_the_text_is_stored_once(tmp_path: Path) -> None:
    """In a state, in a journal, and in the identity of a job; it is restored from the text."""
    name = str(tmp_path / "j.db")

    def make() -> Agent:
        return Agent(ScriptedBackend("unusual-text"), name="sage", journal=name)

    answer = await make()("?", session_id="s")
    again = make()
    assert [each.output for each in await again.recall("s")] == [None, "unusual-text"]
    (_, record) = again.state_dict("s")["memory"]
    assert record["formatted"] is None
    text, _ = canonical(answer)
    assert text.count("unusual-text") == 1
    assert '"formatted":null' in text
    assert '"output"' not in text

    passed = Agent(ScriptedBackend("ok"), name="other", journal=name)
    assert (await passed(answer, session_id="s")).output == "ok"
    (record, _) = passed.state_dict("s")["memory"]
    assert record["formatted"] is None


@pytest.mark.parametrize("output", ["text", ["list"], 3])
async def test_a_given_output_is_kept(output: Any, tmp_path: Path) -> None:
    """Nothing replaces an output that `forward` has set, not even None."""

    class Given(Agent[Any]):
        async def forward(self, *messages: Any, **options: Any) -> AgentMessage[Any]:
            return AgentMessage(content="text", output=output, sender=self.name)

    agent = Given(name="given", journal=str(tmp_path / "j.db"))
    assert (await agent("?", session_id="s")).output == output
    again = Given(name="given", journal=str(tmp_path / "j.db"))
    assert (await again.recall("s"))[1].output == output
