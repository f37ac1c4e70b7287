"""The conformance cases of all backends, the exempt cases, and the scripted subjects.

To add a backend, write a `Subject` and list in `EXCUSED` the cases that it cannot show, with the
reasons. Exempt cases are skipped, counted and printed at the end of the test run.
"""

from __future__ import annotations

import asyncio
import socket
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from anabranch.backends import Backend, Retries, Timeouts, connect
from anabranch.commander import (
    AuthenticationError,
    BackendError,
    BackendUnavailable,
    BadResponse,
    ContextTooLong,
    ModelNotFound,
    RateLimited,
    StreamInterrupted,
)
from anabranch.messages import Delta, Message, Request
from support.clock import advance_clock, install_clock
from support.scripted_server import DONE, Reply, ScriptedServer, Step, calls, chunk, text, vectors

__all__ = [
    "CASES",
    "EXCUSED",
    "SUBJECTS",
    "HttpSubject",
    "Subject",
    "cases",
    "pass_time_after_the_first_delta",
    "show",
]


@dataclass
class Add:
    """A tool's schema."""

    name: str = "add"
    description: str = "Add two numbers."

    @property
    def parameters(self) -> Mapping[str, Any]:
        number = {"type": "integer"}
        return {"type": "object", "properties": {"a": number, "b": number}, "required": ["a", "b"]}


HELLO = Request([Message(role="user", content="Say hello.")], options={"max_tokens": 20})
SUM = Request(
    [Message(role="user", content="What is 1 plus 2?")],
    [Add()],
    {"tool_choice": {"type": "function", "function": {"name": "add"}}, "max_tokens": 60},
)


TEXTS = ["a", "two", "", "a"]


