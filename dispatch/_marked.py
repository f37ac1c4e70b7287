"""Find where a JSON object between marks ends or breaks off."""

from __future__ import annotations

import re
from collections.abc import Callable

from ._format import Until
from ._scan import DEPTH_CHANGES, LENIENT_JSON, SPACE, STRING_REST, ObjectScanner, end_of

__all__ = ["MarkedObject"]

# The characters of JSON outside of strings and brackets. Each mark has a character that is not
# among them.
_OUTSIDE_STRINGS = re.compile(r"[-+.,:\d\seEtrufalsn]*+")
# Limited to a few characters, because they are read again with each piece of the text.
_BRACKETS = re.compile(r"[}\]][}\]\s]{0,15}\Z")
_AFTER_STRING = ",:}]"
_STRUCTURAL_SIGNS = '{}[]"'


class MarkedObject:
    """Passes an object on to `take`, which feeds `scanner`, up to its end or to a mark.

    A mark outside of a string breaks the object off. A mark inside of a string may be text of that
    string, or the closing quote is missing. So the text from that mark on is held until it
    completes the object as valid JSON. If it cannot, the object broke off at the mark, and closing
    brackets just before the mark were not part of the string.
    """

    def __init__(
        self, scanner: ObjectScanner, take: Callable[[str], object], *marks: str | None
    ) -> None:
        self.broken = False
        self._scanner = scanner
        self._take = take
        self._until = Until(*marks)
        self._brackets = ""  # closing brackets before a mark in a string
        self._held_parts: list[str] = []  # the text from that mark on
        self._probe: _Probe | None = None  # the reader of that text

    @property
    def raw(self) -> str:
        """The text of the object, or its readable part."""
        scanner = self._scanner
        return scanner.raw[: scanner.end] if scanner.done or scanner.broken else scanner.raw

    def feed(self, text: str) -> str | None:
        """Take text; return None while the object continues, else the text after it."""
        if self._probe is None:
            before, mark, after = self._until.feed(text)
            brackets = self._pass_on(before)
            scanner = self._scanner
            depth = scanner.string_depth() if mark else 0  # costs a scan: only at a mark
            # After `string_depth`, which may find the end of the object before the mark.
            if scanner.done or scanner.broken:
                self.broken = scanner.broken
                return scanner.raw[scanner.end :] + mark + after + self._until.release()
            if not mark:
                self._until.push_back(brackets)
                return None
            text = mark + after
            if not depth:  # the mark is outside of a string
                self.broken = True
                return text
            self._brackets = brackets
            self._probe = _Probe(depth)
        self._held_parts.append(text)
        if not self._probe.feed(text):
            return None
        held = "".join(self._held_parts)
        end = len(held) - self._probe.left
        rest = self._brackets + held[:end]
        self.broken = self._probe.broken
        # The probe only counts brackets. Decode once, before `take` makes the text final.
        try:
            LENIENT_JSON.decode(self._scanner.raw + rest)
        except (ValueError, RecursionError):
            self.broken = True
        if self.broken:
            return held
        self._take(rest)
        return held[end:]

    def end(self) -> str:
        """Take the end of the reply; return the text from the mark on that ended the object."""
        if self._probe is None:
            self._pass_on(self._until.release())
        self.broken = True
        return "".join(self._held_parts)

    def _pass_on(self, text: str) -> str:
        """Pass text on; return brackets at its end that may or may not be part of a string."""
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
    """Reads from inside a string in `depth` objects and lists up to the end of the outermost one.

    `broken` is set if the text is not JSON. `left` is the number of characters after the end, or
    after the character that broke it.
    """

    def __init__(self, depth: int) -> None:
        self.broken = False
        self.left = 0
        self._depth = depth
        self._in_string = True
        self._after_string = False
        self._tail: str = ""  # an unfinished escape

    def feed(self, text: str) -> bool:
        """Take text; return whether the end, or the break, has been found."""
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
            position = end_of(SPACE if self._after_string else _OUTSIDE_STRINGS, text, position)
            if position == len(text):
                return False
            sign = text[position]
            if self._after_string:
                self._after_string, self.broken = False, sign not in _AFTER_STRING
            else:
                position += 1
                self._in_string = sign == '"'
                self._depth += DEPTH_CHANGES.get(sign, 0)
                self.broken = sign not in _STRUCTURAL_SIGNS
            if self.broken or not self._depth:
                self.left = len(text) - position
                return True
        return False
