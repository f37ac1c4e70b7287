"""How `http` reaches a server: headers, proxies, certificates, sockets, a user's session."""

from __future__ import annotations

import asyncio
import pickle
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from support.byte_server import ByteServer, http_response
from support.paths import DATA
from support.scripted_server import Reply, ScriptedServer, text
from support.wire_backends import ASK

from anabranch.backends import Backend, Retries, connect
from anabranch.backends._address import environment_proxy
from anabranch.commander import (
    AuthenticationError,
    BackendError,
    BackendUnavailable,
    ConfigurationError,
)

PEM = DATA / "localhost.pem"
AWAY = "http://models.example/v1"  # an address that only a proxy reaches
LOCAL = ["localhost", "LocalHost", "a.localhost", "127.0.0.1", "127.9.9.9", "[::1]"]
AWAY_HOSTS = ["models.example", "10.0.0.1", "[2001:db8::1]", "localhost.example"]
ONCE = Retries(attempts=1)
SECRET = "sk-0123456789abcdef"
CHUNK = (
    b'data: {"choices": [{"delta": {"content": "Hi"}, "finish_reason": "stop"}]}\n\n'
    b"data: [DONE]\n\n"
)


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "http_proxy", "https_proxy", "all_proxy", "no_proxy":
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


async def answer(backend: Backend) -> str | None:
    async with asyncio.timeout(100), backend:
        return (await backend.complete(ASK)).content


async def test_headers_go_with_each_request_and_their_secrets_stay_hidden() -> None:
    """They are sent beside the backend's own; a server that echoes a secret one is not quoted."""
    echo = f'{{"error": {{"message": "no such key {SECRET}"}}}}'.encode()
    headers = {"X-Team": "search", "X-Api-Key": SECRET}
    async with asyncio.timeout(100), ScriptedServer(text("Hi")) as server:
        backend = connect(server.url, model="m", headers=headers)
        assert await answer(backend) == "Hi"
        sent = {name.lower(): value for name, value in server.requests[0].headers.items()}
        assert (sent["x-team"], sent["x-api-key"]) == ("search", SECRET)
        assert sent["accept"] == "text/event-stream"
    refusal = http_response(echo, status="401 Unauthorized")
    async with asyncio.timeout(100), ByteServer(lambda _: [refusal]) as server:
        backend = connect(server.url, model="m", headers=headers)
        with pytest.raises(AuthenticationError, match=r"no such key \*\*\*") as refused:
            await answer(backend)
    assert SECRET not in f"{backend!r} {refused.value!r}"
    with pytest.raises(ConfigurationError, match="cannot be sent to another process"):
        pickle.dumps(backend)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"headers": {"Accept": "x"}}, "the backend sets Accept itself"),
        ({"headers": {"a b": "x"}}, "'a b' or its value is not valid in HTTP"),
        (
            {"headers": {"X-Key": f"{SECRET}\r\nHost: y"}},
            "'X-Key' or its value is not valid in HTTP",
        ),
        ({"headers": {"X-Key": 7}}, "'X-Key' or its value is not valid in HTTP"),
        ({"headers": [SECRET]}, "a mapping of names to values"),
        ({"headers": {"authorization": SECRET}, "api_key": "k"}, "not both"),
        ({"proxy": f"socks5://u:{SECRET}@h"}, "not the address of an http or https proxy"),
        ({"headers": {"Transfer-Encoding": "chunked"}}, "the backend sets Transfer-Encoding"),
        ({"proxy": "h:7", "unix_socket": "/s"}, "and no proxy"),
        (
            {"session": SimpleNamespace(closed=False), "ssl": False},
            "session= has its own connector",
        ),
        ({"proxy": 7}, "proxy= must be an address, or False, not a value of type int"),
        ({"proxy": True}, "proxy= must be an address"),
        ({"ssl": SECRET}, "ssl= must be an ssl.SSLContext, or False, not a value of type str"),
        ({"unix_socket": 7}, "unix_socket= must be a path"),
        ({"session": SECRET}, "session= must be an aiohttp.ClientSession"),
    ],
)
def test_settings_that_cannot_be_are_refused_at_once(settings: Any, said: str) -> None:
    """Before a request, and without showing a value that may be secret."""
    with pytest.raises(ConfigurationError, match=said) as refused:
        connect("http://127.0.0.1/v1", model="m", **settings)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("given", ["setting", "environment", "environment, no scheme"])
