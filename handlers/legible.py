"""Make text of others safe for a terminal.

The arguments of a call that a person approves are shown exactly, by `cli/_call_layout.py`.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

__all__ = ["legible"]

# Text may have these joiners, which emoji, Persian and Hindi need.
_CONTROL_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_ALLOWED = frozenset("\n\t\u200c\u200d")
_REMOVED = frozenset("\r\u00ad")


def legible(text: str) -> str:
    """Return text that cannot control a terminal or reorder its surroundings.

    Lines and tabs stay. Carriage returns and soft hyphens are removed. Each other control
    character, also marks of direction, tags and halves of surrogate pairs, becomes U+FFFD. Each
    character is handled separately, so a text may be passed in pieces.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_legible, text))


@lru_cache(4096)
def _legible(character: str) -> str:
    if character in _REMOVED:
        return ""
    if unicodedata.category(character) in _CONTROL_CATEGORIES and character not in _ALLOWED:
        return "\N{REPLACEMENT CHARACTER}"
    return character
