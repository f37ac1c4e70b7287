"""Files that the person names in a message: `@src/main.py`, a dropped picture, a pipe.

Only pass text that the person at the keyboard typed or piped: a model that writes `@/etc/passwd`
must not read the file by it.
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
from .._terminal import in_line

__all__ = [
    "AttachError",
    "Attached",
    "attach",
    "find_mention",
    "quote_name",
    "read_piped",
    "take_pasted",
    "with_piped",
]

MAX_FILE_BYTES = 400_000
MAX_MESSAGE_BYTES = 1_000_000  # of all texts of a message
MAX_PIPE_BYTES = 4_000_000
MAX_NAME = 4096
# Only texts of so few lines, and lines of so few characters, are searched for dropped files.
MAX_DROPPED_LINES, MAX_DROPPED_LINE = 50, 2 * MAX_NAME

# Each backslash has only one reading, or a search could take quadratic time.
BARE = r"""(?:\\[\s"'\\]|[^\s"'\\]|\\(?![\s"'\\]))+"""
# The characters before and after the sign exclude handles, e-mail addresses and `@@`.
MENTION = re.compile(rf"""(?<![\w@.+/-])@(?:"([^"\n]+)"|'([^'\n]+)'|(?!@)({BARE}))""")
OPEN_MENTION = re.compile(rf"""(?<![\w@.+/-])@("[^"\n]*|'[^'\n]*|(?!@)(?:{BARE})?)$""")
TRAILING = ".,;:!?)]}>"
MAX_TRAILING = 8
ESCAPED = re.compile(r"""\\([\s"'\\])""")
MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, since it begins with that mark
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# Not in a text: control characters other than blanks, line and page ends, colours and bells.
BINARY = re.compile(rb"[\x00-\x06\x0e-\x1a\x1c-\x1f]")
PICTURES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a")
FENCE = re.compile("`{3,}")


class AttachError(AnabranchError):
    """A file that the person named cannot be attached."""


@dataclass(frozen=True, slots=True)
class Attached:
    """The person's text with the texts of files below it.

    `names` are the files as the person wrote them; `parts` are images, PDFs and the like.
    """

    text: str
    names: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()

    @property
    def message(self) -> Message:
        """The same as a message of the user."""
        return Message(role="user", content=self.text, parts=list(self.parts))


# --- @name


