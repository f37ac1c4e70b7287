"""T9: which waits count as waits for the tree, and that the limit always holds."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from support.waiting import run_turns, settle_loop

from anabranch.commander import Commander, Node, Retry
from anabranch.dispatch import fork
from anabranch.handlers import handler
from anabranch.jobs import Job
from anabranch.messages import Delta
from anabranch.testing import pause, run_seeded

pytestmark = pytest.mark.contract("T9")

Way = Callable[[Job[Any]], Awaitable[object]]


class Child(Job[int]):
    """A job that needs a slot."""

    async def task(self) -> int:
        await asyncio.sleep(0)
        return 1


class Waits(Job[None]):
    """A job that waits for the tree in a given way."""

    way: Way

    async def task(self) -> None:
        await self.way(self)


async def side(node: Node[int]) -> int:
    return await node


def put(job: Job[Any]) -> Awaitable[int]:
    return side(job.put_job(Child()))


async def deltas(job: Job[Any]) -> Any:
    """Yield two deltas. The second one needs a job first."""
    yield Delta("a")
    await job.put_job(Child())
    yield Delta("b", done=True)


# --- waits that are recognized


async def by_gather(job: Job[Any]) -> None:
    await asyncio.gather(put(job), put(job))


async def by_wait(job: Job[Any]) -> None:
    await asyncio.wait([asyncio.ensure_future(put(job)) for _ in range(3)])


async def by_the_first_of_several(job: Job[Any]) -> None:
    tasks = [asyncio.ensure_future(put(job)) for _ in range(3)]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)


async def by_wait_for(job: Job[Any]) -> None:
    await asyncio.wait_for(put(job), 60)


async def by_shield(job: Job[Any]) -> None:
    await asyncio.wait_for(asyncio.shield(asyncio.gather(put(job))), 60)


async def by_timeout(job: Job[Any]) -> None:
    async with asyncio.timeout(60):
        await job.put_job(Child())


async def by_task_group(job: Job[Any]) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.wait_for(put(job), 60))


async def by_as_completed(job: Job[Any]) -> None:
    async def one(task: Awaitable[int]) -> int:
        return await task

    tasks = [asyncio.create_task(one(asyncio.ensure_future(put(job)))) for _ in range(3)]
    for each in asyncio.as_completed(tasks):
        await each


async def by_anyio(job: Job[Any]) -> None:
    async def begin(*, task_status: anyio.abc.TaskStatus[None]) -> None:
        await put(job)
        task_status.started()
        await put(job)

    async with anyio.create_task_group() as group:
        await group.start(begin)
        group.start_soon(put, job)


async def by_a_task_of_a_task(job: Job[Any]) -> None:
    async def outer() -> None:
        await asyncio.create_task(by_gather(job))

    await asyncio.create_task(outer())


async def by_an_async_generator(job: Job[Any]) -> None:
    async def items() -> Any:
        yield await job.put_job(Child())

    async for _ in items():
        pass


async def by_message(job: Job[Any]) -> None:
    await fork(job, deltas(job)).message


async def by_branch(job: Job[Any]) -> None:
    assert "".join([text async for text in fork(job, deltas(job)).text]) == "ab"


async def by_aclose(job: Job[Any]) -> None:
    closed = job.commander.put_job(Child())

    async def source() -> Any:
        try:
            yield Delta("a")
            await asyncio.Event().wait()
        finally:
            await closed

    reply = fork(job, source())
    await anext(reply.text)
    await reply.aclose()


async def by_drain(job: Job[Any]) -> None:
    job.commander.put_job(Child())
    assert await job.commander.drain()


async def by_drain_aside(job: Job[Any]) -> None:
    job.commander.put_job(Child())
    await asyncio.gather(job.commander.drain())


async def by_run(job: Job[Any]) -> None:
    await job.commander.run(Child())


async def by_a_commander_inside(job: Job[Any]) -> None:
    async with Commander(max_concurrency=1) as inner:
        inner.put_job(Waits(lambda _: job.commander.run(Child())))


async def by_another_s_task(job: Job[Any]) -> None:
    await job.commander.elsewhere  # type: ignore[attr-defined]


SEEN = [value for name, value in list(globals().items()) if name.startswith("by_")]


# --- waits that are not recognized


async def unseen_event(job: Job[Any]) -> None:
    event = asyncio.Event()

    async def sets() -> None:
        await put(job)
        event.set()

    task = asyncio.create_task(sets())
    await event.wait()
    await task


async def unseen_queue(job: Job[Any]) -> None:
    queue: asyncio.Queue[int] = asyncio.Queue()

    async def puts() -> None:
        queue.put_nowait(await put(job))

    task = asyncio.create_task(puts())
    await queue.get()
    await task


async def unseen_future(job: Job[Any]) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def sets() -> None:
        await job.put_job(Child().at_done(lambda _: future.set_result(None)))

    task = asyncio.create_task(sets())
    await future
    await task


async def unseen_thread(job: Job[Any]) -> None:
    put = job.commander.put_job_threadsafe
    assert await asyncio.to_thread(lambda: put(Child()).result(30)) == 1


UNSEEN = [value for name, value in list(globals().items()) if name.startswith("unseen_")]


async def one_place(*ways: Way) -> float:
    """Run each way in a job, with other jobs queued, at a limit of one. Return the seconds."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    async with Commander(max_concurrency=1, slow_after=None) as commander:

        async def later() -> None:
            await asyncio.sleep(0)
            await commander.run(Child())

        commander.elsewhere = asyncio.create_task(later())  # type: ignore[attr-defined]
        jobs = [commander.put_job(Waits(way), claim=True) for way in ways]
        for job in jobs:
            commander.put_job(Child(), claim=True)
            await pause()
            await job
    return loop.time() - started


