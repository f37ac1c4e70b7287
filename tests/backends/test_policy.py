"""Around one attempt: pauses, timeouts, the breaker, continuations, fallbacks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clock import sleep_virtual, virtual_time

from anabranch.backends import Breaker, Fallback, Limits, ModelBackend, Price, Retries, Timeouts
from anabranch.commander import (
    AuthenticationError,
    BackendError,
    BackendUnavailable,
    BudgetExceeded,
    Commander,
    ConfigurationError,
    Node,
    RateLimited,
    StreamInterrupted,
)
from anabranch.handlers import handler
from anabranch.messages import Delta, Message, Request, Usage
from anabranch.testing import ScriptedBackend

pytestmark = pytest.mark.contract("B1")

ASK = Request([Message(role="user", content="Hello?")])
END = Delta(finish_reason="stop")


class Scripted(ModelBackend):
    """Plays steps for each attempt: deltas, errors, and seconds to wait."""

    def __init__(self, *attempts: list[Delta | BackendError | float], **settings: Any) -> None:
        super().__init__("m", **settings)
        self.attempts = list(attempts)
        self.times: list[float] = []
        self.requests: list[Request] = []

    async def attempt(self, request: Request) -> AsyncGenerator[Delta, None]:
        self.times.append(asyncio.get_running_loop().time())
        self.requests.append(request)
        steps = self.attempts.pop(0) if len(self.attempts) > 1 else self.attempts[0]
        for step in steps:
            if isinstance(step, BackendError):
                raise step
            if isinstance(step, float):
                await sleep_virtual(step)
            else:
                yield step

    def continuation(self, request: Request, partial: Message) -> Request | None:
        return Request([*request.messages, partial], options={"extra": {"go_on": True}})


DOWN = BackendUnavailable("down")


@virtual_time
async def test_pauses_double_and_vary() -> None:
    """Each is at least half of its maximum."""
    backend = Scripted([DOWN], retries=Retries(attempts=6, backoff=1, max_backoff=4))

    with pytest.raises(BackendUnavailable):
        await backend.complete(ASK)

    gaps = [b - a for a, b in zip(backend.times, backend.times[1:], strict=False)]
    assert all(most / 2 <= gap <= most for gap, most in zip(gaps, [1, 2, 4, 4, 4], strict=True))


@pytest.mark.contract("B2")
@virtual_time
async def test_a_429_slows_all_who_share_the_backend() -> None:
    """The refused request waits as long as the server asks, and so does a later one."""
    backend = Scripted([RateLimited("slowly", retry_after=20)], [END])

    await asyncio.gather(backend.complete(ASK), _later(1, backend))

    assert backend.times[0] == 0
    assert all(20 <= when <= 22 for when in backend.times[1:])


@pytest.mark.contract("B2")
@virtual_time
async def test_a_429_is_not_run_into_by_the_next_in_line() -> None:
    """The refused request keeps its turn until all others are delayed."""
    backend = Scripted([RateLimited("slowly", retry_after=20)], [END], limits=Limits(concurrency=1))

    await asyncio.gather(*(backend.complete(ASK) for _ in range(5)))

    assert backend.times[0] == 0
    assert all(20 <= when <= 22 for when in backend.times[1:])


async def _later(seconds: float, backend: Scripted) -> Message:
    await sleep_virtual(seconds)
    return await backend.complete(ASK)


@pytest.mark.contract("B2")
@virtual_time
async def test_shared_limits_slow_other_backends_too() -> None:
    """Backends with one `Limits` object wait together."""
    limits = Limits()
    one = Scripted([RateLimited("slowly", retry_after=20)], [END], limits=limits)
    other = Scripted([END], limits=limits)

    await asyncio.gather(one.complete(ASK), _later(1, other))

    assert 20 <= other.times[0] <= 22


@pytest.mark.parametrize(
    ("steps", "kind", "after", "said"),
    [
        ([9.0, END], BackendUnavailable, 3, "first token within 3 s"),
        ([Delta("a"), 9.0, END], StreamInterrupted, 2, "next token within 2 s"),
        (
            [Delta("a"), *[1.5, Delta("b")] * 9, END],
            StreamInterrupted,
            10,
            "not complete within 10 s",
        ),
    ],
    ids=["first", "between", "whole"],
)
@virtual_time
async def test_each_timeout_is_kept_to_the_moment(
    steps: list[Any], kind: type[BackendError], after: float, said: str
) -> None:
    """One timer serves all waits."""
    backend = Scripted(steps, retries=Retries(attempts=1), timeouts=Timeouts(None, 3, 2, 10))

    with pytest.raises(kind, match=said):
        await backend.complete(ASK)

    assert asyncio.get_running_loop().time() == pytest.approx(after, abs=0.01)
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]


@virtual_time
async def test_a_cancel_is_never_taken_for_a_timeout() -> None:
    """Not even if both happen at once."""
    backend = Scripted([9.0, END], timeouts=Timeouts(first_token=3))
    task = asyncio.create_task(backend.complete(ASK))
    asyncio.get_running_loop().call_later(3, task.cancel)

    with pytest.raises(asyncio.CancelledError):
        await task


@virtual_time
async def test_no_limit_is_no_limit() -> None:
    """A day is not too long."""
    backend = Scripted([86400.0, Delta("a"), 86400.0, END], timeouts=Timeouts(*[None] * 4))

    assert (await backend.complete(ASK)).content == "a"


@virtual_time
async def test_a_server_that_stays_after_its_last_word_is_left() -> None:
    """The reply is complete."""
    backend = Scripted([Delta("a"), Delta(done=True), 30.0])

    assert (await backend.complete(ASK)).content == "a"
    assert asyncio.get_running_loop().time() == pytest.approx(1, abs=0.01)


@virtual_time
async def test_a_breaker_opens_and_half_opens() -> None:
    """After the failures nothing is sent; later one attempt decides."""
    time = asyncio.get_running_loop().time
    breaker = Breaker(failures=2, reset_after=30, clock=time)
    backend = Scripted([DOWN], [DOWN], [DOWN], [END], breaker=breaker)

    async def fails() -> None:
        with pytest.raises(BackendUnavailable):
            await backend.complete(ASK)

    await fails()
    assert (breaker.state, len(backend.times)) == ("open", 2)
    await fails()
    assert len(backend.times) == 2
    await sleep_virtual(30)
    assert breaker.state == "half open"
    await fails()
    assert (breaker.state, len(backend.times)) == ("open", 3)
    await sleep_virtual(30)
    await backend.complete(ASK)
    assert breaker.state == "closed"


@virtual_time
async def test_only_one_attempt_goes_through_a_half_open_breaker() -> None:
    """If it is cancelled it decides nothing, and the next one may try."""
    breaker = Breaker(failures=1, reset_after=1, clock=asyncio.get_running_loop().time)
    backend = Scripted([DOWN], [5.0, END], [END], breaker=breaker, retries=Retries(attempts=1))
    with pytest.raises(BackendUnavailable):
        await backend.complete(ASK)
    await sleep_virtual(1)

    trial = asyncio.create_task(backend.complete(ASK))
    await sleep_virtual(1)
    with pytest.raises(BackendUnavailable, match="not sent"):
        await backend.complete(ASK)
    trial.cancel()
    await asyncio.wait([trial])

    await backend.complete(ASK)
    assert breaker.state == "closed"


@virtual_time
async def test_an_earlier_attempt_does_not_let_a_second_trial_through() -> None:
    """It began before the breaker opened, and its reader leaves it during the trial."""
    breaker = Breaker(failures=1, reset_after=1, clock=asyncio.get_running_loop().time)
    once = Retries(attempts=1)
    early = Scripted([9.0, END], breaker=breaker, retries=once)
    backend = Scripted([DOWN], [9.0, END], [END], breaker=breaker, retries=once)
    before = asyncio.create_task(early.complete(ASK))
    await sleep_virtual(1)
    with pytest.raises(BackendUnavailable):
        await backend.complete(ASK)
    await sleep_virtual(1)
    trial = asyncio.create_task(backend.complete(ASK))
    await sleep_virtual(1)
    before.cancel()
    await asyncio.wait([before])

    with pytest.raises(BackendUnavailable, match="not sent"):
        await backend.complete(ASK)

    await trial
    assert breaker.state == "closed"


@virtual_time
async def test_a_reply_that_broke_off_goes_on() -> None:
    """The model is asked to continue the text; the reader sees one reply."""
    backend = Scripted([Delta("Once "), DOWN], [DOWN], [Delta("upon"), END], resume="continue")

    assert (await backend.complete(ASK)).content == "Once upon"
    assert [m.content for m in backend.requests[-1].messages] == ["Hello?", "Once "]


@virtual_time
async def test_going_on_fails_with_all_that_came() -> None:
    """The error comes after all attempts."""
    backend = Scripted([Delta("Once "), DOWN], [Delta("upon "), DOWN], [DOWN], resume="continue")

    with pytest.raises(StreamInterrupted) as caught:
        await backend.complete(ASK)

    assert caught.value.partial.content == "Once upon "


@virtual_time
async def test_the_next_backend_answers_when_one_is_down() -> None:
    """The first is not asked for a while."""
    once = Retries(attempts=1)
    first = Scripted([DOWN], retries=once)
    second = Scripted([Delta("two"), END], retries=once)
    backend = Fallback([first, second], failures=2)

    for _ in range(4):
        assert (await backend.complete(ASK)).content == "two"

    assert len(first.times) == 2


@virtual_time
async def test_if_all_are_down_each_says_why() -> None:
    """In notes of the error."""
    once = Retries(attempts=1)
    backend = Fallback(
        [Scripted([DOWN], retries=once), Scripted([RateLimited("busy")], retries=once)]
    )

    with pytest.raises(RateLimited) as caught:
        await backend.complete(ASK)

    assert [note.rpartition(": ")[2] for note in caught.value.__notes__] == ["down", "busy"]


@pytest.mark.parametrize(
    "steps", [[AuthenticationError("no")], [Delta("a"), DOWN]], ids=["refused", "begun"]
)
@virtual_time
async def test_what_another_backend_would_hide_is_raised(steps: list[Any]) -> None:
    """A wrong key, and a reply that has begun."""
    second = Scripted([END])

    with pytest.raises(BackendError):
        await Fallback([Scripted(steps), second]).complete(ASK)

    assert second.times == []


@pytest.mark.contract("B2")
@virtual_time
async def test_usage_reaches_the_limits() -> None:
    """Also that of a reply that its reader left."""
    limits = Limits(budget=1000)
    spent = Delta("a", usage=Usage(input_tokens=30, output_tokens=3))
    backend = Scripted([spent, 9.0, END], limits=limits)

    async with aclosing(backend.stream(ASK)) as deltas:
        await anext(deltas)

    assert limits.spent == 33


# --- a smaller model near the end of the budget


@given(
    st.lists(st.one_of(st.none(), st.integers(1, 400)), min_size=4, max_size=4),
    st.floats(0.01, 1.0),
    st.integers(1, 60),
)
async def test_the_next_backend_is_asked_when_a_share_of_any_budget_is_spent(
    budgets: list[int | None], over: float, tokens: int
) -> None:
    """Budgets of the commander, a job, a nested job, and of the first backend."""
    limits = [None if each is None else Limits(budget=each) for each in budgets]
    usage = Usage(input_tokens=0, output_tokens=tokens)
    answer = Message(role="assistant", content="Hi", usage=usage)
    large = ScriptedBackend(otherwise=answer, limits=limits[3])
    small = ScriptedBackend(otherwise=answer)
    backend = Fallback([large, small], over=over)

    @handler
    async def ask(node: Node[Any]) -> None:
        for _ in range(8):
            near = any(
                each is not None and each.budget is not None and each.spent >= over * each.budget
                for each in limits
            )
            before = len(large.requests)
            try:
                await backend.complete(ASK)
            except BudgetExceeded:
                spent = [each for each in limits[:3] if each and each.spent >= (each.budget or 0)]
                assert spent
                return
            assert (len(large.requests) == before) == near

    @handler
    async def outer(node: Node[Any]) -> None:
        await node.call_handler(ask(), limits=limits[2])

    async with Commander(limits=limits[0]) as commander:
        await commander.run(outer(), limits=limits[1])


async def test_the_first_backend_is_asked_last_when_the_others_are_down() -> None:
    large, small = ScriptedBackend("One.", "Two."), ScriptedBackend(otherwise=DOWN)
    spent = Limits(budget=100_000)
    spent.spent = 90_000
    async with Commander(limits=spent):
        backend = Fallback([large, small], over=0.8)
        assert (await backend.complete(ASK)).content == "One."
    assert len(small.requests) == 1


async def test_a_request_that_the_budget_does_not_allow_goes_to_the_next() -> None:
    """The large model would cost more than the rest, although 80 % are not spent yet."""
    prices = {"large": Price(1000, 1000), "small": Price(1, 1)}
    limits = Limits(budget=1.0, prices=prices, reserve=True)
    large, small = (ScriptedBackend(otherwise=each, model=each, max_tokens=5000) for each in prices)
    async with Commander(limits=limits):
        with pytest.raises(BudgetExceeded):
            await Fallback([large, small]).complete(ASK)
        assert (await Fallback([large, small], over=0.8).complete(ASK)).content == "small"


@pytest.mark.parametrize("over", [0, -1, 1.1, 80, float("nan")])
def test_a_share_is_above_0_and_at_most_1(over: float) -> None:
    with pytest.raises(ConfigurationError, match="must be a share of the budget"):
        Fallback([ScriptedBackend()], over=over)
    with pytest.raises(TypeError, match="over must be a number or None"):
        Fallback([ScriptedBackend()], over="0.8")  # type: ignore[arg-type]
