"""Conversations end: by a message, by their limits, whatever the agents do."""

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.conversing_agents import (
    Bob,
    chatty_agent,
    check_symmetry,
    contents_by_sender,
    silent_user,
)
from support.waiting import run_turns

from anabranch import AgentMessage
from anabranch.agents import NOT_MINE, ConversableAgent, Directory, ReplyResult, reply
from anabranch.agents.errors import ConversationTooLong


class Stranger(ConversableAgent):
    """Does anything that a reply function may do, at random."""

    def __init__(self, name: str, chance: random.Random, directory: Directory) -> None:
        limit = chance.choice([None, 0, 2, 10])
        super().__init__(name, directory=directory, max_consecutive_auto_reply=limit)
        self.chance = chance

    @reply
    async def anything(self, message: AgentMessage) -> ReplyResult:
        await run_turns(self.chance.randint(0, 2))
        match self.chance.randint(0, 7):
            case 0:
                return None
            case 1:
                return NOT_MINE
            case 2:
                return f"good bye {self.chance.random()} TERMINATE"
            case 3 | 4:
                other = self.chance.choice(
                    [each for each in self.directory or () if each != self.name]
                )
                await self.send(f"from {self.name}, {self.chance.random()}", other)
                return "I have asked."
            case 5 if self.chance.random() < 0.1:
                raise ZeroDivisionError
            case _:
                return f"{self.name} says {self.chance.random()}"


def strangers(seed: int) -> list[Stranger]:
    chance, directory = random.Random(seed), Directory()
    return [Stranger(name, chance, directory) for name in ("ann", "ben", "cid")]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_a_conversation_always_ends_and_both_sides_know_the_same(seed: int):
    """With any reply functions, also circles of agents that ask each other."""
    agents = strangers(seed)

    async def main() -> None:
        async with asyncio.timeout(20):
            try:
                result = await agents[0].initiate_chat("ben", "Begin.", max_messages=30)
            except ZeroDivisionError:
                return
            assert result.status != "answered"

    asyncio.run(main())
    check_symmetry(agents)
    heard = sum(len(m) for agent in agents for m in agent.chat_messages.values()) / 2
    # Answers that run at the limit count and are not refused: one for each nested chat.
    assert heard <= 30 + 30


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 60))
def test_a_cancelled_conversation_leaves_the_two_with_the_same_history(seed: int, after: int):
    """At whatever loop iteration the cancel arrives; no task remains."""
    agents = strangers(seed)

    async def main() -> None:
        before = asyncio.all_tasks()
        task = asyncio.create_task(agents[0].initiate_chat("ben", "Begin.", max_messages=30))
        await run_turns(after)
        task.cancel()
        async with asyncio.timeout(20):
            await asyncio.gather(task, return_exceptions=True)
        assert asyncio.all_tasks() == before

    asyncio.run(main())
    check_symmetry(agents)


async def test_two_that_always_answer_are_stopped_by_the_limit_that_is_on(
    caplog: pytest.LogCaptureFixture,
):
    """After ten answers in a row each; the result and the log have the reason."""
    result = await chatty_agent("a").initiate_chat(chatty_agent("b"), "Begin.")

    assert result.status == "auto_reply_limit"
    assert len(result.messages) == 1 + 10 + 10
    assert "max_consecutive_auto_reply" in caplog.text


async def test_a_conversation_without_that_limit_has_one_of_messages(
    caplog: pytest.LogCaptureFixture,
):
    """`max_messages`, by default 100."""
    a, b = (chatty_agent(name, max_consecutive_auto_reply=None) for name in "ab")
    result = await a.initiate_chat(b, "Begin.")

    assert (result.status, len(result.messages)) == ("message_limit", 100)
    assert "stopped after 100 messages (max_messages)" in caplog.text
    check_symmetry([a, b])


async def test_agents_that_ask_each_other_in_a_circle_are_stopped():
    """No agent answers twice in a row, but each asks the next before it answers."""
    directory = Directory()

    class Asking(ConversableAgent):
        depth = 0

        @reply
        async def ask_on(self, message: AgentMessage) -> ReplyResult:
            Asking.depth += 1
            following = {"a": "b", "b": "c", "c": "a"}[self.name]
            return (await self.send("And you?", following)).last

    a, _, _ = (Asking(name, directory=directory) for name in "abc")
    async with asyncio.timeout(20):
        result = await silent_user().initiate_chat(a, "Begin.", max_messages=25)

    assert (result.status, Asking.depth) == ("message_limit", 25)
    assert contents_by_sender(result.messages) == [("user", "Begin.")]


async def test_inside_the_limit_is_an_error_that_ends_all():
    """A reply function that continues after the error gets it again."""
    refused: list[ConversationTooLong] = []

    class Stubborn(ConversableAgent):
        @reply
        async def again_and_again(self, message: AgentMessage) -> ReplyResult:
            for _ in range(9):
                try:
                    await self.send("?", bob, max_turns=1)
                except ConversationTooLong as error:
                    refused.append(error)
            return "enough"

    bob = Bob("bob")
    result = await silent_user().initiate_chat(Stubborn("s"), "Begin.", max_messages=7, max_turns=1)

    assert (result.text, result.status) == ("enough", "turn_limit")
    assert len(refused) == 6
    assert refused[0].limit == 7


@pytest.mark.parametrize(
    ("answer", "status", "count"),
    [
        ("Good bye.\nTERMINATE", "terminated", 2),
        ({"content": "Bye.", "metadata": {"TERMINATE": True}}, "terminated", 2),
        ("I have a secret", "terminated", 2),
        ("TERMINATE the process, I said", "turn_limit", 4),
        (None, "no_answer", 1),
    ],
)
async def test_a_message_may_end_the_conversation(answer: Any, status: str, count: int):
    """A word on the last line, metadata, a predicate, or no answer."""
    alice = chatty_agent("alice", is_termination=lambda m: "secret" in m.content or default(m))
    default = ConversableAgent("default").is_termination
    bob = ConversableAgent("bob", default_auto_reply=answer)

    result = await alice.initiate_chat(bob, "Hello", max_turns=2)

    assert (result.status, len(result.messages)) == (status, count)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_turns": 0}, "max_turns"),
        ({"max_messages": 0}, "max_messages"),
    ],
)
async def test_limits_that_make_no_sense_are_refused(options: Any, message: str):
    """So is a conversation with oneself."""
    with pytest.raises(ValueError, match=message):
        await silent_user().initiate_chat(Bob("bob"), "?", **options)
    with pytest.raises(ValueError, match="cannot talk to itself"):
        await silent_user().initiate_chat("user", "?")
    with pytest.raises(ValueError, match="SOMETIMES"):
        ConversableAgent("a", human_input_mode="SOMETIMES")  # type: ignore[arg-type]
