"""Where the calls of a tool go: as text for the person who allows them, and as a digest."""

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

STARS = "***"
ROUNDS = 100_000
"""Some 50 ms: a password in what is digested cannot be found by trying a list of them."""
LONGEST_NAME = 60

_SECRET_NAME = re.compile(
    r"(?:^|[^A-Za-z])(?:key|api_?key|token|secret|pass\w*|pwd|auth\w*|credentials?|cookie)s?"
    r"(?:$|[^A-Za-z])",
    re.IGNORECASE,
)
# Words of random characters, in which a key has no other mark: mixed case and digits, or hex.
_RANDOM = re.compile(
    r"(?<![\w+-])"
    r"(?:(?=[\w+-]*\d)(?=[\w+-]*[a-z])(?=[\w+-]*[A-Z])[\w+-]{20,}|[0-9A-Fa-f-]{32,})"
    r"(?![\w+-])"
)
_FIELD = re.compile(r"(?P<name>[^=:]*)(?:=|:(?!//)\s*)(?P<value>.+)", re.DOTALL)
_USER = re.compile(r"(?<=://)[^\s/?#]*(?=@)")
_QUERY = re.compile(r"(?<=[?&])([^=&#]*)=([^&#]*)")


def fingerprint(value: object) -> str:
    """Return a digest of a JSON value in hex, equal for equal values in every process.

    Nothing of the value can be read from it. The first call for a value takes some 50 ms.
    """
    return _stretch(json.dumps(value, sort_keys=True, default=str))


def definition_of(tool: AnyTool) -> str:
    """Return a digest of the tool, as a model sees it, and of where its calls go."""
    shown = [tool.name, tool.description, tool.parameters]
    return fingerprint([shown, tool.bare.definition])


@lru_cache(256)
def _stretch(text: str) -> str:
    return hashlib.pbkdf2_hmac("sha256", text.encode(), b"anabranch", ROUNDS).hex()


@dataclass(frozen=True)
class ServerOrigin:
    """The server to which a tool's calls go; `name` is the one that it gives itself."""

    command: Sequence[str]
    url: str | None
    cwd: str | None
    program: str | None
    """The file that the command names, as this process finds it."""
    env: Mapping[str, str]
    headers: Mapping[str, str]
    name: str

    @property
    def identity(self) -> Mapping[str, Any]:
        """All that decides which server this is, keys too: for a digest alone."""
        return dict(vars(self))

    def __str__(self) -> str:
        """Return the command or the address, then the server's own name, which is quoted.

        `***` stands for what may be a key, and for every value in `env` and `headers`. Then a
        piece of a digest tells two servers apart that differ in these alone.
        """
        shown = _mask_command(self.command) if self.url is None else _mask_address(self.url)
        hides = shown != (shlex.join(self.command) if self.url is None else self.url)
        if self.cwd is not None:
            shown += f" in {shlex.quote(self.cwd)}"
        if given := [*self.env, *self.headers]:
            shown += " with " + " ".join(f"{shlex.quote(each)}={STARS}" for each in given)
        if hides or given:
            shown += f" [digest {fingerprint(self.identity)[:8]}]"
        return f"{shown}, which calls itself {self.name[:LONGEST_NAME]!r}"

    def __repr__(self) -> str:
        return f"<ServerOrigin {self}>"


def mask_spec(spec: str) -> str:
    """Return the text that opened a toolkit, with `***` for what may be a key."""
    return _mask_word(spec)


def _mask_command(words: Sequence[str]) -> str:
    shown: list[str] = []
    option = ""  # the word before, if the next may be its value
    for word in words:
        secret = _SECRET_NAME.search(option) and not word.startswith("-")
        shown.append(STARS if secret else _mask_word(word))
        option = word if word.startswith("-") and "=" not in word else ""
    return shlex.join(shown).replace(f"'{STARS}'", STARS)


def _mask_word(word: str) -> str:
    if (field := _FIELD.fullmatch(word)) and _SECRET_NAME.search(field["name"]):
        return word[: field.start("value")] + STARS
    if "://" in word:
        return _mask_address(word)
    return mask(word) if "/" in word else _RANDOM.sub(STARS, mask(word))


def _mask_address(url: str) -> str:
    with_fields = _QUERY.sub(
        lambda field: f"{field[1]}={STARS}" if _SECRET_NAME.search(field[1]) else field[0],
        _USER.sub(STARS, url),
    )
    return _RANDOM.sub(STARS, mask(with_fields))
