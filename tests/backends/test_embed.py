"""Embeddings: a vector for each text, with the limits, retries and charges of replies."""

from __future__ import annotations

import asyncio
import base64
import json
from array import array
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

import pytest
from support.clock import advance_clock
from support.conformance import EXCUSED
from support.killed_executions import Execution, resume_after_every_row
from support.scripted_server import Reply, Step, text, vectors
from support.wire_backends import KEY, WireBackends, wire

from anabranch import Commander
from anabranch.backends import (
    Backend,
    Breaker,
    Fallback,
    Limits,
    ModelBackend,
    Price,
    Retries,
    Timeouts,
    connect,
)
from anabranch.backends._estimate import Estimator
from anabranch.commander import (
    AuthenticationError,
    BackendError,
    BackendUnavailable,
    BudgetExceeded,
    ConfigurationError,
    ContextTooLong,
    ModelNotFound,
    RateLimited,
)
from anabranch.messages import Delta, Message, Request, Usage
from anabranch.store import Durable, Live, live
from anabranch.testing import ScriptedBackend

pytestmark = pytest.mark.contract("B1")

__all__ = ["wire"]  # the fixture

TEXTS = ["a", "two", "three"]
VECTORS = [[1.0, 1.0], [3.0, 1.0], [5.0, 1.0]]
ONCE = Retries(attempts=1)


def answer(*data: Any, **more: Any) -> Reply:
    body = json.dumps({"object": "list", "data": data, **more}).encode()
    return Reply([body], content_type="application/json")


async def failure_of(backend: Backend) -> BackendError:
    with pytest.raises(BackendError) as caught:
        await backend.embed(TEXTS)
    assert KEY not in repr(caught.value)
    return caught.value


# --- requests and answers


async def test_texts_go_in_one_request_and_vectors_come_in_their_order(wire: WireBackends) -> None:
    """In whatever order the server sends them; options of conversations are not sent."""
    wire.server.script(vectors(*TEXTS))

    got = await wire.connect(temperature=0, max_tokens=9).embed(tuple(TEXTS))

    assert got == VECTORS
    (request,) = wire.server.requests
    assert request.path == "/v1/embeddings"
    assert request.body == {"model": "tiny", "input": TEXTS, "encoding_format": "float"}
    assert request.headers["Authorization"] == f"Bearer {KEY}"
    assert request.headers["Accept"] == "application/json"


async def test_what_only_the_server_knows_goes_along(wire: WireBackends) -> None:
    """Such as the number of dimensions and the encoding."""
    wire.server.script(vectors("a"))

    await wire.connect(extra={"dimensions": 2, "encoding_format": "base64"}).embed(["a"])

    sent = wire.server.requests[0].body
    assert sent == {"model": "tiny", "input": ["a"], "dimensions": 2, "encoding_format": "base64"}


@pytest.mark.parametrize("path", ["/embeddings", "/embeddings/", "/chat/completions"])
async def test_an_address_may_end_in_an_endpoint(wire: WireBackends, path: str) -> None:
    """The endpoint is removed."""
    wire.server.script(vectors("a"))

    await wire.connect(path).embed(["a"])

    assert wire.server.requests[0].path == "/v1/embeddings"


async def test_vectors_are_read_in_base64_too(wire: WireBackends) -> None:
    """As 32-bit numbers, which some servers send without being asked."""
    packed = base64.b64encode(array("f", [0.5, -2.0]).tobytes()).decode()
    wire.server.script(answer({"index": 0, "embedding": packed}))

    assert await wire.connect().embed(["a"]) == [[0.5, -2.0]]


async def test_where_no_vector_has_an_index_their_order_counts(wire: WireBackends) -> None:
    """Some servers omit the index."""
    wire.server.script(answer({"embedding": [1]}, {"embedding": [2], "index": None}))

    assert await wire.connect().embed(["a", "b"]) == [[1.0], [2.0]]


async def test_nothing_is_asked_about_no_texts(wire: WireBackends) -> None:
    """Limits do not count it either."""
    limits = Limits(budget=0)

    assert await wire.connect(limits=limits).embed([]) == []
    assert wire.server.requests == []


@pytest.mark.parametrize("texts", ["one", b"one", [b"x"], ["a", 1], [None], 7, [["a"]]])
@pytest.mark.parametrize("kind", ["server", "scripted", "cassette"])
async def test_what_is_no_list_of_texts_is_refused(kind: str, texts: Any) -> None:
    """Before a request. A single text is refused too, although Python can iterate over it."""
    backends = {
        "server": partial(connect, "http://127.0.0.1:9/v1", model="m"),
        "scripted": ScriptedBackend,
        "cassette": partial(connect, "cassette:none.jsonl"),
    }
    with pytest.raises(TypeError):
        await backends[kind]().embed(texts)


async def test_a_half_surrogate_is_sent_as_a_question_mark(wire: WireBackends) -> None:
    """As U+FFFD, as in a message, because no server accepts the half."""
    wire.server.script(vectors("a"))

    await wire.connect().embed(["a\ud800b"])

    assert wire.server.requests[0].body["input"] == ["a\ufffdb"]


