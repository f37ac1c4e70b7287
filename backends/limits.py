"""Limits that many share: requests and tokens a minute, how many at once, and a budget.

`Limits` has the rules; who goes first where many wait is in `_turn.py`. Other rooms take turns by
`turn_in`, in the limits that `limits_of` a node gives, and bring limits of their own as `Turns`.
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
from ._turn import LOCK, Gate, Turn

__all__ = ["Limits", "Price", "Turn", "Turns", "cost", "limits_of", "turn_in"]

logger = logging.getLogger("anabranch.backends")

_MINUTE = 60.0
_GOES_ALONE = (
    "a request to %s has to wait: Limits(reserve=True) cannot tell what a request without"
    " max_tokens may cost, and runs it alone. Set max_tokens."
)


@checked
@dataclass(frozen=True, slots=True)
class Price:
    """What a million tokens cost. Cached input costs as input does unless said otherwise."""

    input: float
    output: float
    cached_input: float | None = None

    def of(self, usage: Usage) -> float:
        """Return what `usage` costs."""
        price = self.input if self.cached_input is None else self.cached_input
        cached = max(0, min(usage.cached_input_tokens, usage.input_tokens))
        total = (usage.input_tokens - cached) * self.input + cached * price
        return (total + usage.output_tokens * self.output) / 1e6


@dataclass(eq=False, slots=True)
class Start:
    """A start within the last minute, with the estimate of its tokens until they are known."""

    at: float
    tokens: int
    old: bool = False  # it is more than a minute ago


class Turns(NodeLimits):
    """Who gives requests their turns: `Limits`, or what stands for those of another process."""

    @property
    @abstractmethod
    def counts_tokens(self) -> bool:
        """Whether an estimate of a request's tokens is of any use."""

    @abstractmethod
    def request(
        self, model: str, tokens: int = 0, most: Usage | None = None
    ) -> AbstractAsyncContextManager[Turn]:
        """Wait for a turn; see `Limits.request`."""


