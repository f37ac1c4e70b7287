"""Conversations: they end, both sides know the same, and they are part of the tree."""

import asyncio
import logging
import random
from typing import Any

import pytest
from _left import processes, threads
from _until import turns
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch import AgentMessage, BackendUnavailable, Commander, Node, WorkerLost, run
from anabranch.agents import (
    NOT_MINE,
    Answer,
    Chat,
    ConversableAgent,
    ConversationTooLong,
    Directory,
    Reply,
    UnknownAgent,
    UserProxyAgent,
    reply,
)
from anabranch.testing import ScriptedBackend


def talker(name: str, said: str = "and so on", **options: Any) -> ConversableAgent:
    """An agent that always has an answer."""
    return ConversableAgent(name, default_auto_reply=said, **options)


def program(**options: Any) -> UserProxyAgent:
    """A user who asks one question and says no more."""
    return UserProxyAgent(human_input_mode="NEVER", max_consecutive_auto_reply=0, **options)


def said(messages: Any) -> list[tuple[str, Any]]:
    return [(message.sender, message.content) for message in messages]


class Alice(ConversableAgent):
    """Passes on to Bob what she is asked, and answers with what he says."""

    @reply(sender=["bob"])
    def of_bob(self, message: AgentMessage) -> Reply:
        return None

    @reply
    async def of_others(self, message: AgentMessage) -> Reply:
        return (await self.send(message, "bob")).last


class Bob(ConversableAgent):
    """Answers whoever it is."""

    @reply
    def introduce(self, message: AgentMessage) -> Reply:
        return "I am Bob, Alice's friend."


class Stranger(ConversableAgent):
    """Does anything that a reply function may do, as chance has it."""

    def __init__(self, name: str, chance: random.Random, directory: Directory) -> None:
        limit = chance.choice([None, 0, 2, 10])
        super().__init__(name, directory=directory, max_consecutive_auto_reply=limit)
        self.chance = chance

    @reply
    async def anything(self, message: AgentMessage) -> Reply:
        await turns(self.chance.randint(0, 2))
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


def check_symmetry(agents: list[Any]) -> None:
    for a in agents:
        for b in agents:
            if a is not b:
                ours, theirs = a.chat_messages.get(b.name, []), b.chat_messages.get(a.name, [])
                assert said(ours) == said(theirs)


async def test_the_other_s_answer_comes_back():
    """The result holds what the two have said; so do both histories, and `last_message`."""
    directory = Directory()
    alice, bob = Alice("alice", directory=directory), Bob("bob", directory=directory)
    user = program(directory=directory)

    result = await user.initiate_chat("alice", "Who are you?")

    assert result.text == "I am Bob, Alice's friend."
    assert said(result.messages) == [("user", "Who are you?"), ("alice", result.text)]
    assert said(alice.chat_messages["bob"]) == [("alice", "Who are you?"), ("bob", result.text)]
    assert bob.last_message() == bob.last_message("alice") == bob.last_message(alice)
    assert bob.last_message("nobody") is None
    with pytest.raises(ValueError, match=r"name one of \['user', 'bob'\]"):
        alice.last_message()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_a_conversation_always_ends_and_both_sides_know_the_same(seed: int):
    """Whatever the reply functions do: circles of agents that ask each other, too."""
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
    # Answers under way at the limit are counted, not refused: one for each chat inside another.
    assert heard <= 30 + 30


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 60))
def test_a_cancelled_conversation_leaves_the_two_with_the_same_history(seed: int, after: int):
    """At whatever turn of the loop the cancel comes; and no task is left."""
    agents = strangers(seed)

    async def main() -> None:
        before = asyncio.all_tasks()
        task = asyncio.create_task(agents[0].initiate_chat("ben", "Begin.", max_messages=30))
        await turns(after)
        task.cancel()
        async with asyncio.timeout(20):
            await asyncio.gather(task, return_exceptions=True)
        assert asyncio.all_tasks() == before

    asyncio.run(main())
    check_symmetry(agents)


