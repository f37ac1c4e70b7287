"""Requests of hostile size and shape are refused or answered, and the server survives."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.asgi_requests import Response, encode_body, is_refusal, send_request
from support.openai_client import on_uvicorn
from support.seeds import example_count

from anabranch import Agent, Job, Node, handler
from anabranch.messages.text import encodable
from anabranch.serve import Server, _request_body, serve
from anabranch.serve._http import Refusal
from anabranch.testing import ScriptedBackend

CHAT, RESPONSES, RUNS = "/v1/chat/completions", "/v1/responses", "/runs"
POSTS = [CHAT, RESPONSES, RUNS]


class Shout(Job[str]):
    """A job with fields."""

    text: str
    times: int = 1
    anything: Any = None

    async def task(self) -> str:
        return self.text[:100] * min(self.times, 2)


def _things() -> list[Any]:
    backend = ScriptedBackend(otherwise="hello")
    return [Agent(backend, name="writer"), Shout, {"model": ScriptedBackend(otherwise="hi")}]


@asynccontextmanager
async def _running(**options: Any) -> AsyncGenerator[Server]:
    server = serve(*_things(), **options)
    async with server.running():
        yield server


def _valid(path: str, model: str = "writer", text: Any = "hi", **more: Any) -> dict[str, Any]:
    said = [{"role": "user", "content": text}]
    return {"model": model, ("messages" if path == CHAT else "input"): said, **more}


def _is_sound(answer: Response) -> bool:
    return answer.status in (200, 201) or is_refusal(answer)


async def _lives(server: Server) -> None:
    answer = await send_request(server, "POST", CHAT, encode_body(_valid(CHAT)))
    assert answer.json["choices"][0]["message"]["content"] == "hello"


# --- JSON of any shape

NAMES = st.sampled_from(
    [
        "model",
        "messages",
        "input",
        "stream",
        "stream_options",
        "include_usage",
        "background",
        "metadata",
        "fields",
        "tools",
        "tool_choice",
        "type",
        "function",
        "name",
        "parameters",
        "role",
        "content",
        "text",
        "tool_calls",
        "tool_call_id",
        "call_id",
        "id",
        "arguments",
        "output",
        "image_url",
        "url",
        "file",
        "file_data",
        "file_url",
        "filename",
        "input_audio",
        "data",
        "instructions",
        "previous_response_id",
        "reasoning",
        "max_tokens",
        "max_output_tokens",
        "temperature",
        "stop",
        "seed",
        "n",
        "extra",
        "store",
        "response_format",
        "format",
        "logit_bias",
        "times",
        "anything",
        "user",
        "include",
    ]
)
WORDS = st.sampled_from(
    [
        "writer",
        "Shout",
        "model",
        "user",
        "assistant",
        "system",
        "developer",
        "tool",
        "function",
        "text",
        "input_text",
        "image_url",
        "message",
        "function_call",
        "function_call_output",
        "\ud800",
        "\x00",
        "a\udfffb",
        "",
        "{}",
        "[",
        "true",
        "data:image/png;base64,AA",
        "data:image/png;base64,iVBORw0KGgo=",
        "file",
        "input_file",
        "input_image",
        "input_audio",
        "https://a.test/b.png",
        "file:///etc/passwd",
    ]
)
ATOMS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, -1, 1, 2**31, 2**63, 10**400, -(10**400)]),
    st.floats(),
    st.text(max_size=5),
    WORDS,
)
VALUES = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.one_of(NAMES, WORDS), inner, max_size=5)
    ),
    max_leaves=12,
)
BODIES = st.one_of(
    VALUES,
    st.dictionaries(NAMES, VALUES, max_size=6),
    st.builds(
        lambda base, path, model, more: {**_valid(path, model, base), **more},
        st.one_of(VALUES, st.just("hi")),
        st.sampled_from(POSTS),
        st.sampled_from(["writer", "Shout", "model"]),
        st.dictionaries(NAMES.filter(lambda name: name != "model"), VALUES, max_size=3),
    ),
)


@settings(max_examples=example_count(60, 2000))
@given(st.lists(st.tuples(st.sampled_from([*POSTS, "/answers"]), BODIES), min_size=1, max_size=4))
def test_random_json_is_refused_or_answered(requests: list[tuple[str, Any]]) -> None:
    """At each address: success or 4xx in OpenAI's format, and the server survives."""

    async def check() -> None:
        async with _running() as server:
            begun = await send_request(server, "POST", RUNS, encode_body(_valid(RUNS)))
            for path, body in requests:
                at = f"/runs/{begun.json['id']}/answers/1" if path == "/answers" else path
                answer = await send_request(server, "POST", at, encode_body(body))
                assert _is_sound(answer), (answer, body)
                if answer.status == 201:
                    events = await send_request(server, "GET", f"/runs/{answer.json['id']}/events")
                    assert b"event: completed" in events.body
            await _lives(server)

    asyncio.run(check())


