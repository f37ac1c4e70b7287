"""The words of a text, as they are looked for."""

from __future__ import annotations

import re
from unicodedata import normalize

__all__ = ["MOST_WORDS", "apart", "words_of"]

MOST_WORDS = 64  # of a question that are looked for

# Scripts that are written without spaces: each letter is a word.
UNSPACED = re.compile(
    r"([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff"
    r"\U00020000-\U0003ffff])"
)
ACCENTS = re.compile(r"[\u0300-\u036f]")  # of letters that have no sign of their own with them

# So common in questions that they say nothing of what is asked.
COMMON = """
a about after all also am an and any are as at be been before being but by can could did do does
doing for from had has have having he her here him his how i if in into is it its may me might
more most must my no nor not of on once only or other our out over own please same she should so
some such tell than that the their them then there these they this those through to too under
until up us very was we were what when where which while who whom why will with would you your
"""

_COMMON = frozenset(COMMON.split())


def apart(text: str) -> str:
    """Put spaces around letters of scripts that are written without; write equal letters alike."""
    if text.isascii():
        return text
    return UNSPACED.sub(r" \1 ", ACCENTS.sub("", normalize("NFKC", text)))


def words_of(question: str) -> list[str]:
    """Return the words that a question asks for, each once, without the commonest if others remain.

    A name with underscores or dots is one of them: its parts have to stand side by side.
    """
    found = re.findall(r"\w+(?:[._-]\w+)*", apart(question[:10_000]))
    words = {word.lower(): word for word in found}  # as they stand: some letters are two in lower
    kept = [word for key, word in words.items() if key not in _COMMON] or [*words.values()]
    return kept[:MOST_WORDS]
