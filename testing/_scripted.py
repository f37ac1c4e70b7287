"""A backend that answers with replies written by a test."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from functools import lru_cache
from hashlib import shake_256
from inspect import isawaitable
from math import sqrt
from typing import Any, TypeAlias

from ..backends import Limits, ModelBackend, Retries, Timeouts
from ..messages import (
    Delta,
    Message,
    OutputMode,
    ProviderItem,
    Request,
    ToolCall,
    ToolCallDelta,
    Usage,
    require_request,
)
from ._loop import SeededLoop

__all__ = ["ScriptStep", "ScriptedBackend", "deltas"]

ScriptStep: TypeAlias = Delta | str | BaseException | asyncio.Event
"""One step of a reply: a delta or text to send, an error to raise, an event to wait for."""

Script: TypeAlias = str | Message | BaseException | Sequence[ScriptStep]
Answer: TypeAlias = Script | Callable[[Request], Script | Awaitable[Script]]


class ScriptedBackend(ModelBackend):
    """A backend with replies written in advance. It needs no network and no key.

        backend = ScriptedBackend("Hello", Message(role="assistant", tool_calls=[...]))

    Each call of `stream` takes the next of `replies`. After the last one, every request gets
    `otherwise`; without it, the request raises `LookupError`. A reply is

    - a string or an assistant `Message`: sent in pieces, with a model's finish reason and end mark;
    - an exception: raised before the first delta;
    - a list of steps, sent unchanged: deltas, strings, an exception (the stream breaks there), an
      `asyncio.Event` (the stream waits for it, so that a test decides when the rest may arrive);
    - a function from the request to one of these, plain or async.

    Texts are cut into pieces of `size` characters (None: one piece); with a `seed`, of random sizes
    from 1 to `size`. `delay` is the pause before each delta, in seconds of the loop's clock.
    Without it, the seed of a `SeededLoop` decides for how many iterations of the loop each reply
    waits, so that a long reply may end before a short one. Other loops delay all replies equally.

    Usage is charged as with any backend: to `limits`, to the limits of the tree and to the node. It
    is the `usage` of the message, or else an estimate. No request is retried.

    `takes` lists the kinds of input besides text, as `Backend.takes` does; None means unknown.
    `output_modes` are the ways to ask for typed output, as `Backend.output_modes`: by default the
    replies are JSON text, and each other mode is possible.

    `embed` returns unit vectors of `dimensions` numbers. The `seed` gives each word a direction,
    and the vector of a text is the sum of the directions of its words, without regard to order and
    case. So the cosine of two texts grows with their number of shared words. If neither repeats a
    word, it is about `shared / sqrt(words_1 * words_2)`, with a random error of about
    `dimensions ** -0.5`, which is 0.06 by default.

    Attributes: `requests`, all requests so far; `embedded`, the texts of each call of `embed`;
    `opened` and `closed`, the number of streams that have started, and of those that have ended for
    any reason: exhaustion, an error, `aclose` or cancellation.
    """

    provider = "scripted"

    def __init__(
        self,
        *replies: Answer,
        otherwise: Answer | None = None,
        size: int | None = 4,
        seed: int | None = None,
        delay: float | None = None,
        model: str = "scripted",
        limits: Limits | None = None,
        dimensions: int = 256,
        takes: Iterable[str] | None = None,
        output_modes: Sequence[OutputMode] = ("text", "schema", "grammar", "tool"),
        **default_options: Any,
    ) -> None:
        # A scripted 429 must not delay the requests after it.
        once = Retries(attempts=1, patience=0.0)
        default_options.setdefault("timeouts", Timeouts(None, None, None, None))
        super().__init__(model, retries=once, limits=limits, **default_options)
        if dimensions < 1:
            raise ValueError(f"dimensions is a number of numbers, at least 1, not {dimensions!r}")
        self._takes = None if takes is None else frozenset(takes)
        self._output_modes = tuple(output_modes)
        self.requests: list[Request] = []
        self.embedded: list[list[str]] = []
        self._dimensions = dimensions
        self._seed = seed
        self.opened: int = 0
        self.closed: int = 0
        self._replies = list(replies)
        self._otherwise = otherwise
        self._cut = _cutter(size, seed)
        self._delay = delay

    @property
    def takes(self) -> frozenset[str] | None:
        """The `takes` argument, as a frozenset."""
        return self._takes

    @property
    def output_modes(self) -> Sequence[OutputMode]:
        """The `output_modes` argument."""
        return self._output_modes

    def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Answer `request` with the next reply of the script."""
        require_request(request)
        number = len(self.requests)
        self.requests.append(request)
        answer = self._replies[number] if number < len(self._replies) else self._otherwise
        return self._play(answer, request)

    def attempt(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Answer as `stream` does."""
        return self.stream(request)

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return the vector of each text. A text without words counts as one word."""
        return await self.embed_with(self._embed, texts)

    async def _embed(self, texts: list[str]) -> tuple[list[list[float]], Usage | None]:
        self.embedded.append(texts)
        await _Latency(self._delay).pass_by()
        return [_vector(text, self._dimensions, self._seed or 0) for text in texts], None

    def __getstate__(self) -> object:
        return object.__getstate__(self)

    async def _play(self, answer: Answer | None, request: Request) -> AsyncGenerator[Delta, None]:
        self.opened += 1
        came: list[Delta] = []
        try:
            async with self.charged(request, came), aclosing(self._steps(answer, request)) as steps:
                async for delta in steps:
                    came.append(delta)
                    yield delta
        finally:
            self.closed += 1

    async def _steps(self, answer: Answer | None, request: Request) -> AsyncGenerator[Delta, None]:
        latency = _Latency(self._delay)
        if answer is None:
            raise LookupError(
                f"the script had {len(self._replies)} replies and this is request "
                f"{len(self.requests)}: add replies, or otherwise=..."
            )
        reply = answer(request) if callable(answer) else answer
        if isawaitable(reply):
            reply = await reply
        if isinstance(reply, BaseException):
            raise reply
        whole = isinstance(reply, (str, Message))
        for step in _deltas(reply, self._cut) if whole else reply:
            if isinstance(step, BaseException):
                raise step
            if isinstance(step, asyncio.Event):
                await step.wait()
                continue
            for piece in self._cut(step) if isinstance(step, str) else (step,):
                await latency.pass_by()
                yield Delta(text=piece) if isinstance(piece, str) else piece


class _Latency:
    """The delays of one reply: before its first delta, and before each later one."""

    def __init__(self, delay: float | None) -> None:
        self._delay = delay or 0.0
        self._chance: random.Random | None = None
        loop = asyncio.get_running_loop()
        if delay is None and isinstance(loop, SeededLoop) and loop.seed is not None:
            self._chance = loop.random
            # Half of the replies start at once, others after up to 1,024 iterations of the loop.
            self._first = loop.random.choice((0, 2 ** loop.random.randint(0, 10)))
            self._pace = loop.random.choice((0, 0, 1, 3))

    async def pass_by(self) -> None:
        """Wait before a delta. Always yield to the loop, as a network stream does."""
        await asyncio.sleep(self._delay)
        if self._chance is not None:
            for _ in range(self._chance.randint(0, self._first or self._pace)):
                await asyncio.sleep(0)
            self._first = 0


def deltas(reply: str | Message, *, size: int | None = 4, seed: int | None = None) -> list[Delta]:
    """Return the deltas of a reply of a `ScriptedBackend`, so that a test can insert steps."""
    return list(_deltas(reply, _cutter(size, seed)))


def _vector(text: str, dimensions: int, seed: int) -> list[float]:
    words = re.findall(r"\w+", text.lower()) or [text]
    total = [
        sum(signs) for signs in zip(*(_signs(w, dimensions, seed) for w in words), strict=True)
    ]
    length = sqrt(sum(number * number for number in total))
    if not length:  # the words cancel out, which happens with few dimensions
        return [1.0] + [0.0] * (dimensions - 1)
    return [number / length for number in total]


@lru_cache(10_000)
def _signs(word: str, dimensions: int, seed: int) -> list[int]:
    """Return the direction of a word: 1 or -1 in each dimension, the same on every machine."""
    name = f"{seed} {word}".encode("utf-8", "surrogatepass")
    drawn = int.from_bytes(shake_256(name).digest(-(-dimensions // 8)))
    return [1 if drawn >> place & 1 else -1 for place in range(dimensions)]


Cut: TypeAlias = Callable[[str], Iterable[str]]


def _deltas(reply: str | Message, cut: Cut) -> Iterator[Delta]:
    message = Message(role="assistant", content=reply) if isinstance(reply, str) else reply
    yield from (Delta(reasoning=piece) for piece in cut(message.reasoning or ""))
    refusal, index = message.refusal or "", -1
    for part in message.in_order():
        match part:
            case str():
                yield from (Delta(text=piece) for piece in cut(part))
            case ToolCall():
                yield from (Delta(refusal=piece) for piece in cut(refusal))
                refusal, index = "", index + 1
                yield Delta(tool_calls=(ToolCallDelta(index, id=part.id, name=part.name),))
                for piece in cut(part.to_wire()["function"]["arguments"]):
                    yield Delta(tool_calls=(ToolCallDelta(index, arguments=piece),))
            case ProviderItem(call=None):
                yield Delta(items=(part,))
            case ProviderItem():  # an item of the call before it
                yield Delta(tool_calls=(ToolCallDelta(index, item=part),))
    yield from (Delta(refusal=piece) for piece in cut(refusal))
    finish = message.finish_reason or ("tool_calls" if message.tool_calls else "stop")
    yield Delta(finish_reason=finish, usage=message.usage)
    yield Delta(done=True)


def _cutter(size: int | None, seed: int | None) -> Cut:
    if size is not None and size < 1:
        raise ValueError(f"size is a number of characters, at least 1, not {size!r}")
    chance = None if seed is None else random.Random(seed)  # noqa: S311 - not for secrets

    def cut(text: str) -> Iterator[str]:
        start = 0
        while start < len(text):
            if size is None:
                length = len(text)
            else:
                length = size if chance is None else chance.randint(1, size)
            yield text[start : start + length]
            start += length

    return cut
