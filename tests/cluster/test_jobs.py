"""A job on Ray is a node like any other: results, failures, cancels, callbacks, events."""

from __future__ import annotations

import asyncio
import os
import re
from typing import Any

import pytest
from support.ray_jobs import (
    Ask,
    Double,
    End,
    Fail,
    Fan,
    Give,
    Join,
    Last,
    Leave,
    Mute,
    Nest,
    Refusal,
    Speak,
    Spend,
    Stand,
    Strange,
    Talk,
    There,
    Tool,
    read_notes,
)
from support.scripted_server import Reply, ScriptedServer, Step, chunk
from support.waiting import settle_loop

from anabranch import Commander, Job, NodeCancelled, Retry, connect
from anabranch.agents.conversation._scope import open_scope
from anabranch.agents.errors import ConversationTooLong
from anabranch.cluster import Ray
from anabranch.commander import Event, act_as

pytestmark = pytest.mark.usefixtures("nodes")

LEFT = Ray(num_cpus=0, resources={"left": 1})
RIGHT = Ray(num_cpus=0, resources={"right": 1})


async def test_a_job_gives_its_result_and_runs_its_callbacks_at_home() -> None:
    """Under its own path, in the order of their registration."""
    seen: list[Any] = []
    async with Commander() as commander:
        job = Double(21).at_start(lambda node: seen.append(node.state))
        job.at_end(lambda node: seen.append((node.path, node.result, os.getpid())))
        assert await commander.run(job, on="ray") == 42
    assert seen == ["running", ("Commander/Double#1", 42, os.getpid())]


async def test_a_class_says_where_its_jobs_run() -> None:
    """However they are started."""

    class Outer(Job[int]):
        async def task(self) -> int:
            return await There()

    async with Commander() as commander:
        assert await commander.run(There()) != os.getpid()
        assert await commander.run(Outer()) != os.getpid()
        future = commander.put_job_threadsafe(There())
        assert await asyncio.wrap_future(future) != os.getpid()


async def test_a_class_of_a_script_is_sent_by_value() -> None:
    """A class that was created in a function, for example."""

    class Local(Job[Any]):
        base: int
        extra: list[int]

        async def task(self) -> Any:
            return self.base + sum(self.extra), os.getpid()

    async with Commander() as commander:
        result, pid = await commander.run(Local(1, extra=[2, 3]), on=LEFT)
    assert result == 6
    assert pid != os.getpid()


async def test_a_failure_arrives_as_itself() -> None:
    """With its attributes, its cause, the path of the node and the traceback from there."""
    async with Commander() as commander:
        with pytest.raises(Refusal, match="no: because") as caught:
            await commander.run(Fail(), on=LEFT)
    assert caught.value.what == "no"
    assert isinstance(caught.value.__cause__, ValueError)
    assert "anabranch: failed in Commander/Fail#1" in caught.value.__notes__
    assert any("in the Ray worker" in n and 'int("x")' in n for n in caught.value.__notes__)


async def test_a_failure_that_is_its_own_cause_arrives_as_itself() -> None:
    """Some libraries raise an error from itself."""
    async with Commander() as commander:
        with pytest.raises(KeyError, match="its own cause"):
            await commander.run(Fail("ring"), on=LEFT)


async def test_what_cannot_be_sent_home_is_told() -> None:
    """For a failure that cannot be pickled, and for a result."""
    async with Commander() as commander:
        with pytest.raises(RuntimeError, match="Unsendable: it holds a lock"):
            await commander.run(Fail("unsendable"), on=LEFT)
        with pytest.raises(TypeError, match=r"Commander/Give#2 returned a lock that cannot be"):
            await commander.run(Give(), on=LEFT)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
async def test_a_body_that_would_end_its_program_fails(kind: type[BaseException]) -> None:
    """It is a failure here, and the worker continues with other jobs."""
    async with Commander() as commander:
        with pytest.raises(RuntimeError, match=f"{kind.__name__}: 3") as caught:
            await commander.run(End(kind), on=LEFT)
        assert "in the Ray worker" in "".join(caught.value.__notes__)
        assert await commander.run(Double(1), on=LEFT) == 2


async def test_a_failure_that_cannot_say_what_it_is_arrives() -> None:
    """Whatever its own methods raise."""
    async with Commander() as commander:
        with pytest.raises(Mute):
            await commander.run(End(Mute), on=LEFT)


async def test_what_is_not_known_at_home_is_told() -> None:
    """An exception, and the data of an event, whose class only the worker has."""
    async with Commander() as commander:
        events = commander.events(("text",))
        with pytest.raises(RuntimeError, match="Odd: raised"):
            await commander.run(Strange(), on=LEFT)
        assert "only_there.Odd, an unknown class" in repr((await anext(events)).data)


