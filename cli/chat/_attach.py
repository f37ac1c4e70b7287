"""Attach files that a message names: `@src/main.py`, a dropped picture, a pipe.

Pass only text that the person typed or piped. Otherwise a model could read a file by writing
`@/etc/passwd`.
"""

from __future__ import annotations

import codecs
import os
import re
import shlex
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from ...commander import AnabranchError, ConfigurationError
from ...messages import Message, Part
from .._output import one_line

__all__ = [
    "AttachError",
    "AttachedMessage",
    "attach",
    "find_mention",
    "quote_name",
    "read_piped",
    "read_regular",
    "take_pasted",
    "with_piped",
]

MAX_FILE_BYTES = 400_000
MAX_MESSAGE_BYTES = 1_000_000  # of all texts of a message
MAX_PIPE_BYTES = 4_000_000
MAX_NAME_CHARS = 4096
# Longer texts and lines are not searched for dropped files.
MAX_DROPPED_LINES, MAX_DROPPED_LINE = 50, 2 * MAX_NAME_CHARS

# Each backslash matches only one alternative. Otherwise a search could take quadratic time.
BARE_NAME = r"""(?:\\[\s"'\\]|[^\s"'\\]|\\(?![\s"'\\]))+"""
# The characters around `@` exclude handles, e-mail addresses and `@@`.
MENTION = re.compile(rf"""(?<![\w@.+/-])@(?:"([^"\n]+)"|'([^'\n]+)'|(?!@)({BARE_NAME}))""")
OPEN_MENTION = re.compile(rf"""(?<![\w@.+/-])@("[^"\n]*|'[^'\n]*|(?!@)(?:{BARE_NAME})?)$""")
SENTENCE_ENDS = ".,;:!?)]}>"
MAX_SENTENCE_ENDS = 8
ESCAPED = re.compile(r"""\\([\s"'\\])""")
BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, since it begins with that mark
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# Control characters that texts do not contain. Blanks, line ends, page ends, colours and bells are
# allowed.
BINARY_BYTES = re.compile(rb"[\x00-\x06\x0e-\x1a\x1c-\x1f]")
PICTURE_STARTS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a")
FENCE = re.compile("`{3,}")


class AttachError(AnabranchError):
    """A file in a message cannot be attached."""


@dataclass(frozen=True, slots=True)
class AttachedMessage:
    """A message's text with the texts of its files below it.

    `names` are the files as the person wrote them. `parts` are images, PDFs and other files.
    """

    text: str
    names: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()

    @property
    def message(self) -> Message:
        """The message of the user."""
        return Message(role="user", content=self.text, parts=list(self.parts))


# --- @name


def attach(text: str, folder: Path | None = None) -> AttachedMessage:
    """Add the text of each file named after `@` in a block with its name, each file once.

    Names are relative to `folder`, by default the working folder. Names with blanks need quotes or
    backslashes. If there is no such file, as for `@someone`, or if it is a folder, the name stays
    text. Pictures, PDFs and similar files become parts. Blocks while it reads. Raises `AttachError`
    for a file that cannot be read, is too large, or has a type that models do not read.
    """
    folder = Path.cwd() if folder is None else folder
    blocks: list[str] = []
    names: list[str] = []
    parts: list[Part] = []
    seen: set[Path] = set()
    room = MAX_MESSAGE_BYTES
    for name, path in _mentioned(text, folder):
        if (real := path.resolve()) in seen:
            continue
        seen.add(real)
        shown_name = one_line(name, 300)
        names.append(name)
        data = _read(path, shown_name)
        if isinstance(data, Part):
            parts.append(data)
            continue
        room -= len(data)
        if room < 0:
            raise AttachError(
                f"{shown_name} is too large: all files may have {MAX_MESSAGE_BYTES:,} bytes"
            )
        blocks.append(_block(shown_name, decode(data, shown_name)))
    return AttachedMessage("\n\n".join([text, *blocks]), tuple(names), tuple(parts))


def _mentioned(text: str, folder: Path) -> Iterator[tuple[str, Path]]:
    for found in MENTION.finditer(text):
        double, single, bare = found.groups()
        name = double or single
        tries = [name] if name else _without_trailing(ESCAPED.sub(r"\1", bare))
        for each in tries:
            path = _path(each, folder)
            if path is not None and not path.is_dir():
                yield each, path
                break


def _without_trailing(name: str) -> Iterator[str]:
    """Yield a name, and the name without the punctuation at its end, one by one."""
    yield name
    for _ in range(MAX_SENTENCE_ENDS):
        if not name or name[-1] not in SENTENCE_ENDS:
            return
        name = name[:-1]
        yield name


def _path(name: str, folder: Path) -> Path | None:
    """Return the path of an existing file or folder, None if it does not exist."""
    if not name or len(name) > MAX_NAME_CHARS:
        return None
    try:
        path = folder / Path(name).expanduser()
        return path if path.exists() else None
    except (OSError, ValueError, RuntimeError):  # too long, a null byte, no home folder
        return None


def _read(path: Path, name: str) -> bytes | Part:
    """Return the bytes of a text file, or a part for a picture, a PDF or a similar file."""
    try:
        if (data := read_regular(path, MAX_FILE_BYTES)) is None:
            raise AttachError(f"{name} is not a regular file")
        if data.startswith(b"%PDF-") or (BINARY_BYTES.search(data) and not _is_marked(data)):
            if (part := Part.from_path(path)).kind == "text":
                raise AttachError(f"{name} is not text")
            return part
    except OSError as error:
        raise AttachError(f"{name} cannot be read: {error.strerror}") from None
    except ConfigurationError as error:
        raise AttachError(f"{name} cannot be attached: {one_line(str(error), 300)}") from None
    if len(data) > MAX_FILE_BYTES:
        raise AttachError(f"{name} is too large: the limit is {MAX_FILE_BYTES:,} bytes")
    return data


