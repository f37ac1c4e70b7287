"""T13: every way of leaving a tree runs clean-ups, ends rounds and answers threads."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import pytest
from support.nodes import fail, give, hang
from support.waiting import run_turns, settle_loop, turn_until, wait_until

from anabranch.commander import Commander, Node, NodeCancelled, NodeClosed, run
from anabranch.commander._record import record_of
from anabranch.handlers import handler
from anabranch.jobs import Job, add_edge
from anabranch.testing import pause, run_seeded

pytestmark = pytest.mark.contract("T13")

cleaned: list[str] = []


@pytest.fixture(autouse=True)
def _empty() -> None:
    cleaned.clear()


@handler
async def careful(node: Node[Any], name: str = "clean") -> None:
    try:
        await asyncio.Event().wait()
    finally:
        for _ in range(3):
            await asyncio.sleep(0)
        cleaned.append(name)


# --- a block in an async generator


async def stream(nodes: list[Node[Any]]) -> AsyncGenerator[int]:
    async with Commander(slow_after=None) as commander:
        nodes.append(commander.call_handler(careful()))
        for number in range(10):
            yield number


@pytest.mark.parametrize("how", ["aclose", "dropped", "another task"])
async def test_an_async_generator_that_is_closed_ends_its_tree(how: str) -> None:
    """The commander cancels and joins, as for any exception that leaves the block."""
    nodes: list[Node[Any]] = []
    before = asyncio.all_tasks()
    numbers = stream(nodes)
    async for number in numbers:
        if number == 2:
            await settle_loop()
            break
    if how == "aclose":
        await numbers.aclose()
    elif how == "another task":
        await asyncio.create_task(numbers.aclose())
    else:
        del numbers
        gc.collect()
        await settle_loop()
    assert cleaned == ["clean"]
    assert nodes[0].state == "cancelled"
    assert asyncio.all_tasks() == before


def test_a_block_on_a_loop_that_is_gone_waits_for_nothing() -> None:
    """Without a loop it cannot wait. The block closes silently."""
    nodes: list[Node[Any]] = []

    async def main() -> AsyncGenerator[int]:
        numbers = stream(nodes)
        await anext(numbers)
        return numbers

    loop = asyncio.new_event_loop()
    numbers = loop.run_until_complete(main())
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    closing: Any = numbers.aclose()
    with pytest.raises(StopIteration):
        closing.send(None)


# --- no new work after the tree is left


def next_round(ran: list[str], most: int = 50) -> Callable[[Node[Any]], None]:
    """Return a callback that puts another round beside the one that has ended."""

    @handler
    async def round_(node: Node[Any]) -> None:
        ran.append("ran")

    def put(node: Node[Any]) -> None:
        assert len(ran) < most
        node.call_handler(round_().at_done(put), parent=node.commander)

    return put


@pytest.mark.parametrize("how", ["exception", "cancel", "exit", "commander.cancel"])
def test_no_round_runs_once_the_tree_is_left(how: str) -> None:
    """Each round puts the next in `at_done`, and a clean-up puts another one."""

    async def main() -> int:
        ran: list[str] = []

        @handler
        async def late(node: Node[Any]) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                node.call_handler(give().at_done(next_round(ran)), parent=node.commander)

        async def block() -> None:
            async with Commander(slow_after=None) as commander:
                commander.call_handler(hang().at_done(next_round(ran)))
                commander.call_handler(late())
                await pause()
                if how == "exception":
                    raise ValueError
                if how == "exit":
                    commander.exit()
                if how == "commander.cancel":
                    commander.cancel()
                if how == "cancel":
                    await asyncio.Event().wait()

        task = asyncio.create_task(block())
        await pause(10)
        if how == "cancel":
            task.cancel()
        with suppress(ValueError, asyncio.CancelledError, NodeCancelled):
            await task
        return len(ran)

    assert {run_seeded(main, seed) for seed in range(30)} == {0}


# --- drain


def test_draining_fails_no_round_and_no_edge() -> None:
    """Their puts at the top are cancelled before they run. Puts from outside are refused."""

    async def main() -> tuple[Any, ...]:
        ran: list[str] = []
        ended: list[str] = []
        last = give("edge").at_done(lambda node: ended.append(f"edge {node.result}"))

        class Round(Job[str]):
            async def task(self) -> str:
                await turn_until(lambda: not record_of(self.commander).is_open)
                await pause()
                self.put_job(Late(), parent=self.commander)
                return "round"

        class Late(Job[None]):
            async def task(self) -> None:
                ran.append("late")

        async with Commander(slow_after=None) as commander:
            job = Round().at_done(next_round(ran))
            add_edge(job, last)
            commander.put_job(job)
            draining = asyncio.create_task(commander.drain())
            await turn_until(lambda: not record_of(commander).is_open)
            with pytest.raises(NodeClosed):
                commander.call_handler(give())
            assert await draining
        return job.state, job.result, ran, ended, last.state

    for seed in range(30):
        assert run_seeded(main, seed) == ("completed", "round", [], ["edge None"], "cancelled")


async def test_who_awaits_a_round_that_was_put_while_draining_is_told_why() -> None:
    """The awaiter receives a `NodeCancelled` with the reason "drain"."""

    @handler
    async def asks(node: Node[Any]) -> str:
        await asyncio.sleep(0)
        try:
            return await node.commander.run(give())
        except NodeCancelled as error:
            return error.reason

    async with asyncio.timeout(5), Commander(slow_after=None) as commander:
        node = commander.call_handler(asks())
        await commander.drain()
        assert await node == "drain"


# --- run


class Leaves(Job[None]):
    def __init__(self, where: str, leave: Callable[[], Any], depth: int = 1) -> None:
        self.where, self.leave, self.depth = where, leave, depth

    async def task(self) -> None:
        self.call_handler(careful(f"level {self.depth}"))
        await asyncio.sleep(0)
        if self.depth:
            await self.put_job(Leaves(self.where, self.leave, self.depth - 1))
        if self.where == "body":
            self.leave()
        if self.where == "callback":
            await self.call_handler(give().at_end(lambda node: self.leave()))
        if self.where == "late callback":

            async def later(node: Node[Any]) -> None:
                await asyncio.sleep(0)
                self.leave()

            await self.call_handler(give().at_end(later))


def interrupt() -> None:
    raise KeyboardInterrupt


def exit_3() -> None:
    sys.exit(3)


@pytest.mark.parametrize("leave", [interrupt, exit_3])
@pytest.mark.parametrize("where", ["body", "callback", "late callback"])
def test_an_interrupt_raised_in_a_node_leaves_run_after_every_clean_up(
    where: str, leave: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The status is kept, the log stays empty, and threads that wait for a future are answered."""
    futures: list[Future[Any]] = []

    def puts(node: Node[Any]) -> None:
        commander = node.commander
        thread = threading.Thread(
            target=lambda: futures.append(commander.call_handler_threadsafe(hang()))
        )
        thread.start()
        thread.join()

    with pytest.raises((KeyboardInterrupt, SystemExit)) as caught:
        run(Leaves(where, leave).at_start(puts), slow_after=None)
    if leave is exit_3:
        assert caught.value.code == 3
    assert sorted(cleaned) == ["level 0", "level 1"]
    with pytest.raises((NodeCancelled, NodeClosed)):
        futures[0].result(5)
    assert [record for record in caplog.records if record.name == "anabranch"] == []


