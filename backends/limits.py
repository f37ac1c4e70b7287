"""Shared limits: requests and tokens per minute, concurrency, budgets, prices.

`Limits` has the rules; `_turn.py` decides which waiting request starts. Other packages wait with
`turn_in`, in the limits from `limits_of(node)`, and implement further limits as `TurnLimits`.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

from ..commander import Node, NodeLimits, limits_around
from ..commander.errors import BudgetExceeded, ConfigurationError
from ..commander.kinds import NUMBER, checked, require
from ..messages import Usage
from ._turn import LIMITS_LOCK, Limiter, Turn

__all__ = ["Limits", "Price", "Turn", "TurnLimits", "cost", "limits_of", "turn_in"]

logger: logging.Logger = logging.getLogger("anabranch.backends")

_MINUTE_SECONDS = 60.0
_ALONE_WARNING = (
    "a request to %s has to wait: Limits(reserve=True) cannot tell what a request without"
    " max_tokens may cost, and runs it alone. Set max_tokens."
)


@checked
@dataclass(frozen=True, slots=True)
class Price:
    """The cost of a million tokens. `cached_input` is `input` if not given."""

    input: float
    output: float
    cached_input: float | None = None

    def of(self, usage: Usage) -> float:
        """Return the cost of `usage`."""
        price = self.input if self.cached_input is None else self.cached_input
        cached = max(0, min(usage.cached_input_tokens, usage.input_tokens))
        total = (usage.input_tokens - cached) * self.input + cached * price
        return (total + usage.output_tokens * self.output) / 1e6


@dataclass(eq=False, slots=True)
class RequestStart:
    """A request of the last minute, with its tokens: the estimate until the usage is known."""

    at: float
    tokens: int
    is_expired: bool = False  # more than a minute ago


class TurnLimits(NodeLimits):
    """Limits that requests wait for: `Limits`, or a stand-in for those of another process."""

    @property
    @abstractmethod
    def counts_tokens(self) -> bool:
        """Whether the limits need an estimate of a request's tokens."""

    @abstractmethod
    def request(
        self, model: str, tokens: int = 0, most: Usage | None = None
    ) -> AbstractAsyncContextManager[Turn]:
        """Wait for a turn; see `Limits.request`."""


