"""Files that a person names while writing: `@src/main.py`, a picture that was dropped, a pipe.

Only what the person at the keyboard has typed or piped may come in here: a model that writes
`@/etc/passwd` must read nothing by it.
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
    "find_pasted",
    "quote_name",
    "read_piped",
    "take_pasted",
    "with_piped",
]

MOST_FILE = 400_000  # bytes of one text
MOST_ALL = 1_000_000  # of all texts of one message
MOST_PIPED = 4_000_000  # of a pipe
LONGEST_NAME = 4096
# How many lines, of how many characters, are looked at for dropped files: a long text is a text.
DROPPED_LINES, DROPPED_LINE = 50, 2 * LONGEST_NAME

# A backslash is read in one way alone, or a search could go through all of them again and again.
BARE = r"""(?:\\[\s"'\\]|[^\s"'\\]|\\(?![\s"'\\]))+"""
# A handle, an address of e-mail and `@@` are told by what stands before and behind the sign.
MENTION = re.compile(rf"""(?<![\w@.+/-])@(?:"([^"\n]+)"|'([^'\n]+)'|(?!@)({BARE}))""")
OPEN_MENTION = re.compile(rf"""(?<![\w@.+/-])@("[^"\n]*|'[^'\n]*|(?!@)(?:{BARE})?)$""")
TRAILING = ".,;:!?)]}>"
MOST_TRAILING = 8
ESCAPED = re.compile(r"""\\([\s"'\\])""")
MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# What stands in no text: control characters but for blanks, lines, pages, colours and bells.
BINARY = re.compile(rb"[\x00-\x06\x0e-\x1a\x1c-\x1f]")
PICTURES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a")
FENCE = re.compile("`{3,}")


class AttachError(AnabranchError):
    """A file that a person has named cannot be attached; the message says why."""


@dataclass(frozen=True, slots=True)
class Attached:
    """What a person has said, with the texts of files below it.

    `names` are the files as they were written; `parts` are those that are no text: images, PDFs.
    """

    text: str
    names: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()

    @property
    def message(self) -> Message:
        """All of it, as the user's message."""
        return Message(role="user", content=self.text, parts=list(self.parts))


# --- @name


def attach(said: str, folder: Path | None = None) -> Attached:
    """Add the texts of the files that are named after `@`, each once, in a block with its name.

    Names are relative to `folder`, by default the working folder; those with blanks are quoted, or
    have backslashes before them. What names no file, as `@someone`, stays text, and so does a
    folder. Pictures, PDFs and the like become parts. It reads files, so it may wait for a disk.
    Raises `AttachError` for what cannot be read, is too large, or is nothing that a model takes.
    """
    folder = Path.cwd() if folder is None else folder
    blocks: list[str] = []
    names: list[str] = []
    parts: list[Part] = []
    seen: set[Path] = set()
    room = MOST_ALL
    for name, path in _mentioned(said, folder):
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
            raise AttachError(f"{shown} is too much: all files have at most {MOST_ALL:,} bytes")
        blocks.append(_block(shown, decode(data, shown)))
    return Attached("\n\n".join([said, *blocks]), tuple(names), tuple(parts))


def _mentioned(said: str, folder: Path) -> Iterator[tuple[str, Path]]:
    for found in MENTION.finditer(said):
        double, single, bare = found.groups()
        name = double or single
        tries = [name] if name else _without_trailing(ESCAPED.sub(r"\1", bare))
        for each in tries:
            path = _path(each, folder)
            if path is not None and not path.is_dir():
                yield each, path
                break


def _without_trailing(name: str) -> Iterator[str]:
    """Give a name, and then without what may end a sentence."""
    yield name
    for _ in range(MOST_TRAILING):
        if not name or name[-1] not in TRAILING:
            return
        name = name[:-1]
        yield name


def _path(name: str, folder: Path) -> Path | None:
    """Return the path of what is there under a name."""
    if not name or len(name) > LONGEST_NAME:
        return None
    try:
        path = folder / Path(name).expanduser()
        return path if path.exists() else None
    except (OSError, ValueError, RuntimeError):  # too long, a zero in it, nobody's home
        return None


