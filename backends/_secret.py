"""Keys that never show: not in a repr or a log, not in an error that echoes them."""

from __future__ import annotations

import html
import json
import logging
import re
from typing import TypeVar
from urllib.parse import quote
from weakref import WeakSet

from pydantic import SecretStr

from ..commander._errors import BackendError, ConfigurationError

__all__ = ["Redactor", "as_secret", "keep_from_log"]

_E = TypeVar("_E", bound=BackendError)

_SHORTEST = 4  # a shorter "key" (a placeholder such as "x") would only spoil the text
_BEGINNING = 8  # so many characters of a longer one are a part of it, if an error was cut short
_STARS = "***"


def as_secret(key: str | SecretStr | None) -> SecretStr | None:
    """Wrap a key, so that its repr and str are stars; blanks around it are dropped.

    Raises `ConfigurationError` for what no header can hold.
    """
    if key is None:
        return None
    text = (key.get_secret_value() if isinstance(key, SecretStr) else key).strip()
    if not (text.isascii() and text.isprintable()):
        raise ConfigurationError("the key holds characters that no key has: was it pasted whole?")
    return SecretStr(text)


class Redactor:
    """Takes keys out of text: as they are, and as JSON, a URL, HTML or Python would write them."""

    __slots__ = ("__weakref__", "_keys")

    def __init__(self, *keys: SecretStr | None) -> None:
        known = {key.get_secret_value() for key in keys if key}
        self._keys = [_units(key) for key in sorted(known, key=len, reverse=True)]

    def __repr__(self) -> str:
        return "Redactor()"

    def text(self, text: str) -> str:
        """Return `text` with `***` where a key stood."""
        for units in self._keys:
            text = re.sub("".join(units), _STARS, text)
        return text

    def error(self, error: _E) -> _E:
        """Return `error` without keys in its text, and without what it was made from.

        An error's text may have been cut short in the midst of a key: its beginning goes too.
        """
        error.args = tuple(self._cut(a) if isinstance(a, str) else a for a in error.args)
        error.__cause__ = error.__context__ = None
        return error.with_traceback(None)

    def _cut(self, text: str) -> str:
        for units in self._keys:
            text = _without_beginnings(text, units)
        return text


def _units(key: str) -> list[str]:
    """Return a pattern for each character of `key`, none if it is too short to be one."""
    return [_written(each) for each in re.findall(r"\\+|[^\\]", key)] if _is_long(key) else ["(?!)"]


def _is_long(key: str) -> bool:
    return len(key) >= _SHORTEST


def _written(char: str) -> str:
    """Return a pattern of all ways to write a character (or backslashes, however many)."""
    if char.isalnum() and char.isascii():
        return char
    one = char[0]
    forms = {one, html.escape(one), f"&#{ord(one)};", f"&#x{ord(one):x};", quote(one, safe="")}
    forms |= {json.dumps(one)[1:-1].lstrip("\\"), f"u{ord(one):04x}"} - {""}
    forms.add("\\".join(f"x{byte:02x}" for byte in one.encode("utf-8", "surrogatepass")))
    patterns = "|".join(rf"(?:{re.escape(form)})" for form in sorted(forms, key=len, reverse=True))
    # JSON and Python put a backslash before some, and another before that if they write it again.
    return rf"(?i:\\++|(?:{patterns})+)" if one == "\\" else rf"(?i:\\*+(?:{patterns}))"


def _without_beginnings(text: str, units: list[str]) -> str:
    """Put stars for each place where a key begins, as far as it goes."""
    rest = [re.compile(unit) for unit in units[_BEGINNING:]]
    kept: list[str] = []
    at = 0
    for found in re.finditer("".join(units[:_BEGINNING]), text):
        end = found.end()
        for unit in rest:
            if (more := unit.match(text, end)) is None:
                break
            end = more.end()
        kept += (text[at : found.start()], _STARS)
        at = max(at, end)
    return "".join((*kept, text[at:]))


class _LogFilter(logging.Filter):
    """Takes the keys of all living redactors out of what a library logs."""

    def __init__(self) -> None:
        super().__init__()
        self.redactors: WeakSet[Redactor] = WeakSet()

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        for redactor in tuple(self.redactors):
            text = redactor.text(text)
        record.msg, record.args = text, ()
        return True


_log_filter = _LogFilter()


def keep_from_log(redactor: Redactor, library: str) -> None:
    """Take the redactor's keys out of what the logger of `library` writes, while it lives."""
    logging.getLogger(library).addFilter(_log_filter)
    _log_filter.redactors.add(redactor)
