"""A loss fails its nodes with `WorkerLost`, quickly and once; nothing runs twice."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.leaks import has_exited
from support.ray_jobs import Double, Join, Speak, Stand, Tool, read_notes, wait_for_line
from support.waiting import settle_loop, wait_until

from anabranch import Commander, Job, Retry, WorkerLost
from anabranch.cluster import Ray
from anabranch.commander import Node

RIGHT = Ray(num_cpus=0, resources={"right": 1})
MORTAL = Ray(num_cpus=0, resources={"mortal": 1})


def make(kind: str, file: str) -> Job[Any]:
    """Return a job that is in a stream, a tool or a join."""
    return {
        "stream": Speak(1_000_000, file, pause=0.001),
        "tool": Tool(file),
        "join": Join(file),
        "body": Stand(file),
    }[kind]


async def test_a_machine_that_goes_away_fails_its_nodes(nodes: Any, tmp_path: Path) -> None:
    """In a stream, a tool or a join; siblings keep their results, and nothing runs twice."""
    machine = nodes.add("mortal", cpus=3)
    files = {kind: str(tmp_path / kind) for kind in ("stream", "tool", "join")}
    ended: list[str] = []
    async with Commander() as commander:
        sibling = commander.put_job(Double(4), on=RIGHT)
        jobs = [
            commander.put_job(make(kind, file), on=MORTAL, claim=True)
            for kind, file in files.items()
        ]
        for job in jobs:
            job.at_done(lambda node: ended.append(type(node.error).__name__))
        pids = [int((await wait_for_line(file, "standing")).split()[1]) for file in files.values()]
        await sibling
        await asyncio.to_thread(nodes.remove, machine)
        for job in jobs:
            with pytest.raises(WorkerLost, match=job.path) as caught:
                await job
            assert caught.value.path == job.path
        assert sibling.result == 8
    assert ended == ["WorkerLost"] * 3
    assert all(read_notes(file).count("standing") == 1 for file in files.values())
    assert all(map(has_exited, pids))


async def test_a_machine_may_go_away_in_the_midst_of_a_cancel(
    nodes: Any, file: str, noted: Any
) -> None:
    """The node ends as cancelled, without an answer of the machine."""
    machine = nodes.add("mortal")
    async with Commander() as commander:
        job = commander.put_job(Tool(file), on=MORTAL, claim=True)
        pid = int((await noted("standing")).split()[1])
        os.kill(pid, signal.SIGSTOP)  # so that it cannot end before its machine does
        job.cancel()
        await settle_loop()
        await asyncio.to_thread(nodes.remove, machine)
        await _ended(job)
        assert job.state == "cancelled"
    assert read_notes(file).count("standing") == 1
    with suppress(ProcessLookupError):  # a stopped process may not have noticed the loss
        os.kill(pid, signal.SIGKILL)


async def _ended(node: Node[Any]) -> None:
    with suppress(Exception):
        await node


@pytest.mark.parametrize("kind", ["stream", "tool", "join", "body"])
@pytest.mark.usefixtures("nodes")
async def test_a_worker_that_is_killed_fails_its_node(kind: str, file: str, noted: Any) -> None:
    """Nothing is tried again without `retry`."""
    async with Commander() as commander:
        job = commander.put_job(make(kind, file), on=RIGHT, claim=True)
        os.kill(int((await noted("standing")).split()[1]), signal.SIGKILL)
        with pytest.raises(WorkerLost, match=f"{job.path}: the Ray worker that ran it went away"):
            await job
        assert await commander.run(Double(1), on=RIGHT) == 2
    assert read_notes(file).count("standing") == 1


@pytest.mark.usefixtures("nodes")
async def test_a_lost_job_runs_again_if_it_says_so(file: str, noted: Any) -> None:
    """As often as `retry` allows."""
    async with Commander() as commander:
        job = commander.put_job(
            Stand(file), on=RIGHT, claim=True, retry=Retry(attempts=3, on=WorkerLost)
        )
        for attempt in range(1, 4):
            await wait_until(lambda: len(read_notes(file).splitlines()) == attempt)  # noqa: B023
            os.kill(int(read_notes(file).splitlines()[-1].split()[1]), signal.SIGKILL)
        with pytest.raises(WorkerLost):
            await job
    assert read_notes(file).count("standing") == 3


async def test_a_job_whose_only_machine_went_away_is_refused(
    nodes: Any, file: str, noted: Any
) -> None:
    """It has not started, and would wait forever."""
    from anabranch import ConfigurationError

    machine = nodes.add("mortal")
    whole = Ray(num_cpus=0, resources={"mortal": 100})
    async with Commander(policy="isolate") as commander:
        first = commander.put_job(Stand(file), on=whole, claim=True)
        second = commander.put_job(Double(1), on=whole, claim=True)
        await noted("standing")
        await asyncio.to_thread(nodes.remove, machine)
        with pytest.raises(WorkerLost):
            await first
        with pytest.raises((ConfigurationError, WorkerLost)):
            await second


async def test_a_job_outlives_the_way_by_which_it_is_heard(nodes: Any, file: str) -> None:
    """After the loss of the mailbox all events arrive at its end, once and in order."""
    async with Commander() as commander:
        events = commander.events(("text",))
        job = commander.put_job(Speak(300, pause=0.005), on=RIGHT)
        other = commander.put_job(Stand(file), on=RIGHT, claim=True)
        await wait_for_line(file, "standing")
        said = [(await anext(aiter(events))).data]
        await nodes.lose_mailbox()
        assert await job == 300
        other.cancel()
        await _ended(other)
        assert other.state == "cancelled"
        assert read_notes(file).endswith("cleaned\n")
        assert await commander.run(Double(1), on=RIGHT) == 2
    said += [event.data async for event in events]
    assert said == [str(number) for number in range(300)]


DRIVER = """
import asyncio, sys
from support.ray_jobs import Stand, Tool
from anabranch import Commander, WorkerLost
from anabranch.cluster import Ray

