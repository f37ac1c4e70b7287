"""Remove API keys from text, in plain form and encoded."""

from __future__ import annotations

import base64
import html
import json
import logging
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html.entities import html5
from typing import Any, TypeAlias, TypeVar, cast
from urllib.parse import quote
from weakref import WeakSet

from pydantic import SecretStr

from ..commander.errors import AnabranchError, ConfigurationError

__all__ = [
    "Redact",
    "Redactor",
    "as_secret",
    "filter_library_logs",
    "filter_loggers",
    "redact_keys",
    "redact_value",
]

_E = TypeVar("_E", bound=AnabranchError)
Redact: TypeAlias = Callable[[str], str]

_MIN_KEY_CHARS = 4  # a shorter "key" (a placeholder such as "x") would only spoil the text
_PIECE_CHARS = 8  # each part of a key with this many characters is removed
_PROSE_PIECE_CHARS = 12  # longer in prose, because many keys begin with the same words
_PLAIN_WORDS = re.compile(r"(?:(?:[A-Z]?[a-z]+|[A-Z]+)(?:[ _-](?!$)|$))+|[0-9]{1,7}")
_AUTH_SCHEME = re.compile(
    r"^(?:bearer|basic|token|key) +", re.IGNORECASE
)  # may be pasted with the key
_MAX_WORD_CHARS = 15  # a longer text is never an ordinary word
_MASK = "***"


def as_secret(key: str | SecretStr | None) -> SecretStr | None:
    """Wrap a key, without blanks around it, so that its repr and str are stars.

    Returns None for an empty key. Raises `ConfigurationError` for characters that a header cannot
    hold.
    """
    if key is None:
        return None
    text = key.get_secret_value() if isinstance(key, SecretStr) else key
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - users' own
        raise ConfigurationError(f"the key must be text, not {type(text).__name__}")
    text = text.strip()
    if not (text.isascii() and text.isprintable()):
        raise ConfigurationError(
            "the key has characters that an HTTP header cannot hold; copy it again"
        )
    return SecretStr(text) if text else None


class Redactor:
    """Replaces keys in text with `***`, whether a program, a person or a model wrote the text.

    It finds a key in plain form, with blanks inside, and escaped for JSON, URLs, HTML or Python,
    also several times over. It finds a key in base64 or hexadecimal digits, and each part of a key
    that has eight characters. Two kinds of keys are exceptions, because removing them would damage
    ordinary text. An ordinary word (a few words of at most 15 characters together, or up to seven
    digits) is removed by `text`, but only as a whole, and not by `prose`. A key of fewer than four
    characters is never removed.
    """

    __slots__ = ("__weakref__", "_all", "_no_words")

    def __init__(self, *keys: SecretStr | None) -> None:
        texts = {key.get_secret_value().strip() for key in keys if key}
        texts |= {_AUTH_SCHEME.sub("", text) for text in texts}
        known = sorted(text for text in texts if len(text) >= _MIN_KEY_CHARS)
        self._all = _KeyPatterns(known, _PIECE_CHARS)
        self._no_words = _KeyPatterns([k for k in known if not _is_word(k)], _PROSE_PIECE_CHARS)

    def __repr__(self) -> str:
        return "Redactor()"

    def text(self, text: str) -> str:
        """Return a text of a server, a library or an error, with `***` for each key."""
        return self._all.redact(text)

    def prose(self, text: str) -> str:
        """Return a text of people and models, with `***` for each key that is not a word."""
        return self._no_words.redact(text)

    def error(self, error: _E) -> _E:
        """Return `error` without keys in its fields, and without its cause and traceback."""
        error.args = redact_value(error.args, self.text)
        for name, value in vars(error).items():
            if isinstance(value, str | list | tuple | dict):
                setattr(error, name, redact_value(value, self.text))
        error.__cause__ = error.__context__ = None
        return error.with_traceback(None)


def redact_value(value: Any, cut: Redact) -> Any:
    """Return a JSON value with `cut` applied to all text in it."""
    match value:
        case str():
            return cut(value)
        case list() | tuple():
            items = [redact_value(each, cut) for each in cast("Iterable[Any]", value)]
            return items if isinstance(value, list) else tuple(items)
        case dict():
            fields = cast("Mapping[Any, Any]", value)
            return {
                redact_value(name, cut): redact_value(each, cut) for name, each in fields.items()
            }
        case _:
            return value


