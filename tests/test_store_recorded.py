"""How nodes end whose outcome a journal has: without a task, and as if they had run."""

import asyncio
import gc
import weakref
from contextvars import ContextVar

from anabranch import current_node
from anabranch.store import Durable, Journal, Live, live

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
    """They see the context of its put, and are in the node, though it has no task."""
    assert await _two_lives(str(tmp_path / "a.db"), cancels=False) == (
        ["0 hello", "1 hello"],
        sum(range(250)),
    )


async def test_a_recorded_node_that_is_cancelled_before_its_turn_has_its_result(tmp_path):
    """It had completed before anybody cancelled it; the others end, and so does the run."""
    log, total = await _two_lives(str(tmp_path / "a.db"), cancels=True)

    assert (sorted(log), total) == (["0 hello", "1 hello", "3"], 0)


async def test_a_step_does_not_keep_its_function():
    """What is known of how its result is written goes with it."""

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