@pytest.mark.parametrize("way", SEEN)
def test_no_way_of_waiting_for_the_tree_deadlocks(way: Way) -> None:
    """Waits that asyncio and anyio document are recognized at once, without a timer."""
    for seed in range(5):
        assert run_seeded(lambda: one_place(way), seed) < 0.1


@pytest.mark.parametrize("way", UNSEEN)
def test_what_cannot_be_seen_does_not_deadlock_either(way: Way) -> None:
    """The slot is lent after an idle period."""
    assert run_seeded(lambda: one_place(way)) < 5


@pytest.mark.parametrize("how", ["runs", "sleeps", "hears from outside"])
def test_a_side_task_that_waits_lends_nothing(how: str) -> None:
    """Ten bodies each have a task that waits for a job. One body runs at a time."""

    async def main() -> None:
        running: list[int] = [0]

        async def works(job: Job[Any]) -> None:
            waits = asyncio.create_task(put(job))
            running[0] += 1
            running.append(running[0])
            if how == "runs":
                await run_turns(10)
            elif how == "sleeps":
                await asyncio.sleep(10)
            else:
                event = asyncio.Event()
                asyncio.get_running_loop().call_later(0.3, event.set)
                await event.wait()
            running[0] -= 1
            await waits

        async with Commander(max_concurrency=1, slow_after=None) as commander:
            for _ in range(10):
                commander.put_job(Waits(works))
        assert max(running) == 1

    run_seeded(main)


async def test_a_wait_that_an_earlier_attempt_left_behind_does_not_count() -> None:
    """The retry lends its slot and receives it back."""
    release, log = asyncio.Event(), []

    @handler
    async def waits(_: Node[Any]) -> None:
        await release.wait()

    async def works(job: Job[Any]) -> None:
        log.append("attempt")
        if len(log) == 1:
            left.append(asyncio.create_task(side(outside)))
            await asyncio.sleep(0)
            raise ValueError
        child = job.put_job(Child())
        job.commander.put_job(Child().at_done(lambda _: log.append("next")))
        await child
        log.append("gone on")
        await run_turns(3)
        release.set()
        await run_turns(3)
        log.append("done")

    left: list[asyncio.Task[Any]] = []
    async with asyncio.timeout(5), Commander(max_concurrency=1) as commander:
        outside = commander.call_handler(waits())
        job = commander.put_job(Waits(works), retry=Retry(attempts=2, backoff=0))
        await job
    assert log == ["attempt", "attempt", "gone on", "done", "next"]
    await left[0]


async def test_a_wait_that_times_out_goes_on_when_there_is_a_place() -> None:
    """The wait that timed out needs a slot to continue, like any other wait."""
    running, release = [0], asyncio.Event()

    @handler
    async def waits(_: Node[Any]) -> None:
        await release.wait()

    async def works(job: Job[Any]) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await node
        running[0] += 1
        running.append(running[0])
        await run_turns(3)
        running[0] -= 1

    async with asyncio.timeout(5), Commander(max_concurrency=2) as commander:
        node = commander.call_handler(waits())
        for job in [commander.put_job(Waits(works)) for _ in range(9)]:
            await job
        release.set()
    assert max(running) == 2


async def test_a_loop_of_its_own_in_a_thread_works_under_a_limit() -> None:
    """The context carries the job into the thread, but its slot belongs to another loop."""

    async def elsewhere() -> int:
        async with Commander(max_concurrency=1) as inner:
            return await asyncio.wait_for(put(inner), 5)  # type: ignore[arg-type]

    async def works(_: Job[Any]) -> None:
        assert await asyncio.to_thread(asyncio.run, elsewhere()) == 1

    async with asyncio.timeout(5), Commander(max_concurrency=1) as commander:
        await commander.run(Waits(works))
    assert threading.current_thread() is threading.main_thread()


