"""A budget that reserves the highest possible cost is not exceeded, and nothing gets stuck."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.clock import sleep_virtual, virtual_time

from anabranch import BudgetExceeded, Commander, ConfigurationError, Node, handler
from anabranch.backends import Limits, ModelBackend, Price, cost
from anabranch.backends._estimate import Estimator
from anabranch.backends.limits import turn_in
from anabranch.messages import Delta, Message, Request, Usage
from anabranch.testing import SeededLoop

ASK = Request([Message(role="user", content="Hello?")])
PROMPT = Estimator().estimate(ASK, {}).tokens


class Paid(ModelBackend):
    """Takes a second and all tokens that it is allowed, else 100."""

    async def attempt(self, request: Request) -> AsyncGenerator[Delta, None]:
        await sleep_virtual(1)
        most = self.default_options.get("max_tokens", 100)
        usage = Usage(input_tokens=PROMPT, output_tokens=most)
        yield Delta("x", usage=None)
        yield Delta(usage=usage, finish_reason="stop")


@handler
async def ask(node: Node[Any], backend: ModelBackend) -> str:
    try:
        await backend.complete(ASK)
    except BudgetExceeded as error:
        return str(error)
    return "answered"


async def _ask_all(limits: Limits, backend: ModelBackend, count: int) -> list[str]:
    async with Commander(limits=limits) as commander:
        return await asyncio.gather(*(commander.run(ask(backend)) for _ in range(count)))


@virtual_time
async def test_five_that_leave_at_once_do_not_overspend() -> None:
    """Requests that do not fit wait for the rest of the others, or are refused."""
    takes = PROMPT + 50
    limits = Limits(budget=11 * takes - 1, reserve=True)
    answers = await _ask_all(limits, Paid("m", max_tokens=50), 15)
    assert answers.count("answered") == 10
    assert limits.spent == 10 * takes
    refused = f"{10 * takes} of {11 * takes - 1} tokens are used, and this request may cost {takes}"
    assert answers.count(refused) == 5
    # Each may cost more than that, so not all of the ten run at once.
    assert 1 < asyncio.get_running_loop().time() < 9


@virtual_time
async def test_without_reserve_those_under_way_go_over_the_budget() -> None:
    """Without `reserve`, only the usage so far counts."""
    limits = Limits(budget=110)
    assert (await _ask_all(limits, Paid("m", max_tokens=50), 5)).count("answered") == 5
    assert limits.spent == 5 * (PROMPT + 50)


@virtual_time
async def test_a_request_that_may_cost_anything_goes_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without `max_tokens` its cost is unknown: it is the last one that may exceed the budget.

    The log says once why such requests run alone, and what to do.
    """
    limits = Limits(budget=150, reserve=True)
    assert (await _ask_all(limits, Paid("m"), 5)).count("answered") == 2
    assert limits.spent == 2 * (PROMPT + 100)
    assert asyncio.get_running_loop().time() == pytest.approx(2)
    (warning,) = caplog.messages
    assert warning.startswith("a request to m has to wait")
    assert "Set max_tokens" in warning


