"""`ModelBackend`: what happens around each attempt to get a reply from a model."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext
from dataclasses import replace
from typing import Any, Literal

from ..commander import charge, payer
from ..commander.errors import (
    BackendError,
    BackendUnavailable,
    BadResponse,
    ConfigurationError,
    RateLimited,
    StreamInterrupted,
)
from ..dispatch.assembly import assemble_partial
from ..messages import Delta, Message, Request, Usage, require_request
from ..messages.text import quote
from ._backend import Backend
from ._embedding import Embedded, list_of_texts
from ._estimate import CountTokens, Estimator
from ._recorded import note_usage
from ._retry import Breaker, Retries, is_constrained, reduce_token_limits
from ._timeout import Arrival, Timeouts, enforce_timeouts
from .limits import Limits, limits_of, turn_in

__all__ = ["ModelBackend"]


class _Reply:
    """The deltas and the usage of a reply, over all attempts.

    `attempt_usage` counts the last attempt, `earlier_usage` all before it, None if there was none.
    `written_tokens` are the tokens of the text that the next attempt continues. `is_continuation`:
    this attempt continues a text, and has not sent text yet.
    """

    __slots__ = (
        "attempt",
        "attempt_usage",
        "deltas",
        "earlier_deltas",
        "earlier_usage",
        "is_complete",
        "is_continuation",
        "written_tokens",
    )

    def __init__(self) -> None:
        self.attempt = 1
        self.earlier_deltas: list[Delta] = []
        self.deltas: list[Delta] = []
        self.is_continuation = False
        self.attempt_usage = Usage()
        self.earlier_usage: Usage | None = None
        self.written_tokens = 0
        self.is_complete = False

    def add(self, delta: Delta) -> None:
        self.deltas.append(delta)
        if delta.text:
            self.is_continuation = False
        if delta.finish_reason is not None or delta.done:
            self.is_complete = True

    def add_earlier_usage(self, delta: Delta) -> Delta:
        """Return a delta of this attempt with the usage of earlier attempts added."""
        if delta.usage is None or self.earlier_usage is None:
            return delta
        return replace(delta, usage=self.earlier_usage + delta.usage)

    def end_attempt(self) -> None:
        """Move the deltas of this attempt to the earlier ones, before another attempt continues."""
        self.earlier_deltas += map(self.add_earlier_usage, self.deltas)
        has_usage = any(delta.usage is not None for delta in self.deltas)
        # Servers send one or more tokens with each delta, so an estimate is at least that.
        self.written_tokens += max(
            self.attempt_usage.output_tokens, 0 if has_usage else len(self.deltas)
        )
        self.earlier_usage = (
            self.attempt_usage
            if self.earlier_usage is None
            else self.earlier_usage + self.attempt_usage
        )
        self.deltas = []

    def make_error(self, why: BackendError) -> BackendError:
        """Return the error of a reply that failed, with the part of it that has arrived."""
        if not (self.earlier_deltas or self.deltas):
            return why
        if self.deltas and isinstance(why, BadResponse | StreamInterrupted):
            if why.partial is None:
                why.partial = self.partial
            return why
        broken = StreamInterrupted(f"the reply broke off: {why}", partial=self.partial)
        broken.__cause__ = why
        return broken

    @property
    def partial(self) -> Message | None:
        return assemble_partial([*self.earlier_deltas, *map(self.add_earlier_usage, self.deltas)])

    @property
    def has_more_than_text(self) -> bool:
        """Whether it has calls or a refusal, which no server can continue."""
        deltas = (*self.earlier_deltas, *self.deltas)
        return any(delta.tool_calls or delta.refusal for delta in deltas)


class ModelBackend(Backend):
    """A backend with timeouts, retries, limits and a breaker. Subclasses implement `attempt`.

    A request waits for its turn in `limits` and is sent. As long as no delta has arrived, `retries`
    decides whether it is sent again. A reply that breaks off later raises `StreamInterrupted`. With
    `resume="continue"` the model is asked to continue the text, as one more attempt, if the server
    can (`continuation`); a reply with only reasoning starts again. The token limit is reduced by
    the tokens received, and the usage is that of all attempts. A reply with calls or a refusal, or
    one that follows a grammar, is not continued.

    Without `limits` the backend has its own, without bounds, so that a 429 delays all its requests.
    Each attempt is charged to its limits and, under the model's name, to the current node, also if
    it breaks off or is cancelled: the usage that arrived, and an estimate for the text after it. An
    attempt without deltas costs nothing. Estimates count by `count_tokens` or by classes of
    characters, and are corrected by the usage in replies.
    """

    def __init__(
        self,
        model: str,
        *,
        timeouts: Timeouts | None = None,
        retries: Retries | None = None,
        limits: Limits | None = None,
        breaker: Breaker | None = None,
        resume: Literal["continue"] | None = None,
        count_tokens: CountTokens | None = None,
        **default_options: Any,
    ) -> None:
        super().__init__(model, **default_options)
        settings_by_type = {Timeouts: timeouts, Retries: retries, Limits: limits, Breaker: breaker}
        for kind, value in settings_by_type.items():
            if not isinstance(value, kind | None):  # pyright: ignore[reportUnnecessaryIsInstance] - users' own
                name = kind.__name__
                raise ConfigurationError(
                    f"{name.lower()}={quote(value)}: it must be {name}(...) or None"
                )
        if resume not in (None, "continue"):
            raise ConfigurationError(f"resume={quote(resume)}: it must be 'continue' or None")
        self.timeouts: Timeouts = timeouts or Timeouts()
        self.retries: Retries = retries or Retries()
        self.limits: Limits = limits or Limits()
        self.breaker = breaker
        self.resume = resume
        if not (count_tokens is None or callable(count_tokens)):
            raise ConfigurationError(
                f"count_tokens={quote(count_tokens)}: it must be a function of a text, or None"
            )
        self._estimator = Estimator(count_tokens)

    def __getstate__(self) -> object:
        raise ConfigurationError(
            f"{self!r} cannot be sent to another process. Make it with connect(), or there."
        )

    def limits_of_model(self, model: str) -> Sequence[Limits]:
        return (self.limits,) if model == self.model else ()

    async def prepare(self) -> None:
        """Get ready to send, such as by loading a model. The timeouts start after this."""

    @abstractmethod
    def attempt(self, request: Request) -> AsyncGenerator[Arrival, None]:
        """Answer `request` once, without timeouts; raise a `BackendError` without keys.

        Deltas that arrived together may be yielded as one list, never an empty one.
        """

    @asynccontextmanager
    async def charged(self, request: Request, came: list[Delta]) -> AsyncGenerator[None, None]:
        """Hold a turn in all limits, and charge at the end for the deltas in `came`.

        For a subclass that replaces `stream`, without timeouts and retries.
        """
        reply = _Reply()
        reply.deltas, reply.is_complete = came, True
        async with self._turn(request, reply):
            yield

    def continuation(self, request: Request, partial: Message) -> Request | None:
        """Return the request that continues `partial`, None if the server cannot."""
        return None

    def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Answer `request`, delta by delta."""
        require_request(request)
        return self._run_attempts(request, self.attempt)

    async def embed_with(
        self, attempt: Callable[[list[str]], Awaitable[Embedded]], texts: Sequence[str]
    ) -> list[list[float]]:
        """Return the vectors from `attempt`, with limits, retries and charges as for a reply.

        For the `embed` of a subclass. `attempt` asks once, and returns the vectors and the usage,
        None if the server sent none: then it is estimated.
        """
        texts = list_of_texts(texts)
        vectors: list[list[float]] = []
        if not texts:
            return vectors

        async def answer(_: Request) -> AsyncGenerator[Delta, None]:
            vectors[:], usage = await attempt(texts)
            yield Delta(usage=usage, done=True)

        # Estimated as a prompt with these texts, whose reply is one delta without text.
        prompt = Message(role="user", content="\n".join(texts))
        request = Request([prompt], options={"max_tokens": 0, "max_completion_tokens": 0})
        async with aclosing(self._run_attempts(request, answer)) as deltas:
            async for _ in deltas:
                pass
        return vectors

    async def _run_attempts(
        self, request: Request, attempt: Callable[[Request], AsyncGenerator[Arrival, None]]
    ) -> AsyncGenerator[Delta, None]:
        reply = _Reply()
        current = request
        while True:
            first = reply.earlier_usage is None
            try:
                async with (
                    self._turn(current, reply),
                    aclosing(enforce_timeouts(attempt(current), self.timeouts)) as arrivals,
                ):
                    async for arrival in arrivals:
                        for delta in arrival if isinstance(arrival, list) else (arrival,):
                            if delta.reasoning and reply.is_continuation:
                                reply.deltas.append(delta)  # so that it is charged
                                raise StreamInterrupted(
                                    "the reply broke off, and the server sent its continuation"
                                    " as reasoning",
                                    partial=assemble_partial(reply.earlier_deltas),
                                )
                            reply.add(delta)
                            yield delta if first else reply.add_earlier_usage(delta)
                return
            except BackendError as error:
                failure = error
            if reply.is_complete:  # the reply is complete, only the connection's end failed
                return
            pause = self.retries.pause(reply.attempt, failure)
            if pause is None or (self.breaker is not None and self.breaker.state == "open"):
                raise reply.make_error(failure)
            if reply.deltas:
                continued = self._continue_request(request, reply)
                if continued is None:
                    raise reply.make_error(failure)
                current = continued
            await asyncio.sleep(pause)
            reply.attempt += 1

    def _continue_request(self, request: Request, reply: _Reply) -> Request | None:
        """Return the request that continues a broken reply; None if that is not possible."""
        partial = reply.partial
        if not self.resume or reply.has_more_than_text:
            return None
        if partial is None or partial.content is None:  # no text has arrived: start again
            reply.end_attempt()
            reply.written_tokens = 0
            return request
        if is_constrained(request, self.default_options):
            return None
        reply.end_attempt()
        # A server that finds reasoning in the text may take a continuation for reasoning, as vLLM
        # does if the prompt has no end mark. The reply would lose the rest of its text.
        reply.is_continuation = True
        return self.continuation(
            reduce_token_limits(request, self.default_options, reply.written_tokens), partial
        )

    @asynccontextmanager
    async def _turn(self, request: Request, reply: _Reply) -> AsyncGenerator[None, None]:
        """Hold a turn for one attempt, check that the reply is complete, charge its usage."""
        await self.prepare()
        node = payer()  # now, because another node may close the stream
        limits = [*limits_of(node), self.limits]
        counted = any(each.counts_tokens for each in limits)
        estimate = self._estimator.estimate(request, self.default_options) if counted else None
        tokens, most = (0, None) if estimate is None else (estimate.tokens, estimate.most)
        async with turn_in(limits, self.model, tokens, most) as turn:
            try:
                with self.breaker.attempt() if self.breaker else nullcontext():
                    yield
                    if not reply.is_complete:
                        raise BackendUnavailable("the stream ended before the reply was complete")
            except RateLimited as error:
                # Before the turn ends, so that the next request does not meet the same 429.
                hold = self.retries.pause(reply.attempt, error) or error.retry_after or 0.0
                if hold <= self.retries.patience:  # otherwise other requests do not wait either
                    self.limits.slow_down(hold)
                raise
            finally:
                turn.usage = Usage()  # without a delta, the model may not have run
                if reply.deltas:
                    turn.usage = self._estimator.usage_of(request, reply.deltas, estimate)
                    reply.attempt_usage = turn.usage
                    note_usage(self.model, turn.usage)
                    if node is not None:
                        charge(self.model, turn.usage, node)
