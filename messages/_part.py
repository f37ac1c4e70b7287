"""`Part`: an image or a file beside the text of a message, checked before it is sent."""

from __future__ import annotations

import base64
import binascii
import mimetypes
import os
import re
import stat
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias, cast
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from ..commander.errors import ConfigurationError
from .text import encodable

__all__ = ["LARGEST_PART", "Part", "PartKind"]

PartKind: TypeAlias = Literal["image", "audio", "file", "text"]
Detail: TypeAlias = Literal["low", "high", "original"]

LARGEST_PART = 20 * 2**20
"""The bytes that a part may have: the limit of hosted models for one image."""

ANY_IMAGE = "image/*"
MAX_URL_CHARS = 4096
MAX_NAME_CHARS = 100
_MIB = 2**20

_KIND_BY_TYPE: Mapping[str, PartKind] = {
    **dict.fromkeys(("image/png", "image/jpeg", "image/gif", "image/webp", ANY_IMAGE), "image"),
    **dict.fromkeys(("audio/wav", "audio/mpeg"), "audio"),
    "application/pdf": "file",
    **dict.fromkeys(
        (f"application/{name}" for name in ("json", "xml", "toml", "yaml", "javascript", "sql")),
        "text",
    ),
}
_ALIASES = {
    "image/jpg": "image/jpeg",
    "audio/mp3": "audio/mpeg",
    "audio/wave": "audio/wav",
    "audio/x-wav": "audio/wav",
    "application/octet-stream": "",
}
_TYPE = re.compile(r"[a-z0-9][a-z0-9.+-]{0,60}/[a-z0-9][a-z0-9.+-]{0,60}")
_SUPPORTED = "PNG, JPEG, GIF and WebP images, PDF, WAV and MP3, and text in UTF-8"


