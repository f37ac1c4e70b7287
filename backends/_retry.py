"""When a request is sent again: retries, the breaker, and the continuation of a broken reply."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ..commander.errors import BackendError, BackendUnavailable, RateLimited
from ..messages import Request

__all__ = ["Breaker", "Retries", "is_constrained", "reduce_token_limits"]


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a request is sent before its first delta, and the pauses in between.

        connect("openai:gpt-5", retries=Retries(attempts=5))

    `attempts` includes the first. `BackendUnavailable` and `RateLimited` are retried. The pause, in
    seconds, doubles from `backoff` to `max_backoff` and is shortened randomly by up to half, so
    that many clients do not return at once. A server's Retry-After replaces it, plus up to a tenth;
    above `patience` the failure is raised at once.
    """

    attempts: int = 3
    backoff: float = 0.5
    max_backoff: float = 8.0
    patience: float = 120.0

    def pause(self, attempt: int, error: BackendError) -> float | None:
        """Return the seconds to wait after this failed `attempt` (from 1), None for no retry."""
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
    """Opens after `failures` attempts in a row found the server down. Backends can share one.

    While it is open every attempt fails at once with `BackendUnavailable`. After `reset_after`
    seconds it is half open: one attempt is sent. An answer (or a refusal) closes the breaker, a
    failure opens it again.
    """

    failures: int = 5
    reset_after: float = 30.0
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)
    _in_a_row: int = field(default=0, init=False, repr=False)
    _opened: float | None = field(default=None, init=False, repr=False)
    # the attempt of the half-open state runs
    _trying: bool = field(default=False, init=False, repr=False)

    @property
    def state(self) -> str:
        """`closed`, `open` or `half open`."""
        if self._opened is None:
            return "closed"
        return "open" if self.clock() < self._opened + self.reset_after else "half open"

    @contextmanager
    def attempt(self) -> Generator[None, None, None]:
        """Allow one attempt or raise `BackendUnavailable`; change the state by its outcome."""
        state = self.state
        if state == "open" or (state == "half open" and self._trying):
            raise BackendUnavailable(
                f"not sent, because the server failed {self._in_a_row} times in a row. "
                f"It is tried again {self.reset_after:g} s after the last failure."
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


# Options that make a reply follow a grammar; the last ones as vLLM, SGLang, llama.cpp and Ollama
# take them in the body.
_GRAMMAR_OPTIONS = (
    *("response_format", "structured_outputs", "format", "grammar", "json_schema", "regex", "ebnf"),
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar"),
)
_TOKEN_LIMITS = {
    "max_tokens": 1,
    "max_completion_tokens": 1,
    "min_tokens": 0,
}  # with their minimum


def is_constrained(request: Request, defaults: Mapping[str, Any]) -> bool:
    """Return whether the reply to `request` follows a grammar, which would start again."""
    options: dict[str, Any] = {**defaults, **request.options}
    options |= {**(defaults.get("extra") or {}), **(request.options.get("extra") or {})}
    for name in _GRAMMAR_OPTIONS:
        if options.get(name) not in (None, "", {"type": "text"}):  # an empty schema counts too
            return True
    return bool(request.tools) and options.get("tool_choice") not in (None, "auto", "none")


def reduce_token_limits(request: Request, defaults: Mapping[str, Any], written: int) -> Request:
    """Return `request` for the rest of a reply that has `written` tokens already."""
    options = {**request.options}
    extra: dict[str, Any] = {**(options.get("extra") or {})}
    extra_defaults: dict[str, Any] = defaults.get("extra") or {}
    for name, minimum in _TOKEN_LIMITS.items():
        for given, changed in (defaults, options), (extra_defaults, extra):
            limit: object = changed.get(name, given.get(name))
            if isinstance(limit, int) and not isinstance(limit, bool):
                changed[name] = max(minimum, limit - written)
    if extra:
        options["extra"] = extra
    return Request(request.messages, request.tools, options)
