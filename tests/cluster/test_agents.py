"""Agents on other machines behave in conversations like local ones."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from support.ray_agents import (
    Alice,
    Blocked,
    Bob,
    Circular,
    Counter,
    Counting,
    Faulty,
    Hasty,
    Held,
    Leaver,
)
from support.scripted_server import Reply as ServerReply
from support.scripted_server import ScriptedServer, Step, chunk, text
from support.waiting import wait_until

from anabranch import Commander, Retry, connect
from anabranch.agents import (
    Chat,
    ConversableAgent,
    Directory,
    GroupChat,
    Participant,
    UserProxyAgent,
)
from anabranch.agents.errors import UnknownAgent
from anabranch.cluster import ActorNotFound, ClusterDirectory, Ray, find, remote

pytestmark = pytest.mark.usefixtures("nodes")

LEFT = Ray(num_cpus=0, resources={"left": 0.01})


def a_user(**options: Any) -> UserProxyAgent:
    return UserProxyAgent(human_input_mode="NEVER", max_consecutive_auto_reply=0, **options)


async def test_a_remote_agent_answers_from_another_process() -> None:
    """It sends the same parts as a local one."""
    said: dict[str, list[Any]] = {}
    async with remote(Bob, "bob", on=LEFT) as bob:
        assert isinstance(bob, Participant)
        assert await bob.invoke("where") != os.getpid()
        for name, agent in (("here", Bob("bob")), ("there", bob)):
            heard = said.setdefault(name, [])
            result = await a_user().send("Who are you?", agent, listener=heard.append)
            assert result.text == "I am bob."
            heard.append(result)
    assert said["here"] == said["there"]


async def test_it_keeps_its_state_in_its_actor() -> None:
    """Between calls; attributes that callers read are copies."""
    async with remote(Bob, "bob") as bob:
        user = a_user()
        for _ in range(2):
            await user.send("Who are you?", bob)
        said = await bob.invoke("chat_messages")
        assert [message.content for message in said["user"]] == ["Who are you?", "I am bob."] * 2
        await user.initiate_chat(bob, "Again?")
        assert len((await bob.invoke("chat_messages"))["user"]) == 2
        assert (await bob.invoke("last_message", "user")).content == "I am bob."


async def test_a_chat_that_is_tried_again_tells_it_nothing_twice() -> None:
    """It answers the message that it already has."""
    async with remote(Counting, "bob") as bob, Commander() as commander:
        chat = Chat(a_user(), bob, "Well?", max_turns=1)
        result = await commander.call_handler(chat, retry=Retry(attempts=2, on=OSError))
        assert result.text == "1"
        assert len((await bob.invoke("chat_messages"))["user"]) == 2


async def test_a_reply_is_heard_while_it_is_given(tmp_path: Path) -> None:
    """The model stops in the middle until the listener has the first half."""
    async with remote(ConversableAgent, "bob", Held(tmp_path)) as bob:
        parts = []
        async with aclosing(a_user().stream_chat(bob, "Well?")) as heard:
            async for part in heard:
                parts.append((part.sender, part.stream_state, part.content))
                if part.content == "Half of it":
                    (tmp_path / "go").touch()
    assert parts == [
        ("user", "end", "Well?"),
        ("bob", "begin", "Half of it"),
        ("bob", "streaming", "Half of it, and the rest."),
        ("bob", "end", "Half of it, and the rest."),
    ]


async def test_a_conversation_with_it_ends_by_the_same_rules() -> None:
    """Its own limits and marks apply, and the limit of the conversation."""
    async with remote(Bob, "bob", max_consecutive_auto_reply=2) as bob:
        echo = Bob("echo", max_consecutive_auto_reply=None)
        assert (await echo.initiate_chat(bob, "Hello")).status == "auto_reply_limit"
        assert (await echo.initiate_chat(bob, "Hello, TERMINATE")).status == "terminated"
        assert (await echo.initiate_chat(bob, "Hello", max_messages=3)).status == "message_limit"


async def test_those_who_ask_each_other_for_ever_are_stopped_by_the_limit_of_all() -> None:
    """One is local and one remote; the messages of both count."""
    directory = Directory()
    here = Circular("here", "there", directory=directory)
    heard: list[Any] = []
    async with remote(Circular, "there", "here", directory=directory):
        result = await a_user().send("And you?", here, max_messages=10, listener=heard.append)
    assert result.status == "message_limit"
    assert 8 <= len(heard) <= 10


async def test_remote_agents_find_each_other_and_those_at_home() -> None:
    """A remote agent finds another remote agent, then a local one, in the same way."""
    directory = Directory()
    async with remote(Alice, "alice", directory=directory):
        user = a_user(directory=directory)
        async with remote(Bob, "bob", on=LEFT, directory=directory):
            result = await user.initiate_chat("alice", "Who are you?")
            assert result.text == "Bob says: I am bob."
        bob = Bob("bob", directory=directory)
        result = await user.initiate_chat("alice", "Who are you?")
        assert result.text == "Bob says: I am bob."
        assert [message.content for message in bob.chat_messages["alice"]] == [
            "Who are you?",
            "I am bob.",
        ]
        directory.remove("bob")
        with pytest.raises(UnknownAgent, match="bob") as failed:
            await user.initiate_chat("alice", "Who are you?")
        assert "in the Ray worker" in "".join(failed.value.__notes__)


async def test_an_agent_is_found_by_its_name_alone() -> None:
    """From here, and by a remote agent without a shared directory."""
    async with remote(Bob, "bob"), remote(Alice, "alice"):
        alice = await ClusterDirectory().find("alice")
        assert (await a_user().send("Who?", alice)).text == "Bob says: I am bob."
        assert (await a_user(directory=ClusterDirectory()).send("Who?", "bob")).text == "I am bob."
    with pytest.raises(ActorNotFound, match="no agent called 'bob'"):
        await find("bob")
    with pytest.raises(UnknownAgent, match="bob"):
        await a_user(directory=ClusterDirectory()).send("Who?", "bob")


async def test_a_failure_there_is_raised_here_as_itself() -> None:
    """With its remote traceback."""
    async with remote(Faulty, "faulty") as faulty:
        with pytest.raises(KeyError, match="no answer") as failed:
            await a_user().send("Well?", faulty)
    notes = "".join(failed.value.__notes__)
    assert "ray_agents.py" in notes
    assert "while faulty answered user" in notes


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("method", ["leave", "leave_below"])
async def test_one_who_would_end_its_program_fails(kind: type[BaseException], method: str) -> None:
    """This program and the agent continue."""
    async with remote(Leaver, "leaver") as leaver:
        with pytest.raises(RuntimeError, match=f"{kind.__name__}: 3"):
            await leaver.invoke(method, kind)
        assert await leaver.invoke("name") == "leaver"


async def test_the_failure_of_one_who_is_here_reaches_the_one_who_asked_there() -> None:
    """If the agent does not handle it, it is raised here again."""
    directory = Directory()
    Faulty("bob", directory=directory)
    async with remote(Alice, "alice", directory=directory) as alice:
        with pytest.raises(KeyError, match="no answer"):
            await a_user().send("Well?", alice)


async def test_cancelling_here_reaches_the_connection_there() -> None:
    """The server sees the connection close, and the agent can be called again."""
    script = ServerReply([chunk({"content": "Hel"}), Step.HANG])
    async with ScriptedServer(script) as server:
        model = connect(server.url, model="tiny")
        async with remote(ConversableAgent, "bob", model) as bob:
            begun = asyncio.Event()
            said = asyncio.create_task(
                a_user().send(
                    "Well?", bob, listener=lambda part: part.content == "Hel" and begun.set()
                )
            )
            await begun.wait()
            said.cancel()
            with pytest.raises(asyncio.CancelledError):
                await said
            await server.gone.wait()
            history = await bob.invoke("chat_messages")
            assert [message.content for message in history["user"]] == ["Well?"]


async def test_a_timeout_here_ends_the_answer_there(tmp_path: Path) -> None:
    """As of any conversation."""
    async with remote(ConversableAgent, "bob", Held(tmp_path)) as bob:
        with pytest.raises(TimeoutError):
            await a_user().send("Well?", bob, timeout=1)
        assert (tmp_path / "ended").exists()


async def test_users_of_one_name_share_no_history_there() -> None:
    """Whether of one program or two, each continues its own conversation."""
    async with remote(Counter, "counter") as counter:
        one, other = a_user(), a_user()
        said = [(await user.send("And now?", counter)).text for user in (one, other, one, other)]
    assert said == ["1", "1", "3", "3"]


async def test_an_agent_that_blocks_its_process_keeps_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither a cancel of its call nor its close waits for it."""
    from anabranch.cluster import _actor, _stream

    for module in (_actor, _stream):
        monkeypatch.setattr(module, "CLOSE_SECONDS", 0.5)
    async with remote(Blocked, "blocked") as blocked:
        asked = asyncio.ensure_future(blocked.invoke("block", tmp_path / "begun"))
        await wait_until((tmp_path / "begun").exists)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
    assert "'blocked' on" in caplog.text
    assert "did not end a cancelled call within 0.5 s" in caplog.text


