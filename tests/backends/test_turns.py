"""Turns in several limits at once: for any drawn case, no limit is passed and nothing remains."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.clock import sleep_virtual, virtual_time
from support.waiting import run_turns, settle_loop

from anabranch.backends import Limits
from anabranch.backends.limits import Turn, TurnLimits, turn_in
from anabranch.commander import BudgetExceeded
from anabranch.messages import Usage
from anabranch.testing import SeededLoop

pytestmark = pytest.mark.contract("B2")


@dataclass(frozen=True)
class Ask:
    """A request: its needs, its end, and the second and turn of its cancel."""

    at: int
    needs: tuple[int, ...]  # which of the limits
    estimate: int
    takes: int
    distant: bool  # whether it also needs the first limits, which are remote
    end: str
    used: int
    cancel: tuple[int, int] | None


LIMITS = st.builds(
    Limits,
    requests_per_minute=st.none() | st.integers(1, 4),
    tokens_per_minute=st.none() | st.integers(10, 40),
    concurrency=st.none() | st.integers(1, 3),
    budget=st.none() | st.integers(10, 100),
)
# Whole seconds, so that much falls into one turn of the loop.
SECONDS = st.integers(0, 30)
ASKS = st.builds(
    Ask,
    at=SECONDS,
    needs=st.lists(st.integers(0, 2), min_size=1, max_size=3).map(tuple),
    estimate=st.integers(0, 20),
    takes=st.integers(0, 90),
    distant=st.booleans(),
    end=st.sampled_from(["told", "untold", "never ran", "failed", "429"]),
    used=st.integers(0, 30),
    cancel=st.none() | st.tuples(SECONDS, st.integers(0, 4)),
)


class Distant(TurnLimits):
    """Limits of another process: asking for a turn and giving it back take seconds."""

    counts_tokens = True

    def __init__(self, limits: Limits) -> None:
        self.limits = limits

    @asynccontextmanager
    async def request(
        self, model: str, tokens: int = 0, most: Usage | None = None
    ) -> AsyncGenerator[Turn, None]:
        await sleep_virtual(1)
        async with self.limits.request(model, tokens, most) as turn:
            turn.usage = Usage()
            await sleep_virtual(1)
            turn.usage = None
            yield turn


class World:
    """Plays requests on some limits, and checks all limits after each step."""

    def __init__(self, limits: list[Limits]) -> None:
        self.limits = limits
        self.running: Counter[Limits] = Counter()
        # The start of each, and since when its tokens are known.
        self.starts: dict[Limits, list[tuple[float, list[tuple[float, int]]]]] = {
            each: [] for each in limits
        }
        self.spent: Counter[Limits] = Counter()
        # How many others ran when the budget was reached, and have not ended yet.
        self.over: dict[Limits, int] = {}
        self.came: list[int] = []  # in order of arrival
        self.began: dict[int, float] = {}

    async def play(self, number: int, ask: Ask) -> None:
        # Requests with remote limits also need the first limits, which are remote for them.
        needs = dict.fromkeys((0, *ask.needs) if ask.distant else ask.needs)
        mine = [self.limits[n] for n in needs]
        await sleep_virtual(ask.at)
        self.came.append(number)
        try:
            needed = [Distant(mine[0]), *mine[1:]] if ask.distant else mine
            async with turn_in(needed, "m", ask.estimate) as turn:
                self.began[number] = asyncio.get_running_loop().time()
                known = self.start(mine, ask)
                used = ask.estimate
                try:
                    await sleep_virtual(ask.takes)
                    if ask.end == "429":
                        mine[-1].slow_down(ask.takes)
                    if ask.end in {"told", "failed"}:
                        used = ask.used
                        turn.usage = Usage(output_tokens=used)
                    if ask.end in {"never ran", "429"}:
                        used = 0
                        turn.usage = Usage()
                    if ask.end == "failed":
                        raise OSError
                finally:
                    known.append((asyncio.get_running_loop().time(), used))
                    for each in mine:
                        self.end(each, used)
        except (BudgetExceeded, OSError):
            pass
        finally:
            self.check()

    def start(self, mine: list[Limits], ask: Ask) -> list[tuple[float, int]]:
        now = asyncio.get_running_loop().time()
        used = [(now, ask.estimate)]
        for each in mine:
            self.running[each] += 1
            if ask.distant and each is mine[0]:
                self.starts[each].append((now - 1, used))  # it learns of it a second later
                continue
            self.starts[each].append((now, used))
            # Usage of this moment may have arrived after the turn was given.
            minute = [
                min(count for _, count in known) if known[-1][0] == now else known[-1][1]
                for at, known in self.starts[each]
                if at > now - 60
            ]
            assert len(minute) <= (each.requests_per_minute or len(minute))
            assert len(minute) == 1 or sum(minute) <= (each.tokens_per_minute or sum(minute))
        self.check()
        return used

    def end(self, limits: Limits, used: int) -> None:
        self.running[limits] -= 1
        self.spent[limits] += used
        if limits in self.over:
            self.over[limits] -= 1
            assert self.over[limits] >= 0
        elif limits.budget is not None and self.spent[limits] >= limits.budget:
            self.over[limits] = len(limits._running) - 1

    def check(self) -> None:
        for each in self.limits:
            assert 0 <= self.running[each] <= len(each._running)
            assert len(each._running) <= (each.concurrency or len(each._running))

    def check_end(self, asks: list[Ask]) -> None:
        for each in self.limits:
            assert (len(each._running), each.queues, each.spent) == (0, {}, self.spent[each])
            assert each._recent_tokens == sum(start.tokens for start in each._recent)
        for needs in {frozenset(ask.needs) for ask in asks}:
            same = [
                n for n in self.came if frozenset(asks[n].needs) == needs and not asks[n].distant
            ]
            times = [self.began[n] for n in same if n in self.began]
            assert times == sorted(times)


@given(
    limits=st.lists(LIMITS, min_size=3, max_size=3),
    asks=st.lists(ASKS, max_size=14),
    seed=st.integers(0, 9),
)
@settings(deadline=None, max_examples=150)
def test_all_limits_hold_whatever_comes_and_goes(
    limits: list[Limits], asks: list[Ask], seed: int
) -> None:
    """Each request is served, refused or cancelled; at the end nothing runs, waits or is timed."""

    async def run() -> None:
        loop: Any = asyncio.get_running_loop()
        world = World(limits)
        tasks = [asyncio.create_task(world.play(n, ask)) for n, ask in enumerate(asks)]

        async def cancel(task: asyncio.Task[None], at: int, after: int) -> None:
            await sleep_virtual(at)
            await run_turns(after)
            task.cancel()

        cancels = [
            asyncio.create_task(cancel(task, *ask.cancel))
            for task, ask in zip(tasks, asks, strict=True)
            if ask.cancel is not None
        ]
        results = await asyncio.gather(*tasks, *cancels, return_exceptions=True)
        for result in results:
            assert result is None or isinstance(result, asyncio.CancelledError), result
        world.check_end(asks)
        assert [timer for timer in loop._scheduled if not timer.cancelled()] == []

    with asyncio.Runner(loop_factory=lambda: SeededLoop(seed, turns=20_000)) as runner:
        runner.run(run())


class Place:
    """A request that holds its turn in some limits until it is released."""

    def __init__(self, *limits: Limits, tokens: int = 0) -> None:
        self.began = False
        self.let_go = asyncio.Event()
        self.task = asyncio.create_task(self._stand(limits, tokens))

    async def _stand(self, limits: tuple[Limits, ...], tokens: int) -> None:
        async with turn_in(limits, "m", tokens):
            self.began = True
            await self.let_go.wait()

    async def end(self) -> None:
        self.let_go.set()
        await self.task
        await settle_loop()


async def test_who_waits_for_one_limit_has_no_turn_in_another() -> None:
    """So others have it; where two compete for the same, the first is served first."""
    tree, own, other = Limits(concurrency=2), Limits(concurrency=1), Limits()
    runs, waits = Place(tree, own), Place(tree, own)
    await settle_loop()
    passes, later = Place(tree, other), Place(tree, other)
    await settle_loop()
    assert (runs.began, waits.began, passes.began, later.began) == (True, False, True, False)

    await runs.end()
    assert (waits.began, later.began) == (True, False)
    await passes.end()
    assert later.began
    for each in waits, later:
        await each.end()


async def test_one_that_is_passed_on_both_sides_is_served_in_the_end() -> None:
    """Although its two limits are never free at once: neither goes to others for ever."""
    one, other = Limits(concurrency=1), Limits(concurrency=1)
    first, second = Place(one), Place(other)
    both = Place(one, other)
    queues = [[Place(limits) for _ in range(20)] for limits in (one, other)]
    await settle_loop()

    for round_ in range(20):
        if both.began:
            break
        await (first.end() if round_ % 2 else second.end())
        queue = queues[1 - round_ % 2]
        if queue[0].began:
            if round_ % 2:
                first = queue.pop(0)
            else:
                second = queue.pop(0)

    assert both.began
    assert round_ <= 4
    await both.end()
    for each in first, second, *(place for queue in queues for place in queue):
        await each.end()


@virtual_time
async def test_one_that_needs_little_does_not_pass_one_that_needs_much() -> None:
    """Neither when it arrives nor when its other limit allows it."""
    tree, own = Limits(tokens_per_minute=40), Limits(concurrency=1)
    own_runs = Place(own)
    await Place(tree, tokens=20).end()
    much, little = Place(tree, tokens=30), Place(tree, own, tokens=1)
    await settle_loop()
    assert (own_runs.began, much.began, little.began) == (True, False, False)

    await own_runs.end()
    assert (much.began, little.began) == (False, False)
    await sleep_virtual(60)
    assert (much.began, little.began) == (True, True)
    for each in much, little:
        await each.end()


@virtual_time
async def test_nothing_is_kept_for_one_that_a_429_holds_back() -> None:
    """Even if it has been passed on both sides."""
    one, other = Limits(concurrency=1), Limits(concurrency=1)
    first, second = Place(one), Place(other)
    both, *passing = Place(one, other), Place(one), Place(other)
    await settle_loop()
    await first.end()
    await second.end()
    await passing[0].end()
    assert not both.began
    other.slow_down(100)

    await Place(one).end()
    assert not both.began
    await passing[1].end()
    await sleep_virtual(100)
    assert both.began
    await both.end()


@virtual_time
async def test_a_start_that_was_cancelled_at_once_does_not_count_for_the_rate() -> None:
    """Nothing was sent."""
    limits = Limits(requests_per_minute=2, tokens_per_minute=100, concurrency=1)
    async with limits.request("m"):
        cancelled = Place(limits, tokens=100)
        await settle_loop()
    assert len(limits._running) == 1  # it has started, but its task has not continued yet
    cancelled.task.cancel()
    await Place(limits, tokens=100).end()

    assert asyncio.get_running_loop().time() == 0
    assert (cancelled.began, limits.spent) == (False, 100)


@virtual_time
async def test_a_timer_that_is_early_is_set_again() -> None:
    """Loops run timers early within the resolution of their clock."""
    asyncio.get_running_loop()._clock_resolution = 0.01  # type: ignore[attr-defined]
    limits = Limits()
    limits.slow_down(7)
    place = Place(limits)
    await sleep_virtual(6.995)
    assert not place.began
    await sleep_virtual(0.02)
    assert place.began
    await place.end()


@pytest.mark.parametrize("hops", range(4))
@virtual_time
async def test_a_refusal_and_a_cancel_in_one_turn_leave_nothing(hops: int) -> None:
    """It never had a turn, so none is given back."""
    limits = Limits(concurrency=2, budget=100)
    holding = [Place(limits) for _ in range(2)]
    await settle_loop()
    waiting = [asyncio.create_task(_ask(limits)) for _ in range(20)]
    await settle_loop()
    limits.budget = 0  # the next end refuses all of them

    holding[0].let_go.set()
    await run_turns(hops)
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    await holding[1].end()

    assert (len(limits._running), limits.queues) == (0, {})
    assert all(task.cancelled() or task.exception() for task in waiting)


async def _ask(limits: Limits) -> None:
    async with limits.request("m"):
        raise AssertionError("it was to be refused")


def test_a_second_loop_finds_no_trace_of_the_first() -> None:
    """Neither after an orderly end nor if the first loop was closed while requests ran."""
    limits = Limits(concurrency=1, requests_per_minute=60)

    async def one() -> None:
        async with asyncio.timeout(5), limits.request("m"):
            pass

    asyncio.run(one())
    asyncio.run(one())

    torn = asyncio.new_event_loop()
    left = [torn.run_until_complete(_started(limits, torn)) for _ in range(2)]
    torn.close()
    asyncio.run(one())
    assert limits.queues == {}

    torn = asyncio.new_event_loop()
    torn.call_soon(limits.slow_down, 0.01)
    left += [torn.run_until_complete(_started(limits, torn)) for _ in range(2)]
    torn.close()
    asyncio.run(one())
    assert (len(limits._running), limits.queues) == (0, {})
    for task in left:
        task._log_destroy_pending = False  # type: ignore[attr-defined]


async def _started(limits: Limits, loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
    async def stand() -> None:
        async with limits.request("m"):
            await asyncio.Event().wait()

    task = loop.create_task(stand())
    await settle_loop()
    return task


def test_loops_of_several_threads_share_limits() -> None:
    """A turn that ends in one loop lets a request of the other start; each counts once."""
    limits, own = Limits(concurrency=2), Limits(concurrency=2)
    running: list[int] = []
    most: list[int] = []

    async def ask() -> None:
        async with turn_in([limits, own], "m"):
            running.append(1)
            most.append(len(running))
            await run_turns(3)
            running.pop()

    async def many() -> None:
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            for _ in range(200):
                group.create_task(ask())

    async def run() -> None:
        await asyncio.gather(*(asyncio.to_thread(asyncio.run, many()) for _ in range(3)), many())

    asyncio.run(run())
    assert max(most) <= 2
    assert len(most) == 800
    assert (len(limits._running), limits.queues) == (0, {})
