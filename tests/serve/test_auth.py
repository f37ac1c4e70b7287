"""Access to a server: tokens, functions that know users, other machines, pages of other sites."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import AuthenticationError, NotFoundError
from support.asgi_requests import Response, encode_body, is_refusal, send_request
from support.openai_client import on_uvicorn, open_client
from support.raw_client import RawConnection
from support.raw_client import on_uvicorn as raw_uvicorn

from anabranch import Agent, ConfigurationError
from anabranch.serve import Server, _auth, _http, serve
from anabranch.testing import ScriptedBackend

KEY = {"authorization": "Bearer right"}
ASKED = {"model": "writer", "input": "hi"}


def _agent() -> Agent[Any]:
    return Agent(ScriptedBackend(otherwise="hello"), name="writer")


@asynccontextmanager
async def _running(**options: Any) -> AsyncGenerator[Server]:
    server = serve(_agent(), **options)
    async with server.running():
        yield server


async def _models(server: Server, **request: Any) -> Response:
    return await send_request(server, "GET", "/v1/models", **request)


# --- tokens


@given(st.text(max_size=30), st.text(max_size=30))
def test_a_token_is_known_only_if_it_is_the_same(right: str, sent: str) -> None:
    """S14: for tokens of any characters, only an equal token has access."""
    if not right.strip():
        with pytest.raises(ConfigurationError):
            serve(_agent(), auth=right)
        return
    known = _auth.Authenticator([right, "another"])
    token = right.strip()  # as read from a file
    mine, others = (f"token {sha256(each.encode()).hexdigest()}" for each in (token, "another"))

    async def user(token: bytes) -> str | None:
        return await known.user_of("Bearer " + token.decode("latin-1"))

    async def check() -> None:
        assert await user(right.encode()) == await user(f"{token}\n".encode()) == mine
        same = sent.strip() == token
        expected = mine if same else others if sent.strip() == "another" else None
        assert await user(sent.encode()) == expected

    asyncio.run(check())


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        "right",
        "Basic right",
        "Bearer right2",
        "Bearer righ",
        "bearerright",
        "Bearer " + "x" * 60_000,
        "Bearer ri\xe9ght",
        "Bearer \xff\xfe",
        "Bearer \x00",
    ],
)
async def test_an_unknown_token_is_refused(header: str) -> None:
    """S14: the answer is 401 in OpenAI's format, on each existing address."""
    async with _running(auth="right") as server:
        answer = await _models(server, headers={"authorization": header})
        assert answer.status == 401
        assert is_refusal(answer)
        assert answer.headers["www-authenticate"] == "Bearer"
        assert (await _models(server, headers=KEY)).status == 200
        assert (await _models(server, headers={"authorization": "bearer  right"})).status == 200


@pytest.mark.parametrize("auth", ["", " ", [], (), ["a", ""], [None], 5, {"a": ""}])
def test_a_server_with_empty_tokens_is_not_made(auth: Any) -> None:
    """S14: such as an empty environment variable; a mapping is not a list of tokens."""
    with pytest.raises(ConfigurationError):
        serve(_agent(), auth=auth)


async def test_a_token_that_is_not_ascii_is_accepted() -> None:
    """S14: it is sent as UTF-8, which servers read as latin-1."""
    headers = {"Authorization": "Bearer schlüssel"}
    async with (
        on_uvicorn(serve(_agent(), auth="schlüssel")) as url,
        aiohttp.ClientSession(headers=headers) as client,
        client.get(f"{url}/v1/models") as response,
    ):
        assert response.status == 200


# --- functions


async def _user(token: str) -> str | None:
    await asyncio.sleep(0)
    return {"right": "ann", "other": "bob"}.get(token)


def _raise(token: str) -> str:
    return {"a": "b"}[token]


async def _raise_later(token: str) -> str:
    await asyncio.sleep(0)
    raise RuntimeError(f"no database for {token}")


