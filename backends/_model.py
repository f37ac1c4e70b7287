"""What every backend that reaches a model itself does around one attempt."""

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
from ._recorded import note_taken
from ._resume import is_constrained, shortened
from ._retry import Breaker, Retries
from ._timeout import Arrived, Timeouts, watch
from .limits import Limits, limits_of, turn_in

__all__ = ["ModelBackend"]


class _Reply:
    """What has come of a reply so far, over all attempts.

    `took` is what the last attempt took, `usage` what all those before it did, None if none did.
    `written` are the tokens of the text that the next attempt goes on after. `goes_on` says that
    this attempt continues a text, and no more of it has come yet.
    """

    __slots__ = ("attempt", "before", "deltas", "goes_on", "took", "usage", "whole", "written")

    def __init__(self) -> None:
        self.attempt = 1
        self.before: list[Delta] = []  # of earlier attempts
        self.deltas: list[Delta] = []  # of this one
        self.goes_on = False
        self.took = Usage()
        self.usage: Usage | None = None
        self.written = 0
        self.whole = False

    def add(self, delta: Delta) -> None:
        self.deltas.append(delta)
        if delta.text:
            self.goes_on = False
        if delta.finish_reason is not None or delta.done:
            self.whole = True

    def with_earlier(self, delta: Delta) -> Delta:
        """Add what earlier attempts took to the usage that a delta of this one tells."""
        if delta.usage is None or self.usage is None:
            return delta
        return replace(delta, usage=self.usage + delta.usage)

    def end_attempt(self) -> None:
        """Put away what came in this attempt, for another that goes on."""
        self.before += map(self.with_earlier, self.deltas)
        told = any(delta.usage is not None for delta in self.deltas)
        # An estimate is no less than a token for each delta: servers send one or more with each.
        self.written += max(self.took.output_tokens, 0 if told else len(self.deltas))
        self.usage = self.took if self.usage is None else self.usage + self.took
        self.deltas = []

    def broken(self, why: BackendError) -> BackendError:
        """Return the error of a reply that failed: it has what came of it, if anything did."""
        if not (self.before or self.deltas):
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
        return assemble_partial([*self.before, *map(self.with_earlier, self.deltas)])

    @property
    def has_more_than_text(self) -> bool:
        """Whether a call or a refusal has come, which no server can go on with."""
        came = (*self.before, *self.deltas)
        return any(delta.tool_calls or delta.refusal for delta in came)


