"""Recorded replies and their replay."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clock import sleep_virtual, virtual_time
from support.scripted_server import Reply, ScriptedServer, Step, calls, chunk, text, vectors

from anabranch.backends import Backend, ModelBackend, connect
from anabranch.backends._cassette_file import delta_from_json, delta_to_json
from anabranch.commander import (
    AuthenticationError,
    BackendError,
    BadResponse,
    ConfigurationError,
    RateLimited,
    StreamInterrupted,
)
from anabranch.messages import Delta, Message, Request, ToolCallDelta, Usage
from anabranch.testing import ScriptedBackend

pytestmark = pytest.mark.contract("B1")

KEY = "sk-secret-0123456789/+="


def _ask(said: str = "Hello?", **options: Any) -> Request:
    return Request([Message(role="user", content=said)], options=options)


class Slow(ModelBackend):
    """Sends one delta per second, and a different reply each time."""

    count = 0

    async def attempt(self, request: Request) -> AsyncGenerator[Delta, None]:
        self.count += 1
        for said in "a", "b":
            await sleep_virtual(1)
            yield Delta(f"{said}{self.count}")
        await sleep_virtual(1)
        yield Delta(usage=Usage(input_tokens=1), finish_reason="stop")


async def _all(backend: Backend, request: Request) -> list[Delta]:
    return [delta async for delta in backend.stream(request)]


@virtual_time
async def test_playing_gives_the_same_deltas_in_the_order_recorded(tmp_path: Path) -> None:
    """At once or at the recorded pace; the last reply is repeated."""
    file = tmp_path / "a.jsonl"
    time = asyncio.get_running_loop().time
    recording = connect(f"cassette:{file}", record=Slow("m", temperature=1))
    recorded = [await _all(recording, _ask()), await _all(recording, _ask())]

    start = time()
    player = connect(f"cassette:{file}")
    played = [await _all(player, _ask()) for _ in range(3)]
    assert time() == start
    assert played == [*recorded, recorded[-1]]

    assert await _all(connect(f"cassette:{file}", realtime=True), _ask()) == recorded[0]
    assert time() - start == pytest.approx(3, abs=0.01)


@virtual_time
async def test_an_unknown_request_fails_with_the_nearest_and_the_difference(tmp_path: Path) -> None:
    """The error has a diff."""
    file = tmp_path / "a.jsonl"
    recording = connect(f"cassette:{file}", record=Slow("m"))
    await _all(recording, _ask("Where is the river?", temperature=0))
    await _all(recording, _ask("Something else", seed=3, stop=["x"]))

    with pytest.raises(BackendError) as caught:
        await _all(connect(f"cassette:{file}"), _ask("Where is the lake?", temperature=0))

    lines = str(caught.value).splitlines()
    assert '-   "content": "Where is the river?",' in lines
    assert '+   "content": "Where is the lake?",' in lines


@virtual_time
async def test_a_reply_that_was_left_is_played_as_interrupted(tmp_path: Path) -> None:
    """The replay breaks off where the reader left."""
    file = tmp_path / "a.jsonl"
    recording = connect(f"cassette:{file}", record=Slow("m"))
    async with aclosing(recording.stream(_ask())) as deltas:
        await anext(deltas)

    with pytest.raises(StreamInterrupted) as caught:
        await connect(f"cassette:{file}").complete(_ask())

    assert caught.value.partial.content == "a1"


async def test_what_came_before_nonsense_is_played_with_it(tmp_path: Path) -> None:
    """The error has the text before the malformed part."""
    file = tmp_path / "a.jsonl"
    broken = ScriptedBackend([Delta("Hel"), BadResponse("nonsense")])
    with pytest.raises(BadResponse):
        await connect(f"cassette:{file}", record=broken).complete(_ask())

    with pytest.raises(BadResponse, match="nonsense") as caught:
        await connect(f"cassette:{file}").complete(_ask())

    assert caught.value.partial == Message(role="assistant", content="Hel")


@pytest.mark.contract("B3")
async def test_failures_are_recorded_and_no_key_is(tmp_path: Path) -> None:
    """A key in the request is not recorded either."""
    key = 'sk-"secret"/0123'
    file = tmp_path / "a.jsonl"
    async with ScriptedServer() as server:
        backend = connect(server.url, model="m", api_key=key)
        recording = connect(f"cassette:{file}", record=backend)
        server.script(Reply.error(429, f"slowly, {key}", Retry_After="900"), text(key))
        with pytest.raises(RateLimited):
            await _all(recording, _ask("one"))
        await _all(recording, _ask(f"my key is {key}"))
        server.script(Reply([chunk({"content": "a"})]))
        with pytest.raises(StreamInterrupted):
            await _all(recording, _ask("two"))
        await recording.aclose()

    written = file.read_text()
    assert "0123" not in written
    assert len([json.loads(line) for line in written.splitlines()]) == 3
    player = connect(f"cassette:{file}")
    with pytest.raises(RateLimited) as limited:
        await _all(player, _ask("one"))
    assert limited.value.retry_after == 900
    with pytest.raises(StreamInterrupted):
        await _all(player, _ask("two"))


@pytest.mark.contract("B3")
async def test_a_key_that_comes_in_pieces_is_not_recorded(tmp_path: Path) -> None:
    """In text and arguments of calls; the text around it is recorded."""
    file = tmp_path / "a.jsonl"
    key = "sk-QWXZJK-0123"
    spoken = [f"it is {key[:6]}", key[6:9], f"{key[9:]}, I think"]
    call = calls(("tell", json.dumps({"key": key})))
    async with ScriptedServer(text(*spoken), call) as server:
        backend = connect(server.url, model="m", api_key=key)
        async with connect(f"cassette:{file}", record=backend) as recording:
            for _ in range(2):
                await recording.complete(_ask())

    player = connect(f"cassette:{file}")
    assert (await player.complete(_ask())).content == "it is ***, I think"
    (made,) = (await player.complete(_ask())).tool_calls
    assert made.arguments == {"key": "***"}
    assert not any(piece in file.read_text() for piece in (key[:6], key[6:9], key[9:]))


_WORDS = ["a", "the", "user", "role", "content", "stop", "text", "EMPTY", "null", "1", "2024"]


@pytest.mark.parametrize("key", [*_WORDS, "tool_calls", "sk-0123456789abcdef", '{"role": 0}'])
async def test_a_recording_is_played_whatever_the_key(key: str, tmp_path: Path) -> None:
    """A word is not removed from text; with any other key, a request is still found."""
    file = tmp_path / "a.jsonl"
    asked = _ask(f"the user said {key}: a null text in 2024", stop=[key])
    async with ScriptedServer(text("the content", " of a role")) as server:
        backend = connect(server.url, model="m", api_key=key)
        async with connect(f"cassette:{file}", record=backend) as recording:
            said = await recording.complete(asked)

    assert await connect(f"cassette:{file}").complete(asked) == said
    assert (key in file.read_text()) == (key in [*_WORDS, "tool_calls"])


@virtual_time
async def test_requests_that_are_alike_are_played_in_the_order_they_were_asked(
    tmp_path: Path,
) -> None:
    """The order counts even if a later reply ended first."""
    file = tmp_path / "a.jsonl"

    class Shrinking(Slow):
        async def attempt(self, request: Request) -> AsyncGenerator[Delta, None]:
            self.count += 1
            yield Delta(f"{self.count}")
            await sleep_virtual(10 - self.count)
            yield Delta(finish_reason="stop")

    recording, player = (
        connect(f"cassette:{file}", record=Shrinking("m")),
        connect(f"cassette:{file}"),
    )
    recorded = await asyncio.gather(*(recording.complete(_ask()) for _ in range(4)))
    played = await asyncio.gather(*(player.complete(_ask()) for _ in range(4)))

    assert [message.content for message in recorded] == ["1", "2", "3", "4"]
    assert played == recorded


_GOOD: dict[str, Any] = {
    "request": {"messages": []},
    "model": "m",
    "number": 1,
    "deltas": [
        {"at": 0.5, "text": "a", "tool_calls": [{"index": 0, "id": "i", "name": "n"}]},
        {"at": 1, "finish_reason": "stop", "usage": {"input_tokens": 1}},
    ],
    "failure": {"kind": "RateLimited", "message": "no", "status": 429, "retry_after": 1.5},
}
_GOOD_VECTORS: dict[str, Any] = {
    "request": {"input": ["a", "b"]},
    "model": "m",
    "number": 1,
    "deltas": [],
    "vectors": [[1.0, 0.0], [0.5, 2]],
}
_NONE = {
    "nothing": b"",
    "blank lines": b"\n\n",
    "binary": b"\x80\x00\xff" * 9,
    "a list": b"[]",
    "a number": b"7",
    "an empty object": b"{}",
    "nested deep": b"[" * 100_000,
    "a kind that is no text": json.dumps(_GOOD | {"failure": {"kind": 7, "message": ""}}).encode(),
    "a time that is none": json.dumps(_GOOD | {"deltas": [{"at": float("nan")}]}).encode(),
    "another version": json.dumps(_GOOD | {"version": 2}).encode(),
    "usage that is none": json.dumps(
        _GOOD | {"deltas": [{"at": 0, "usage": {"input_tokens": "x"}}]}
    ).encode(),
}


@pytest.mark.parametrize("name", [*_NONE, "no file", "a folder"])
async def test_a_file_that_is_no_cassette_is_told(name: str, tmp_path: Path) -> None:
    """The error has the file's name and the wrong line."""
    file = tmp_path / "a.jsonl"
    if name == "a folder":
        file.mkdir()
    elif name != "no file":
        file.write_bytes(
            json.dumps(_GOOD).encode() + b"\n" + _NONE[name] if _NONE[name].strip() else b""
        )

    with pytest.raises(ConfigurationError) as caught:
        await _all(connect(f"cassette:{file}"), _ask())

    assert str(file) in str(caught.value)
    assert ("line 2" in str(caught.value)) == bool(_NONE.get(name, b"").strip())


