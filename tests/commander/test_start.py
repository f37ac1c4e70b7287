"""`commander.start`: a job with the text of its whole tree."""

from __future__ import annotations

import asyncio
import gc
from collections import defaultdict
from contextlib import nullcontext
from random import Random
from typing import Any

import pytest
from support.nodes import fail, give, hang
from support.seeds import example_count, seeds

from anabranch import Agent, Job, Message, NodeCancelled, Retry, ToolCall, handler, tool
from anabranch.commander import (
    Commander,
    Event,
    Node,
    Origin,
    Place,
    RemoteBody,
    Started,
    current_node,
    emit,
)
from anabranch.commander._record import record_of
from anabranch.commander.remote import EventSource, relay
from anabranch.handlers import respond
from anabranch.messages import Conversation
from anabranch.testing import ScriptedBackend


@handler
async def say(node: Node[Any], draw: Random, said: dict[str, str], name: str) -> None:
    """Emit text of a job at intervals, also from a thread."""

    def say_one(text: str) -> None:
        said[name] += text
        emit(node, "text", text)

    for _ in range(draw.randint(0, 4)):
        text = draw.choice("abcdef") * draw.randint(1, 3)
        if draw.random() < 0.1:
            await node.in_thread(say_one, text)
        else:
            say_one(text)
        for _ in range(draw.randint(0, 2)):
            await asyncio.sleep(0)


class Speaker(Job[str]):
    draw: Random
    said: dict[str, str]
    depth: int
    fails: bool = False

    async def task(self) -> str:
        name = record_of(self).name
        for number in range(self.draw.randint(0, 3)):
            await self.call_handler(say(self.draw, self.said, name))
            if self.depth:
                job = Speaker(self.draw, self.said, self.depth - 1)
                self.put_job(job, key=f"{name}.{number}")
        if self.fails:
            raise OSError("the end")
        return name


async def read(run: Started[Any], draw: Random, pieces: int | None = None) -> dict[str, str]:
    """Read text at a random speed, all of it or some pieces; ignore the failure of the job."""
    found: dict[str, str] = defaultdict(str)
    try:
        async for source, text in run.text():
            assert text
            found[source] += text
            for _ in range(draw.choice([0, 0, 3, 20])):
                await asyncio.sleep(0)
            if pieces is not None and (pieces := pieces - 1) <= 0:
                break
    except OSError:
        pass
    return found


@pytest.mark.parametrize("seed", seeds(example_count(40, 1000)))
async def test_each_reader_gets_all_text_below_its_job_once(seed):
    draw = Random(seed)
    number, slots = draw.randint(1, 4), draw.choice([None, 1, 2])
    async with asyncio.timeout(10), Commander(max_concurrency=slots) as commander:
        said: list[dict[str, str]] = [defaultdict(str) for _ in range(number)]
        runs = [
            commander.start(Speaker(draw, each, 2, draw.random() < 0.3), key=str(index))
            for index, each in enumerate(said)
        ]
        for _ in range(draw.choice([0, 0, 5, 50])):
            await asyncio.sleep(0)
        # In parts, which continue where the last one ended.
        found = [await read(run, draw, draw.randint(1, 3)) for run in runs]
        rest = await asyncio.gather(*(read(run, draw) for run in runs))
        for part, more, whole, run in zip(found, rest, said, runs, strict=True):
            joined = {name: part.get(name, "") + more.get(name, "") for name in {*part, *more}}
            assert joined == {name: text for name, text in whole.items() if text}
            assert run.node.state in ("completed", "failed")
    assert commander._tree.texts is None
    assert not commander._tree.listeners


def question() -> Conversation:
    conversation = Conversation()
    conversation.add("Which colour?")
    return conversation


class Desk(Job[str]):
    agents: list[Agent[Any]]

    async def task(self) -> str:
        answers = await asyncio.gather(*(agent("Go") for agent in self.agents))
        await self.call_handler(respond(ScriptedBackend("plain"), question()))
        return ", ".join(each.text for each in answers)


@tool
async def ask_expert(text: str) -> str:
    """Ask an expert."""
    return (await Agent(ScriptedBackend("It is blue."), name="expert")(text)).text