async def main(address, *files):
    async with Commander() as commander:
        place = Ray(num_cpus=0, address=address)
        jobs = [commander.put_job(Tool(file), on=place, claim=True) for file in files]
        for job in jobs:
            try:
                await job
            except WorkerLost as error:
                print("lost:", error, flush=True)
    print("left the block", flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


CARELESS = """
import sys
from support.ray_jobs import Stand
from anabranch import run
from anabranch.cluster import Ray

class Far(Stand):
    on = Ray(num_cpus=0, address=sys.argv[1])

run(Far(sys.argv[2]))
"""


STUCK = """
import sys, threading
import ray
from support.ray_jobs import Double, add_note
from anabranch import run
from anabranch.cluster import Ray

class Far(Double):
    on = Ray(num_cpus=0, address=sys.argv[1])

print(run(Far(1)))
ray.shutdown = threading.Event().wait  # it never returns
add_note(sys.argv[2], "standing")
sys.stdin.read()
sys.exit(3)
"""


def driver(*arguments: str, source: str = DRIVER) -> subprocess.Popen[str]:
    """Start a program that puts jobs on a cluster."""
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", source, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )


async def test_a_driver_that_goes_away_takes_its_subtrees_along(
    nodes: Any, file: str, noted: Any
) -> None:
    """Even if it is killed."""
    with driver(nodes.address, file) as program:
        pid = int((await noted("standing")).split()[1])
        program.kill()
    assert await asyncio.to_thread(has_exited, pid)


async def test_a_cluster_that_the_process_has_left_is_not_used(nodes: Any) -> None:
    """It may have joined another one since."""
    import ray

    from anabranch.cluster._cluster import Cluster, join

    assert (await join()).is_usable
    assert (await join()).address == nodes.address
    assert not Cluster(ray, "127.0.0.1:1", is_joined_here=False).is_usable


async def test_a_head_that_goes_away_fails_its_nodes(tmp_path: Path, file: str, noted: Any) -> None:
    """Within seconds, each with one clear error; the program continues without its workers.

    A program that does not catch the error ends with it and reports it. Each program has its own
    exit status, also if it ends before the loss is noticed, or if Ray's cleanup hangs.
    """
    from ray.cluster_utils import Cluster

    small: Any = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    other, third, fourth = (str(tmp_path / name) for name in ("other", "third", "fourth"))
    try:
        with (
            driver(small.address, file, other) as program,
            driver(small.address, third, source=CARELESS) as careless,
            driver(small.address, fourth, source=STUCK) as stuck,
        ):
            pid = int((await noted("standing")).split()[1])
            await wait_for_line(third, "standing")
            await wait_for_line(fourth, "standing")
            processes = small.head_node.all_processes
            processes["gcs_server"][0].process.kill()
            assert await asyncio.to_thread(stuck.communicate, timeout=30) == ("2\n", "")
            assert stuck.returncode == 3
            said, _ = await asyncio.to_thread(program.communicate, timeout=60)
            _, complaint = await asyncio.to_thread(careless.communicate, timeout=60)
        assert said.splitlines()[-1] == "left the block"
        lost = [line for line in said.splitlines() if line.startswith("lost:")]
        assert len(lost) == 2
        assert all("the head of the Ray cluster at" in line for line in lost)
        assert program.returncode == 0
        last = [line for line in complaint.splitlines() if line.startswith("anabranch.")][-1]
        assert last.endswith(f"the head of the Ray cluster at {small.address} went away")
        assert careless.returncode == 1
        assert "SIGTERM" not in complaint  # Ray's own warning, because it is joined in a thread
        assert await asyncio.to_thread(has_exited, pid)
    finally:
        small.shutdown()
