"""D5, D6: code that waits for the first of several nodes sees the same nodes after a restart."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support.killed_executions import (
    Execution,
    Kill,
    effects_in_doubt,
    kill_everywhere,
    require_consistent,
    run_execution,
)
from support.memory_journal import RUN_ID, act
from support.seeds import example_count, seeds

from anabranch.commander import Commander, Node, QuorumNotMet, quorum, settle
from anabranch.handlers import handler
from anabranch.store import Durable, DurableCalls, JournalMismatch
from anabranch.store._json import digest

pytestmark = pytest.mark.contract("D6")

# How a body waits for its jobs, and for how many turns of the loop each job runs: most end in the
# same turn. A number below 0 is a job that fails.
WAYS = ["first", "exception", "turns", "group", "settle", "quorum", "gathers", "deep"]


class Ends(Durable[int]):
    number: int
    turns: int

    async def task(self) -> int:
        for _ in range(abs(self.turns)):
            await asyncio.sleep(0)
        if self.turns > 1:
            await self.durable.step(take, self.turns)
        if self.turns < 0:
            raise ValueError(str(self.number))
        return self.number


async def take(turns: int) -> int:
    for _ in range(turns):
        await asyncio.sleep(0)
    return turns


@handler
async def quorum_of(node: Node[Any], turns: list[int]) -> list[int]:
    jobs = [node.put_job(Ends(number, each)) for number, each in enumerate(turns)]
    await asyncio.wait([asyncio.ensure_future(seen_of(job)) for job in jobs])
    return [number for number, job in enumerate(jobs) if job.state == "completed"]


async def seen_of(node: Awaitable[Any]) -> str:
    try:
        return str(await node)
    except Exception as error:
        return f"{type(error).__name__} {error}".split(" Commander")[0]


class Sees(Durable[list[Any]]):
    policy = "isolate"

    way: str
    turns: list[int]

    async def task(self) -> list[Any]:
        seen: list[Any] = []

        async def see(what: Any) -> None:
            seen.append(what)
            await act("saw", what)

        await self.wait(self.way, see)
        await self.durable.step(take, 1)
        return seen

    async def wait(self, way: str, see: Callable[[Any], Awaitable[None]]) -> None:
        if way == "quorum":
            await see(await seen_of(self.put_job_quorum()))
            return
        jobs = [
            self.put_job(Ends(number, turns), claim=True)
            if number % 3
            else self.durable.step(take, turns, key=str(number))
            if turns >= 0
            else self.put_job(Ends(number, turns), claim=True)
            for number, turns in enumerate(self.turns)
        ]
        match way:
            case "first" | "exception":
                tasks = {asyncio.ensure_future(seen_of(job)): n for n, job in enumerate(jobs)}
                when = asyncio.FIRST_COMPLETED if way == "first" else asyncio.FIRST_EXCEPTION
                left = set(tasks)
                while left:
                    done, left = await asyncio.wait(left, return_when=when)
                    await see(sorted(tasks[task] for task in done))
            case "turns":
                for each in asyncio.as_completed([seen_of(job) for job in jobs]):
                    await see(await each)
            case "group":
                try:
                    async with asyncio.TaskGroup() as group:
                        for number, job in enumerate(jobs):
                            group.create_task(self.follow(number, job, see))
                except* ValueError as failed:
                    await see(sorted(str(each) for each in failed.exceptions))
            case "settle":
                try:
                    await see(str(await settle(*jobs, at_least=len(jobs) // 2)))
                except QuorumNotMet as error:
                    await see(error.completed)
            case "gathers":
                halves = [jobs[::2], jobs[1::2]]
                left = {
                    asyncio.ensure_future(asyncio.gather(*each, return_exceptions=True)): number
                    for number, each in enumerate(halves)
                }
                done, _ = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                await see(sorted(left[each] for each in done))
                await asyncio.wait(left)
            case _:
                tasks = {asyncio.create_task(self.deep(job, n)): n for n, job in enumerate(jobs)}
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                await see(sorted(tasks[task] for task in done))
                await asyncio.wait(tasks)

    def put_job_quorum(self) -> Node[list[int]]:
        return self.call_handler(quorum_of(self.turns), policy=quorum(2), claim=True)

    async def follow(
        self, number: int, job: Node[Any], see: Callable[[Any], Awaitable[None]]
    ) -> None:
        await see([number, await job])

    async def deep(self, job: Node[Any], depth: int) -> str:
        if depth:
            return await asyncio.create_task(self.deep(job, depth - 1))
        return await seen_of(job)


def ended(execution: Execution, rows: int) -> int:
    """Return how many nodes had ended or were cancelled after this number of rows."""
    kept = execution.rows[:rows]
    cancelled = [json.loads(row.value)["whom"] for row in kept if row.kind == "cancelled"]
    return sum(row.kind in ("result", "failure") for row in kept) + sum(map(len, cancelled))


def killed(
    make: Callable[[], Sees], execution: Execution, rows: int, chance: random.Random, **options: Any
) -> Execution:
    """Kill a run after this number of rows and resume it; require the same course."""
    done = frozenset(key for key in effects_in_doubt(execution, rows) if chance.random() < 0.5)
    seed = chance.choice([None, chance.randrange(99)])
    again = run_execution(make, Kill(rows, done).of(execution), seed=seed, **options)
    where = f"killed after row {rows} of {len(execution.rows)}"
    assert again.error is None, where
    require_consistent(again, where)
    # All were seen before the kill.
    told = {key: text for key, text in execution.disk.done.items() if key in known(execution, rows)}
    assert told.items() <= again.disk.done.items(), where
    assert len(again.disk.done) == len(again.result), where
    if ended(execution, rows) >= len(make().turns):
        assert again.result == execution.result, where
    return again


def known(execution: Execution, rows: int) -> set[str]:
    """Return the keys of the effects whose end is among the first rows."""
    gave = [row.ident for row in execution.rows[:rows] if row.kind == "gave"]
    return {digest(RUN_ID, ident).hex() for ident in gave}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", seeds(example_count(6, 300)))
def test_what_ended_together_is_seen_alike_after_a_restart(seed: int, way: str) -> None:
    """Jobs and steps that end in one turn of the loop, or a few turns apart; some fail.

    Under a limit, their waiters may have to wait for a slot as well.
    """
    chance = random.Random(f"{seed} {way}")
    limit = chance.choice([None, 1, 1, 2, 3])
    options = {"around": lambda: Commander(max_concurrency=limit)} if limit else {}
    turns = [chance.choice([0, 0, 1, 1, 2, 7, -1, -3]) for _ in range(chance.randint(2, 5))]
    if way == "exception":
        turns = [abs(each) for each in turns]
    make = lambda: Sees(way, turns)  # noqa: E731
    first = run_execution(make, seed=seed, **options)
    assert first.error is None
    for rows in range(len(first.rows) + 1):
        again = killed(make, first, rows, chance, **options)
        killed(make, again, chance.randint(rows, len(again.rows)), chance, **options)


# --- nodes that timed out in an earlier execution, and were killed in their clean-up


class Late(Durable[str]):
    number: int

    async def task(self) -> str:
        return await be_late(self.number)


@handler
async def late(node: Node[Any], number: int) -> str:
    return await be_late(number)


async def be_late(number: int) -> str:
    try:
        await asyncio.sleep(10)
    finally:
        await act("cleaned up", number)
        await act("cleaned up again", number)
    return "not late"


class Nested(Durable[str]):
    number: int
    kept: bool
    pause: float

    async def task(self) -> str:
        return str(await put_late(self, self.number, self.kept, self.pause))


async def put_late(node: Node[Any], number: int, kept: bool, pause: float) -> str:
    """Put a job that is late; await it at once, or after some turns or seconds."""
    timeout = number / 10 + 1
    below: Node[str] = (
        node.put_job(Late(number), timeout=timeout)
        if kept
        else node.call_handler(late(number), timeout=timeout)
    )
    if pause >= 1:
        for _ in range(int(pause)):
            await asyncio.sleep(0)
    elif pause:
        await DurableCalls(node).sleep(pause)
    return await seen_of(below)


class Awaits(Durable[list[str]]):
    way: str
    kept: bool
    pause: float

    async def task(self) -> list[str]:
        if self.way == "nested":
            below = [self.put_job(Nested(n, self.kept, self.pause)) for n in range(2)]
            return [await each for each in below]
        if self.way in ("gather", "settle"):
            jobs = [
                self.put_job(Late(n), timeout=n / 10 + 1)
                if self.kept
                else self.call_handler(late(n), timeout=n / 10 + 1)
                for n in range(2)
            ]
            if self.way == "settle":
                return [type(each).__name__ for each in await settle(*jobs)]
            given = await asyncio.gather(*jobs, return_exceptions=True)
            return [type(each).__name__ for each in given]
        tasks = [asyncio.create_task(put_late(self, n, self.kept, self.pause)) for n in range(2)]
        seen: list[str] = []
        left = set(tasks)
        while left:
            done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            seen += [f"{tasks.index(each)} {each.result()}" for each in done]
            await act("saw", len(seen))
        return seen


@pytest.mark.parametrize("pause", [0, 8, 40, 0.3])
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("way", ["gather", "settle", "nested", "wait"])
def test_a_timeout_reaches_whoever_awaits_the_node(way: str, kept: bool, pause: float) -> None:
    """Also after a kill in the clean-up: the run does not fail because of it."""
    first = kill_everywhere(lambda: Awaits(way, kept, pause), seeds=(None, 1), same_effects=False)
    assert first.error is None
    assert len(first.result) == 2


# --- timers of the program

SECONDS = {"timer": 1.0, "job": 2.0}


class Slow(Durable[int]):
    seconds: float

    async def task(self) -> int:
        await self.durable.sleep(self.seconds)
        return 1


@handler
async def slow(node: Node[Any], seconds: float) -> int:
    return await DurableCalls(node).step(take_seconds, seconds)


async def take_seconds(seconds: float) -> int:
    await asyncio.sleep(seconds)
    return 1


async def by_timeout(job: Node[Any], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        await job


async def by_wait_for(job: Node[Any], seconds: float) -> None:
    await asyncio.wait_for(job, seconds)


async def by_shield(job: Node[Any], seconds: float) -> None:
    task = asyncio.create_task(seen_of(job))
    await asyncio.wait_for(asyncio.shield(task), seconds)


async def by_wait(job: Node[Any], seconds: float) -> None:
    done, _ = await asyncio.wait([asyncio.create_task(seen_of(job))], timeout=seconds)
    if not done:
        raise TimeoutError


async def by_first(job: Node[Any], seconds: float) -> None:
    task, timer = asyncio.create_task(seen_of(job)), asyncio.create_task(asyncio.sleep(seconds))
    await asyncio.wait([task, timer], return_when=asyncio.FIRST_COMPLETED)
    if not task.done():
        raise TimeoutError
    timer.cancel()


async def by_as_completed(job: Node[Any], seconds: float) -> None:
    for each in asyncio.as_completed([seen_of(job)], timeout=seconds):
        await each


IN_TIME: dict[str, Callable[[Node[Any], float], Awaitable[None]]] = {
    "timeout": by_timeout,
    "wait_for": by_wait_for,
    "shield": by_shield,
    "wait": by_wait,
    "first": by_first,
    "as_completed": by_as_completed,
}


class Acts(Durable[str]):
    name: str

    async def task(self) -> str:
        return await self.call_handler(acts(self.name))


@handler
async def acts(node: Node[Any], name: str) -> str:
    return await act(name)


class Hurries(Durable[list[str]]):
    """Takes another course if a job takes longer than a timer, which no journal records."""

    seconds: float
    kept: bool
    way: str
    deep: bool = False

    async def task(self) -> list[str]:
        job: Node[int] = (
            self.put_job(Slow(self.seconds), claim=True)
            if self.kept
            else self.call_handler(slow(self.seconds), claim=True)
        )
        try:
            await IN_TIME[self.way](job, SECONDS["timer"])
        except TimeoutError:
            await (self.put_job(Acts("refund")) if self.deep else act("refund"))
            await asyncio.sleep(0.5)
            done = "late"
        else:
            await (self.put_job(Acts("ship")) if self.deep else act("ship"))
            done = "in time"
        await asyncio.wait([asyncio.create_task(seen_of(job))])
        return [done, await act("end")]


@pytest.mark.parametrize("way", ["shield", "wait", "first", "as_completed"])
@pytest.mark.parametrize("seconds", [0.5, 2.0])
@pytest.mark.parametrize("deep", [False, True])
def test_a_timer_that_cancels_nothing_goes_as_before(way: str, seconds: float, deep: bool) -> None:
    """A job that had not ended before the timer does not end before it now."""
    first = kill_everywhere(lambda: Hurries(seconds, True, way, deep))
    assert first.result[0] == ("in time" if seconds < 1 else "late")


class Turns(Durable[list[str]]):
    """Takes another course if the next round takes longer than a timer."""

    async def task(self) -> list[str]:
        tasks = [asyncio.create_task(seen_of(self.put_job(Slow(2.0), parent=self.commander)))]
        done, _ = await asyncio.wait(tasks, timeout=1.0)
        saw = await act("ship" if done else "refund")
        await asyncio.wait(tasks)
        return [saw, await act("end")]


def test_a_timer_goes_as_before_where_it_is_for_a_round() -> None:
    """The round is outside the tree of the job that waits for it."""
    assert kill_everywhere(Turns).result[0].startswith("refund")


class Waits(Durable[str]):
    """Waits long for a job, after a call that an edit removes."""

    way: str

    async def task(self) -> str:
        job = self.put_job(Slow(5), claim=True)
        if CALLS:
            await act("log", 1)
        await IN_TIME[self.way](job, 3600.0)
        return await act("ship")


CALLS: list[bool] = []


@pytest.mark.parametrize("way", ["shield", "wait", "first", "as_completed"])
def test_a_call_that_was_taken_away_makes_no_wait_time_out(way: str) -> None:
    """It came too soon after the call before for the timer to have fired."""
    CALLS.append(True)
    first = run_execution(lambda: Waits(way))
    CALLS.clear()
    for rows in range(len(first.rows) + 1):
        left = Kill(rows, frozenset(effects_in_doubt(first, rows))).of(first)
        execution = run_execution(lambda: Waits(way), left)
        assert execution.outcome == first.outcome, rows
        assert execution.disk.now < first.disk.now + 60


class Tries(Durable[list[str]]):
    """Lets a job pay, and pays itself if that takes too long."""

    way: str

    async def task(self) -> list[str]:
        job = self.put_job(Pays())
        try:
            await IN_TIME[self.way](job, 1.0)
        except TimeoutError:
            return [await act("pay"), await job]
        return [await job]


class Pays(Durable[str]):
    async def task(self) -> str:
        await asyncio.sleep(SECONDS["job"])
        return await act("pay")


@pytest.mark.parametrize("way", [*IN_TIME])
def test_a_call_waits_for_a_timer_behind_which_the_recorded_one_is(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unchanged code is not parked, although the job reaches its call before the timer fires.

    This also holds if the journal has only that one call.
    """
    first = run_execution(lambda: Tries(way))
    assert first.error is None
    monkeypatch.setitem(SECONDS, "job", 0.5)
    intent = next(row.seq for row in first.rows if row.kind == "intent")
    for rows in range(intent, len(first.rows) + 1):
        execution = run_execution(
            lambda: Tries(way), Kill(rows, frozenset(effects_in_doubt(first, rows))).of(first)
        )
        assert (execution.outcome, execution.disk.done) == (first.outcome, first.disk.done), rows


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("seconds", [0.5, 2.0])
@pytest.mark.parametrize(
    ("way", "later"),
    [
        ("timeout", 1.0),
        ("timeout", 0.0),
        ("timeout", 100.0),
        ("wait_for", 1.0),
        ("wait_for", 100.0),
    ],
)
def test_a_timer_with_another_outcome_leads_to_no_other_effect(
    way: str, kept: bool, seconds: float, later: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same outcome the run continues; else it is parked before any effect."""
    first = run_execution(lambda: Hurries(seconds, kept, way))
    monkeypatch.setitem(SECONDS, "timer", later)
    for rows in range(len(first.rows) + 1):
        execution = run_execution(
            lambda: Hurries(seconds, kept, way),
            Kill(rows, frozenset(effects_in_doubt(first, rows))).of(first),
        )
        did = {text.split("(")[0] for text in execution.disk.done.values()}
        assert not {"ship", "refund"} <= did, f"killed after row {rows}"
        if isinstance(execution.error, JournalMismatch):
            assert execution.state == "parked"
            # With the same timer, the recorded rows lead the same way.
            assert later != 1.0 or not kept
        else:
            assert execution.error is None
            assert later != 1.0 or execution.result == first.result