LITERALS = st.sampled_from(
    [
        *(
            "1",
            "-0",
            "-0.0",
            "1e5",
            "1e999",
            "-1E999",
            "0.1e-400",
            "9007199254740993.0",
            "01",
            "1.",
        ),
        *("NaN", "-Infinity", "nan", "true", "null", '"a"', '"\\ud83d"', '"\\ud83d\\ude00"'),
        *('"\\uD83D\\u0041"', '"\\ude00\\ud83d"', '"\\u0000"', '"\x01"', '"\\x"', '"\x7f\xa0"'),
        *("9" * 400, "9" * 400 + ".5", "9" * 4301, "18446744073709551616", "\ufeff1", "[1,]", ""),
        *("[" * n + "1e999" * (n % 2) + "]" * n for n in (98, 99, 100, 150, 199, 250, 300)),
    ]
)
TEXTS = st.recursive(
    LITERALS,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda each: f"[{', '.join(each)}]")
        | st.lists(st.tuples(st.sampled_from(["a", "b", "\\ud83d"]), inner), max_size=3).map(
            lambda each: "{" + ",".join(f'"{name}": {value}' for name, value in each) + "}"
        )
    ),
    max_leaves=6,
)


@settings(max_examples=example_count(100, 5000))
@given(TEXTS.map(lambda text: f'{{"a": {text}}}') | TEXTS, st.booleans())
def test_a_body_is_read_as_json_reads_it(text: str, broken: bool) -> None:
    """Numbers, single surrogates, repeated names, depth: the same value or refusal as `json`.

    A number that is too large is refused, unless a later value has its name.
    """

    def refuse(name: str) -> float:
        raise ValueError(name)

    def depth_of(value: Any) -> int:
        if isinstance(value, dict):
            value = [*cast("dict[str, Any]", value).values()]
        each = cast("list[Any]", value) if isinstance(value, list) else None
        return 0 if each is None else 1 + max(map(depth_of, each), default=0)

    body = text.encode() + b"\xff" * broken
    expected: Any = "the body must be valid JSON"
    with suppress(ValueError, RecursionError):
        loaded = json.loads(body.decode(), parse_constant=refuse)
        json.dumps(loaded, allow_nan=False)
        expected = loaded
        if not isinstance(expected, dict):
            expected = "the body must be a JSON object"
        elif depth_of(loaded) > 100:
            expected = "the body must have at most 100 levels"
        else:
            expected = json.loads(encodable(json.dumps(expected, ensure_ascii=False)))
    if re.search("[0-9]{1001}", re.sub(r'"(?:[^"\\]|\\.)*"', "", text)):
        expected = "a number must have at most 1000 digits in a row"
    answer: Any
    try:
        answer = asyncio.run(_request_body._parse(body))  # pyright: ignore[reportPrivateUsage]
    except Refusal as refusal:
        answer = refusal.message
    if "[" * 199 in text and "digits" not in str(expected):  # the reader's limit is 200 levels
        assert answer in ("the body must have at most 100 levels", "the body must be valid JSON")
    else:
        assert repr(answer) == repr(expected)


@settings(max_examples=example_count(100, 5000))
@given(st.sampled_from(POSTS), st.binary(max_size=60))
def test_random_bytes_are_refused(path: str, body: bytes) -> None:
    """Bytes that are not JSON get 400 at each address."""

    async def check() -> None:
        async with _running() as server:
            answer = await send_request(
                server, "POST", path, body, {"content-type": "application/json"}
            )
            assert is_refusal(answer)

    asyncio.run(check())