async def test_two_that_always_answer_are_stopped_by_the_limit_that_is_on(
    caplog: pytest.LogCaptureFixture,
):
    """Each answers ten times in a row; the result and the log say why it ended."""
    result = await talker("a").initiate_chat(talker("b"), "Begin.")

    assert result.status == "auto_reply_limit"
    assert len(result.messages) == 1 + 10 + 10
    assert "max_consecutive_auto_reply" in caplog.text


async def test_a_conversation_without_that_limit_has_one_of_messages(
    caplog: pytest.LogCaptureFixture,
):
    """`max_messages`, 100 if nothing else is said."""
    a, b = (talker(name, max_consecutive_auto_reply=None) for name in "ab")
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
        async def ask_on(self, message: AgentMessage) -> Reply:
            Asking.depth += 1
            following = {"a": "b", "b": "c", "c": "a"}[self.name]
            return (await self.send("And you?", following)).last

    a, _, _ = (Asking(name, directory=directory) for name in "abc")
    async with asyncio.timeout(20):
        result = await program().initiate_chat(a, "Begin.", max_messages=25)

    assert (result.status, Asking.depth) == ("message_limit", 25)
    assert said(result.messages) == [("user", "Begin.")]


async def test_inside_the_limit_is_an_error_that_ends_all():
    """A reply function that goes on after a refusal is refused again."""
    refused: list[ConversationTooLong] = []

    class Stubborn(ConversableAgent):
        @reply
        async def again_and_again(self, message: AgentMessage) -> Reply:
            for _ in range(9):
                try:
                    await self.send("?", bob, max_turns=1)
                except ConversationTooLong as error:
                    refused.append(error)
            return "enough"

    bob = Bob("bob")
    result = await program().initiate_chat(Stubborn("s"), "Begin.", max_messages=7, max_turns=1)

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
    """The word on the last line, the metadata, a predicate of the user's; no answer at all."""
    alice = talker("alice", is_termination=lambda m: "secret" in m.content or default(m))
    default = ConversableAgent("default").is_termination
    bob = ConversableAgent("bob", default_auto_reply=answer)

    result = await alice.initiate_chat(bob, "Hello", max_turns=2)

    assert (result.status, len(result.messages)) == (status, count)


async def test_send_begins_the_count_of_answers_again_and_keeps_the_history():
    """A long-lived agent goes on to answer however often it is asked."""
    alice, bob = program(), talker("bob", max_consecutive_auto_reply=1)
    for _ in range(3):
        assert (await alice.send("?", bob)).text == "and so on"
    assert len(bob.chat_messages["user"]) == 6

    await alice.initiate_chat(bob, "Anew")
    assert len(bob.chat_messages["user"]) == len(alice.chat_messages["bob"]) == 2


async def test_a_message_may_be_delivered_without_an_answer():
    """It is in both histories; nobody is asked."""
    alice, bob = talker("alice"), talker("bob")
    result = await alice.send("Just so that you know.", bob, request_reply=False)

    assert (result.status, said(result.messages)) == (
        "delivered",
        [("alice", "Just so that you know.")],
    )
    check_symmetry([alice, bob])


async def test_histories_with_different_partners_do_not_touch():
    """Also when all talk at once."""
    bob = ConversableAgent("bob", ScriptedBackend(otherwise=lambda r: f"{r.messages[-1].content}!"))
    asking = [ConversableAgent(f"user{n}", max_consecutive_auto_reply=0) for n in range(20)]
    results = await asyncio.gather(*(u.initiate_chat(bob, u.name) for u in asking))

    assert [result.text for result in results] == [f"user{n}!" for n in range(20)]
    for user in asking:
        assert said(bob.chat_messages[user.name]) == [
            (user.name, user.name),
            ("bob", f"{user.name}!"),
        ]


