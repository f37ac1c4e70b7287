"""Figures of tools appear inline if the terminal supports images, otherwise as paths."""

from __future__ import annotations

import base64
import os
import re
import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.cli.chat._inline_images import (
    MAX_FIGURE_BYTES,
    Protocol,
    encode_image,
    figure_lines,
    find_protocol,
)
from anabranch.messages import Part
from anabranch.tools import ToolResult

KITTY = re.compile(r"\x1b_G([^;]*);([^\x1b]*)\x1b\\")
ITERM = re.compile(r"\x1b\]1337;File=([^:]*):([A-Za-z0-9+/=]*)\x07")


def png(width: int = 80, height: int = 40, noise: int = 0) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pixels = zlib.compress(bytes((width + 1) * height if width * height < 10**6 else 1))
    noisy = chunk(b"teXt", os.urandom(noise))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + noisy + chunk(b"IDAT", pixels)


def read_kitty(text: str) -> tuple[dict[str, str], bytes]:
    """Parse kitty's commands as documented; return the first one's keys and the data."""
    found = KITTY.findall(text)
    assert "".join(f"\x1b_G{keys};{data}\x1b\\" for keys, data in found) == text
    read = [dict(pair.split("=") for pair in keys.split(",")) for keys, _ in found]
    assert all(len(data) <= 4096 and len(data) % 4 == 0 for _, data in found[:-1])
    assert [keys["m"] for keys in read] == ["1"] * (len(read) - 1) + ["0"]
    assert all(list(keys) == ["m"] for keys in read[1:])
    return read[0], base64.b64decode("".join(data for _, data in found), validate=True)


def read_iterm(text: str) -> tuple[dict[str, str], bytes]:
    found = ITERM.fullmatch(text)
    assert found
    keys = dict(pair.split("=") for pair in found[1].split(";"))
    return keys, base64.b64decode(found[2], validate=True)


@pytest.mark.parametrize(
    ("environ", "way"),
    [
        ({}, None),
        ({"TERM": "xterm-256color"}, None),
        ({"TERM": "xterm-kitty", "KITTY_WINDOW_ID": "1"}, "kitty"),
        ({"TERM": "xterm-kitty"}, "kitty"),
        ({"TERM": "xterm-ghostty", "TERM_PROGRAM": "ghostty"}, "kitty"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "iTerm.app"}, "iterm2"),
        ({"TERM": "xterm-256color", "LC_TERMINAL": "iTerm2"}, "iterm2"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "WezTerm"}, "iterm2"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "vscode", "KITTY_WINDOW_ID": "1"}, None),
        ({"TERM": "tmux-256color", "KITTY_WINDOW_ID": "1"}, None),
        ({"TERM": "xterm-kitty", "TMUX": "/tmp/tmux"}, None),
        ({"TERM": "screen", "LC_TERMINAL": "iTerm2"}, None),
        ({"TERM": "xterm-kitty", "ANABRANCH_IMAGES": "none"}, None),
        ({"TMUX": "x", "ANABRANCH_IMAGES": "kitty"}, "kitty"),
        ({"TERM": "xterm", "ANABRANCH_IMAGES": "iterm2"}, "iterm2"),
        ({"TERM": "xterm-kitty", "ANABRANCH_IMAGES": "what"}, "kitty"),
    ],
)
def test_the_way_is_told_by_the_environment(environ: dict[str, str], way: Protocol | None) -> None:
    """Only a terminal with certain support gets images, unless the person overrides it."""
    assert find_protocol(environ) == way


@pytest.mark.parametrize("noise", [0, 3000, 3072, 100_000])
def test_what_kitty_reads_is_the_image(noise: int) -> None:
    """The image is complete, in chunks of kitty's size, and kitty is asked not to reply."""
    image = png(noise=noise)
    keys, data = read_kitty(encode_image(image, "kitty", 80, 20) or "")

    assert data == image
    assert (keys["a"], keys["f"], keys["q"], keys["c"]) == ("T", "100", "2", "10")


def test_what_iterm2_reads_is_the_image() -> None:
    """The image is complete, and its size is correct."""
    image = png(noise=5000)
    keys, data = read_iterm(encode_image(image, "iterm2", 80, 20) or "")

    assert data == image
    assert keys == {
        "inline": "1",
        "size": str(len(image)),
        "width": "10",
        "preserveAspectRatio": "1",
    }


@pytest.mark.parametrize(
    ("size", "columns"),
    [((8, 8), 1), ((1, 1), 1), ((4000, 100), 80), ((800, 800), 40), ((100, 4000), 1)],
)
def test_a_figure_stays_within_its_bounds(size: tuple[int, int], columns: int) -> None:
    """No figure exceeds its bounds or is enlarged."""
    keys, _ = read_kitty(encode_image(png(*size), "kitty", 80, 20) or "")
    assert int(keys["c"]) == columns


@given(st.binary(max_size=64), st.booleans())
def test_what_is_no_png_is_not_sent(data: bytes, signed: bool) -> None:
    """Any bytes give either a valid image or nothing."""
    data = b"\x89PNG\r\n\x1a\n" + data if signed else data
    shown = encode_image(data, "kitty", 80, 20)
    assert shown is None or read_kitty(shown)[1] == data


def test_what_is_too_large_is_not_sent() -> None:
    """An image with too many bytes or pixels is shown only as a path."""
    assert encode_image(png(noise=MAX_FIGURE_BYTES), "kitty", 80, 20) is None
    assert encode_image(png(100_000, 100_000), "iterm2", 80, 20) is None
    assert encode_image(png(0, 5), "kitty", 80, 20) is None


def test_files_are_shown_and_named(tmp_path: Path) -> None:
    """Each saved figure is shown if possible, with its path below."""
    good, gone, other = tmp_path / "a.png", tmp_path / "gone.png", tmp_path / "b.svg"
    good.write_bytes(png())
    other.write_text("<svg/>")
    result = ToolResult(
        content="", files=[str(good), str(gone), str(other)], parts=[Part.from_bytes(png())]
    )

    image, *paths = figure_lines(result, "kitty")
    assert read_kitty(image)[1] == good.read_bytes()
    assert paths == [f"saved: {path}" for path in (good, gone, other)]
    assert list(figure_lines(result, None)) == paths


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_a_pipe_or_a_folder_is_no_figure(tmp_path: Path) -> None:
    """A pipe or a folder is not read; only its path is shown."""
    os.mkfifo(tmp_path / "pipe")
    names = [str(tmp_path / "pipe"), str(tmp_path), "/dev/zero", "a\0b", "\x1b]0;x\x07\n"]

    shown = list(figure_lines(ToolResult(content="", files=names), "iterm2"))
    assert len(shown) == 5
    assert all(line.isprintable() for line in shown)


def test_images_that_were_not_saved() -> None:
    """Unsaved images are shown if possible, otherwise counted."""
    gif = Part.from_bytes(b"GIF89a" + bytes(20))
    parts = [Part.from_bytes(png()), gif, Part.from_url("https://a.example/x.png")]
    result = ToolResult(content="", parts=[*parts, Part.from_bytes(b"text")])

    image, rest = figure_lines(result, "kitty")
    assert read_kitty(image)[1] == png()
    assert rest == "(2 images, not saved)"
    assert list(figure_lines(result, None)) == ["(3 images, not saved)"]
