"""The limits of a tree and its charges, for requests that end in any way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.clock import sleep_virtual, virtual_time
from support.waiting import run_turns

from anabranch import Commander, Node, handler, tool
from anabranch.backends import Backend, Breaker, Limits, ModelBackend, Price, Retries
from anabranch.backends._estimate import Estimator
from anabranch.commander import BackendError, BackendUnavailable, BudgetExceeded, RateLimited
from anabranch.messages import Delta, Message, Request, ToolCall, ToolCallDelta, Usage
from anabranch.messages.tokens import estimate_tokens
from anabranch.testing import SeededLoop

pytestmark = pytest.mark.contract("B2")

ASK = Request([Message(role="user", content="What is it?")])
PROMPT = Estimator().estimate(ASK, {}).tokens
LONG = "x" * 4000
TOKENS = estimate_tokens(LONG)
TOLD = Usage(input_tokens=10, output_tokens=5)
WHOLE = [Delta("a"), Delta(usage=TOLD, finish_reason="stop")]
ONCE = Retries(attempts=1)


class Plays(ModelBackend):
    """Plays the steps of an attempt, one per second, and remembers when attempts began."""

    def __init__(self, *steps: Delta | BaseException, **settings: Any) -> None:
        super().__init__("m", **settings)
        self.steps = steps or WHOLE
        self.times: list[float] = []
        self.came: list[list[Delta]] = []

    async def attempt(self, request: Request) -> AsyncGenerator[Delta, None]:
        self.times.append(asyncio.get_running_loop().time())
        self.came.append([])
        for step in self.steps:
            await sleep_virtual(1)
            if isinstance(step, BaseException):
                raise step
            self.came[-1].append(step)
            yield step


@handler
async def asks(node: Node[Any], backend: Backend, request: Request = ASK) -> None:
    await backend.complete(request)


async def _all(commander: Commander, backend: Backend, count: int) -> list[Any]:
    nodes = [commander.call_handler(asks(backend), claim=True) for _ in range(count)]
    return await asyncio.gather(*nodes, return_exceptions=True)


# --- a tree's limits and a backend's own


@pytest.mark.parametrize(
    "own",
    [{"concurrency": 1}, {"requests_per_minute": 1}, {"tokens_per_minute": PROMPT}],
    ids=["concurrency", "requests", "tokens"],
)
@virtual_time
async def test_a_trees_budget_holds_however_the_backend_is_limited(own: dict[str, int]) -> None:
    """The budget is checked when a request starts, not when it arrives."""
    backend = Plays(limits=Limits(**own))
    async with Commander() as commander:
        commander.limits = Limits(budget=20)
        ends = await _all(commander, backend, 50)
        assert commander.limits.spent == commander.usage()["m"].total_tokens == 30
    assert len(backend.times) == 2
    assert sum(isinstance(end, BudgetExceeded) for end in ends) == 48


@virtual_time
async def test_a_trees_rate_holds_however_the_backend_is_limited() -> None:
    """A request that waits for its backend has not started."""
    backend = Plays(limits=Limits(requests_per_minute=1))
    other = Plays(limits=Limits(concurrency=1))
    async with Commander() as commander:
        commander.limits = Limits(requests_per_minute=3)
        await asyncio.gather(_all(commander, backend, 4), _all(commander, other, 8))
    times = sorted([*backend.times, *other.times])
    assert all(later - first >= 60 for first, later in zip(times, times[3:], strict=False))
    assert backend.times == [0, 60, 120, 180]


@pytest.mark.parametrize("tree", [{"concurrency": 2}, {"requests_per_minute": 3}])
@virtual_time
async def test_a_backend_that_is_held_back_does_not_hold_back_another(
    tree: dict[str, int],
) -> None:
    """With any shared limits; a 429 of its server delays it as its own limits do."""
    busy, idle = Plays(limits=Limits(concurrency=1)), Plays()
    async with Commander() as commander:
        commander.limits = Limits(**tree)
        refused = asyncio.create_task(_all(commander, busy, 5))
        await run_turns(5)
        await _all(commander, idle, 1)
        assert idle.times == [0]
        busy.limits.slow_down(1000)
        await sleep_virtual(100)
        await _all(commander, idle, 1)
        assert idle.times[1] == 102
        refused.cancel()
        commander.exit()


# --- charges


@virtual_time
async def test_what_never_ran_costs_nothing() -> None:
    """After a 429, without a server, with an open breaker, or if cancelled in the queue."""
    breaker = Breaker(failures=2, clock=asyncio.get_running_loop().time)
    limits = Limits(budget=1.0, tokens_per_minute=10_000, prices={"m": Price(1e6, 1e6)})
    settings: dict[str, Any] = {"limits": limits, "max_tokens": 1000}
    busy = Plays(RateLimited("slowly", retry_after=1), **settings)
    gone = Plays(BackendUnavailable("nobody there"), breaker=breaker, **settings)
    hangs = Plays(Delta("a"), limits=Limits(concurrency=1), max_tokens=1000)
    async with Commander() as commander:
        commander.limits = tree = Limits(budget=1000)
        for backend in busy, gone, gone:
            assert all(isinstance(end, BackendError) for end in await _all(commander, backend, 2))
        first, *others = [commander.call_handler(asks(hangs), claim=True) for _ in range(10)]
        await sleep_virtual(0.5)
        for node in others:
            node.cancel()
        first.cancel()
        await asyncio.gather(first, *others, return_exceptions=True)
        assert commander.usage() == {}
    assert (limits.spent, limits._recent_tokens, tree.spent) == (0, 0, 0)
    assert (len(busy.times), len(gone.times), len(hangs.times)) == (6, 2, 1)


@pytest.mark.parametrize(
    "steps",
    [
        (Delta(LONG), Delta(finish_reason="stop")),
        (Delta(reasoning="x" * 2000), Delta("x" * 2000, finish_reason="stop")),
        (Delta(tool_calls=[ToolCallDelta(0, "1", "f", "x" * 3999)]), Delta(done=True)),
        (Delta(usage=Usage()), Delta(LONG), Delta(usage=Usage(), finish_reason="stop")),
        (Delta(LONG), BackendUnavailable("gone")),
        (Delta(usage=Usage(input_tokens=PROMPT)), Delta(LONG), Delta(done=True)),
    ],
    ids=["text", "reasoning", "call", "nothing told", "broken", "told too early"],
)
@virtual_time
async def test_what_ran_without_telling_its_usage_is_estimated(steps: Any) -> None:
    """From the prompt and the reply; the limits and the tree are charged the same."""
    backend = Plays(*steps, retries=ONCE)
    async with Commander() as commander:
        commander.limits = Limits(budget=50 * (PROMPT + TOKENS))
        await _all(commander, backend, 50)
        usage = Usage(input_tokens=50 * PROMPT, output_tokens=50 * TOKENS)
        assert commander.usage() == {"m": usage}
        assert backend.limits.spent == commander.limits.spent == usage.total_tokens
        assert isinstance((await _all(commander, backend, 1))[0], BudgetExceeded)


@virtual_time
async def test_the_prompt_counts_with_its_tools_and_calls() -> None:
    """They are the largest part of many prompts."""

    @tool
    def look(where: str) -> str:
        """Look there."""
        return where

    calls = [ToolCall(id="1", name="look", arguments={"where": "in the house " * 40})]
    said = Message(role="assistant", tool_calls=calls)
    backend = Plays(Delta(done=True))
    await backend.complete(Request([said]))
    without = backend.limits.spent
    await backend.complete(Request([said], [look]))
    assert without > 100
    assert backend.limits.spent > 2 * without + 10


STEPS = st.lists(
    st.builds(
        Delta,
        st.text(max_size=9),
        usage=st.none() | st.builds(Usage, input_tokens=st.integers(0, 9)),
    )
    | st.sampled_from([RateLimited("slowly", retry_after=1), BackendUnavailable("gone")]),
    max_size=3,
)


@given(
    plays=st.lists(st.tuples(STEPS, st.none() | st.integers(0, 5), st.integers(0, 4)), max_size=6),
    tree=st.builds(Limits, concurrency=st.none() | st.just(2), budget=st.integers(10, 40)),
    own=st.builds(Limits, concurrency=st.none() | st.just(1), tokens_per_minute=st.just(30)),
    seed=st.integers(0, 9),
)
@settings(deadline=None, max_examples=60)
def test_limits_and_tree_are_charged_alike(
    plays: list[tuple[list[Any], int | None, int]], tree: Limits, own: Limits, seed: int
) -> None:
    """For the deltas received, however a reply ends and whenever it is cancelled."""

    async def run() -> None:
        loop: Any = asyncio.get_running_loop()
        backends = [Plays(*steps, Delta(done=True), limits=own) for steps, _, _ in plays]

        async def ask(backend: Plays, cancel: int | None, after: int) -> None:
            node = commander.call_handler(asks(backend), claim=True)
            if cancel is not None:
                await sleep_virtual(cancel)
                await run_turns(after)
                node.cancel()
            await asyncio.gather(node, return_exceptions=True)

        async with Commander() as commander:
            commander.limits = tree
            asked = zip(backends, plays, strict=True)
            await asyncio.gather(*(ask(b, cancel, after) for b, (_, cancel, after) in asked))
            charged = commander.usage().get("m", Usage()).total_tokens
        came = [deltas for backend in backends for deltas in backend.came if deltas]
        assert tree.spent == own.spent == charged == sum(map(_cost, came))
        assert (len(tree._running), len(own._running), tree.queues, own.queues) == (0, 0, {}, {})
        assert [timer for timer in loop._scheduled if not timer.cancelled()] == []

    with asyncio.Runner(loop_factory=lambda: SeededLoop(seed, turns=20_000)) as runner:
        runner.run(run())


def _cost(came: list[Delta]) -> int:
    told = [n for n, delta in enumerate(came) if delta.usage and delta.usage.total_tokens]
    usage = came[told[-1]].usage if told else Usage(input_tokens=PROMPT)
    assert usage is not None
    after = came[told[-1] + 1 :] if told else came
    return usage.total_tokens + estimate_tokens("".join(delta.text for delta in after))


@pytest.mark.parametrize(
    ("told", "tokens"),
    [
        (Usage(input_tokens=1000, output_tokens=-999), 1000),
        (Usage(input_tokens=-5, output_tokens=7), 7),
        (Usage(input_tokens=10**400, output_tokens=1), 10**12 + 1),
        (Usage(input_tokens=100, output_tokens=1, cached_input_tokens=-(10**6)), 101),
    ],
)
@virtual_time
async def test_a_usage_that_cannot_be_true_is_set_right(told: Usage, tokens: int) -> None:
    """It neither reduces the charge nor breaks the count."""
    limits = Limits(budget=1e15, prices={"m": Price(input=1e6, output=1e6, cached_input=1e5)})
    backend = Plays(Delta("a" * 400), Delta(usage=told, finish_reason="stop"), limits=limits)
    await backend.complete(ASK)
    assert limits.spent == pytest.approx(tokens)


async def test_an_estimate_below_nothing_lets_no_more_start() -> None:
    """Some servers take `max_tokens=-1` as unlimited."""
    assert Estimator().estimate(ASK, {"max_tokens": -1_000}).tokens == PROMPT