def _read(path: Path, name: str) -> bytes | Part:
    """Read a text, or what a message has as a part."""
    try:
        # Without waiting: a pipe that nobody writes to would never open.
        opened = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with open(opened, "rb") as file:
            if not stat.S_ISREG(os.fstat(opened).st_mode):
                raise AttachError(f"{name} is no plain file")
            data = file.read(MOST_FILE + 1)
        if data.startswith(b"%PDF-") or (BINARY.search(data) and not _is_marked(data)):
            if (part := Part.from_path(path)).kind == "text":
                raise AttachError(f"{name} is no text")
            return part
    except OSError as error:
        raise AttachError(f"{name} cannot be read: {error.strerror}") from None
    except ConfigurationError as error:
        raise AttachError(f"{name} cannot be attached: {in_line(str(error), 300)}") from None
    if len(data) > MOST_FILE:
        raise AttachError(f"{name} is too large: at most {MOST_FILE:,} bytes are attached")
    return data


def is_picture(data: bytes) -> bool:
    """Whether a file that begins so is a picture that models take."""
    return data.startswith(PICTURES) or (data[:4] == b"RIFF" and data[8:12] == b"WEBP")


def _block(name: str, text: str) -> str:
    fence = "`" * max(3, 1 + max(map(len, FENCE.findall(text)), default=0))
    end = "" if text.endswith("\n") or not text else "\n"
    return f"{name}:\n{fence}\n{text}{end}{fence}"


# --- text


def decode(data: bytes, name: str) -> str:
    """Return bytes as text: by their mark, as UTF-8, else as the Latin of old files.

    Raises `AttachError` for what is no text.
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
    """Read a pipe or a file to its end, as text; nothing at a terminal, or where there is none.

    Raises `AttachError` for what is no text, or too much.
    """
    if stream is None or stream.closed or stream.isatty():
        return ""
    data = bytearray()
    try:
        while piece := stream.read(65536):
            data += piece
            if len(data) > MOST_PIPED:
                raise AttachError(f"standard input is too large: at most {MOST_PIPED:,} bytes")
    except OSError as error:
        raise AttachError(f"standard input cannot be read: {error.strerror}") from None
    return decode(bytes(data), "standard input")


def with_piped(said: str, piped: str) -> str:
    """Return what is said with what was piped below it; without either, the other."""
    if not piped.strip():
        return said
    return f"{said}\n\n{_block('standard input', piped)}" if said.strip() else piped


# --- dropped files


def find_pasted(text: str) -> list[Path]:
    """Return the pictures whose paths stand alone on lines of `text`, as terminals drop them.

    A path is absolute: as it is, quoted, with backslashes before blanks, or as a `file://` URL;
    several may stand on a line. Only files that are there and are pictures count.
    """
    return take_pasted(text)[1]


def take_pasted(text: str) -> tuple[str, list[Path]]:
    """Return what is left of `text` without those lines, and the pictures that they name."""
    lines = text.split("\n")
    if len(lines) > DROPPED_LINES:
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
    """Return the pictures that a line names, none if anything else stands there."""
    if not line or len(line) > DROPPED_LINE:
        return []
    if (whole := _picture(line)) is not None:
        return [whole]
    try:
        names = shlex.split(line)
    except ValueError:  # a quotation mark without its other one
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
    """Return the name that is being written behind `@` at the end of a text.

    With it comes how many characters are written, from `@` on. None if there is none.
    """
    found = OPEN_MENTION.search(before[-LONGEST_NAME:])
    if found is None:
        return None
    written = found[1]
    name = written[1:] if written[:1] in ("'", '"') else ESCAPED.sub(r"\1", written)
    return name, len(found[0])


def quote_name(name: str) -> str:
    """Return a name as `attach` reads it behind `@`."""
    if re.fullmatch(r"[^\s\"'\\@][^\s\"'\\]*", name) and name[-1] not in TRAILING:
        return name
    for mark in '"', "'":
        if mark not in name:
            return f"{mark}{name}{mark}"
    return re.sub(r"([\s\"'\\])", r"\\\1", name)
