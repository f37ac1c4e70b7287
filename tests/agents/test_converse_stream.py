"""Answers that stream: to listeners, to the transcript, as events."""

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from support.conversing_agents import silent_user

from anabranch import AgentMessage, Commander, StreamInterrupted
from anabranch.agents import Agent, Chat, ConversableAgent, ReplyResult, reply
from anabranch.agents.conversation import Transcript
from anabranch.testing import ScriptedBackend

RULE = "-" * 80


class Streaming(ConversableAgent):
    """Answers word by word, each on a signal of the test."""

    def __init__(self, name: str, words: str, *, error: Exception | None = None) -> None:
        super().__init__(name)
        self.words = words.split(" ")
        self.gates = [asyncio.Event() for _ in self.words]
        self.error = error

    @reply
    async def stream(self, message: AgentMessage) -> ReplyResult:
        return await self.stream_reply(self._texts(), mood="calm")

    async def _texts(self) -> AsyncIterator[str]:
        for gate, word in zip(self.gates, self.words, strict=True):
            await gate.wait()
            yield word + " "
        if self.error is not None:
            raise self.error


async def test_a_streamed_answer_is_heard_while_it_is_given():
    """Each part has the text so far and the new text; the complete answer is last."""
    bob = Streaming("bob", "I am Bob")
    parts: list[Any] = []
    async with asyncio.timeout(10):
        async for part in silent_user().stream_chat(bob, "Who?"):
            parts.append((part.stream_state, part.sender, part.content, part.extra.get("delta")))
            if len(parts) <= 3:
                bob.gates[len(parts) - 1].set()

    assert parts == [
        ("end", "user", "Who?", None),
        ("begin", "bob", "I ", "I "),
        ("streaming", "bob", "I am ", "am "),
        ("streaming", "bob", "I am Bob ", "Bob "),
        ("end", "bob", "I am Bob ", None),
    ]
    last = bob.last_message()
    assert last is not None
    assert (last.content, last.extra) == ("I am Bob ", {"mood": "calm"})


async def test_a_model_s_answer_streams_by_itself():
    """Without code in the agent; also through an agent that answers with another's text."""

    class Alice(ConversableAgent):
        @reply
        async def ask(self, message: AgentMessage) -> ReplyResult:
            return (await self.send(message, bob, max_turns=1)).last

    bob = ConversableAgent(
        "bob", ScriptedBackend("I am Bob.", size=5), max_consecutive_auto_reply=1
    )
    async with asyncio.timeout(10):
        parts = [part async for part in silent_user().stream_chat(Alice("alice"), "Who?")]

    assert [(p.sender, p.receiver, p.stream_state) for p in parts][:5] == [
        ("user", "alice", "end"),
        ("alice", "bob", "end"),
        ("bob", "alice", "begin"),
        ("bob", "alice", "streaming"),
        ("bob", "alice", "end"),
    ]


async def test_what_streams_is_heard_by_who_listens_to_an_agent_above():
    """A chat in the `forward` of an agent made of agents."""

    class Layer(Agent):
        async def forward(self, *messages: Any, **options: Any) -> str:
            return (await silent_user().initiate_chat(bob, messages[0].content)).text

    bob = ConversableAgent("bob", ScriptedBackend("I am Bob.", size=5))
    async with asyncio.timeout(10):
        parts = [part async for part in Layer(name="layer").stream("Who?")]
    assert [(p.sender, p.stream_state) for p in parts] == [
        ("user", "end"),
        ("bob", "begin"),
        ("bob", "streaming"),
        ("bob", "end"),
        ("layer", "end"),
    ]


async def test_leaving_the_stream_early_cancels_the_conversation():
    """No task remains."""
    bob = Streaming("bob", "I am Bob")
    bob.gates[0].set()
    tasks = asyncio.all_tasks()
    async with asyncio.timeout(10):
        async with aclosing(silent_user().stream_chat(bob, "Who?")) as parts:
            async for part in parts:
                if part.stream_state == "begin":
                    break
        assert asyncio.all_tasks() == tasks