async def test_a_connection_is_used_for_replies_and_embeddings_alike(wire: WireBackends) -> None:
    """An answer that was read to its end frees the connection."""
    wire.server.script(vectors("a"), text("Hi"), vectors("a"))
    backend = wire.connect()

    await backend.embed(["a"])
    await backend.complete(Request([]))
    await backend.embed(["a"])

    assert len({request.headers["Peer"] for request in wire.server.requests}) == 1


# --- failures


@pytest.mark.parametrize(
    "first",
    [
        Reply.error(503, "loading"),
        Reply.error(429, "slowly", Retry_After="0"),
        Reply([Step.DROP], content_type="application/json"),
        Reply([b'{"data": [', Step.DROP], content_type="application/json"),
        answer(error={"message": "overloaded", "code": 503}),
    ],
    ids=["503", "429", "drop", "cut", "error"],
)
async def test_a_failure_is_tried_again(wire: WireBackends, first: Reply) -> None:
    """The caller has seen nothing of an incomplete answer."""
    wire.server.script(first, first, vectors(*TEXTS))
    assert await wire.connect().embed(TEXTS) == VECTORS

    wire.server.script(first)
    wire.server.requests.clear()
    await failure_of(wire.connect())
    assert len(wire.server.requests) == 3


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (401, f"wrong key {KEY}", AuthenticationError),
        (404, "no such model", ModelNotFound),
        (400, "maximum context length is 8192", ContextTooLong),
        (418, "no", BackendError),
    ],
)
async def test_a_refusal_is_the_error_that_it_stands_for(
    wire: WireBackends, status: int, error: str, kind: type[BackendError]
) -> None:
    """It is asked once, and the error does not show the key."""
    wire.server.script(Reply.error(status, error))

    assert type(await failure_of(wire.connect())) is kind
    assert len(wire.server.requests) == 1


async def test_a_429_holds_back_all_who_share_the_limits(wire: WireBackends) -> None:
    """For the time that the server asks for, embeddings and replies."""
    wire.server.script(Reply.error(429, "slowly", Retry_After="50"), vectors(*TEXTS))
    limits = Limits()
    now = asyncio.get_running_loop().time

    failure = await failure_of(wire.connect(retries=ONCE, limits=limits))

    assert isinstance(failure, RateLimited)
    assert failure.retry_after == 50
    assert limits.is_rate_limited(now() + 40)
    advance_clock(60)
    assert await wire.connect(limits=limits).embed(TEXTS) == VECTORS


@pytest.mark.parametrize("setting", ["first_token", "whole"])
@pytest.mark.parametrize("begun", [[], [b'{"data": [']], ids=["silent", "begun"])
async def test_an_answer_that_is_late_is_unavailable(
    wire: WireBackends, setting: str, begun: list[bytes]
) -> None:
    """With either timeout, because an answer arrives in one piece; each attempt starts again."""
    hangs = Reply([*begun, partial(advance_clock, 30), Step.HANG], content_type="application/json")
    wire.server.script(hangs)
    timeouts = Timeouts(**{"first_token": None, "whole": None, setting: 30})

    failure = await failure_of(wire.connect(timeouts=timeouts, retries=Retries(2, backoff=0)))

    assert isinstance(failure, BackendUnavailable)
    assert "within 30 s" in str(failure)
    assert len(wire.server.requests) == 2
    await wire.server.gone.wait()


@pytest.mark.parametrize("begun", [[], [b'{"data": [']], ids=["silent", "begun"])
async def test_a_cancel_closes_the_connection(wire: WireBackends, begun: list[bytes]) -> None:
    """Before it returns, whether or not data has arrived; the turn is given back."""
    limits = Limits(concurrency=1)
    wire.server.script(Reply([*begun, Step.HANG], content_type="application/json"), vectors("a"))
    backend = wire.connect(limits=limits)
    asking = asyncio.create_task(backend.embed(["a"]))
    await wire.server.asked.wait()

    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking

    await wire.server.gone.wait()
    assert await backend.embed(["a"]) == [[1.0, 1.0]]


async def test_a_breaker_is_shared_with_replies(wire: WireBackends) -> None:
    """If the server is down, both stop."""
    wire.server.script(Reply.error(503, "down"))
    backend = wire.connect(retries=ONCE, breaker=Breaker(failures=2))

    for _ in range(3):
        await failure_of(backend)
    with pytest.raises(BackendUnavailable, match="not sent"):
        await backend.complete(Request([]))

    assert len(wire.server.requests) == 2


# --- costs


