"""Images and files in messages are validated when made, and every store restores them unchanged.

Any argument gives a part that models accept, or an error at once.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.media_files import MP3, PDF, PIXEL, PNG, SAMPLES, WAV

from anabranch import ConfigurationError, Conversation, Message, Part
from anabranch.messages import Request, request_body
from anabranch.messages import _part as parts_module
from anabranch.messages.compact_json import read_message, write_json, write_message
from anabranch.tools import ToolResult

NAMES = st.none() | st.text(max_size=120)
PARTS = st.one_of(
    st.builds(
        lambda data, more, name: Part.from_bytes(data + more, name=name),
        st.sampled_from([data for kind, data in SAMPLES.items() if kind != "text/plain"]),
        st.binary(max_size=40),
        NAMES,
    ),
    st.builds(
        lambda text, kind, name: Part.from_bytes(text.encode(), kind, name=name),
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1),
        st.sampled_from([None, "text/markdown", "application/json"]),
        NAMES,
    ),
    st.just(Part.from_url("https://pictures.test/cat.jpg?size=2", name="cat")),
    st.just(Part.from_url("https://pictures.test/cat")),
    st.builds(
        lambda detail: Part.from_url(PIXEL.url, detail=detail),
        st.sampled_from(["low", "high", "original", None]),
    ),
)
CONTENTS = st.none() | st.text(st.characters(exclude_categories=["Cs"]))
MESSAGES = st.builds(
    lambda role, content, parts: Message(role=role, content=content, parts=parts),
    st.sampled_from(["user", "assistant", "system"]),
    CONTENTS,
    st.lists(PARTS, max_size=3),
)


@given(MESSAGES)
def test_a_message_comes_back_equal_with_its_parts(message: Message) -> None:
    """From its record, a journal entry, JSON and pickle."""
    record = json.loads(json.dumps(message.to_record()))
    if message.content is None and not message.parts:
        record["content"] = None  # the wire allows no empty message
    assert Message.from_wire(record) == message
    assert read_message(json.loads(write_json(write_message(message)))) == message
    assert Message.model_validate_json(message.model_dump_json()) == message
    assert pickle.loads(pickle.dumps(message)) == message


@given(MESSAGES)
def test_the_wire_has_each_part_and_no_path(message: Message) -> None:
    """Text is part of the text. Images, audio and PDFs are parts beside it, in their order."""
    (wire,) = request_body("m", Request([message]))["messages"]
    content = wire["content"]
    others = [part for part in message.parts if part.kind != "text"]
    if not others:
        assert isinstance(content, str)
    else:
        assert content[-len(others) :] == [part.to_wire() for part in others]
    whole = content if isinstance(content, str) else content[0].get("text", "")
    assert all(part.text in whole for part in message.parts)
    assert all("/" not in (part.name or "") for part in message.parts)


def test_an_image_is_looked_at_in_the_detail_that_is_asked(tmp_path: Path) -> None:
    """However the part is made. Other parts have no detail, and a misspelt detail is refused."""
    (tmp_path / "a.png").write_bytes(PNG)
    (tmp_path / "a.pdf").write_bytes(PDF)
    part = Part.from_path(tmp_path / "a.png", detail="low")
    assert part.to_wire()["image_url"]["detail"] == "low"
    for make in (partial(Part.from_path, tmp_path / "a.pdf"), partial(Part.from_bytes, WAV)):
        with pytest.raises(ConfigurationError, match="not an image"):
            make(detail="low")
    wrong: Any = "close"
    with pytest.raises(ConfigurationError, match="'low', 'high' or 'original'"):
        Part.from_bytes(PNG, detail=wrong)


def test_a_conversation_saves_and_loads_parts(tmp_path: Path) -> None:
    """Of messages, and of results of tools."""
    conversation = Conversation()
    parts = [PIXEL, Part.from_bytes(PDF), Part.from_bytes(b"a,b\n", "text/csv", name="t.csv")]
    conversation.add(Message(role="user", content="look", parts=parts))
    conversation.add(ToolResult(content="drawn", tool_call_id="1", parts=[PIXEL]))
    conversation.save(tmp_path / "talk.json")
    loaded = Conversation.load(tmp_path / "talk.json")
    assert [message.parts for message in loaded] == [parts, [PIXEL]]


@pytest.mark.parametrize("kind", SAMPLES)
def test_the_type_is_found_by_the_bytes(kind: str) -> None:
    """For every accepted type. Size and bytes stay unchanged."""
    part = Part.from_bytes(SAMPLES[kind])
    assert (part.media_type, part.data, part.size) == (kind, SAMPLES[kind], len(SAMPLES[kind]))
    assert Part.from_url(part.url) == part
    if kind != "text/plain":
        assert Part.from_wire(part.to_wire()) is not None


@pytest.mark.parametrize(
    ("data", "declared", "why"),
    [
        (b"<html>hello</html>", "image/png", "image/png, but its bytes are text/plain"),
        (PNG, "application/pdf", "its bytes are image/png"),
        (PNG, "text/plain", "its bytes are image/png"),
        (b"", "image/png", "empty"),
        (b"\0\1\2\3", None, "no model takes"),
        (b"PK\x03\x04\xff\xfe", "application/zip", "no model takes"),
        (b"text", "application/zip", "no model takes"),
        (b"text", 'a"b/c;d', "no model takes"),
        (b"\xff\xfe\x00\xd8" * 3, "text/plain", "no model takes"),
    ],
)
def test_bytes_that_lie_about_their_type_are_refused(
    data: bytes, declared: str | None, why: str
) -> None:
    """Text as an image, an image as a PDF, an unsupported type, an empty file."""
    with pytest.raises(ConfigurationError, match=why):
        Part.from_bytes(data, declared)
    url = f"data:{declared or ''};base64,{base64.b64encode(data).decode()}"
    with pytest.raises(ConfigurationError):
        Part.from_url(url)


def test_what_a_browser_says_beside_a_type_is_passed_over() -> None:
    """For example the charset of an uploaded form file. Bytes that are not text are refused."""
    sent = Part.from_bytes(b"a,b", "text/csv; charset=utf-8")
    assert sent == Part.from_bytes(b"a,b", "text/csv")
    wrong: Any = 3
    with pytest.raises(ConfigurationError, match="media type must be a string"):
        Part.from_bytes(b"a,b", wrong)


def test_an_image_of_another_kind_than_its_name_says_gets_its_own_type(tmp_path: Path) -> None:
    """Files are often renamed, and some models refuse a wrong type."""
    file = tmp_path / "photo.png"
    file.write_bytes(SAMPLES["image/jpeg"])
    assert Part.from_path(file).media_type == "image/jpeg"


def test_what_is_too_large_is_refused_with_the_limit_and_what_to_do(tmp_path: Path) -> None:
    """Bytes, a file, a URL: at most the limit is read."""
    with (tmp_path / "huge.png").open("wb") as file:
        file.truncate(2**40)  # a sparse file
    data = PNG + bytes(parts_module.LARGEST_PART)
    for make in (
        lambda: Part.from_path(tmp_path / "huge.png"),
        lambda: Part.from_bytes(data),
        lambda: Part.from_url("data:image/png;base64," + base64.b64encode(data).decode()),
    ):
        with pytest.raises(ConfigurationError, match=r"larger than 20 MiB.*: make it smaller"):
            make()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such files")
async def test_a_path_that_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    """A pipe without a writer, a link to it, a device, a folder: none of them blocks."""
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "link.png").symlink_to(tmp_path / "pipe.png")
    for path in (tmp_path / "pipe.png", tmp_path / "link.png", "/dev/zero", "/dev/tty", tmp_path):
        with pytest.raises((ConfigurationError, OSError)) as refused:
            async with asyncio.timeout(20):
                await asyncio.to_thread(Part.from_path, path)
        assert isinstance(refused.value, ConfigurationError) or str(path) == "/dev/tty"
        assert str(tmp_path) not in str(refused.value)


@pytest.mark.skipif(os.name == "nt", reason="Windows makes no links without a right to")
def test_paths_of_all_sorts(tmp_path: Path) -> None:
    """A link to a file works. A link to itself, no file, and an invalid name are errors."""
    (tmp_path / "a.png").write_bytes(PNG)
    (tmp_path / "link.png").symlink_to("a.png")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "empty.txt").touch()
    assert Part.from_path(tmp_path / "link.png").data == PNG
    assert Part.from_path(str(tmp_path / "a.png")).name == "a.png"
    for path in (tmp_path / "loop", tmp_path / "none.png"):
        with pytest.raises(OSError):
            Part.from_path(path)
    for path in (tmp_path / "empty.txt", f"{tmp_path}/a\0b"):
        with pytest.raises(ConfigurationError):
            Part.from_path(path)


def test_a_file_that_grows_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model would get half of it, or more than the limit."""
    file = tmp_path / "log.txt"
    file.write_text("one\n")
    seen = os.fstat

    def grown(descriptor: int) -> os.stat_result:
        found = seen(descriptor)
        with file.open("a") as more:
            more.write("two\n")
        return found

    monkeypatch.setattr(parts_module.os, "fstat", grown)
    with pytest.raises(ConfigurationError, match="changed during the read"):
        Part.from_path(file)


