"""T9: bodies that wait for each other through events, locks and queues, under a limit."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.backends import Limits
from anabranch.commander import Commander
from anabranch.handlers import handler
from anabranch.jobs import Job
from anabranch.testing import run_seeded

pytestmark = pytest.mark.contract("T9")

Way = Callable[[Job[Any]], Awaitable[object]]


class Does(Job[None]):
    """A job that needs a slot to run `way`."""

    way: Way

    async def task(self) -> None:
        await self.way(self)


class Calls(Job[None]):
    """A job that calls a function."""

    function: Callable[[], object]

    async def task(self) -> None:
        await asyncio.sleep(0)
        self.function()


# --- waits for a job below


async def event_of_a_body(job: Job[Any]) -> None:
    event = asyncio.Event()
    job.put_job(Calls(event.set))
    await event.wait()


async def event_of_a_callback(job: Job[Any]) -> None:
    event = asyncio.Event()
    job.put_job(Calls(int).at_done(lambda _: event.set()))
    await event.wait()


async def event_in_time(job: Job[Any]) -> None:
    event = asyncio.Event()
    job.put_job(Calls(event.set))
    await asyncio.wait_for(event.wait(), 5)


async def event_of_a_handler(job: Job[Any]) -> None:
    event = asyncio.Event()

    @handler
    async def sets(node: Any) -> None:
        await node.put_job(Calls(int))
        event.set()

    job.call_handler(sets())
    await event.wait()


async def queue(job: Job[Any]) -> None:
    items: asyncio.Queue[int] = asyncio.Queue()
    for number in range(3):
        job.put_job(Calls(lambda number=number: items.put_nowait(number)))
    assert [await items.get() for _ in range(3)] == [0, 1, 2]


async def condition(job: Job[Any]) -> None:
    changed = asyncio.Condition()
    told: list[int] = []

    async def tell(_: Job[Any]) -> None:
        async with changed:
            told.append(1)
            changed.notify_all()

    job.put_job(Does(tell))
    async with changed:
        await changed.wait_for(lambda: bool(told))


async def barrier(job: Job[Any]) -> None:
    all_there = asyncio.Barrier(3)
    for _ in range(2):
        job.put_job(Does(lambda _: all_there.wait()))
    await all_there.wait()


async def memory_stream(job: Job[Any]) -> None:
    send, receive = anyio.create_memory_object_stream[int](0)

    async def sends(_: Job[Any]) -> None:
        async with send:
            for number in range(3):
                await send.send(number)

    job.put_job(Does(sends))
    async with receive:
        assert [number async for number in receive] == [0, 1, 2]


async def turn(job: Job[Any]) -> None:
    async with LIMITS[asyncio.get_running_loop()].request("m"):
        await job.put_job(Calls(int))


async def lock(job: Job[Any]) -> None:
    async with LOCKS[asyncio.get_running_loop()]:
        await job.put_job(Calls(int))


LIMITS: dict[object, Limits] = {}
LOCKS: dict[object, asyncio.Lock] = {}
BELOW = [
    event_of_a_body, event_of_a_callback, event_in_time, event_of_a_handler, queue,
    condition, barrier, memory_stream,
]  # fmt: skip
BESIDE = [turn, lock]  # a job holds these while it waits for another job


async def under_a_limit(limit: int, ways: list[Way]) -> None:
    loop = asyncio.get_running_loop()
    LIMITS[loop], LOCKS[loop] = Limits(concurrency=1), asyncio.Lock()
    try:
        async with Commander(max_concurrency=limit, slow_after=None) as commander:
            for way in ways:
                commander.put_job(Does(way))
    finally:
        del LIMITS[loop], LOCKS[loop]


@pytest.mark.parametrize("way", [*BELOW, *BESIDE])
def test_jobs_that_bring_each_other_on_do_not_deadlock(way: Way) -> None:
    """This holds at a limit of one for every means of synchronization."""
    for seed in range(3):
        run_seeded(lambda: under_a_limit(1, [way] * 3), seed, turns=20_000)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from([*BELOW, *BESIDE]), max_size=6), st.integers(1, 3), st.integers(0))
def test_no_mixture_of_them_deadlocks(ways: list[Way], limit: int, seed: int) -> None:
    """The jobs wait in different ways for different things."""
    run_seeded(lambda: under_a_limit(limit, ways), random.Random(seed).randrange(999), turns=50_000)


def test_a_job_that_never_rests_does_not_keep_one_stuck() -> None:
    """A job that wakes up all the time has its own slot."""

    async def main() -> None:
        release = asyncio.Event()

        async def ticks(_: Job[Any]) -> None:
            while not release.is_set():  # noqa: ASYNC110 - polling is the subject
                await asyncio.sleep(0.01)

        async def waits(job: Job[Any]) -> None:
            await event_of_a_body(job)
            release.set()

        async with Commander(max_concurrency=2, slow_after=None) as commander:
            commander.put_job(Does(ticks))
            commander.put_job(Does(waits))

    run_seeded(main, turns=20_000)


@pytest.mark.parametrize("means", ["event", "future", "queue"])
def test_the_limit_holds_while_a_task_may_go_on_and_wake_the_bodies(means: str) -> None:
    """The bodies wait for a task outside the tree, which only sleeps."""

    async def main() -> None:
        event, items = asyncio.Event(), asyncio.Queue[int]()
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waits = {"event": event.wait, "future": lambda: answer, "queue": items.get}[means]
        begun: list[int] = []

        async def works(_: Job[Any]) -> None:
            begun.append(1)
            await waits()

        async with Commander(max_concurrency=2, slow_after=None) as commander:
            for _ in range(6):
                commander.put_job(Does(works))
            await asyncio.sleep(5)
            assert len(begun) == 2
            event.set()
            answer.set_result(None)
            for number in range(6):
                items.put_nowait(number)

    run_seeded(main, turns=20_000)
