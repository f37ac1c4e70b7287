"""Text that a model or a server sent: made fit to be saved and sent, and quoted in errors."""

from __future__ import annotations

import reprlib

__all__ = ["encodable", "quote"]


def encodable(text: str) -> str:
    """Make one character of each surrogate pair, and U+FFFD of a half that is alone.

    A half has no UTF-8: text with one could not be shown, saved or sent. So whatever comes from a
    model or a server passes through here, or through a `HalfKeeper`, before anybody gets it.
    """
    try:
        text.encode()  # far cheaper than what follows, and nearly always enough
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


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
