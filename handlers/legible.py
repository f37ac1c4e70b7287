"""What others wrote, made fit for a terminal: `legible` for text to read, in any room.

What a person decides about is shown exactly, by `cli/_question.py`.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

__all__ = ["legible"]

# Of the characters of these kinds, text may hold the joiners, which emoji, Persian and Hindi need.
_STEERING = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_PASSING = frozenset("\n\t\u200c\u200d")
_DROPPED = frozenset("\r\u00ad")


def legible(text: str) -> str:
    """Return text to read: nothing in it can steer a terminal or reorder what stands there.

    Lines and tabs remain, carriage returns and soft hyphens go, each other control character (also
    those for the direction of writing, tags, and halves of surrogate pairs) becomes U+FFFD. It
    works on each character by itself, so text may come in pieces.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_legible, text))


@lru_cache(4096)
def _legible(character: str) -> str:
    if character in _DROPPED:
        return ""
    steers = unicodedata.category(character) in _STEERING and character not in _PASSING
    return "\N{REPLACEMENT CHARACTER}" if steers else character
