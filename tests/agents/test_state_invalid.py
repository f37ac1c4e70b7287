"""An invalid state of an agent is refused, and changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch import Agent, ConfigurationError
from anabranch.agents import Memory
from anabranch.testing import ScriptedBackend

WRONG: dict[str, Any] = {
    "nothing": None,
    "a number": 5,
    "a text": "said",
    "a mapping": {"content": "x"},
    "an empty mapping": {},
    "an empty text": "",
    "a message of nothing": [{}],
    "a message of the wire": [{"role": "user", "content": "x"}],
    "a misspelt field": [{"contents": "x"}],
    "a field too many": [{"content": "x", "colour": "red"}],
    "a text for a message": ["x"],
    "none for a message": [None],
    "tools that are none": [{"content": "", "type": "tools", "formatted": None}],
    "tools of nothing": [{"content": "", "type": "tools", "formatted": [{}]}],
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
async def test_what_is_no_memory_is_refused(wrong: Any) -> None:
    """By the agent and by its memory."""
    agent = Agent(ScriptedBackend("said"))
    await agent("kept", session_id=0)
    before = agent.state_dict()

    with pytest.raises(ConfigurationError):
        agent.load_state_dict({"memory": wrong})
    with pytest.raises(ConfigurationError):
        Memory().load(wrong)
    assert agent.state_dict() == before


@pytest.mark.parametrize("wrong", [None, 5, "memory", ["memory"], {}, {"memory": [], 5: []}])
def test_what_is_no_state_is_refused(wrong: Any) -> None:
    """With any keys."""
    with pytest.raises(ConfigurationError):
        Agent(ScriptedBackend()).load_state_dict(wrong)