async def test_a_failure_follows_the_policy_at_home(file: str, noted: Any) -> None:
    """The sibling on another machine is cancelled, and has cleaned up when the parent fails."""

    class Parent(Job[None]):
        async def task(self) -> None:
            self.put_job(Stand(file), on=RIGHT)
            await noted("standing")
            self.put_job(Fail(), on=LEFT)

    async with Commander() as commander:
        with pytest.raises(Refusal):
            await commander.run(Parent())
        assert read_notes(file).endswith("cleaned\n")


async def test_a_failure_is_tried_again_only_if_the_job_says_so(file: str) -> None:
    """Once without `retry`, otherwise as `retry` allows."""
    async with Commander() as commander:
        with pytest.raises(Refusal):
            await commander.run(Fail(file=file), on=LEFT)
        assert read_notes(file) == "tried\n"
        with pytest.raises(Refusal):
            await commander.run(Fail(file=file), on=LEFT, retry=Retry(attempts=3))
    assert read_notes(file) == "tried\n" * 4


async def test_a_timeout_at_home_ends_the_subtree_there(file: str) -> None:
    """It has cleaned up before the node fails."""
    async with Commander() as commander:
        with pytest.raises(TimeoutError, match="Stand#1 was not done within 3 s"):
            await commander.run(Stand(file), on=LEFT, timeout=3)
        assert read_notes(file).endswith("cleaned\n")


@pytest.mark.parametrize("kind", [Stand, Join, Tool])
async def test_a_cancel_reaches_the_leaf(kind: type[Any], file: str, noted: Any) -> None:
    """The node ends when all below it has ended there."""
    ended: list[str] = []
    async with Commander() as commander:
        job = commander.put_job(kind(file), on=LEFT)
        job.at_terminate(lambda _: ended.append(read_notes(file)))
        await noted("standing")
        job.cancel("enough")
        with pytest.raises(NodeCancelled, match="enough"):
            await job
    if kind is not Tool:
        assert ended[0].endswith("cleaned\n")


async def test_a_cancel_closes_the_http_connection() -> None:
    """A real server sees the client leave, before the node has ended."""
    reply = Reply([chunk({"role": "assistant", "content": "Hel"}), Step.HANG])
    async with ScriptedServer(reply) as server, Commander() as commander:
        job = commander.put_job(Ask(connect(server.url, model="tiny")), on=LEFT)
        await server.asked.wait()
        job.cancel()
        with pytest.raises(NodeCancelled):
            await job
        await server.gone.wait()


async def test_a_job_that_waits_for_a_machine_is_cancelled_at_once(file: str, noted: Any) -> None:
    """It never starts."""
    whole = Ray(num_cpus=0, resources={"left": 100})
    async with Commander() as commander:
        first = commander.put_job(Stand(file), on=whole)
        await noted("standing")
        second = commander.put_job(Fail(file=file), on=whole)
        await settle_loop()
        assert "waits for a Ray worker (100 left)" in commander.explain(second)
        second.cancel()
        with pytest.raises(NodeCancelled):
            await second
        first.cancel()
    assert "tried" not in read_notes(file)


async def test_cancelled_before_its_turn_it_is_never_sent(file: str) -> None:
    """Its body does not start anywhere."""
    async with Commander() as commander:
        job = commander.put_job(Fail(file=file), on=LEFT)
        job.cancel()
        with pytest.raises(NodeCancelled):
            await job
    assert read_notes(file) == ""


async def test_what_happens_there_is_seen_at_home(file: str, noted: Any) -> None:
    """In order, with the machine's name and the numbers of the remote nodes."""
    async with Commander() as commander:
        events = commander.events()
        job = commander.put_job(Fan(3), on=LEFT)
        assert await job == 6
        stand = commander.put_job(Stand(file), on=RIGHT)
        seen = [event async for event in _until(events, "stand", "started")]
        drawing, explained = str(commander), commander.explain()
        child = next(each for each in commander.tree() if each.name == "stand")
        stand.cancel()
    host = child.host
    assert (
        drawing
        == f"""\
Commander running
└─ Stand#2 running on {host}
   └─ stand#2000001 running on {host}"""
    )
    assert re.search(r"Stand#2 is running( \(for \d+ s\))?, in the Ray worker", explained)
    assert f"stand#2000001 running on {host}" in explained
    assert (child.node_id, child.parent_id, child.depth) == (2000001, 2, 2)
    for number in {event.node_id for event in seen if event.name == "double"}:
        assert [e.kind for e in seen if e.node_id == number] == ["put", "started", "completed"]
    assert {event.host for event in seen if event.node_id > 2} == {host}
    paths = {event.path for event in seen if event.name == "double"}
    assert len(paths) == 3
    assert all(re.fullmatch(r"Commander/Fan#1/Double#\d+/double#\d+", path) for path in paths)
    assert [e.kind for e in seen if e.node_id == 1] == ["put", "started", "placed", "completed"]
    placed = next(e for e in seen if e.kind == "placed")
    times = [e.time for e in seen if e.parent_id == 1]
    assert times == sorted(times)
    assert (
        seen[0].time
        <= times[0]
        <= times[-1]
        <= next(e.time for e in seen if (e.kind, e.node_id) == ("completed", 1))
    )
    assert placed.data == host


