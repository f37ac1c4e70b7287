"""Common behavior of backends with chat completions: one test body, two backends."""

from __future__ import annotations

import asyncio
import gc
import json
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scripted_server import DONE, Reply, ScriptedServer, calls, chunk, event, text
from support.wire_backends import (
    ASK,
    KEY,
    WireBackends,
    backend_error,
    make_request,
    read_all,
    wire,
)

from anabranch.backends._sse import EventReader
from anabranch.backends._wire import _read, _SurrogateMender  # pyright: ignore[reportPrivateUsage]
from anabranch.commander import (
    AuthenticationError,
    BackendError,
    BackendUnavailable,
    BadResponse,
    ConfigurationError,
    ContextTooLong,
    ModelNotFound,
    RateLimited,
)
from anabranch.messages import ChunkReader, delta_from_chunk
from anabranch.messages.text import encodable

pytestmark = pytest.mark.contract("B1")

__all__ = ["wire"]  # the fixture


async def test_text_comes_in_pieces_with_usage_and_an_end(wire: WireBackends) -> None:
    """In the server's pieces."""
    wire.server.script(text("Hel", "lo ", "☃"))

    deltas = await read_all(wire.connect())

    assert [d.text for d in deltas if d.text] == ["Hel", "lo ", "☃"]
    assert [d.finish_reason for d in deltas if d.finish_reason] == ["stop"]
    assert deltas[-1].done
    usage = [d.usage for d in deltas if d.usage]
    assert [(u.input_tokens, u.output_tokens) for u in usage] == [(5, 7)]


async def test_tool_calls_come_in_pieces(wire: WireBackends) -> None:
    """`complete` joins them."""
    wire.server.script(calls(("add", '{"a": 1, "b": 22}'), ("now", "{}")))

    message = await wire.connect().complete(ASK)

    assert [(c.id, c.name, c.arguments) for c in message.tool_calls] == [
        ("call_0", "add", {"a": 1, "b": 22}),
        ("call_1", "now", {}),
    ]
    assert message.finish_reason == "tool_calls"


async def test_the_request_is_the_wires_own(wire: WireBackends) -> None:
    """Defaults, a request's options over them, the key as a bearer token."""
    backend = wire.connect(temperature=0.5, top_k=3, stop=["x"])

    await read_all(backend, make_request(temperature=0, seed=1))

    (got,) = wire.server.requests
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


async def test_every_option_is_passed_on(wire: WireBackends) -> None:
    """As a default or for one request; None removes a default."""
    options: dict[str, Any] = {
        "temperature": 0.2,
        "top_p": 0.9,
        "top_k": 5,
        "stop": ["x", "y"],
        "max_tokens": 9,
        "seed": 7,
    }
    await read_all(wire.connect(**options))
    await read_all(wire.connect(temperature=1, min_p=0.1), make_request(**options, min_p=None))

    for got in wire.server.requests:
        assert got.body.keys() == {"model", "messages", "stream", "stream_options", *options}
        assert got.body.items() >= options.items()


async def test_extra_fields_go_into_the_body_as_they_are(wire: WireBackends) -> None:
    """They replace all others; a request's replace the backend's, field by field."""
    backend = wire.connect(seed=1, extra={"min_p": 0.1, "cache_prompt": True})

    await read_all(
        backend,
        make_request(
            seed=2, extra={"min_p": 0.2, "model": "large", "nested": {"a": None}, "stream": False}
        ),
    )

    (got,) = wire.server.requests
    del got.body["messages"], got.body["stream_options"]
    assert got.body == {
        "stream": False,
        "model": "large",
        "seed": 2,
        "min_p": 0.2,
        "cache_prompt": True,
        "nested": {"a": None},
    }