async def test_a_proxy_is_asked_for_the_address(
    given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its user and password, which are shown nowhere."""
    heard: list[bytes] = []
    hello = http_response(CHUNK, kind="text/event-stream")
    proxy = ByteServer(lambda request: [heard.append(request) or hello])
    async with asyncio.timeout(100), proxy:
        place = proxy.url.removeprefix("http://").removesuffix("/v1")
        address = f"http://ann:{SECRET}@{place}"
        if given == "setting":
            backend = connect(AWAY, model="m", proxy=address)
        else:
            monkeypatch.setenv(
                "HTTP_PROXY", address.removeprefix("http://" if "," in given else "")
            )
            backend = connect(AWAY, model="m")
        assert await answer(backend) == "Hi"
    assert heard[0].startswith(b"POST http://models.example/v1/chat/completions HTTP/1.1\r\n")
    assert b"Proxy-Authorization: Basic " in heard[0]
    assert SECRET not in repr(backend)
    with pytest.raises(BackendError) as gone:
        await answer(connect(AWAY, model="m", proxy=address, retries=ONCE))
    assert SECRET not in str(gone.value)


@pytest.mark.parametrize(
    ("status", "kind"), [(407, BackendError), (403, AuthenticationError), (502, BackendUnavailable)]
)
async def test_a_proxy_that_refuses_to_connect_is_told_by_its_status(
    status: int, kind: type[BackendError]
) -> None:
    """The refusal comes before TLS; one that may pass is retried."""
    refusal = http_response(b"", status=f"{status} No {SECRET}")
    async with asyncio.timeout(100), ByteServer(lambda _: [refusal]) as proxy:
        address = proxy.url.replace("http://", f"http://ann:{SECRET}@").removesuffix("/v1")
        away = AWAY.replace("http:", "https:")
        with pytest.raises(BackendError, match=f"the proxy refused: No .*{status}") as refused:
            await answer(connect(away, model="m", proxy=address, retries=ONCE))
    assert (type(refused.value), refused.value.status) == (kind, status)
    assert SECRET not in str(refused.value)


async def test_no_proxy_means_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `proxy=False` and with NO_PROXY, the address is reached directly."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with pytest.raises(BackendError, match="only this machine"):
        await answer(connect(AWAY, model="m", proxy=False, retries=ONCE))
    monkeypatch.setenv("NO_PROXY", "other.example,.models.example,models.example")
    with pytest.raises(BackendError, match="only this machine"):
        await answer(connect(AWAY, model="m", retries=ONCE))


@given(
    scheme=st.sampled_from(["http", "https"]),
    host=st.sampled_from(LOCAL + AWAY_HOSTS),
    port=st.sampled_from(["", ":8000"]),
    proxies=st.sets(st.sampled_from(["http_proxy", "HTTPS_PROXY", "ALL_PROXY"])),
)
def test_the_environments_proxy_is_never_used_for_this_machine(
    scheme: str, host: str, port: str, proxies: set[str]
) -> None:
    """As in Go: a proxy is meant for other machines."""
    with pytest.MonkeyPatch.context() as patch:
        for name in proxies:
            patch.setenv(name, f"http://{name.lower().replace('_', '-')}:3128")
        found = environment_proxy(f"{scheme}://{host}{port}/v1")
    own = [name.lower() for name in proxies if name.lower() == f"{scheme}_proxy"]
    named = own or (["all_proxy"] if "ALL_PROXY" in proxies else [])
    expected = f"http://{named[0].replace('_', '-')}:3128" if named and host in AWAY_HOSTS else None
    assert found == expected


def test_a_proxy_of_another_kind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ignoring it could bypass a rule of the network."""
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1080")
    with pytest.raises(ConfigurationError, match="proxy=False"):
        connect(AWAY, model="m")
    assert connect(AWAY, model="m", proxy=False)


async def hello(request: web.Request) -> web.Response:
    return web.Response(body=CHUNK, content_type="text/event-stream")


@asynccontextmanager
async def site(make: Any, **settings: Any) -> AsyncGenerator[Any]:
    """Serve `hello` on a site of aiohttp."""
    app = web.Application()
    app.router.add_post("/v1/chat/completions", hello)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        made = make(runner, **settings)
        await made.start()
        yield made
    finally:
        await runner.cleanup()


async def test_a_server_on_a_unix_socket_answers(tmp_path: Path) -> None:
    """With any http address; https is refused, because nothing would encrypt it."""
    path = tmp_path / "s"
    async with asyncio.timeout(100), site(web.UnixSite, path=path):
        assert await answer(connect("http://localhost/v1", model="m", unix_socket=path)) == "Hi"
    with pytest.raises(ConfigurationError, match="http://localhost/v1"):
        connect("https://localhost/v1", model="m", unix_socket=path)


@pytest.mark.parametrize("trusts", [True, False, "context"])
async def test_a_certificate_is_trusted_as_was_said(trusts: bool | str) -> None:
    """By default only known ones, with a context those it knows, with `ssl=False` any."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(PEM)
    place: dict[str, Any] = {"host": "127.0.0.1", "port": 0, "ssl_context": serving}
    async with asyncio.timeout(100), site(web.TCPSite, **place) as made:
        port = made._server.sockets[0].getsockname()[1]
        settings: Mapping[str, Any] = {
            True: {},
            False: {"ssl": False},
            "context": {"ssl": ssl.create_default_context(cafile=str(PEM))},
        }[trusts]
        backend = connect(f"https://127.0.0.1:{port}/v1", model="m", retries=ONCE, **settings)
        if trusts is True:
            with pytest.raises(BackendError, match="certificate verify failed"):
                await answer(backend)
        else:
            assert await answer(backend) == "Hi"


async def test_a_session_of_ones_own_is_used_and_left_open() -> None:
    """Its headers are sent. If it is closed, the error says so. Refusals are still read by us."""
    async with asyncio.timeout(100), ScriptedServer(text("Hi")) as server:
        own = aiohttp.ClientSession(headers={"X-Team": "search"}, raise_for_status=True)
        async with own as session:
            backend = connect(server.url, model="m", session=session)
            assert await answer(backend) == "Hi"
            assert not session.closed
            server.script(Reply.error(401, {"message": "no such key"}))
            with pytest.raises(AuthenticationError, match="no such key"):
                await answer(backend)
        with pytest.raises(ConfigurationError, match=r"session= .* is closed"):
            await answer(backend)
    headers = {name.lower(): value for name, value in server.requests[0].headers.items()}
    assert (headers["x-team"], headers["accept-encoding"]) == ("search", "identity")
