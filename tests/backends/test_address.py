"""Addresses of servers: malformed ones are refused at once; no proxy is used for this machine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.byte_server import ByteServer, http_response
from support.scripted_server import ScriptedServer, text
from support.wire_backends import ASK

from anabranch.backends import Retries, connect
from anabranch.backends._address import hide_secrets, secrets_of, server_address
from anabranch.commander import BackendError, ConfigurationError
from anabranch.messages import Request

pytestmark = pytest.mark.contract("B1")

_PLAIN = "http https HTTP ftp : // / @ [ ] ::1 127.0.0.1 h .. . ? # % %zz \\ u:p@ v1 a=b & * ~"
_PORTS = [":0", ":8000", ":99999", ":-1", ":x"]
_LETTERS = ["é", "ß.example", "\u2603", "x" * 70, " ", "\0", "\n", "\ud800", "\u202e", "\u2028"]
_PARTS = st.sampled_from([*_PLAIN.split(), *_PORTS, *_LETTERS])
_ADDRESSES = st.lists(_PARTS, max_size=6).map("".join)
_BEGUN = st.builds(
    "{}{}".format, st.sampled_from(["http://", "https://", "HTTP://h", ""]), _ADDRESSES
)


@given(address=_BEGUN)
@settings(max_examples=200)
def test_an_address_is_taken_or_refused_at_once(address: str) -> None:
    """A refusal is a `ConfigurationError` of one line."""
    for spec, more in ((address, {}), ("openai", {"base_url": address, "api_key": "sk-0123"})):
        try:
            made = repr(connect(spec, model="m", **more))
        except ConfigurationError as error:
            made = str(error)
        assert "\n" not in made


@given(address=_BEGUN)
@settings(max_examples=30)
async def test_what_is_taken_can_be_asked(address: str) -> None:
    """If no server answers, that is a `BackendError`."""
    try:
        backend = connect(address, model="m", retries=Retries(attempts=1))
    except ConfigurationError:
        return
    async with asyncio.timeout(200), backend:
        with pytest.raises(BackendError):
            await backend.complete(ASK)


@pytest.mark.parametrize(
    "address",
    [
        *("http://[x", "http://h:99999", "http://h:0", "http://h:x/v1", "http://[::1]x/v1"),
        *("http://a b/", "http://h\0", "http://h\\x/", "http://*/v1", "http://a..b"),
        *(f"http://{'x' * 64}/", "ftp://h/v1", "http:///v1", "http://", "h:8000/v1"),
    ],
)
def test_a_malformed_address_is_no_address(address: str) -> None:
    """Every kind of backend refuses it."""
    with pytest.raises(ConfigurationError, match=r"is not the address|unknown model"):
        connect(address, model="m")
    with pytest.raises(ConfigurationError, match="is not the address"):
        connect("openai:m", base_url=address, api_key="k")


def test_an_address_may_hold_what_addresses_hold() -> None:
    """Names in other scripts, numbers, ports and underscores are accepted."""
    for address in (
        "http://[::1]:8000/v1",
        "http://[fe80::1%25eth0]/v1",
        "http://bücher.example/v1",
        "http://my_service:8000/v1?api-version=3",
        "https://u:p%40ss@host./a@b",
    ):
        assert server_address(f" {address} ") == address
    assert server_address("HTTP://Host/v1/") == "http://Host/v1"
    assert hide_secrets("https://u:p@h:1/a@b?c=d#e") == "https://h:1/a@b"


@pytest.mark.contract("B3")
def test_the_secrets_of_an_address_are_all_that_names_no_place() -> None:
    """The user is a secret too, because it may be a key; both decoded and as written."""
    found = {
        s.get_secret_value()
        for s in secrets_of("https://k%2F1:p@h/v1?key=a%2Bb&api-version=3&x%3D#y")
    }

    assert found == {"k%2F1:p", "k/1:p", "k/1", "p", "a%2Bb", "a+b", "x%3D", "x=", "y"}


@pytest.mark.parametrize(
    "wrong", [{"spec": 7}, {"spec": None}, {"model": 7}, {"base_url": b"http://h"}, {"api_key": 7}]
)
def test_what_is_no_text_is_refused(wrong: dict[str, Any]) -> None:
    """The error names the argument."""
    given: dict[str, Any] = {"spec": "openai:m", "api_key": "k", **wrong}

    with pytest.raises(ConfigurationError, match="must be text, not"):
        connect(given.pop("spec"), **given)


@pytest.mark.contract("B3")
@pytest.mark.parametrize("key", ["", " ", "\n"])
def test_a_blank_key_is_none(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty environment variable counts as no key."""
    monkeypatch.setenv("OPENAI_API_KEY", key)

    assert connect("http://127.0.0.1", model="m", api_key=key)
    with pytest.raises(ConfigurationError, match="no key"):
        connect("openai:m", api_key=key)


