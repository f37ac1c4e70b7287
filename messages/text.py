"""Make the text of models and servers encodable, and quote values in errors."""

from __future__ import annotations

import reprlib

__all__ = ["RefusalText", "SurrogateJoiner", "encodable", "overlap", "quote"]


def encodable(text: str) -> str:
    """Join each surrogate pair to one character; replace a lone surrogate by U+FFFD.

    UTF-8 cannot encode a lone surrogate, so it cannot be printed, stored or sent. All text from
    models and servers passes through this function or a `SurrogateJoiner`.
    """
    try:
        text.encode()  # much cheaper than the replacement, which is rarely needed
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


class RefusalText(str):
    """A refusal to answer, in a stream of text."""

    __slots__ = ()


class SurrogateJoiner:
    """Makes streamed text encodable. It holds back the first half of a pair for the next piece."""

    __slots__ = ("half",)

    def __init__(self) -> None:
        self.half: str = ""

    def feed(self, text: str) -> str:
        """Return `text` with joined pairs; hold back a first half at its end."""
        text = self.half + text
        self.half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
        return encodable(text[: len(text) - len(self.half)])

    def end(self) -> str:
        """Return U+FFFD for a first half without a second, else an empty text."""
        half, self.half = self.half, ""
        return encodable(half)


class _Quote(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = self.maxdict = self.maxlist = self.maxtuple = 4
        self.maxstring = self.maxother = 100


def quote(value: object) -> str:
    """Return a short repr of any value for an error message, at most 303 characters."""
    try:
        text = _Quote().repr(value)
    except Exception:  # noqa: BLE001 - whatever a repr may raise
        text = f"a {type(value).__name__}"
    return text if len(text) <= 300 else f"{text[:300]}..."


def overlap(text: str, mark: str) -> int:
    """Return the length of the longest proper prefix of `mark` at the end of `text`.

    A stream holds back this many characters, since its next piece may complete the mark.
    """
    for size in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:size]):
            return size
    return 0
