"""Requests of other programs: with missing, compressed or unusual parts."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from openai import BadRequestError
from support.asgi_requests import encode_body, send_request
from support.openai_client import on_uvicorn, open_client

from anabranch import Agent, Job
from anabranch.serve import serve
from anabranch.testing import ScriptedBackend

CHAT, RESPONSES, RUNS = "/v1/chat/completions", "/v1/responses", "/runs"
HI: Any = [{"role": "user", "content": "hi"}]


def _agent() -> Agent:
    return Agent(ScriptedBackend(otherwise="Hello"), name="writer")


def _asked(path: str, **more: Any) -> dict[str, Any]:
    return {"model": "writer", "messages" if path == CHAT else "input": HI, **more}


class Report(Job[str]):
    """Takes a number, and optionally a topic."""

    pages: int
    topic: str = "rain"

    async def task(self) -> str:
        return f"{self.pages} pages on {self.topic}"


class Ping(Job[str]):
    async def task(self) -> str:
        return "pong"


@pytest.mark.parametrize("path", [CHAT, RESPONSES, RUNS])
@pytest.mark.parametrize("coding", ["gzip", "x-gzip", "br", "gzip, identity", "GZIP"])
async def test_a_compressed_body_is_refused_by_name(path: str, coding: str) -> None:
    """With 415 and the accepted encoding, not as invalid JSON."""
    body = gzip.compress(encode_body(_asked(path)))
    app = serve(_agent())
    async with app.running():
        answer = await send_request(app, "POST", path, body, {"content-encoding": coding})
        plain = await send_request(
            app, "POST", path, encode_body(_asked(path)), {"content-encoding": "identity"}
        )

    assert answer.status == 415
    assert coding.lower() in answer.json["error"]["message"]
    assert answer.headers["accept-encoding"] == "identity"
    assert plain.status < 300


@pytest.mark.parametrize("path", [CHAT, RESPONSES, RUNS])
@pytest.mark.parametrize("model", [None, 7, ["writer"], {}])
async def test_a_request_without_a_model_gets_the_names(path: str, model: Any) -> None:
    """The error does not mention a model `None`."""
    app = serve(_agent(), Ping)
    async with app.running():
        asked = {**_asked(path), "model": model}
        without = {name: value for name, value in asked.items() if value is not None}
        for body in asked, without:
            answer = await send_request(app, "POST", path, encode_body(body))

            error = answer.json["error"]
            assert (answer.status, error["param"]) == (400, "model")
            assert "None" not in error["message"]
            assert "there are: writer, Ping" in error["message"]


async def test_openais_client_raises_bad_request_without_a_model() -> None:
    """An empty name is an unknown model."""
    async with on_uvicorn(serve(_agent())) as url, open_client(url) as client:
        with pytest.raises(BadRequestError, match="must name a model"):
            await client.post(CHAT.removeprefix("/v1"), body={"messages": HI}, cast_to=object)


async def _text_of(app: Any, started: Any) -> str:
    events = await send_request(app, "GET", f"/runs/{started.json['id']}/events")
    lines = [line for line in events.body.decode().splitlines() if line.startswith("data: ")]
    return "".join(json.loads(line[6:]).get("text", "") for line in lines)


@pytest.mark.parametrize("path", [RUNS, RESPONSES])
async def test_a_job_takes_fields_without_a_text(path: str) -> None:
    """Also without any fields, if all have defaults."""
    app = serve(Report, Ping)
    async with app.running():
        for model, fields, text in [
            ("Report", {"pages": 3}, "3 pages on rain"),
            ("Report", {"pages": 3, "topic": "snow"}, "3 pages on snow"),
            ("Ping", {}, "pong"),
        ]:
            asked = {"model": model, "fields": fields}
            made = await send_request(app, "POST", path, encode_body(asked))
            assert made.status in (200, 201), made.body
            if path == RUNS:
                assert await _text_of(app, made) == text
            else:
                assert made.json["output"][0]["content"][0]["text"] == text
        missing = await send_request(
            app, "POST", path, encode_body({"model": "Report", "fields": {}})
        )
        assert (missing.status, missing.json["error"]["param"]) == (400, "fields")


@pytest.mark.parametrize("fields", [{}, {"pages": 3}])
async def test_an_agent_needs_a_text(fields: dict[str, Any]) -> None:
    """Fields do not replace it."""
    app = serve(_agent())
    async with app.running():
        for path in (RUNS, RESPONSES):
            asked = {"model": "writer", "fields": fields}
            answer = await send_request(app, "POST", path, encode_body(asked))
            assert (answer.status, answer.json["error"]["param"]) == (400, "input")


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": []}])
async def test_a_users_message_without_content_is_refused(content: dict[str, Any]) -> None:
    """As OpenAI refuses it; an empty text is content."""
    app = serve(_agent())
    async with app.running():
        for path, name in ((CHAT, "messages"), (RESPONSES, "input"), (RUNS, "input")):
            asked = {**_asked(path), name: [{"role": "user", **content}]}
            answer = await send_request(app, "POST", path, encode_body(asked))
            assert (answer.status, answer.json["error"]["param"]) == (400, f"{name}[0]")
            asked[name] = [{"role": "user", "content": ""}]
            assert (await send_request(app, "POST", path, encode_body(asked))).status < 300


@pytest.mark.parametrize("path", ["/chat/completions", "/responses", "/models", "/models/"])
async def test_an_address_without_v1_gets_a_hint(path: str) -> None:
    """Clients with a wrong base URL learn its correct end; other addresses get no hint."""
    app = serve(_agent())
    async with app.running():
        answer = await send_request(app, "GET" if "models" in path else "POST", path, b"")
        other = await send_request(app, "GET", "/nothing")
    assert answer.status == other.status == 404
    assert "/v1" in answer.json["error"]["message"]
    assert "/v1" not in other.json["error"]["message"]


async def test_an_agent_ignores_fields_with_default_values() -> None:
    """litellm and other clients send all fields."""
    usual: dict[str, Any] = {
        "n": 1,
        "logprobs": False,
        "top_logprobs": None,
        "modalities": ["text"],
        "response_format": {"type": "text"},
        "service_tier": "auto",
        "store": False,
        "tools": [],
        "functions": None,
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "stop": [],
        "logit_bias": {},
        "prediction": None,
        "reasoning_effort": None,
        "user": "u",
        "safety_identifier": "u",
        "prompt_cache_key": "k",
        "metadata": {"a": "b"},
        "stream": False,
        "stream_options": None,
        "temperature": None,
        "max_tokens": None,
    }
    app = serve(_agent())
    async with app.running():
        answer = await send_request(app, "POST", CHAT, encode_body({**_asked(CHAT), **usual}))
    assert answer.status == 200, answer.body