class Limits(Gate, Turns):
    """Holds requests back until they may start; give one object to all that should share it.

    It goes to a backend, `connect(..., limits=Limits(...))`, to a whole tree, whichever backends it
    uses, `Commander(limits=Limits(...))`, or to a part of one, `commander.run(job, limits=...)`. A
    request starts once all limits that hold for it let it, and takes its turn in all of them in
    that moment; while it waits it has none of them.

    First come, first served: a request that must wait makes those behind it wait too, but for
    those that it could not start before anyway, since another limit holds it back that is not
    theirs. In no 60 seconds do more than `requests_per_minute` start, nor more than
    `tokens_per_minute` tokens (estimated at the start, corrected at the end; a request above the
    limit by itself goes alone). `concurrency` counts replies that are still coming.

    `budget` is in tokens or, with `prices` (by model name), in their money; `spent` is what has
    been used of it, and is counted without a budget too. Once it is spent every request is refused
    with `BudgetExceeded`, the waiting ones too; replies that are under way then go over it by what
    they take.

    With `reserve` requests that leave together do not go over it. A request is refused if its
    prompt, as estimated, and all of `max_tokens` are more than is left. It sets aside what it may
    cost at most, a token for each byte of its prompt and all of `max_tokens`, and waits while
    others have set aside what it would need; if nobody has, it starts. So one request at a time
    can go over the budget, by what its provider counts beyond the estimate of its prompt. One
    without `max_tokens` may cost anything, so it goes alone, and can go over by its reply too. See
    docs/backends-limits.md for what else can. What never ran costs nothing.

    Event loops in several threads may use one object at once.

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
        reserve: bool = False,
    ) -> None:
        super().__init__()
        require(budget, NUMBER | None, "budget must be a number or None")
        require(prices, Mapping | None, "prices must be a mapping from models to Prices, or None")
        for model, price in (prices or {}).items():
            require(price, Price, f"the price of {model!r} must be a Price")
        if reserve and budget is None:
            raise ConfigurationError("reserve=True sets aside parts of a budget: give one")
        if budget != budget:  # NaN, which nothing ever reaches
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
        self.spent = 0.0
        self._reserved: dict[Turn, float] = {}  # infinite where nobody can tell
        self._has_warned = False  # that requests without `max_tokens` go one by one
        self._running: dict[Turn, Start | None] = {}
        self._recent: deque[Start] = deque()  # oldest first
        self._recent_tokens = 0
        self._held_until = 0.0  # a 429 said to wait until then

    def __reduce__(self) -> tuple[Any, ...]:
        made = partial(
            Limits,
            requests_per_minute=self.requests_per_minute,
            tokens_per_minute=self.tokens_per_minute,
            concurrency=self.concurrency,
            budget=None if self.budget is None else max(0.0, self.budget - self.spent),
            prices=self.prices,
            reserve=self.reserve,
        )
        return made, ()

    @property
    def counts_tokens(self) -> bool:
        """Whether an estimate of a request's tokens is of any use."""
        return self.tokens_per_minute is not None or self.budget is not None

    def request(
        self, model: str, tokens: int = 0, most: Usage | None = None
    ) -> AbstractAsyncContextManager[Turn]:
        """Wait for a turn, and give it back at the end of the block; see `turn_in`."""
        return turn_in((self,), model, tokens, most)

    def slow_down(self, seconds: float) -> None:
        """Start nothing for so long: a server said that there were too many."""
        now = asyncio.get_running_loop().time()
        self._held_until = max(self._held_until, now + seconds)

    # --- what a `Turn` asks and says, all of its limits in one moment

    @property
    def is_full(self) -> bool:
        """Whether nothing can start before something ends."""
        return self.concurrency is not None and len(self._running) >= self.concurrency

    def is_held(self, now: float) -> bool:
        """Say whether a 429 keeps everything from starting."""
        return self._held_until > now

    def refusal(self, turn: Turn) -> BudgetExceeded | None:
        """Return why `turn` is refused, None if it is not."""
        if self.budget is None:
            return None
        if self.prices is not None and turn.model not in self.prices:
            return BudgetExceeded(f"{turn.model!r} has no price, so the budget cannot be kept")
        unit = "tokens" if self.prices is None else "of the prices' money"
        spent = f"{self.spent:g} of {self.budget:g} {unit} are spent"
        if self.spent >= self.budget:
            return BudgetExceeded(spent)
        if self.reserve and self.budget - self.spent < (cost := self._expected(turn)):
            may = "may cost" if turn.most is not None else "costs, for its prompt alone, about"
            return BudgetExceeded(f"{spent}, and this request {may} {cost:g}")
        return None

    def _expected(self, turn: Turn) -> float:
        """Return what `turn` costs if its prompt is as estimated and its reply is the longest."""
        reply = 0 if turn.most is None else turn.most.output_tokens
        prompt = max(0, turn.tokens - reply)
        return self._cost(turn.model, Usage(input_tokens=prompt, output_tokens=reply))

    def _most(self, turn: Turn) -> float:
        return inf if turn.most is None else self._cost(turn.model, turn.most)

    def _cost(self, model: str, usage: Usage) -> float:
        if self.prices is None:
            return max(0, usage.total_tokens)
        price = self.prices.get(model)
        return 0.0 if price is None else max(0.0, price.of(usage))

    def opens(self, turn: Turn, now: float) -> float | None:
        """Return when `turn` may start: 0 is now, None is not before something ends."""
        if self.is_full:
            return None
        if self._reserved and self.budget is not None:
            reserved = sum(self._reserved.values())
            if (most := self._most(turn)) > self.budget - self.spent - reserved:
                if not self._has_warned and inf in (most, reserved):
                    self._has_warned = True
                    logger.warning(_GOES_ALONE, turn.model)
                return None
        while self._recent and self._recent[0].at + _MINUTE <= now:
            self._recent[0].old = True
            self._recent_tokens -= self._recent.popleft().tokens
        most_requests, most_tokens = self.requests_per_minute, self.tokens_per_minute
        requests, tokens = len(self._recent) + 1, self._recent_tokens + turn.tokens
        until = self._held_until
        for start in self._recent:
            if (most_requests is None or requests <= most_requests) and (
                most_tokens is None or tokens <= most_tokens
            ):
                break
            until = max(self._held_until, start.at + _MINUTE)
            requests, tokens = requests - 1, tokens - start.tokens
        return until if until > now else 0.0

    def start(self, turn: Turn, now: float) -> None:
        """Take note that `turn` has started."""
        start = None
        if self.requests_per_minute is not None or self.tokens_per_minute is not None:
            start = Start(now, turn.tokens)
            self._recent.append(start)
            self._recent_tokens += turn.tokens
        self._running[turn] = start
        if self.reserve:
            self._reserved[turn] = self._most(turn)

    def end(self, turn: Turn) -> None:
        """Take note that `turn` has ended, and of what it took."""
        start, took = self._running.pop(turn), turn.took
        self._reserved.pop(turn, None)
        if start is not None and not start.old:
            tokens = max(0, took.total_tokens)
            self._recent_tokens += tokens - start.tokens
            start.tokens = tokens
            if not turn.was_sent:
                self._recent.remove(start)
        self.spent += self._cost(turn.model, took)

    def count_again(self, account: str, amount: Any) -> None:
        """Count what was spent in an earlier life of a durable run."""
        if isinstance(amount, Usage):
            with LOCK:
                self.spent += self._cost(account, amount)

    def end_lost(self) -> None:
        """Let those leave whose event loop was closed while they ran."""
        for turn in [turn for turn in self._running if turn.is_lost]:
            turn.leave()


