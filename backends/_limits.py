"""Limits that many share: requests and tokens a minute, how many at once, and a budget."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from ..commander import current_node
from ..commander._errors import BudgetExceeded, ConfigurationError
from ..dispatch import Request, Usage

__all__ = ["Limits", "Price", "Turn", "Turns", "estimate_tokens", "tree_limits"]

_MINUTE = 60.0
_CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Price:
    """What a million tokens cost. Cached input costs as input does unless said otherwise."""

    input: float
    output: float
    cached_input: float | None = None

    def of(self, usage: Usage) -> float:
        """Return what `usage` costs."""
        cached = self.input if self.cached_input is None else self.cached_input
        fresh = usage.input_tokens - usage.cached_input_tokens
        total = fresh * self.input + usage.cached_input_tokens * cached
        return (total + usage.output_tokens * self.output) / 1e6


@dataclass(eq=False, slots=True)
class Turn:
    """One request's place in the limits: what it is thought to take, then what it took."""

    model: str
    tokens: int  # the estimate, until the usage is known
    started: float = 0.0
    waiter: asyncio.Future[None] | None = None  # None if it never had to wait
    usage: Usage | None = None


class Turns(Protocol):
    """Who gives requests their turns: `Limits`, or what stands for those of another process."""

    @property
    def counts_tokens(self) -> bool:
        """Whether an estimate of a request's tokens is of any use."""
        ...

    def request(self, model: str, tokens: int = 0) -> AbstractAsyncContextManager[Turn]:
        """Wait for a turn; see `Limits.request`."""
        ...


