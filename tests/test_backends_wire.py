"""What holds for every backend that speaks the chat-completions wire: one body, two backends."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import pytest
from _server import DONE, Reply, ScriptedServer, Step, calls, chunk, event, text

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
from anabranch.dispatch import Delta, Message, Request

KEY = "sk-secret-0123456789/+="
ASK = Request([Message(role="user", content="Hello?")])
AT_ONCE = Retries(first=0.0)


@dataclass
class Line:
    """A server, and what makes backends that reach it."""

    server: ScriptedServer
    kind: str
    made: list[Backend]

    def connect(self, path: str = "", **settings: Any) -> Backend:
        settings = {"retries": AT_ONCE, "api_key": KEY} | settings
        address = self.server.url + path
        if self.kind == "http":
            backend = connect(address, model="tiny", **settings)
        else:
            backend = connect("openai:tiny", base_url=address, **settings)
        self.made.append(backend)
        return backend


@pytest.fixture(params=["http", "openai"])
async def line(request: pytest.FixtureRequest) -> AsyncIterator[Line]:
    async with ScriptedServer(text("Hi")) as server, asyncio.timeout(20):
        line = Line(server, request.param, [])
        yield line
        for backend in line.made:
            await backend.aclose()


async def _all(backend: Backend, request: Request = ASK) -> list[Delta]:
    async with aclosing(backend.stream(request)) as deltas:
        return [delta async for delta in deltas]


async def _failure(backend: Backend) -> BackendError:
    with pytest.raises(BackendError) as caught:
        await _all(backend)
    return caught.value


async def test_text_comes_in_pieces_with_usage_and_an_end(line: Line) -> None:
    """As the server cut it."""
    line.server.script(text("Hel", "lo ", "☃"))

    deltas = await _all(line.connect())

    assert [d.text for d in deltas if d.text] == ["Hel", "lo ", "☃"]
    assert [d.finish_reason for d in deltas if d.finish_reason] == ["stop"]
    assert deltas[-1].done
    usage = [d.usage for d in deltas if d.usage]
    assert [(u.input_tokens, u.output_tokens) for u in usage] == [(5, 7)]


async def test_tool_calls_come_in_pieces(line: Line) -> None:
    """And `complete` puts them together."""
    line.server.script(calls(("add", '{"a": 1, "b": 22}'), ("now", "{}")))

    message = await line.connect().complete(ASK)

    assert [(c.id, c.name, c.arguments) for c in message.tool_calls] == [
        ("call_0", "add", {"a": 1, "b": 22}),
        ("call_1", "now", {}),
    ]
    assert message.finish_reason == "tool_calls"


async def test_the_request_is_the_wires_own(line: Line) -> None:
    """Defaults, a request's own options over them, the key as a bearer token."""
    backend = line.connect(temperature=0.5, top_k=3, stop=["x"])

    await _all(backend, Request(ASK.messages, options={"temperature": 0, "seed": 1}))

    (got,) = line.server.requests
    assert got.path == "/v1/chat/completions"
    assert got.headers["Authorization"] == f"Bearer {KEY}"
    assert got.body == {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Hello?"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "top_k": 3,
        "stop": ["x"],
        "seed": 1,
    }


@pytest.mark.parametrize("path", ["/", "/chat/completions", "/chat/completions/"])
async def test_an_address_may_end_in_the_endpoint(line: Line, path: str) -> None:
    """Or in a slash."""
    await _all(line.connect(path))

    assert line.server.requests[0].path == "/v1/chat/completions"


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (400, {"message": "bad temperature"}, BackendError),
        (401, {"message": "who?"}, AuthenticationError),
        (403, {"message": "not you"}, AuthenticationError),
        (404, {"message": "no model 'tiny'", "code": "model_not_found"}, ModelNotFound),
        (400, {"message": "n", "code": "context_length_exceeded"}, ContextTooLong),
        (400, {"message": "the request exceeds the available context size"}, ContextTooLong),
        (413, "too large", ContextTooLong),
        (429, {"message": "slowly"}, RateLimited),
        (408, {"message": "late"}, BackendUnavailable),
        (500, {"message": "oh"}, BackendUnavailable),
        (503, "loading", BackendUnavailable),
        (529, {"message": "overloaded"}, BackendUnavailable),
    ],
)
async def test_a_refusal_is_the_error_of_its_status(
    line: Line, status: int, error: Any, kind: type[BackendError]
) -> None:
    """With the server's words and the status; nothing else hides in the traceback."""
    line.server.script(Reply.error(status, error))

    failure = await _failure(line.connect())

    assert type(failure) is kind
    assert failure.status == status
    assert (error["message"] if isinstance(error, dict) else error) in str(failure)
    assert failure.__cause__ is None