@virtual_time
async def test_one_that_goes_alone_anyway_is_not_warned_about(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It delays no other request, and none delays it."""
    limits = Limits(budget=1000, reserve=True)
    for _ in range(2):
        assert await _ask_all(limits, Paid("m"), 1) == ["answered"]
    assert await _ask_all(limits, Paid("m", max_tokens=100), 2) == ["answered"] * 2
    assert caplog.messages == []


@virtual_time
async def test_a_prompt_that_alone_exceeds_the_budget_is_refused() -> None:
    """With `max_tokens` or without, in tokens or money; without `reserve` it is sent."""
    long = Request([Message(role="user", content="word " * 100)])
    tokens = Estimator().estimate(long, {}).tokens
    prices = {"m": Price(input=1e6, output=1e6)}
    for money in None, prices:
        limits = Limits(budget=tokens - 1, reserve=True, prices=money)
        with pytest.raises(BudgetExceeded, match=f"its prompt alone, about {tokens}"):
            await Paid("m", limits=limits).complete(long)
        with pytest.raises(BudgetExceeded, match=f"may cost {tokens}"):
            await Paid("m", limits=limits, max_tokens=0).complete(long)
        assert limits.spent == 0
    limits = Limits(budget=tokens - 1)
    await Paid("m", limits=limits).complete(long)
    assert limits.spent == PROMPT + 100


@virtual_time
async def test_money_is_set_aside_by_the_prices() -> None:
    """For the prompt and the longest reply."""
    prices = {"m": Price(input=1e6, output=2e6)}
    limits = Limits(budget=3 * (PROMPT + 100) - 1, prices=prices, reserve=True)
    answers = await _ask_all(limits, Paid("m", max_tokens=50), 5)
    assert answers.count("answered") == 2
    assert limits.spent == pytest.approx(2 * (PROMPT + 100))
    assert cost({"m": Usage(input_tokens=4, output_tokens=100)}, prices) == pytest.approx(204)


def test_a_model_without_a_price_has_no_cost() -> None:
    """The error names it."""
    with pytest.raises(ConfigurationError, match="no price for n"):
        cost({"m": Usage(), "n": Usage()}, {"m": Price(1, 1)})


def test_reserve_is_of_a_budget() -> None:
    """Without a budget there is nothing to reserve."""
    with pytest.raises(ConfigurationError, match="needs a budget"):
        Limits(reserve=True)


@dataclass(frozen=True)
class Ask:
    """A request: when it comes, its estimate and usage, how long it takes, when it is left."""

    at: int
    needs: tuple[int, ...]
    most: int | None
    part: float
    takes: int
    cancel: int | None


ASKS = st.builds(
    Ask,
    at=st.integers(0, 5),
    needs=st.lists(st.integers(0, 1), min_size=1, max_size=2, unique=True).map(tuple),
    most=st.none() | st.integers(0, 60),
    part=st.floats(0, 1),
    takes=st.integers(0, 5),
    cancel=st.none() | st.integers(0, 9),
)


@given(
    asks=st.lists(ASKS, max_size=10),
    budgets=st.tuples(st.integers(1, 100), st.integers(1, 100)),
    concurrency=st.none() | st.integers(1, 2),
    seed=st.integers(0, 9),
)
@example(  # one that can cost nothing is not passed by one that may cost anything
    asks=[Ask(0, (0,), 0, 0.0, 1, None), Ask(0, (0,), None, 0.0, 1, None)],
    budgets=(1, 1),
    concurrency=None,
    seed=0,
)
def test_no_budget_is_overspent_whatever_comes_and_goes(
    asks: list[Ask], budgets: tuple[int, int], concurrency: int | None, seed: int
) -> None:
    """Except by requests with unknown cost, which run alone. All requests end."""
    limits = [Limits(budget=each, reserve=True, concurrency=concurrency) for each in budgets]
    over = [0.0, 0.0]  # the excess of requests without `max_tokens`
    running: list[list[Ask]] = [[], []]

    async def play(ask: Ask) -> None:
        await sleep_virtual(ask.at)
        most = None if ask.most is None else Usage(output_tokens=ask.most)
        used = 40 if ask.most is None else int(ask.most * ask.part)
        try:
            async with turn_in([limits[n] for n in ask.needs], "m", 1, most) as turn:
                turn.usage = Usage()
                for n in ask.needs:
                    running[n].append(ask)
                    alone = any(each.most is None for each in running[n])
                    assert not alone or len(running[n]) == 1
                try:
                    await sleep_virtual(ask.takes)
                    turn.usage = Usage(output_tokens=used)
                finally:
                    for n in ask.needs:
                        running[n].remove(ask)
                        if ask.most is None and turn.usage.total_tokens:
                            over[n] = max(over[n], limits[n].spent + used - budgets[n])
        except BudgetExceeded:
            pass

    async def run() -> None:
        tasks = [asyncio.create_task(play(ask)) for ask in asks]
        loop = asyncio.get_running_loop()
        for task, ask in zip(tasks, asks, strict=True):
            if ask.cancel is not None:
                loop.call_later(ask.cancel, task.cancel)
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert result is None or isinstance(result, asyncio.CancelledError), result
        for each, budget, beyond in zip(limits, budgets, over, strict=True):
            assert each.spent <= budget + max(0, beyond)
            assert (each._reserved, each._running, each.queues) == ({}, {}, {})

    with asyncio.Runner(loop_factory=lambda: SeededLoop(seed, turns=20_000)) as runner:
        runner.run(run())