async def test_an_answer_that_breaks_off_is_told_and_fails_the_conversation():
    """The last part is "failed", with the text so far; then the error is raised."""
    bob = Streaming("bob", "I am", error=StreamInterrupted("the line is dead"))
    for gate in bob.gates:
        gate.set()
    parts: list[AgentMessage] = []
    out = io.StringIO()
    with pytest.raises(StreamInterrupted):
        async with asyncio.timeout(10):
            await silent_user().send("Who?", bob, listener=parts.append)
    Transcript(out)(parts[-1])

    assert (parts[-1].stream_state, parts[-1].content) == ("failed", "I am ")
    assert out.getvalue() == f"bob (to user):\n\nI am \n(broken off)\n\n{RULE}\n"


async def test_streaming_is_an_event_of_the_tree():
    """Of the node that answers, text by text."""
    bob = Streaming("bob", "I am Bob")
    for gate in bob.gates:
        gate.set()
    async with asyncio.timeout(10), Commander() as commander:
        events = commander.events({"text"})
        await commander.run(Chat(silent_user(), bob, "Who?"))
    assert [(event.name, event.data) async for event in events] == [
        ("bob.reply", "I "),
        ("bob.reply", "am "),
        ("bob.reply", "Bob "),
    ]


async def test_stream_reply_takes_plain_texts_and_only_answers():
    """A list works; outside of an answer it is refused."""

    class Plain(ConversableAgent):
        @reply
        async def all_of_them(self, message: AgentMessage) -> ReplyResult:
            return await self.stream_reply(["a", "b"])

    assert (await silent_user().initiate_chat(Plain("p"), "?")).text == "ab"
    with pytest.raises(LookupError):
        await Plain("p").stream_reply(["a"])


# --- the transcript


async def test_the_transcript_is_as_people_know_it(capsys: pytest.CaptureFixture[str]):
    """The speaker, the receiver, the text, a line; also for agents that are asked on the way."""

    class Alice(ConversableAgent):
        @reply
        async def ask(self, message: AgentMessage) -> ReplyResult:
            return (await self.send(message, bob, max_turns=1)).last

    bob = ConversableAgent("bob", ScriptedBackend(otherwise="I am Bob."))
    await silent_user().initiate_chat(
        Alice("alice", max_consecutive_auto_reply=1), "Who?", transcript=True
    )
    shown = capsys.readouterr().out
    assert shown.startswith(
        f"user (to alice):\n\nWho?\n\n{RULE}\n"
        f"alice (to bob):\n\nWho?\n\n{RULE}\n"
        f"bob (to alice):\n\nI am Bob.\n\n{RULE}\n"
    )
    await silent_user().initiate_chat(bob, "Who?")
    assert capsys.readouterr().out == ""


def part(sender: str, content: str, state: Any = "streaming") -> AgentMessage:
    return AgentMessage(content=content, sender=sender, receiver="x", stream_state=state)


def test_two_that_stream_at_once_are_not_mixed():
    """The first is shown as it arrives; the other waits for its end."""
    out = io.StringIO()
    show = Transcript(out)
    show(part("a", "One", "begin"))
    show(part("b", "Eins", "begin"))
    show(part("c", "whole", "end"))
    show(part("a", "One two"))
    assert out.getvalue() == "a (to x):\n\nOne two"
    show(part("a", "One two.", "end"))
    assert out.getvalue().endswith(f"One two.\n\n{RULE}\nb (to x):\n\nEins")
    show(part("b", "Eins.", "end"))
    assert out.getvalue().endswith(f"b (to x):\n\nEins.\n\n{RULE}\nc (to x):\n\nwhole\n\n{RULE}\n")


def test_an_answer_that_becomes_another_is_shown_as_it_is():
    """When a hook or a reply function replaces the streamed text."""
    out = io.StringIO()
    show = Transcript(out)
    show(part("a", "The password is", "begin"))
    show(part("a", "I will not say", "end"))
    assert out.getvalue() == (
        f"a (to x):\n\nThe password is\n(broken off)\n\n{RULE}\n"
        f"a (to x):\n\nI will not say\n\n{RULE}\n"
    )


def test_what_is_said_does_not_steer_the_terminal():
    """Control characters are made visible; lines and tabs pass."""
    out = io.StringIO()
    Transcript(out)(part("a", "\x1b[2Jclear\x07\r\n\tthis", "end"))
    assert "\x1b" not in out.getvalue()
    assert "\N{REPLACEMENT CHARACTER}[2Jclear\N{REPLACEMENT CHARACTER}\n\tthis" in out.getvalue()
