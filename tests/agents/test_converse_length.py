"""Long conversations: the cost of each further message."""

import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.conversing_agents import silent_user
from support.seeds import example_count

from anabranch import Agent, AgentMessage, Message
from anabranch.agents import (
    Aggregator,
    ConversableAgent,
    GroupChat,
    Memory,
    ToolAggregator,
    ToolParser,
)
from anabranch.agents.layers import TextCall
from anabranch.testing import ScriptedBackend


@pytest.fixture
def created_messages(monkeypatch: pytest.MonkeyPatch) -> list[Message]:
    """All `Message`s that are created, those for replies, requests and memories."""
    messages: list[Message] = []
    init = Message.__init__

    def count(self: Message, **fields: Any) -> None:
        init(self, **fields)
        messages.append(self)

    monkeypatch.setattr(Message, "__init__", count)
    return messages


def modelled(name: str) -> ConversableAgent:
    model = ScriptedBackend(otherwise="and so on")
    return ConversableAgent(name, model, max_consecutive_auto_reply=None)


async def test_a_message_is_made_for_the_model_once(created_messages: list[Message]) -> None:
    """Not for each later request: 1,000 messages do not cost a million."""
    counts: list[int] = []
    for length in (100, 200):
        created_messages.clear()
        await modelled("a").initiate_chat(modelled("b"), "Hello.", max_messages=length)
        counts.append(len(created_messages))
    assert counts[1] <= 2 * counts[0] + 10
    assert counts[1] < 5 * 200


async def test_nor_in_a_group_for_each_member_again(created_messages: list[Message]) -> None:
    """There, consecutive messages of others are one."""
    counts: list[int] = []
    for length in (60, 120):
        created_messages.clear()
        team = GroupChat("team", [modelled(name) for name in "abc"], max_turns=length)
        await silent_user().initiate_chat(team, "Hello.", max_messages=999)
        counts.append(len(created_messages))
    assert counts[1] <= 2 * counts[0] + 10


@settings(max_examples=example_count(60, 1000))
@given(
    st.lists(st.tuples(st.sampled_from(["a", "user", "tool"]), st.sampled_from(["", "x", "yz"]))),
    st.sampled_from([Aggregator(), ToolAggregator("<", ">"), ToolAggregator(role="tool")]),
)
def test_user_messages_in_a_row_are_one(said: list[tuple[str, str]], how: Aggregator) -> None:
    """In each state of a growing memory, and in a plain list."""
    memory: list[AgentMessage] = []
    for sender, text in said:
        memory.append(AgentMessage(content=text, sender=sender))
        expected: list[tuple[str, str]] = []
        for each in memory:
            role = "assistant" if each.sender == "a" else "user"
            text = each.text
            stands_alone = False
            if isinstance(how, ToolAggregator) and each.sender == "tool":
                stands_alone = True
                role, text = how.role, f"{how.begin}{text}{how.end}"
            if role == "user" and not stands_alone and expected and expected[-1][0] == "user":
                before = expected.pop()[1]
                text = "\n".join(filter(None, [before, text]))
            expected.append((role, text))
        own: list[Message] = []
        for each in memory:
            how.append(own, each, "a", None)
        for request in (how.aggregate(memory, "a"), own):
            assert [(m.role, m.content or "") for m in request] == expected


def test_a_row_of_user_messages_is_joined_once(created_messages: list[Message]) -> None:
    """So 600 messages of 10 kB need 6 MB, and not 1.8 GB, also in the caches."""
    memory = Memory()
    said = 0
    for _ in range(200):
        memory.add("x" * 1000)
        said += 1001
        created_messages.clear()
        (joined,) = Aggregator().aggregate(memory.messages(), "a")
        assert len(joined.content or "") == said - 1
        assert sum(len(each.content or "") for each in created_messages) <= 2 * said
    held = [each for message in memory.messages() for each in vars(message).values()]
    assert sum(len(each.content or "") for each in held if isinstance(each, Message)) <= 2 * said


async def test_what_a_model_reads_is_as_new_when_a_message_has_changed() -> None:
    """Whoever changed it, and for each agent."""
    agent = Agent(ScriptedBackend("One.", "Two."), name="a", memory=Memory())
    await agent("1?", session_id=0)
    agent.memory.get(0)[0].content = "changed"
    assert [m.content for m in agent.aggregate(0)] == ["changed", "One."]
    agent.name = "b"
    assert [(m.role, m.content) for m in agent.aggregate(0)] == [("user", "changed\nOne.")]

    acting = ToolAggregator("<<", ">>")
    messages = [AgentMessage(content="Do: x", sender="a"), AgentMessage(content="y", sender="t")]
    parser = ToolParser(TextCall("f", "Do: ", "!"))
    for _ in range(2):
        said = [m.content for m in acting.aggregate(messages, "a", parser)]
        assert said == ["Do: x!", "<<y>>"]


async def test_what_was_made_of_a_message_is_no_part_of_it() -> None:
    """The cache is not saved, sent, shown or compared."""
    message, same = (AgentMessage(content="Hi", receiver="a") for _ in range(2))
    agent = Agent(ScriptedBackend(), name="a")
    (kept,) = agent.memory.add(message, session_id=0)
    saved = agent.state_dict(0)
    agent.aggregate(0)
    assert agent.state_dict(0) == saved
    assert kept == same
    assert (kept.model_dump(), kept.model_dump_json(), repr(kept)) == (
        same.model_dump(),
        same.model_dump_json(),
        repr(same),
    )
    assert vars(pickle.loads(pickle.dumps(kept))) == vars(same)
