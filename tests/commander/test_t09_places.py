"""T9: the start order of jobs, and the limit on running jobs."""

import asyncio
from contextlib import suppress

import anyio
import pytest
from support.clock import sleep_virtual, virtual_time
from support.nodes import fail, wait_for
from support.waiting import run_turns, settle_loop

from anabranch.commander import Commander, NodeCancelled, Retry
from anabranch.handlers import handler
from anabranch.jobs import Job
from anabranch.testing import explore, pause

pytestmark = pytest.mark.contract("T9")


class Note(Job[str]):
    """A job that records that it started."""

    name: object
    log: list[object]

    async def task(self):
        self.log.append(self.name)


class Hold(Job[None]):
    """A job that occupies a slot until it is released."""

    release: asyncio.Event

    async def task(self):
        await self.release.wait()


class Busy(Job[None]):
    """A job that counts how many of its kind run at once, over a few turns of the loop."""

    running: list[int]

    async def task(self):
        self.running[0] += 1
        self.running.append(self.running[0])
        await run_turns(3)
        self.running[0] -= 1


@pytest.mark.parametrize("limit", [None, 1, 3])
async def test_jobs_start_in_the_order_in_which_they_were_put(limit):
    """Neither the putter nor the parent matters."""
    log = []

    class Parent(Job[None]):
        async def task(self):
            log.append("parent")
            self.put_job(Note("child", log))
            self.put_job(Note("elsewhere", log), parent=self.commander)

    async with asyncio.timeout(5), Commander(max_concurrency=limit) as commander:
        for number in range(3):
            commander.put_job(Note(number, log))
        commander.put_job(Parent())
        commander.put_job(Note(4, log))
    assert log == [0, 1, 2, "parent", 4, "child", "elsewhere"]


@pytest.mark.parametrize("limit", [None, 1, 3])
async def test_jobs_of_higher_priority_start_first(limit):
    """The default is 0. Equals keep their order, and negative ones come last."""
    log = []
    async with asyncio.timeout(5), Commander(max_concurrency=limit) as commander:
        put = (("low", -1), ("a", 0), ("high", 5), ("b", 0), ("higher", 7), ("low 2", -1), ("c", 0))
        for name, priority in put:
            commander.put_job(Note(name, log), priority=priority)
    assert log == ["higher", "high", "a", "b", "c", "low", "low 2"]


@pytest.mark.parametrize("limit", [None, 1, 3])
async def test_equals_keep_their_order_if_one_of_them_calls_others_back(limit):
    """Without a limit, a job put in the same turn postpones those of lower priority."""
    log = []
    async with asyncio.timeout(5), Commander(max_concurrency=limit) as commander:
        for name, priority in (("a", 1), ("low", 0), ("b", 1)):
            commander.put_job(Note(name, log), priority=priority)
    assert log == ["a", "b", "low"]


@pytest.mark.parametrize("limit", [1, 2, 7])
async def test_no_more_jobs_run_at_once_than_the_limit_allows(limit):
    """The limit is also reached while enough jobs wait."""
    running = [0]
    async with asyncio.timeout(5), Commander(max_concurrency=limit) as commander:
        for _ in range(30):
            commander.put_job(Busy(running))
    assert max(running[1:]) == limit


async def test_there_is_no_limit_by_default():
    """A thousand jobs run at once."""
    running = [0]
    async with asyncio.timeout(5), Commander() as commander:
        for _ in range(1_000):
            commander.put_job(Busy(running))
    assert max(running) == 1_000


@pytest.mark.parametrize("limit", [0, -1])
async def test_a_limit_below_one_is_refused(limit):
    """No job could ever run."""
    with pytest.raises(ValueError, match="max_concurrency"):
        Commander(max_concurrency=limit)


async def test_only_jobs_count_handlers_do_not():
    """Handlers run while the only slot is taken. Jobs wait."""
    release, log = asyncio.Event(), []

    @handler
    async def note(node):
        log.append("handler")

    async with asyncio.timeout(5), Commander(max_concurrency=1) as commander:
        commander.put_job(Hold(release))
        waiting = commander.put_job(Note("job", log))
        await settle_loop()
        for _ in range(3):
            await commander.run(note())
        assert log == ["handler"] * 3
        assert waiting.state == "pending"
        release.set()
    assert log[-1] == "job"


async def test_a_job_whose_body_is_over_counts_no_more():
    """A joining job frees its slot for the next one."""
    release, log = asyncio.Event(), []

    class Parent(Job[None]):
        async def task(self):
            self.call_handler(wait_for(release))

    async with asyncio.timeout(5), Commander(max_concurrency=1) as commander:
        parent = commander.put_job(Parent())
        await commander.run(Note("next", log))
        assert parent.state == "joining"
        release.set()
    assert log == ["next"]


