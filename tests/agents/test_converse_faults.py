"""Conversations with partners that are unknown, fail, hang or return invalid values."""

import asyncio
from typing import Any

import pytest
from support.conversing_agents import Alice, Bob, check_symmetry, contents_by_sender, silent_user

from anabranch import AgentMessage, BackendUnavailable, WorkerLost
from anabranch.agents import Answer, ConversableAgent, Directory, ReplyResult, reply
from anabranch.agents.errors import UnknownAgent
from anabranch.testing import ScriptedBackend


async def test_an_unknown_name_is_an_error_that_says_who_is_there():
    """With a directory, and without one."""
    alice = Alice("alice", directory=Directory())
    with pytest.raises(UnknownAgent, match="no agent called 'bob' in the directory: it has alice"):
        await silent_user().initiate_chat(alice, "Who are you?")
    with pytest.raises(LookupError, match="it has no agents"):
        await silent_user().initiate_chat("bob", "Who are you?")


async def test_a_partner_that_fails_fails_the_chat_as_itself():
    """The error is the partner's own, with notes about the two agents and the place."""
    lost = WorkerLost("somewhere", "the machine is gone")

    class Dead:
        name = "bob"

        async def receive(self, message: AgentMessage, *, request_reply: bool = True) -> Answer:
            raise lost

        async def begin_chat(self, partner: str, *, clear_history: bool = False) -> None:
            pass

    alice = Alice("alice", directory=Directory(Dead()))
    with pytest.raises(WorkerLost) as raised:
        await silent_user().initiate_chat(alice, "Who are you?")
    assert raised.value is lost
    assert raised.value.__notes__[0].endswith("alice-to-bob#5/deliver#7")
    assert "while bob answered alice" in raised.value.__notes__
    assert contents_by_sender(alice.chat_messages["bob"]) == [("alice", "Who are you?")]


async def test_a_partner_that_hangs_is_given_up_after_the_timeout():
    """The partner's work is cancelled; its history keeps the message."""
    cancelled = asyncio.Event()

    class Hanging(ConversableAgent):
        @reply
        async def hang(self, message: AgentMessage) -> ReplyResult:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

    alice, bob = silent_user(), Hanging("bob")
    async with asyncio.timeout(20):
        with pytest.raises(TimeoutError) as raised:
            await alice.initiate_chat(bob, "?", timeout=0.01)
    assert "while bob answered user" in raised.value.__notes__
    assert cancelled.is_set()
    check_symmetry([alice, bob])


async def test_a_partner_may_hang_before_the_first_message():
    """The timeout holds there too."""

    class Unreachable(Bob):
        async def begin_chat(self, partner: str, *, clear_history: bool = False) -> None:
            await asyncio.Event().wait()

    async with asyncio.timeout(20):
        with pytest.raises(TimeoutError):
            await silent_user().initiate_chat(Unreachable("bob"), "?", timeout=0.01)


async def test_a_partner_that_gives_garbage_is_named():
    """For a value that is not an Answer, and one that is not a message."""

    class Garbage(Bob):
        async def receive(self, message: AgentMessage, *, request_reply: bool = True) -> Any:
            return "I am Bob"

    with pytest.raises(
        TypeError, match=r"receive\(\) of bob must return an Answer, not 'I am Bob'"
    ):
        await silent_user().initiate_chat(Garbage("bob"), "?")
    with pytest.raises(TypeError, match="bob must receive an AgentMessage, not 'hello'"):
        await Bob("bob").receive("hello")  # type: ignore[arg-type]


async def test_a_model_that_fails_fails_the_chat_and_the_next_one_can_go_on():
    """The history keeps the question, so the model reads it in the next chat."""
    backend = ScriptedBackend(BackendUnavailable("down"), "I am back.")
    alice, bob = silent_user(), ConversableAgent("bob", backend)
    with pytest.raises(BackendUnavailable):
        await alice.initiate_chat(bob, "First?")
    check_symmetry([alice, bob])
    assert (await alice.send("Second?", bob)).text == "I am back."
    assert backend.requests[1].messages[-1].content == "First?\nSecond?"


def test_two_of_one_name_do_not_fit_into_a_directory():
    """The same agent may be added twice; a removed agent leaves its name free."""
    directory = Directory(bob := Bob("bob"))
    directory.add(bob)
    with pytest.raises(ValueError, match="two agents called 'bob'"):
        Bob("bob", directory=directory)
    directory.remove("bob")
    directory.remove("bob")
    assert "bob" not in directory
    assert [*Directory(Bob("x"), Bob("y"))] == ["x", "y"]