DEEP = {
    "lists": "[" * 5000 + "]" * 5000,
    "objects": '{"a":' * 5000 + "1" + "}" * 5000,
    "never closed": "[" * 100_000,
    "of a field": '{"model": "Shout", "fields": {"anything": %s}}' % ("[" * 200 + "]" * 200),
    "of metadata": '{"model": "writer", "metadata": %s}' % ('{"a":' * 500 + "1" + "}" * 500),
}
BAD = {
    "nothing": b"",
    "a list": b"[]",
    "a text": b'"a"',
    "null": b"null",
    "two": b"{}{}",
    "not a number": b'{"model": NaN}',
    "infinite": b'{"model": -Infinity}',
    "too large": b'{"model": 1e999}',
    "too long a number": b'{"model": ' + b"9" * 10_000 + b"}",
    "latin-1": '{"model": "é"}'.encode("latin-1"),
    "utf-16": '{"model": "a"}'.encode("utf-16"),
    "utf-32": '{"model": "a"}'.encode("utf-32-le"),
    "half a character": b'{"model": "\xed\xa0\x80"}',
    "a mark of the order of bytes": b'\xef\xbb\xbf{"model": "a"}',
    **{f"deep: {name}": text.encode() for name, text in DEEP.items()},
}


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("name", BAD)
async def test_invalid_json_is_refused(path: str, name: str) -> None:
    """With 400, for bytes, numbers and depth."""
    async with _running() as server:
        answer = await send_request(
            server, "POST", path, BAD[name], {"content-type": "application/json"}
        )
        assert answer.status == 400
        assert is_refusal(answer)
        await _lives(server)


@pytest.mark.parametrize("path", POSTS)
async def test_a_single_surrogate_never_breaks_an_answer(path: str) -> None:
    """Clients that cut a text inside a character get an answer; U+FFFD replaces the half."""
    async with _running() as server:
        sent = _valid(path, "Shout", "a\ud800b")
        answer = await send_request(server, "POST", path, encode_body(sent))
        assert answer.status in (200, 201)
        if path == CHAT:
            assert answer.json["choices"][0]["message"]["content"] == "a\ufffdb"
        field = {"anything": ["\ud800", {"\udfff": "\ud83d\ude00"}]}
        sent = _valid(path, "Shout", fields=field)
        assert (await send_request(server, "POST", path, encode_body(sent))).status in (200, 201)
        wrong = {**sent, "\ud800": 1}
        assert is_refusal(await send_request(server, "POST", path, encode_body(wrong)))


async def test_the_text_of_a_job_never_breaks_a_stream() -> None:
    """U+FFFD replaces single surrogates in its texts and its result."""

    @handler
    async def half(node: Node[Any], said: str) -> str:
        return "\ud800 end"

    server = serve(half)
    async with server.running():
        for more in ({}, {"stream": True}):
            body = encode_body({**_valid(CHAT, "half"), **more})
            answer = await send_request(server, "POST", CHAT, body)
            assert answer.status == 200
            assert "\ufffd end" in answer.body.decode()
            assert (b"[DONE]" in answer.body) == bool(more)


# --- sizes


async def test_a_body_that_is_too_large_is_refused_before_it_is_stored() -> None:
    """413 after `max_body` bytes; the rest is not read."""
    pieces = [b" " * 1000] * 20
    async with _running(max_body=5000) as server:
        answer = await send_request(server, "POST", CHAT, pieces)
        assert answer.status == 413
        assert is_refusal(answer)
        assert answer.headers["connection"] == "close"
        await _lives(server)


@pytest.mark.parametrize("path", POSTS)
async def test_a_text_of_ten_million_characters_is_answered_or_refused(path: str) -> None:
    """As `max_body` allows."""
    async with _running() as server:
        for size in (9_000_000, 11_000_000):
            answer = await send_request(
                server, "POST", path, encode_body(_valid(path, "Shout", "x" * size))
            )
            assert answer.status == (413 if size > 10_000_000 else 201 if path == RUNS else 200)
        await _lives(server)


