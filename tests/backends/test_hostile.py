"""Servers that answer with anything: the result is a reply or a `BackendError`, soon."""

from __future__ import annotations

import asyncio
import gzip
from itertools import chain, repeat
from random import Random
from typing import Any

import pytest
from support.byte_server import CORPUS, MAX_BUFFERED_BYTES, ByteServer, hostile_reply, http_response
from support.scripted_server import Reply, ScriptedServer, Step
from support.seeds import example_count, seeds

from anabranch.backends import Backend, Fallback, Retries, _failure, connect
from anabranch.backends._failure import MAX_SILENT_BYTES
from anabranch.commander import (
    AuthenticationError,
    BackendError,
    BackendUnavailable,
    BadResponse,
    ModelNotFound,
    RateLimited,
    StreamInterrupted,
)
from anabranch.messages import Message, Request
from anabranch.testing import ScriptedBackend

pytestmark = pytest.mark.contract("B1")

ASK = Request([Message(role="user", content="Hello?")])
KEY = "sk-planted-0123456789/+="
KINDS = ["http", "openai"]


def open_backend(kind: str, url: str, **settings: Any) -> Backend:
    settings = {"api_key": KEY, "retries": Retries(attempts=1)} | settings
    if kind == "http":
        return connect(url, model="m", **settings)
    return connect("openai:m", base_url=url, **settings)


async def outcome_of(kind: str, *answer: bytes) -> Message | BackendError:
    """Return the outcome of a request to a server with this answer; raise other errors."""
    async with asyncio.timeout(200), ByteServer(lambda _: answer) as server:
        return await _asked(open_backend(kind, server.url))


async def _asked(backend: Backend) -> Message | BackendError:
    async with backend:
        try:
            got = await backend.complete(ASK)
        except BackendError as error:
            got = error
    assert isinstance(got, Message) or isinstance(got.__cause__, BackendError | None)
    assert KEY not in repr(got)
    return got


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CORPUS)
async def test_a_hostile_reply_is_a_backend_error_or_a_reply(kind: str, name: str) -> None:
    """For each of `tests/data/hostile_replies.json`."""
    assert isinstance(await outcome_of(kind, CORPUS[name]), Message | BackendError)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", seeds(example_count(8, 80)))
async def test_any_reply_is_a_backend_error_or_a_reply(kind: str, seed: int) -> None:
    """For any status, headers and body, sent in pieces."""
    random = Random(seed)
    for _ in range(25):
        raw = hostile_reply(random)
        cut = random.randrange(len(raw))

        assert isinstance(await outcome_of(kind, raw[:cut], raw[cut:]), Message | BackendError)


_MANY = b"x" * 65_536
ENDLESS: dict[str, tuple[bytes, bytes, type[BackendError]]] = {
    "a line": (http_response(b"data: "), _MANY, BadResponse),
    "an event": (http_response(), b"data: x\n" * 8_000, BadResponse),
    "comments": (http_response(), b": ping\n\n" * 8_000, BadResponse),
    "nothing said": (http_response(), b'data: {"choices": []}\n\n' * 2_000, BadResponse),
    "a body": (http_response(kind="application/json"), _MANY, BadResponse),
    "a web page": (http_response(kind="text/html"), _MANY, BadResponse),
    "another status": (http_response(status=206), _MANY, BadResponse),
    "a refusal": (http_response(status=401), _MANY, AuthenticationError),
    "a redirect": (http_response(status=302), _MANY, BackendError),
    "a header": (b"HTTP/1.1 200 OK\r\nX: ", _MANY, BadResponse),
    "headers": (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n" * 10_000, BadResponse),
    "after the end": (http_response(b"data: [DONE]\n\n"), b": ping\n\n" * 8_000, Message),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ENDLESS)
async def test_an_endless_reply_is_not_read_to_its_end(kind: str, name: str) -> None:
    """Lines, events, bodies and headers are each read up to a bound."""
    begin, more, expected = ENDLESS[name]
    async with asyncio.timeout(200), ByteServer(lambda _: chain([begin], repeat(more))) as server:
        got = await _asked(open_backend(kind, server.url))
        sent = server.sent

    assert type(got) is expected
    assert sent < MAX_SILENT_BYTES + MAX_BUFFERED_BYTES


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_packed_is_bounded_too(kind: str) -> None:
    """A gigabyte of spaces is a megabyte when compressed, although we ask for no compression."""
    packed = gzip.compress(b" " * 2**28, 1)
    zipped = ("Content-Encoding", "gzip")

    for body in packed, packed * 4:
        got = await outcome_of(kind, http_response(body, 200, "application/json", zipped))
        assert isinstance(got, BadResponse | BackendUnavailable)
        got = await outcome_of(kind, http_response(body, 200, "text/event-stream", zipped))
        assert isinstance(got, BadResponse | BackendUnavailable)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nothing at all", BackendUnavailable),
        ("no HTTP", BadResponse),
        ("a header line without end", BadResponse),
        ("a chunk that is cut", StreamInterrupted),
        ("lists nested deep", BadResponse),
        ("an error whose code is a list", BackendError),
        ("an error whose code is an object", AuthenticationError),
        ("an error whose status is an object", BackendUnavailable),
        ("a refusal that breaks off", AuthenticationError),
        ("a refusal that is no gzip", ModelNotFound),
        ("an error nested deep", RateLimited),
        ("Retry-After of 1e999", RateLimited),
        ("Retry-After of nan", RateLimited),
        ("Retry-After with a zone beyond all", RateLimited),
        ("a redirect to nowhere", BackendError),
        ("204", BadResponse),
        ("JSON of nothing", BadResponse),
        ("JSON without a choice", BadResponse),
        ("JSON whose choices are null", BadResponse),
        ("JSON that only details", BadResponse),
    ],
)
async def test_a_hostile_reply_is_the_error_that_it_stands_for(
    kind: str, name: str, expected: type[BackendError]
) -> None:
    """The status counts, with anything in its body and headers."""
    got = await outcome_of(kind, CORPUS[name])

    assert type(got) is expected


@pytest.mark.parametrize("kind", KINDS)
async def test_a_refusal_that_hangs_is_told_by_its_status(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Soon, and not as a late token, which would be retried."""
    monkeypatch.setattr(_failure, "_REFUSAL_SECONDS", 0.01)
    refusal = Reply([b'{"error": ', Step.HANG], 401, content_type="application/json")
    async with asyncio.timeout(200), ScriptedServer(refusal) as server:
        got = await _asked(open_backend(kind, server.url))

    assert type(got) is AuthenticationError


@pytest.mark.parametrize("kind", KINDS)
async def test_the_next_backend_answers_where_a_hostile_one_limits_or_fails(kind: str) -> None:
    """Retries and fallbacks depend on the kind of error, so it must be right for all of these."""
    for name in "an error nested deep", "an error whose status is an object", "Retry-After of nan":
        async with asyncio.timeout(200), ByteServer(lambda _, name=name: [CORPUS[name]]) as server:
            backends = open_backend(kind, server.url), ScriptedBackend("Hello")
            async with Fallback(backends) as both:
                assert (await both.complete(ASK)).content == "Hello"


async def test_the_failure_of_all_is_raised_though_a_backend_cannot_be_shown() -> None:
    """The other backends still have a note."""

    class Mute(ScriptedBackend):
        def __repr__(self) -> str:
            raise LookupError

    failure = BackendUnavailable("down")
    backends = Mute(failure), ScriptedBackend(failure)
    with pytest.raises(BackendUnavailable) as caught:
        await Fallback(backends).complete(ASK)

    assert caught.value.__notes__ == [f"{backends[1]!r}: down"]
