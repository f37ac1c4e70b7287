"""Sessions of conversations: messages of one are read in no other."""

from __future__ import annotations

import asyncio
import gc
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.seeds import seeds

from anabranch import AgentMessage, Commander
from anabranch.agents import (
    ConversableAgent,
    Directory,
    GroupChat,
    ReplyResult,
    UserProxyAgent,
    reply,
)
from anabranch.messages import Request
from anabranch.testing import ScriptedBackend, explore


def secrets(request: Request) -> list[str]:
    """Return the words of a request that begin with an at sign, each once."""
    text = " ".join(message.content or "" for message in request.messages)
    return sorted({word for word in text.split() if word.startswith("@")})


def echo(request: Request) -> str:
    return f"I have read {' '.join(secrets(request))} ."


class Alice(ConversableAgent):
    """Asks bob before she answers."""

    @reply
    async def ask(self, message: AgentMessage) -> ReplyResult:
        chat = await self.send(message.text, "bob", max_turns=1)
        last = self.last_message(message.sender)
        assert last is not None
        assert last.text == message.text  # and no messages of another user of this name
        return chat.text


def talkers(backend: ScriptedBackend) -> tuple[Alice, ConversableAgent]:
    directory = Directory()
    alice = Alice("alice", directory=directory)
    return alice, ConversableAgent("bob", backend, directory=directory)


def person(name: str | None = None) -> UserProxyAgent:
    return UserProxyAgent(name, human_input_mode="NEVER", max_consecutive_auto_reply=0)


@pytest.mark.parametrize("how", ["unnamed", "named", "sessions"])
def test_no_model_reads_what_another_user_has_said(how: str) -> None:
    """Nor does an agent behind another agent; at random moments in 60 orders of events."""

    async def main() -> None:
        backend = ScriptedBackend(otherwise=echo, delay=0.1)
        alice, bob = talkers(backend)
        shared = person("user")

        async def talk(number: int) -> None:
            user = {"unnamed": person(), "named": person(f"u{number}"), "sessions": shared}[how]
            session = number if how == "sessions" else None
            for recipient in random.sample([alice, bob], 2):
                await asyncio.sleep(random.uniform(0, 8))
                chat = await user.send(f"My secret is @{number} .", recipient, session_id=session)
                assert chat.text == f"I have read @{number} ."

        async with Commander():
            await asyncio.gather(*(talk(number) for number in range(4)))
        assert all(len(secrets(request)) == 1 for request in backend.requests)

    explore(main, seeds(60))


async def test_a_conversation_goes_on_in_its_session() -> None:
    """It is remembered there and nowhere else, whoever named or began it."""
    backend = ScriptedBackend(otherwise=echo)
    _, bob = talkers(backend)
    ann = person("ann")

    await ann.send("@1", bob, session_id="one")
    await ann.send("@2", bob)
    assert (await ann.send("@3", bob, session_id="one")).text == "I have read @1 @3 ."
    assert (await person("ann").send("@4", bob)).text == "I have read @2 @4 ."
    assert (await person().send("@5", bob)).text == "I have read @5 ."


async def test_sessions_that_look_alike_are_two() -> None:
    """A number and its text; a session and a user with that name."""
    backend = ScriptedBackend(otherwise=echo)
    alice, bob = talkers(backend)
    ann = person("ann")

    for number, session in enumerate([7, "7", "ann", None]):
        chat = await ann.send(f"@{number}", alice, session_id=session)
        assert chat.text == f"I have read @{number} ."
    assert [len(bob.memory.messages(bob.session_with("alice", each))) for each in (7, "7")] == [
        2
    ] * 2
    assert bob.memory.sessions == ["alice#7", "alice#'7'", "alice#'ann'", "alice@ann"]


names = st.text("abu#@'\"\\7", min_size=1, max_size=5).filter(lambda name: name[0] != "@")
users = st.lists(
    st.tuples(names, st.none() | st.integers(0, 9) | names),
    min_size=2,
    max_size=4,
    unique_by=lambda user: (user[1] is None, user[0] if user[1] is None else repr(user[1])),
)


@settings(deadline=None, max_examples=50)
@given(users, st.booleans())
@example([("ann", 7), ("ann#7", None)], False)
@example([("ann", None), ("alice@ann", None)], False)
@example([("ann", 7), ("ann#7", None)], True)
def test_no_name_is_another_session(
    asking: list[tuple[str, int | str | None]], group: bool
) -> None:
    """With any marks in a name: agents and groups separate all users."""

    async def main() -> None:
        alice, bob = talkers(ScriptedBackend(otherwise=echo))
        team = GroupChat("team", [bob], max_turns=1)
        for number, (name, session) in enumerate(asking):
            for partner in (team,) if group else (alice, bob):
                chat = await person(name).send(f"@{number}", partner, session_id=session)
                assert chat.text == f"I have read @{number} ."
        if not group:
            assert {name for name, _ in asking} <= bob.chat_messages.keys()

    asyncio.run(main())


async def test_outside_a_conversation_one_sees_what_was_said_in_all() -> None:
    """By partner; each session can be forgotten separately."""
    backend = ScriptedBackend(otherwise="Yes.")
    alice, bob = talkers(backend)
    ann, ben = person("ann"), person()
    await ann.initiate_chat(alice, "One?")
    await ben.initiate_chat(alice, "Two?")
    await ann.initiate_chat(alice, "Three?", session_id=3)

    assert [each.text for each in bob.chat_messages["alice"]][::2] == ["One?", "Two?", "Three?"]
    assert {*alice.chat_messages} == {"ann", "user", "bob"}
    last = bob.last_message("alice")
    assert last is not None
    assert last.text == "Yes."
    alice.clear_history("ann", 3)
    alice.clear_history("ann")
    assert {*alice.chat_messages} == {"user", "bob"}
    assert [each.text for each in ben.chat_messages["alice"]] == ["Two?", "Yes."]


async def test_beginning_anew_forgets_one_session_alone() -> None:
    """Another user's conversation with the same agent continues."""
    backend = ScriptedBackend(otherwise=echo)
    _, bob = talkers(backend)
    first, second = person(), person()
    await first.send("@a", bob)
    await second.initiate_chat(bob, "@b")

    assert (await first.send("@c", bob)).text == "I have read @a @c ."


async def test_answers_in_a_row_are_counted_in_each_session() -> None:
    """So one user's many questions do not silence the agent for another."""
    bob = ConversableAgent("bob", ScriptedBackend(otherwise="."), max_consecutive_auto_reply=1)
    heard: list[tuple[AgentMessage, ...]] = []
    for user in (person(), person()):
        heard.append((await user.send("One.", bob)).messages)
        assert (await user.send("Two.", bob)).messages
    assert [len(each) for each in heard] == [2, 2]


async def test_a_person_without_a_name_leaves_nothing_behind() -> None:
    """So a server that makes one for each request does not grow."""
    alice, bob = talkers(ScriptedBackend(otherwise="Yes."))
    user = person()
    await user.initiate_chat(alice, "One?")
    assert alice.memory.sessions
    assert bob.memory.sessions
    del user
    gc.collect()
    assert not alice.memory.sessions
    assert not bob.memory.sessions
    assert not alice.auto_replies
