"""Hostile uses of a tree: interrupts, many threads at once, exits in unusual places."""

from __future__ import annotations

import asyncio
import contextvars
from concurrent.futures import CancelledError, Future
from typing import Any

import pytest
from support.clock import sleep_virtual
from support.waiting import settle_loop

from anabranch.commander import Commander, Node, NodeCancelled, QuorumNotMet, Retry, quorum, run
from anabranch.handlers import handler
from anabranch.jobs import Job
from anabranch.testing import explore, pause


@handler
async def forever(node: Node[Any]) -> None:
    await asyncio.Event().wait()


@handler
async def leaf(node: Node[Any]) -> str:
    await pause()
    return "done"


@handler
async def fails(node: Node[Any]) -> None:
    raise ValueError("failed")


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("where", ["body", "plain callback", "async callback"])
def test_an_interrupt_raised_in_the_tree_leaves_run_when_its_node_has_ended(
    kind: type[BaseException], where: str
) -> None:
    """The interrupt stops the loop as in any asyncio program. No node stores it as a result."""
    ended: list[str] = []

    class Interrupted(Job[None]):
        async def task(self) -> None:
            self.call_handler(forever())
            if where == "body":
                raise kind

    async def later(node: Node[Any]) -> None:
        await asyncio.sleep(0)
        raise kind

    def at_once(node: Node[Any]) -> None:
        raise kind

    job = Interrupted().at_done(lambda node: ended.append(node.state))
    if where == "plain callback":
        job.at_start(lambda node: node.call_handler(forever()).at_terminate(at_once).cancel())
    elif where == "async callback":
        job.at_start(lambda node: node.call_handler(forever()).at_terminate(later).cancel())
    with pytest.raises(kind):
        run(job, slow_after=None)


def test_a_storm_of_puts_and_cancelled_futures_from_threads_loses_nothing() -> None:
    """Every future completes, the commander closes, and no task remains."""
    counts = {"done": 0, "cancelled": 0}

    class Work(Job[int]):
        async def task(self) -> int:
            await asyncio.sleep(0)
            return 1

    async def main() -> None:
        before = asyncio.all_tasks()
        futures: list[Future[int]] = []
        async with Commander(max_concurrency=3, slow_after=None) as commander:

            def storm() -> None:
                for number in range(200):
                    future = commander.put_job_threadsafe(Work())
                    futures.append(future)
                    if number % 3 == 0:
                        future.cancel()
                    if number % 7 == 0 and number > 10:
                        futures[-10].cancel()

            await asyncio.gather(*(asyncio.to_thread(storm) for _ in range(4)))
            await settle_loop()  # run the calls that the last thread submitted
        for future in futures:
            assert future.done()
            try:
                counts["done"] += future.result()
            except (CancelledError, NodeCancelled):
                counts["cancelled"] += 1
        assert asyncio.all_tasks() == before

    asyncio.run(asyncio.wait_for(main(), 30))
    assert sum(counts.values()) == 800
    assert counts["done"] > 0
    assert counts["cancelled"] >= 4 * 67


def test_a_job_may_drain_its_own_commander() -> None:
    """drain waits for all nodes except the calling job and its ancestors."""

    class Drains(Job[bool]):
        async def task(self) -> bool:
            return await self.commander.drain(10)

    async def main() -> str:
        async with Commander(slow_after=None) as commander:
            other = commander.call_handler(leaf())
            assert await commander.run(Drains())
            return other.state

    assert set(explore(main, range(50))) == {"completed"}


def test_exit_from_a_callback_ends_everything() -> None:
    """Pending runs return the value of `exit`."""

    async def main() -> object:
        async with Commander(slow_after=None) as commander:
            commander.call_handler(leaf()).at_end(lambda node: node.commander.exit("left"))
            return await commander.run(forever())

    assert set(explore(main, range(50))) == {"left"}


def test_runs_nested_under_one_place_do_not_deadlock() -> None:
    """Each job that waits in `commander.run` lends its slot to the next."""

    class Nested(Job[int]):
        depth: int

        async def task(self) -> int:
            await pause()
            if not self.depth:
                return 0
            return 1 + await self.commander.run(Nested(self.depth - 1))

    async def main() -> int:
        async with Commander(max_concurrency=1, slow_after=None) as commander:
            return await commander.run(Nested(20))

    assert set(explore(main, range(50))) == {20}


def test_a_claimed_failure_that_nobody_awaits_fails_the_parent_at_the_join() -> None:
    """A promise to await does not hide a failure."""

    class Forgets(Job[None]):
        async def task(self) -> None:
            self.call_handler(fails(), claim=True)
            await pause()

    async def main() -> None:
        async with Commander(slow_after=None) as commander:
            with pytest.raises(ValueError, match="failed"):
                await commander.run(Forgets())

    explore(main, range(50))


def test_a_quorum_above_a_quorum_that_is_not_met() -> None:
    """The inner quorum's failure counts against the outer quorum."""

    class Inner(Job[None]):
        async def task(self) -> None:
            self.call_handler(fails())
            self.call_handler(leaf())

    class Outer(Job[None]):
        async def task(self) -> None:
            self.put_job(Inner(), policy=quorum(2))
            self.call_handler(leaf())

    async def main() -> tuple[int, str]:
        async with Commander(slow_after=None) as commander:
            with pytest.raises(QuorumNotMet) as caught:
                await commander.run(Outer(), policy=quorum(2))
            (inner,) = caught.value.failures
            return caught.value.completed, type(inner).__name__

    assert set(explore(main, range(50))) == {(1, "QuorumNotMet")}


def test_a_node_cancelled_between_two_attempts_ends_at_once() -> None:
    """The node skips the rest of the pause, and its callbacks run once."""

    async def main() -> tuple[str, float]:
        loop = asyncio.get_running_loop()
        async with Commander(slow_after=None) as commander:
            node = commander.call_handler(fails(), retry=Retry(backoff=1000, jitter=0))
            await sleep_virtual(1)
            node.cancel()
        return node.state, loop.time()

    assert set(explore(main, range(20))) == {("cancelled", 1.0)}


@pytest.mark.parametrize("place", ["queued", "between attempts"])
async def test_a_pending_node_ends_in_its_putter_s_context(place: str) -> None:
    """Callbacks see the context of the putter, not that of the canceller."""
    who = contextvars.ContextVar("who", default="nobody")
    seen: list[str] = []

    class Waits(Job[None]):
        async def task(self) -> None:
            if place == "queued":
                await asyncio.Event().wait()
            raise ValueError

    async with asyncio.timeout(5), Commander(max_concurrency=1, slow_after=None) as commander:
        retry = Retry(backoff=1000, jitter=0)
        if place == "queued":
            commander.put_job(Waits())
        who.set("putter")
        job = commander.put_job(Waits(), retry=retry).at_terminate(lambda _: seen.append(who.get()))
        who.set("canceller")
        await settle_loop()
        assert job.state == "pending"
        job.cancel()
        for child in commander.children:
            child.cancel()
    assert seen == ["putter"]
