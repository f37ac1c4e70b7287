"""A thousand interleavings each of cancel, failure and timeout against completion."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from support.clock import sleep_virtual

from anabranch.commander import Commander, Node, NodeCancelled, Retry
from anabranch.handlers import handler
from anabranch.jobs import Job
from anabranch.testing import explore, pause

Outcome = tuple[str, ...]


class Branch(Job[int]):
    """A node with a handler and a job as children. The seed chooses when each step happens."""

    depth: int
    log: list[str]

    async def task(self) -> int:
        await pause(2)
        if not self.depth:
            return 1
        first = self.put_job(Branch(self.depth - 1, self.log)).at_done(self._note)
        second = self.call_handler(part(self.log)).at_done(self._note)
        await pause(2)
        return await first + await second

    def _note(self, node: Node[Any]) -> None:
        assert node.state == "joining"
        assert not node.children
        self.log.append(node.path)


@handler
async def part(node: Node[Any], log: list[str]) -> int:
    await pause()
    return 1


def test_cancel_against_completion() -> None:
    """The tree completes with the sum or ends cancelled. Callbacks run once, children first."""

    async def main() -> Outcome:
        log: list[str] = []
        async with Commander(slow_after=None) as commander:
            job = commander.put_job(Branch(2, log), claim=True)
            await pause(12)
            job.cancel("raced")
            try:
                result = str(await job)
            except NodeCancelled as error:
                result = error.reason
        assert len(log) == len(set(log))
        for at, path in enumerate(log):
            assert not any(later.startswith(path + "/") for later in log[at:])
        assert len(asyncio.all_tasks()) == 1
        return (job.state, result)

    assert set(explore(main)) == {("completed", "3"), ("cancelled", "raced")}


def test_cancel_against_completion_with_one_place() -> None:
    """The limit changes neither outcome, and no order deadlocks."""

    async def main() -> Outcome:
        async with Commander(max_concurrency=1, slow_after=None) as commander:
            jobs = [commander.put_job(Branch(2, []), claim=True) for _ in range(2)]
            await pause(20)
            jobs[0].cancel()
            assert await jobs[1] == 3
        return (jobs[0].state, jobs[1].state)

    assert set(explore(main)) == {("completed", "completed"), ("cancelled", "completed")}


def test_a_failure_against_its_awaiter_s_cancellation(caplog: pytest.LogCaptureFixture) -> None:
    """The awaiter receives the failure or the log records it: never both, never neither."""

    @handler
    async def fails(node: Node[Any], awaited: asyncio.Event) -> None:
        await awaited.wait()
        await pause()
        raise ValueError("lost?")

    async def main() -> Outcome:
        caplog.clear()
        taken: list[str] = []
        awaited = asyncio.Event()
        async with Commander(slow_after=None) as commander:
            node = commander.call_handler(fails(awaited))

            async def awaits() -> None:
                awaited.set()
                try:
                    await node
                except ValueError:
                    taken.append("taken")

            waiter = asyncio.create_task(awaits())
            await awaited.wait()
            await pause(7)
            waiter.cancel()
        await asyncio.wait((waiter,))
        return (*taken, *("logged" for _ in caplog.records))

    with caplog.at_level(logging.ERROR, "anabranch"):
        assert set(explore(main)) == {("taken",), ("logged",)}


def test_a_timeout_against_completion_under_retry() -> None:
    """A node that times out is retried until its attempts are used up."""

    async def main() -> Outcome:
        began: list[int] = []

        @handler
        async def sleeps(node: Node[Any]) -> None:
            began.append(1)
            await sleep_virtual(len(began) / 2 if len(began) < 2 else 1)
            await pause()

        async with Commander(slow_after=None) as commander:
            node = commander.call_handler(
                sleeps(), timeout=1, retry=Retry(attempts=2, jitter=0), claim=True
            )
            await sleep_virtual(0.5)
            await pause()
            node.cancel()
            try:
                await node
            except (NodeCancelled, TimeoutError) as error:
                return (node.state, type(error).__name__)
        return (node.state, "")

    assert set(explore(main)) == {("completed", ""), ("cancelled", "NodeCancelled")}


def test_a_sibling_s_failure_against_completion() -> None:
    """Under `fail_fast` the parent fails with the sibling's error in every interleaving."""

    @handler
    async def fails(node: Node[Any]) -> None:
        await pause()
        raise ValueError

    @handler
    async def parent(node: Node[Any]) -> None:
        node.call_handler(fails())
        node.call_handler(part([])).at_done(lambda node: states.append(node.error is None))
        await pause()

    states: list[bool] = []

    async def main() -> str:
        async with Commander(slow_after=None) as commander:
            with pytest.raises(ValueError):
                await commander.run(parent())
            return "failed"

    assert set(explore(main)) == {"failed"}
    assert set(states) == {True, False}
    assert len(states) == 1000
