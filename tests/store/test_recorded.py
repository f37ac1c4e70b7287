"""Nodes with a recorded outcome end without a task, and as if they had run."""

import asyncio
import gc
import random
import weakref
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

import anyio
import pytest
from support.killed_executions import kill_everywhere
from support.memory_journal import act
from support.seeds import example_count, seeds

from anabranch import current_node
from anabranch.store import Durable, Journal, Live, live

pytestmark = pytest.mark.contract("D4")

SAID: ContextVar[str] = ContextVar("said", default="nothing")


class Child(Durable[int]):
    number: int

    async def task(self) -> int:
        return self.number


class Parent(Durable[int]):
    log: Live[list[str]] = live()
    cancels: Live[bool] = live()

    async def task(self) -> int:
        SAID.set("hello")
        children = [self.put_job(Child(number)) for number in range(250)]
        for child in children[:2]:
            child.at_end(self.note)
        SAID.set("bye")
        if self.cancels:
            children[3].cancel("no more")
            self.log.append(f"{await children[3]}")
            return 0
        total = sum([await child for child in children])
        await self.durable.signal("go", str)
        return total

    def note(self, child: Child) -> None:
        assert current_node() is child
        self.log.append(f"{child.number} {SAID.get()}")


async def _two_lives(file: str, *, cancels: bool) -> tuple[list[str], int]:
    log: list[str] = []
    async with Journal(file) as journal:
        given = {"log": log, "cancels": False}
        first = asyncio.create_task(journal.run(Parent(), run_id="r", live=given))
        while not [run for run in await journal.runs() if run.rows > 250]:  # noqa: ASYNC110 - of the disk
            await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        log.clear()
        await journal.signal("r", "go", "on")
        given["cancels"] = cancels
        return log, await journal.run(Parent(), run_id="r", live=given)


async def test_final_callbacks_of_a_recorded_node_run_in_its_own_context(tmp_path):
    """They see the context of the put and the node, although it runs without a task."""
    assert await _two_lives(str(tmp_path / "a.db"), cancels=False) == (
        ["0 hello", "1 hello"],
        sum(range(250)),
    )


async def test_a_recorded_node_that_is_cancelled_before_its_turn_has_its_result(tmp_path):
    """It had completed before the cancel; the others end, and so does the run."""
    log, total = await _two_lives(str(tmp_path / "a.db"), cancels=True)

    assert (sorted(log), total) == (["0 hello", "1 hello", "3"], 0)


async def test_a_step_does_not_keep_its_function():
    """The codec of its result is released with it."""

    class Calls(Durable[int]):
        log: Live[list[weakref.ref[object]]] = live()

        async def task(self) -> int:
            async def call() -> int:
                return 1

            self.log.append(weakref.ref(call))
            return await self.durable.step(call)

    log: list[weakref.ref[object]] = []
    async with Journal(":memory:") as journal:
        assert await journal.run(Calls(), run_id="r", live={"log": log}) == 1
    gc.collect()
    assert log[0]() is None


class Runner(Durable[str]):
    name: str
    seconds: float
    fails: bool

    async def task(self) -> str:
        await self.durable.sleep(self.seconds)
        await act("ran", self.name)
        if self.fails:
            raise ValueError(self.name)
        return self.name


async def by_wait(runners: list[Awaitable[str]], see: Callable[[str], Awaitable[str]]) -> None:
    tasks = [asyncio.ensure_future(runner) for runner in runners]
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        await see(str(task.exception() or task.result()))
    await asyncio.wait(tasks)
    for task in tasks:
        task.exception()


async def by_turns(runners: list[Awaitable[str]], see: Callable[[str], Awaitable[str]]) -> None:
    for each in asyncio.as_completed([asyncio.ensure_future(runner) for runner in runners]):
        try:
            await see(await each)
        except ValueError as error:
            await see(f"{error} failed")


async def by_group(runners: list[Awaitable[str]], see: Callable[[str], Awaitable[str]]) -> None:
    async def follow(runner: Awaitable[str]) -> None:
        await see(await runner)

    try:
        async with asyncio.TaskGroup() as group:
            for runner in runners:
                group.create_task(follow(runner))
    except* ValueError as failed:
        await see(str([str(error) for error in failed.exceptions]))


async def by_scope(runners: list[Awaitable[str]], see: Callable[[str], Awaitable[str]]) -> None:
    async def follow(runner: Awaitable[str]) -> None:
        try:
            seen.append(await runner)
        except ValueError as error:
            seen.append(f"{error} failed")
        group.cancel_scope.cancel()

    seen: list[str] = []
    async with anyio.create_task_group() as group:
        for runner in runners:
            group.start_soon(follow, runner)
    await see(str(seen))


class Race(Durable[list[str]]):
    runners: list[tuple[str, float, bool]]
    how: str

    async def task(self) -> list[str]:
        ways = {"wait": by_wait, "turns": by_turns, "group": by_group, "scope": by_scope}
        seen: list[str] = []

        async def see(name: str) -> str:
            seen.append(name)
            return await act("saw", name)

        await ways[self.how](
            [self.put_job(Runner(*each), claim=True) for each in self.runners], see
        )
        return seen


@pytest.mark.parametrize("how", ["wait", "turns", "group", "scope"])
@pytest.mark.parametrize("seed", seeds(example_count(3, 200)))
def test_whoever_waits_for_the_first_of_several_sees_the_same_first(seed: int, how: str) -> None:
    """Also if all of them had ended before the process died, or could end at once."""
    draw = random.Random(seed)
    times = draw.sample(range(1, 100), draw.randint(2, 4))
    runners = [(f"{number}", time / 10, draw.random() < 0.3) for number, time in enumerate(times)]
    kill_everywhere(lambda: Race(runners, how), seeds=(None, seed))


class Gathered(Durable[int]):
    turns: Live[list[int]] = live()

    async def task(self) -> int:
        async def count() -> None:
            while True:
                self.turns[-1] += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        total = sum(await asyncio.gather(*[self.put_job(Child(number)) for number in range(100)]))
        counting.cancel()
        await self.durable.signal("go", str)
        return total


async def test_what_one_gather_waits_for_ends_at_once() -> None:
    """And not one after the other: `gather` sees no order."""
    turns = [0]
    async with Journal(":memory:") as journal:
        first = asyncio.create_task(journal.run(Gathered(), run_id="r", live={"turns": turns}))
        async with asyncio.timeout(60):
            while not (await journal.runs() and (await journal.look("r")).waits):  # noqa: ASYNC110 - of the disk
                await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        turns.append(0)
        await journal.signal("r", "go", "on")
        assert await journal.run(Gathered(), run_id="r", live={"turns": turns}) == sum(range(100))
    assert turns[1] < 30