async def test_what_it_took_is_charged_to_the_tree_and_to_budgets(wire: WireBackends) -> None:
    """Under the model's name, in tokens or money; a used budget refuses the next request."""
    wire.server.script(vectors(*TEXTS, usage=40))
    own = Limits(budget=1.0, prices={"tiny": Price(input=1e6, output=1e9)})
    backend = wire.connect(limits=own)
    async with Commander() as commander:
        commander.limits = tree = Limits(budget=1000)
        with pytest.raises(BudgetExceeded):
            for _ in range(2):
                await backend.embed(TEXTS)
        assert commander.usage() == {"tiny": Usage(input_tokens=40)}
    assert (own.spent, tree.spent) == (40, 40)


async def test_what_the_server_does_not_tell_is_estimated(wire: WireBackends) -> None:
    """By the classes of characters in all texts; a failure costs nothing."""
    found = answer({"index": 0, "embedding": [1]}, {"index": 1, "embedding": [1]})
    wire.server.script(Reply.error(503, "down"), found)
    backend = wire.connect(limits=Limits())
    async with Commander() as commander:
        await backend.embed(TEXTS[:2])
        assert commander.usage() == {"tiny": Usage(input_tokens=_estimate(TEXTS[:2]))}


def _estimate(texts: list[str]) -> int:
    prompt = Message(role="user", content="\n".join(texts))
    return Estimator().estimate(Request([prompt]), {}).tokens


async def test_an_estimate_holds_until_the_usage_is_known(wire: WireBackends) -> None:
    """So a token rate and a reserved budget hold; options of replies do not count."""
    wire.server.script(vectors("a", usage=5))
    text = "word " * 100
    tokens = _estimate([text])
    limits = Limits(tokens_per_minute=tokens + 10, budget=tokens + 20, reserve=True)
    backend = wire.connect(limits=limits, max_tokens=100_000)

    for _ in range(2):
        await backend.embed([text])
    assert limits.spent == 10
    with pytest.raises(BudgetExceeded):
        await backend.embed([text * 10])


# --- backends of other kinds


async def test_those_that_make_none_say_who_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without loading a model, and for the backends in the table of conformance."""
    monkeypatch.setattr("anabranch.backends._vllm.find_spec", lambda _: True)

    class Own(ModelBackend):
        async def attempt(self, request: Request) -> AsyncGenerator[Delta, None]:
            yield Delta(done=True)

    refuse = {
        "local": (connect("local"), "http://HOST/v1"),
        "vllm": (connect("vllm:ORG/MODEL"), "vllm serve ORG/MODEL --runner pooling"),
        "own": (Own("m"), "Own makes no embeddings"),
        "fallback": (Fallback([ScriptedBackend(), ScriptedBackend()]), "embed of one of its"),
    }
    excused = {kind for kind, cases in EXCUSED.items() if "embeddings" in cases}
    assert excused - {"vllm on ray"} == refuse.keys() - {"own", "fallback"}
    for backend, words in refuse.values():
        with pytest.raises(ConfigurationError, match=words):
            await backend.embed(["a"])


async def test_a_backend_of_ones_own_embeds_with_all_that_a_reply_has() -> None:
    """It only implements one attempt."""

    class Own(ModelBackend):
        asked = 0

        async def attempt(self, request: Request) -> AsyncGenerator[Delta, None]:
            yield Delta(done=True)

        async def embed(self, texts: Any) -> list[list[float]]:
            return await self.embed_with(self.once, texts)

        async def once(self, texts: list[str]) -> tuple[list[list[float]], Usage | None]:
            self.asked += 1
            if self.asked < 3:
                raise BackendUnavailable("down")
            return [[float(len(text))] for text in texts], Usage(input_tokens=7)

    backend = Own("m", retries=Retries(backoff=0))
    async with Commander() as commander:
        assert await backend.embed(["a", "bc"]) == [[1.0], [2.0]]
        assert commander.usage() == {"m": Usage(input_tokens=7)}


# --- below a durable job


class Embeds(Durable[list[list[float]]]):
    """Embeds in its body, in a step whose result is stored, and once during a reply."""

    backend: Live[Backend] = live()

    async def task(self) -> list[list[float]]:
        first = await self.backend.embed(["by itself"])
        async for _ in self.backend.stream(Request([])):
            await self.backend.embed(["while a reply comes"])
        return first + await self.durable.step(self.kept)

    async def kept(self) -> list[list[float]]:
        return await self.backend.embed(["in a step"])


async def test_a_later_life_asks_again_for_what_no_step_has_kept() -> None:
    """The journal has nothing of it, wherever the first execution ended."""
    backends: list[ScriptedBackend] = []

    def make() -> Embeds:
        backends.append(ScriptedBackend("Hello", size=None))
        return Embeds(backends[-1])

    def check(first: Execution, again: Execution, rows: int) -> None:
        asked = {text for texts in backends[-1].embedded for text in texts}
        results = sum(row.kind == "result" for row in first.rows[:rows])
        assert asked == [{*outside, "in a step"}, outside, set()][results]

    outside = {"by itself", "while a reply comes"}
    first = await resume_after_every_row(make, check)
    assert {row.kind for row in first.rows} == {"reply", "usage", "result", "over"}
