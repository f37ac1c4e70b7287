"""Keys that never show: every form in which one may be written, and how it is cut out."""

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
    "Cut",
    "Redactor",
    "as_secret",
    "clean",
    "filter_loggers",
    "keep_from_logs",
    "redact_keys",
]

_E = TypeVar("_E", bound=AnabranchError)
Cut: TypeAlias = Callable[[str], str]

_SHORTEST = 4  # a shorter "key" (a placeholder such as "x") would only spoil the text
_PIECE = 8  # so many characters of a key in a row are a piece of it,
_PIECE_OF_PROSE = 12  # in prose so many: many keys begin alike, and it may speak of that
_WORD = re.compile(r"(?:(?:[A-Z]?[a-z]+|[A-Z]+)(?:[ _-](?!$)|$))+|[0-9]{1,7}")
_SCHEME = re.compile(r"^(?:bearer|basic|token|key) +", re.IGNORECASE)  # some give it with the key
_LONGEST_WORD = 15  # letters in longer ones are a key
_STARS = "***"


def as_secret(key: str | SecretStr | None) -> SecretStr | None:
    """Wrap a key, so that its repr and str are stars; blanks around it are dropped.

    A blank key is none. Raises `ConfigurationError` for what no header can hold.
    """
    if key is None:
        return None
    text = key.get_secret_value() if isinstance(key, SecretStr) else key
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - users' own
        raise ConfigurationError(f"the key is text, not {type(text).__name__}")
    text = text.strip()
    if not (text.isascii() and text.isprintable()):
        raise ConfigurationError("the key holds characters that no key has: was it pasted whole?")
    return SecretStr(text) if text else None


class Redactor:
    """Takes keys out of text, whoever wrote it.

    A key is found as it is; as JSON, a URL, HTML, Python, base64 or hexadecimal digits write it,
    several times over too; and with blanks in its midst. So is each piece of eight characters.
    Two kinds of keys are cut less, since they would cut what is none: a word (or a few, of less
    than 16 letters together; or up to seven digits) has no pieces, and `prose` leaves it; what
    has fewer than four characters is left everywhere.
    """

    __slots__ = ("__weakref__", "_all", "_no_words")

    def __init__(self, *keys: SecretStr | None) -> None:
        texts = {key.get_secret_value().strip() for key in keys if key}
        texts |= {_SCHEME.sub("", text) for text in texts}
        known = sorted(text for text in texts if len(text) >= _SHORTEST)
        self._all = _Needles(known, _PIECE)
        self._no_words = _Needles([k for k in known if not _is_word(k)], _PIECE_OF_PROSE)

    def __repr__(self) -> str:
        return "Redactor()"

    def text(self, text: str) -> str:
        """Return what a server, a library or an error says, with `***` where a key stood."""
        return self._all.cut_from(text)

    def prose(self, text: str) -> str:
        """Return what people and models say, with `***` for each key that is not a word."""
        return self._no_words.cut_from(text)

    def error(self, error: _E) -> _E:
        """Return `error` without keys in what it tells, and without what it was made from."""
        error.args = clean(error.args, self.text)
        for name, value in vars(error).items():
            if isinstance(value, str | list | tuple | dict):
                setattr(error, name, clean(value, self.text))
        error.__cause__ = error.__context__ = None
        return error.with_traceback(None)


def clean(value: Any, cut: Cut) -> Any:
    """Return a value of JSON's kinds with `cut` done to all text in it."""
    match value:
        case str():
            return cut(value)
        case list() | tuple():
            items = [clean(each, cut) for each in cast("Iterable[Any]", value)]
            return items if isinstance(value, list) else tuple(items)
        case dict():
            fields = cast("Mapping[Any, Any]", value)
            return {clean(name, cut): clean(each, cut) for name, each in fields.items()}
        case _:
            return value


def _is_word(key: str) -> bool:
    return len(key) <= _LONGEST_WORD and _WORD.fullmatch(key) is not None