@asynccontextmanager
async def turn_in(
    limits: Iterable[Turns], model: str, tokens: int = 0, most: Usage | None = None
) -> AsyncGenerator[Turn, None]:
    """Wait for a turn in all of `limits`, and give it back at the end of the block.

    `tokens` is an estimate, `most` what it may take at most, if anybody can tell; set `turn.usage`
    when it is known. Cancelling the wait leaves all as if the request had never been there. Raises
    `BudgetExceeded`, also for a model without a price where there are prices.

    Where some of the limits are kept elsewhere, a turn there is asked for once those that are kept
    here would let the request start. If they no longer do when it comes, it is given back.
    """
    every = {id(each): each for each in limits}
    here = tuple(each for each in every.values() if isinstance(each, Limits))
    elsewhere = [each for each in every.values() if not isinstance(each, Limits)]
    turn = Turn(model, tokens, here, most=most, line=tuple(every), asks=bool(elsewhere))
    try:
        while True:
            await turn.ready()
            if not elsewhere:
                yield turn
                return
            async with AsyncExitStack() as stack:
                given = [
                    await stack.enter_async_context(each.request(model, tokens, most))
                    for each in elsewhere
                ]
                try:
                    if turn.start_granted():
                        yield turn
                        return
                finally:
                    if turn.was_sent:
                        turn.leave()  # before anybody elsewhere starts instead: it is paid for
                    for each in given:
                        each.usage = turn.took
                        if not turn.was_sent:
                            each.unsend()
    finally:
        turn.leave()


def limits_of(node: Node[Any] | None) -> list[Turns]:
    """Return all limits that hold for what `node` asks, its own and those of all above it."""
    if node is None:
        return []
    return [limits for limits in limits_around(node) if isinstance(limits, Turns)]


def cost(usage: Mapping[str, Usage], prices: Mapping[str, Price]) -> float:
    """Return what `usage` costs, by model as `commander.usage()` has it.

    Raises `ConfigurationError` for a model without a price.
    """
    if unknown := sorted(usage.keys() - prices.keys()):
        raise ConfigurationError(f"there is no price for {', '.join(unknown)}")
    return sum((prices[model].of(used) for model, used in usage.items()), 0.0)