@pytest.mark.parametrize(
    "url",
    [
        "http://pictures.test/cat.png",
        "file:///etc/passwd",
        "/etc/passwd",
        "cat.png",
        "ftp://pictures.test/cat.png",
        "https://user:password@pictures.test/cat.png",
        "https://pictures.test/cat.png\r\nHost: other",
        "https://pictures.test/ö.png",
        "https:///cat.png",
        "https://[/cat.png",
        "https://pictures.test:port/cat.png",
        "https://pictures.test:99999/cat.png",
        "https://pictures.test/report.pdf",
        "https://pictures.test/" + "a" * 5000,
        "data:image/png,hello",
        "data:image/png;base64",
        "data:image/png;base64,",
        "data:image/png;base64,iVBORw0KGg",
        "data:image/png;base64,iVBORw0KGgo=!",
        "data:image/png;base64,iVBORw0KGgo=\n",
        "data:image/png;base64,iVBORw0KGgo=iVBO",
        "data:image/png;base64,\u0131VBORw0KGgo=",
        "DATA:text/html;base64,iVBORw0KGgo=",
    ],
)
def test_addresses_that_no_model_is_to_read_are_refused(url: str) -> None:
    """Also in a message of the wire. A password in the address does not appear in the error."""
    with pytest.raises(ConfigurationError) as refused:
        Part.from_url(url)
    assert "password" not in str(refused.value).replace("a user or a password", "")
    wire = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}
    with pytest.raises(ConfigurationError):
        Conversation().add(wire)


