"""Keys stay out of all output."""

from __future__ import annotations

import html
import json
import logging
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr
from support.scripted_server import Reply, ScriptedServer, Step, chunk, event, text

from anabranch import Commander, Node, handler
from anabranch.backends import Backend, Fallback, Retries, connect
from anabranch.backends._secret import Redactor, as_secret
from anabranch.commander import BackendError, ConfigurationError
from anabranch.messages import Message, Request

pytestmark = pytest.mark.contract("B3")

_PRINTABLE = st.text(st.characters(min_codepoint=32, max_codepoint=126, exclude_characters="*"))
_KEYS = _PRINTABLE.map(lambda key: key.strip(" \\")).filter(lambda key: len(key) >= 4)
_WRITERS = {
    "plain": str,
    "JSON": lambda text: json.dumps(text)[1:-1],
    "JSON with slashes": lambda text: json.dumps(text)[1:-1].replace("/", "\\/"),
    "a URL": quote,
    "a URL's part": lambda text: quote(text, safe=""),
    "a URL in small letters": lambda text: quote(text, safe="").replace("%2F", "%2f"),
    "HTML": html.escape,
    "Python's bytes": lambda text: repr(text.encode())[2:-1],
    "JSON in Python": lambda text: repr(json.dumps(text).encode())[3:-2],
}


@pytest.mark.parametrize("way", _WRITERS)
@given(key=_KEYS, around=st.text("abc \\\"'"))
def test_a_key_is_found_however_it_is_written(way: str, key: str, around: str) -> None:
    """Nothing else is removed, except perhaps backslashes."""
    redactor, write = Redactor(SecretStr(key)), _WRITERS[way]

    assert write(key) not in redactor.text(around + write(key) + around)
    assert redactor.text(f"<{write(key)}>").replace("\\", "") == "<***>"


@pytest.mark.parametrize("way", _WRITERS)
@given(key=st.text("abcXYZ019-_/+=.", min_size=9), cut=st.integers(8, 40))
def test_a_key_that_an_error_cut_short_is_found(way: str, key: str, cut: int) -> None:
    """From its eighth character on."""
    begun = _WRITERS[way](key[:cut])
    error = Redactor(SecretStr(key)).error(BackendError(f"told: {begun}"))

    assert begun not in str(error)


_PROSE = "The user said: none of the messages is empty; call get_weather and stop."


@pytest.mark.parametrize("key", ["a", "the", "user", "none", "EMPTY", "get_weather", "2024"])
def test_a_key_that_is_a_word_is_left_in_prose(key: str) -> None:
    """Such a placeholder is used for servers without keys; texts of servers are still redacted."""
    redactor = Redactor(SecretStr(key))

    assert redactor.prose(_PROSE) == _PROSE
    assert redactor.text(f"wrong key: {key}") == f"wrong key: {'***' if len(key) > 3 else key}"


def test_blanks_around_a_key_are_dropped_and_nothing_shows_it() -> None:
    """A line break from a file is not part of it."""
    for key in " sk-1234\n", SecretStr(" sk-1234\n"):
        secret = as_secret(key)

        assert secret is not None
        assert secret.get_secret_value() == "sk-1234"
        assert "sk" not in repr(secret) + str(secret) + repr(Redactor(secret))


@pytest.mark.parametrize("key", ["sk-sn\N{SNOWMAN}wman", "sk-one\nsk-two"])
def test_what_no_header_can_hold_is_refused(key: str) -> None:
    """The error does not show it."""
    with pytest.raises(ConfigurationError) as caught:
        connect("http://127.0.0.1/v1", model="tiny", api_key=key)

    assert "sk-" not in repr(caught.value)


def test_a_password_and_a_key_are_one_too_many() -> None:
    """Only one of them can be sent."""
    with pytest.raises(ConfigurationError, match="password"):
        connect("http://me:secret@127.0.0.1/v1", model="tiny", api_key="key")


KEYS = ["sk-proj-Planted_0123456789", "sk/\"planted'\\+&=<%>\\\\0123", "p1@nt:d", "x" * 300]
ASK = Request([Message(role="user", content="Hello?")])