class Limits(Limiter, TurnLimits):
    """Bounds for requests. Use one object for all that should share it.

        limits = Limits(requests_per_minute=500, concurrency=8, budget=10.0, prices=prices)
        backend = connect("openai:gpt-5", limits=limits)

    It applies to a backend as above, to a tree with all its backends (`Commander(limits=...)`), or
    to a part of one (`commander.run(job, limits=...)`). A request starts when all limits that apply
    allow it, and takes a turn in all of them at that moment. While it waits it occupies none of
    them.

    Requests start in their order. One that waits blocks those behind it, except where only a limit
    that they do not share blocks it. In each period of 60 seconds at most `requests_per_minute`
    requests and `tokens_per_minute` tokens start (estimated at the start, corrected at the end; a
    single request above the limit runs alone). `concurrency` counts replies that have not ended.

    `budget` is in tokens or, with `prices` (by model name), in their currency. `spent` is the part
    used, also counted without a budget. When it is used up, all requests are refused with
    `BudgetExceeded`, waiting ones too. Replies that are running then exceed it by their usage.

    `reserve` prevents that. A request is refused if its estimated prompt and all of `max_tokens`
    are more than is left. It reserves its highest possible cost, a token for each byte of its
    prompt and all of `max_tokens`, and waits while the reservations of others leave too little;
    without any, it starts. So one request at a time can exceed the budget, by the tokens of its
    prompt above the estimate. A request without `max_tokens` may cost anything: it runs alone, and
    can also exceed the budget by its reply. See docs/backends-limits.md for other causes. A request
    that did not run costs nothing.

    Event loops in several threads may use one object at once. A copy in another process, such as
    with a backend that was sent there, starts again with the rest of the budget.
    """

    def __init__(
        self,
        *,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        concurrency: int | None = None,
        budget: float | None = None,
        prices: Mapping[str, Price] | None = None,
        reserve: bool = False,
    ) -> None:
        super().__init__()
        require(budget, NUMBER | None, "budget must be a number or None")
        require(prices, Mapping | None, "prices must be a mapping from models to Prices, or None")
        for model, price in (prices or {}).items():
            require(price, Price, f"the price of {model!r} must be a Price")
        if reserve and budget is None:
            raise ConfigurationError("reserve=True needs a budget: pass budget= too")
        if budget != budget:  # NaN, which is never reached
            raise ConfigurationError(f"budget={budget!r}: it must be a number")
        self.requests_per_minute = requests_per_minute
        self.tokens_per_minute = tokens_per_minute
        self.concurrency = concurrency
        for name in "requests_per_minute", "tokens_per_minute", "concurrency":
            require(value := getattr(self, name), NUMBER | None, f"{name} must be a number or None")
            if value is not None and not value >= 1:
                raise ConfigurationError(f"{name}={value!r}: it must be at least 1")
        self.budget = budget
        self.prices = prices
        self.reserve = reserve
        self.spent: float = 0.0
        self._reserved: dict[Turn, float] = {}  # infinite without `max_tokens`
        self._has_warned = False  # has logged that requests without `max_tokens` run alone
        self._running: dict[Turn, RequestStart | None] = {}
        self._recent: deque[RequestStart] = deque()  # oldest first
        self._recent_tokens = 0
        self._rate_limited_until = 0.0  # from a 429

    def __reduce__(self) -> tuple[Any, ...]:
        make = partial(
            Limits,
            requests_per_minute=self.requests_per_minute,
            tokens_per_minute=self.tokens_per_minute,
            concurrency=self.concurrency,
            budget=None if self.budget is None else max(0.0, self.budget - self.spent),
            prices=self.prices,
            reserve=self.reserve,
        )
        return make, ()

    @property
    def counts_tokens(self) -> bool:
        """Whether the limits need an estimate of a request's tokens."""
        return self.tokens_per_minute is not None or self.budget is not None

    def request(
        self, model: str, tokens: int = 0, most: Usage | None = None
    ) -> AbstractAsyncContextManager[Turn]:
        """Wait for a turn, and end it with the block; see `turn_in`."""
        return turn_in((self,), model, tokens, most)

    def slow_down(self, seconds: float) -> None:
        """Start nothing for this time, because a server has answered 429."""
        now = asyncio.get_running_loop().time()
        self._rate_limited_until = max(self._rate_limited_until, now + seconds)

    # --- called by `Turn`, for all of its limits at one moment

    @property
    def is_full(self) -> bool:
        """Whether nothing can start before a turn ends."""
        return self.concurrency is not None and len(self._running) >= self.concurrency

    def is_rate_limited(self, now: float) -> bool:
        """Return whether nothing may start because of a 429."""
        return self._rate_limited_until > now

    def refusal(self, turn: Turn) -> BudgetExceeded | None:
        """Return the error if `turn` may never start, else None."""
        if self.budget is None:
            return None
        if self.prices is not None and turn.model not in self.prices:
            return BudgetExceeded(f"{turn.model!r} has no price, so the budget cannot be checked")
        unit = "tokens" if self.prices is None else "(in the currency of prices=)"
        spent = f"{self.spent:g} of {self.budget:g} {unit} are used"
        if self.spent >= self.budget:
            return BudgetExceeded(spent)
        if self.reserve and self.budget - self.spent < (cost := self._expected_cost(turn)):
            may = "may cost" if turn.most is not None else "costs, for its prompt alone, about"
            return BudgetExceeded(f"{spent}, and this request {may} {cost:g}")
        return None

    def _expected_cost(self, turn: Turn) -> float:
        """Return the cost with the estimated prompt and the longest reply."""
        reply = 0 if turn.most is None else turn.most.output_tokens
        prompt = max(0, turn.tokens - reply)
        return self._cost(turn.model, Usage(input_tokens=prompt, output_tokens=reply))

    def _max_cost(self, turn: Turn) -> float:
        return inf if turn.most is None else self._cost(turn.model, turn.most)

    def _cost(self, model: str, usage: Usage) -> float:
        if self.prices is None:
            return max(0, usage.total_tokens)
        price = self.prices.get(model)
        return 0.0 if price is None else max(0.0, price.of(usage))

    def start_time(self, turn: Turn, now: float) -> float | None:
        """Return when `turn` may start: 0 is now, None is after another one ends."""
        if self.is_full:
            return None
        if self._reserved and self.budget is not None:
            reserved = sum(self._reserved.values())
            if (most := self._max_cost(turn)) > self.budget - self.spent - reserved:
                if not self._has_warned and inf in (most, reserved):
                    self._has_warned = True
                    logger.warning(_ALONE_WARNING, turn.model)
                return None
        while self._recent and self._recent[0].at + _MINUTE_SECONDS <= now:
            self._recent[0].is_expired = True
            self._recent_tokens -= self._recent.popleft().tokens
        most_requests, most_tokens = self.requests_per_minute, self.tokens_per_minute
        requests, tokens = len(self._recent) + 1, self._recent_tokens + turn.tokens
        until = self._rate_limited_until
        for start in self._recent:
            if (most_requests is None or requests <= most_requests) and (
                most_tokens is None or tokens <= most_tokens
            ):
                break
            until = max(self._rate_limited_until, start.at + _MINUTE_SECONDS)
            requests, tokens = requests - 1, tokens - start.tokens
        return until if until > now else 0.0

    def start(self, turn: Turn, now: float) -> None:
        """Count `turn` as started."""
        start = None
        if self.requests_per_minute is not None or self.tokens_per_minute is not None:
            start = RequestStart(now, turn.tokens)
            self._recent.append(start)
            self._recent_tokens += turn.tokens
        self._running[turn] = start
        if self.reserve:
            self._reserved[turn] = self._max_cost(turn)

    def end(self, turn: Turn) -> None:
        """Count `turn` as ended, with its usage."""
        start, took = self._running.pop(turn), turn.took
        self._reserved.pop(turn, None)
        if start is not None and not start.is_expired:
            tokens = max(0, took.total_tokens)
            self._recent_tokens += tokens - start.tokens
            start.tokens = tokens
            if not turn.was_sent:
                self._recent.remove(start)
        self.spent += self._cost(turn.model, took)

    def count_again(self, account: str, amount: Any) -> None:
        """Count the usage of an earlier execution of a durable run."""
        if isinstance(amount, Usage):
            with LIMITS_LOCK:
                self.spent += self._cost(account, amount)

    def end_orphans(self) -> None:
        """End the running turns whose event loop was closed."""
        for turn in [turn for turn in self._running if turn.is_orphaned]:
            turn.leave()


