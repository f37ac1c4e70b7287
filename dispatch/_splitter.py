"""Finds formats in text that streams: text goes to the user, never a piece of a marker."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ._format import Body, Format, Output

__all__ = ["TextSplitter"]

# A longer text is taken in pieces: what is left after a body is copied, so many bodies in one long
# text would cost its square.
_LONGEST_PIECE = 4096


class TextSplitter:
    """Splits the text of one reply by its formats.

    Text is passed on with the piece that brought it, but for what may begin a marker, and for
    white space beside a call: that is passed on only if other text follows it before the next.
    """

    def __init__(self, formats: Sequence[Format], output: Output) -> None:
        self._output = output
        self._marker = _marker_pattern([each for each in formats if each.open])
        self._formats = {each.open: each for each in formats}
        self._bare = self._formats.pop("", None)  # it may begin the reply
        self._body: Body | None = None
        self._opened = ""  # the marker of the body
        self._held = ""  # it may begin a marker
        self._space: list[str] = []  # it may stand between two calls
        self._beside_call = True
        self._last = "\n"  # the character before what is held

    def feed(self, text: str) -> None:
        """Take the next piece of text."""
        waiting = _pieces(text)  # the next one last
        while waiting:
            rest = self._step(waiting.pop())
            if rest:
                waiting += _pieces(rest)

    def _step(self, text: str) -> str | None:
        """Take some text; return what is left of it."""
        if self._bare is not None:
            return self._begin(text, self._bare)
        if self._body is None:
            return self._find(self._held + text)
        rest = self._body.feed(text)
        if rest is not None:
            self._leave(self._body)
        return rest

    def end(self, *, stopped: bool) -> None:
        """The reply has ended; what was held back is text, or the end of a body."""
        while self._body is not None:
            body = self._body
            left = body.end(stopped=stopped)
            self._leave(body)
            self.feed(left)
        self._show(self._held)
        self._held = ""

    def _begin(self, text: str, bare: Format) -> str | None:
        """Decide by the first character of the reply whether it is a call without markers."""
        start = text.lstrip()
        self._show(text[: len(text) - len(start)])
        if start:
            self._bare = None
            self._body = bare.body(self._output) if start[0] in "{[" else None
        return start

    def _find(self, text: str) -> str | None:
        """Pass on text up to the next marker; return what comes after it, None if there is none."""
        found = self._marker.search(self._last + text, 1)
        if found is None:
            self._held = ""
            self._show(text)
            return None
        start = found.start() - 1
        self._show(text[:start])
        if found[0] not in self._formats:  # the beginning of a marker, at the end of the text
            self._held = text[start:]
            return None
        self._held = ""
        self._opened = found[0]
        self._body = self._formats[self._opened].body(self._output)
        return text[found.end() - 1 :]

    def _leave(self, body: Body) -> None:
        self._body = None
        if body.void:
            self._show(self._opened)
        else:
            self._space.clear()
            self._beside_call = True
            self._last = "\n"

    def _show(self, text: str) -> None:
        if not text:
            return
        self._last = text[-1]
        if self._beside_call:
            self._space.append(text)
            if text.isspace():
                return
            text = "".join(self._space)
            self._space.clear()
            self._beside_call = False
        self._output.show(text)


def _pieces(text: str) -> list[str]:
    """Cut a text into pieces, the first one last."""
    starts = range(0, len(text), _LONGEST_PIECE)
    return [text[start : start + _LONGEST_PIECE] for start in reversed(starts)]


def _marker_pattern(formats: Sequence[Format]) -> re.Pattern[str]:
    """Match a whole marker, or the beginning of one at the end of the text."""
    whole = [(each.open, each.at_line_start) for each in formats]
    for marker, _ in whole:
        if sum(other.startswith(marker) for other, _ in whole) > 1:
            raise ValueError(f"the marker {marker!r} begins two formats: they cannot be told apart")
    begun = [(marker[:size], line) for marker, line in whole for size in range(1, len(marker))]
    begun.sort(key=lambda each: -len(each[0]))
    alternatives = [_pattern(*each) for each in whole]
    alternatives += [rf"{_pattern(*each)}\Z" for each in begun]
    return re.compile("|".join(alternatives) or r"(?!)")


def _pattern(marker: str, at_line_start: bool) -> str:
    # Each begins with a literal, so that the search runs from one first character to the next.
    first = re.escape(marker[0])
    return first + (rf"(?<=\n{first})" if at_line_start else "") + re.escape(marker[1:])