async def test_text_names_agents_and_for_plain_replies_the_job():
    call = ToolCall(id="1", name="ask_expert", arguments={"text": "?"})
    first = Message(role="assistant", content="Wait. ", tool_calls=[call])
    agents = [
        Agent(ScriptedBackend(first, "Blue."), tools=[ask_expert], name="amy"),
        Agent(ScriptedBackend("Red."), name="ben"),
    ]
    async with asyncio.timeout(10), Commander() as commander:
        run = commander.start(Desk(agents))
        found: dict[str, str] = defaultdict(str)
        async for source, text in run.text():
            found[source] += text
        assert await run == "Blue., Red."
    expected = {"amy": "Wait. Blue.", "ben": "Red.", "expert": "It is blue.", "Desk": "plain"}
    assert found == expected


async def test_a_started_handler_names_itself():
    async with Commander() as commander:
        run = commander.start(respond(ScriptedBackend("Hi"), question()))
        assert "".join([text async for _, text in run.text()]) == "Hi"
        run = commander.start(respond(ScriptedBackend("Hi"), question()))
        assert {source async for source, _ in run.text()} == {"respond"}


async def test_an_agents_call_can_be_started():
    async with Commander() as commander:
        run = commander.start(Agent(ScriptedBackend("Hi"), name="amy").call("Hello"))
        assert {source async for source, _ in run.text()} == {"amy"}
        assert (await run).text == "Hi"


@handler
async def stumble(node: Node[Any], failures: list[Exception]) -> str:
    emit(node, "text", f"{len(failures)} ")
    if failures:
        raise failures.pop()
    return "good"


async def test_text_of_a_failed_attempt_comes_before_that_of_the_next():
    async with Commander() as commander:
        run = commander.start(stumble([OSError(), OSError()]), retry=Retry(attempts=3, backoff=0))
        assert "".join([text async for _, text in run.text()]) == "2 1 0 "
        assert await run == "good"


async def test_a_failure_is_raised_after_the_last_text_and_by_each_await():
    async with Commander() as commander:
        run = commander.start(stumble([OSError("no")]))
        found: list[str] = []
        with pytest.raises(OSError, match="no"):
            async for _, text in run.text():
                found.append(text)
        assert found == ["1 "]
        with pytest.raises(OSError, match="no"):
            await run


async def test_a_failure_without_a_receiver_goes_to_the_policy(caplog):
    async with Commander() as commander:
        commander.start(fail(OSError("unread")))
    assert "unread" in caplog.text
    with pytest.raises(OSError, match="unread"):
        async with Commander(policy="fail_fast") as commander:
            commander.start(fail(OSError("unread")))


async def test_cancel_ends_the_reader_and_the_tree():
    async with asyncio.timeout(10), Commander() as commander:
        run = commander.start(hang())
        reader = asyncio.ensure_future(anext(run.text(), None))
        await asyncio.sleep(0)
        run.cancel("enough")
        with pytest.raises(NodeCancelled, match="enough"):
            await reader
        assert run.node.state == "cancelled"


async def test_cancelling_the_reader_leaves_the_job_running():
    async with asyncio.timeout(10), Commander() as commander:
        run = commander.start(hang())
        reader = asyncio.ensure_future(anext(run.text()))
        await asyncio.sleep(0)
        reader.cancel()
        await asyncio.wait([reader])
        assert reader.cancelled()
        assert run.node.state == "running"
        run.cancel()


@pytest.mark.parametrize("leaves_by_error", [False, True])
async def test_leaving_the_block_cancels_the_job_and_waits_for_it(leaves_by_error):
    over: list[str] = []
    async with asyncio.timeout(10), Commander() as commander:
        with pytest.raises(ValueError) if leaves_by_error else nullcontext():
            async with commander.start(hang().at_done(lambda node: over.append("over"))):
                if leaves_by_error:
                    raise ValueError
        assert over == ["over"]


