"""A backend that says what a test tells it to, as slowly and in such pieces as the test likes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from inspect import isawaitable
from typing import Any, TypeAlias

from ..backends import Backend
from ..messages import Delta, Message, Request, ToolCallDelta

__all__ = ["ScriptStep", "ScriptedBackend", "deltas"]

ScriptStep: TypeAlias = Delta | str | BaseException | asyncio.Event
"""One step of a reply: a delta or text to send, an error to raise, an event to wait for."""

Script: TypeAlias = str | Message | BaseException | Sequence[ScriptStep]
Answer: TypeAlias = Script | Callable[[Request], Script | Awaitable[Script]]


class ScriptedBackend(Backend):
    """A backend whose replies are written down beforehand. It needs no network and no key.

        backend = ScriptedBackend("Hello", Message(role="assistant", tool_calls=[...]))

    Each request is answered by the next of `replies`, in the order in which `stream` is called,
    and beyond them by `otherwise`; without one, by a `LookupError`. A reply is

    - a string or an assistant `Message`: sent in pieces and ended as a model would;
    - an exception: raised before the first delta;
    - a list of steps, sent as they stand, nothing added: deltas, strings, an exception (the
      stream breaks there), an `asyncio.Event` (the stream waits for it, so that a test decides
      when the rest may come);
    - a function from the request to one of these, plain or async.

    Texts are cut into pieces of `size` characters (None: not at all); with a `seed`, of random
    sizes from 1 to `size`. `delay` is in seconds of the loop's clock, before each delta.

    Attributes: `requests`, all so far; `opened` and `closed`, how many streams have begun and how
    many of these are over, be it by their end, an error, `aclose` or cancellation.
    """

    provider = "scripted"

    def __init__(
        self,
        *replies: Answer,
        otherwise: Answer | None = None,
        size: int | None = 4,
        seed: int | None = None,
        delay: float = 0.0,
        model: str = "scripted",
        **default_options: Any,
    ) -> None:
        super().__init__(model, **default_options)
        self.requests: list[Request] = []
        self.opened = 0
        self.closed = 0
        self._replies = list(replies)
        self._otherwise = otherwise
        self._cut = _cutter(size, seed)
        self._delay = delay

    def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Answer `request` with the next reply of the script."""
        number = len(self.requests)
        self.requests.append(request)
        answer = self._replies[number] if number < len(self._replies) else self._otherwise
        return self._play(answer, request)

    async def _play(self, answer: Answer | None, request: Request) -> AsyncGenerator[Delta, None]:
        self.opened += 1
        try:
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
                    # Without a delay too, a stream lets others run between its deltas, as a
                    # network's does.
                    await asyncio.sleep(self._delay)
                    yield Delta(text=piece) if isinstance(piece, str) else piece
        finally:
            self.closed += 1


def deltas(reply: str | Message, *, size: int | None = 4, seed: int | None = None) -> list[Delta]:
    """Return the deltas as which a `ScriptedBackend` sends a reply, to put steps between them."""
    return list(_deltas(reply, _cutter(size, seed)))


Cut: TypeAlias = Callable[[str], Iterable[str]]


def _deltas(reply: str | Message, cut: Cut) -> Iterator[Delta]:
    message = Message(role="assistant", content=reply) if isinstance(reply, str) else reply
    yield from (Delta(reasoning=piece) for piece in cut(message.reasoning or ""))
    yield from (Delta(text=piece) for piece in cut(message.content or ""))
    yield from (Delta(refusal=piece) for piece in cut(message.refusal or ""))
    for index, call in enumerate(message.tool_calls):
        yield Delta(tool_calls=(ToolCallDelta(index, id=call.id, name=call.name),))
        for piece in cut(call.to_wire()["function"]["arguments"]):
            yield Delta(tool_calls=(ToolCallDelta(index, arguments=piece),))
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
