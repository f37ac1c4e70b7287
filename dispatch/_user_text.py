"""Text for the user from several origins: one after the other, never mixed (contract F2)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

__all__ = ["TextOrigin", "UserText"]


class TextOrigin:
    """The origin of a text for the user: the content, the refusal, or one call.

    A call is `open` from the beginning of its text to the end. The texts of other origins wait
    during that time.
    """

    __slots__ = ("open",)

    def __init__(self, *, open: bool = False) -> None:  # noqa: A002 - an attribute of that name
        self.open: bool = open


class UserText:
    """Puts the texts of all origins into one branch, with a newline where the origin changes.

    `parts` has everything that was put.
    """

    __slots__ = ("_current", "_last", "_put", "_waiting", "parts")

    def __init__(self, put: Callable[[str], object]) -> None:
        self.parts: list[str] = []
        self._put = put
        self._last: TextOrigin | None = None
        self._current: TextOrigin | None = None  # the open origin; all others wait for it
        self._waiting: OrderedDict[TextOrigin, list[str]] = OrderedDict()

    def begin(self) -> TextOrigin:
        """Open an origin; its text is put at once, or after the origins that opened before it."""
        origin = TextOrigin(open=True)
        if self._current is None:
            self._current = origin
        else:
            self._waiting[origin] = []
        return origin

    def add(self, origin: TextOrigin, text: str) -> None:
        """Put `text` at once, or when the origin that is open now has ended."""
        if self._current is not None and self._current is not origin:
            self._waiting.setdefault(origin, []).append(text)
            return
        if self._last is not origin:
            if self._last is not None:
                text = type(text)("\n" + text)  # keeps a `RefusalText` a `RefusalText`
            self._last = origin
        self.parts.append(text)
        self._put(text)

    def end(self, origin: TextOrigin) -> None:
        """Close an origin, then put the texts that waited for it, in the order they began."""
        origin.open = False
        if origin is self._current:
            self._current = None
            while self._waiting and self._current is None:
                origin, texts = self._waiting.popitem(last=False)
                if origin.open:  # more of its text may come: the next origins wait for it
                    self._current = origin
                for text in texts:
                    self.add(origin, text)

    def end_all(self) -> None:
        """Close every origin at the end of the reply."""
        for origin in self._waiting:  # first: `end` then puts the texts of all of them
            origin.open = False
        if self._current is not None:
            self.end(self._current)