@pytest.mark.parametrize(
    "body", [b"", b"<html>no</html>", b"plain words", b"[]", b'{"detail":"d"}']
)
async def test_a_refusal_without_an_error_object_is_told(line: Line, body: bytes) -> None:
    """Web pages are not quoted."""
    line.server.script(Reply([body], 502, content_type="text/html"))

    failure = await _failure(line.connect())

    assert isinstance(failure, BackendUnavailable)
    assert "502" in str(failure)
    assert "<" not in str(failure)


async def test_a_redirect_is_not_followed(line: Line) -> None:
    """The key would go to another place, and a POST become a GET."""
    line.server.script(Reply(status=301, headers={"Location": "http://127.0.0.1:9/x"}))

    assert "http://127.0.0.1:9/x" in str(await _failure(line.connect()))
    assert len(line.server.requests) == 1


async def test_what_is_not_the_protocol_is_a_bad_response(line: Line) -> None:
    """Broken JSON, another type, a web page, several choices."""
    both = {"choices": [{"delta": {"content": "a"}}, {"delta": {"content": "b"}, "index": 1}]}
    for reply in (
        Reply([b"data: {broken\n\n"]),
        Reply([b"data: 3\n\n"]),
        Reply([b"<html>"], content_type="text/html"),
        Reply([event(both)]),
    ):
        line.server.script(reply)
        assert type(await _failure(line.connect())) is BadResponse
    assert len(line.server.requests) == 4


async def test_servers_that_differ_from_the_wire_are_understood(line: Line) -> None:
    """Null deltas, comments, CRLF, a byte order mark, an early usage, a lone surrogate, no end."""
    line.server.script(
        Reply(
            [
                b"\xef\xbb\xbf: keep-alive\r\n\r\n",
                event({"choices": [{"index": 0, "delta": None}]}).replace(b"\n", b"\r\n"),
                event({"choices": [{"delta": {"content": None, "role": "assistant"}}]}),
                chunk({"content": "a"}, usage={"prompt_tokens": 2, "completion_tokens": None}),
                b'data: {"choices":[{"delta":{"content":"\\ud83d"}}]}\n\n',
                b'data: {"choices":[{"delta":{"content":"\\ude00"}}]}\n\n',
                b"data:\n\n",
                b"data: [DONE]",
            ]
        )
    )

    deltas = await _all(line.connect())

    assert [d.text for d in deltas] == ["a", "\ud83d", "\ude00", ""]
    assert deltas[0].usage is not None
    assert deltas[-1].done


async def test_arguments_as_an_object_and_missing_ids_are_understood(line: Line) -> None:
    """As some servers send them: whole calls."""
    call = {"function": {"name": "add", "arguments": {"a": 1}}}
    line.server.script(Reply([chunk({"tool_calls": [call]}, "tool_calls"), DONE]))

    message = await line.connect().complete(ASK)

    assert [(c.name, c.arguments) for c in message.tool_calls] == [("add", {"a": 1})]