async def test_explain_names_the_pump_and_the_job_for_which_it_waits() -> None:
    """The chain runs from the reader over the pump to the queued job and the slot's owner."""
    release = asyncio.Event()

    async def holds(_: Job[Any]) -> None:
        await release.wait()

    async with asyncio.timeout(5), Commander(max_concurrency=1) as commander:
        reader = commander.put_job(Waits(by_message))
        await settle_loop()
        commander.put_job(Waits(holds))
        await settle_loop()
        assert reader.state == "completed"
        release.set()
    async with asyncio.timeout(5), Commander(max_concurrency=1) as commander:
        release.clear()
        commander.put_job(Waits(holds))
        reads = commander.call_handler(reading(release))
        await settle_loop()
        told = commander.explain(reads)
        release.set()
    lines = [line.strip().split(" at ")[0] for line in told.splitlines()]
    assert lines == [
        "reading#2 is running, awaits Pump#3",
        "Pump#3 is running, awaits Child#4",
        "Child#4 is pending: it waits for one of 1 slots",
    ]


@handler
async def reading(node: Any, release: asyncio.Event) -> None:
    async for _ in fork(node, deltas(node)).text:
        pass


async def test_explain_says_that_a_body_waits_for_its_place() -> None:
    """The body's wait is over, but all slots are taken."""
    release, go_on = asyncio.Event(), asyncio.Event()

    @handler
    async def waits(_: Node[Any]) -> None:
        await go_on.wait()

    async with asyncio.timeout(5), Commander(max_concurrency=1) as commander:
        node = commander.call_handler(waits())
        job = commander.put_job(Waits(lambda _: node))
        await settle_loop()
        commander.put_job(Waits(lambda _: release.wait()))
        await settle_loop()
        go_on.set()
        await settle_loop()
        told = commander.explain(job)
        release.set()
    assert told == "Waits#2 is running, waits to have one of 1 slots again"


# --- random programs


class Program(Job[None]):
    """A job of random steps that counts running bodies and checks the limit."""

    chance: random.Random
    depth: int
    running: list[int]
    limit: int

    def resume(self) -> None:
        self.running[0] += 1
        assert self.running[0] <= self.limit

    async def task(self) -> None:
        self.resume()
        left: list[asyncio.Task[Any]] = []
        try:
            for _ in range(self.chance.randint(0, 4)):
                await self.step(left)
        finally:
            self.running[0] -= 1
        if left:
            await asyncio.wait(left)

    async def step(self, left: list[asyncio.Task[Any]]) -> None:
        kind = self.chance.choice(["compute", "sleep", "aside", "put", "wait", "wait", "unseen"])
        if kind == "compute":
            await pause(3)
        elif kind == "sleep":
            await asyncio.sleep(self.chance.random())
        elif kind == "aside":
            left.append(asyncio.create_task(self.chance.choice(SEEN_ANYWHERE)(self)))
        elif kind == "put" and self.depth:
            self.put_job(Program(self.chance, self.depth - 1, self.running, self.limit))
        else:
            self.running[0] -= 1
            try:
                if self.depth and self.chance.random() < 0.5:
                    await self.deeper()
                else:
                    ways = UNSEEN_IN_LOOP if kind == "unseen" else SEEN_ANYWHERE
                    await self.chance.choice(ways)(self)
            finally:
                self.resume()

    async def deeper(self) -> None:
        below = [
            self.put_job(Program(self.chance, self.depth - 1, self.running, self.limit))
            for _ in range(self.chance.randint(1, 3))
        ]
        if self.chance.random() < 0.5:
            await asyncio.gather(*below)
        else:
            done, late = await asyncio.wait(
                [asyncio.ensure_future(side(each)) for each in below],
                return_when=asyncio.FIRST_COMPLETED,
            )
            await asyncio.gather(*done, *late)


# Without waits for the whole commander, or for one task that all share.
SEEN_ANYWHERE = [
    way for way in SEEN if "drain" not in way.__name__ and "another" not in way.__name__
]
UNSEEN_IN_LOOP = [way for way in UNSEEN if "thread" not in way.__name__]


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_random_programs_never_deadlock_and_never_pass_the_limit(limit: int) -> None:
    """The steps of the bodies and their order are random."""

    async def main() -> None:
        chance = random.Random(asyncio.get_running_loop().random.random())  # type: ignore[attr-defined]
        async with Commander(max_concurrency=limit, slow_after=None) as commander:
            running = [0]
            for _ in range(4):
                commander.put_job(Program(chance, 2, running, limit), claim=True)
        assert running == [0]

    for seed in range(25):
        try:
            run_seeded(main, seed, turns=50_000)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