class Part(BaseModel):
    """An image or a file beside the text of a `Message`; immutable.

    Make it with `from_path`, `from_bytes` or `from_url`:

        Message(role="user", content="What is this?", parts=[Part.from_path("photo.png")])

    `url` is a `data:` URL with the bytes, or the `https:` address of an image, which the model's
    server reads. `name` is the file's name, never its path. Each new part is checked: its first
    bytes must match its type, and it must have from 1 byte to 20 MiB. `detail` asks the model to
    look more or less closely at an image; None lets the model decide. Its `repr` has no bytes.

    Every model can read a text file: it follows the text of the message. `Backend.takes` has the
    other kinds that a backend is known to take.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True
    )

    url: str
    name: str | None = None
    detail: Detail | None = None

    @classmethod
    def from_bytes(
        cls,
        data: bytes,
        media_type: str | None = None,
        *,
        name: str | None = None,
        detail: Detail | None = None,
    ) -> Part:
        """Make a part of bytes. Raises `ConfigurationError` for a type that no model takes.

        The first bytes determine the type. A `media_type` of another kind is refused, so that text
        is not sent as an image.
        """
        try:
            found = _checked_type(data, media_type or "")
        except ValueError as error:
            raise ConfigurationError(_named(name, error)) from None
        return cls._made(f"data:{found};base64,{base64.b64encode(data).decode()}", name, detail)

    @classmethod
    def from_path(cls, path: str | os.PathLike[str], *, detail: Detail | None = None) -> Part:
        """Read a file. The part has its name, but not its path.

        Raises `OSError` if the file cannot be read. Raises `ConfigurationError` for a pipe, a
        device or a folder, without waiting for it, and for a file that is empty, too large, changes
        during the read or does not match its suffix. Never pass a path that a model chose.
        """
        try:
            name = Path(path).name
            data = _read_file(path)
        except ValueError as error:
            raise ConfigurationError(_named(os.fsdecode(path), error)) from None
        guessed = mimetypes.guess_type(name)[0] or ""
        media_type = guessed if _kind_of(guessed) else None
        return cls.from_bytes(data, media_type, name=name, detail=detail)

    @classmethod
    def from_url(cls, url: str, *, name: str | None = None, detail: Detail | None = None) -> Part:
        """Make a part of a `data:` URL, or of the `https:` address of an image.

        The address is not read here. Raises `ConfigurationError` for any other URL, for one with a
        user or a password, and for data that do not match their type.
        """
        return cls._made(url, name, detail)

    @classmethod
    def _made(cls, url: str, name: str | None, detail: Detail | None) -> Part:
        try:
            part = cls(url=url, name=name, detail=detail)
        except ValidationError as error:
            what = error.errors(include_url=False, include_input=False)[0]["msg"]
            raise ConfigurationError(_named(name, what.removeprefix("Value error, "))) from None
        if detail is not None and part.kind != "image":
            raise ConfigurationError(
                _named(name, "detail= must be None for a part that is not an image")
            )
        return part

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        if url[:5].lower() == "data:":
            return _checked_data(url)
        return _checked_address(url)

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str | None) -> str | None:
        last = re.split(r"[/\\]", encodable(name or ""))[-1]
        plain = "".join(each for each in last if each.isprintable()).strip(' "<>')
        return plain[-MAX_NAME_CHARS:] or None

    @property
    def media_type(self) -> str:
        """The media type, such as `image/png`; `image/*` for an address without a known suffix."""
        if self.url.startswith("data:"):
            return self.url[5:].partition(";")[0]
        guessed = mimetypes.guess_type(urlsplit(self.url).path)[0] or ""
        return guessed if _kind_of(guessed) == "image" else ANY_IMAGE

    @property
    def kind(self) -> PartKind:
        """The kind of input: "image", "audio", "file" (a PDF) or "text"."""
        return cast("PartKind", _kind_of(self.media_type))

    @property
    def needs(self) -> frozenset[str]:
        """The entries of `Backend.takes` that it needs: its kind, and "url"; none for text."""
        if self.kind == "text":
            return frozenset()
        return frozenset([self.kind] if self.url.startswith("data:") else [self.kind, "url"])

    @property
    def digest(self) -> str:
        """The SHA-256 digest of its `url`."""
        return sha256(self.url.encode()).hexdigest()

    @property
    def data(self) -> bytes | None:
        """Its bytes, None for an address."""
        return base64.b64decode(self._base64) if self.url.startswith("data:") else None

    @property
    def size(self) -> int | None:
        """The number of its bytes, None for an address."""
        if not self.url.startswith("data:"):
            return None
        text = self._base64
        return len(text) // 4 * 3 - text.count("=", -2)

    @property
    def about(self) -> str:
        """Its name, type and size, for people and models that cannot see it."""
        where = self.media_type if self.size is None else f"{self.media_type}, {_bytes(self.size)}"
        return f"{self.name} ({where})" if self.name else where

    @property
    def text(self) -> str:
        """The text of a text file with its name, as a model reads it; else an empty text."""
        if self.kind != "text":
            return ""
        said = (self.data or b"").decode().removeprefix("\ufeff")
        name = ' name="' + self.name.replace('"', "'") + '"' if self.name else ""
        return f"<file{name}>\n{said}\n</file>"

    def estimate_tokens(self) -> int:
        """Estimate its tokens: about a thousand for an image."""
        size = self.size or 0
        return size // 4 + 1 if self.kind == "text" else 1000 + size // 100 * (self.kind != "image")

    def to_wire(self) -> dict[str, Any]:
        """Return the part of a `content` on the chat-completions wire."""
        if self.kind == "image":
            detail = {} if self.detail is None else {"detail": self.detail}
            return {"type": "image_url", "image_url": {"url": self.url, **detail}}
        if self.kind == "audio":
            sort = {"audio/wav": "wav", "audio/mpeg": "mp3"}[self.media_type]
            return {"type": "input_audio", "input_audio": {"data": self._base64, "format": sort}}
        name = self.name or ("file.pdf" if self.kind == "file" else "file.txt")
        return {"type": "file", "file": {"filename": name, "file_data": self.url}}

    def to_record(self) -> dict[str, Any]:
        """Return `to_wire()` with the name; `from_wire` reads an equal part from it."""
        return {**self.to_wire(), "name": self.name}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Part | None:
        """Read a part of a `content`; return None for text and for unknown types.

        Raises `KeyError`, `TypeError`, `AttributeError` or `ValueError` for an invalid part.
        """
        detail = None
        match wire.get("type"):
            case "image_url":
                url, name = wire["image_url"]["url"], None
                detail = wire["image_url"].get("detail")
            case "file":
                if "file_data" not in wire["file"]:
                    raise ValueError("a file must have its file_data, a data: URL")
                url, name = wire["file"]["file_data"], wire["file"].get("filename")
            case "input_audio":
                audio = wire["input_audio"]
                sort = {"wav": "audio/wav", "mp3": "audio/mpeg"}.get(audio["format"])
                if sort is None:
                    raise ValueError("audio must be wav or mp3")
                url, name = f"data:{sort};base64,{audio['data']}", None
            case _:
                return None
        detail = None if detail == "auto" else detail
        return cls(url=url, name=wire.get("name", name), detail=detail)

    @property
    def _base64(self) -> str:
        return self.url.partition(",")[2]

    def __repr_args__(self) -> list[tuple[str | None, Any]]:
        where = urlsplit(self.url).hostname if self.size is None else _bytes(self.size)
        detail = [] if self.detail is None else [("detail", self.detail)]
        return [("media_type", self.media_type), ("name", self.name), *detail, (None, where)]


def _named(name: str | None, why: object) -> str:
    return f"{os.path.basename(name)!r:.200}: {why}" if name else f"an image or a file: {why}"


def _bytes(size: int) -> str:
    if size < 1000:
        return f"{size} bytes"
    return f"{size / 1000:.0f} kB" if size < 1_000_000 else f"{size / 1_000_000:.1f} MB"


def _kind_of(media_type: str) -> PartKind | None:
    if (kind := _KIND_BY_TYPE.get(media_type)) is not None:
        return kind
    # Models read SVG as text.
    is_text = media_type.startswith("text/") or media_type.endswith(("+json", "+xml"))
    return "text" if is_text else None


def _found_type(data: bytes) -> str | None:
    """Return the media type by the first bytes; None for a type that no model takes."""
    for mark, media_type in (
        (b"\x89PNG\r\n\x1a\n", "image/png"),
        (b"\xff\xd8\xff", "image/jpeg"),
        (b"GIF87a", "image/gif"),
        (b"GIF89a", "image/gif"),
        (b"%PDF-", "application/pdf"),
        (b"ID3", "audio/mpeg"),
    ):
        if data.startswith(mark):
            return media_type
    if data[:4] == b"RIFF" and data[8:12] in (b"WEBP", b"WAVE"):
        return "image/webp" if data[8:12] == b"WEBP" else "audio/wav"
    if data[:1] == b"\xff" and len(data) > 1 and data[1] & 0xE6 == 0xE2:  # a frame of layer III
        return "audio/mpeg"
    try:
        data.decode()
    except UnicodeDecodeError:
        return None
    return None if b"\0" in data else "text/plain"


def _too_large(size: int | None = None) -> ValueError:
    what = "it" if size is None else f"it has {size / _MIB:.1f} MiB and"
    return ValueError(
        f"{what} is larger than {LARGEST_PART // _MIB} MiB, the limit of models: make it smaller"
    )


def _checked_type(data: bytes, declared: str) -> str:
    """Return the media type of bytes; raise `ValueError` if its kind is not the declared one."""
    if not isinstance(data, bytes):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"its data must be bytes, not {type(data).__name__}")
    if not isinstance(declared, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"its media type must be a string, not {type(declared).__name__}")
    declared = declared.partition(";")[0].strip().lower()  # without parameters such as charset
    declared = _ALIASES.get(declared, declared)
    if not data:
        raise ValueError("it is empty")
    if len(data) > LARGEST_PART:
        raise _too_large(len(data))
    found = _found_type(data)
    if found is None:
        raise ValueError(f"no model takes this type. Use {_SUPPORTED}")
    if not declared or (declared == ANY_IMAGE and _kind_of(found) == "image"):
        return found
    if not _TYPE.fullmatch(declared) or _kind_of(declared) is None:
        raise ValueError(f"no model takes {declared!r:.100}. Use {_SUPPORTED}")
    if _kind_of(declared) != _kind_of(found):
        raise ValueError(f"its type is {declared}, but its bytes are {found}")
    return declared if found == "text/plain" else found


def _checked_data(url: str) -> str:
    """Return a `data:` URL with the type of its bytes; raise `ValueError` for an invalid one."""
    head, comma, text = url[5:].partition(",")
    declared, *parameters = head.split(";")
    if not comma or parameters[-1:] != ["base64"]:
        raise ValueError("a data: URL must be data:TYPE;base64,BYTES")
    if len(text) > (LARGEST_PART + 2) // 3 * 4:
        raise _too_large()
    try:
        data = binascii.a2b_base64(text, strict_mode=True)
    except ValueError as error:  # `binascii.Error` is one
        raise ValueError(f"its base64 is invalid: {error}") from None
    plain = f"data:{_checked_type(data, declared)};base64,"
    return url if url.startswith(plain) else plain + text


def _checked_address(url: str) -> str:
    """Return the address of an image; raise `ValueError` unless it is a plain `https:` URL."""
    if len(url) > MAX_URL_CHARS:
        raise ValueError(f"its address is longer than {MAX_URL_CHARS} characters")
    if not url.isascii() or any(not "!" <= each <= "~" for each in url):
        raise ValueError(
            "an address must not have spaces, control characters or letters beyond ASCII"
        )
    where = urlsplit(url)
    _ = where.port  # raises ValueError if it is invalid
    if where.scheme != "https" or not where.hostname:
        raise ValueError(
            "an address must begin with https://. Read the file yourself, and pass its bytes"
        )
    if "@" in where.netloc:
        raise ValueError("an address must not have a user or a password")
    known = mimetypes.guess_type(where.path)[0]
    if known is not None and _kind_of(known) in ("audio", "file"):
        raise ValueError("only an image may be an address: pass the bytes of the file")
    return url


def _read_file(path: str | os.PathLike[str]) -> bytes:
    """Return the bytes of a regular file; raise `ValueError` for others without waiting."""
    _require_file(os.stat(path))  # before `open`, which can have an effect on a device
    flags = os.O_RDONLY
    for name in ("O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY", "O_BINARY"):
        flags |= getattr(os, name, 0)
    with open(os.open(path, flags), "rb", buffering=0) as file:
        before = os.fstat(file.fileno())
        _require_file(before)
        if before.st_size > LARGEST_PART:
            raise _too_large(before.st_size)
        data = b""
        while len(data) <= LARGEST_PART and (more := file.read(LARGEST_PART + 1 - len(data))):
            data += more
        after = os.fstat(file.fileno())
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise ValueError("it changed during the read: try again")
    return data


def _require_file(found: os.stat_result) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise ValueError("it is a folder: name a file in it")
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("it is a pipe or a device: name a regular file")
