"""An incremental reader of one JSON object, in one pass over its characters.

It finds the end of the object and passes on the raw text of chosen top-level values. It does not
validate the JSON: `json.loads` does, when the object is complete.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container
from enum import Enum, auto
from typing import Protocol

from ..messages.text import SurrogateJoiner

__all__ = [
    "DEPTH_CHANGES",
    "LENIENT_JSON",
    "SPACE",
    "STRING_REST",
    "ObjectScanner",
    "StringDecoder",
    "Watcher",
    "end_of",
    "unescape",
]

# These patterns take linear time: the runs of characters are possessive, and nothing after the
# groups can fail and cause backtracking. Possessive groups would be simpler, but `re` matches too
# much with those before Python 3.11.5.
STRING_REST = re.compile(r'[^"\\]*+(?:\\.[^"\\]*+)*', re.DOTALL)
# Matches up to the next bracket outside of strings, the start of an unfinished string, or the end.
_NEXT_SIGN = re.compile(
    r'[^"{}\[\]]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*"[^"{}\[\]]*+)*([{}\[\]"]?)', re.DOTALL
)
DEPTH_CHANGES = {"{": 1, "[": 1, "}": -1, "]": -1}
_SCALAR = re.compile(r"[-+.\w\s]*+")
SPACE = re.compile(r"\s*+")
_WHOLE_ESCAPES = re.compile(r'(?:[^\\]++|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*')
LENIENT_JSON = json.JSONDecoder(strict=False)
_MAX_ESCAPE_CHARS = len(r"\u0000")


class _Await(Enum):
    """The character that a piece must contain before the scanner reads the stored pieces.

    Most pieces of a long value cannot end it. They are only stored, which makes a delta cheap.
    """

    ANYTHING = auto()
    QUOTE = auto()  # inside a string
    CLOSERS = auto()  # inside nested values: as many closing brackets as are open
    NOTHING = auto()


class Watcher(Protocol):
    """Takes the raw text of a watched value, piece by piece."""

    def start(self, key: str, kind: str) -> None:
        """Take the beginning of a value; `kind` is its first character."""
        ...

    def piece(self, raw: str) -> None:
        """Take a piece of the value; of a string, without its quotes."""
        ...

    def end(self) -> None:
        """Take the end of the value."""
        ...


class ObjectScanner:
    """Finds the end of one JSON object in text that arrives in pieces.

    `done` is set when the object is closed, `broken` when the text cannot be an object. `end` is
    then the number of characters up to that place. `parts` are the pieces as they arrived.
    `watcher` receives the values of the top-level keys in `watched`, however a key is escaped. It
    gets each piece of text during the call of `feed` that brought it.
    """

    __slots__ = (
        "_awaited",
        "_deepest",
        "_depth",
        "_key",
        "_missing",
        "_scanned",
        "_step",
        "_tail",
        "_watched",
        "_watcher",
        "_watching",
        "broken",
        "done",
        "end",
        "parts",
    )

    def __init__(self, watched: Container[str] = (), watcher: Watcher | None = None) -> None:
        self.parts: list[str] = []
        self.done: bool = False
        self.broken: bool = False
        self.end: int = 0
        self._watched = watched
        self._watcher = watcher
        self._watching = False
        self._scanned = 0  # the number of parts that have been scanned
        self._tail = ""  # scanned, but its meaning depends on the next piece
        self._depth = self._deepest = 0
        self._key: list[str] = []
        self._awaited = _Await.ANYTHING
        self._missing = 0  # closing brackets to await
        # The state: a function that reads on from a position. Not a bound method, which would make
        # a reference cycle of each scanner.
        self._step: Callable[[ObjectScanner, str, int], int] = ObjectScanner._open

    @property
    def deepest(self) -> int:
        """The deepest nesting of objects and lists so far."""
        return self._deepest + (self._watcher is not None)

    @property
    def raw(self) -> str:
        """All text so far."""
        if len(self.parts) < 2:
            return self.parts[0] if self.parts else ""
        text = "".join(self.parts)
        # Keep the joined text, so that repeated reads do not join again. Not while parts are
        # unscanned: `_scan` starts at a part.
        if self._awaited is _Await.NOTHING or self._scanned == len(self.parts):
            self.parts[:] = [text]
            self._scanned = 1
        return text

    def feed(self, piece: str) -> bool:
        """Take the next piece of text; return whether the object is closed."""
        self.parts.append(piece)
        awaited = self._awaited
        # These tests run for each delta of a call. They are much cheaper than a scan.
        if awaited is _Await.QUOTE:
            must_scan = '"' in piece
        elif awaited is _Await.CLOSERS:
            self._missing -= piece.count("}") + piece.count("]")
            must_scan = self._missing <= 0
        else:
            must_scan = awaited is _Await.ANYTHING
        if must_scan:
            self._scan()
        return self.done

    def string_depth(self) -> int:
        """Return how many objects and lists are open if the text ends inside a string, else 0."""
        if self._awaited is _Await.NOTHING:
            return 0
        self._scan()  # `feed` may have stored pieces without scanning them
        if self._step is ObjectScanner._nested_string:
            return self._depth + (self._watcher is not None)
        return int(self._step in (ObjectScanner._in_key, ObjectScanner._value_string))

    def _scan(self) -> None:
        text = self._tail + "".join(self.parts[self._scanned :])
        self._scanned = len(self.parts)
        position, length = 0, len(text)
        while position < length and self._awaited is not _Await.NOTHING:
            step = self._step
            reached = step(self, text, position)
            if reached == position and step is self._step:
                break  # an unfinished escape
            position = reached
        self._tail = text[position:]
        # After the tail is set: the end lies before it.
        if self._awaited is _Await.NOTHING:
            self.end = len(self.raw) - len(self._tail)

    def _enter(
        self,
        step: Callable[[ObjectScanner, str, int], int],
        awaited: _Await = _Await.ANYTHING,
        number: int = 0,
    ) -> None:
        self._step = step
        # A watched value must reach the watcher with each piece, so every piece is scanned.
        self._awaited = _Await.ANYTHING if self._watching else awaited
        self._missing = number

    def _finish(self, *, broken: bool) -> None:
        self.broken, self.done = broken, not broken
        self._awaited = _Await.NOTHING

    def _open(self, text: str, position: int) -> int:
        position = end_of(SPACE, text, position)
        if position == len(text):
            return position
        if text[position] != "{":
            self._finish(broken=True)
            return position
        if self._watcher is None:  # no key matters: count brackets up to the end of the object
            self._depth = 1
            self._enter(ObjectScanner._nested, _Await.CLOSERS, self._depth)
        else:
            self._enter(ObjectScanner._top)
        return position + 1

    def _top(self, text: str, position: int) -> int:
        position = end_of(SPACE, text, position)
        sign = text[position : position + 1]
        if sign == '"':
            self._key.clear()
            self._enter(ObjectScanner._in_key)
        elif sign == "}":
            self._finish(broken=False)
        elif sign not in ("", ","):
            self._finish(broken=True)
            return position
        return position + len(sign)

    def _in_key(self, text: str, position: int) -> int:
        end = end_of(STRING_REST, text, position)
        self._key.append(text[position:end])
        if text[end : end + 1] != '"':
            return end
        self._enter(ObjectScanner._colon)
        return end + 1

    def _colon(self, text: str, position: int) -> int:
        position = end_of(SPACE, text, position)
        sign = text[position : position + 1]
        if sign == ":":
            self._enter(ObjectScanner._value)
        elif sign:
            self._finish(broken=True)
            return position
        return position + len(sign)

    def _value(self, text: str, position: int) -> int:
        position = end_of(SPACE, text, position)
        if position == len(text):
            return position
        kind = text[position]
        key = unescape("".join(self._key))
        if self._watcher is not None and key is not None and key in self._watched:
            self._watching = True
            self._watcher.start(key, kind)
        if kind == '"':
            self._enter(ObjectScanner._value_string, _Await.QUOTE)
            return position + 1
        if kind in "{[":
            self._pass_on(kind)
            self._depth = 1
            self._enter(ObjectScanner._nested, _Await.CLOSERS, self._depth)
            return position + 1
        self._enter(ObjectScanner._scalar)
        return position

    def _value_string(self, text: str, position: int) -> int:
        end = end_of(STRING_REST, text, position)
        self._pass_on(text[position:end])
        if text[end : end + 1] != '"':
            self._enter(ObjectScanner._value_string, _Await.QUOTE)
            return end
        self._end_value()
        return end + 1

    def _scalar(self, text: str, position: int) -> int:
        end = end_of(_SCALAR, text, position)
        self._pass_on(text[position:end])
        if end < len(text):
            if text[end] in ",}":
                self._end_value()
            else:
                self._finish(broken=True)
        return end

    def _nested(self, text: str, position: int) -> int:
        match, depth, deepest = None, self._depth, self._deepest
        for match in _NEXT_SIGN.finditer(text, position):
            change = DEPTH_CHANGES.get(match[1])
            if change is None:
                break
            depth += change
            if depth > deepest:
                deepest = depth
            elif not depth:
                break
        assert match is not None, "the end of the text is a match at least"
        start, position = position, match.end()
        self._depth, self._deepest = depth, deepest
        self._pass_on(text[start:position])
        if not depth and self._watcher is None:
            self._finish(broken=False)
        elif not depth:
            self._end_value()
        elif match[1] == '"':  # a string that continues after this text
            self._enter(ObjectScanner._nested_string, _Await.QUOTE)
        else:
            self._enter(ObjectScanner._nested, _Await.CLOSERS, self._depth)
        return position

    def _nested_string(self, text: str, position: int) -> int:
        end = end_of(STRING_REST, text, position)
        closed = text[end : end + 1] == '"'
        self._pass_on(text[position : end + closed])
        if closed:
            self._enter(ObjectScanner._nested, _Await.CLOSERS, self._depth)
        else:
            self._enter(ObjectScanner._nested_string, _Await.QUOTE)
        return end + closed

    def _pass_on(self, raw: str) -> None:
        if self._watching and self._watcher is not None and raw:
            self._watcher.piece(raw)

    def _end_value(self) -> None:
        if self._watching and self._watcher is not None:
            self._watcher.end()
        self._watching = False  # before `_enter`, which checks it
        self._enter(ObjectScanner._top)


class StringDecoder:
    """Decodes the inside of a JSON string that arrives in pieces.

    It holds back only an unfinished escape and half a surrogate pair. After an invalid escape it
    returns no more text, since the arguments are invalid then.
    """

    __slots__ = ("_broken", "_held", "_joiner")

    def __init__(self) -> None:
        self._broken = False
        self._held = ""  # an unfinished escape, undecoded
        self._joiner = SurrogateJoiner()

    def feed(self, raw: str) -> str:
        """Return the text that `raw` completes."""
        if self._broken:
            return ""
        # The fast path for most deltas: there is nothing to decode or to join.
        if not self._held and not self._joiner.half and raw.isascii() and "\\" not in raw:
            return raw
        raw = self._held + raw
        end = end_of(_WHOLE_ESCAPES, raw, 0)
        self._held = raw[end:]
        self._broken = len(self._held) >= _MAX_ESCAPE_CHARS  # a valid escape would be complete
        return self._joiner.feed(unescape(raw[:end]) or "")

    def end(self) -> str:
        """Return the replacement of half a surrogate pair that is still held, or ""."""
        return self._joiner.end()


def unescape(raw: str) -> str | None:
    """Decode the inside of a JSON string; return None if it is invalid."""
    if "\\" not in raw:
        return raw
    try:
        return LENIENT_JSON.decode(f'"{raw}"')
    except ValueError:
        return None


def end_of(pattern: re.Pattern[str], text: str, position: int) -> int:
    """Return the end of the match at `position`. `pattern` must also match the empty text."""
    match = pattern.match(text, position)
    assert match is not None
    return match.end()
