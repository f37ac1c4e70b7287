"""Keys that never show: not in a repr, not in an error that echoes them."""

from __future__ import annotations

import json
import re
from typing import TypeVar
from urllib.parse import quote

from pydantic import SecretStr

from ..commander._errors import BackendError

__all__ = ["Redactor", "as_secret"]

_E = TypeVar("_E", bound=BackendError)

_SHORTEST = 4  # a shorter "key" (a placeholder such as "x") would only spoil the text


def as_secret(key: str | SecretStr | None) -> SecretStr | None:
    """Wrap a key, so that its repr and str are stars; blanks around it are dropped."""
    if key is None or isinstance(key, SecretStr):
        return key
    return SecretStr(key.strip())


class Redactor:
    """Takes keys out of text: as they are, and as a URL or a JSON string would write them."""

    __slots__ = ("_pattern",)

    def __init__(self, *keys: SecretStr | None) -> None:
        forms = {form for key in keys if key for form in _forms(key.get_secret_value())}
        known = "|".join(map(re.escape, sorted(forms, key=len, reverse=True)))
        self._pattern = re.compile(known) if known else None

    def __repr__(self) -> str:
        return "Redactor()"

    def text(self, text: str) -> str:
        """Return `text` with `***` where a key stood."""
        return self._pattern.sub("***", text) if self._pattern else text

    def error(self, error: _E) -> _E:
        """Return `error` without keys in its text, and without the errors it was made from."""
        error.args = tuple(self.text(a) if isinstance(a, str) else a for a in error.args)
        error.__cause__ = error.__context__ = None
        return error


def _forms(key: str) -> set[str]:
    if len(key) < _SHORTEST:
        return set()
    in_json = {json.dumps(key)[1:-1], json.dumps(key, ensure_ascii=False)[1:-1]}
    in_json |= {form.replace("/", "\\/") for form in in_json}
    return {key, quote(key), quote(key, safe=""), *in_json}
