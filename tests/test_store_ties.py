"""D5, D6: nodes that end in the turns in which a timer of the program runs out."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Any

import pytest
from _lives import Kill, Life, act, doubtful, play, require_consistent
from _scale import many, seeds

from anabranch.commander import Node
from anabranch.store import Durable, JournalMismatch

SECONDS = 1.0
WAYS = ["wait", "first", "as_completed", "shield", "timeout", "sleep", "zero", "deep"]


class Ends(Durable[int]):
    """Ends a few turns of the loop after so many seconds."""

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
    return await node


class Watches(Durable[list[str]]):
    """Does what depends on the jobs that had ended when a timer ran out."""

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


def require_one_way(life: Life, where: str) -> None:
    """Raise if the body has gone two ways, one in each execution."""
    did = sorted(text.split("(")[0] for text in life.disk.done.values())
    numbers = [each.split(":")[0] for each in did]
    assert len(set(numbers)) == len(numbers), f"{where}: {did}"
    if life.error is None:
        assert len(did) == len(life.result), f"{where}: {did} {life.result}"
    else:
        assert isinstance(life.error, JournalMismatch), where
        assert life.state == "parked"


PARKED: list[str] = []


def killed(make: Any, life: Life, rows: int, chance: random.Random) -> Life:
    done = frozenset(key for key in doubtful(life, rows) if chance.random() < 0.5)
    seed = chance.choice([None, chance.randrange(99)])
    again = play(make, Kill(rows, done).of(life), seed=seed)
    where = f"killed after row {rows} of {len(life.rows)}"
    require_one_way(again, where)
    if again.error is None:
        require_consistent(again, where)
    else:
        PARKED.append(str(again.error))
    return again


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", seeds(many(6, 300)))
def test_what_a_timer_cut_off_is_cut_off_again(seed: int, way: str) -> None:
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
    if count > 30:
        turns = chance.randrange(9)
        jobs = [(SECONDS, turns, False) for _ in range(count)]
    relays, pause = chance.randrange(3), chance.choice([0, 0, 1, 3, 12])
    make = lambda: Watches(way, jobs, relays, pause)  # noqa: E731
    first = play(make, seed=seed)
    assert first.error is None
    step = 1 if count < 30 else 7
    for rows in range(0, len(first.rows) + 1, step):
        again = killed(make, first, rows, chance)
        if again.error is None:
            killed(make, again, chance.randint(rows, len(again.rows)), chance)