async def test_the_block_can_be_cancelled_while_it_waits_for_the_end():
    running = asyncio.Event()

    @handler
    async def slow(node: Node[Any]) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            running.set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    async def leave(commander: Commander, runs: list[Started[Any]]) -> None:
        async with commander.start(slow()) as run:
            runs.append(run)
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    async with asyncio.timeout(10), Commander() as commander:
        runs: list[Started[Any]] = []
        task = asyncio.ensure_future(leave(commander, runs))
        await running.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert runs[0].node.state == "cancelled"


async def test_a_second_reader_is_refused_while_one_waits():
    async with asyncio.timeout(10), Commander() as commander:
        run = commander.start(hang())
        reader = asyncio.ensure_future(anext(run.text(), None))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="another task reads the text"):
            await anext(run.text())
        run.cancel()
        with pytest.raises(NodeCancelled):
            await reader


class Reader(Job[str]):
    async def task(self) -> str:
        run = current_node().commander.start(Desk([]))
        return "".join([text async for _, text in run.text()]) + await run


async def test_a_job_lends_its_slot_while_it_reads():
    async with asyncio.timeout(10), Commander(max_concurrency=1) as commander:
        assert await commander.run(Reader()) == "plain"


async def test_a_slow_reader_stores_the_text_of_a_reply_as_one_piece():
    @handler
    async def flood(node: Node[Any]) -> None:
        for number in range(1000):
            emit(node, "text", f"{number},")

    async with Commander() as commander:
        run = commander.start(flood())
        await run
        pieces = [text async for _, text in run.text()]
        assert pieces == ["".join(f"{number}," for number in range(1000))]


async def test_a_dropped_run_stores_no_text():
    async with asyncio.timeout(10), Commander() as commander:
        node = commander.start(hang()).node
        gc.collect()
        router = commander._tree.texts
        assert router is not None
        assert not router.readers
        node.cancel()
    assert commander._tree.texts is None


async def test_without_a_start_the_tree_has_no_listener():
    async with Commander() as commander:
        await commander.run(give(1))
        assert not commander._tree.listeners


async def test_wrong_arguments_start_nothing():
    async with Commander() as commander:
        with pytest.raises(TypeError, match="not a job or a handler"):
            commander.start("job")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="not a Job"):
            commander.start(give(1), on="ray")
        with pytest.raises(TypeError, match="timeout"):
            commander.start(give(1), timeout="5")  # type: ignore[typeddict-item]
        assert commander._tree.texts is None


@pytest.mark.parametrize("leave", ["exit", "drain", "fail_fast"])
async def test_the_end_of_the_commander_ends_the_reader(leave):
    async def read(run: Started[Any]) -> list[str]:
        return [text async for _, text in run.text()]

    reader = None
    try:
        async with asyncio.timeout(10), Commander(policy="fail_fast") as commander:
            reader = asyncio.ensure_future(read(commander.start(hang())))
            await asyncio.sleep(0)
            match leave:
                case "exit":
                    commander.exit()
                case "drain":
                    await commander.drain(0)
                case _:
                    commander.call_handler(fail(OSError()))
    except OSError:
        assert leave == "fail_fast"
    assert reader is not None
    with pytest.raises(NodeCancelled):
        await reader


class Elsewhere(RemoteBody):
    """Runs the body here, and relays text of a node of another machine, whose number is in use."""

    host = "other"
    place = None

    async def run(self, node: Node[Any]) -> Any:
        for text in ("far ", "away"):
            source = EventSource(node.node_id, 1, "show", Origin(0.0, "other"), "x", None)
            relay(node, Event("text", source, 0.0, text))
            await asyncio.sleep(0)
        return await node.task()

    def descendants(self, depth: int) -> tuple[()]:
        return ()

    def explain(self) -> str:
        return "runs elsewhere"


class There(Place):
    def prepare(self, node: Node[Any]) -> RemoteBody:
        return Elsewhere()


async def test_text_of_another_machine_comes_to_the_job_that_was_sent_there():
    async with asyncio.timeout(10), Commander() as commander:
        beside = commander.start(hang())
        run = commander.start(Desk([]), on=There())
        found: dict[str, str] = defaultdict(str)
        async for source, text in run.text():
            found[source] += text
        assert found == {"Desk": "far awayplain"}
        beside.cancel()
        with pytest.raises(NodeCancelled):
            [_ async for _ in beside.text()]
