"""Spans have attributes for the server's address and for the reply's id and model."""

from __future__ import annotations

import json
import pickle
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from support.scripted_server import DONE, Reply, ScriptedServer, chunk, event
from support.seeds import example_count
from support.spans import CollectedSpans

from anabranch import Commander, Message, Node, connect, handler
from anabranch.messages import Delta, ReplyEvent, Request, RequestEvent
from anabranch.testing import ScriptedBackend
from anabranch.tracing import otel

KEY = "sk-live-0123456789abcdef"
ASKED = Request([Message(role="user", content="hi")])
SERVER = ("server.address", "server.port", "gen_ai.response.id", "gen_ai.response.model")
SAID: dict[str, Any] = {"id": "chatcmpl-7", "model": "tiny-2026-11-01"}
# Azure's first event has an empty id and model.
AZURE = event({"id": "", "model": "", "choices": [], "prompt_filter_results": []})


@handler
async def ask(node: Node[None], backend: Any) -> None:
    """Send one request."""
    await backend.complete(ASKED)


async def span_of(backend: Any, **options: Any) -> dict[str, Any]:
    """Return the attributes about the server in the span of the only request."""
    kept = CollectedSpans()
    async with Commander() as commander, backend:
        with otel(commander, tracer_provider=kept.provider, **options) as spans:
            await commander.call_handler(ask(backend))
    assert spans.flush()
    (span,) = [each for each in kept.ended if each.name.startswith("chat ")]
    return {name: span.attributes[name] for name in SERVER if name in span.attributes}


def streamed(*events: bytes, **said: Any) -> Reply:
    begins = chunk({"role": "assistant", "content": ""}, **said)
    return Reply([*events, begins, chunk({"content": "Hi."}, "stop", **said), DONE])


def whole(**said: Any) -> Reply:
    choice = {"index": 0, "message": {"role": "assistant", "content": "Hi."}}
    body = {"choices": [{**choice, "finish_reason": "stop"}], **said}
    return Reply([json.dumps(body).encode()], content_type="application/json")


@pytest.mark.parametrize("kind", ["http", "openai"])
@pytest.mark.parametrize(
    "reply", [streamed(**SAID), streamed(AZURE, **SAID), whole(**SAID)], ids=["a", "azure", "whole"]
)
async def test_a_span_names_the_server_and_its_reply(kind: str, reply: Reply) -> None:
    """A span has the address, the reply's id and its model; metrics have all but the id."""
    reader = InMemoryMetricReader()
    meters = MeterProvider([reader], shutdown_on_exit=False)
    async with ScriptedServer(reply) as server:
        name, key = ("tiny", KEY) if kind == "http" else ("openai:tiny", KEY)
        where: dict[str, Any] = {"model": name} if kind == "http" else {"base_url": server.url}
        backend = connect(server.url if kind == "http" else name, api_key=key, **where)
        said = await span_of(backend, meter_provider=meters)
        url = urlsplit(server.url)
    assert said == {
        "server.address": "127.0.0.1",
        "server.port": url.port,
        "gen_ai.response.id": "chatcmpl-7",
        "gen_ai.response.model": "tiny-2026-11-01",
    }
    data = reader.get_metrics_data()
    (scope,) = data.resource_metrics[0].scope_metrics  # type: ignore[union-attr]
    for metric in scope.metrics:
        for point in metric.data.data_points:
            about: dict[str, Any] = {**(point.attributes or {})}
            assert about["server.port"] == url.port
            assert about["gen_ai.response.model"] == "tiny-2026-11-01"
            assert "gen_ai.response.id" not in about


PORTS = [("http://models.test/v1", 80), ("https://models.test", 443), ("http://[::1]:81/v1", 81)]


@pytest.mark.parametrize(("address", "port"), PORTS)
def test_the_default_port_is_the_schemes(address: str, port: int) -> None:
    """The scheme gives the default port, and an IPv6 host has no brackets."""
    server = connect(address, model="tiny").server
    assert server == ("::1" if "::1" in address else "models.test", port)


async def test_a_model_in_this_process_has_no_server() -> None:
    """A span of a local model has neither a server nor a reply id."""
    assert await span_of(ScriptedBackend("Hi.", model="m")) == {}


@settings(max_examples=example_count(15, 150), deadline=None)
@given(
    cuts=st.lists(st.integers(1, 60), max_size=12),
    events=st.lists(st.sampled_from([AZURE, b": comment\n\n"]), max_size=2),
)
async def test_the_reply_is_named_for_any_chunks(cuts: list[int], events: list[bytes]) -> None:
    """The first event with a name decides, however the bytes are split; later names are ignored."""
    others = chunk({"content": "Hi."}, "stop", id="other", model="other")
    data = b"".join([*events, chunk({"role": "assistant"}, **SAID), others, DONE])
    steps: list[bytes] = []
    for cut in cuts:
        steps, data = [*steps, data[:cut]], data[cut:]
    async with ScriptedServer(Reply([*filter(None, steps), data])) as server:
        said = await span_of(connect(server.url, model="tiny"))
    assert said["gen_ai.response.id"] == "chatcmpl-7"
    assert said["gen_ai.response.model"] == "tiny-2026-11-01"


ODD = [None, 7, "", "a sentence about plums", "x" * 201, ["a"], "caf\u00e9"]


@pytest.mark.parametrize("odd", ODD)
async def test_invalid_names_are_not_shown(odd: Any) -> None:
    """The span omits an id or model in an invalid form, since it may contain content."""
    async with ScriptedServer(streamed(id=odd, model=odd)) as server:
        said = await span_of(connect(server.url, model="tiny"))
    assert not [name for name in said if name.startswith("gen_ai")]


async def test_a_key_that_a_server_sends_back_is_not_shown() -> None:
    """The span omits an API key that the server returns as an id or in a model name."""
    key = "own-format-4711-4711"
    async with ScriptedServer(streamed(id=key, model=f"tiny-{key}")) as server:
        said = await span_of(connect(server.url, model="tiny", api_key=key))
    assert key not in str(said)
    assert "gen_ai.response.id" in said


async def test_the_last_attempt_names_the_reply() -> None:
    """After a failed attempt, the span has the id of the successful one."""
    failing = Reply([chunk({"content": ""}, id="first", model="first")])
    async with ScriptedServer(failing, streamed(**SAID)) as server:
        said = await span_of(connect(server.url, model="tiny"))
    assert said["gen_ai.response.id"] == "chatcmpl-7"


def test_events_of_requests_travel_between_processes() -> None:
    """Pickled request and reply events keep their fields, but not the content."""
    asked = RequestEvent(
        1, "http", "tiny", {"n": 1}, 1, ("look",), False, ASKED, ("models.test", 80)
    )
    copy = pickle.loads(pickle.dumps(asked))
    assert (copy.server, copy.request, copy.tools) == (("models.test", 80), None, ("look",))
    replied = ReplyEvent(1, 0.5, 2, {}, "stop", None, False, (Delta("a"),), "chatcmpl-7", "tiny")
    copy = pickle.loads(pickle.dumps(replied))
    assert (copy.response_id, copy.response_model, copy.deltas) == ("chatcmpl-7", "tiny", ())