@dataclass(frozen=True, repr=False)
class _Needles:
    """What is looked for; made at the first search, which most programs never need."""

    keys: Sequence[str]
    piece: int

    def cut_from(self, text: str) -> str:
        if not self.keys:
            return text
        literal, wholes, pieces = self._forms
        for form in literal:
            text = text.replace(form, _STARS)
        if not self._may_stand_in(text):
            return text
        plain = _plain(text)
        words, size = plain.text, self.piece
        spans = [m.span() for form in wholes for m in re.finditer(re.escape(form), words)]
        starts = range(len(words) - size + 1 if pieces else 0)
        spans += [(at, at + size) for at in starts if words[at : at + size] in pieces]
        joined: list[tuple[int, int]] = []  # in order, none over another
        for begin, end in sorted(spans):
            if joined and begin <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
            else:
                joined.append((begin, end))
        kept: list[str] = []
        at = 0
        for begin, end in joined:
            start = max(at, plain.starts[begin])
            kept += (text[at:start], _STARS)
            at = plain.ends[end - 1]
        return "".join((*kept, text[at:])) if kept else text

    def _may_stand_in(self, text: str) -> bool:
        """Say no, in a tenth of the time, of nearly every text without a key."""
        _, wholes, _ = self._forms
        for _ in range(_TIMES):
            text = _BLANKS.sub("", text)
            if not _MARKS.search(text):
                break
            text = _ESCAPE.sub(_meant, text)
        size = self.piece // 2
        # A piece is so long that one of these stands in it whole, wherever it begins.
        starts = range(0, len(text) - size + 1, self.piece - size + 1)
        return any(form in text for form in wholes) or not self._parts.isdisjoint(
            [text[at : at + size] for at in starts]
        )

    @cached_property
    def _parts(self) -> set[str]:
        """All halves of pieces."""
        size = self.piece // 2
        return {p[at : at + size] for p in self._forms[2] for at in range(self.piece - size + 1)}

    @cached_property
    def _forms(self) -> tuple[list[str], list[str], set[str]]:
        """The keys as the usual writers write them, whatever stands beside them; what short keys
        and words become when all is undone that a writer does; the pieces of the others.
        """
        literal, wholes, pieces = set[str](), set[str](), set[str]()
        for key in self.keys:
            written = json.dumps(key)[1:-1]
            literal |= {key, written, written.replace("/", "\\/"), html.escape(key)}
            literal |= {quote(key, safe, errors="surrogatepass") for safe in ("", "/")}
            literal |= {repr(f.encode("utf-8", "surrogatepass"))[2:-1] for f in (key, written)}
            # In hexadecimal digits, and what of it is the same in any base64 around it.
            raw = key.encode("utf-8", "surrogatepass")
            encoded = {raw.hex(), raw.hex().upper()}
            for before in range(3):
                whole = base64.b64encode(bytes(before) + raw).decode().rstrip("=")
                inner = whole[-(-before * 4 // 3) : (before + len(raw)) * 4 // 3]
                encoded |= {inner, inner.translate({43: "-", 47: "_"})}
            wholes |= {_plain(key).text, *(form for form in encoded if len(form) >= _SHORTEST)}
            for form in encoded if _is_word(key) else (key, *encoded):
                plain, size = _plain(form).text, self.piece
                pieces |= {plain[i : i + size] for i in range(len(plain) - size + 1)}
        return sorted(literal, key=len, reverse=True), [each for each in wholes if each], pieces


@dataclass(frozen=True, slots=True)
class _Plain:
    """A text without escapes and blanks, and where in the written one each character stood."""

    text: str
    starts: list[int] | range
    ends: list[int] | range


# What a writer puts for a character, and what it puts beside it. One that is written twice over
# is undone twice; `%25` and `&amp;` in front of an escape are a part of it at once.
_ESCAPE = re.compile(
    r"%(?:25)*(?P<percent>[0-9a-fA-F]{2})"
    r"|\\+(?:u(?P<u>[0-9a-fA-F]{4})|x(?P<x>[0-9a-fA-F]{2}))?"
    r"|&(?:amp;)*(?:\#(?P<decimal>[0-9]{1,7})|\#[xX](?P<hex>[0-9a-fA-F]{1,6})|(?P<name>\w{2,31}));"
    "|[\\s\u00ad\u200b-\u200d\u2060\ufeff]+"
)
_BLANKS = re.compile("[\\s\u00ad\u200b-\u200d\u2060\ufeff]+")
_MARKS = re.compile(r"[%\\&]")
_TIMES = 3  # so many writers, one after the other


def _meant(escape: re.Match[str]) -> str:
    """Return what is meant: nothing by blanks, and by backslashes by themselves."""
    percent, u, x, decimal, hexadecimal, name = escape.groups()
    if name:
        return html5.get(name + ";", escape[0])
    if decimal:
        return chr(min(int(decimal), 0x10FFFF))
    digits = percent or u or x or hexadecimal
    return chr(min(int(digits, 16), 0x10FFFF)) if digits else ""


def _plain(text: str) -> _Plain:
    plain = _Plain(text, range(len(text)), range(1, len(text) + 1))
    for _ in range(_TIMES):
        if not _ESCAPE.search(plain.text):
            break
        written, kept, starts, ends = plain.text, list[str](), list[int](), list[int]()
        at = 0
        for escape in _ESCAPE.finditer(written):
            meant, (begin, end) = _meant(escape), escape.span()
            kept += (written[at:begin], meant)
            starts += (*plain.starts[at:begin], *[plain.starts[begin]] * len(meant))
            ends += (*plain.ends[at:begin], *[plain.ends[end - 1]] * len(meant))
            at = end
        kept.append(written[at:])
        starts += plain.starts[at:]
        ends += plain.ends[at:]
        plain = _Plain("".join(kept), starts, ends)
    return plain


class _LogFilter(logging.Filter):
    """Takes the keys of all living redactors out of what a library logs."""

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
# Those that were made last, each key once.
_latest: deque[Redactor] = deque(maxlen=16)

# A filter holds for the records of its logger alone, not for those of the loggers below it.
_LOGGERS = (
    "httpx2",  # the SDK's transport, which logs whole addresses and what a server calls its status
    "aiohttp.client",
    "aiohttp.internal",  # cookies that it cannot read
)


def redact_keys(text: str) -> str:
    """Return `text` with stars for each key of any backend that lives in this process.

    Or has lived a moment ago: what was said with it may still be on its way to a file.
    """
    while True:
        try:
            redactors = {*_log_filter.redactors, *_latest}
        except RuntimeError:  # one was made in another thread meanwhile
            continue
        break
    for redactor in redactors:
        text = redactor.prose(text)
    return text


def filter_loggers(package: str) -> None:
    """Take keys out of what a package logs, by any logger that it has by now."""
    for name in tuple(logging.root.manager.loggerDict):
        if name == package or name.startswith(f"{package}."):
            logging.getLogger(name).addFilter(_log_filter)


def keep_from_logs(redactor: Redactor) -> None:
    """Take the redactor's keys out of what the libraries of the wire log, while it lives."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_log_filter)
    _log_filter.redactors.add(redactor)
    if all(redactor._all.keys != each._all.keys for each in _latest):
        _latest.append(redactor)