async def test_who_is_not_asked_any_more_is_cancelled_here(tmp_path: Path) -> None:
    """A remote agent cancels its request to a local one, whose model then stops."""
    directory = Directory()
    ConversableAgent("bob", Held(tmp_path), directory=directory)
    async with remote(Hasty, "alice", directory=directory) as alice:
        assert (await a_user().send("Well?", alice)).text == "Bob takes too long."
    assert (tmp_path / "ended").exists()


async def test_a_group_may_have_members_anywhere() -> None:
    """A local group with a remote member, and a remote group with a local member."""
    directory = Directory()
    Bob("bob", directory=directory)
    async with (
        remote(Bob, "carol", directory=directory),
        remote(GroupChat, "team", ["bob", "carol"], max_turns=2, directory=directory) as there,
    ):
        here = GroupChat("circle", ["bob", "carol"], max_turns=2, directory=directory)
        for group in (here, there):
            result = await a_user(name="ann").send("Introduce yourselves.", group)
            assert (result.messages[1].content, result.messages[1].extra) == ("I am carol.", {})
        assert [m.content for m in (await there.invoke("chat_messages"))["ann"]][1:] == [
            "I am bob.",
            "I am carol.",
        ]


async def test_what_it_spends_is_counted_here() -> None:
    """Below the node that called it."""
    async with ScriptedServer(text("Yes", ".")) as server:
        model = connect(server.url, model="tiny")
        async with remote(ConversableAgent, "bob", model) as bob, Commander() as commander:
            await commander.run(Chat(a_user(), bob, "Well?", max_turns=1))
            assert commander.usage()["tiny"].total_tokens > 0
            assert await bob.usage() == await bob.usage("user") == commander.usage()
            assert await bob.usage("nobody") == {}