@pytest.mark.parametrize("model", ["writer", "Shout", "model"])
async def test_a_history_of_a_hundred_thousand_messages_is_answered(model: str) -> None:
    """If `max_messages` allows it; other requests are answered during that time."""
    turn = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    said = [*turn * example_count(5_000, 50_000), {"role": "user", "content": "c"}]
    async with _running(max_messages=len(said)) as server:
        answer = await send_request(
            server, "POST", CHAT, encode_body({"model": model, "messages": said})
        )
        assert answer.status == 200
        await _lives(server)


async def test_metadata_are_a_few_short_texts() -> None:
    """Each event of a response repeats them, so at most 16 texts of 512 characters are accepted."""
    async with _running() as server:
        for metadata, status in (
            ({f"{n}": "x" * 512 for n in range(16)}, 200),
            ({f"{n}": "x" for n in range(17)}, 400),
            ({"a": "x" * 513}, 400),
            ({"x" * 65: "a"}, 400),
            ({"a": 1}, 400),
            ({"a": {"b": "c"}}, 400),
            ([], 400),
        ):
            sent = _valid(RESPONSES, metadata=metadata)
            answer = await send_request(server, "POST", RESPONSES, encode_body(sent))
            assert answer.status == status
            assert answer.json.get("metadata", metadata) == metadata