def read_regular(path: str | Path, limit: int) -> bytes | None:
    """Return the first `limit` + 1 bytes of a regular file, None for a pipe or a device."""
    # Without O_NONBLOCK, opening a named pipe without a writer would block.
    opened = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with open(opened, "rb") as file:
        return file.read(limit + 1) if stat.S_ISREG(os.fstat(opened).st_mode) else None


def is_picture(data: bytes) -> bool:
    """Return whether a file that begins with these bytes is a picture that models read."""
    return data.startswith(PICTURE_STARTS) or (data[:4] == b"RIFF" and data[8:12] == b"WEBP")


def _block(name: str, text: str) -> str:
    fence = "`" * max(3, 1 + max(map(len, FENCE.findall(text)), default=0))
    end = "" if text.endswith("\n") or not text else "\n"
    return f"{name}:\n{fence}\n{text}{end}{fence}"


# --- text


def decode(data: bytes, name: str) -> str:
    """Decode bytes by their byte order mark, as UTF-8, or as Windows-1252 or Latin-1.

    Raises `AttachError` if they are not text.
    """
    for mark, encoding in BYTE_ORDER_MARKS:
        if data.startswith(mark):
            try:
                return _lines(data.decode(encoding))
            except UnicodeDecodeError:
                raise AttachError(
                    f"{name} is not text: it begins like {encoding} but is not valid"
                ) from None
    if BINARY_BYTES.search(data):
        raise AttachError(f"{name} is not text")
    for encoding in "utf-8", "cp1252":
        try:
            return _lines(data.decode(encoding))
        except UnicodeDecodeError:
            continue
    return _lines(data.decode("latin-1"))


def _is_marked(data: bytes) -> bool:
    return data.startswith(tuple(mark for mark, _ in BYTE_ORDER_MARKS))


def _lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


# --- a pipe


def read_piped(stream: BinaryIO | None) -> str:
    """Read a pipe or a file to its end as text; return "" for a terminal or a closed stream.

    Raises `AttachError` if it is too large or not text.
    """
    if stream is None or stream.closed or stream.isatty():
        return ""
    data = bytearray()
    try:
        while piece := stream.read(65536):
            data += piece
            if len(data) > MAX_PIPE_BYTES:
                raise AttachError(
                    f"standard input is too large: the limit is {MAX_PIPE_BYTES:,} bytes"
                )
    except OSError as error:
        raise AttachError(f"standard input cannot be read: {error.strerror}") from None
    return decode(bytes(data), "standard input")


def with_piped(text: str, piped: str) -> str:
    """Return the person's text with the piped text below it, or the one that is not empty."""
    if not piped.strip():
        return text
    return f"{text}\n\n{_block('standard input', piped)}" if text.strip() else piped


# --- dropped files


def take_pasted(text: str) -> tuple[str, list[Path]]:
    """Remove lines that contain only paths of pictures. Terminals paste dropped files like this.

    Returns the other lines and the paths. A path must be absolute and name an existing picture. It
    may be bare, quoted, with backslashes before blanks, or a `file://` URL.
    """
    lines = text.split("\n")
    if len(lines) > MAX_DROPPED_LINES:
        return text, []
    rest: list[str] = []
    found: list[Path] = []
    for line in lines:
        paths = _dropped(line.strip())
        found += [path for path in paths if path not in found]
        if not paths:
            rest.append(line)
    return ("\n".join(rest).strip("\n"), found) if found else (text, [])


def _dropped(line: str) -> list[Path]:
    """Return the pictures that a line names, or none if the line contains anything else."""
    if not line or len(line) > MAX_DROPPED_LINE:
        return []
    if (path := _picture(line)) is not None:
        return [path]
    try:
        names = shlex.split(line)
    except ValueError:  # an open quotation
        return []
    paths = [_picture(name) for name in names]
    return [path for path in paths if path is not None] if None not in paths else []


def _picture(name: str) -> Path | None:
    if name.startswith("file:"):
        try:
            parts = urlsplit(name)
        except ValueError:
            return None
        if parts.netloc not in ("", "localhost"):
            return None
        name = unquote(parts.path)
    if not name.startswith(("/", "~/")) or name.startswith("//"):
        return None
    path = _path(name, Path("/"))
    if path is None or not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            return path if is_picture(file.read(16)) else None
    except OSError:
        return None


# --- writing names


def find_mention(before: str) -> tuple[str, int] | None:
    """Return the unfinished name after `@` at the end of a text, None if there is none.

    The number is the length of the mention in the text, including `@`.
    """
    found = OPEN_MENTION.search(before[-MAX_NAME_CHARS:])
    if found is None:
        return None
    written = found[1]
    name = written[1:] if written[:1] in ("'", '"') else ESCAPED.sub(r"\1", written)
    return name, len(found[0])


def quote_name(name: str) -> str:
    """Return a name with quotes or backslashes, so that `attach` reads it after `@`."""
    if re.fullmatch(r"[^\s\"'\\@][^\s\"'\\]*", name) and name[-1] not in SENTENCE_ENDS:
        return name
    for mark in '"', "'":
        if mark not in name:
            return f"{mark}{name}{mark}"
    return re.sub(r"([\s\"'\\])", r"\\\1", name)