@pytest.mark.parametrize(
    ("auth", "status"),
    [
        (_user, 200),
        (lambda _: "ann", 200),
        (lambda _: None, 401),
        (lambda _: "", 401),
        (lambda _: False, 401),
        (lambda _: True, 503),
        (lambda _: 5, 503),
        (lambda _: b"x", 503),
        (_raise, 503),
        (_raise_later, 503),
        (lambda: "ann", 503),
    ],
)
async def test_a_function_gives_access_only_if_it_returns_a_name(
    auth: Any, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """S14: else access is refused; a token in the error of the function is not logged."""
    async with _running(auth=auth) as server:
        answer = await _models(server, headers=KEY)
    assert answer.status == status
    assert "right" not in answer.body.decode()
    assert "right" not in caplog.text.replace("copyright", "")
    assert bool(caplog.records) == (status == 503)


async def test_a_function_that_never_returns_gives_no_access(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """S14: the request is refused after a time limit."""
    monkeypatch.setattr(_auth, "LOOKUP_SECONDS", 0.0)

    async def never(_: str) -> str:
        await asyncio.Event().wait()
        return "ann"

    async with _running(auth=never) as server:
        assert (await _models(server, headers=KEY)).status == 503
    assert "TimeoutError" in caplog.text


# --- owners of runs


async def test_the_run_of_another_user_does_not_exist() -> None:
    """S14: on each address and method the answer equals the one for an unknown run."""
    async with _running(auth=_user) as server:
        other = {"authorization": "Bearer other"}
        begun = await send_request(server, "POST", "/runs", encode_body(ASKED), KEY)
        assert begun.status == 201
        name = begun.json["id"]
        asked = [
            ("GET", "/runs/{}"),
            ("GET", "/runs/{}/events"),
            ("GET", "/runs/{}/trace"),
            ("POST", "/runs/{}/cancel"),
            ("POST", "/runs/{}/answers/1"),
            ("GET", "/v1/responses/resp_{}"),
            ("GET", "/v1/responses/resp_{}?stream=true"),
            ("POST", "/v1/responses/resp_{}/cancel"),
        ]
        for method, path in asked:
            sent = b"{}" if method == "POST" else b""
            real = await send_request(server, method, path.format(name), sent, other)
            none = await send_request(server, method, path.format("0" * 32), sent, other)
            assert real.status == none.status == 404, path
            assert real.body.replace(name.encode(), b"") == none.body.replace(b"0" * 32, b"")
        assert (await send_request(server, "GET", "/runs", b"", other)).json == {"runs": []}
        own = await send_request(server, "GET", f"/runs/{name}/events", b"", KEY)
        assert own.status == 200
        assert b"event: completed" in own.body


async def test_real_clients_do_not_see_each_other() -> None:
    """S14: only its owner sees a background response."""
    async with (
        on_uvicorn(serve(_agent(), auth=["right", "other"])) as url,
        open_client(url, "right") as ann,
        open_client(url, "other") as bob,
        open_client(url, "wrong") as nobody,
    ):
        mine = await ann.responses.create(model="writer", input="hi", background=True)
        assert (await ann.responses.retrieve(mine.id)).id == mine.id
        for steal in (bob.responses.retrieve, bob.responses.cancel):
            with pytest.raises(NotFoundError):
                await steal(mine.id)
        with pytest.raises(AuthenticationError):
            await nobody.responses.retrieve(mine.id)


async def test_the_ids_of_runs_cannot_be_guessed() -> None:
    """S14: they have 128 random bits each."""
    async with _running() as server:
        begun = [await send_request(server, "POST", "/runs", encode_body(ASKED)) for _ in range(20)]
    ids = {each.json["id"] for each in begun}
    assert len(ids) == 20
    assert all(re.fullmatch("[0-9a-f]{32}", each) for each in ids)


# --- other machines


@pytest.mark.parametrize(
    "host",
    [
        "0.0.0.0",
        "::",
        "",
        "192.168.1.5",
        "example.com",
        "localhost.example.com",
        "127.1",
        "[::]",
        "::ffff:0.0.0.0",
        "::ffff:192.168.1.5",
        "fe80::1%lo",
        "localhost.",
        "2130706433",
        "*",
    ],
)
def test_an_open_address_needs_auth(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """S14: an address or name that others can reach is refused before the server binds it."""
    monkeypatch.setattr("uvicorn.Server.run", lambda *_: pytest.fail("it was bound"))
    with pytest.raises(ConfigurationError, match="auth="):
        serve(_agent()).run(host, 0)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.3.2.1", "::1", "[::1]", "localhost", "LOCALHOST", "::ffff:127.0.0.1"]
)
def test_a_loopback_address_needs_no_auth(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """S14: loopback in any spelling works without auth; with auth any address does."""
    ran: list[bool] = []
    monkeypatch.setattr("uvicorn.Server.run", lambda *_: ran.append(True))
    serve(_agent()).run(host, 0)
    serve(_agent(), auth="right").run("0.0.0.0", 0)
    assert len(ran) == 2


@pytest.mark.parametrize("client", ["192.168.1.5", "::ffff:10.0.0.1", "2001:db8::1", "0.0.0.0"])
async def test_inside_another_application_other_machines_are_refused_without_auth(
    client: str,
) -> None:
    """S14: for any address of the outer server, and any Host of a client."""
    async with _running() as server:
        answer = await _models(server, client=(client, 5))
        assert answer.status == 403
        assert is_refusal(answer)
        for own in (("127.0.0.1", 5), ("::1", 5), ("::ffff:127.0.0.1", 5), None):
            assert (await _models(server, client=own)).status == 200
    async with _running(auth="right") as server:
        assert (await _models(server, client=(client, 5), headers=KEY)).status == 200


# --- other names of this machine, and pages of other sites


@pytest.mark.parametrize(
    "host",
    [
        "evil.com",
        "evil.com:8000",
        "localhost.evil.com",
        "127.0.0.1.evil.com",
        "evil.com@localhost",
        "localhost@evil.com",
        "localhost:80:80",
        "localhost/",
        "[",
        "[::1",
        "",
        None,
        "[localhost",
        "localhost:port",
        "localhost:8000\t",
        "localhost#",
        "a b",
        "\xe9",
        "localhost,evil.com",
    ],
)
async def test_a_foreign_name_that_resolves_to_this_machine_is_refused(host: str | None) -> None:
    """S14: else a page could read everything through such a name (DNS rebinding)."""
    async with _running() as server:
        forwarded = {"x-forwarded-host": "localhost", "forwarded": "host=localhost"}
        for headers in ({}, forwarded):
            answer = await _models(server, host=host, headers=headers)
            assert answer.status == 403
            assert is_refusal(answer)


@pytest.mark.parametrize(
    "host", ["localhost", "LocalHost:1", "127.0.0.1:8000", "[::1]:8000", "[::1]", "127.0.0.2"]
)
async def test_the_names_of_this_machine_are_accepted(host: str) -> None:
    """S14: with any port, in any case."""
    async with _running() as server:
        assert (await _models(server, host=host)).status == 200
        own = {"origin": f"http://{host.lower()}"}
        assert (await _models(server, host=host, headers=own)).status == 200


@pytest.mark.parametrize("auth", [None, "right"])
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.com"},
        {"origin": "http://localhost:3000"},
        {"origin": "http://localhost"},
        {"origin": "null"},
        {"origin": ""},
        {"origin": "http://["},
        {"origin": "localhost:8000"},
        {"origin": "file://localhost:8000"},
        {"origin": "http://localhost:8000@evil.com"},
        {"origin": "http://evil.com", "x-forwarded-host": "evil.com"},
        {"origin": "http://localhost:8000", "sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "anything"},
    ],
)
async def test_pages_of_other_sites_are_refused(headers: dict[str, str], auth: str | None) -> None:
    """S14: they cannot read, start or stop a run; neither with a key nor with a proxy's header."""
    async with _running(auth=auth) as server:
        key = KEY if auth else {}
        for method, path in (("GET", "/v1/models"), ("POST", "/runs"), ("POST", "/runs/x/cancel")):
            body = encode_body(ASKED) if path == "/runs" else b""
            answer = await send_request(server, method, path, body, {**key, **headers})
            assert answer.status == 403
            assert is_refusal(answer)
        assert (await send_request(server, "GET", "/runs", b"", key)).json == {"runs": []}


async def test_without_a_host_each_origin_is_foreign() -> None:
    """S14: an origin without a name does not equal a missing Host."""
    async with _running(auth="right") as server:
        for origin in ("null", "", "http://", "https://"):
            headers = {**KEY, "origin": origin}
            assert (await _models(server, host=None, headers=headers)).status == 403
        assert (await _models(server, host=None, headers=KEY)).status == 200


async def test_the_own_page_works_behind_a_proxy_that_changes_the_host() -> None:
    """S14: a browser's header marks the page as the server's; no page can set it."""
    async with _running(auth="right") as server:
        headers = {**KEY, "origin": "https://ai.example.com", "sec-fetch-site": "same-origin"}
        assert (await _models(server, host="backend:8000", headers=headers)).status == 200


@pytest.mark.parametrize("auth", [None, "right"])
async def test_other_pages_get_no_cors_headers(auth: str | None) -> None:
    """S14: a preflight is refused, and no response allows another origin."""
    async with _running(auth=auth) as server:
        asks = {"origin": "http://evil.com", "access-control-request-method": "POST"}
        key = KEY if auth else {}
        answers = [
            await send_request(server, "OPTIONS", "/v1/chat/completions", b"", asks),
            await send_request(server, "OPTIONS", "/nowhere", b"", asks),
            await _models(server, headers={**key, "origin": "http://localhost:8000"}),
            await send_request(server, "POST", "/runs", encode_body(ASKED), key),
            await send_request(server, "GET", "/", b"", asks),
        ]
        name = answers[3].json["id"]
        answers.append(await send_request(server, "GET", f"/runs/{name}/events", b"", key))
    assert [each.status for each in answers] == [405, 404, 200, 201, 200, 200]
    for each in answers:
        assert not [name for name in each.headers if name.startswith("access-control")]
    for each in (answers[2], answers[3], answers[5]):
        assert "no-store" in each.headers["cache-control"]
        assert each.headers["cross-origin-resource-policy"] == "same-origin"
        assert each.headers["x-content-type-options"] == "nosniff"


# --- proxies


@given(
    header=st.sampled_from(_http.PROXY_HEADERS),
    value=st.sampled_from(["", "127.0.0.1", "10.0.0.1", "for=localhost", "localhost", "http"]),
)
async def test_requests_of_a_proxy_are_refused_without_auth(header: str, value: str) -> None:
    """S14: with each of the headers that proxies add; with `auth` proxies are allowed."""
    async with _running() as server:
        refused = await _models(server, headers={header: value})
        assert (refused.status, refused.json["error"]["code"]) == (403, "proxy")
        assert (await _models(server)).status == 200
    async with _running(auth="right") as server:
        assert (await _models(server, headers={**KEY, header: value})).status == 200
        assert (await _models(server, headers={header: value})).status == 401


@pytest.mark.parametrize(
    ("head", "status"),
    [
        # As nginx sends with only `proxy_pass http://127.0.0.1:PORT`.
        ("GET /v1/models HTTP/1.0\r\nHost: 127.0.0.1:{}\r\nConnection: close\r\n", 403),
        # As Caddy, Traefik and Apache do when they are configured to send the server's name.
        ("GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nX-Forwarded-For: 10.0.0.1\r\n", 403),
        ("GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nConnection: close\r\n", 200),
    ],
)
async def test_a_proxy_in_front_of_a_real_server_is_refused(head: str, status: int) -> None:
    """S14: although it connects from this machine with this machine's name."""
    async with raw_uvicorn(serve(_agent())) as port:
        reader = await RawConnection.connect(port, f"{head.format(port)}\r\n".encode())
        assert (await reader.head()).split()[1] == str(status).encode()
        await reader.close()


# --- logs


async def test_keys_are_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    """S14: neither for refused requests nor for failed runs, at any level."""
    caplog.set_level(logging.DEBUG)
    backend = ScriptedBackend(RuntimeError("broke"), RuntimeError("broke"))
    async with (
        on_uvicorn(serve(Agent(backend, name="writer"), auth="sekrit-token")) as url,
        open_client(url, "sekrit-token") as client,
    ):
        caplog.set_level(logging.INFO, "openai")
        failed = await client.responses.create(model="writer", input="hi")
        assert failed.status == "failed"
    logged = [each for each in caplog.records if not each.name.startswith(("openai", "http"))]
    assert any(each.name == "anabranch.serve" for each in logged)
    assert not any("sekrit" in f"{each.getMessage()}{each.exc_text}" for each in logged)