@given(st.text() | st.from_regex(r"data:[a-z/]*(;base64)?,[A-Za-z0-9+/=]*"), NAMES)
def test_any_address_is_a_part_or_refused(url: str, name: str | None) -> None:
    """No other error is raised for any text."""
    try:
        part = Part.from_url(url, name=name)
    except ConfigurationError:
        return
    assert Part.from_url(part.url, name=part.name) == part


WIRES: list[Callable[[Any], Any]] = [
    lambda odd: {"type": "image_url", "image_url": odd},
    lambda odd: {"type": "image_url", "image_url": {"url": odd}},
    lambda odd: {"type": "file", "file": {"file_data": odd, "filename": odd}},
    lambda odd: {"type": "file", "file": {"file_id": odd}},
    lambda odd: {"type": "input_audio", "input_audio": {"data": odd, "format": "wav"}},
    lambda odd: {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": odd}},
]


@given(st.sampled_from(WIRES), st.none() | st.booleans() | st.integers() | st.text() | st.just([]))
def test_a_part_of_the_wire_that_is_none_is_refused(make: Callable[[Any], Any], odd: Any) -> None:
    """With one error class, whose text names the part."""
    with pytest.raises(ConfigurationError, match="not a message of the wire"):
        Conversation().add({"role": "user", "content": [make(odd)]})


def test_no_bytes_and_no_address_in_a_repr() -> None:
    """It shows type, name and size.

    Of an address it shows the host, since the rest may be a key.
    """
    secret = "c2VjcmV0"
    part = Part.from_bytes(WAV + base64.b64decode(secret) * 9, name="/home/me/voice.wav")
    address = Part.from_url("https://pictures.test/cat.png?signature=abc")
    message = Message(role="user", content="hi", parts=[part, address])
    for shown in (repr(message), str(message), repr(part), f"{part}", str(address), repr(address)):
        assert not any(each in shown for each in (secret, "signature", "/home"))
    assert all(each in repr(message) for each in ("voice.wav", "audio/wav"))
    assert part.about == "voice.wav (audio/wav, 74 bytes)"


def test_a_part_cannot_be_changed() -> None:
    """The validated value stays."""
    with pytest.raises(ValueError, match="frozen"):
        PIXEL.url = "file:///etc/passwd"  # type: ignore[misc]
    with pytest.raises(ValueError, match="Extra inputs"):
        Part(url=PIXEL.url, path="/etc/passwd")  # type: ignore[call-arg]


def test_results_of_tools_send_text_alone_unless_it_is_wanted() -> None:
    """The wire allows no images in a tool's message. `tool_images` adds them after it."""
    result = ToolResult(content="drawn", tool_call_id="1", parts=[PIXEL, Part.from_bytes(MP3)])
    plain, wanted = (
        request_body("m", Request([result], options={"tool_images": each}))["messages"]
        for each in (False, True)
    )
    assert [each["content"] for each in plain] == ["drawn"]
    assert wanted[1]["content"][1:] == [part.to_wire() for part in result.parts]