@pytest.mark.contract("B3")
@pytest.mark.parametrize("spec", ["http://127.0.0.1/v1", "openai"])
@pytest.mark.parametrize("option", ["default_headers", "extra_headers", "extra_body"])
def test_headers_are_no_option(spec: str, option: str) -> None:
    """As an option they would go into the body, with the key in them."""
    headers = {"X-Key": "sk-0123456789"}
    given = {} if "http" in spec else {"api_key": "k"}
    with pytest.raises(ConfigurationError, match=option) as at_once:
        connect(spec, model="m", **given, **{option: headers})
    with pytest.raises(ConfigurationError, match=option) as later:
        Request(ASK.messages, options={option: headers})

    assert "sk-" not in f"{at_once.value!r} {later.value!r}"


@pytest.mark.contract("B3")
@pytest.mark.parametrize("kind", ["http", "openai"])
async def test_proxies_of_the_environment_are_not_used_for_an_address_that_was_given(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`http` uses none for this machine, `openai:` none at all: a proxy would receive the key."""
    heard: list[bytes] = []
    proxy = ByteServer(lambda request: [heard.append(request) or http_response()])
    async with asyncio.timeout(200), ScriptedServer(text("Hi")) as server, proxy:
        for name in "http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "ALL_PROXY":
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.setenv("no_proxy", "")
        spec, more = (server.url, {}) if kind == "http" else ("openai", {"base_url": server.url})
        async with connect(spec, model="m", api_key="sk-0123456789", **more) as backend:
            assert (await backend.complete(ASK)).content == "Hi"

    assert heard == []


@pytest.mark.parametrize("kind", ["http", "openai"])
async def test_what_cannot_be_written_as_json_is_refused_before_it_is_sent(kind: str) -> None:
    """A single surrogate, which models may write, is sent as the replacement character."""
    async with asyncio.timeout(200), ScriptedServer(text("Hi")) as server:
        spec, more = (server.url, {}) if kind == "http" else ("openai", {"base_url": server.url})
        async with connect(spec, model="m", api_key="sk-0123456789", **more) as backend:
            wrongs: list[dict[str, Any]] = [{"stop": object()}, {"temperature": float("nan")}]
            for wrong in *wrongs, {"extra": 7}, {"extra": {"x": b""}}:
                with pytest.raises(ConfigurationError, match="request cannot be written"):
                    await backend.complete(type(ASK)(ASK.messages, options=wrong))
            with pytest.raises(ConfigurationError, match="must be Messages"):
                await backend.complete(type(ASK)(("Hello?",)))  # type: ignore[arg-type]
            odd = [
                message.model_copy(update={"content": "a\ud800\\ud800\U0001f600"})
                for message in ASK.messages
            ]
            await backend.complete(type(ASK)(odd))

    assert len(server.requests) == 1
    assert server.requests[0].body["messages"][0]["content"] == "a\ufffd\\ud800\U0001f600"
