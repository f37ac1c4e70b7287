"""A server inside another application, with the event loops and servers of others."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from support.raw_client import RawConnection, chat_request, http_request, on_uvicorn

from anabranch import Agent
from anabranch.serve import Server, serve
from anabranch.testing import ScriptedBackend


def _server() -> Server:
    return serve(Agent(ScriptedBackend(otherwise="hello"), "You answer.", name="writer"))


async def _ask(port: int, sent: bytes) -> bytes:
    reader = await RawConnection.connect(
        port, sent.replace(b"Host:", b"Connection: close\r\nHost:", 1)
    )
    said = await reader.rest()
    await reader.close()
    return said


async def _hello(_: Any) -> PlainTextResponse:
    return PlainTextResponse("their own")


ROUTES = [Route("/hello", _hello)]


@pytest.mark.parametrize("path", ["/", "/ai"])
@pytest.mark.parametrize("kind", ["Starlette", "FastAPI"])
async def test_it_answers_inside_an_application_beside_its_routes(kind: str, path: str) -> None:
    """S9: at a path or at the root; it starts and ends with the application's lifespan."""
    seen: list[str] = []

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncGenerator[dict[str, Any]]:
        seen.append("begun")
        yield {"theirs": 1}
        seen.append("ended")

    app: Any = Starlette if kind == "Starlette" else FastAPI
    outer = app(lifespan=lifespan, routes=ROUTES)
    inner = _server()
    inner.mount_into(outer, path)
    async with on_uvicorn(outer) as port:
        assert seen == ["begun"]
        sent = chat_request().replace(b"POST /v1", f"POST {path.rstrip('/')}/v1".encode())
        said = await _ask(port, sent)
        assert b"hell" in said
        for end in ("", "/"):
            models = await _ask(port, http_request(f"{path.rstrip('/')}/v1/models{end}"))
            assert models.endswith(b'"owned_by":"anabranch"}]}'), end
        assert said.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert (await _ask(port, http_request("/hello"))).endswith(b"their own")
    assert seen == ["begun", "ended"]
    with pytest.raises(RuntimeError, match="is not running"):
        _ = inner.runs


async def test_it_answers_behind_an_application_of_another_kind() -> None:
    """S9: one that removes its part of the path and adds a slash at the end."""
    inner = _server()

    async def outer(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            path = scope["path"].removeprefix("/ai").rstrip("/") + "/"
            scope = {**scope, "path": path}
        await inner(scope, receive, send)

    async with on_uvicorn(outer) as port:
        assert b"[DONE]" in await _ask(port, chat_request().replace(b"/v1", b"/ai/v1", 1))
        assert b"<!doctype html>" in await _ask(port, http_request("/ai"))
        assert b'"object":"model"' in await _ask(port, http_request("/ai/v1/models/writer"))


async def test_two_servers_are_mounted_into_one_application_without_a_lifespan() -> None:
    """S9: each at another path."""
    outer = FastAPI()
    for path in ("/a", "/b"):
        _server().mount_into(outer, path)
    async with on_uvicorn(outer) as port:
        for path in (b"/a", b"/b"):
            assert b"[DONE]" in await _ask(port, chat_request().replace(b"/v1", path + b"/v1", 1))


async def test_one_server_starts_once() -> None:
    """S15: the second start is refused with an error, because it would replace the first."""
    server = _server()
    async with server.running():
        with pytest.raises(RuntimeError, match="is running already"):
            async with server.running():
                pass
        assert not server.runs.closing
    async with server.running():
        assert server.runs.running == 0


async def test_a_request_before_the_start_logs_the_remedy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """S15: the client gets 503; the log tells the owner what to do."""
    async with on_uvicorn(_server(), lifespan="off") as port:
        said = await _ask(port, chat_request())
        assert b" 503 " in said.split(b"\r\n")[0]
        assert b"mount_into" not in said
    assert "use mount_into(app)" in caplog.text