@pytest.mark.parametrize(
    "options",
    [{"n": 2}, {"n": "2"}, {"logprobs": True}, {"top_logprobs": 3}],
    ids=["n", "text", "logprobs", "top"],
)
@pytest.mark.parametrize("in_extra", [False, True])
async def test_what_no_message_can_hold_is_refused_before_it_is_sent(
    wire: WireBackends, options: dict[str, Any], *, in_extra: bool
) -> None:
    """Several replies and log probabilities, as a default or for one request."""
    given: dict[str, Any] = {"extra": options} if in_extra else options

    with pytest.raises(ConfigurationError, match=r"send n requests|logprobs cannot be read"):
        wire.connect(**given)
    with pytest.raises(ConfigurationError, match=r"send n requests|logprobs cannot be read"):
        await read_all(wire.connect(), make_request(**given))

    assert wire.server.requests == []
    await read_all(wire.connect(n=1, logprobs=False, top_logprobs=0))


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({"continuous_usage_stats": True}, {"include_usage": True, "continuous_usage_stats": True}),
        ({"include_usage": False}, {"include_usage": False}),
        (None, None),
    ],
    ids=["added", "taken back", "left out"],
)
async def test_stream_options_are_added_to_those_that_ask_for_the_usage(
    wire: WireBackends, given: Any, sent: Any
) -> None:
    """As a default or for one request."""
    await read_all(wire.connect(stream_options=given))
    await read_all(wire.connect(), make_request(stream_options=given))

    assert [got.body.get("stream_options") for got in wire.server.requests] == [sent, sent]


@pytest.mark.parametrize("path", ["/", "/chat/completions", "/chat/completions/"])
async def test_an_address_may_end_in_the_endpoint(wire: WireBackends, path: str) -> None:
    """Or in a slash."""
    await read_all(wire.connect(path))

    assert wire.server.requests[0].path == "/v1/chat/completions"


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (400, {"message": "bad temperature"}, BackendError),
        (401, {"message": "who?"}, AuthenticationError),
        (403, {"message": "not you"}, AuthenticationError),
        (404, {"message": "no model 'tiny'", "code": "model_not_found"}, ModelNotFound),
        (400, {"message": "n", "code": "context_length_exceeded"}, ContextTooLong),
        (400, {"message": "the request exceeds the available context size"}, ContextTooLong),
        (400, {"message": "max_tokens=9 cannot be greater than max_model_len=4."}, BackendError),
        (413, "too large", ContextTooLong),
        (429, {"message": "slowly"}, RateLimited),
        (408, {"message": "late"}, BackendUnavailable),
        (500, {"message": "oh"}, BackendUnavailable),
        (503, "loading", BackendUnavailable),
        (529, {"message": "overloaded"}, BackendUnavailable),
    ],
)
async def test_a_refusal_is_the_error_of_its_status(
    wire: WireBackends, status: int, error: Any, kind: type[BackendError]
) -> None:
    """With the server's text and the status; the traceback shows no other errors."""
    wire.server.script(Reply.error(status, error))

    failure = await backend_error(wire.connect())

    assert type(failure) is kind
    assert failure.status == status
    assert (error["message"] if isinstance(error, dict) else error) in str(failure)
    assert failure.__cause__ is None


@pytest.mark.parametrize(
    "body", [b"", b"<html>no</html>", b"plain words", b"[]", b'{"detail":"d"}']
)
async def test_a_refusal_without_an_error_object_is_told(wire: WireBackends, body: bytes) -> None:
    """Web pages are not quoted."""
    wire.server.script(Reply([body], 502, content_type="text/html"))

    failure = await backend_error(wire.connect())

    assert isinstance(failure, BackendUnavailable)
    assert "502" in str(failure)
    assert "<" not in str(failure)


NOT_THERE = [b'{"detail": "Not Found"}', b"404 page not found", b"<html>no</html>", b""]


@pytest.mark.parametrize("body", NOT_THERE)
@pytest.mark.parametrize("status", [404, 405])
async def test_an_address_that_is_not_there_is_named(
    wire: WireBackends, body: bytes, status: int
) -> None:
    """With a suggestion for an address without a version."""
    wire.server.script(Reply([body], status, content_type="application/json"))
    root = wire.server.url.removesuffix("/v1")

    told = str(await backend_error(wire.connect()))
    assert wire.server.url in told
    assert "should" not in told

    wire.server.url = root
    assert f"Did you mean {root}/v1?" in str(await backend_error(wire.connect()))
    wire.server.url = f"{root}/openai/deployments/gpt"
    assert "should" not in str(await backend_error(wire.connect()))