class ModelBackend(Backend):
    """A backend with timeouts, retries, limits and a breaker; subclasses write `attempt`.

    A request waits for its turn in `limits`, is sent, and is tried again as `retries` says as long
    as no delta has come. A reply that breaks off later is `StreamInterrupted`; with
    `resume="continue"` the model is then asked to go on after the text that came, as one more of
    the attempts, where the server can (`continuation`), and from the beginning if only reasoning
    came. What it may still write is less by what came, and the usage it tells is that of all
    attempts. A reply with calls or a refusal, or one that follows a grammar, does not go on.

    Without `limits` it has its own, which limit nothing, so that one 429 holds back all of its
    requests. What an attempt took is charged to its limits and, under the model's name, to the
    current node, also if the reply breaks off or is cancelled: the usage that came with it, and an
    estimate of what came after that. Before the first delta that is nothing. Estimates are made
    from the texts, by `count_tokens` or by classes of characters, and corrected by the usage that
    replies have reported.
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
        given = {Timeouts: timeouts, Retries: retries, Limits: limits, Breaker: breaker}
        for kind, value in given.items():
            if not isinstance(value, kind | None):  # pyright: ignore[reportUnnecessaryIsInstance] - users' own
                name = kind.__name__
                raise ConfigurationError(
                    f"{name.lower()}={quote(value)}: it is {name}(...) or None"
                )
        if resume not in (None, "continue"):
            raise ConfigurationError(f"resume={quote(resume)}: it is 'continue' or None")
        self.timeouts = timeouts or Timeouts()
        self.retries = retries or Retries()
        self.limits = limits or Limits()
        self.breaker = breaker
        self.resume = resume
        if not (count_tokens is None or callable(count_tokens)):
            raise ConfigurationError(
                f"count_tokens={quote(count_tokens)}: it is a function of a text, or None"
            )
        self._estimator = Estimator(count_tokens)

    def __getstate__(self) -> object:
        raise ConfigurationError(
            f"{self!r} cannot be sent to another process: make it with connect(), which can be done"
            " there too"
        )

    def limits_of_model(self, model: str) -> Sequence[Limits]:
        return (self.limits,) if model == self.model else ()

    async def prepare(self) -> None:
        """Get ready to send, such as by loading a model; the timeouts count from after this."""

    @abstractmethod
    def attempt(self, request: Request) -> AsyncGenerator[Arrived, None]:
        """Answer `request` once, without timeouts; raises a `BackendError` that holds no key.

        Deltas that came together may be yielded as one list, which is never empty.
        """

    @asynccontextmanager
    async def charged(self, request: Request, came: list[Delta]) -> AsyncGenerator[None, None]:
        """Hold a turn in all limits, and charge at the end for the deltas that `came` then holds.

        For a subclass that answers by itself, without timeouts and retries.
        """
        reply = _Reply()
        reply.deltas, reply.whole = came, True
        async with self._turn(request, reply):
            yield

    def continuation(self, request: Request, partial: Message) -> Request | None:
        """Return the request that goes on after `partial`, None if the server cannot."""
        return None

    def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Answer `request`, delta by delta."""
        require_request(request)
        return self._answer(request, self.attempt)

    async def embed_with(
        self, attempt: Callable[[list[str]], Awaitable[Embedded]], texts: Sequence[str]
    ) -> list[list[float]]:
        """Return the vectors that `attempt` gives for `texts`, with all that is done for a reply.

        For the `embed` of a subclass. `attempt` asks once, and returns the vectors and what they
        took, None if nobody has said: then that is estimated.
        """
        texts = list_of_texts(texts)
        vectors: list[list[float]] = []
        if not texts:
            return vectors

        async def answer(_: Request) -> AsyncGenerator[Delta, None]:
            vectors[:], usage = await attempt(texts)
            yield Delta(usage=usage, done=True)

        # It takes what these texts would as a prompt, and its reply is one delta without text.
        prompt = Message(role="user", content="\n".join(texts))
        request = Request([prompt], options={"max_tokens": 0, "max_completion_tokens": 0})
        async with aclosing(self._answer(request, answer)) as deltas:
            async for _ in deltas:
                pass
        return vectors

    async def _answer(
        self, request: Request, attempt: Callable[[Request], AsyncGenerator[Arrived, None]]
    ) -> AsyncGenerator[Delta, None]:
        reply = _Reply()
        asked = request
        while True:
            first = reply.usage is None
            try:
                async with (
                    self._turn(asked, reply),
                    aclosing(watch(attempt(asked), self.timeouts)) as arriving,
                ):
                    async for arrived in arriving:
                        for delta in arrived if isinstance(arrived, list) else (arrived,):
                            if delta.reasoning and reply.goes_on:
                                reply.deltas.append(delta)  # so that it is charged
                                raise StreamInterrupted(
                                    "the reply broke off, and the server returned its"
                                    " continuation as reasoning",
                                    partial=assemble_partial(reply.before),
                                )
                            reply.add(delta)
                            yield delta if first else reply.with_earlier(delta)
                return
            except BackendError as error:
                failure = error
            if reply.whole:  # only what follows the end is missing
                return
            pause = self.retries.pause(reply.attempt, failure)
            if pause is None or (self.breaker is not None and self.breaker.state == "open"):
                raise reply.broken(failure)
            if reply.deltas:
                further = self._further(request, reply)
                if further is None:
                    raise reply.broken(failure)
                asked = further
            await asyncio.sleep(pause)
            reply.attempt += 1

    def _further(self, request: Request, reply: _Reply) -> Request | None:
        """Return the request that goes on with a reply that broke off; None if none can."""
        partial = reply.partial
        if not self.resume or reply.has_more_than_text:
            return None
        if partial is None or partial.content is None:  # nothing of the answer has come
            reply.end_attempt()
            reply.written = 0
            return request
        if is_constrained(request, self.default_options):
            return None
        reply.end_attempt()
        # A server that parses reasoning out of the text may take all of a continuation for it, as
        # vLLM does where the prompt has no end mark: the reply would lose the rest of its text.
        reply.goes_on = True
        return self.continuation(shortened(request, self.default_options, reply.written), partial)

    @asynccontextmanager
    async def _turn(self, request: Request, reply: _Reply) -> AsyncGenerator[None, None]:
        """Hold a turn for one attempt; see that the reply is whole, and charge what it took."""
        await self.prepare()
        node = payer()  # whoever closes the stream, it is this one's
        limits = [*limits_of(node), self.limits]
        counted = any(each.counts_tokens for each in limits)
        estimate = self._estimator.estimate(request, self.default_options) if counted else None
        tokens, most = (0, None) if estimate is None else (estimate.tokens, estimate.most)
        async with turn_in(limits, self.model, tokens, most) as turn:
            try:
                with self.breaker.attempt() if self.breaker else nullcontext():
                    yield
                    if not reply.whole:
                        raise BackendUnavailable("the stream ended before the reply was complete")
            except RateLimited as error:
                # While the turn is still held: the next in line must not run into the same 429.
                hold = self.retries.pause(reply.attempt, error) or error.retry_after or 0.0
                if hold <= self.retries.patience:  # else the others are not made to wait either
                    self.limits.slow_down(hold)
                raise
            finally:
                turn.usage = Usage()  # before the first delta nobody knows whether a model ran
                if came := reply.deltas:
                    turn.usage = self._estimator.usage_of(request, came, estimate)
                    reply.took = turn.usage
                    note_taken(self.model, turn.usage)
                    if node is not None:
                        charge(self.model, turn.usage, node)
