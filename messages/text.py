"""Text that a model or a server sent: made fit to be saved and sent, and quoted in errors."""

from __future__ import annotations

import reprlib

__all__ = ["RefusalText", "SurrogateJoiner", "encodable", "message_of", "overlap", "quote"]


def encodable(text: str) -> str:
    """Make one character of each surrogate pair, and U+FFFD of a half that is alone.

    A half has no UTF-8: text with one could not be shown, saved or sent. So whatever comes from a
    model or a server passes through here, or through a `SurrogateJoiner`, before anybody gets it.
    """
    try:
        text.encode()  # far cheaper than what follows, and nearly always enough
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


class RefusalText(str):
    """A piece of a text for the user in which the model refuses to answer."""

    __slots__ = ()


def message_of(error: BaseException) -> str:
    """Return the text of an exception; empty if its `__str__` raises."""
    try:
        return f"{error}"
    except Exception:  # noqa: BLE001 - code of a user's class
        return ""


class SurrogateJoiner:
    """Makes text that comes in pieces encodable: keeps the first half of a pair for the next."""

    __slots__ = ("half",)

    def __init__(self) -> None:
        self.half = ""

    def feed(self, text: str) -> str:
        """Return `text` with pairs joined, less a half at its end that the next may complete."""
        text = self.half + text
        self.half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
        return encodable(text[: len(text) - len(self.half)])

    def end(self) -> str:
        """Return what stands for a half that stayed alone, if there is one."""
        half, self.half = self.half, ""
        return encodable(half)


class _Quote(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = self.maxdict = self.maxlist = self.maxtuple = 4
        self.maxstring = self.maxother = 100


def quote(value: object) -> str:
    """Write whatever somebody sent for an error message: never long, however long or deep it is."""
    try:
        text = _Quote().repr(value)
    except Exception:  # noqa: BLE001 - whatever a repr may raise
        text = f"a {type(value).__name__}"
    return text if len(text) <= 300 else f"{text[:300]}..."


def overlap(text: str, mark: str) -> int:
    """Return how many characters at the end of `text` may begin `mark`, which is not in it."""
    for size in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:size]):
            return size
    return 0