def test_interrupts_that_clean_ups_raise_too_abandon_nothing() -> None:
    """`run` raises the first of the interrupts."""

    @handler
    async def leaves(node: Node[Any], code: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append("left")
            raise SystemExit(code) if code % 2 else KeyboardInterrupt

    @handler
    async def top(node: Node[Any]) -> None:
        for number in range(2, 6):
            node.call_handler(leaves(number))
        node.call_handler(careful())
        await asyncio.sleep(0)
        sys.exit(1)

    with pytest.raises(SystemExit) as caught:
        run(top(), slow_after=None)
    assert caught.value.code == 1
    assert sorted(cleaned) == ["clean", *["left"] * 4]


def test_a_thread_that_puts_until_the_end_is_always_answered() -> None:
    """Puts after the last turn of the loop are answered too."""
    futures: list[Future[Any]] = []
    stop = threading.Event()

    def storm(commander: Commander) -> None:
        while not stop.is_set():
            try:
                futures.append(commander.call_handler_threadsafe(give(1)))
            except NodeClosed:
                return

    threads: list[threading.Thread] = []

    @handler
    async def top(node: Node[Any]) -> None:
        threads.append(threading.Thread(target=storm, args=[node.commander]))
        threads[0].start()
        await wait_until(lambda: len(futures) >= 20)
        node.commander.exit()

    run(top(), slow_after=None)
    threads[0].join(20)
    stop.set()
    assert not threads[0].is_alive()
    for future in futures:
        assert isinstance(future.exception(5), NodeCancelled | NodeClosed | None)


@pytest.mark.parametrize("how", ["exit", "sys.exit", "open"])
def test_run_logs_the_failure_that_it_does_not_raise(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The job had failed when `exit` or an interrupt ended the rest."""

    @handler
    async def leaves(node: Node[Any], job: Node[Any]) -> None:
        await turn_until(lambda: job.state == "failed")
        if how == "sys.exit":
            sys.exit(4)
        node.commander.exit("left")

    job = fail(ValueError("lost?"))
    job.at_start(lambda node: node.call_handler(leaves(job), parent=node.commander))
    if how == "sys.exit":
        with pytest.raises(SystemExit):
            run(job, slow_after=None)
    else:
        assert run(job, auto_exit=how == "exit", slow_after=None) == "left"
    assert job.path in caplog.text
    assert caplog.text.count("ValueError: lost?") == 1


def test_a_body_that_waits_in_its_clean_up_is_silent_when_its_loop_is_thrown_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Code that runs during a later collection would otherwise receive the body's failure."""
    loop = asyncio.new_event_loop()

    async def leave_it_running() -> None:
        commander = Commander(slow_after=None)
        await commander.__aenter__()
        commander.call_handler(careful())
        await run_turns(3)

    loop.run_until_complete(leave_it_running())
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    del task
    gc.collect()
    assert [record for record in caplog.records if record.name == "anabranch"] == []
