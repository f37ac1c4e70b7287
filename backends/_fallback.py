"""`Fallback`: a backend that asks another one if one fails."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress

from ..commander import payer
from ..commander.errors import (
    BackendError,
    BackendUnavailable,
    BudgetExceeded,
    ConfigurationError,
    RateLimited,
)
from ..commander.kinds import NUMBER, require
from ..messages import Delta, OutputMode, Request, require_request
from ._backend import Backend
from ._named import as_backend
from ._request_fit import can_take
from ._retry import Breaker
from .limits import Limits, limits_of

__all__ = ["Fallback"]


# Payment required, and too many requests. Both may mean that the account's quota is used up.
_QUOTA_STATUSES = (402, 429)


class Fallback(Backend):
    """Asks each of `backends` in turn until one answers.

        backend = Fallback(["openai:gpt-5", connect("http://HOST/v1", model="m")])

    It asks the next one if a backend is unavailable, limits the rate or has no quota left (status
    402 or 429), after that backend's own retries and only before the first delta. Other errors are
    raised unchanged, because the next backend would hide a wrong key or a wrong name. A backend
    that was down `failures` times in a row is skipped for `reset_after` seconds. If all fail, the
    last failure is raised with a note for each. A backend may be given by its name.

        backend = Fallback(["openai:gpt-5", "openai:gpt-5-mini"], over=0.8)

    With `over`, new requests use the next backend first when that share of a budget is spent, here
    80 %. This includes the budgets of the node, of all nodes above it and of the first backend; the
    one that is nearest to its end decides. The first backend is then asked last. A backend whose
    request the rest of a budget does not allow is skipped too. Without a budget, and for budgets of
    another process, `over` has no effect.
    """

    provider = "fallback"

    def __init__(
        self,
        backends: Sequence[Backend | str],
        *,
        failures: int = 3,
        reset_after: float = 30.0,
        over: float | None = None,
    ) -> None:
        if not backends:
            raise ConfigurationError("Fallback needs at least one backend")
        if isinstance(backends, str):
            raise ConfigurationError("Fallback needs a list of backends, from connect(), or names")
        require(over, NUMBER | None, "over must be a number or None")
        if over is not None and not 0 < over <= 1:
            raise ConfigurationError(
                f"over={over!r}: it must be a share of the budget above 0, at most 1, such as 0.8"
            )
        self.backends: tuple[Backend, ...] = tuple(as_backend(each) for each in backends)
        if not all(isinstance(each, Backend) for each in self.backends):  # pyright: ignore[reportUnnecessaryIsInstance] - users' own
            raise ConfigurationError("Fallback needs backends, from connect(), or their names")
        found = (each for backend in reversed(self.backends) for each in backend.formats)
        formats = {each.open: each for each in found}
        super().__init__(self.backends[0].model, formats=[*formats.values()])
        self.over: float | None = over
        self._breakers = [Breaker(failures, reset_after) for _ in backends]

    @property
    def asks_others(self) -> bool:
        """True: each of `backends` emits the events of its own requests."""
        return True

    @property
    def takes(self) -> frozenset[str] | None:
        """The kinds of input that at least one backend takes, such as "image".

        A request with an image skips the backends that do not take images.
        """
        known = [each.takes for each in self.backends if each.takes is not None]
        return frozenset[str]().union(*known) if len(known) == len(self.backends) else None

    @property
    def output_modes(self) -> Sequence[OutputMode]:
        """The modes of typed output that all backends have, the best first.

        Each backend gets the same request. So the first mode is the one that is the best for the
        backend with the fewest possibilities.
        """
        orders = [each.output_modes for each in self.backends]
        common: list[OutputMode] = [
            mode for mode in orders[0] if all(mode in order for order in orders)
        ]
        common.sort(key=lambda mode: max(order.index(mode) for order in orders))
        return common

    def __repr__(self) -> str:
        return f"Fallback({list(self.backends)!r})"

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Answer `request` with the first backend that can."""
        require_request(request)
        failures: list[BackendError] = []
        pairs = list(zip(self.backends, self._breakers, strict=True))
        if self._is_over():
            pairs.append(pairs.pop(0))
        able = [each for each in pairs if can_take(each[0], request)] or pairs
        for backend, breaker in able:
            has_begun = False
            try:
                with breaker.attempt():
                    async with aclosing(backend.stream(request)) as deltas:
                        async for delta in deltas:
                            has_begun = True
                            yield delta
                return
            except BackendError as error:
                is_refusal = self.over is not None and isinstance(error, BudgetExceeded)
                if has_begun or not (is_refusal or _allows_next(error)):
                    raise
                failures.append(error)
        for (backend, _), failure in zip(able, failures, strict=True):
            with suppress(Exception):  # the `repr` or `str` of a user's class may raise
                failures[-1].add_note(f"{backend!r}: {failure}")
        raise failures[-1]

    def _is_over(self) -> bool:
        """Return whether the share `over` of a budget for the first backend is spent."""
        if self.over is None:
            return False
        first = self.backends[0]
        limits = (*limits_of(payer()), *first.limits_of_model(first.model))
        return any(
            isinstance(each, Limits)
            and each.budget is not None
            and each.spent >= self.over * each.budget
            for each in limits
        )

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Raise `ConfigurationError`: vectors of different models cannot be compared."""
        raise ConfigurationError(
            "a Fallback makes no embeddings, because vectors of different models cannot be"
            " compared; call embed of one of its backends"
        )

    async def warm(self, request: Request) -> None:
        """Warm the first backend."""
        await self.backends[0].warm(request)

    def limits_of_model(self, model: str) -> Sequence[Limits]:
        found = (each.limits_of_model(model) for each in self.backends)
        return next(filter(None, found), ())

    def redact(self, text: str) -> str:
        """Return `text` without the keys of the backends."""
        for backend in self.backends:
            text = backend.redact(text)
        return text

    async def aclose(self) -> None:
        """Close every backend."""
        for backend in self.backends:
            await backend.aclose()

    async def leave_loop(self) -> None:
        for backend in self.backends:
            await backend.leave_loop()


def _allows_next(error: BackendError) -> bool:
    """Return whether the next backend is asked after this error."""
    if isinstance(error, BackendUnavailable | RateLimited):
        return True
    return type(error) is BackendError and error.status in _QUOTA_STATUSES