async def test_an_unknown_model_is_not_taken_for_an_unknown_address(wire: WireBackends) -> None:
    """The server's text decides."""
    wire.server.script(Reply.error(404, {"message": "The model `tiny` does not exist."}))

    assert str(await backend_error(wire.connect())) == "The model `tiny` does not exist. (404)"


async def test_a_redirect_is_not_followed(wire: WireBackends) -> None:
    """It would send the key to another place, and turn a POST into a GET."""
    wire.server.script(Reply(status=301, headers={"Location": "http://127.0.0.1:9/x"}))

    assert "http://127.0.0.1:9/x" in str(await backend_error(wire.connect()))
    assert len(wire.server.requests) == 1


async def test_a_redirect_to_nowhere_is_a_refusal(wire: WireBackends) -> None:
    """No address can be suggested."""
    wire.server.script(Reply(status=304))

    assert str(await backend_error(wire.connect())).endswith("answered with status 304 (304)")


@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
async def test_a_reply_may_have_another_status_of_success(wire: WireBackends, kind: str) -> None:
    """Web frameworks answer a POST with 201; a status without content means no reply."""
    wire.server.script(Reply([_HI, _END, DONE], status=201, content_type=kind))

    assert (await wire.connect().complete(ASK)).content == "Hi"

    wire.server.script(Reply(status=204))
    assert (await backend_error(wire.connect())).status == 204


async def test_what_is_not_the_protocol_is_a_bad_response(wire: WireBackends) -> None:
    """Broken JSON, another type, a web page, several choices."""
    both = {"choices": [{"delta": {"content": "a"}}, {"delta": {"content": "b"}, "index": 1}]}
    for reply in (
        Reply([b"data: {broken\n\n"]),
        Reply([b"data: 3\n\n"]),
        Reply([b"<html>"], content_type="text/html"),
        Reply([event(both)]),
    ):
        wire.server.script(reply)
        assert type(await backend_error(wire.connect())) is BadResponse
    assert len(wire.server.requests) == 4


_HI = chunk({"content": "Hi"})
_END = chunk(finish="stop")
_SPENT = {"prompt_tokens": 2, "completion_tokens": 3}

QUIRKS: dict[str, list[bytes]] = {
    "null delta": [event({"choices": [{"index": 0, "delta": None}]}), _HI, _END, DONE],
    "null fields": [chunk({"role": "assistant", "content": None, "tool_calls": None}), _HI, _END],
    "no choices": [event({"choices": []}), event({"id": "c-1"}), _HI, _END, DONE],
    "keep-alive comments": [b": ping\n\n", b":\n", _HI, b": ping\n\n", _END, DONE, b": ping\n\n"],
    "CRLF": [step.replace(b"\n", b"\r\n") for step in (_HI, _END, DONE)],
    "CR": [step.replace(b"\n", b"\r") for step in (_HI, _END, DONE)],
    "byte order mark": [b"\xef\xbb\xbf" + _HI, _END, DONE],
    "event names and ids": [b"event: message\nid: 1\nretry: 9\n" + _HI, _END, DONE],
    "no blank after the colon": [s.replace(b"data: ", b"data:") for s in (_HI, _END, DONE)],
    "a piece of no call": [
        chunk({"tool_calls": [{"index": 0, "id": None, "function": {"arguments": None}}]}),
        *(_HI, _END, DONE),
    ],
    "an empty event": [_HI, b"data:\n\n", b"data: \n\n", _END, DONE],
    "no end mark": [_HI, _END],
    "no finish reason": [_HI, DONE],
    "no last newline": [_HI, b"data: [DONE]"],
    "everything in one piece": [_HI + _END + DONE],
    "every byte by itself": [bytes([byte]) for byte in _HI + _END + DONE],
}


