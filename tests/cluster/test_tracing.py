"""A local recording shows events of other machines like local ones."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from support.ray_jobs import Ask, AskThere, Join, Odd, Speak, There, Use, read_notes
from support.scripted_server import ScriptedServer, calls, text
from support.waiting import wait_until

from anabranch import Commander, Conversation, Retry, WorkerLost, connect
from anabranch.agents import Chat, ConversableAgent, UserProxyAgent
from anabranch.backends import Backend
from anabranch.cluster import Ray, remote, serve
from anabranch.commander import act_as
from anabranch.handlers import respond
from anabranch.tracing import Trace, TraceNode, record

pytestmark = pytest.mark.usefixtures("nodes")

LEFT = Ray(num_cpus=0, resources={"left": 1})
RIGHT = Ray(num_cpus=0, resources={"right": 1})


def named(trace: Trace, name: str) -> list[TraceNode]:
    return [node for node in trace if node.name == name]


def require_whole(trace: Trace, commander: Commander) -> None:
    """Require that all nodes have ended in time and that usage is counted once."""
    assert trace.usage() == trace.executions[-1].usage == commander.usage()
    for node in trace:
        assert not node.is_open, node
        assert node.parent is not None
        for interval in node.intervals:
            assert interval.end is not None, node
            assert 0 <= node.put <= interval.start <= interval.end <= trace.end, node
        for request in node.requests:
            assert request.end is not None, node


async def test_what_is_asked_there_is_recorded_here(tmp_path: Path) -> None:
    """The node with its machine, the request, its first piece, its reply and tokens, once."""
    async with ScriptedServer(text("Yes", ".")) as server:
        model = connect(server.url, model="tiny")
        async with Commander() as commander, record(commander, tmp_path / "run") as recorder:
            job = Ask(model)
            act_as(job, "asker", 7)
            await commander.run(job, on=LEFT)
    trace = recorder.trace()
    require_whole(trace, commander)
    [ask] = named(trace, "Ask")
    [responds] = named(trace, "respond")
    assert responds.parent is ask
    assert responds.number == ask.number * 1_000_000 + 1
    [answer] = [node for node in trace if node.requests]
    assert answer.parent is responds
    assert ask.host == responds.host == answer.host != ""
    assert (answer.agent, answer.session) == ("asker", "7")
    [request] = answer.requests
    assert (request.model, request.messages, request.finish_reason) == ("tiny", 1, "stop")
    assert request.first is not None
    assert request.end is not None
    assert request.start <= request.first <= request.end
    assert request.usage == answer.usage == commander.usage()
    assert trace.usage_by_agent() == {"asker": commander.usage()}
    assert trace.root.usage == {}


async def test_workers_may_number_their_requests_alike(tmp_path: Path) -> None:
    """Each reply belongs to the request of its worker."""
    async with ScriptedServer(*[text("Yes", ".")] * 6) as server:
        model = connect(server.url, model="tiny")
        async with Commander() as commander, record(commander, tmp_path / "run") as recorder:
            await commander.run(AskThere(model, [LEFT, RIGHT, LEFT, RIGHT, None, None]))
    trace = recorder.trace()
    require_whole(trace, commander)
    requests = [request for node in trace for request in node.requests]
    assert len(requests) == 6
    assert [(each.chunks > 0, each.left, each.finish_reason) for each in requests] == [
        (True, False, "stop")
    ] * 6


async def test_agents_in_actors_are_counted_as_theirs(tmp_path: Path) -> None:
    """Below each call, for any caller and any shared engine."""
    user = UserProxyAgent(human_input_mode="NEVER", max_consecutive_auto_reply=0)
    async with ScriptedServer(*[text("Yes", ".")] * 3) as server:
        model = connect(server.url, model="tiny")
        async with (
            serve("llm", connect(server.url, model="tiny")),
            remote(ConversableAgent, "bob", model) as bob,
            remote(ConversableAgent, "carol", connect("ray:llm")) as carol,
            Commander() as commander,
            record(commander, tmp_path / "run") as recorder,
        ):
            for agent in (bob, carol):
                await commander.run(Chat(user, agent, "Well?", max_turns=1))
            shared: Backend = connect("ray:llm")
            await commander.run(respond(shared, asked()))
            spent = {"bob": await bob.usage(), "carol": await carol.usage()}
    trace = recorder.trace()
    require_whole(trace, commander)
    assert trace.usage().keys() == {"tiny", "llm"}
    by_agent = trace.usage_by_agent()
    assert by_agent["bob"] == spent["bob"]
    assert by_agent["carol"] == spent["carol"]
    assert by_agent[""].keys() == {"llm"}
    requests = [request for node in trace for request in node.requests]
    assert [request.finish_reason for request in requests] == ["stop"] * 3
    assert trace.root.usage == {}


def asked() -> Conversation:
    conversation = Conversation()
    conversation.add("Well?")
    return conversation


async def test_calls_of_tools_there_are_recorded(tmp_path: Path) -> None:
    """With the tool, the sizes and the outcome."""
    async with ScriptedServer(calls(("double", '{"n": 2}')), text("4", ".")) as server:
        model = connect(server.url, model="tiny")
        async with Commander() as commander, record(commander, tmp_path / "run") as recorder:
            await commander.run(Use(model), on=LEFT)
    trace = recorder.trace()
    require_whole(trace, commander)
    [call] = [node for node in trace if node.tool]
    assert (call.tool, call.status, call.arguments) == ("double", "ok", None)
    assert call.call_size > 0
    assert call.result_size == 1


async def test_what_a_lost_worker_did_is_marked(tmp_path: Path) -> None:
    """Its nodes are lost from then on; the next attempt has new ones."""
    file = str(tmp_path / "noted")
    async with Commander() as commander, record(commander, tmp_path / "run") as recorder:
        job = commander.put_job(Join(file), on=LEFT, claim=True)
        retried = commander.put_job(
            Join(file), on=RIGHT, claim=True, retry=Retry(attempts=2, on=WorkerLost)
        )
        await stand_here(commander, 2)
        pids = pids_in(file)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerLost):
            await job
        await wait_until(lambda: len(pids_in(file)) == 3)
        await stand_here(commander, 1)
        during = recorder.trace()
        assert sorted(node.state for node in named(during, "stand")) == ["lost", "lost", "running"]
        retried.cancel()
    trace = recorder.trace()
    require_whole(trace, commander)
    states = [(node.parent and node.parent.number, node.state) for node in named(trace, "stand")]
    assert sorted(states) == [(1, "lost"), (2, "cancelled"), (2, "lost")]
    lost, cancelled = named(trace, "Join")
    assert lost.error is not None
    assert lost.error.type == "WorkerLost"
    assert cancelled.retried[0][1] is not None
    assert len(cancelled.intervals) == 2


async def stand_here(commander: Commander, count: int) -> None:
    """Wait until the local tree has `count` remote nodes."""

    def found() -> bool:
        nodes = [node for node in commander.tree() if node.name == "stand"]
        return [node.state for node in nodes] == ["running"] * count

    await wait_until(found, patience=60)  # a worker may take long to start


def pids_in(file: str) -> list[int]:
    return [int(line.split()[1]) for line in read_notes(file).splitlines()]


async def test_what_was_missed_there_is_a_gap(tmp_path: Path) -> None:
    """Missed events are counted; the nodes and sums after the gap are right."""
    async with ScriptedServer(text("Yes", ".")) as server:
        model = connect(server.url, model="tiny")
        async with Commander() as commander, record(commander, tmp_path / "run") as recorder:
            await commander.run(Speak(200_000, backend=model), on=LEFT)
    trace = recorder.trace()
    assert trace.missed > 0
    require_whole(trace, commander)
    assert commander.usage().keys() == {"tiny"}
    assert [node.state for node in named(trace, "Speak")] == ["completed"]


async def test_data_that_cannot_travel_end_no_recording(tmp_path: Path) -> None:
    """They arrive as text, without their fields."""
    async with Commander() as commander, record(commander, tmp_path / "run") as recorder:
        with pytest.raises(RuntimeError, match="Unsendable"):
            await commander.run(Odd(), on=LEFT)
        await commander.run(There(), on=LEFT)
    assert recorder.error is None
    trace = recorder.trace()
    require_whole(trace, commander)
    [child] = named(trace, "unsendable")
    assert child.state == "failed"
    assert child.error is not None
    assert child.error.type == "Unsendable"
    assert [node.state for node in named(trace, "There")] == ["completed"]
