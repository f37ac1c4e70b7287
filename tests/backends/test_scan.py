"""Plant random keys, then search everything that a run writes for them."""

from __future__ import annotations

import asyncio
import base64
import html
import json
import logging
import pickle
import string
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote, unquote

import pytest
from support.byte_server import ByteServer, http_response
from support.seeds import example_count, seeds

from anabranch import Commander, Node, handler
from anabranch.backends import Backend, Fallback, Retries, connect
from anabranch.commander import BackendError, ConfigurationError
from anabranch.messages import Message, Request

pytestmark = pytest.mark.contract("B3")

_SAFE = string.ascii_letters + string.digits
_ODD = "%&+/=<>\"'\\;:#?@[]{}|^~`!$(),. _-"


def drawn(random: Random) -> str:
    """Draw a key: only letters or anything that a header can hold, short or long."""
    letters = random.choice([_SAFE, _SAFE + "-_", _SAFE + "+/=", _SAFE + _ODD])
    size = random.choice([10, 24, 51, 164])
    key = "".join(random.choices(letters, k=size))
    return random.choice(_SAFE) + key + random.choice(_SAFE)


def shows(text: str, secret: str) -> bool:
    """Return whether a key, or half of it, can be found in `text` with some effort."""
    half = secret[: max(8, len(secret) // 2)]
    readings = [text, unquote(text), html.unescape(text), unquote(html.unescape(text))]
    readings += [each.replace("\\", "") for each in readings]
    readings += ["".join(each.split()) for each in readings]
    looked_for = {half, "".join(half.split()), half.replace("\\", "")}
    looked_for |= {json.dumps(half)[1:-1], quote(half, safe=""), half.encode().hex()}
    looked_for |= {repr(half.encode())[2:-1]}
    for before in b"", b":", b"u:", b"me:":
        whole = base64.b64encode(before + secret.encode()).decode()
        looked_for |= {whole.rstrip("=")[:-2][4:], whole.translate({43: "-", 47: "_"})[4:-4]}
    return any(each in reading for each in looked_for for reading in readings)


def _wrapped(text: str, width: int) -> str:
    return "\n".join(text[at : at + width] for at in range(0, len(text), width))


_WRITERS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "JSON": lambda text: json.dumps(text)[1:-1],
    "JSON in JSON": lambda text: json.dumps(json.dumps(text))[2:-2],
    "all of it escaped": lambda text: "".join(f"\\u{ord(char):04x}" for char in text),
    "a URL": lambda text: quote(text, safe=""),
    "a URL in a URL": lambda text: quote(quote(text, safe=""), safe=""),
    "all of it in percents": lambda text: "".join(f"%{ord(char):02X}" for char in text),
    "HTML": html.escape,
    "HTML in numbers": lambda text: "".join(f"&#{ord(char)};" for char in text),
    "Python's bytes": lambda text: repr(text.encode())[2:-1],
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64 of a URL": lambda text: base64.urlsafe_b64encode(b"me:" + text.encode()).decode(),
    "hexadecimal": lambda text: text.encode().hex(),
    "lines": lambda text: _wrapped(text, 20),
    "lines of base64": lambda text: _wrapped(base64.b64encode(text.encode()).decode(), 19),
}


def _heard(request: bytes) -> list[str]:
    """Return the address and credentials that a request shows."""
    lines = request.decode("latin-1").split("\r\n\r\n")[0].split("\r\n")
    named = [line for line in lines if line.lower().startswith("authorization")]
    return [lines[0].split()[1], *(line.partition(": ")[2] for line in named)]


def echo(request: bytes, random: Random, key: str) -> bytes:
    """Answer with the request, or with the key in some writing, in some place."""
    write = random.choice([*_WRITERS.values()])
    told = random.choice([*_heard(request), write(key), write(key), f"Bearer {write(key)}"])
    line = "".join(told.split())
    error = {"error": {"message": f"wrong: {told}", "code": told}}
    begun = b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
    data = b"".join(b"data: " + part.encode() + b"\n" for part in told.split("\n"))
    page = f"<html>{told}</html>"
    places: list[bytes] = [
        http_response(
            json.dumps(error), random.choice([400, 401, 403, 404, 429, 500]), "application/json"
        ),
        http_response(told, 500, "text/plain"),
        http_response(" " * 280 + told, 404, "text/plain"),
        http_response(f"<html>{told}</html>", 502, "text/html"),
        http_response("", 307, "text/html", ("Location", f"http://127.0.0.1:1/?k={line}")),
        http_response("", 307, "text/html", ("Location", f"http://u:{line}@127.0.0.1:1/{line}")),
        http_response(
            "", 401, "text/html", ("X-Request-Id", line), ("Set-Cookie", f"a b{line}={line}")
        ),
        http_response("", 500, "text/html", reason=line),
        http_response("", 200, f"text/{line}"),
        http_response(b"data: " + json.dumps(error).encode() + b"\n\n"),
        http_response(begun + b"data: " + json.dumps(error).encode() + b"\n\n"),
        http_response(begun + data + b"\n\n"),
        http_response(data + b"\n"),
        http_response(
            begun + b'data: {"choices": [{"finish_reason": 7}], "x": "' + line.encode() + b'"}\n\n'
        ),
        http_response(f'{{"choices": "{line}"}}', 200, "application/json"),
        http_response(page, 200, "application/json"),
        f"HTTP/1.1 {line}\r\n\r\n".encode(),
        f"HTTP/1.1 200 OK\r\n{line}\r\n\r\n".encode(),
        f"{line}\r\n\r\n".encode(),
        begun,
    ]
    return random.choice(places)


def _backends(url: str, key: str) -> list[Backend]:
    """Return backends with the key in each possible place."""
    once: dict[str, Any] = {"model": "m", "retries": Retries(attempts=1)}
    written = quote(key, safe="")
    return [
        connect(url, api_key=key, **once),
        connect(url, api_key=f"Bearer {key}", **once),
        connect(f"{url}?api-key={written}", **once),
        connect(f"{url}?{written}", **once),
        connect(url.replace("http://", f"HTTP://{written}@"), **once),
        connect(url.replace("http://", f"http://me:{written}@"), **once),
        connect("openai", base_url=url, api_key=key, **once),
        connect("openai", base_url=f"{url}?api-key={written}", api_key="other", **once),
    ]


# The last two have found a key once.
@pytest.mark.parametrize("seed", [*seeds(example_count(6, 60)), 132, 136])
async def test_a_planted_key_is_in_nothing_that_a_run_writes(
    seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Logs of all libraries, errors with their chains, reprs, events, cassettes, pickles."""
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, "asyncio")
    random = Random(seed)
    key = drawn(random)
    tape = tmp_path / "tape.jsonl"
    written: list[str] = []
    async with asyncio.timeout(200), ByteServer(lambda got: [echo(got, random, key)]) as server:
        for backend in _backends(server.url, key):
            recording = connect(f"cassette:{tape}", record=backend)
            for used in recording, Fallback([backend, backend]), backend:
                written += [text async for text in _use(used, key)]
            for used in recording, backend:
                written += [text async for text in _use(used, key, embeds=True)]
            written += [tape.read_text(), repr(backend), str(backend), *_pickled(backend)]
            await backend.aclose()
    written += [f"{record.name}: {record.getMessage()}" for record in caplog.records]

    assert len(written) > 100
    assert [text for text in written if shows(text, key)] == []
    assert "***" in "".join(written)


async def _use(backend: Backend, key: str, *, embeds: bool = False) -> Any:
    """Yield all that is visible of one request in a tree; the request has the key too."""

    @handler
    async def asks(node: Node[Any]) -> str:
        if embeds:
            return str(await backend.embed([f"My key is {key}."]))
        request = Request([Message(role="user", content=f"My key is {key}.")])
        return (await backend.complete(request)).content or ""

    async with Commander() as commander:
        listener = commander.events()
        try:
            await commander.run(asks())
        except BackendError as error:
            for link in _chain(error):
                yield repr(link)
                yield repr(getattr(link, "__notes__", []))
                yield repr({k: v for k, v in vars(link).items() if k != "partial"})
                yield "".join(traceback.format_exception(link))
                yield pickle.dumps(link).decode("latin-1")
    async for event in listener:
        yield f"{event} {event.data}"


def _pickled(backend: Backend) -> Iterable[str]:
    try:
        yield pickle.dumps(backend).decode("latin-1")
    except ConfigurationError as error:
        yield from (repr(link) for link in _chain(error))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and all its causes, hidden ones too."""
    links = [error]
    while links:
        if (link := links.pop()) is not None:
            yield link
            links += [link.__cause__, link.__context__]


_MALFORMED = [
    "https://h/v1?api-key={}",
    "HTTPS://u:{}@h/v1",
    "htps://u:{}@h",
    "htps://{}@h",
    "http:/u:{}@h",
    "u:{}@h",
    "http://u:{}@[x/v1",
    "http://u:{}@h:99999/v1",
    "http://u:{}/p@h/v1",
    "http://u:p?{}@h/v1",
    "http://h:x/v1?key={}",
    "http://h h/?key={}",
    "http://h\0/?{}",
    "http://a..b/#{}",
    "ftp://h?key={}",
    "ws://{}@h",
    "//u:{}@h",
]


@pytest.mark.parametrize("address", _MALFORMED)
@pytest.mark.parametrize("written", [str, lambda key: quote(key, safe="")], ids=["raw", "quoted"])
def test_an_address_that_is_refused_is_shown_without_its_key(
    address: str, written: Callable[[str], str]
) -> None:
    """As a spec and as `base_url`, with and without a model."""
    for seed in range(5):
        key = drawn(Random(seed))
        spec = address.replace("{}", written(key))
        calls: list[tuple[str, dict[str, Any]]] = [(spec, {}), ("openai", {"base_url": spec})]
        if address.lower().startswith("https"):
            calls.pop()  # these are refused for want of a model alone
        else:
            calls += [(spec, {"model": "m"}), ("openai:m", {"base_url": spec, "api_key": "k"})]
        for first, more in calls:
            with pytest.raises(ConfigurationError) as caught:
                connect(first, **more)
            assert not any(shows(repr(link), key) for link in _chain(caught.value))