@pytest.mark.parametrize("quirk", QUIRKS)
async def test_a_server_that_differs_from_the_wire_is_understood(
    wire: WireBackends, quirk: str
) -> None:
    """Its reply is the same as without the quirk."""
    wire.server.script(Reply(QUIRKS[quirk]))

    message = await wire.connect().complete(ASK)

    assert (message.content, message.tool_calls) == ("Hi", [])


@pytest.mark.parametrize(
    "steps",
    [
        [event({"choices": [], "usage": _SPENT}), _HI, _END, DONE],
        [chunk({"content": "Hi"}, usage=_SPENT), _END, DONE],
        [chunk({"content": "Hi"}, usage={**_SPENT, "completion_tokens": None}), _SPENT, _END],
        [_HI, chunk(finish="stop", usage=_SPENT)],
        [_HI, _END, event({"choices": [], "usage": _SPENT}), DONE],
        [_HI, _END, event({"usage": _SPENT})],
    ],
    ids=["before all", "with text", "growing", "with the end", "after the end", "no choices"],
)
async def test_usage_is_taken_wherever_it_comes(wire: WireBackends, steps: list[Any]) -> None:
    """The last one counts."""
    written = [event({"usage": step}) if isinstance(step, dict) else step for step in steps]
    wire.server.script(Reply(written))

    message = await wire.connect().complete(ASK)

    assert message.content == "Hi"
    assert message.usage is not None
    assert (message.usage.input_tokens, message.usage.output_tokens) == (2, 3)


async def test_a_character_cut_in_two_is_whole_again(wire: WireBackends) -> None:
    """A strict parser would refuse the single surrogates."""
    halves = [b'data: {"choices":[{"delta":{"content":"\\ud83d"}}]}\n\n']
    halves.append(halves[0].replace(b"d83d", b"de00"))
    wire.server.script(Reply([*halves, DONE]))

    deltas = await read_all(wire.connect())

    assert [delta.text for delta in deltas if delta.text] == ["\U0001f600"]


@given(
    text=st.text(st.sampled_from("ab\ud83d\ude00\U0001f600")),
    cuts=st.lists(st.integers(0, 10), max_size=5),
    key=st.sampled_from(["content", "reasoning", "refusal"]),
    ends=st.sampled_from([DONE, chunk(finish="stop")]),
)
def test_no_delta_has_half_a_character(text: str, cuts: list[int], key: str, ends: bytes) -> None:
    """Wherever a server splits UTF-16, and if halves are never completed."""
    units = text.encode("utf-16-le", "surrogatepass")
    places = [0, *sorted(2 * cut for cut in cuts), len(units)]
    pieces = [
        units[start:end].decode("utf-16-le", "surrogatepass") for start, end in pairwise(places)
    ]
    events = [chunk({key: piece}) for piece in pieces]
    reader, halves, chunks = EventReader(), _SurrogateMender(), ChunkReader()
    said = ""
    for each in [*events, ends]:
        deltas, failed = _read(reader.feed(each), chunks, halves)
        assert failed is None
        for delta in deltas:
            said += delta.text + delta.reasoning + delta.refusal
            said.encode()
    assert said == encodable(text)


def _call(index: int | None, arguments: str, name: str = "") -> bytes:
    """Return the chunk of a piece of a call; the first one has the id and the name."""
    head = {"id": f"call {index}", "function": {"name": name, "arguments": arguments}}
    made: dict[str, Any] = head if name else {"function": {"arguments": arguments}}
    return chunk({"tool_calls": [made if index is None else {"index": index, **made}]})