def _is_word(key: str) -> bool:
    return len(key) <= _MAX_WORD_CHARS and _PLAIN_WORDS.fullmatch(key) is not None


@dataclass(frozen=True, repr=False)
class _KeyPatterns:
    """The forms of the keys to search for.

    The first search computes them, because most programs never search.
    """

    keys: Sequence[str]
    piece: int

    def redact(self, text: str) -> str:
        if not self.keys:
            return text
        literals, decoded, pieces = self._forms
        for form in literals:
            text = text.replace(form, _MASK)
        if not self._may_contain(text):
            return text
        unescaped = _unescape(text)
        plain, size = unescaped.text, self.piece
        spans = [m.span() for form in decoded for m in re.finditer(re.escape(form), plain)]
        starts = range(len(plain) - size + 1 if pieces else 0)
        spans += [(at, at + size) for at in starts if plain[at : at + size] in pieces]
        joined: list[tuple[int, int]] = []  # sorted, without overlap
        for begin, end in sorted(spans):
            if joined and begin <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
            else:
                joined.append((begin, end))
        parts: list[str] = []
        at = 0
        for begin, end in joined:
            start = max(at, unescaped.starts[begin])
            parts += (text[at:start], _MASK)
            at = unescaped.ends[end - 1]
        return "".join((*parts, text[at:])) if parts else text

    def _may_contain(self, text: str) -> bool:
        """Return False for nearly every text without a key, in a tenth of the time of a search."""
        _, decoded, _ = self._forms
        for _ in range(_MAX_ESCAPE_LAYERS):
            text = _BLANK_RUN.sub("", text)
            if not _ESCAPE_MARKS.search(text):
                break
            text = _ESCAPE_OR_BLANKS.sub(_decode_escape, text)
        size = self.piece // 2
        # The windows are so close together that each piece of a key in `text` contains one.
        starts = range(0, len(text) - size + 1, self.piece - size + 1)
        return any(form in text for form in decoded) or not self._half_pieces.isdisjoint(
            [text[at : at + size] for at in starts]
        )

    @cached_property
    def _half_pieces(self) -> set[str]:
        """All halves of pieces."""
        size = self.piece // 2
        return {p[at : at + size] for p in self._forms[2] for at in range(self.piece - size + 1)}

    @cached_property
    def _forms(self) -> tuple[list[str], list[str], set[str]]:
        """Return three collections to search for.

        The first has the keys as common libraries escape them. The others are for text without
        escapes: complete keys, and pieces of the keys that are not ordinary words.
        """
        literals, decoded, pieces = set[str](), set[str](), set[str]()
        for key in self.keys:
            written = json.dumps(key)[1:-1]
            literals |= {key, written, written.replace("/", "\\/"), html.escape(key)}
            literals |= {quote(key, safe, errors="surrogatepass") for safe in ("", "/")}
            literals |= {repr(f.encode("utf-8", "surrogatepass"))[2:-1] for f in (key, written)}
            # In base64 the text around a key changes its first and last digits, and its alignment
            # the rest: these are the stable middles for the three alignments.
            raw = key.encode("utf-8", "surrogatepass")
            encoded = {raw.hex(), raw.hex().upper()}
            for before in range(3):
                whole = base64.b64encode(bytes(before) + raw).decode().rstrip("=")
                inner = whole[-(-before * 4 // 3) : (before + len(raw)) * 4 // 3]
                encoded |= {inner, inner.translate({43: "-", 47: "_"})}
            decoded |= {
                _unescape(key).text,
                *(form for form in encoded if len(form) >= _MIN_KEY_CHARS),
            }
            for form in encoded if _is_word(key) else (key, *encoded):
                plain, size = _unescape(form).text, self.piece
                pieces |= {plain[i : i + size] for i in range(len(plain) - size + 1)}
        return sorted(literals, key=len, reverse=True), [each for each in decoded if each], pieces


@dataclass(frozen=True, slots=True)
class _Unescaped:
    """A text without escapes and blanks, and the span of each character in the original."""

    text: str
    starts: list[int] | range
    ends: list[int] | range


# An escape that stands for a character, or blanks. A text that was escaped twice is decoded twice;
# `%25` and `&amp;` in front of an escape are decoded with it.
_ESCAPE_OR_BLANKS = re.compile(
    r"%(?:25)*(?P<percent>[0-9a-fA-F]{2})"
    r"|\\+(?:u(?P<u>[0-9a-fA-F]{4})|x(?P<x>[0-9a-fA-F]{2}))?"
    r"|&(?:amp;)*(?:\#(?P<decimal>[0-9]{1,7})|\#[xX](?P<hex>[0-9a-fA-F]{1,6})|(?P<name>\w{2,31}));"
    "|[\\s\u00ad\u200b-\u200d\u2060\ufeff]+"
)
_BLANK_RUN = re.compile("[\\s\u00ad\u200b-\u200d\u2060\ufeff]+")
_ESCAPE_MARKS = re.compile(r"[%\\&]")
_MAX_ESCAPE_LAYERS = 3  # escapes inside escapes


def _decode_escape(escape: re.Match[str]) -> str:
    """Return the character of an escape; nothing for blanks and single backslashes."""
    percent, u, x, decimal, hexadecimal, name = escape.groups()
    if name:
        return html5.get(name + ";", escape[0])
    if decimal:
        return chr(min(int(decimal), 0x10FFFF))
    digits = percent or u or x or hexadecimal
    return chr(min(int(digits, 16), 0x10FFFF)) if digits else ""


def _unescape(text: str) -> _Unescaped:
    plain = _Unescaped(text, range(len(text)), range(1, len(text) + 1))
    for _ in range(_MAX_ESCAPE_LAYERS):
        if not _ESCAPE_OR_BLANKS.search(plain.text):
            break
        written, parts, starts, ends = plain.text, list[str](), list[int](), list[int]()
        at = 0
        for escape in _ESCAPE_OR_BLANKS.finditer(written):
            decoded, (begin, end) = _decode_escape(escape), escape.span()
            parts += (written[at:begin], decoded)
            starts += (*plain.starts[at:begin], *[plain.starts[begin]] * len(decoded))
            ends += (*plain.ends[at:begin], *[plain.ends[end - 1]] * len(decoded))
            at = end
        parts.append(written[at:])
        starts += plain.starts[at:]
        ends += plain.ends[at:]
        plain = _Unescaped("".join(parts), starts, ends)
    return plain


class _LogFilter(logging.Filter):
    """Removes the keys of all redactors in use from a library's log records."""

    def __init__(self) -> None:
        super().__init__()
        self.redactors: WeakSet[Redactor] = WeakSet()

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            text = message = record.getMessage()
        except Exception:  # noqa: BLE001 - a record that cannot be written: logging says so itself
            return True
        for redactor in tuple(self.redactors):
            text = redactor.text(text)
        if text != message:
            record.msg, record.args = text, ()
        return True


_log_filter = _LogFilter()
# The redactors that were made last, each key once.
_recent_redactors: deque[Redactor] = deque(maxlen=16)

# Each logger needs the filter, because a filter does not apply to records of loggers below.
_HTTP_LOGGERS = (
    "httpx2",  # the SDK's transport, which logs full addresses and reasons of statuses
    "aiohttp.client",
    "aiohttp.internal",  # cookies that it cannot read
)


def redact_keys(text: str) -> str:
    """Return `text` with stars for each key of any backend in this process.

    This includes backends that were freed recently, because their texts may still be on the way to
    a file.
    """
    while True:
        try:
            redactors = {*_log_filter.redactors, *_recent_redactors}
        except RuntimeError:  # another thread added one during the iteration
            continue
        break
    for redactor in redactors:
        text = redactor.prose(text)
    return text


def filter_loggers(package: str) -> None:
    """Remove keys from a package's log, for all loggers that it has now."""
    for name in tuple(logging.root.manager.loggerDict):
        if name == package or name.startswith(f"{package}."):
            logging.getLogger(name).addFilter(_log_filter)


def filter_library_logs(redactor: Redactor) -> None:
    """Remove the redactor's keys from the logs of HTTP libraries, as long as it exists."""
    for name in _HTTP_LOGGERS:
        logging.getLogger(name).addFilter(_log_filter)
    _log_filter.redactors.add(redactor)
    if all(redactor._all.keys != each._all.keys for each in _recent_redactors):
        _recent_redactors.append(redactor)
