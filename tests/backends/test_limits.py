"""Shared limits, on a virtual clock."""

from __future__ import annotations

import asyncio
import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.clock import sleep_virtual, virtual_time
from support.waiting import settle_loop

from anabranch.backends import Limits, Price
from anabranch.commander import BudgetExceeded, ConfigurationError
from anabranch.messages import Usage

pytestmark = pytest.mark.contract("B2")


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _ask(
    limits: Limits, starts: list[tuple[int, float]], number: int, takes: float = 0, tokens: int = 0
) -> None:
    async with limits.request("m", tokens):
        starts.append((number, _now()))
        await sleep_virtual(takes)


@given(
    per_minute=st.integers(1, 4),
    tokens=st.none() | st.integers(10, 40),
    at_once=st.integers(1, 3),
    asked=st.lists(
        st.tuples(st.floats(0, 50), st.floats(0, 100), st.integers(0, 20)), min_size=1, max_size=15
    ),
)
@settings(deadline=None)
def test_no_limit_is_ever_passed_and_the_order_is_kept(
    per_minute: int, tokens: int | None, at_once: int, asked: list[tuple[float, float, int]]
) -> None:
    """For any arrival times and durations."""

    @virtual_time
    async def run() -> None:
        limits = Limits(
            requests_per_minute=per_minute, tokens_per_minute=tokens, concurrency=at_once
        )
        came: list[int] = []
        starts: list[tuple[int, float]] = []
        active: Counter[str] = Counter()

        async def ask(number: int, wait: float, takes: float, needs: int) -> None:
            await sleep_virtual(wait)
            came.append(number)
            async with limits.request("m", needs):
                starts.append((number, _now()))
                active["now"] += 1
                assert active["now"] <= at_once
                await sleep_virtual(takes)
                active["now"] -= 1

        async with asyncio.TaskGroup() as group:
            for number, each in enumerate(asked):
                group.create_task(ask(number, *each))

        assert [number for number, _ in starts] == came
        times = [when for _, when in starts]
        for first, later in zip(times, times[per_minute:], strict=False):
            assert later - first >= 60 - 1e-6
        for end, (_, now) in enumerate(starts, 1):
            minute = [asked[n][2] for n, when in starts[:end] if when > now - 60 + 1e-6]
            assert tokens is None or sum(minute) <= tokens or len(minute) == 1

    run()


@virtual_time
async def test_tokens_are_estimated_then_corrected() -> None:
    """A cheaper reply frees the rest; a single request above the limit runs alone."""
    limits = Limits(tokens_per_minute=100)
    async with limits.request("m", 90) as turn:
        turn.usage = Usage(input_tokens=10, output_tokens=10)
    starts: list[tuple[int, float]] = []

    await asyncio.gather(
        _ask(limits, starts, 1, tokens=80),
        _ask(limits, starts, 2, tokens=500),
        _ask(limits, starts, 3, tokens=1),
    )

    assert starts == [(1, 0), (2, 60), (3, 120)]


@virtual_time
async def test_a_429_holds_back_all() -> None:
    """For the time that the server asks for."""
    limits = Limits()
    starts: list[tuple[int, float]] = []
    limits.slow_down(7)

    await asyncio.gather(*(_ask(limits, starts, n) for n in range(3)))

    assert starts == [(0, 7), (1, 7), (2, 7)]


@virtual_time
async def test_cancelling_a_wait_lets_the_others_go_on() -> None:
    """At the head of the queue, inside it, and at the moment of its turn."""
    limits = Limits(concurrency=1)
    starts: list[tuple[int, float]] = []
    tasks = [asyncio.create_task(_ask(limits, starts, n, takes=10)) for n in range(5)]
    await sleep_virtual(1)
    tasks[1].cancel()
    tasks[3].cancel()
    await sleep_virtual(8.5)
    asyncio.get_running_loop().call_later(
        0.5, lambda: asyncio.get_running_loop().call_soon(tasks[2].cancel)
    )

    await asyncio.wait(tasks)

    assert [number for number, _ in starts] in ([0, 4], [0, 2, 4])
    async with limits.request("m"):
        pass


@virtual_time
async def test_a_spent_budget_refuses_all_that_wait() -> None:
    """And every later request; without usage the estimate counts."""
    limits = Limits(budget=100, concurrency=1)
    async with limits.request("m", 60):
        waiting = asyncio.create_task(_ask(limits, [], 1))
    await waiting
    async with limits.request("m", 1) as turn:
        later = [asyncio.create_task(_ask(limits, [], n)) for n in range(2)]
        await settle_loop()
        turn.usage = Usage(input_tokens=40)

    for result in await asyncio.gather(*later, return_exceptions=True):
        assert isinstance(result, BudgetExceeded)
    with pytest.raises(BudgetExceeded, match="100 of 100 tokens"):
        await _ask(limits, [], 9)


@virtual_time
async def test_a_budget_of_money_needs_prices() -> None:
    """Cached input has its own price; a model without a price is refused."""
    limits = Limits(budget=1.0, prices={"m": Price(input=1, output=10, cached_input=0.1)})
    async with limits.request("m") as turn:
        turn.usage = Usage(
            input_tokens=1_000_000, cached_input_tokens=500_000, output_tokens=10_000
        )

    assert limits.spent == pytest.approx(0.5 + 0.05 + 0.1)
    with pytest.raises(BudgetExceeded, match="no price"):
        await limits.request("other").__aenter__()


def test_a_limit_of_nothing_is_refused() -> None:
    """With such a limit nothing could start."""
    for nothing in ({"budget": math.nan}, {"concurrency": math.nan}):
        with pytest.raises(ConfigurationError, match="=nan: it must be"):
            Limits(**nothing)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigurationError, match="at least 1"):
        Limits(concurrency=0)
