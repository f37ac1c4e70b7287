"""`AgentStream`: one call, read as messages, as text or as output, and its answer."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.conversing_agents import silent_user

from anabranch import (
    Agent,
    BackendUnavailable,
    Commander,
    Job,
    Message,
    ToolCall,
    current_node,
    tool,
)
from anabranch.agents import (
    AgentMessage,
    AgentStream,
    ConversableAgent,
    Sequential,
    StepAgent,
)
from anabranch.messages import Delta, OutputSchema
from anabranch.messages.output import GrowingText
from anabranch.testing import ScriptedBackend, pause, run_seeded


def talker(*replies: Any, name: str = "talker", **options: Any) -> Agent:
    return Agent(ScriptedBackend(*replies, size=3), name=name, **options)


async def joined(texts: AsyncIterator[str]) -> str:
    return "".join([text async for text in texts])


# --- text


async def test_text_is_that_of_the_agent_s_own_replies() -> None:
    """Not of an agent in a tool, even of the same name, and not of calls and results."""

    @tool(read_only=True)
    async def helper() -> str:
        return (await talker("From below.", name="talker")("?")).text

    call = Message(role="assistant", content="Wait. ", tool_calls=[ToolCall(id="c", name="helper")])
    agent = talker(call, "The answer.", tools=[helper])
    stream = agent.stream("?")
    assert isinstance(stream, AgentStream)
    assert await joined(stream.text()) == "Wait. The answer."
    assert (await stream.answer()).output == "The answer."


class Editor(Agent):
    """Asks another agent, and answers with another text."""

    def __init__(self, writer: Agent[Any]) -> None:
        super().__init__(name="editor")
        self.writer = writer

    async def forward(self, *messages: AgentMessage, **options: Any) -> str:
        draft = await self.writer(*messages)
        return f"Edited: {draft.text}"


async def test_an_answer_that_nothing_streamed_comes_as_one_piece() -> None:
    """As that of an agent with its own `forward`."""
    pieces = [text async for text in Editor(talker("The draft.")).stream("?").text()]
    assert pieces == ["Edited: The draft."]


async def test_a_chain_streams_the_text_of_its_last_agent() -> None:
    """Also a chain in a chain, and one whose last agent is the first, too."""
    one, two = talker("one", "three", name="one"), talker("two", name="two")
    chain = Sequential(Sequential(one, two), one)
    pieces = [text async for text in chain.stream("?").text()]
    assert pieces == ["thr", "ee"]


async def test_an_agent_of_steps_streams_all_its_replies() -> None:
    """They are replies of its inner agent."""

    @tool
    async def look() -> str:
        return "seen"

    agent = StepAgent(
        ScriptedBackend('Look.\n```json\n{"name": "look", "arguments": {}}\n```', "Done.", size=4),
        plugins=[look],
    )
    text = await joined(agent.stream("?").text())
    assert text.startswith("Look.")
    assert text.endswith("Done.")


async def test_the_text_of_a_conversation_in_forward_is_not_the_agent_s() -> None:
    """The partner's replies belong to no call of an agent."""

    class Layer(Agent):
        async def forward(self, *messages: Any, **options: Any) -> str:
            partner = ConversableAgent("bob", ScriptedBackend("I am Bob."))
            return (await silent_user().initiate_chat(partner, "Who?", max_turns=1)).text.upper()

    assert await joined(Layer(name="layer").stream("?").text()) == "I AM BOB."


async def test_a_stream_inside_forward_is_read_at_both_levels() -> None:
    """The reader inside gets text, the one outside messages of the same reply."""

    class Reads(Agent):
        async def forward(self, *messages: AgentMessage, **options: Any) -> str:
            return (await joined(talker("inner text").stream(*messages).text())).upper()

    deltas = [
        (each.sender, each.extra["delta"])
        async for each in Reads(name="reads").stream("?")
        if each.stream_state != "end"
    ]
    assert "".join(delta for _, delta in deltas) == "inner text"
    assert {sender for sender, _ in deltas} == {"talker"}
    assert await joined(Reads(name="reads").stream("?").text()) == "INNER TEXT"


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.text(min_size=1, max_size=3), min_size=1, max_size=12),
    st.lists(st.integers(0, 12), max_size=6),
    st.booleans(),
    st.integers(0, 2**20),
)
def test_whenever_a_reader_pauses_it_gets_all_text(
    texts: list[str], pauses: list[int], fails: bool, seed: int
) -> None:
    """In order, and before the failure; `answer` then raises the same failure."""

    async def main() -> None:
        error = BackendUnavailable("gone")
        end = error if fails else Delta(finish_reason="stop")
        left, got = list(pauses), ""
        stream = Agent(ScriptedBackend([*texts, end], size=None)).stream("?")
        with suppress(BackendUnavailable):
            async for text in stream.text():
                got += text
                if left:
                    await pause(left.pop(0))
            assert not fails
        assert got == "".join(texts)
        if fails:
            with pytest.raises(BackendUnavailable):
                await stream.answer()
        else:
            assert (await stream.answer()).text == got

    run_seeded(main, seed=seed)