@asynccontextmanager
async def turn_in(
    limits: Iterable[TurnLimits], model: str, tokens: int = 0, most: Usage | None = None
) -> AsyncGenerator[Turn, None]:
    """Wait for a turn in all of `limits`, and end it with the block.

    `tokens` is an estimate, `most` an upper bound if known; set `turn.usage` when it is known. A
    cancelled wait has no effect on others. Raises `BudgetExceeded`, also for a model that `prices`
    do not have.

    Turns of other processes are requested when the limits of this one would allow the start. If
    these no longer do when the remote turns have started, the remote ones are given back.
    """
    by_id = {id(each): each for each in limits}
    local = tuple(each for each in by_id.values() if isinstance(each, Limits))
    remote = [each for each in by_id.values() if not isinstance(each, Limits)]
    turn = Turn(model, tokens, local, most=most, queue=tuple(by_id), needs_remote_turn=bool(remote))
    try:
        while True:
            await turn.wait_ready()
            if not remote:
                yield turn
                return
            async with AsyncExitStack() as stack:
                remote_turns = [
                    await stack.enter_async_context(each.request(model, tokens, most))
                    for each in remote
                ]
                try:
                    if turn.start_granted():
                        yield turn
                        return
                finally:
                    if turn.was_sent:
                        # first, so that its usage counts here before another request starts
                        # remotely
                        turn.leave()
                    for each in remote_turns:
                        each.usage = turn.took
                        if not turn.was_sent:
                            each.mark_unsent()
    finally:
        turn.leave()


def limits_of(node: Node[Any] | None) -> list[TurnLimits]:
    """Return the limits that apply to requests of `node`: its own and those of all nodes above."""
    if node is None:
        return []
    return [limits for limits in limits_around(node) if isinstance(limits, TurnLimits)]


def cost(usage: Mapping[str, Usage], prices: Mapping[str, Price]) -> float:
    """Return the cost of usage by model, as `commander.usage()` returns it.

        print(cost(commander.usage(), {"gpt-5": Price(input=1.25, output=10)}))

    Raises `ConfigurationError` for a model without a price.
    """
    if unknown := sorted(usage.keys() - prices.keys()):
        raise ConfigurationError(f"prices= has no price for {', '.join(unknown)}")
    return sum((prices[model].of(used) for model, used in usage.items()), 0.0)