_JUNK = st.sampled_from([None, True, -1, 2.5, "x", [], {}, [[]], {"a": 1}])


@given(data=st.data())
async def test_a_damaged_cassette_is_refused_or_played(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Cut anywhere, or with any value replaced, it raises no other error."""
    file = tmp_path_factory.mktemp("tape") / "a.jsonl"
    line = json.loads(json.dumps(data.draw(st.sampled_from([_GOOD, _GOOD_VECTORS]))))
    holder: Any = line
    while True:
        place = data.draw(
            st.sampled_from(list(holder) if isinstance(holder, dict) else list(range(len(holder))))
        )
        if not (
            isinstance(holder[place], dict | list) and holder[place] and data.draw(st.booleans())
        ):
            break
        holder = holder[place]
    holder[place] = data.draw(_JUNK)
    written = json.dumps(line).encode()
    file.write_bytes(written[: data.draw(st.integers(len(written) // 2, 2 * len(written)))])
    request = Request([])

    for use in partial(_all, request=request), lambda backend: backend.embed(["a", "b"]):
        told = str(file)
        try:
            await use(connect(f"cassette:{file}"))
        except ConfigurationError as error:
            told = str(error)
        except BackendError:
            pass
        assert str(file) in told


@pytest.mark.parametrize(
    "options", [{"temperature": 0}, {"timeouts": None}, {"record": "openai:x"}]
)
def test_an_option_that_a_cassette_has_not_is_refused(options: dict[str, Any]) -> None:
    """The error names the option."""
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        connect("cassette:a.jsonl", **options)


async def test_a_place_that_cannot_be_written_is_told_before_anything_is_asked(
    tmp_path: Path,
) -> None:
    """Otherwise a paid reply would be lost."""
    asked = ScriptedBackend("Hello")

    for file in tmp_path, tmp_path / "none" / "a.jsonl", f"{tmp_path}/a\0":
        with pytest.raises(ConfigurationError, match="cannot record"):
            await connect(f"cassette:{file}", record=asked).complete(_ask())

    assert not asked.requests


_TEXT = st.text(max_size=5)
_PIECES = st.builds(ToolCallDelta, st.integers(-1, 3), st.none() | _TEXT, st.none() | _TEXT, _TEXT)
_DELTAS = st.builds(
    Delta,
    _TEXT,
    _TEXT,
    _TEXT,
    st.lists(_PIECES, max_size=2).map(lambda pieces: pieces or ()),
    st.none() | st.builds(Usage, input_tokens=st.integers(0, 3)),
    st.none() | _TEXT,
    st.booleans(),
)


@given(delta=_DELTAS)
def test_a_delta_survives_the_file(delta: Delta) -> None:
    """All its fields do; an empty id, name or finish_reason becomes None."""
    at, again = delta_from_json(json.loads(json.dumps({"at": 1.5, **delta_to_json(delta)})))

    for piece in delta.tool_calls:
        piece.id, piece.name = piece.id or None, piece.name or None
    delta.finish_reason = delta.finish_reason or None
    assert (at, again) == (1.5, delta)


def test_a_cassette_is_played_without_a_loop(tmp_path: Path) -> None:
    """It can be recorded without one too."""
    file = tmp_path / "a.jsonl"
    said = ScriptedBackend("Hello there")

    recorded = list(connect(f"cassette:{file}", record=said).stream_sync(_ask()))

    assert list(connect(f"cassette:{file}").stream_sync(_ask())) == recorded
    assert "".join(delta.text for delta in recorded) == "Hello there"


async def test_a_request_with_an_option_taken_back_is_played(tmp_path: Path) -> None:
    """An option with the value None is left out."""
    file = tmp_path / "tape.jsonl"
    asked = _ask(top_p=None, seed=None)
    await connect(f"cassette:{file}", record=ScriptedBackend("Hi")).complete(asked)

    for same in asked, _ask():
        assert (await connect(f"cassette:{file}").complete(same)).content == "Hi"


# --- embeddings


async def test_embeddings_are_played_as_they_were_recorded(tmp_path: Path) -> None:
    """They are found by their texts, between replies, repeatedly, and with their failures."""
    file = tmp_path / "a.jsonl"
    down = Reply.error(401, f"no {KEY}")
    async with ScriptedServer(vectors("a", "bc"), text("Hi"), down, vectors("a")) as server:
        backend = connect(server.url, model="tiny", api_key=KEY)
        async with connect(f"cassette:{file}", record=backend) as recording:
            recorded = await recording.embed(["a", "bc"])
            await recording.complete(_ask())
            with pytest.raises(AuthenticationError):
                await recording.embed(["a"])
            await recording.embed([f"my key is {KEY}"])
            assert await recording.embed([]) == []

    player = connect(f"cassette:{file}")
    for _ in range(2):
        played = await player.embed(["a", "bc"])
        assert played == recorded == [[1.0, 1.0], [2.0, 1.0]]
        played.clear()  # the reader's own
    with pytest.raises(AuthenticationError):
        await player.embed(["a"])
    assert await player.embed([f"my key is {KEY}"]) == [[1.0, 1.0]]
    assert (await player.complete(_ask())).content == "Hi"
    with pytest.raises(BackendError, match="no reply to this request"):
        await player.embed(["bc", "a"])
    assert KEY not in file.read_text()
    assert len(file.read_text().splitlines()) == 4


@pytest.mark.parametrize(
    "wrong",
    [None, [], [[1.0]], [[1.0], [2.0, 3.0]], [[1.0], ["x"]], [[1.0], [float("nan")]], [[], []], 7],
)
async def test_vectors_that_are_damaged_are_told(tmp_path: Path, wrong: Any) -> None:
    """The error has the file's name and the line."""
    file = tmp_path / "a.jsonl"
    recording = connect(f"cassette:{file}", record=ScriptedBackend(dimensions=2))
    await recording.embed(["a", "b"])
    line = json.loads(file.read_text())
    file.write_text("\n" + json.dumps(line | {"vectors": wrong}))

    with pytest.raises(ConfigurationError, match=r"a\.jsonl, line 2: not a recording"):
        await connect(f"cassette:{file}").embed(["a", "b"])


async def test_a_recording_of_embeddings_that_was_cancelled_breaks_off(tmp_path: Path) -> None:
    """The replay fails as for a reply that its reader left."""
    file = tmp_path / "a.jsonl"
    async with ScriptedServer(Reply([Step.HANG])) as server:
        source = connect(server.url, model="tiny")
        async with connect(f"cassette:{file}", record=source) as recording:
            asking = asyncio.create_task(recording.embed(["a"]))
            await server.asked.wait()
            asking.cancel()
            await asyncio.wait([asking])

    with pytest.raises(StreamInterrupted, match="closed here"):
        await connect(f"cassette:{file}").embed(["a"])
