"""A JSON object between marks: where it ends, or where it breaks off."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from ._format import Until
from ._scan import SPACE, STRING_REST, ObjectScanner, end_of

__all__ = ["MarkedObject"]

# What may stand between strings and brackets; the marks all have other letters or signs.
_PLAIN = re.compile(r"[-+.,:\d\seEtrufalsn]*+")
# So few that it costs nothing to look at them again with each piece of a text.
_BRACKETS = re.compile(r"[}\]][}\]\s]{0,15}\Z")
_AFTER_STRING = ",:}]"
_DEEPER = {"{": 1, "[": 1, "}": -1, "]": -1}
_SIGNS = '{}[]"'
_LENIENT = json.JSONDecoder(strict=False)


class MarkedObject:
    """Passes an object on to `take`, which feeds `scanner`, up to its end or to a mark.

    A mark outside of a string breaks the object off. One inside of a string may belong to it, or
    its quote may be missing. So what comes from that mark on is kept until the object is whole,
    and is JSON; if it cannot become that, it broke off at the mark, and brackets at the end of the
    string were not of its text.
    """

    def __init__(
        self, scanner: ObjectScanner, take: Callable[[str], object], *marks: str | None
    ) -> None:
        self.broken = False
        self._scanner = scanner
        self._take = take
        self._until = Until(*marks)
        self._brackets = ""  # at the end of a string, if it ends there
        self._kept: list[str] = []  # from there on
        self._probe: _Probe | None = None  # reads that

    @property
    def raw(self) -> str:
        """The object, or as much of it as could be read."""
        scanner = self._scanner
        return scanner.raw[: scanner.end] if scanner.done or scanner.broken else scanner.raw

    def feed(self, text: str) -> str | None:
        """Take text; return None while the object goes on, else what comes after it."""
        if self._probe is None:
            before, mark, after = self._until.feed(text)
            brackets = self._pass_on(before)
            scanner = self._scanner
            depth = scanner.string_depth() if mark else 0
            if scanner.done or scanner.broken:
                self.broken = scanner.broken
                return scanner.raw[scanner.end :] + mark + after + self._until.release()
            if not mark:
                self._until.push_back(brackets)
                return None
            text = mark + after
            if not depth:
                self.broken = True
                return text
            self._brackets = brackets
            self._probe = _Probe(depth)
        self._kept.append(text)
        if not self._probe.feed(text):
            return None
        kept = "".join(self._kept)
        end = len(kept) - self._probe.left
        rest = self._brackets + kept[:end]
        self.broken = self._probe.broken
        try:
            _LENIENT.decode(self._scanner.raw + rest)
        except (ValueError, RecursionError):
            self.broken = True
        if self.broken:
            return kept
        self._take(rest)
        return kept[end:]

    def end(self) -> str:
        """Take the end of the reply; return what comes after the object if it ended at a mark."""
        if self._probe is None:
            self._pass_on(self._until.release())
        self.broken = True
        return "".join(self._kept)

    def _pass_on(self, text: str) -> str:
        """Let the text be taken, but for brackets at its end that may not be of a string."""
        found = _BRACKETS.search(text)
        if found is None:
            self._take(text)
            return ""
        self._take(text[: found.start()])
        if self._scanner.string_depth():
            return found[0]
        self._take(found[0])
        return ""


class _Probe:
    """Reads on inside of a string, and of `depth` objects and lists, to see whether they end.

    `broken` says that what came is no JSON; `left` is then, or at the end of the outermost, the
    number of characters that came after it.
    """

    def __init__(self, depth: int) -> None:
        self.broken = False
        self.left = 0
        self._depth = depth
        self._in_string = True
        self._after_string = False
        self._tail: str = ""  # an unfinished escape

    def feed(self, text: str) -> bool:
        """Take text; return whether it is clear how it ends."""
        text, self._tail = self._tail + text, ""
        position = 0
        while position < len(text):
            if self._in_string:
                position = end_of(STRING_REST, text, position)
                if text[position : position + 1] != '"':
                    self._tail = text[position:]
                    return False
                self._in_string, self._after_string = False, True
                position += 1
                continue
            position = end_of(SPACE if self._after_string else _PLAIN, text, position)
            if position == len(text):
                return False
            sign = text[position]
            if self._after_string:
                self._after_string, self.broken = False, sign not in _AFTER_STRING
            else:
                position += 1
                self._in_string = sign == '"'
                self._depth += _DEEPER.get(sign, 0)
                self.broken = sign not in _SIGNS
            if self.broken or not self._depth:
                self.left = len(text) - position
                return True
        return False
