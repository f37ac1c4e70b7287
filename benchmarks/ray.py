"""Jobs on Ray: compared with raw Ray tasks, the delay of their text, and on three machines.

    pip install 'anabranch[ray,http]'
    python benchmarks/ray.py            # about three minutes, on a quiet machine

One run on one machine. Nodes a second: jobs of 10 ms and Ray tasks of 10 ms, alternating, with the
median of the rounds' ratios. Lag: the time until a piece of text reaches the driver, and the same
for an item of Ray's own stream, which uses no mailbox. Conversations: 200 at once with a model that
answers in pieces, on one node of a cluster and on three, with 8 at a time on each node.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.remove(str(Path(__file__).parent))  # otherwise `import ray` would find this file

import ray
from aiohttp import web
from ray.cluster_utils import Cluster

from anabranch import Backend, Commander, Conversation, Job, connect
from anabranch.cluster import Ray
from anabranch.commander import emit

PAUSE = 0.01
ROUNDS = 7
TASKS = 400
PIECES = 200
GOAL = 0.02
TALKS = 200
ROOM = 8


class Sleep(Job[None]):
    """Sleeps like the raw task, since timers of the event loop are a millisecond coarser."""

    async def task(self) -> None:
        time.sleep(PAUSE)  # noqa: ASYNC251


class Speak(Job[None]):
    """Sends the time, every 2 ms."""

    async def task(self) -> None:
        for _ in range(PIECES):
            emit(self, "text", time.time())
            await asyncio.sleep(0.002)


class Talk(Job[int]):
    """Three turns with a model; the result is the length of its replies."""

    backend: Backend

    async def task(self) -> int:
        conversation, said = Conversation(), 0
        for turn in range(3):
            conversation.add(f"and then? ({turn})")
            message = await self.backend.complete(conversation.request())
            conversation.add(message)
            said += len(message.content or "")
        return said


@ray.remote(max_retries=0)
def sleep() -> None:
    time.sleep(PAUSE)


@ray.remote(max_retries=0, num_returns="streaming")
def speak() -> Iterator[float]:
    for _ in range(PIECES):
        yield time.time()
        time.sleep(0.002)


# --- nodes a second


async def raw() -> float:
    started = time.perf_counter()
    await asyncio.gather(*[sleep.remote() for _ in range(TASKS)])
    return TASKS / (time.perf_counter() - started)


async def jobs() -> float:
    async with Commander(slow_after=None) as commander:
        started = time.perf_counter()
        for job in [commander.put_job(Sleep(), on="ray") for _ in range(TASKS)]:
            await job
        return TASKS / (time.perf_counter() - started)


async def speed() -> None:
    await raw(), await jobs()  # workers start
    rounds = [(await raw(), await jobs()) for _ in range(ROUNDS)]
    ratio = statistics.median(ours / theirs for theirs, ours in rounds)
    for name, column in (("raw Ray tasks", 0), ("jobs on Ray", 1)):
        print(f"{name:16}{statistics.median(each[column] for each in rounds):8.0f} a second")
    print(f"ratio           {ratio:8.2f}   (goal: 0.8)")


# --- lag


async def streamed() -> list[float]:
    return [time.time() - await said async for said in speak.remote()]


async def told() -> list[float]:
    async with Commander() as commander:
        events = commander.events(("text",))
        commander.put_job(Speak(), on="ray")
        lags: list[float] = []
        async for event in events:
            lags.append(time.time() - event.data)
            if len(lags) == PIECES:
                break
    return lags


async def lag() -> None:
    await streamed()  # where it is the first job
    rounds = [(await streamed(), await told()) for _ in range(ROUNDS)]
    for name, column in (("Ray's own stream", 0), ("text of a job", 1)):
        lags = [sorted(each[column]) for each in rounds]
        middle, late, last = (
            [1e3 * each[int(share * (PIECES - 1))] for each in lags] for share in (0.5, 0.95, 1)
        )
        timely = sum(each <= GOAL for lags in rounds for each in lags[column])
        print(
            f"{name:16} behind: median {statistics.median(middle):.1f} ms, 95 of 100 "
            f"{statistics.median(late):.1f} ms, {timely} of {ROUNDS * PIECES} at most "
            f"{1e3 * GOAL:.0f} ms, the last of each round "
            + " ".join(f"{each:.1f}" for each in sorted(last))
        )
    print(f"                 (goal for each text of a job: {1e3 * GOAL:.0f} ms)")


# --- conversations


async def model(request: web.Request) -> web.StreamResponse:
    """Answer with 20 words, 10 ms apart."""
    response = web.StreamResponse()
    response.content_type = "text/event-stream"
    await response.prepare(request)
    for word in range(20):
        await asyncio.sleep(0.01)
        await response.write(
            b'data: {"choices": [{"index": 0, "delta": {"content": "w%02d "}}]}\n\n' % word
        )
    await response.write(
        b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n'
    )
    await response.write(b"data: [DONE]\n\n")
    return response


async def conversations(places: list[Ray]) -> float:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", model)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    backend = connect(f"http://127.0.0.1:{runner.addresses[0][1]}/v1", model="any")
    async with Commander(slow_after=None) as commander:
        started = time.perf_counter()
        talks = [commander.put_job(Talk(backend), on=places[n % len(places)]) for n in range(TALKS)]
        said = {await talk for talk in talks}
    took = time.perf_counter() - started
    await runner.cleanup()
    assert said == {3 * 20 * 4}
    return took


async def spread(names: list[str]) -> None:
    places = [Ray(num_cpus=0, resources={name: 1}) for name in names]
    await conversations(places)  # workers start
    one, three = await conversations(places[:1]), await conversations(places)
    print(
        f"{TALKS} conversations: {one:.1f} s on one node, {three:.1f} s on three: {one / three:.2f}"
    )


async def main(cpus: int) -> None:
    ray.init(num_cpus=cpus, include_dashboard=False, configure_logging=False, log_to_driver=False)
    print(f"Python {sys.version.split()[0]}, Ray {ray.__version__}, {os.cpu_count()} CPUs")
    await speed()
    await lag()
    ray.shutdown()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    names = ["one", "two", "three"]
    for name in names:
        cluster.add_node(num_cpus=ROOM, resources={name: ROOM})
    ray.init(address=cluster.address, configure_logging=False, log_to_driver=False)
    await spread(names)
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--cpus", type=int, default=os.cpu_count(), help="how many tasks Ray runs at once"
    )
    asyncio.run(main(parser.parse_args().cpus))