# --- the tree


async def test_every_message_and_every_answer_is_a_node():
    """Who talks with whom can be read off the paths; the model's usage reaches the top."""
    paths: list[str] = []

    class Noting(Bob):
        @reply
        def note(self, message: AgentMessage) -> Reply:
            from anabranch import current_node

            paths.append(current_node().path)
            return NOT_MINE

    alice, bob = Alice("alice", directory=(d := Directory())), Noting("bob", directory=d)
    async with Commander() as commander:
        await commander.run(Chat(program(), alice, "Who are you?"))

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
    """`run(Chat(...))`, with all that a node may have."""
    assert run(Chat(program(), Bob("bob"), "Who?")).text == "I am Bob, Alice's friend."


async def test_a_cancel_of_the_tree_reaches_the_model():
    """The stream is closed, no task, thread or process is left, and the chat is cancelled."""
    begun = asyncio.Event()

    def wait(_: Any) -> Any:
        begun.set()
        return [asyncio.Event()]

    backend = ScriptedBackend(otherwise=wait)
    alice = Alice("alice", directory=(d := Directory()))
    ConversableAgent("bob", backend, directory=d)
    tasks, left = asyncio.all_tasks(), (threads(), processes())
    async with Commander(slow_after=None) as commander:
        chat = commander.call_handler(Chat(program(), alice, "Who are you?"))
        async with asyncio.timeout(10):
            await begun.wait()
        chat.cancel("enough")
    assert chat.state == "cancelled"
    assert (backend.opened, backend.closed) == (1, 1)
    assert asyncio.all_tasks() == tasks
    assert (threads(), processes()) == left


async def test_cancelling_the_call_cancels_the_conversation():
    """Also where a task of a body's own made the call."""
    backend = ScriptedBackend([asyncio.Event()])
    bob = ConversableAgent("bob", backend)

    class Impatient(Node[str], internal=True):
        async def task(self) -> str:
            try:
                async with asyncio.timeout(0):
                    await program().initiate_chat(bob, "?")
            except TimeoutError:
                return f"{len(self.children)} left"
            return "never"

    async with asyncio.timeout(10), Commander() as commander:
        assert await commander.run(Impatient()) == "0 left"
    assert backend.opened == backend.closed


# --- faults


async def test_an_unknown_name_is_an_error_that_says_who_is_there():
    """With a directory, and without one."""
    alice = Alice("alice", directory=Directory())
    with pytest.raises(UnknownAgent, match="no agent called 'bob' in the directory: it has alice"):
        await program().initiate_chat(alice, "Who are you?")
    with pytest.raises(LookupError, match="it has nobody"):
        await program().initiate_chat("bob", "Who are you?")


async def test_a_partner_that_fails_fails_the_chat_as_itself():
    """The error is the partner's own, with notes of who was to answer whom and where."""
    lost = WorkerLost("somewhere", "the machine is gone")

    class Dead:
        name = "bob"

        async def receive(self, message: AgentMessage, *, request_reply: bool = True) -> Answer:
            raise lost

        async def begin_chat(self, partner: str, *, clear_history: bool = False) -> None:
            pass

    alice = Alice("alice", directory=Directory(Dead()))
    with pytest.raises(WorkerLost) as raised:
        await program().initiate_chat(alice, "Who are you?")
    assert raised.value is lost
    assert raised.value.__notes__[0].endswith("alice-to-bob#5/deliver#7")
    assert "bob was to answer alice" in raised.value.__notes__
    assert said(alice.chat_messages["bob"]) == [("alice", "Who are you?")]


async def test_a_partner_that_hangs_is_given_up_after_the_timeout():
    """The partner's own work is cancelled; what was said to it stays said."""
    cancelled = asyncio.Event()

    class Hanging(ConversableAgent):
        @reply
        async def hang(self, message: AgentMessage) -> Reply:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

    alice, bob = program(), Hanging("bob")
    async with asyncio.timeout(20):
        with pytest.raises(TimeoutError) as raised:
            await alice.initiate_chat(bob, "?", timeout=0.01)
    assert "bob was to answer user" in raised.value.__notes__
    assert cancelled.is_set()
    check_symmetry([alice, bob])


