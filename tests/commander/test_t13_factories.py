"""T13: bodies run the same under any task factory of the loop."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Generator
from contextlib import AsyncExitStack, contextmanager
from typing import Any

import pytest
from support.broken_objects import FACTORIES, leaving
from support.nodes import give, hang
from support.waiting import run_turns

from anabranch.commander import Commander, Node, NodeCancelled, Retry, current_node, run
from anabranch.commander._record import record_of
from anabranch.handlers import handler
from anabranch.jobs import Job

pytestmark = pytest.mark.contract("T13")


@contextmanager
def task_factory(factory: Any) -> Generator[None]:
    loop = asyncio.get_running_loop()
    loop.set_task_factory(factory)
    try:
        yield
    finally:
        loop.set_task_factory(None)


class Everything(Job[list[str]]):
    """A job with handlers and jobs that use every feature of a node."""

    async def task(self) -> list[str]:
        said: list[str] = []
        started = [False]

        class Flaky(Job[str]):
            tries = 0

            async def task(self) -> str:
                assert current_node() is self
                assert started[0], "the body began inside the call that put it"
                Flaky.tries += 1
                if Flaky.tries < 3:
                    raise ValueError("again")
                return "flaky"

        flaky = self.put_job(Flaky(), retry=Retry(attempts=3), timeout=50)
        flaky.at_start(lambda node: said.append("start"))
        started[0] = True

        async def later(node: Node[Any]) -> None:
            await asyncio.sleep(0)
            said.append(f"late {node.state}")

        slow = self.call_handler(hang(), timeout=0.001, claim=True).at_exception(later)
        cancelled = self.call_handler(hang(), claim=True).at_done(later)
        cancelled.cancel()
        urgent = self.put_job(Flaky(), priority=2, retry=Retry(attempts=3), claim=True)
        said.append(await flaky)
        for node in (slow, cancelled):
            try:
                await node
            except (TimeoutError, NodeCancelled) as error:
                said.append(type(error).__name__)
        await urgent
        said.append(await give("adopted"))
        said.append(await self.in_thread("thread".lower))
        return said


EXPECTED = {"start", "flaky", "late joining", "TimeoutError", "NodeCancelled", "adopted", "thread"}


@pytest.mark.parametrize("limit", [None, 1])
@pytest.mark.parametrize("name", FACTORIES)
async def test_a_tree_runs_under_any_task_factory_as_without_one(
    name: str, limit: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    """A factory that fails is skipped, and logged once."""
    before = asyncio.all_tasks()
    with task_factory(FACTORIES[name]):
        async with asyncio.timeout(20), Commander(max_concurrency=limit) as commander:
            said = await commander.run(Everything())
    assert {*said} == EXPECTED
    assert len(caplog.records) == (name in ("raising", "future", "nothing"))
    await run_turns(3)
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize("name", ["plain", "wrapping", "eager"])
async def test_a_task_factory_makes_the_task_of_every_node(name: str) -> None:
    """Jobs, handlers and async callbacks all use the factory, so a tracer sees them."""
    made: list[Any] = []

    def tracing(loop: Any, body: Any, **options: Any) -> Any:
        made.append(body)
        return FACTORIES[name](loop, body, **options)

    async def later(node: Node[Any]) -> None:
        await asyncio.sleep(0)

    with task_factory(tracing):
        async with asyncio.timeout(5), Commander() as commander:
            await commander.run(give().at_done(later))
    assert len(made) == 2


@pytest.mark.parametrize("name", FACTORIES)
async def test_callbacks_may_be_added_after_the_call_under_any_task_factory(name: str) -> None:
    """The body begins on a later turn, in a separate task."""
    tasks: list[Any] = []

    @handler
    async def body(node: Node[Any]) -> None:
        tasks.append(asyncio.current_task())

    with task_factory(FACTORIES[name]):
        async with asyncio.timeout(5), Commander() as commander:
            node = commander.call_handler(body())
            assert node.state == "pending"
            assert not tasks
            node.at_start(lambda node: tasks.append("start"))
            await node
    assert tasks[0] == "start"
    assert tasks[1] not in (None, asyncio.current_task())


@pytest.mark.parametrize("name", [*FACTORIES, "leaving"])
def test_any_moment_of_a_cancel_ends_a_tree_under_any_task_factory(name: str) -> None:
    """The tree or other code cancels the tasks. Some factories leave bodies behind."""
    chance = random.Random(name)

    @handler
    async def branch(node: Node[Any], depth: int) -> None:
        if depth:
            node.call_handler(branch(depth - 1))
            node.call_handler(branch(depth - 1))
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)

    async def main(moment: int, behind: bool) -> list[Node[Any]]:
        nodes: list[Node[Any]] = []
        factory = {**FACTORIES, "leaving": leaving}[name]
        with task_factory(factory):
            await play(moment, behind, nodes)
        return nodes

    async def play(moment: int, behind: bool, nodes: list[Node[Any]]) -> None:
        async with asyncio.timeout(20), Commander(slow_after=None) as commander:
            nodes.append(commander.call_handler(branch(2)))
            await run_turns(moment)
            nodes += [each for node in commander.children for each in node.children]
            if behind:
                for node in nodes:
                    if record_of(node).task is not None:
                        record_of(node).task.cancel()
            await run_turns(chance.randrange(3))
            commander.exit()

    for moment in range(6):
        for behind in (False, True):
            nodes = asyncio.run(main(moment, behind))
            assert {node.state for node in nodes} <= {"cancelled", "failed"}


@pytest.mark.parametrize("name", FACTORIES)
async def test_a_task_factory_may_come_and_go_while_a_commander_lives(name: str) -> None:
    """The tree behaves the same before and after."""
    async with asyncio.timeout(5), Commander() as commander:
        with task_factory(FACTORIES[name]):
            assert await commander.run(give(1)) == 1
    async with AsyncExitStack() as stack:
        with task_factory(FACTORIES[name]):
            commander = await stack.enter_async_context(Commander())
        assert await commander.run(give(2)) == 2


@pytest.mark.parametrize("name", FACTORIES)
def test_run_works_with_a_loop_that_has_any_task_factory(name: str) -> None:
    """Callbacks at the commander's end run too."""
    ended: list[str] = []

    def new_loop() -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        loop.set_task_factory(FACTORIES[name])
        return loop

    async def later(node: Node[Any]) -> None:
        ended.append(node.state)

    assert run(give(3).at_commander_end(later), loop_factory=new_loop) == 3
    assert ended == ["completed"]