async def test_a_paused_reader_of_text_costs_no_more_than_the_text() -> None:
    """And gets the rest in one piece."""
    pieces = ["abcdef" * 5] * 2_000
    end_of_reply = Delta(finish_reason="stop")
    agent, ended = Agent(ScriptedBackend([*pieces, end_of_reply], size=None)), asyncio.Event()

    def end(*_: Any) -> None:
        ended.set()

    agent.after_agent(end)
    texts = agent.stream("?").text()
    got = [await anext(texts)]
    tracemalloc.start()
    try:
        await ended.wait()
        stored = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    got += [text async for text in texts]
    assert "".join(got) == "".join(pieces)
    assert len(got) == 2
    assert stored < 3_000_000


# --- output


async def test_output_of_plain_text_is_the_text_so_far() -> None:
    """The last value is the answer's output."""
    values = [value async for value in talker("abcdefgh").stream("?").output()]
    assert values == ["abc", "abcdef", "abcdefgh"]


def test_reading_growing_text_copies_a_constant_multiple_of_it() -> None:
    """Also in a hundred thousand pieces, read at each."""
    growing, copied = GrowingText(OutputSchema[str](str)), 0
    for _ in range(100_000):
        growing.add("0123456789")
        if (found := growing.read()) is not None:
            copied += len(found[0])
    assert copied <= 2_200_000


# --- the answer


@pytest.mark.parametrize("reads", ["nothing", "some messages", "all messages", "some text"])
async def test_answer_works_without_after_and_amid_a_reading(reads: str) -> None:
    """It may be called twice, and leaves the unread messages to the reader."""
    stream = talker("The answer.").stream("?")
    if reads == "some messages":
        await anext(stream)
    elif reads == "all messages":
        assert [each async for each in stream][-1].stream_state == "end"
    elif reads == "some text":
        async for _ in stream.text():
            break
    answer = await stream.answer()
    assert answer is await stream.answer()
    assert answer.output == "The answer."
    if reads == "some messages":
        assert [each async for each in stream][-1] == answer


async def test_answer_may_wait_while_another_task_reads() -> None:
    """Both get everything."""
    stream = talker("The answer.").stream("?")
    reading = asyncio.create_task(joined(stream.text()))
    assert (await stream.answer()).text == await reading == "The answer."


async def test_a_stream_has_one_reader() -> None:
    """A second reading is an error with advice; the first continues."""
    stream = talker("The answer.").stream("?")
    texts = stream.text()
    for read in (stream.text, stream.output, lambda: anext(stream)):
        with pytest.raises(RuntimeError, match=r"read already, as text.* Make another stream"):
            found: Any = read()
            await found
    assert await joined(texts) == "The answer."

    backend = ScriptedBackend([Delta("a"), asyncio.Event()])
    async with asyncio.timeout(5), Agent(backend).stream("?") as stream:
        await anext(stream)
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="another task reads"):
            await anext(stream)
        await stream.aclose()
        assert (await waiting).stream_state == "failed"
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


# --- ends


async def test_it_begins_with_the_first_read() -> None:
    """An unread stream asks no model, and neither does a closed one."""
    backend = ScriptedBackend("x")
    agent = Agent(backend)
    unread = agent.stream("?")
    texts = agent.stream("?").text()
    async with agent.stream("?") as stream:
        pass
    assert [each async for each in stream] == []
    with pytest.raises(RuntimeError, match="closed before its answer"):
        await stream.answer()
    await texts.aclose()
    del unread
    assert backend.requests == []