class Limits:
    """Holds requests back until they may start; give one object to all that should share it.

    It goes to a backend, `connect(..., limits=Limits(...))`, or to a whole tree, whichever backends
    it uses: `commander.limits = Limits(...)`. A request has to pass both.

    First come, first served: a request that must wait makes those behind it wait too. In no 60
    seconds do more than `requests_per_minute` start, nor more than `tokens_per_minute` tokens
    (estimated at the start, corrected by the usage; a request above the limit by itself goes
    alone). `concurrency` counts replies that are still coming.

    `budget` is in tokens or, with `prices` (by model name), in their money. Once that much is
    spent every request is refused with `BudgetExceeded`, the waiting ones too; replies that are
    under way then go over it by what they take. One event loop at a time.

    A copy in another process, such as that of a backend which was sent there, begins anew, with
    what is left of the budget.
    """

    def __init__(
        self,
        *,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        concurrency: int | None = None,
        budget: float | None = None,
        prices: Mapping[str, Price] | None = None,
    ) -> None:
        self.requests_per_minute = _positive("requests_per_minute", requests_per_minute)
        self.tokens_per_minute = _positive("tokens_per_minute", tokens_per_minute)
        self.concurrency = _positive("concurrency", concurrency)
        self.budget = budget
        self.prices = prices
        self.spent = 0.0
        self._queue: deque[Turn] = deque()
        self._recent: deque[Turn] = deque()  # started within the last minute, oldest first
        self._recent_tokens = 0
        self._active = 0
        self._held_until = 0.0  # a 429 said to wait until then
        self._timer: asyncio.TimerHandle | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        made = partial(
            Limits,
            requests_per_minute=self.requests_per_minute,
            tokens_per_minute=self.tokens_per_minute,
            concurrency=self.concurrency,
            budget=None if self.budget is None else max(0.0, self.budget - self.spent),
            prices=self.prices,
        )
        return made, ()

    @property
    def counts_tokens(self) -> bool:
        """Whether an estimate of a request's tokens is of any use."""
        return self.tokens_per_minute is not None or self.budget is not None

    @asynccontextmanager
    async def request(self, model: str, tokens: int = 0) -> AsyncGenerator[Turn, None]:
        """Wait for a turn, and give it back at the end of the block.

        `tokens` is an estimate; set `turn.usage` when it is known. Cancelling the wait leaves the
        queue as if the request had never been there. Raises `BudgetExceeded`, also for a model
        without a price where there are prices.
        """
        turn = Turn(model, tokens)
        if not self.start_nowait(turn):
            await self._wait(turn)
        try:
            yield turn
        finally:
            self._end(turn)

    def start_nowait(self, turn: Turn) -> bool:
        """Start `turn` if it may start now. Raises as `request` does."""
        self._check_budget(turn.model)
        if self._queue or self._delay(turn) != 0:
            return False
        self._start(turn)
        return True

    def slow_down(self, seconds: float) -> None:
        """Start nothing for so long: a server said that there were too many."""
        self._held_until = max(self._held_until, _now() + seconds)

    async def _wait(self, turn: Turn) -> None:
        turn.waiter = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        self._start_waiting()
        try:
            await turn.waiter
        except asyncio.CancelledError:
            if turn.waiter.cancelled():
                self._start_waiting()
            else:
                self._end(turn)
            raise

    def _start(self, turn: Turn) -> None:
        turn.started = _now()
        self._active += 1
        if self.requests_per_minute is not None or self.tokens_per_minute is not None:
            self._recent.append(turn)
            self._recent_tokens += turn.tokens

    def _end(self, turn: Turn) -> None:
        self._active -= 1
        estimated = turn.tokens
        if turn.usage is not None:
            turn.tokens = turn.usage.total_tokens
        if self._recent and turn.started >= self._recent[0].started:
            self._recent_tokens += turn.tokens - estimated
        if self.budget is not None:
            self.spent += self._cost(turn)
        self._start_waiting()

    def _start_waiting(self) -> None:
        """Start those who wait, from the first, until one must wait on."""
        while self._queue:
            turn = self._queue[0]
            assert turn.waiter is not None
            if turn.waiter.done():  # cancelled
                self._queue.popleft()
                continue
            if not self._may_go_on(turn, turn.waiter):
                return
            self._queue.popleft()

    def _may_go_on(self, turn: Turn, waiter: asyncio.Future[None]) -> bool:
        try:
            self._check_budget(turn.model)
        except BudgetExceeded as error:
            waiter.set_exception(error)
            return True
        delay = self._delay(turn)
        if delay == 0:
            self._start(turn)
            waiter.set_result(None)
        elif delay is not None:
            self._look_again(delay)
        return delay == 0

    def _look_again(self, delay: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay, self._start_waiting)

    def _delay(self, turn: Turn) -> float | None:
        """Return the seconds until `turn` may start; None: not before another ends."""
        if self.concurrency is not None and self._active >= self.concurrency:
            return None
        now = _now()
        self._forget_old(now)
        until = max(self._held_until, self._rates_allow(turn))
        return max(0.0, until - now)

    def _rates_allow(self, turn: Turn) -> float:
        """Return when the rates let `turn` start, 0 for now."""
        when, requests, tokens = 0.0, len(self._recent), self._recent_tokens
        for old in self._recent:
            if not self._too_many(requests + 1, tokens + turn.tokens):
                break
            when = old.started + _MINUTE
            requests, tokens = requests - 1, tokens - old.tokens
        return when

    def _too_many(self, requests: int, tokens: int) -> bool:
        return (self.requests_per_minute is not None and requests > self.requests_per_minute) or (
            self.tokens_per_minute is not None and tokens > self.tokens_per_minute
        )

    def _forget_old(self, now: float) -> None:
        while self._recent and self._recent[0].started + _MINUTE <= now:
            self._recent_tokens -= self._recent.popleft().tokens

    def _check_budget(self, model: str) -> None:
        if self.budget is None:
            return
        if self.prices is not None and model not in self.prices:
            raise BudgetExceeded(f"{model!r} has no price, so the budget cannot be kept")
        if self.spent >= self.budget:
            unit = "tokens" if self.prices is None else "of the prices' money"
            raise BudgetExceeded(f"{self.spent:g} of {self.budget:g} {unit} are spent")

    def _cost(self, turn: Turn) -> float:
        if self.prices is None:
            return turn.tokens
        return self._price(turn.model, turn.usage or Usage(input_tokens=turn.tokens))

    def _price(self, model: str, usage: Usage) -> float:
        price = (self.prices or {}).get(model)
        return 0.0 if price is None else price.of(usage)


def estimate_tokens(request: Request, options: Mapping[str, object]) -> int:
    """Guess what `request` will take: a token per four characters, and `max_tokens` if set."""
    characters = sum(len(m.content or "") for m in request.messages)
    most = request.options.get("max_tokens", options.get("max_tokens")) or 0
    return characters // _CHARACTERS_PER_TOKEN + (most if isinstance(most, int) else 0) + 1


def _positive(name: str, value: int | None) -> int | None:
    if value is not None and value < 1:
        raise ConfigurationError(f"{name}={value!r}: it must be at least 1")
    return value


def _now() -> float:
    return asyncio.get_running_loop().time()


def tree_limits() -> Turns | None:
    """Return the `limits` of the commander under which this runs, None if it has none."""
    try:
        commander = current_node().commander
    except LookupError:
        return None
    return getattr(commander, "limits", None)
