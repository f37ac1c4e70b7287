"""Conversations of two: equal histories, and nodes in the tree."""

import asyncio
import logging
from typing import Any

import pytest
from support.conversing_agents import (
    Alice,
    Bob,
    chatty_agent,
    check_symmetry,
    contents_by_sender,
    silent_user,
)
from support.leaks import child_processes, thread_ids

from anabranch import AgentMessage, Commander, Node, run
from anabranch.agents import (
    NOT_MINE,
    Answer,
    Chat,
    ConversableAgent,
    Directory,
    ReplyResult,
    reply,
)
from anabranch.testing import ScriptedBackend


async def test_the_other_s_answer_comes_back():
    """The result, both histories and `last_message` have the messages of both."""
    directory = Directory()
    alice, bob = Alice("alice", directory=directory), Bob("bob", directory=directory)
    user = silent_user(directory=directory)

    result = await user.initiate_chat("alice", "Who are you?")

    assert result.text == "I am Bob, Alice's friend."
    assert contents_by_sender(result.messages) == [("user", "Who are you?"), ("alice", result.text)]
    assert contents_by_sender(alice.chat_messages["bob"]) == [
        ("alice", "Who are you?"),
        ("bob", result.text),
    ]
    assert bob.last_message() == bob.last_message("alice") == bob.last_message(alice)
    assert bob.last_message("nobody") is None
    with pytest.raises(ValueError, match=r"name one of \['user', 'bob'\]"):
        alice.last_message()


async def test_send_begins_the_count_of_answers_again_and_keeps_the_history():
    """A long-lived agent answers any number of calls."""
    alice, bob = silent_user(), chatty_agent("bob", max_consecutive_auto_reply=1)
    for _ in range(3):
        assert (await alice.send("?", bob)).text == "and so on"
    assert len(bob.chat_messages["user"]) == 6

    await alice.initiate_chat(bob, "Anew")
    assert len(bob.chat_messages["user"]) == len(alice.chat_messages["bob"]) == 2


async def test_a_message_may_be_delivered_without_an_answer():
    """Both histories have it, and no agent answers."""
    alice, bob = chatty_agent("alice"), chatty_agent("bob")
    result = await alice.send("Just so that you know.", bob, request_reply=False)

    assert (result.status, contents_by_sender(result.messages)) == (
        "delivered",
        [("alice", "Just so that you know.")],
    )
    check_symmetry([alice, bob])


async def test_histories_with_different_partners_do_not_touch():
    """Also when all converse at the same time."""
    bob = ConversableAgent("bob", ScriptedBackend(otherwise=lambda r: f"{r.messages[-1].content}!"))
    asking = [ConversableAgent(f"user{n}", max_consecutive_auto_reply=0) for n in range(20)]
    results = await asyncio.gather(*(u.initiate_chat(bob, u.name) for u in asking))

    assert [result.text for result in results] == [f"user{n}!" for n in range(20)]
    for user in asking:
        assert contents_by_sender(bob.chat_messages[user.name]) == [
            (user.name, user.name),
            ("bob", f"{user.name}!"),
        ]


# --- the tree


async def test_every_message_and_every_answer_is_a_node():
    """The paths show the two agents; the usage of the model reaches the root."""
    paths: list[str] = []

    class Noting(Bob):
        @reply
        def note(self, message: AgentMessage) -> ReplyResult:
            from anabranch import current_node

            paths.append(current_node().path)
            return NOT_MINE

    alice, bob = Alice("alice", directory=(d := Directory())), Noting("bob", directory=d)
    async with Commander() as commander:
        await commander.run(Chat(silent_user(), alice, "Who are you?"))

    assert bob.last_message() is not None
    names = [part.partition("#")[0] for part in paths[0].split("/")]
    assert names == [
        "Commander",
        "user-to-alice",
        "deliver",
        "alice.reply",
        "alice-to-bob",
        "deliver",
        "bob.reply",
    ]


def test_a_chat_runs_in_a_program_without_a_loop():
    """`run(Chat(...))`, with all options of a node."""
    assert run(Chat(silent_user(), Bob("bob"), "Who?")).text == "I am Bob, Alice's friend."


async def test_a_cancel_of_the_tree_reaches_the_model():
    """The stream is closed, no task, thread or process remains, and the chat is cancelled."""
    begun = asyncio.Event()

    def wait(_: Any) -> Any:
        begun.set()
        return [asyncio.Event()]

    backend = ScriptedBackend(otherwise=wait)
    alice = Alice("alice", directory=(d := Directory()))
    ConversableAgent("bob", backend, directory=d)
    tasks, left = asyncio.all_tasks(), (thread_ids(), child_processes())
    async with Commander(slow_after=None) as commander:
        chat = commander.call_handler(Chat(silent_user(), alice, "Who are you?"))
        async with asyncio.timeout(10):
            await begun.wait()
        chat.cancel("enough")
    assert chat.state == "cancelled"
    assert (backend.opened, backend.closed) == (1, 1)
    assert asyncio.all_tasks() == tasks
    assert (thread_ids(), child_processes()) == left


async def test_cancelling_the_call_cancels_the_conversation():
    """Also where a task of a body made the call."""
    backend = ScriptedBackend([asyncio.Event()])
    bob = ConversableAgent("bob", backend)

    class Impatient(Node[str], internal=True):
        async def task(self) -> str:
            try:
                async with asyncio.timeout(0):
                    await silent_user().initiate_chat(bob, "?")
            except TimeoutError:
                return f"{len(self.children)} left"
            return "never"

    async with asyncio.timeout(10), Commander() as commander:
        assert await commander.run(Impatient()) == "0 left"
    assert backend.opened == backend.closed


async def test_a_handle_of_an_agent_elsewhere_changes_no_line_of_the_others():
    """The agent is behind a queue and its messages are bytes; Alice's code is the same."""
    import pickle

    bob, calls = Bob("bob"), []

    class Handle:
        name = "bob"

        async def receive(self, message: AgentMessage, *, request_reply: bool = True) -> Answer:
            sent = pickle.loads(pickle.dumps(message))
            calls.append(sent)
            return pickle.loads(pickle.dumps(await bob.receive(sent, request_reply=request_reply)))

        async def begin_chat(self, partner: str, *, clear_history: bool = False) -> None:
            await bob.begin_chat(partner, clear_history=clear_history)

    class Elsewhere(Directory):
        async def find(self, name: str) -> Any:
            return Handle() if name == "bob" else await super().find(name)

    alice = Alice("alice", directory=Elsewhere())
    result = await silent_user().initiate_chat(alice, "Who are you?")
    assert result.text == "I am Bob, Alice's friend."
    assert len(calls) == 1
    check_symmetry([alice, bob])


async def test_the_log_has_prompts_and_responses_at_debug(caplog: pytest.LogCaptureFixture):
    """For every agent, and only at that level."""
    bob = ConversableAgent("bob", ScriptedBackend("I am fine."), "Be brief.")
    with caplog.at_level(logging.DEBUG, "anabranch.agents"):
        await silent_user().initiate_chat(bob, "How are you?")
    text = "\n".join(each.getMessage() for each in caplog.records if each.levelno == logging.DEBUG)
    assert "bob is asked" in text
    assert "How are you?" in text
    assert "Be brief." in text
    assert "I am fine." in text
