"""What others wrote, shown exactly, so that a person can decide about it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache

__all__ = ["exact", "replace_unfit", "width"]

# What draws nothing, or stands for nothing that can be drawn (Default_Ignorable_Code_Point and a
# few blanks), though its category is that of letters, marks or symbols; and what draws far beyond
# its cells: long dashes, whole phrases in one character, some of the cuneiform.
_UNFIT = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\ufffc"
    "\U0001d159\U000e0000-\U000e0fff"
    "\u2e3a\u2e3b\ufdfa-\ufdfd\U00012000-\U0001254f]"
)
# The most marks on one letter: Vietnamese and the scripts of India need two.
_MARKS = 2


def exact(text: str, encoding: str = "utf-8") -> str:
    r"""Return text so that two that differ look different, in one line of printable characters.

    Whatever does not draw a character of one or two cells of its own is written as `\u{1b}`; so is
    what `encoding` lacks, a space at the end, and a backslash that would look like such a one.
    """
    return replace_unfit(text, lambda character: f"\\u{{{ord(character):x}}}", encoding)


def replace_unfit(text: str, spell: Callable[[str], str], encoding: str = "utf-8") -> str:
    """Return `text` with `spell` for each character that `exact` would not show as it is."""
    if text.isascii() and text.isprintable() and "\\u{" not in text and not text.endswith(" "):
        return text
    shown: list[str] = []
    marks = _MARKS  # on the character before; no more fit on what is no letter
    for place, character in enumerate(text):
        category = unicodedata.category(character)
        if category[0] == "M":
            marks += 1
            plain = marks <= _MARKS
        elif character == " ":
            plain, marks = place + 1 < len(text), _MARKS
        else:
            plain = category[0] in "LNPS" and not text.startswith("\\u{", place)
            marks = 0 if plain and category[0] == "L" else _MARKS
        fit = plain and not _UNFIT.match(character) and _has(encoding, character)
        shown.append(character if fit else spell(character))
        if not fit:
            marks = _MARKS
    return "".join(shown)


def width(text: str) -> int:
    """Return how many cells a line of `exact` takes at most, whatever the terminal."""
    if text.isascii():
        return len(text)
    return sum(map(_cells, text))


@lru_cache(4096)
def _cells(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WFA" else 1


def _has(encoding: str, character: str) -> bool:
    try:
        return character.isascii() or bool(character.encode(encoding))
    except (UnicodeEncodeError, LookupError):
        return False
