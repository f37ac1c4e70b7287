"""Policies for failures of a node's children; retries and restarts of the node itself."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import Any, Literal, TypeAlias, cast

from .errors import is_final
from .kinds import FUNCTION, NUMBER, require

__all__ = ["Policy", "Quorum", "Restart", "Retry", "quorum"]


@dataclass(frozen=True, slots=True)
class Quorum:
    """A policy: a node needs `n` completed children.

    When `n` have completed, the others are cancelled, and children added later are cancelled before
    they run; the body continues. If fewer than `n` have completed at the join, the node fails with
    `QuorumNotMet`; otherwise the failures of the others are logged as warnings. If the body fails,
    the children are cancelled and the node fails with the body's exception, however many have
    completed.
    """

    n: int

    def __post_init__(self) -> None:
        require(self.n, int, "the n of a quorum must be a whole number")
        if self.n < 1:
            raise ValueError(f"a quorum needs at least one child, not {self.n!r}")


Policy: TypeAlias = Literal["fail_fast", "collect", "isolate"] | Quorum
"""How a node handles failures of children that no code awaits (contract T4)."""


def quorum(n: int) -> Quorum:
    """Return the policy of a node that needs `n` completed children: `put_job(job, policy=...)`."""
    return Quorum(n)


def check_policy(policy: object) -> None:
    """Raise `ValueError` unless `policy` is a policy."""
    if policy not in ("fail_fast", "collect", "isolate") and not isinstance(policy, Quorum):
        raise ValueError(
            f"policy must be 'fail_fast', 'collect', 'isolate' or quorum(n), not {policy!r}"
        )


def check_timeout(timeout: object) -> None:
    """Raise a `TypeError` unless `timeout` is a number of seconds or None."""
    if timeout is not None and not (isinstance(timeout, (int, float)) and timeout == timeout):
        raise TypeError(f"timeout must be a number of seconds or None, not {timeout!r}")


def check_retry(retry: object) -> None:
    """Raise a `TypeError` unless `retry` is a `Retry`, a `Restart` or None."""
    if retry is not None and not isinstance(retry, (Retry, Restart)):
        raise TypeError(f"retry must be a Retry, a Restart or None, not {retry!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Run a node again when it fails: `put_job(job, retry=Retry(attempts=5, backoff=1))`.

    `attempts` includes the first. `on` is an exception type, several, or a predicate; other
    failures are final. The wait before attempt n+1 is `backoff * factor ** (n - 1)`
    seconds, at most `max_backoff`, less a random part: `jitter` is the largest share that may be
    subtracted. 1 is the "full jitter" of Amazon's "Exponential Backoff and Jitter", 0 is none.
    `within` is in seconds from the start of the first attempt; no attempt begins after that. A
    cancelled node is not retried, nor a failure with `ContextError` or of an approval function. If
    the predicate raises, that is logged and the failure is final.
    """

    attempts: int = 3
    on: type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], bool] = (
        Exception
    )
    backoff: float = 0.0
    factor: float = 2.0
    max_backoff: float = 60.0
    jitter: float = 1.0
    within: float | None = None

    def __post_init__(self) -> None:
        for name in "attempts", "backoff", "factor", "max_backoff", "jitter":
            require(getattr(self, name), NUMBER, f"{name} of a Retry must be a number")
        require(self.within, NUMBER | None, "within of a Retry must be a number of seconds or None")
        wanted = "on must be an exception type, several in a tuple, or a function of the error"
        kinds = cast("tuple[Any, ...]", (self.on,) if callable(self.on) else self.on)
        require(kinds, tuple, wanted)
        for each in kinds:
            require(each, FUNCTION if each is self.on else type, wanted)
        if self.attempts < 1:
            raise ValueError(
                f"attempts must be at least 1, which includes the first, not {self.attempts!r}"
            )
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter must be between 0 and 1, not {self.jitter!r}")
        if iscoroutinefunction(self.on):
            raise TypeError(f"on= must be a plain function, not async: {self.on!r}")

    def next_delay(
        self, error: BaseException | None, starts: list[float], now: float
    ) -> float | None:
        """Return the seconds before the next attempt; None if there is none.

        `starts` has the times at which the attempts began, on the clock of `now`. `error` is None
        if the last attempt succeeded.
        """
        if error is None or len(starts) >= self.attempts or is_final(error):
            return None
        by_type = isinstance(self.on, (type, tuple))
        if not (isinstance(error, self.on) if by_type else self.on(error)):  # type: ignore
            return None
        ceiling = 0.0
        if self.backoff:
            try:
                ceiling = min(
                    self.backoff * float(self.factor) ** (len(starts) - 1), self.max_backoff
                )
            except OverflowError:
                ceiling = self.max_backoff
        delay = ceiling * (1 - self.jitter * random.random())  # noqa: S311 - not for secrets
        if self.within is not None and now + delay > starts[0] + self.within:
            return None
        return delay


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Restart a long-lived node, as an Erlang supervisor does: `retry=Restart(max=5)`.

    It restarts after each failure, `backoff` seconds later. After more than `max` restarts within
    `within` seconds the node fails, and its parent's policy decides. With `always`, a node that
    returned is restarted too (Erlang's "permanent").
    """

    max: int = 3
    within: float = 60.0
    backoff: float = 0.0
    always: bool = False

    def __post_init__(self) -> None:
        for name in "max", "within", "backoff":
            require(getattr(self, name), NUMBER, f"{name} of a Restart must be a number")

    def next_delay(
        self, error: BaseException | None, starts: list[float], now: float
    ) -> float | None:
        """Return the seconds before the next start; None if there were too many.

        Removes restarts that are older than `within` from `starts`, so that the list stays short.
        """
        if error is None and not self.always:
            return None
        starts[1:] = [at for at in starts[1:] if at > now - self.within]
        return self.backoff if len(starts) - 1 < self.max else None
