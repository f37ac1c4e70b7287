"""D5, D6: nodes that end close to a timer of the program."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Any

import pytest
from support.killed_executions import (
    Execution,
    Kill,
    effects_in_doubt,
    require_consistent,
    run_execution,
)
from support.memory_journal import act
from support.seeds import example_count, seeds

from anabranch.commander import Node, NodeCancelled
from anabranch.handlers import handler
from anabranch.store import Durable
from anabranch.store._completion_order import CompletionOrder

pytestmark = pytest.mark.contract("D6")

SECONDS = 1.0
WAYS = ["wait", "first", "as_completed", "shield", "timeout", "sleep", "zero", "deep"]


class Ends(Durable[int]):
    """Ends a few turns of the loop after a number of seconds."""

    number: int
    seconds: float
    turns: int
    steps: bool

    async def task(self) -> int:
        await asyncio.sleep(self.seconds)
        for _ in range(self.turns):
            await asyncio.sleep(0)
        if self.steps:
            await self.durable.step(take, 1)
        return self.number


async def take(turns: int) -> int:
    for _ in range(turns):
        await asyncio.sleep(0)
    return turns


async def relayed(node: Node[int], relays: int) -> int:
    if relays:
        return await asyncio.create_task(relayed(node, relays - 1))
    try:
        return await node
    except NodeCancelled:  # the run is suspended, and the body does not reach this task
        return -1


class Watches(Durable[list[str]]):
    """Acts by the jobs that had ended when a timer fired."""

    way: str
    jobs: list[tuple[float, int, bool]]
    relays: int
    pause: int

    async def task(self) -> list[str]:
        jobs = [self.put_job(Ends(n, *job), claim=True) for n, job in enumerate(self.jobs)]
        tasks = [asyncio.create_task(relayed(job, self.relays)) for job in jobs]
        seen: list[str] = []
        for number in range(3):
            if self.way == "deep":
                await asyncio.create_task(self.until_late("wait", tasks))
            else:
                await self.until_late(self.way, tasks)
            done = [str(task.result()) for task in tasks if task.done()]
            saw = f"saw {number}: {'-'.join(done)}"
            seen.append(await act(saw, saw))
            for _ in range(self.pause):
                await asyncio.sleep(0)
        await asyncio.wait(tasks)
        seen.append(await act("end"))
        return seen

    async def until_late(self, way: str, tasks: list[asyncio.Task[int]]) -> None:
        left = [task for task in tasks if not task.done()]
        if not left:
            return
        match way:
            case "wait":
                await asyncio.wait(left, timeout=SECONDS)
            case "first":
                await asyncio.wait(left, timeout=SECONDS, return_when=asyncio.FIRST_COMPLETED)
            case "as_completed":
                with suppress(TimeoutError):
                    for each in asyncio.as_completed(left, timeout=SECONDS):
                        await each
            case "shield":
                with suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(left[-1]), SECONDS)
            case "timeout":
                with suppress(TimeoutError):
                    async with asyncio.timeout(SECONDS):
                        await asyncio.wait(left)
            case "sleep":
                await asyncio.sleep(SECONDS)
            case _:
                with suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(left[-1]), 0)


def require_one_way(execution: Execution, where: str) -> None:
    """Require that the body took the same course in both executions, and was not parked."""
    assert execution.error is None, where
    did = sorted(text.split("(")[0] for text in execution.disk.done.values())
    numbers = [each.split(":")[0] for each in did]
    assert len(set(numbers)) == len(numbers), f"{where}: {did}"
    assert len(did) == len(execution.result), f"{where}: {did} {execution.result}"
    require_consistent(execution, where)


def killed(make: Any, execution: Execution, rows: int, chance: random.Random) -> Execution:
    done = frozenset(key for key in effects_in_doubt(execution, rows) if chance.random() < 0.5)
    seed = chance.choice([None, chance.randrange(99)])
    again = run_execution(make, Kill(rows, done).of(execution), seed=seed)
    where = f"killed after row {rows} of {len(execution.rows)}"
    require_one_way(again, where)
    return again


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", seeds(example_count(1, 300)))
def test_what_a_timer_cut_off_is_cut_off_again(seed: int, way: str) -> None:
    """Jobs end a few turns before or after the timer, or in crowds: no execution differs.

    Some ways check whether a job is done without waiting for it.
    """
    chance = random.Random(f"{seed} {way}")
    count = chance.choice([1, 2, 3, 5])
    if chance.random() < 0.1:
        count = chance.choice([31, 32, 33, 34, 40])
    jobs = [
        (
            chance.choice([0.0, 0.5, SECONDS, SECONDS, SECONDS, 2 * SECONDS]),
            chance.randrange(9),
            chance.random() < 0.3,
        )
        for _ in range(count)
    ]
    if count > 5:  # a crowd ends in one turn
        jobs = [(SECONDS, chance.randrange(9), False)] * count
    relays, pause = chance.randrange(3), chance.choice([0, 0, 1, 3, 12])
    make = lambda: Watches(way, jobs, relays, pause)  # noqa: E731
    first = run_execution(make, seed=seed)
    assert first.error is None
    for rows in range(0, len(first.rows) + 1, 1 if count <= 5 else 7):
        again = killed(make, first, rows, chance)
        killed(make, again, chance.randint(rows, len(again.rows)), chance)


# --- nodes that are put at other places of the tree


class Rounds(Durable[list[str]]):
    """Waits for the first of its child job and a round, which end in the same turn."""

    turns: int

    async def task(self) -> list[str]:
        tasks = [
            asyncio.create_task(relayed(self.put_job(Ends(0, 1.0, 1, False)), 0)),
            asyncio.create_task(
                relayed(self.put_job(Ends(1, 1.0, self.turns, False), parent=self.commander), 0)
            ),
        ]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        saw = f"saw {[tasks.index(each) for each in done]}"
        seen = [await act(saw, saw)]
        await asyncio.wait(tasks)
        return seen


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
def test_a_round_and_a_job_of_its_putter_end_one_after_the_other(turns: int) -> None:
    first = run_execution(lambda: Rounds(turns))
    for rows in range(len(first.rows) + 1):
        execution = run_execution(
            lambda: Rounds(turns), Kill(rows, frozenset(effects_in_doubt(first, rows))).of(first)
        )
        assert len(execution.disk.done) == 1, rows
        assert (execution.error, execution.result) == (None, [*execution.disk.done.values()]), rows


class Fails(Durable[None]):
    async def task(self) -> None:
        await asyncio.sleep(1)
        raise ValueError("refused")


AWAITS: list[bool] = []


@handler
async def puts(node: Node[Any]) -> None:
    job = node.put_job(Fails(), parent=node.parent)
    if AWAITS:
        with suppress(ValueError):
            await job


class Hosts(Durable[list[str]]):
    """Has a handler put a job below it, and looks at that job later."""

    policy = "isolate"

    async def task(self) -> list[str]:
        await self.call_handler(puts())
        jobs = [each for each in self.children if isinstance(each, Fails)]
        await asyncio.sleep(2)
        return [each.state for each in jobs]


def test_a_failure_waits_for_its_putter_and_not_for_its_parent() -> None:
    """An edit removed the wait: once the putter has returned, no task comes to await the job."""
    AWAITS.append(True)
    first = run_execution(Hosts)
    AWAITS.clear()
    ended = next(row.seq for row in first.rows if row.kind == "failure")
    assert run_execution(Hosts, Kill(ended, frozenset()).of(first)).result == ["failed"]


# --- errors inside


@pytest.mark.parametrize("where", ["may_end", "_end_next", "_until_timed_out"])
def test_a_run_fails_if_an_end_cannot_be_ordered(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is suspended with the error, and no node is left pending."""
    make = lambda: Watches("wait", [(0.5, 0, False), (2.0, 0, False)], 0, 0)  # noqa: E731
    first = run_execution(make)
    ended = [row.seq for row in first.rows if row.kind == "result"][1]
    disk = Kill(ended, frozenset()).of(first) if where == "_until_timed_out" else None

    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    with monkeypatch.context() as patch:
        patch.setattr(CompletionOrder, where, broken)
        execution = run_execution(make, disk)
    assert isinstance(execution.error, RuntimeError), execution.error
    require_one_way(
        run_execution(make, Kill(len(execution.rows), frozenset()).of(execution)), where
    )