async def test_a_server_that_does_not_stream_is_understood(line: Line) -> None:
    """Its whole message is one delta."""
    body = {
        "choices": [{"message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2},
    }
    pretty = json.dumps(body, indent=2).encode()
    line.server.script(Reply([pretty], content_type="application/json"))

    message = await line.connect().complete(ASK)

    assert (message.content, message.finish_reason) == ("Hi", "stop")


async def test_nobody_there_is_unavailable(line: Line) -> None:
    """And says so after the attempts it has."""
    await line.server.__aexit__()

    failure = await _failure(line.connect())

    assert isinstance(failure, BackendUnavailable)
    assert "127.0.0.1" in str(failure)


async def test_leaving_early_closes_the_connection(line: Line) -> None:
    """The server sees it go."""
    line.server.script(Reply([chunk({"content": "a"}), Step.HANG]))

    async with aclosing(line.connect().stream(ASK)) as deltas:
        assert (await anext(deltas)).text == "a"

    await line.server.gone.wait()


@pytest.mark.parametrize("before", [[], [chunk({"content": "a"})]], ids=["first", "next"])
async def test_cancelling_the_reader_closes_the_connection(line: Line, before: list[bytes]) -> None:
    """Before the first delta and after it."""
    got = asyncio.Event()
    line.server.script(Reply([*before, Step.HANG]))
    backend = line.connect()

    async def read() -> None:
        async with aclosing(backend.stream(ASK)) as deltas:
            async for _ in deltas:
                got.set()

    reader = asyncio.create_task(read())
    await (got if before else line.server.asked).wait()
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader

    await line.server.gone.wait()


async def test_connections_are_used_again(line: Line) -> None:
    """A reply read to its end gives its connection back."""
    backend = line.connect()

    for _ in range(5):
        await _all(backend)

    assert len({r.headers["Peer"] for r in line.server.requests}) == 1


async def test_a_drop_in_mid_stream_is_interrupted_with_what_came(line: Line) -> None:
    """Text and usage kept; nothing is tried again."""
    line.server.script(Reply([chunk({"content": "Hel"}), chunk({"content": "lo"}), Step.DROP]))

    failure = await _failure(line.connect())

    assert isinstance(failure, StreamInterrupted)
    assert failure.partial.content == "Hello"
    assert len(line.server.requests) == 1


async def test_an_end_without_an_end_mark_is_interrupted(line: Line) -> None:
    """The connection ended well, the reply did not."""
    line.server.script(Reply([chunk({"content": "Hel"})]))

    assert isinstance(await _failure(line.connect()), StreamInterrupted)


async def test_an_error_in_mid_stream_is_interrupted_with_its_words(line: Line) -> None:
    """An error object instead of a chunk."""
    line.server.script(Reply([chunk({"content": "Hel"}), event({"error": {"message": "oom"}})]))

    failure = await _failure(line.connect())

    assert isinstance(failure, StreamInterrupted)
    assert "oom" in str(failure)


@pytest.mark.parametrize("last", [chunk(finish="stop"), DONE], ids=["finish_reason", "done"])
async def test_what_happens_after_the_end_does_not_matter(line: Line, last: bytes) -> None:
    """A drop behind it loses nothing."""
    line.server.script(Reply([chunk({"content": "Hi"}), last, Step.DROP]))

    assert (await line.connect().complete(ASK)).content == "Hi"


@pytest.mark.parametrize(
    "first",
    [
        Reply.error(503, "loading"),
        Reply.error(429, "slowly", Retry_After="0"),
        Reply([Step.DROP]),
        Reply([event({"error": {"message": "overloaded", "code": 503}})]),
        Reply([]),
    ],
    ids=["503", "429", "drop", "error", "empty"],
)
async def test_a_failure_before_the_first_delta_is_tried_again(line: Line, first: Reply) -> None:
    """Three attempts by default; then the last failure is raised."""
    line.server.script(first, first, text("Hi"))
    assert (await line.connect().complete(ASK)).content == "Hi"

    line.server.script(first)
    line.server.requests.clear()
    await _failure(line.connect())
    assert len(line.server.requests) == 3


@pytest.mark.parametrize("status", [400, 401, 404])
async def test_a_refusal_that_will_not_change_is_not_tried_again(line: Line, status: int) -> None:
    """One attempt."""
    line.server.script(Reply.error(status, "no"))

    await _failure(line.connect())

    assert len(line.server.requests) == 1


async def test_a_server_that_asks_for_too_long_a_wait_is_not_waited_for(line: Line) -> None:
    """The error says how long."""
    line.server.script(Reply.error(429, "tomorrow", Retry_After="86400"))

    failure = await _failure(line.connect())

    assert isinstance(failure, RateLimited)
    assert failure.retry_after == 86400


async def test_a_silent_server_is_unavailable(line: Line) -> None:
    """The first token has its own timeout, and each attempt has it anew."""
    line.server.script(Reply([Step.HANG]))

    failure = await _failure(line.connect(timeouts=Timeouts(first_token=0.3)))

    assert isinstance(failure, BackendUnavailable)
    assert "first token within 0.3 s" in str(failure)
    assert len(line.server.requests) == 3
    await line.server.gone.wait()


async def test_a_server_that_stops_is_interrupted(line: Line) -> None:
    """So has the wait between tokens; comments do not count as tokens."""
    line.server.script(Reply([chunk({"content": "a"}), b": ping\n\n", Step.HANG]))

    failure = await _failure(line.connect(timeouts=Timeouts(between_tokens=0.05)))

    assert isinstance(failure, StreamInterrupted)
    assert failure.partial.content == "a"
    await line.server.gone.wait()


async def test_an_endless_reply_is_interrupted(line: Line) -> None:
    """The whole has a timeout, however often a token comes."""
    line.server.script(Reply([chunk({"content": "a"}), Step.HANG]))

    failure = await _failure(line.connect(timeouts=Timeouts(whole=0.05)))

    assert isinstance(failure, StreamInterrupted)
    assert "whole within 0.05 s" in str(failure)


async def test_a_slow_reader_is_no_late_token(line: Line) -> None:
    """Only waiting for the server counts."""
    gate = asyncio.Event()
    line.server.script(Reply([chunk({"content": "a"}), gate, chunk(finish="stop"), DONE]))
    backend = line.connect(timeouts=Timeouts(between_tokens=0.2))

    got: list[Delta] = []
    async with aclosing(backend.stream(ASK)) as deltas:
        async for delta in deltas:
            got.append(delta)
            if not gate.is_set():
                await asyncio.sleep(0.4)  # the reader's own time, longer than the timeout
                gate.set()

    assert got[-1].done


async def test_a_key_never_shows(line: Line, caplog: pytest.LogCaptureFixture) -> None:
    """Not in a repr, an error, its causes or a log, though the server echoes it everywhere."""
    caplog.set_level(0)
    told = f"the key {KEY} is wrong"
    for reply in (
        Reply.error(401, {"message": told}),
        Reply.error(400, told),
        Reply([json.dumps({"error": told}).replace("/", "\\/").encode()], 500),
        Reply([told.encode()], 404, content_type="text/plain"),
        Reply([event({"error": {"message": told}})]),
        Reply([b"data: " + told.encode() + b"\n\n"]),
        Reply([event({"choices": told})]),
        Reply([chunk({"content": "a"}), event({"error": {"message": told}})]),
        Reply([chunk({"content": "a"}), event({"choices": [], "usage": {"prompt_tokens": KEY}})]),
    ):
        line.server.script(reply)
        backend = line.connect()
        failure: BaseException | None = await _failure(backend)
        assert KEY not in repr(backend)
        while failure is not None:
            assert KEY not in repr(failure)
            assert KEY not in str(failure)
            failure = failure.__cause__ or failure.__context__
    assert KEY not in caplog.text


def test_stream_sync_needs_no_loop() -> None:
    """Twice on one backend; leaving early closes what it opened."""
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(ScriptedServer(text("Hel", "lo")).__aenter__())
    import threading

    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        for kind in "http", "openai":
            backend = Line(server, kind, []).connect()
            assert "".join(d.text for d in backend.stream_sync(ASK)) == "Hello"
            early = backend.stream_sync(ASK)
            assert next(early).text == "Hel"
            early.close()
        gc.collect()
    finally:
        asyncio.run_coroutine_threadsafe(server.__aexit__(), loop).result(5)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
        loop.close()


async def test_stream_sync_is_refused_inside_a_loop(line: Line) -> None:
    """It would block it."""
    with pytest.raises(RuntimeError, match="use stream"):
        next(line.connect().stream_sync(ASK))