def _planted(key: str) -> list[Reply]:
    """Return replies of a server that has the key in every place."""
    told = f"the key {key} is wrong"
    wide = b"data: " + b" " * 175 + told.encode() + b"\n\n"
    begun = chunk({"content": "a"})
    return [
        text("Hi"),
        Reply.error(401, {"message": told}),
        Reply.error(429, told, x_key=quote(key)),
        Reply([json.dumps({"error": told}).replace("/", "\\/").encode()], 500),
        Reply([told.encode()], 404, content_type="text/plain"),
        Reply([(" " * 280 + html.escape(told)).encode()], 404, content_type="text/plain"),
        Reply([b""], 302, {"Location": f"http://127.0.0.1/?key={quote(key)}"}),
        Reply([told.encode()], content_type="text/plain"),
        Reply([event({"error": {"message": told}})]),
        Reply([wide]),
        Reply([event({"choices": told})]),
        Reply([event({"choices": [{"delta": {"tool_calls": [" " * 150 + told]}}]})]),
        Reply([begun, event({"error": {"message": told}})]),
        Reply([begun, event({"choices": [], "usage": {"prompt_tokens": key}})]),
        Reply([begun, Step.DROP]),
        Reply([Step.DROP]),
    ]


def _backends(url: str, key: str) -> list[Backend]:
    """Return backends with the key in each possible place."""
    once: dict[str, Any] = {"model": "tiny", "retries": Retries(attempts=1)}
    query, password = f"{url}?key={quote(key, safe='')}", quote(key, safe="")
    in_place = url.replace("http://", f"http://me:{password}@")
    return [
        connect(url, api_key=key, **once),
        connect(query, **once),
        connect(in_place, **once),
        connect("openai", base_url=url, api_key=SecretStr(key), **once),
        connect("openai", base_url=query, api_key="other", **once),
    ]


@pytest.mark.parametrize("key", KEYS, ids=["usual", "odd", "short", "long"])
async def test_a_key_shows_nowhere(
    key: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is planted everywhere, then all output is searched for it and for half of it."""
    caplog.set_level(logging.DEBUG)
    came_out: list[str] = []
    tape = tmp_path / "tape.jsonl"
    async with ScriptedServer() as server:
        for backend in _backends(server.url, key):
            for reply in _planted(key):
                server.script(reply)
                came_out += await _use(connect(f"cassette:{tape}", record=backend))
                came_out += await _use(Fallback([backend]))
                came_out.append(tape.read_text())
            await backend.aclose()
        await server.__aexit__()
        for backend in _backends(server.url, key):
            came_out += await _use(backend)
            await backend.aclose()
    came_out.append("\n".join(r.getMessage() for r in caplog.records if "aiohttp" not in r.name))

    whole = "\n".join(came_out)
    assert "***" in whole
    for write in _WRITERS.values():
        assert write(key[: max(8, len(key) // 2)]) not in whole


async def _use(backend: Backend) -> list[str]:
    """Return all that is visible of one request in a tree: events, errors, tracebacks, reprs."""

    @handler
    async def asks(node: Node[Any]) -> str:
        return (await backend.complete(ASK)).content or ""

    async with Commander() as commander:
        listener = commander.events()
        try:
            seen = [await commander.run(asks())]
        except BackendError as error:
            seen = [each for link in _chain(error) for each in (repr(link), _traceback(link))]
    return [*seen, repr(backend), *[f"{event} {event.data}" async for event in listener]]


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its causes, hidden ones too."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _traceback(error: BaseException) -> str:
    """Return it with the variables of each frame except this file's, as some tools do."""
    frames = traceback.TracebackException.from_exception(error, capture_locals=True)
    kept = [frame for frame in frames.stack if frame.filename != __file__]
    frames.stack = traceback.StackSummary.from_list(kept)
    return "".join(frames.format())


async def test_a_logger_of_the_sdk_that_nobody_knew_shows_no_key(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each logger of the package is filtered, whatever its name."""
    caplog.set_level(logging.DEBUG)
    logger = logging.getLogger("openai._renamed.module")
    async with ScriptedServer(text("Nile")) as server:
        backend = connect("openai:gpt-5-mini", base_url=server.url, api_key="sk-planted-key")
        async with backend:
            await backend.complete(ASK)
            logger.debug("Authorization: Bearer %s", "sk-planted-key")
    assert "Authorization: Bearer ***" in caplog.text
    assert "planted" not in caplog.text
