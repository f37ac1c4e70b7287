"""Find formats in streaming text; the user sees the text and never a piece of a marker."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ._format import Body, Format, Output

__all__ = ["TextSplitter"]

# Longer texts are cut into pieces. Each body copies the rest of its text, which takes quadratic
# time if one long text has many bodies.
_MAX_PIECE_CHARS = 4096


class TextSplitter:
    """Splits the text of one reply by its formats.

    It passes text on at once, with two exceptions: the possible beginning of a marker, and white
    space beside a call. It drops that white space unless other text follows before the next call.
    """

    def __init__(self, formats: Sequence[Format], output: Output) -> None:
        self._output = output
        self._formats = {each.open: each for each in formats}
        self._marker = _marker_pattern([each for each in formats if each.open])
        self._bare = self._formats.pop("", None)  # counts only at the start of the reply
        self._body: Body | None = None
        self._opened = ""  # the marker of the body
        self._held = ""  # the possible beginning of a marker
        self._space: list[str] = []  # white space, possibly between two calls
        self._beside_call = True
        self._last = "\n"  # the character before `_held`; a reply begins at the start of a line

    def feed(self, text: str) -> None:
        """Take the next piece of text."""
        waiting = _pieces(text)  # a stack: the next piece is the last one
        while waiting:
            text = waiting.pop()
            if self._body is not None:
                rest = self._body.feed(text)
                if rest is not None:
                    self._leave(self._body)
            elif self._bare is not None:
                # The first visible character decides whether the reply is a call without markers.
                rest = text.lstrip()
                self._show(text[: len(text) - len(rest)])
                if rest:
                    bare, self._bare = self._bare, None
                    self._body = bare.body(self._output) if rest[0] in "{[" else None
            else:
                held = self._held + text
                # With the character before it, so that a marker can require the start of a line.
                found = self._marker.search(self._last + held, 1)
                start = len(held) if found is None else found.start() - 1
                self._show(held[:start])
                self._held = held[start:]
                if found is not None and found[0] in self._formats:
                    self._held, self._opened = "", found[0]
                    self._body = self._formats[self._opened].body(self._output)
                    rest = held[found.end() - 1 :]
                else:
                    rest = ""  # a beginning of a marker matches only at the end of the text
            if rest:
                waiting += _pieces(rest)

    def end(self, *, stopped: bool) -> None:
        """Take the end of the reply: a beginning of a marker is text, or the end of a body."""
        while self._body is not None:
            body = self._body
            left = body.end(stopped=stopped)
            self._leave(body)
            self.feed(left)  # may open another body
        self._show(self._held)
        self._held = ""

    def _leave(self, body: Body) -> None:
        self._body = None
        if body.void:  # the marker was text; the body has returned the text after it
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
    starts = range(0, len(text), _MAX_PIECE_CHARS)
    return [text[start : start + _MAX_PIECE_CHARS] for start in reversed(starts)]


def _marker_pattern(formats: Sequence[Format]) -> re.Pattern[str]:
    """Return a pattern of all markers, and of their beginnings at the end of the text."""
    whole: list[str] = []
    begun: list[tuple[int, str]] = []
    for each in formats:
        marker = each.open
        if sum(other.open.startswith(marker) for other in formats) > 1:
            raise ValueError(f"the marker {marker!r} begins two formats: use only one of them")
        # The pattern begins with a literal, which `re` searches for fast. It looks back for the
        # start of the line only there.
        first = re.escape(marker[0])
        if each.at_line_start:
            first += rf"(?<=\n{first})"
        whole.append(first + re.escape(marker[1:]))
        begun += [
            (size, rf"{first}{re.escape(marker[1:size])}\Z") for size in range(1, len(marker))
        ]
    begun.sort(reverse=True)  # longest first: alternatives are tried in order
    return re.compile("|".join([*whole, *(pattern for _, pattern in begun)]) or r"(?!)")