async def test_a_partner_may_hang_before_the_first_message():
    """The timeout counts there too."""

    class Unreachable(Bob):
        async def begin_chat(self, partner: str, *, clear_history: bool = False) -> None:
            await asyncio.Event().wait()

    async with asyncio.timeout(20):
        with pytest.raises(TimeoutError):
            await program().initiate_chat(Unreachable("bob"), "?", timeout=0.01)


async def test_a_partner_that_gives_garbage_is_named():
    """What is no Answer, and what is no message."""

    class Garbage(Bob):
        async def receive(self, message: AgentMessage, *, request_reply: bool = True) -> Any:
            return "I am Bob"

    with pytest.raises(TypeError, match="bob gave 'I am Bob' for an Answer"):
        await program().initiate_chat(Garbage("bob"), "?")
    with pytest.raises(TypeError, match="bob receives AgentMessages, not 'hello'"):
        await Bob("bob").receive("hello")  # type: ignore[arg-type]


async def test_a_model_that_fails_fails_the_chat_and_the_next_one_can_go_on():
    """What was asked is kept, so the model sees it when it is back."""
    backend = ScriptedBackend(BackendUnavailable("down"), "I am back.")
    alice, bob = program(), ConversableAgent("bob", backend)
    with pytest.raises(BackendUnavailable):
        await alice.initiate_chat(bob, "First?")
    check_symmetry([alice, bob])
    assert (await alice.send("Second?", bob)).text == "I am back."
    assert backend.requests[1].messages[-1].content == "First?\nSecond?"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_turns": 0}, "max_turns"),
        ({"max_messages": 0}, "max_messages"),
    ],
)
async def test_limits_that_make_no_sense_are_refused(options: Any, message: str):
    """As is talking to oneself."""
    with pytest.raises(ValueError, match=message):
        await program().initiate_chat(Bob("bob"), "?", **options)
    with pytest.raises(ValueError, match="cannot talk to itself"):
        await program().initiate_chat("user", "?")
    with pytest.raises(ValueError, match="SOMETIMES"):
        ConversableAgent("a", human_input_mode="SOMETIMES")  # type: ignore[arg-type]


def test_two_of_one_name_do_not_fit_into_a_directory():
    """The same agent twice does; one that was taken out makes room."""
    directory = Directory(bob := Bob("bob"))
    directory.add(bob)
    with pytest.raises(ValueError, match="two agents called 'bob'"):
        Bob("bob", directory=directory)
    directory.remove("bob")
    directory.remove("bob")
    assert "bob" not in directory
    assert [*Directory(Bob("x"), Bob("y"))] == ["x", "y"]


async def test_a_handle_of_an_agent_elsewhere_changes_no_line_of_the_others():
    """The agent lives behind a queue, its messages travel as bytes; Alice does not notice."""
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
    result = await program().initiate_chat(alice, "Who are you?")
    assert result.text == "I am Bob, Alice's friend."
    assert len(calls) == 1
    check_symmetry([alice, bob])


async def test_the_log_has_prompts_and_responses_at_debug(caplog: pytest.LogCaptureFixture):
    """Of every agent, and only there."""
    bob = ConversableAgent("bob", ScriptedBackend("I am fine."), "Be brief.")
    with caplog.at_level(logging.DEBUG, "anabranch.agents"):
        await program().initiate_chat(bob, "How are you?")
    text = "\n".join(each.getMessage() for each in caplog.records if each.levelno == logging.DEBUG)
    assert "bob is asked" in text
    assert "How are you?" in text
    assert "Be brief." in text
    assert "I am fine." in text