def attach(text: str, folder: Path | None = None) -> Attached:
    """Add the text of each file that is named after `@`, once, in a block with its name.

    Names are relative to `folder`, by default the working folder; names with blanks are quoted or
    have backslashes. A name without a file, as in `@someone`, and the name of a folder stay text.
    Pictures, PDFs and the like become parts. Waits for the disk. Raises `AttachError` for a file
    that cannot be read, is too large, or is of a type that no model reads.
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
        shown = in_line(name, 300)
        names.append(name)
        data = _read(path, shown)
        if isinstance(data, Part):
            parts.append(data)
            continue
        room -= len(data)
        if room < 0:
            raise AttachError(
                f"{shown} is too much: all files have at most {MAX_MESSAGE_BYTES:,} bytes"
            )
        blocks.append(_block(shown, decode(data, shown)))
    return Attached("\n\n".join([text, *blocks]), tuple(names), tuple(parts))


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
    """Yield a name, and the name without the characters that can end a sentence."""
    yield name
    for _ in range(MAX_TRAILING):
        if not name or name[-1] not in TRAILING:
            return
        name = name[:-1]
        yield name


def _path(name: str, folder: Path) -> Path | None:
    """Return the path of an existing file or folder, None if there is none."""
    if not name or len(name) > MAX_NAME:
        return None
    try:
        path = folder / Path(name).expanduser()
        return path if path.exists() else None
    except (OSError, ValueError, RuntimeError):  # too long, a zero byte, no home folder
        return None


def _read(path: Path, name: str) -> bytes | Part:
    """Return the bytes of a text, or a part for a picture, a PDF and the like."""
    try:
        # A named pipe without a writer would block.
        opened = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with open(opened, "rb") as file:
            if not stat.S_ISREG(os.fstat(opened).st_mode):
                raise AttachError(f"{name} is no plain file")
            data = file.read(MAX_FILE_BYTES + 1)
        if data.startswith(b"%PDF-") or (BINARY.search(data) and not _is_marked(data)):
            if (part := Part.from_path(path)).kind == "text":
                raise AttachError(f"{name} is no text")
            return part
    except OSError as error:
        raise AttachError(f"{name} cannot be read: {error.strerror}") from None
    except ConfigurationError as error:
        raise AttachError(f"{name} cannot be attached: {in_line(str(error), 300)}") from None
    if len(data) > MAX_FILE_BYTES:
        raise AttachError(f"{name} is too large: at most {MAX_FILE_BYTES:,} bytes are attached")
    return data


def is_picture(data: bytes) -> bool:
    """Say whether a file that begins with these bytes is a picture that models read."""
    return data.startswith(PICTURES) or (data[:4] == b"RIFF" and data[8:12] == b"WEBP")


def _block(name: str, text: str) -> str:
    fence = "`" * max(3, 1 + max(map(len, FENCE.findall(text)), default=0))
    end = "" if text.endswith("\n") or not text else "\n"
    return f"{name}:\n{fence}\n{text}{end}{fence}"


# --- text


def decode(data: bytes, name: str) -> str:
    """Decode bytes by their byte order mark, as UTF-8, or as the Latin of old files.

    Raises `AttachError` if they are not text.
    """
    for mark, encoding in MARKS:
        if data.startswith(mark):
            try:
                return _lines(data.decode(encoding))
            except UnicodeDecodeError:
                raise AttachError(f"{name} is no text: it begins as {encoding}") from None
    if BINARY.search(data):
        raise AttachError(f"{name} is no text")
    for encoding in "utf-8", "cp1252":
        try:
            return _lines(data.decode(encoding))
        except UnicodeDecodeError:
            continue
    return _lines(data.decode("latin-1"))


def _is_marked(data: bytes) -> bool:
    return data.startswith(tuple(mark for mark, _ in MARKS))


def _lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


# --- a pipe


def read_piped(stream: BinaryIO | None) -> str:
    """Read a pipe or a file to its end, as text; "" for a terminal and for a closed stream.

    Raises `AttachError` if it is too large or not text.
    """
    if stream is None or stream.closed or stream.isatty():
        return ""
    data = bytearray()
    try:
        while piece := stream.read(65536):
            data += piece
            if len(data) > MAX_PIPE_BYTES:
                raise AttachError(f"standard input is too large: at most {MAX_PIPE_BYTES:,} bytes")
    except OSError as error:
        raise AttachError(f"standard input cannot be read: {error.strerror}") from None
    return decode(bytes(data), "standard input")


def with_piped(text: str, piped: str) -> str:
    """Return the person's text with the piped text below it, or the only one of them."""
    if not piped.strip():
        return text
    return f"{text}\n\n{_block('standard input', piped)}" if text.strip() else piped


# --- dropped files


def take_pasted(text: str) -> tuple[str, list[Path]]:
    """Remove lines that contain only paths of pictures, as terminals paste dropped files.

    Returns the other lines, and the paths. A path is absolute: as it is, quoted, with backslashes
    before blanks, or as a `file://` URL. Only existing pictures count.
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
    """Return the pictures that a line names; none if it contains anything else."""
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

    The number is that of its characters in the text, including `@`.
    """
    found = OPEN_MENTION.search(before[-MAX_NAME:])
    if found is None:
        return None
    written = found[1]
    name = written[1:] if written[:1] in ("'", '"') else ESCAPED.sub(r"\1", written)
    return name, len(found[0])


def quote_name(name: str) -> str:
    """Return a name in the form in which `attach` reads it after `@`."""
    if re.fullmatch(r"[^\s\"'\\@][^\s\"'\\]*", name) and name[-1] not in TRAILING:
        return name
    for mark in '"', "'":
        if mark not in name:
            return f"{mark}{name}{mark}"
    return re.sub(r"([\s\"'\\])", r"\\\1", name)