class Subject(ABC):
    """A kind of backend under test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stack = AsyncExitStack()  # closed after the test

    @abstractmethod
    async def backend(self, case: str, **settings: Any) -> Backend:
        """Return a backend with these settings that behaves as `case` requires."""

    async def left(self) -> None:  # noqa: B027 - not every model can report it
        """Wait until the model has stopped; the default does nothing."""


async def _read(backend: Backend, request: Request = HELLO) -> list[Delta]:
    async with aclosing(backend.stream(request)) as deltas:
        return [delta async for delta in deltas]


async def _shows_text(subject: Subject) -> None:
    deltas = await _read(await subject.backend("text"))
    assert "".join(delta.text for delta in deltas).strip()
    assert sum(1 for delta in deltas if delta.text) > 1
    assert [d.finish_reason for d in deltas if d.finish_reason] in (["stop"], ["length"])


async def _shows_usage(subject: Subject) -> None:
    message = await (await subject.backend("usage")).complete(HELLO)
    assert message.usage is not None
    assert min(message.usage.input_tokens, message.usage.output_tokens) > 0


async def _shows_length(subject: Subject) -> None:
    request = Request(HELLO.messages, options={"max_tokens": 2})
    assert (await (await subject.backend("length")).complete(request)).finish_reason == "length"


async def _shows_one_call(subject: Subject) -> None:
    message = await (await subject.backend("one call")).complete(SUM)
    (call,) = message.tool_calls
    assert (call.name, set(call.arguments)) == ("add", {"a", "b"})
    assert message.finish_reason == "tool_calls"


async def _shows_several_calls(subject: Subject, case: str = "several calls") -> None:
    message = await (await subject.backend(case)).complete(SUM)
    assert [call.arguments for call in message.tool_calls] == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]


async def _shows_interleaved_calls(subject: Subject) -> None:
    await _shows_several_calls(subject, "interleaved calls")


async def _stops_when_left(subject: Subject) -> None:
    backend = await subject.backend("left")
    async with aclosing(backend.stream(HELLO)) as deltas:
        await anext(deltas)
    await subject.left()


async def _stops_when_cancelled(subject: Subject) -> None:
    backend = await subject.backend("cancelled")
    begun = asyncio.Event()

    async def read() -> None:
        async with aclosing(backend.stream(HELLO)) as deltas:
            async for _ in deltas:
                begun.set()

    reader = asyncio.create_task(read())
    await begun.wait()
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    await subject.left()


async def _serves_many_at_once(subject: Subject) -> None:
    backend = await subject.backend("many")
    replies = await asyncio.gather(*(backend.complete(HELLO) for _ in range(5)))
    assert all(reply.content for reply in replies)


async def _can_be_entered_again(subject: Subject) -> None:
    backend = await subject.backend("again")
    for _ in range(2):
        async with backend:
            assert (await backend.complete(HELLO)).content
    await backend.aclose()


async def _embeds(subject: Subject) -> None:
    backend = await subject.backend("embeddings")
    vectors = await backend.embed(TEXTS)
    assert len(vectors) == len(TEXTS)
    assert len({len(vector) for vector in vectors}) == 1
    assert all(type(number) is float for vector in vectors for number in vector)
    assert vectors[0] == vectors[3] != vectors[1]
    assert await backend.embed([]) == []


def _fails(case: str, kind: type[BackendError], **settings: Any) -> Callable[[Subject], Any]:
    async def check(subject: Subject) -> None:
        backend = await subject.backend(case, **settings)
        with pytest.raises(BackendError) as caught:
            await _read(backend)
        assert type(caught.value) is kind
        if isinstance(caught.value, StreamInterrupted):
            assert caught.value.partial.content

    return check


_ONCE = Retries(attempts=1)
_WHOLE = 30.0  # seconds of a clock that the tests advance

CASES: dict[str, Callable[[Subject], Awaitable[None]]] = {
    "text": _shows_text,
    "usage": _shows_usage,
    "length": _shows_length,
    "one call": _shows_one_call,
    "several calls": _shows_several_calls,
    "interleaved calls": _shows_interleaved_calls,
    "left": _stops_when_left,
    "cancelled": _stops_when_cancelled,
    "many": _serves_many_at_once,
    "again": _can_be_entered_again,
    "drop": _fails("drop", StreamInterrupted),
    "connect timeout": _fails(
        "connect timeout", BackendUnavailable, timeouts=Timeouts(connect=0.05), retries=_ONCE
    ),
    "first token timeout": _fails(
        "first token timeout",
        BackendUnavailable,
        timeouts=Timeouts(first_token=0.001),
        retries=_ONCE,
    ),
    "between tokens timeout": _fails(
        "between tokens timeout", StreamInterrupted, timeouts=Timeouts(between_tokens=0.001)
    ),
    "whole timeout": _fails("whole timeout", StreamInterrupted, timeouts=Timeouts(whole=_WHOLE)),
    "retries": _fails("retries", BackendUnavailable, retries=Retries(backoff=0)),
    "nobody there": _fails("nobody there", BackendUnavailable, retries=_ONCE),
    "wrong key": _fails("wrong key", AuthenticationError),
    "unknown model": _fails("unknown model", ModelNotFound),
    "rate limit": _fails("rate limit", RateLimited, retries=_ONCE),
    "too long": _fails("too long", ContextTooLong),
    "bad response": _fails("bad response", BadResponse),
    "embeddings": _embeds,
}

_NO_SERVER = "the model is in this process: there is no server to say so"
_NO_VECTORS = "a model in this process makes none, and says who does"

# By backend and case: the reason why the backend cannot show the case.
EXCUSED: dict[str, dict[str, str]] = {
    "http": {},
    "openai": {},
    "local": {
        "several calls": "a reply of this model has one call at most",
        "interleaved calls": "as for 'several calls'",
        "drop": "what is in this process does not drop; closing the model is tested on its own",
        "whole timeout": "how long a prompt takes is the machine's affair; tested on its own",
        "connect timeout": "nothing is connected",
        "retries": _NO_SERVER,
        "nobody there": _NO_SERVER,
        "wrong key": _NO_SERVER,
        "unknown model": "a file that is not there is a ConfigurationError before any request",
        "rate limit": _NO_SERVER,
        "bad response": _NO_SERVER,
        "embeddings": _NO_VECTORS,
    },
    "vllm": {
        "several calls": "what the calls hold is the model's choice",
        "interleaved calls": "a model writes its calls one after the other",
        "connect timeout": "nothing is connected",
        "retries": _NO_SERVER,
        "nobody there": _NO_SERVER,
        "wrong key": _NO_SERVER,
        "rate limit": _NO_SERVER,
        "bad response": _NO_SERVER,
        "embeddings": _NO_VECTORS,
    },
    "cassette": {},
    "ray": {},
}
EXCUSED["vllm on ray"] = {
    **EXCUSED["vllm"],
    "unknown model": "it is refused when it is served; tested on its own",
}


def cases(*kinds: str) -> list[Any]:
    """Return pytest parameters (`kind`, `case`) for every case, with a skip mark on exempt ones."""
    return [
        pytest.param(kind, case, marks=_skipped(kind, case)) for kind in kinds for case in CASES
    ]


def _skipped(kind: str, case: str) -> list[pytest.MarkDecorator]:
    reason = EXCUSED[kind].get(case)
    return [pytest.mark.skip(f"declared: {kind}: {case}: {reason}")] if reason else []


async def show(subject: Subject, case: str, seconds: float) -> None:
    """Run a case on `subject` with a limit of `seconds`, and clean up."""
    async with asyncio.timeout(seconds), subject.stack:
        await CASES[case](subject)


_ADD = ("add", '{"a": 1, "b": 2}')
_OTHER = ("add", '{"a": 3, "b": 4}')
_BEGUN = Reply([chunk({"content": "Hel"}), Step.HANG])


def _interleaved() -> Reply:
    """Return a reply that interleaves the pieces of two calls."""
    pieces = [calls(_ADD).steps[:-2], calls(_OTHER).steps[:-2]]
    place = b'"tool_calls": [{"index": '
    second = [step.replace(place + b"0", place + b"1") for step in pieces[1]]
    mixed = [step for pair in zip(pieces[0], second, strict=True) for step in pair]
    return Reply([*mixed, chunk(finish="tool_calls"), DONE])


SCRIPTS: dict[str, Reply] = {
    "length": Reply([chunk({"content": "Hel"}, "length"), DONE]),
    "one call": calls(_ADD),
    "several calls": calls(_ADD, _OTHER),
    "interleaved calls": _interleaved(),
    "left": _BEGUN,
    "cancelled": _BEGUN,
    "drop": Reply([chunk({"content": "Hel"}), Step.DROP]),
    "first token timeout": Reply([Step.HANG]),
    "between tokens timeout": _BEGUN,
    "whole timeout": _BEGUN,
    "retries": Reply.error(503, "down"),
    "wrong key": Reply.error(401, "no"),
    "unknown model": Reply.error(404, "no"),
    "rate limit": Reply.error(429, "no"),
    "too long": Reply.error(400, {"message": "no", "code": "context_length_exceeded"}),
    "bad response": Reply([b"data: x\n\n"]),
    "embeddings": vectors(*TEXTS),
}


class HttpSubject(Subject):
    """The http backend against the scripted server."""

    async def backend(self, case: str, **settings: Any) -> Backend:
        self.server = await self.stack.enter_async_context(
            ScriptedServer(SCRIPTS.get(case, text("Hel", "lo")))
        )
        self.case = case
        address = self.server.url
        if case == "connect timeout":
            address = self._deaf()
        if case == "nobody there":
            await self.server.__aexit__()
        backend = self.connect(address, settings)
        if case == "whole timeout":
            install_clock()
            pass_time_after_the_first_delta(backend)
        self.stack.push_async_callback(backend.aclose)
        self.stack.push_async_callback(self.check_attempts)
        return backend

    def connect(self, address: str, settings: dict[str, Any]) -> Backend:
        return connect(address, model="tiny", **settings)

    def _deaf(self) -> str:
        """Return the address of a listener whose queue is full, so that connections time out."""
        listener = self.stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(2):
            waiting = self.stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    async def left(self) -> None:
        await self.server.gone.wait()

    async def check_attempts(self) -> None:
        assert len(self.server.requests) == {"retries": 3}.get(self.case, len(self.server.requests))


class OpenAISubject(HttpSubject):
    """The openai backend against the scripted server."""

    def connect(self, address: str, settings: dict[str, Any]) -> Backend:
        return connect("openai:tiny", base_url=address, api_key="sk-test", **settings)


def pass_time_after_the_first_delta(backend: Any) -> None:
    """Advance the clock after each delta, so that the limit for the whole reply passes."""
    attempt = backend.attempt

    async def late(request: Request) -> AsyncGenerator[Delta, None]:
        async with aclosing(attempt(request)) as deltas:
            async for delta in deltas:
                yield delta
                advance_clock(_WHOLE)

    backend.attempt = late


class CassetteSubject(HttpSubject):
    """Replies of the http backend, recorded, then replayed at their original speed."""

    async def backend(self, case: str, **settings: Any) -> Backend:
        file = self.folder / "tape.jsonl"
        source = await super().backend(case, **settings)
        if case in {"left", "cancelled"}:
            self.server.script(text("Hel", "lo"))
        recording = connect(f"cassette:{file}", record=source)
        with suppress(BackendError):
            if case == "embeddings":
                await recording.embed(TEXTS)
            else:
                await _read(recording, SUM if "call" in case else _asked(case))
        return connect(f"cassette:{file}", realtime=True)

    async def left(self) -> None:
        """Return at once: a replay has nothing to stop."""


def _asked(case: str) -> Request:
    return Request(HELLO.messages, options={"max_tokens": 2}) if case == "length" else HELLO


SUBJECTS: dict[str, Callable[[Path], Subject]] = {
    "http": HttpSubject,
    "openai": OpenAISubject,
    "cassette": CassetteSubject,
}