async def test_what_it_does_is_seen_here() -> None:
    """Its tree, with the machine, and its events in order, with the text."""
    script = ServerReply([chunk({"content": "Hel"}), Step.HANG])
    async with ScriptedServer(script) as server:
        model = connect(server.url, model="tiny")
        async with remote(ConversableAgent, "bob", model) as bob, Commander() as commander:
            events = commander.events(("placed", "text", "cancelled"))
            chat = commander.call_handler(Chat(a_user(), bob, "Well?"))
            seen = [await anext(events) for _ in range(3)]
            assert [(event.kind, event.name) for event in seen] == [
                ("placed", "bob.begin_chat"),
                ("placed", "bob.receive"),
                ("text", "show"),
            ]
            visit = next(node for node in commander.tree() if node.name == "bob.receive")
            assert (visit.host, seen[2].host, seen[2].data) == (bob.host, bob.host, "Hel")
            below = [node for node in commander.tree() if node.depth > visit.depth]
            assert [node.node_id // 1_000_000 for node in below] == [visit.node_id] * len(below)
            assert {node.host for node in below} == {bob.host}
            assert seen[2].node_id in {node.node_id for node in below}
            assert f"show#{seen[2].node_id} running on {bob.host}" in str(commander)
            assert "in the actor of <RemoteAgent 'bob'" in commander.explain()
            chat.cancel()
            await server.gone.wait()
    names = [event.name async for event in events]
    assert names == ["bob.receive", "deliver", "user-to-bob"]


async def test_a_reply_that_is_given_up_is_heard_to_break_off(tmp_path: Path) -> None:
    """As for a local agent, so that a transcript does not wait for its end."""
    heard: list[Any] = []
    async with remote(ConversableAgent, "bob", Held(tmp_path)) as bob:
        with pytest.raises(TimeoutError):
            await a_user().send("Well?", bob, timeout=2, listener=heard.append)
    states = [(part.stream_state, part.content) for part in heard]
    assert states == [("end", "Well?"), ("begin", "Half of it"), ("failed", "Half of it")]


@pytest.mark.parametrize(
    ("arguments", "options", "name"),
    [
        ((open(os.devnull, "rb"),), {}, "argument 2 of Bob"),  # noqa: SIM115
        ((None,), {"human_input": threading.Lock().acquire}, "'human_input' of Bob"),
        ((), {"memory": Bob("carol")}, "'memory' of Bob"),
    ],
)
async def test_what_cannot_be_sent_is_refused_by_name(
    arguments: Any, options: dict[str, Any], name: str
) -> None:
    """Before anything starts."""
    with pytest.raises(TypeError, match=name):
        remote(Bob, "bob", *arguments, **options)