async def backend_asked(backend: ScriptedBackend) -> None:
    for _ in range(1_000):
        await asyncio.sleep(0)
        if backend.requests:
            return


Ways = ["aclose", "block", "answer", "drop", "drop text", "timeout", "task"]


@pytest.mark.parametrize("way", Ways)
@pytest.mark.parametrize("inside", [False, True])
async def test_however_it_is_left_nothing_runs_on(way: str, inside: bool) -> None:
    """The model's stream is closed, and no task remains."""
    backend = ScriptedBackend([Delta("a"), asyncio.Event()])
    agent, before = Agent(backend), asyncio.all_tasks()

    async def leave() -> None:
        stream = agent.stream("?")
        if way == "aclose":
            await anext(stream)
            await stream.aclose()
            await stream.aclose()
        elif way == "block":
            async with stream:
                await anext(aiter(stream.text()))
        elif way in ("answer", "timeout"):
            with suppress(TimeoutError):
                async with asyncio.timeout(0.01):
                    await (stream.answer() if way == "answer" else joined(stream.text()))
            await stream.aclose()
        elif way == "task":
            reading = asyncio.create_task(joined(stream.text()))
            await backend_asked(backend)
            reading.cancel()
            await asyncio.wait((reading,))
        elif way == "drop":
            await anext(stream)
        else:
            async for _ in stream.text():
                break

    class Leaves(Job[None]):
        async def task(self) -> None:
            await leave()

    async with asyncio.timeout(5):
        if inside:
            async with Commander() as commander:
                await commander.run(Leaves())
        else:
            await leave()
        gc.collect()
        for _ in range(100):
            await asyncio.sleep(0)
    assert backend.closed == 1
    assert asyncio.all_tasks() == before


@settings(deadline=None, max_examples=80)
@given(st.integers(0, 60), st.integers(0, 2**20), st.sampled_from(["text", "messages", "answer"]))
def test_a_cancel_at_any_moment_leaves_nothing(steps: int, seed: int, reading: str) -> None:
    """In a task that reads under a tree."""

    async def main() -> None:
        agent = Agent(ScriptedBackend(*["abcdef"] * 3, size=1))

        class Reads(Job[None]):
            async def task(self) -> None:
                async with agent.stream("?") as stream:
                    if reading == "text":
                        await joined(stream.text())
                    elif reading == "messages":
                        _ = [each async for each in stream]
                    else:
                        await stream.answer()

        before = asyncio.all_tasks()
        async with Commander() as commander:
            job = Reads()
            commander.put_job(job)
            for _ in range(steps):
                await asyncio.sleep(0)
            job.cancel()
        assert asyncio.all_tasks() == before
        assert job.state in ("cancelled", "completed")

    run_seeded(main, seed=seed)


async def test_a_failure_reaches_each_reading_and_the_answer() -> None:
    """Options of the call hold for it."""
    backend = ScriptedBackend([Delta("a"), asyncio.Event()])
    stream = Agent(backend).stream("?", timeout=0.01)
    with pytest.raises(TimeoutError):
        await joined(stream.text())
    with pytest.raises(TimeoutError):
        await stream.answer()
    values = talker(BackendUnavailable("gone")).stream("?").output()
    with pytest.raises(BackendUnavailable):
        await anext(values)


async def test_the_call_is_a_child_of_the_current_node_or_of_the_parent() -> None:
    """And not of the task that reads."""
    paths: list[str] = []

    @tool(read_only=True)
    async def where() -> str:
        paths.append(current_node().path)
        return "here"

    async with Commander() as commander:
        call = Message(role="assistant", tool_calls=[ToolCall(id="c", name="where")])
        agent = talker(call, "x", tools=[where])
        await agent.stream("?", parent=commander).answer()
    assert paths[0].startswith("Commander/talker")


async def test_a_conversation_streams_its_messages_and_gives_its_result() -> None:
    """With the same rules."""
    bob = ConversableAgent("bob", ScriptedBackend("I am Bob."))
    async with silent_user().stream_chat(bob, "Who?", max_turns=1) as stream:
        senders = [each.sender async for each in stream if each.stream_state == "end"]
        result = await stream.result()
    assert senders == ["user", "bob"]
    assert result.text == "I am Bob."
    async with aclosing(silent_user().stream_chat(bob, "Who?", max_turns=1)) as stream:
        assert (await anext(stream)).sender == "user"
