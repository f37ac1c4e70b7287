"""The place where a tool's calls go: as text for the person who approves them, and as a digest."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ..messages.mask import mask

if TYPE_CHECKING:
    from ._tool import AnyTool

__all__ = ["ServerOrigin", "definition_of", "fingerprint", "mask_spec"]

MASK = "***"
PBKDF2_ROUNDS = 100_000
"""About 50 ms each, so that a list of passwords cannot be tried on a digest."""
MAX_NAME_CHARS = 60

_SECRET_NAME = re.compile(
    r"(?:^|[^A-Za-z])(?:key|api_?key|token|secret|pass\w*|pwd|auth\w*|credentials?|cookie)s?"
    r"(?:$|[^A-Za-z])",
    re.IGNORECASE,
)
# Words of random characters that may be keys: mixed case with digits, or hexadecimal.
_RANDOM = re.compile(
    r"(?<![\w+-])"
    r"(?:(?=[\w+-]*\d)(?=[\w+-]*[a-z])(?=[\w+-]*[A-Z])[\w+-]{20,}|[0-9A-Fa-f-]{32,})"
    r"(?![\w+-])"
)
_FIELD = re.compile(r"(?P<name>[^=:]*)(?:=|:(?!//)\s*)(?P<value>.+)", re.DOTALL)
_USER = re.compile(r"(?<=://)[^\s/?#]*(?=@)")
_QUERY = re.compile(r"(?<=[?&])([^=&#]*)=([^&#]*)")


def fingerprint(value: object) -> str:
    """Return a digest of a JSON value in hexadecimal, equal for equal values in every process.

    The value cannot be recovered from it. The first call for a value takes about 50 ms.
    """
    return _derive_digest(json.dumps(value, sort_keys=True, default=str))


def definition_of(tool: AnyTool) -> str:
    """Return a digest of the tool as a model sees it and of the place where its calls go."""
    visible = [tool.name, tool.description, tool.parameters]
    return fingerprint([visible, tool.bare.definition])


@lru_cache(256)
def _derive_digest(text: str) -> str:
    return hashlib.pbkdf2_hmac("sha256", text.encode(), b"anabranch", PBKDF2_ROUNDS).hex()


@dataclass(frozen=True)
class ServerOrigin:
    """The server that a tool calls; `name` is the name that the server gives itself."""

    command: Sequence[str]
    url: str | None
    cwd: str | None
    program: str | None
    """The path of the command's program, as this process finds it."""
    env: Mapping[str, str]
    headers: Mapping[str, str]
    name: str

    @property
    def identity(self) -> Mapping[str, Any]:
        """All settings that identify the server, including keys: only make a digest of it."""
        return dict(vars(self))

    def __str__(self) -> str:
        """Return the command or the address, then the server's own name in quotes.

        A program that was found by PATH has its path. `***` replaces possible keys, and every value
        in `env` and `headers`. Then the beginning of a digest follows, so that servers that differ
        only in these values have different texts.
        """
        text = _mask_command(self._words) if self.url is None else _mask_address(self.url)
        hides = text != (shlex.join(self._words) if self.url is None else self.url)
        if self.cwd is not None:
            text += f" in {shlex.quote(self.cwd)}"
        if given := [*self.env, *self.headers]:
            text += " with " + " ".join(f"{shlex.quote(each)}={MASK}" for each in given)
        if hides or given:
            text += f" [digest {fingerprint(self.identity)[:8]}]"
        return f"{text}, which calls itself {self.name[:MAX_NAME_CHARS]!r}"

    @property
    def _words(self) -> Sequence[str]:
        """The command, with the full path of a program that was found by PATH."""
        if self.program is None or not self.command or "/" in self.command[0]:
            return self.command
        return [self.program, *self.command[1:]]

    def __repr__(self) -> str:
        return f"<ServerOrigin {self}>"


def mask_spec(spec: str) -> str:
    """Return the user's specification of a toolkit, with `***` for possible keys."""
    return _mask_word(spec)


def _mask_command(words: Sequence[str]) -> str:
    text: list[str] = []
    option = ""  # the last word, if the next one may be its value
    for word in words:
        secret = _SECRET_NAME.search(option) and not word.startswith("-")
        text.append(MASK if secret else _mask_word(word))
        option = word if word.startswith("-") and "=" not in word else ""
    return shlex.join(text).replace(f"'{MASK}'", MASK)


def _mask_word(word: str) -> str:
    if (field := _FIELD.fullmatch(word)) and _SECRET_NAME.search(field["name"]):
        return word[: field.start("value")] + MASK
    if "://" in word:
        return _mask_address(word)
    return mask(word) if "/" in word else _RANDOM.sub(MASK, mask(word))


def _mask_address(url: str) -> str:
    with_fields = _QUERY.sub(
        lambda field: f"{field[1]}={MASK}" if _SECRET_NAME.search(field[1]) else field[0],
        _USER.sub(MASK, url),
    )
    return _RANDOM.sub(MASK, mask(with_fields))