@pytest.mark.parametrize("how", ["await", "run", "return", "gather", "timeout", "task"])
async def test_a_job_that_waits_for_a_node_gives_its_place_to_others(how):
    """Every kind of wait lends the slot. At a limit of one its child could not run otherwise."""
    log = []

    class Parent(Job[None]):
        async def task(self):
            child = Note("child", log)
            if how == "return":
                return child
            if how == "await":
                await child
            elif how == "run":
                await self.commander.run(child)
            elif how == "gather":
                await asyncio.gather(child, Note("child", log))
            elif how == "timeout":
                async with asyncio.timeout(60):
                    await child
            else:
                async with asyncio.TaskGroup() as group:
                    group.create_task(wait(self.put_job(child)))
            log.append("parent")
            return None

    async def wait(node):
        await node

    async with asyncio.timeout(5), Commander(max_concurrency=1) as commander:
        await commander.run(Parent())
    expected = ["child"] * (2 if how == "gather" else 1)
    assert log == expected + ([] if how == "return" else ["parent"])


async def test_a_job_takes_its_place_again_before_new_starts():
    """The job continues before queued jobs that were put after its child."""
    log = []

    class Parent(Job[None]):
        async def task(self):
            child = self.put_job(Note("child", log))
            for number in range(3):
                self.put_job(Note(number, log))
            await child
            log.append("parent goes on")

    async with asyncio.timeout(5), Commander(max_concurrency=1) as commander:
        await commander.run(Parent())
    assert log == ["child", "parent goes on", 0, 1, 2]


async def test_the_limit_holds_while_jobs_come_back_from_their_waits():
    """The number of running bodies never exceeds the number of slots."""
    running, most = [0], [0]

    async def step():
        running[0] += 1
        most[0] = max(most[0], running[0])
        await run_turns(2)
        running[0] -= 1

    class Parent(Job[None]):
        depth: int

        async def task(self):
            await step()
            if self.depth:
                await asyncio.gather(Parent(self.depth - 1), Parent(self.depth - 1))
            await step()

    async with asyncio.timeout(10), Commander(max_concurrency=2) as commander:
        for _ in range(3):
            commander.put_job(Parent(4))
    assert running == [0]
    assert most == [2]


@pytest.mark.parametrize("limit", [1, 2])
async def test_a_limit_never_deadlocks_a_nested_tree(limit):
    """Jobs put, await, run and return jobs, several levels deep."""
    count = [0]

    class Nested(Job[int]):
        depth: int

        async def task(self):
            count[0] += 1
            if not self.depth:
                return 1
            put = self.put_job(Nested(self.depth - 1))
            total = await Nested(self.depth - 1)
            total += await self.commander.run(Nested(self.depth - 1))
            return Nested(self.depth - 1) if self.depth == 1 else total + await put

    async with asyncio.timeout(10), Commander(max_concurrency=limit) as commander:
        assert await commander.run(Nested(4)) > 0
    assert count[0] > 100


async def test_a_handler_between_two_jobs_does_not_hold_the_place():
    """A job awaits a handler that awaits a job."""
    log = []

    @handler
    async def between(node):
        await Note("inner", log)

    class Outer(Job[None]):
        async def task(self):
            await between()
            log.append("outer")

    async with asyncio.timeout(5), Commander(max_concurrency=1) as commander:
        await commander.run(Outer())
    assert log == ["inner", "outer"]


async def test_jobs_that_wait_for_a_sibling_do_not_deadlock():
    """Each job waits for the one put after it."""

    class Waits(Job[int]):
        index: int
        others: list

        async def task(self):
            if self.index + 1 == len(self.others):
                return 0
            return 1 + await self.others[self.index + 1]

    async with asyncio.timeout(5), Commander(max_concurrency=1) as commander:
        jobs = []
        jobs.extend(Waits(index, jobs) for index in range(20))
        for job in jobs:
            commander.put_job(job)
        assert await jobs[0] == 19


@pytest.mark.parametrize("ending", ["fails", "is cancelled", "times out"])
async def test_a_place_comes_back_however_its_job_ends(ending):
    """At a limit of one, the next job runs after each."""
    log = []

    class Bad(Job[None]):
        async def task(self):
            if ending == "fails":
                raise ValueError
            if ending == "is cancelled":
                self.cancel()
            await asyncio.Event().wait()

    kind = {"fails": ValueError, "is cancelled": NodeCancelled, "times out": TimeoutError}[ending]
    async with asyncio.timeout(5), Commander(max_concurrency=1) as commander:
        for number in range(3):
            with pytest.raises(kind):
                await commander.run(Bad(), timeout=0.005 if ending == "times out" else None)
            await commander.run(Note(number, log))
    assert log == [0, 1, 2]


@pytest.mark.parametrize("moment", ["waiting", "coming back", "both"])
async def test_the_number_of_places_survives_cancelled_waits(moment):
    """A job cancelled in its wait, or while it waits for its slot, loses no slot."""

    class Waiter(Job[None]):
        node: object

        async def task(self):
            await self.node

    for _ in range(3):
        async with asyncio.timeout(5), Commander(max_concurrency=2) as commander:
            event, release, running = asyncio.Event(), asyncio.Event(), [0]
            waiters = [Waiter(commander.call_handler(wait_for(event))) for _ in range(2)]
            for waiter in waiters:
                commander.put_job(waiter)
            await settle_loop()
            holders = [commander.put_job(Hold(release)) for _ in range(2)]
            await settle_loop()
            assert {holder.state for holder in holders} == {"running"}
            if moment != "waiting":
                event.set()
                await settle_loop()
            if moment == "both":
                release.set()
            for waiter in waiters:
                waiter.cancel()
            for waiter in waiters:
                with pytest.raises(NodeCancelled):
                    await waiter
            release.set()
            event.set()
            for _ in range(10):
                commander.put_job(Busy(running))
        assert max(running[1:]) == 2


