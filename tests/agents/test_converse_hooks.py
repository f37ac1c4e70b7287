"""Hooks of conversable agents: no message reaches a model or a memory before them."""

import asyncio
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.conversing_agents import contents_by_sender, silent_user
from support.seeds import SEED

from anabranch import AgentMessage
from anabranch.agents import ConversableAgent, GroupChat, GroupTalk
from anabranch.messages import Request
from anabranch.testing import ScriptedBackend, explore, pause, run_seeded


class Redacts:
    """Removes secrets, some loop iterations after a message arrives; records all messages."""

    def __init__(self, turns: int = 0) -> None:
        self.turns = turns
        self.seen: list[str] = []

    async def before_agent(
        self, agent: Any, message: AgentMessage, session_id: object
    ) -> AgentMessage:
        self.seen.append(message.text)
        if self.turns:
            await pause(self.turns)
        return message.model_copy(update={"content": message.text.replace("secret", "[hidden]")})


def redacting(name: str, hook: Redacts) -> tuple[ConversableAgent, list[str]]:
    """An agent that answers with its number of messages, and the texts that its model reads."""
    read: list[str] = []

    def reply(request: Request) -> str:
        read.extend(each.content or "" for each in request.messages)
        return f"{name} has read {len(read)}"

    backend = ScriptedBackend(otherwise=reply)
    return ConversableAgent(name, backend, max_consecutive_auto_reply=None, hooks=[hook]), read


def messages_of_others(agent: ConversableAgent) -> list[str]:
    """Return the messages of others in the agent's memory."""
    sessions = agent.memory.sessions
    kept = [each for session in sessions for each in agent.memory.messages(session)]
    return [each.text for each in kept if each.sender != agent.name]


def hidden(text: str) -> str:
    return text.replace("secret", "[hidden]")


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(0, 3), st.booleans(), st.integers(0, 2**20))
def test_of_several_messages_that_arrive_at_once_each_passes_the_hooks_once(
    number: int, turns: int, chats: bool, seed: int
) -> None:
    """By `receive` or by chats at the same time."""
    hook = Redacts(turns)
    agent, read = redacting("alice", hook)
    user = silent_user()
    texts = [f"secret {n}" for n in range(number)]

    async def main() -> None:
        if chats:
            await asyncio.gather(*(user.send(text, agent, max_turns=1) for text in texts))
        else:
            sent = (AgentMessage(content=text, receiver="alice") for text in texts)
            await asyncio.gather(*(agent.receive(each) for each in sent))

    run_seeded(main, seed=SEED + seed)
    assert sorted(hook.seen) == texts
    assert sorted(messages_of_others(agent)) == [hidden(text) for text in texts]
    others = [line for text in read for line in text.split("\n") if "alice has read" not in line]
    assert {*others} == {hidden(text) for text in texts}


@pytest.mark.parametrize("max_turns", [1, 2, 3])
async def test_the_last_answer_of_a_conversation_passes_the_hooks_too(max_turns: int) -> None:
    """Also where the turn limit leaves it without an answer."""
    hook = Redacts()
    agent, read = redacting("alice", hook)
    bob = ConversableAgent("bob", default_auto_reply="my secret")
    for _ in range(2):
        await agent.send("Tell me.", bob, max_turns=max_turns)
    assert hook.seen == ["my secret"] * max_turns * 2
    assert messages_of_others(agent) == ["my [hidden]"] * max_turns * 2
    assert not any("my secret" in text for text in read)
    assert (
        contents_by_sender(bob.chat_messages["alice"]).count(("bob", "my secret")) == max_turns * 2
    )


@pytest.mark.parametrize("kind", [GroupChat, GroupTalk])
async def test_what_is_said_in_a_group_passes_the_hooks_once(kind: Any) -> None:
    """However many messages a member has missed when it is asked."""
    hook = Redacts()
    agent, read = redacting("alice", hook)
    others = [ConversableAgent(name, default_auto_reply=f"{name}'s secret") for name in "bcd"]
    await silent_user().initiate_chat(kind("team", [*others, agent], max_turns=9), "A secret?")
    assert messages_of_others(agent) == [hidden(text) for text in hook.seen]
    assert not any(re.search(r"'s secret|A secret", text) for text in read)


def test_a_message_that_was_cancelled_in_a_hook_passes_it_before_the_next() -> None:
    """No model reads it before; in the end both sides have it."""

    async def main() -> None:
        agent, read = redacting("alice", Redacts(turns=3))
        user = silent_user()
        first = asyncio.create_task(user.send("secret 1", agent, max_turns=1))
        await pause(30)
        first.cancel()
        await asyncio.wait([first])
        assert not any("secret 1" in text for text in messages_of_others(agent))
        await user.send("secret 2", agent, max_turns=1)
        theirs = [each.text for each in user.chat_messages["alice"] if each.sender == "user"]
        assert messages_of_others(agent) == [hidden(text) for text in theirs]
        assert not any("secret 1" in text or "secret 2" in text for text in read)

    explore(main, range(100))


async def test_a_hook_that_fails_keeps_the_message_for_the_next() -> None:
    """It is neither lost nor read by the model unchanged."""
    broken = [True]

    def check(_: object, message: AgentMessage, session_id: object) -> AgentMessage:
        if broken.pop() if broken else False:
            raise LookupError("no rules")
        return message.model_copy(update={"content": hidden(message.text)})

    backend = ScriptedBackend(otherwise="ok")
    agent = ConversableAgent("alice", backend)
    agent.before_agent(check)
    user = silent_user()
    with pytest.raises(LookupError, match="no rules"):
        await user.send("secret 1", agent)
    assert messages_of_others(agent) == []
    await user.send("secret 2", agent)
    assert messages_of_others(agent) == ["[hidden] 1", "[hidden] 2"]
    assert backend.requests[-1].messages[-1].content == "[hidden] 1\n[hidden] 2"
    agent.forget("user")
    assert messages_of_others(agent) == []