@given(
    texts=st.lists(st.text(st.sampled_from("ab\ud83d\ude00\U0001f600")), min_size=1, max_size=3),
    cuts=st.lists(st.integers(0, 10), max_size=5),
    has_index=st.booleans(),
    repeats=st.booleans(),
    ends=st.sampled_from([DONE, chunk(finish="tool_calls")]),
)
def test_no_piece_of_arguments_has_half_a_character(
    texts: list[str], cuts: list[int], has_index: bool, repeats: bool, ends: bytes
) -> None:
    """Wherever a server splits them; calls may interleave, and each piece may have a name."""
    texts = texts if has_index else texts[:1]
    events = [_call(index if has_index else None, '{"x": "', "f") for index in range(len(texts))]
    units = [text.encode("utf-16-le", "surrogatepass") for text in texts]
    for start, end in pairwise([0, *sorted(2 * cut for cut in cuts), 99]):
        for index, unit in enumerate(units):
            piece = unit[start:end].decode("utf-16-le", "surrogatepass")
            name = "f" if repeats and len(texts) == 1 and "\udc00" <= piece[:1] <= "\udfff" else ""
            events.append(_call(index if has_index else None, piece, name))
    reader, halves, chunks = EventReader(), _SurrogateMender(), ChunkReader()
    said = [""] * len(texts)
    for each in [*events, ends]:
        deltas, failed = _read(reader.feed(each), chunks, halves)
        assert failed is None
        for delta in deltas:
            for call in delta.tool_calls:
                call.arguments.encode()
                said[max(call.index, 0)] += call.arguments
    assert said == [f'{{"x": "{encodable(text)}' for text in texts]


@pytest.mark.parametrize("indices", [(0, 0), (0, 1), (None, None)])
async def test_half_a_character_at_the_end_of_a_call_stays_in_it(
    wire: WireBackends, indices: tuple[int | None, int | None]
) -> None:
    """The next call starts with its own arguments, even with the same index."""
    first, second = indices
    cut = [_call(first, '{"x": "\ud83d"}', "f"), _call(first, "\ud83d")]
    wire.server.script(Reply([*cut, _call(second, "", "g"), _call(second, '{"y": 1}'), DONE]))
    deltas = await read_all(wire.connect())
    for delta in deltas:
        for call in delta.tool_calls:
            call.arguments.encode()
    message = await wire.connect().complete(ASK)
    assert [(call.name, call.arguments) for call in message.tool_calls] == [
        ("f", {"x": "\ufffd"}),
        ("g", {"y": 1}),
    ]


async def test_arguments_as_an_object_are_taken_as_they_are(wire: WireBackends) -> None:
    """Some servers send complete calls."""
    call = {"index": 0, "id": "c", "function": {"name": "add", "arguments": {"a": 1, "b": None}}}
    wire.server.script(Reply([chunk({"tool_calls": [call]}, "tool_calls"), DONE]))

    message = await wire.connect().complete(ASK)

    assert [(c.name, c.arguments) for c in message.tool_calls] == [("add", {"a": 1, "b": None})]


async def test_missing_ids_are_made(wire: WireBackends) -> None:
    """Each is unique; a missing index is accepted too."""
    call = {"function": {"name": "add", "arguments": '{"a": 1}'}}
    empty = {"id": "", "index": None, "function": {"name": "now", "arguments": "{}"}}
    wire.server.script(Reply([chunk({"tool_calls": [call, empty]}, "tool_calls"), DONE]))

    message = await wire.connect().complete(ASK)

    assert [call.name for call in message.tool_calls] == ["add", "now"]
    assert all(call.id for call in message.tool_calls)
    assert len({call.id for call in message.tool_calls}) == 2