async def test_a_job_cancelled_in_the_queue_takes_no_place():
    """The job behind it starts."""
    release, log = asyncio.Event(), []
    async with asyncio.timeout(5), Commander(max_concurrency=1) as commander:
        commander.put_job(Hold(release))
        queued = [commander.put_job(Note(number, log)) for number in range(4)]
        await settle_loop()
        queued[0].cancel()
        queued[2].cancel()
        release.set()
    assert log == [1, 3]


async def test_a_cancelled_job_cleans_up_without_waiting_for_a_place():
    """All slots belong to jobs that wait only for the end of the cancelled one."""
    cleaned, release = [], asyncio.Event()

    class Careful(Job[None]):
        async def task(self):
            try:
                await wait_for(asyncio.Event())
            finally:
                await asyncio.sleep(0)
                cleaned.append(True)
                release.set()

    async with asyncio.timeout(5), Commander(max_concurrency=1) as commander:
        careful = commander.put_job(Careful())
        await settle_loop()
        holder = commander.put_job(Hold(release))
        await settle_loop()
        assert holder.state == "running"
        careful.cancel()
        with pytest.raises(NodeCancelled):
            await careful
    assert cleaned == [True]


async def test_a_job_that_is_tried_again_needs_a_place_again():
    """During the pause its slot is free for others."""
    log = []

    class Flaky(Job[None]):
        async def task(self):
            log.append("try")
            if log.count("try") == 1:
                raise ValueError

    async with asyncio.timeout(5), Commander(max_concurrency=1) as commander:
        flaky = commander.put_job(Flaky(), retry=Retry(backoff=0.01, jitter=0))
        commander.put_job(Note("meanwhile", log))
        await flaky
    assert log == ["try", "meanwhile", "try"]


@virtual_time
async def test_a_job_that_is_tried_again_keeps_its_place_in_the_queue():
    """It stays behind jobs of higher priority, and before jobs that were put later."""
    log, release = [], asyncio.Event()

    class Flaky(Job[None]):
        name: str

        async def task(self):
            log.append(self.name)
            if log.count(self.name) == 1:
                raise ValueError

    async with asyncio.timeout(5), Commander(max_concurrency=1) as commander:
        for name in ("a", "b"):
            commander.put_job(Flaky(name), retry=Retry(backoff=1, jitter=0), priority=1)
        commander.put_job(Hold(release), priority=1)
        await settle_loop()
        commander.put_job(Note("late", log), priority=1)
        commander.put_job(Note("high", log), priority=2)
        await sleep_virtual(2)
        release.set()
    assert log == ["a", "b", "high", "a", "b", "late"]


async def test_a_job_in_the_queue_fails_at_once_with_a_child_of_its_own():
    """The job ends without its body, so it needs no slot."""
    release = asyncio.Event()
    async with asyncio.timeout(5), Commander(max_concurrency=1) as commander:
        commander.put_job(Hold(release))
        late = commander.put_job(Note("late", []), claim=True)
        commander.call_handler(fail(ValueError()), parent=late)
        await settle_loop()
        assert late.state == "failed"
        release.set()
        with pytest.raises(ValueError):
            await late


@pytest.mark.parametrize("limit", [1, 2])
def test_the_number_of_places_survives_whatever_ends_a_wait(limit):
    """After timeouts, scopes, failures, retries and cancels, as many jobs run as before."""

    class Restless(Job[None]):
        async def task(self):
            chance = asyncio.get_running_loop().random
            for _ in range(chance.randint(1, 3)):
                child = self.put_job(Busy([0]), claim=True)
                seconds = chance.random() / 100
                with suppress(TimeoutError, NodeCancelled):
                    match chance.randrange(4):
                        case 0:
                            with anyio.move_on_after(seconds):
                                await asyncio.gather(child, child)
                        case 1:
                            async with asyncio.timeout(seconds):
                                await child
                        case 2:
                            await asyncio.wait_for(child, seconds)
                        case _:
                            raise ValueError
                await pause(2)

    async def main():
        chance = asyncio.get_running_loop().random
        async with Commander(max_concurrency=limit, slow_after=None) as commander:
            retry = Retry(attempts=2, backoff=0.01)
            for _ in range(6):
                commander.put_job(
                    Restless(), retry=retry, timeout=chance.choice([None, 0.01]), claim=True
                )
            await pause(60)
            for job in commander.children:
                if chance.random() < 0.5:
                    job.cancel()
            await asyncio.wait([asyncio.ensure_future(drop(job)) for job in commander.children])
            running = [0]
            for _ in range(9):
                commander.put_job(Busy(running))
        assert max(running[1:]) == limit

    explore(main, range(30), turns=50_000)


async def drop(node):
    with suppress(Exception):
        await node
