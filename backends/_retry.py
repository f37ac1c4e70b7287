"""When to try again, and when to stop trying for a while: retries and the breaker."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ..commander.errors import BackendError, BackendUnavailable, RateLimited

__all__ = ["Breaker", "Retries"]


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a request is tried before its first token has come, and how long between.

    `attempts` includes the first. Tried again are `BackendUnavailable` and `RateLimited`. The
    pause, in seconds, doubles from `backoff` to `max_backoff` and is shortened by chance by up to
    half, so that many do not come back at once. A server's Retry-After is waited for instead, and
    up to a tenth longer; if it asks for more than `patience` the failure is raised at once.
    """

    attempts: int = 3
    backoff: float = 0.5
    max_backoff: float = 8.0
    patience: float = 120.0

    def pause(self, attempt: int, error: BackendError) -> float | None:
        """Return how long to wait after `attempt` (from 1) failed so, None for no other try."""
        if attempt >= self.attempts or not isinstance(error, BackendUnavailable | RateLimited):
            return None
        retry_after: float | None = getattr(error, "retry_after", None)
        if retry_after is None:
            pause = min(self.max_backoff, self.backoff * 2.0 ** (attempt - 1))
            return pause * random.uniform(0.5, 1.0)  # noqa: S311 - not a secret
        if retry_after > self.patience:
            return None
        return retry_after * random.uniform(1.0, 1.1)  # noqa: S311 - not a secret


@dataclass(slots=True)
class Breaker:
    """Opens after `failures` attempts in a row found the server down; shared by who shares it.

    While it is open every attempt fails at once with `BackendUnavailable`. After `reset_after`
    seconds it is half open: one attempt goes through; if it gets an answer (a refusal is one) the
    breaker closes, if not it opens again.
    """

    failures: int = 5
    reset_after: float = 30.0
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)
    _in_a_row: int = field(default=0, init=False, repr=False)
    _opened: float | None = field(default=None, init=False, repr=False)
    _trying: bool = field(default=False, init=False, repr=False)  # the half-open attempt runs

    @property
    def state(self) -> str:
        """`closed`, `open` or `half open`."""
        if self._opened is None:
            return "closed"
        return "open" if self.clock() < self._opened + self.reset_after else "half open"

    @contextmanager
    def attempt(self) -> Generator[None, None, None]:
        """Let one attempt through, or raise `BackendUnavailable`; learn from how it ends."""
        state = self.state
        if state == "open" or (state == "half open" and self._trying):
            raise BackendUnavailable(
                f"not asked: it failed {self._in_a_row} times in a row; "
                f"it is tried again {self.reset_after:g} s after the last failure"
            )
        is_trial = state == "half open"
        self._trying = self._trying or is_trial
        try:
            yield
        except BackendError as error:
            self._learn(isinstance(error, BackendUnavailable))
            raise
        else:
            self._learn(down=False)
        finally:
            if is_trial:
                self._trying = False

    def _learn(self, down: bool) -> None:
        if not down:
            self._in_a_row, self._opened = 0, None
            return
        self._in_a_row += 1
        if self._in_a_row >= self.failures:
            self._opened = self.clock()