async def test_a_slow_body_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """408 over a real connection, which is closed then."""
    monkeypatch.setattr(_request_body, "BODY_SECONDS", 0.05)
    async with on_uvicorn(serve(*_things())) as url:
        port = int(url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = "Host: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
        writer.write(f"POST {CHAT} HTTP/1.1\r\n{head}".encode() + b'{"model"')
        async with asyncio.timeout(20):
            answer = await reader.read()  # until the connection ends
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b'"type":"invalid_request_error"' in answer
        writer.close()
        await writer.wait_closed()


async def test_an_incomplete_request_starts_no_run() -> None:
    """If the client leaves inside the body, nothing is logged as an error."""
    async with _running() as server:
        body = encode_body(_valid(RUNS))
        await send_request(server, "POST", RUNS, [body], leaves=True)
        assert (await send_request(server, "GET", RUNS)).json == {"runs": []}


# --- malformed requests


def _raw(line: str, head: str = "", body: bytes = b"", host: str = "localhost") -> bytes:
    return f"{line}\r\nHost: {host}\r\nConnection: close\r\n{head}\r\n".encode("latin-1") + body


TYPE = "Content-Type: application/json\r\n"
GOOD = encode_body(_valid(CHAT))
CHUNKED = b"%x\r\n%s\r\n0\r\n\r\n" % (len(GOOD), GOOD)
ODD = {
    "chunked": (
        _raw(f"POST {CHAT} HTTP/1.1", f"{TYPE}Transfer-Encoding: chunked\r\n", CHUNKED),
        200,
    ),
    "a length that is no number": (
        _raw(f"POST {CHAT} HTTP/1.1", f"{TYPE}Content-Length: ten\r\n", GOOD),
        400,
    ),
    "two lengths": (
        _raw(f"POST {CHAT} HTTP/1.1", f"{TYPE}Content-Length: 1\r\nContent-Length: 2\r\n", GOOD),
        400,
    ),
    "a length below 0": (_raw(f"POST {CHAT} HTTP/1.1", f"{TYPE}Content-Length: -5\r\n", GOOD), 400),
    "too short a length": (
        _raw(f"POST {CHAT} HTTP/1.1", f"{TYPE}Content-Length: 5\r\n", GOOD),
        400,
    ),
    "no length": (_raw(f"POST {CHAT} HTTP/1.1", TYPE, GOOD), 400),
    "no type": (_raw(f"POST {CHAT} HTTP/1.1", f"Content-Length: {len(GOOD)}\r\n", GOOD), 415),
    "a form": (
        _raw(
            f"POST {CHAT} HTTP/1.1",
            f"Content-Type: text/plain\r\nContent-Length: {len(GOOD)}\r\n",
            GOOD,
        ),
        415,
    ),
    "an absolute address": (_raw("GET http://evil.com/v1/models HTTP/1.1"), 404),
    "only an authority": (_raw("CONNECT evil.com:80 HTTP/1.1"), 404),
    "a star": (_raw("OPTIONS * HTTP/1.1"), 404),
    "a path above": (_raw("GET /v1/models/../../etc/passwd HTTP/1.1"), 404),
    "a path above, encoded": (_raw("GET /v1/models/%2e%2e%2f%2e%2e%2fetc%2fpasswd HTTP/1.1"), 404),
    "bad percents": (_raw("GET /v1/models/%zz%f%ff%00%0d%0a HTTP/1.1"), 404),
    "two slashes": (_raw("GET //evil.com/ HTTP/1.1"), 404),
    "a slash at the end, which is no redirect": (_raw("GET /runs/ HTTP/1.1"), 200),
    "a number too long": (_raw(f"GET /runs/x/events?after={'9' * 5000} HTTP/1.1"), 404),
    "a name too long": (_raw(f"GET /runs/{'x' * 30_000} HTTP/1.1"), 404),
    "a head too long": (_raw("GET /v1/models HTTP/1.1", f"X: {'x' * 200_000}\r\n"), 400),
    "no method": (_raw("NONSENSE /v1/models HTTP/1.1"), 405),
    "another method": (_raw("DELETE /v1/models HTTP/1.1"), 405),
    "only the head": (_raw("HEAD /v1/models HTTP/1.1"), 405),
    "no host": (b"GET /v1/models HTTP/1.0\r\n\r\n", 403),
    "two hosts": (_raw("GET /v1/models HTTP/1.1", "Host: evil.com\r\n"), 400),
    "a websocket": (
        _raw(
            "GET /v1/models HTTP/1.1",
            "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAA\r\n",
        ),
        200,
    ),
}


async def test_malformed_requests_over_a_real_connection_are_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """4xx each, in OpenAI's format unless the web server refuses; no error is logged."""
    async with on_uvicorn(serve(*_things())) as url:
        port = int(url.rpartition(":")[2])
        for name, (sent, status) in ODD.items():
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            answer = b""
            async with asyncio.timeout(20):
                # A refusal before the end of the request may reset the connection.
                with suppress(ConnectionResetError):
                    while piece := await reader.read(65536):
                        answer += piece
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
            if name == "a head too long" and not answer:
                continue
            head, _, body = answer.partition(b"\r\n\r\n")
            assert head.split()[1] == b"%d" % status, (name, answer)
            if status >= 400 and b"application/json" in head and b"HEAD" not in sent:
                error = json.loads(body)["error"]
                assert sorted(error) == ["code", "message", "param", "type"]
            assert b"location" not in head.lower()
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


@pytest.mark.parametrize("number", ["9" * 5000, "-1", "1.5", "x", "%31", "\u0661", "1_0", " 1"])
async def test_numbers_in_addresses_are_small_and_plain(number: str) -> None:
    """Others are 400, never an internal error."""
    async with _running() as server:
        begun = await send_request(server, "POST", RUNS, encode_body(_valid(RUNS)))
        run = f"/runs/{begun.json['id']}"
        query = number.encode("utf-8").decode("latin-1")
        assert (
            await send_request(server, "GET", f"{run}/events", b"", {"last-event-id": "x"})
        ).status == 400
        assert (await send_request(server, "POST", f"{run}/answers/{number}", b"{}")).status == 400
        if number.isascii():
            assert (
                await send_request(server, "GET", f"{run}/events?after={query}")
            ).status == 400 or (number == "%31")


async def test_unknown_addresses_get_the_same_format() -> None:
    """404 and 405 are in OpenAI's format, also inside another application."""
    from fastapi import FastAPI

    outer = FastAPI()
    server = serve(*_things())
    server.mount_into(outer, "/ai")
    async with server.running():
        for app, base in ((server, ""), (outer, "/ai")):
            for method, path, status in (
                ("GET", "/v1/nothing", 404),
                ("POST", "/v1/models", 405),
                ("PUT", "/v1/chat/completions", 405),
                ("GET", "/v1/chat/completions", 405),
                ("GET", "/v1/models/nothing", 404),
                ("GET", "/runs/nothing", 404),
            ):
                answer = await send_request(app, method, base + path)
                assert answer.status == status, path
                assert is_refusal(answer)
            assert (await send_request(app, "GET", f"{base}/v1/models")).status == 200
            evil = {"origin": "http://evil.com"}
            assert (await send_request(app, "GET", f"{base}/v1/models", b"", evil)).status == 403


async def test_a_websocket_is_closed() -> None:
    """The server refuses it before it is accepted."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "websocket", "path": "/v1/models", "headers": [], "query_string": b""}
    async with _running() as server:
        await server(scope, receive, send)  # type: ignore[arg-type]
    assert [each["type"] for each in sent] == ["websocket.close"]


# --- features that the server does not offer


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("extra", {"model": "dearer"}),
        ("extra_body", {"model": "dearer"}),
        ("extra_args", {}),
        ("tool_images", "user"),
        ("stream_options", {"a": 1}),
        ("user_prompt", "x"),
        ("max_tokens", 101),
        ("max_completion_tokens", 10**30),
        ("max_tokens", "50"),
        ("temperature", "hot"),
        ("temperature", 10**400),
        ("stop", {"a": 1}),
        ("service_tier", "priority"),
    ],
)
async def test_a_request_chooses_nothing_of_a_model_that_is_not_offered(
    name: str, value: Any
) -> None:
    """Neither another model in `extra`, nor more tokens than the server's default."""
    backend = ScriptedBackend(otherwise="hi", max_tokens=100)
    server = serve({"model": backend})
    async with server.running():
        answer = await send_request(
            server, "POST", CHAT, encode_body(_valid(CHAT, "model", **{name: value}))
        )
        assert answer.status == 400
        assert is_refusal(answer)
        assert not backend.requests
        good = _valid(CHAT, "model", max_tokens=100, stop=["a"], temperature=1)
        assert (await send_request(server, "POST", CHAT, encode_body(good))).status == 200


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("model", ["writer", "Shout"])
@pytest.mark.parametrize(
    "more",
    [
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"temperature": 0.5},
        {"max_tokens": 5},
        {"extra": {"a": 1}},
        {"fields": {"_node": 1}},
        {"limits": {"budget": 10**9}},
    ],
)
async def test_a_request_chooses_nothing_of_an_agent_or_a_job(
    path: str, model: str, more: dict[str, Any]
) -> None:
    """The server chooses tools, options, limits and the system prompt."""
    async with _running() as server:
        sent = _valid(path, model, **more)
        answer = await send_request(server, "POST", path, encode_body(sent))
        assert answer.status == 400
        assert is_refusal(answer)
        field = "messages" if path == CHAT else "input"
        for role in ("system", "developer", "tool"):
            said = [{"role": role, "content": "x", "tool_call_id": "1"}, *_valid(path)[field]]
            answer = await send_request(
                server, "POST", path, encode_body({**_valid(path, model), field: said})
            )
            assert answer.status == 400
            assert is_refusal(answer)


async def test_clients_cannot_fill_private_fields() -> None:
    """A name with an underscore, a backend, a function: they keep their defaults."""
    seen: list[Any] = []
    own = ScriptedBackend(otherwise="x")

    class Report(Job[str]):
        topic: str
        _secret: str = "own"
        backend: ScriptedBackend = own
        maybe: ScriptedBackend | None = None
        callback: Any = 1
        on_done: Callable[[str], None] | None = print

        async def task(self) -> str:
            seen.append((self._secret, self.backend, self.maybe, self.on_done))
            return "ok"

    server = serve(Report)
    async with server.running():
        for name in ("_secret", "backend", "maybe", "on_done"):
            for value in (None, "x", {}):
                sent = {"model": "Report", "input": "a", "fields": {name: value}}
                answer = await send_request(server, "POST", RESPONSES, encode_body(sent))
                assert answer.status == 400
                assert "topic" in answer.json["error"]["message"]
                assert "_secret" not in answer.json["error"]["message"].partition("there are")[2]
        sent = {"model": "Report", "input": "a", "fields": {"callback": 2}}
        assert (await send_request(server, "POST", RESPONSES, encode_body(sent))).status == 200
    assert seen == [("own", own, None, print)]