async def _until(events: Any, name: str, kind: str) -> Any:
    async for event in events:
        yield event
        if (event.name, event.kind) == (name, kind):
            return


async def test_deltas_come_home_in_order_while_the_job_runs() -> None:
    """All of them, if the reader is fast enough."""
    async with Commander() as commander:
        events = commander.events(("text",))
        job = commander.put_job(Speak(1000, pause=0.0001), on=LEFT)
        texts: list[Event] = []
        async for event in events:
            texts.append(event)
            if len(texts) == 10:
                assert job.state == "running"
            if len(texts) == 1000:
                break
        assert [event.data for event in texts] == [str(number) for number in range(1000)]
        assert await job == 1000


async def test_a_started_job_yields_its_text_from_there() -> None:
    """Also while another job with the same numbers of nodes speaks on another machine."""
    async with Commander() as commander:
        runs = [commander.start(Speak(50), on=place) for place in (LEFT, RIGHT)]
        for run in runs:
            assert "".join([text async for _, text in run.text()]) == "".join(map(str, range(50)))
            assert await run == 50


async def test_a_flood_is_bounded_and_told() -> None:
    """Events that a slow reader misses are counted, as for any slow listener."""
    async with Commander() as commander:
        events = commander.events(("text", "missed"), capacity=1_000_000)
        assert await commander.run(Speak(200_000), on=LEFT) == 200_000
        events.close()
        seen = [event async for event in events]
    assert events.missed > 0
    texts = [int(event.data) for event in seen if event.kind == "text"]
    assert texts == sorted(texts)
    missed = sum(event.data for event in seen if event.kind == "missed")
    assert 200_000 <= len(texts) + missed <= 200_010  # it counts other kinds of events too


async def test_the_last_words_of_a_cancelled_job_are_heard(file: str, noted: Any) -> None:
    """Events and usage during the cancel arrive."""
    async with Commander() as commander:
        events = commander.events(("text",))
        job = commander.put_job(Last(file), on=LEFT)
        await noted("standing")
        job.cancel()
        with pytest.raises(NodeCancelled):
            await job
        assert (await anext(events)).data == "farewell"
        assert commander.usage(job) == {"dear": 7}


async def test_what_is_spent_there_is_charged_here() -> None:
    """To the job and its ancestors."""
    async with Commander() as commander:
        one, two = commander.put_job(Spend(3), on=LEFT), commander.put_job(Spend(4, 0.1), on=RIGHT)
        await one
        await two
        assert commander.usage(one) == {"cheap": 3, "dear": 3}
        assert commander.usage() == {"cheap": 7, "dear": 7}


async def test_events_name_the_agent_that_acts_there() -> None:
    """The nearest remote agent, else the one above the job."""
    async with Commander() as commander:
        events = commander.events(("started",))
        job = Talk()
        act_as(job, "home")
        await commander.run(job, on=LEFT)
    agents = {event.name: event.agent async for event in events}
    assert agents["Talk"] == "home"
    assert agents["bob.reply"] == "bob"


async def test_a_conversation_goes_on_in_a_job() -> None:
    """Its messages there count here, and the limit ends it there too."""
    with open_scope(5) as (scope, _):
        async with Commander() as commander:
            left: list[int] = []
            with pytest.raises(ConversationTooLong, match="after 5 messages"):
                while True:
                    assert await commander.run(Talk(), on=LEFT) == "I am bob."
                    left.append(scope.left)
    assert left == [3, 1, 0]  # an answer is never refused


async def test_a_job_there_sends_jobs_on() -> None:
    """Any number: jobs that wait lend their CPUs."""
    async with Commander() as commander:
        pids = await commander.run(Nest(2, width=3), on=Ray(num_cpus=1))
    assert len(pids) == 13
    assert os.getpid() not in pids


async def test_a_job_may_cancel_itself_or_leave_from_there() -> None:
    """`exit` leaves the commander here, and a cancel has its reason."""
    async with Commander() as commander:
        with pytest.raises(NodeCancelled, match="by itself"):
            await commander.run(Leave("cancel"), on=LEFT)
        assert await commander.run(Leave("exit"), on=LEFT) == "left"


async def test_nothing_is_left_behind(nodes: Any) -> None:
    """Neither tasks here nor resources there."""
    before = asyncio.all_tasks()
    async with Commander() as commander:
        for job in [commander.put_job(Double(n), on=LEFT) for n in range(20)]:
            await job
    await settle_loop()
    assert asyncio.all_tasks() == before
