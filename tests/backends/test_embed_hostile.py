"""Servers that answer embeddings with anything: the result is vectors or a `BackendError`, soon."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
from array import array
from itertools import chain, repeat
from math import isfinite
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.byte_server import CORPUS, MAX_BUFFERED_BYTES, ByteServer, hostile_reply, http_response
from support.seeds import example_count, seeds

from anabranch.backends import Backend, Retries, connect
from anabranch.backends._embedding import read_embeddings
from anabranch.backends._failure import MAX_SILENT_BYTES
from anabranch.commander import (
    AuthenticationError,
    BackendError,
    BackendUnavailable,
    BadResponse,
    RateLimited,
)
from anabranch.messages import Usage

pytestmark = pytest.mark.contract("B1")

TEXTS = ["one", "two", "three"]
KEY = "sk-planted-0123456789/+="
KINDS = ["http", "openai"]
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def open_backend(kind: str, url: str) -> Backend:
    settings: dict[str, Any] = {"api_key": KEY, "retries": Retries(attempts=1)}
    if kind == "http":
        return connect(url, model="m", **settings)
    return connect("openai:m", base_url=url, **settings)


async def outcome_of(kind: str, *answer: bytes) -> list[list[float]] | BackendError:
    """Return the outcome of a request to a server with this answer; raise other errors."""
    async with asyncio.timeout(200), ByteServer(lambda _: answer) as server:
        return await _asked(open_backend(kind, server.url))


async def _asked(backend: Backend) -> list[list[float]] | BackendError:
    async with backend:
        try:
            got = await backend.embed(TEXTS)
        except BackendError as error:
            got = error
    assert KEY not in repr(got)
    if isinstance(got, BackendError):
        assert isinstance(got.__cause__, BackendError | None)
        return got
    assert len(got) == len(TEXTS)
    assert len({len(vector) for vector in got} | {0}) == 2
    assert all(type(number) is float and isfinite(number) for each in got for number in each)
    return got


def whole(*embeddings: Any, **more: Any) -> dict[str, Any]:
    data = [{"index": index, "embedding": each} for index, each in enumerate(embeddings)]
    return {"object": "list", "data": data, **more}


def body(value: Any) -> bytes:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return http_response(raw, 200, "application/json")


def packed(*numbers: float) -> str:
    return base64.b64encode(array("f", numbers).tobytes()).decode()


WRONG: dict[str, Any] = {
    "too few": whole([1.0], [2.0]),
    "too few, without an index": {"data": [{"embedding": [1.0]}, {"embedding": [2.0]}]},
    "too many": whole([1.0], [2.0], [3.0], [4.0]),
    "NaN": whole([1.0], [2.0], [float("nan")]),
    "infinite": whole([1.0], [2.0], [float("inf")]),
    "too great for 32 bits": whole([1.0], [2.0], [1e300]),
    "too great for any": body(b'{"data": [' + b"1" * 5000 + b"]}"),
    "an integer without end": whole([1.0], [2.0], [10**400]),
    "sizes that differ": whole([1.0], [2.0], [3.0, 4.0]),
    "no numbers": whole([], [], []),
    "texts for numbers": whole([1.0], [2.0], ["3.0"]),
    "null for a number": whole([1.0], [2.0], [None]),
    "null for a vector": whole([1.0], [2.0], None),
    "vectors of vectors": whole([[1.0]], [[2.0]], [[3.0]]),
    "an object for a vector": whole([1.0], [2.0], {"0": 3.0}),
    "base64 that is none": whole([1.0], [2.0], "AAAA*AAA"),
    "base64 that is cut": whole([1.0], [2.0], packed(3.0)[:-4]),
    "NaN in base64": whole([1.0], [2.0], packed(float("nan"))),
    "one index twice": {"data": [{"index": 0, "embedding": [1.0]}] * 3},
    "an index that is missing": {
        "data": [{"index": 0, "embedding": [1]}, *[{"embedding": [1]}] * 2]
    },
    "an index that is text": {"data": [{"index": str(n), "embedding": [1.0]} for n in range(3)]},
    "an index beyond": {"data": [{"index": n, "embedding": [1.0]} for n in range(1, 4)]},
    "indices that are true": {"data": [{"index": n, "embedding": [1.0]} for n in (False, True, 2)]},
    "no data": {"object": "list"},
    "data that is none": {"data": None},
    "data that is an object": {"data": {"0": [1.0]}},
    "numbers for embeddings": {"data": [1.0, 2.0, 3.0]},
    "a list": [[1.0], [2.0], [3.0]],
    "a reply": {"choices": [{"index": 0, "message": {"content": "hello"}}]},
    "nothing": body(b""),
    "no JSON": body(b"<html>hello</html>"),
    "half of it": body(json.dumps(whole([1.0], [2.0], [3.0])).encode()[:-9]),
    "lists nested deep": body(b"[" * 100_000),
    "binary": body(b"\x00\xff" * 400),
    "events": http_response(b"data: " + json.dumps(whole([1.0], [2.0], [3.0])).encode() + b"\n\n"),
    "a web page": http_response("<html>hello</html>", 200, "text/html"),
    "another status": http_response(
        json.dumps(whole([1.0], [2.0], [3.0])), 206, "application/json"
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", WRONG)
async def test_what_is_not_a_vector_for_each_text_is_a_bad_response(kind: str, name: str) -> None:
    """Of one size and of finite numbers, because an index would store wrong ones for ever."""
    answer = WRONG[name]
    got = await outcome_of(kind, answer if isinstance(answer, bytes) else body(answer))

    assert type(got) is BadResponse


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"error": {"message": "slowly", "code": 429}}, RateLimited),
        ({"object": "error", "message": "oom", "code": 500}, BackendUnavailable),
        (whole([1.0], [2.0], [3.0], error={"message": "no", "code": 401}), AuthenticationError),
    ],
)
async def test_an_error_object_is_the_error_that_it_stands_for(
    kind: str, answer: Any, expected: type[BackendError]
) -> None:
    """Even with a status of success."""
    assert type(await outcome_of(kind, body(answer))) is expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("usage", [None, 7, [], {"prompt_tokens": "many"}, {"prompt_tokens": -5}])
async def test_vectors_are_not_refused_for_their_bill(kind: str, usage: Any) -> None:
    """A wrong usage or other wrong fields do not matter."""
    answer = whole([1], [2.5], packed(3.0), usage=usage, model=None, id="x")

    assert await outcome_of(kind, body(answer)) == [[1.0], [2.5], [3.0]]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_cut_connection_is_unavailable(kind: str) -> None:
    """Wherever it is cut, if the length is known."""
    raw = json.dumps(whole([1.0], [2.0], [3.0])).encode()
    head = (
        f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n"
    )
    for cut in (0, 5, len(raw) - 1):
        assert type(await outcome_of(kind, head.encode(), raw[:cut])) is BackendUnavailable
    assert type(await outcome_of(kind, b"")) is BackendUnavailable


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("begin", "expected"),
    [
        (http_response(kind="application/json"), BadResponse),
        (http_response(), BadResponse),
        (http_response(status=401), AuthenticationError),
    ],
    ids=["a body", "events", "a refusal"],
)
async def test_an_endless_answer_is_not_read_to_its_end(
    kind: str, begin: bytes, expected: type[BackendError]
) -> None:
    """Reading stops at the largest size that the vectors may need."""
    more = b"[1.0, 2.0]," * 6_000
    async with asyncio.timeout(200), ByteServer(lambda _: chain([begin], repeat(more))) as server:
        got = await _asked(open_backend(kind, server.url))
        sent = server.sent

    assert type(got) is expected
    assert sent < MAX_SILENT_BYTES + MAX_BUFFERED_BYTES


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_packed_is_bounded_too(kind: str) -> None:
    """A gigabyte of spaces is a megabyte when compressed, although we ask for no compression."""
    bomb = gzip.compress(b" " * 2**28, 1) * 4

    got = await outcome_of(
        kind, http_response(bomb, 200, "application/json", ("Content-Encoding", "gzip"))
    )

    assert isinstance(got, BadResponse | BackendUnavailable)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_hostile_reply_is_none_for_embeddings_either(kind: str) -> None:
    """For each of `tests/data/hostile_replies.json`."""
    for raw in CORPUS.values():
        assert isinstance(await outcome_of(kind, raw), BackendError)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", seeds(example_count(3, 30)))
async def test_any_answer_is_vectors_or_a_backend_error(kind: str, seed: int) -> None:
    """For valid ones with anything replaced by anything, and for any replies."""
    random = Random(seed)
    for _ in range(25):
        raw = hostile_reply(random) if random.random() < 0.3 else body(_odd(random))
        cut = random.randrange(len(raw))

        await outcome_of(kind, raw[:cut], raw[cut:])


_ODD: list[Any] = [None, True, -1, 1, 10**40, 1e300, float("nan"), "", "AACAPw==", [], {}, [[]]]


def _odd(random: Random) -> Any:
    value: Any = whole([1.0, 0.5], [2.0, 0.5], packed(3.0, 0.5), usage={"prompt_tokens": 3})
    for _ in range(random.choice([0, 1, 1, 2])):
        place: Any = value
        while True:
            keys: Any = [*place] if isinstance(place, dict) else [*range(len(place))]
            key = random.choice(keys)
            if not (isinstance(place[key], list | dict) and place[key]) or random.random() < 0.2:
                place[key] = random.choice(_ODD)
                break
            place = place[key]
    return value


@given(st.data())
def test_vectors_come_back_whatever_their_order_and_writing(data: st.DataObject) -> None:
    """Bit by bit, for any 32-bit numbers, as JSON or base64."""
    size = data.draw(st.integers(1, 5))
    vectors = data.draw(st.lists(st.lists(FLOATS, min_size=size, max_size=size), min_size=1))
    written = [
        {"index": index, "embedding": packed(*each) if data.draw(st.booleans()) else each}
        for index, each in enumerate(vectors)
    ]
    shuffled = data.draw(st.permutations(written))
    answer = json.dumps({"data": shuffled, "usage": {"prompt_tokens": 3}}).encode()

    assert read_embeddings(answer, len(vectors)) == (vectors, Usage(input_tokens=3))


@given(
    st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists, max_leaves=9),
    st.integers(1, 4),
)
def test_whatever_json_comes_it_is_vectors_or_a_backend_error(value: Any, count: int) -> None:
    """In place of the data, and of one vector."""
    for answer in {"data": value}, whole(*[value] * count):
        try:
            vectors, _ = read_embeddings(json.dumps(answer).encode(), count)
        except BackendError:
            continue
        assert len(vectors) == count
