"""Text for the user from several origins: one after the other, never mixed (F2)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

__all__ = ["TextOrigin", "UserText"]


class TextOrigin:
    """Where a text for the user comes from: the content, a refusal, or one call.

    While it is `open`, as a call is from the beginning of its text to the end, the texts of other
    origins wait.
    """

    __slots__ = ("open",)

    def __init__(self, *, open: bool = False) -> None:  # noqa: A002 - what it is
        self.open = open


class UserText:
    """Puts the texts of all origins into one branch, a newline where the origin changes.

    `parts` is all that was put.
    """

    __slots__ = ("_current", "_last", "_put", "_waiting", "parts")

    def __init__(self, put: Callable[[str], object]) -> None:
        self.parts: list[str] = []
        self._put = put
        self._last: TextOrigin | None = None
        self._current: TextOrigin | None = None  # the open one that the others wait for
        self._waiting: OrderedDict[TextOrigin, list[str]] = OrderedDict()

    def begin(self) -> TextOrigin:
        """Open an origin; its text is put now, or after those that are open already."""
        origin = TextOrigin(open=True)
        if self._current is None:
            self._current = origin
        else:
            self._waiting[origin] = []
        return origin

    def add(self, origin: TextOrigin, text: str) -> None:
        """Put `text`, or keep it while another origin is open."""
        if self._current is not None and self._current is not origin:
            self._waiting.setdefault(origin, []).append(text)
            return
        if self._last is not origin:
            if self._last is not None:
                text = type(text)("\n" + text)  # a `RefusalText` stays one
            self._last = origin
        self.parts.append(text)
        self._put(text)

    def end(self, origin: TextOrigin) -> None:
        """Close an origin; if others waited for it, put their texts in the order they began."""
        origin.open = False
        if origin is self._current:
            self._current = None
            while self._waiting and self._current is None:
                origin, kept = self._waiting.popitem(last=False)
                if origin.open:
                    self._current = origin
                for text in kept:
                    self.add(origin, text)

    def end_all(self) -> None:
        """Close every origin: the reply is over."""
        for origin in self._waiting:
            origin.open = False
        if self._current is not None:
            self.end(self._current)