async def test_a_server_that_does_not_stream_is_understood(wire: WireBackends) -> None:
    """Its complete message is one delta."""
    body = {
        "choices": [{"message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2},
    }
    pretty = json.dumps(body, indent=2).encode()
    wire.server.script(Reply([pretty], content_type="application/json"))

    message = await wire.connect().complete(ASK)

    assert (message.content, message.finish_reason) == ("Hi", "stop")


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/octet-stream", "application/json", "text/html"]
)
@pytest.mark.parametrize("before", [b"", b": hi\n\n", b"\xef\xbb\xbf\r\n", b"event: message\n"])
async def test_a_stream_is_known_by_how_it_begins(
    wire: WireBackends, kind: str, before: bytes
) -> None:
    """With any content type, and in any pieces."""
    raw = before + b"".join([_HI, _END, DONE])
    for steps in [raw], [bytes([byte]) for byte in raw]:
        wire.server.script(Reply(steps, content_type=kind or "x/unknown"))
        assert (await wire.connect().complete(ASK)).content == "Hi"


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        ({"detail": "the input is longer than the model's context length"}, ContextTooLong),
        ({"detail": [{"loc": ["body"], "msg": "no"}]}, BackendError),
        ({"detail": {"message": "who?", "code": 401}}, AuthenticationError),
        ({"errors": [{"message": "slowly", "code": "429"}]}, RateLimited),
        ({"message": "no such model", "type": "NotFoundError"}, ModelNotFound),
        ({"error": {"error": {"message": "prompt is too long"}}}, ContextTooLong),
        ({"error": {"message": "the request took too long"}}, BackendUnavailable),
        ({"error": {"message": "bad", "type": "invalid_request_error"}}, BackendError),
        ({"error": {"message": "no", "status": "PERMISSION_DENIED"}}, AuthenticationError),
        ({"error": {"message": "wait", "status": "RESOURCE_EXHAUSTED"}}, RateLimited),
        ({"error": {"message": "oh", "type": "InternalServerError"}}, BackendUnavailable),
        ({"error": {"message": "pay", "code": "insufficient_balance"}}, BackendError),
        ({"error": {"message": "pay", "code": "insufficient_quota"}}, BackendError),
        ({"error": {"message": "pay", "type": "insufficient_quota"}}, BackendError),
    ],
)
async def test_an_error_in_a_stream_is_of_the_kind_that_its_words_say(
    wire: WireBackends, told: dict[str, Any], kind: type[BackendError]
) -> None:
    """A permanent one is not retried. It may be the only element of a list."""
    lines = json.dumps(told).encode() + b"\n"
    listed = json.dumps([told], indent=1).replace("[\n {", "[{").encode()  # as Gemini writes it
    for step in event(told), event([told]), lines, listed, json.dumps([told], indent=1).encode():
        wire.server.requests.clear()
        wire.server.script(Reply([step + b"\n\n"]))
        assert type(await backend_error(wire.connect())) is kind
        assert len(wire.server.requests) == (3 if kind in (BackendUnavailable, RateLimited) else 1)


def _as_texts(value: Any, chance: Random) -> Any:
    """Return a chunk with some numbers as texts, and texts of digits as numbers."""
    if isinstance(value, dict):
        return {key: _as_texts(each, chance) for key, each in value.items()}
    if isinstance(value, list):
        return [_as_texts(each, chance) for each in value]
    if type(value) is int and chance.random() < 0.6:
        return chance.choice([str(value), float(value)])
    return int(value) if isinstance(value, str) and value.isdigit() else value


@given(
    index=st.integers(0, 5),
    ident=st.integers(0, 10**12),
    tokens=st.integers(0, 10**6),
    content=st.one_of(st.none(), st.sampled_from(["Hi", "7", "☃"])),
    seed=st.integers(),
)
def test_numbers_may_be_texts_and_texts_numbers(
    index: int, ident: int, tokens: int, content: str | None, seed: int
) -> None:
    """As in other clients, the type does not matter."""
    call = {"index": index, "id": str(ident), "function": {"name": "add", "arguments": "{}"}}
    plain = {
        "choices": [{"index": 0, "delta": {"content": content, "tool_calls": [call]}}],
        "usage": {"prompt_tokens": tokens, "completion_tokens": 1},
    }

    assert delta_from_chunk(_as_texts(plain, Random(seed))) == delta_from_chunk(plain)


def test_stream_sync_needs_no_loop() -> None:
    """It works twice on one backend; closing it early closes its connections."""
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(ScriptedServer(text("Hel", "lo")).__aenter__())
    import threading

    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        for kind in "http", "openai":
            backend = WireBackends(server, kind, []).connect()
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


async def test_stream_sync_is_refused_inside_a_loop(wire: WireBackends) -> None:
    """It would block the loop."""
    with pytest.raises(RuntimeError, match="use stream"):
        next(wire.connect().stream_sync(ASK))
