"""Reads calls that are written as JSON objects, while they arrive."""

from __future__ import annotations

import re
from collections.abc import Callable

from ._format import Output, Stepwise, Until, write_whole
from ._scan import ObjectScanner, StringDecoder, unescape

__all__ = ["JsonBody"]

_ARGUMENTS = ("arguments", "parameters")
_SPACE = re.compile(r"\s*+")

# What may come first, and what after a sign between the objects.
_FIRST = "[{"
_AFTER = {"[": "{", ",": "{]", "]": "", ";": "{;"}


class JsonBody(Stepwise):
    """Calls as JSON objects with `name` and `arguments` (or `parameters`).

    One object; several, with white space or `;` between; or a list of them; then `close`, if there
    is one: it counts only outside of the JSON, so a string may hold it. What is no such object is
    a call that cannot be run; but if it neither began as an object nor was ever closed, it is
    text. With `bare` it is text, too, unless the first object was begun as a call.
    """

    def __init__(self, output: Output, close: str | None = None, *, bare: bool = False) -> None:
        super().__init__(self._in_gap)
        self._output = output
        self._close = close
        self._undecided: list[str] | None = [] if bare else None  # all that came, as long as it is
        self._call: _JsonCall | None = None
        self._calls = 0
        self._signs = _FIRST  # those that may come next
        self._in_list = False
        self._gap: list[str] = []  # white space and signs since the last object
        self._held = ""  # it may begin the close
        self._broken: list[str] = []  # what cannot be read, up to the close
        self._until = Until(close)

    def feed(self, text: str) -> str | None:
        if self._undecided is not None:
            self._undecided.append(text)
        return super().feed(text)

    def end(self, *, stopped: bool) -> str:
        if self._undecided is not None:
            return self._be_text(self._undecided)
        began = self._call is not None or self._calls > 0
        left = self._broken or [*self._gap, self._held]
        if not (began or stopped or self._close is None):
            return self._be_text([*left, self._until.held])
        if self._broken:
            self._fail("".join(left) + self._until.held)
        elif self._call is not None:
            self._fail(self._call.scanner.raw)
        elif not self._calls:
            self._fail("".join(left))
        return ""

    def _in_gap(self, text: str) -> str:
        text, self._held = self._held + text, ""
        space = _SPACE.match(text)
        rest = text[space.end() :] if space else text
        self._gap.append(text[: len(text) - len(rest)])
        if not rest:
            return ""
        if rest[0] in self._signs:
            return self._begin_object(rest) if rest[0] == "{" else self._take_sign(rest)
        if self._close is not None and rest.startswith(self._close):
            return self._leave(rest[len(self._close) :])
        if self._close is not None and self._close.startswith(rest):
            self._held = rest
            return ""
        rest = "".join(self._gap) + rest
        return self._leave(rest) if self._calls else self._give_up("", rest)

    def _begin_object(self, text: str) -> str:
        self._gap.clear()
        self._call = _JsonCall(self._output, hold=self._undecided is not None)
        self._state = self._in_object
        return text

    def _take_sign(self, text: str) -> str:
        sign = text[0]
        self._gap.append(sign)
        self._in_list = self._in_list or sign == "["
        self._signs = _AFTER[sign]
        return text[1:]

    def _in_object(self, text: str) -> str:
        call = self._call
        assert call is not None
        over = call.scanner.feed(text)
        if call.begun:
            self._undecided = None
        if call.scanner.broken:
            return self._give_up(*call.split())
        if not over:
            return ""
        raw, rest = call.split()
        if self._undecided is not None:
            return self._give_up(raw, rest)
        call.finish(raw)
        self._call = None
        self._calls += 1
        self._signs = "{,]" if self._in_list else "{;"
        self._state = self._in_gap
        return rest

    def _in_broken(self, text: str) -> str:
        before, after = self._until.feed(text)
        self._broken.append(before)
        if after is None:
            return ""
        self._fail("".join(self._broken))
        return self._leave(after)

    def _give_up(self, raw: str, rest: str) -> str:
        if self._undecided is not None:
            return self._leave(self._be_text(self._undecided))
        self._broken = [raw]
        self._state = self._in_broken
        return rest

    def _be_text(self, came: list[str]) -> str:
        self.void = True
        self._undecided = None
        return "".join(came)

    def _fail(self, raw: str) -> None:
        if self._call is None:
            write_whole(self._output, None, raw)
        else:
            self._call.fail(raw)


class _JsonCall:
    """One object: its name and arguments go on as they arrive.

    With `hold` only once there are both: until then it may be no call.
    """

    def __init__(self, output: Output, *, hold: bool) -> None:
        self.scanner = ObjectScanner(("name", *_ARGUMENTS), self)
        self._output = output
        self._index: int | None = None
        self._held: list[tuple[str, str | None]] | None = [] if hold else None
        self._name: str | None = None
        self._raw_name: list[str] = []
        self._has_arguments = False
        self._decoder: StringDecoder | None = None  # of arguments that are written as a string
        self._take: Callable[[str], None] | None = None  # what takes the value that arrives

    @property
    def begun(self) -> bool:
        """Whether something of it was written."""
        return self._index is not None

    def split(self) -> tuple[str, str]:
        """Return the object, or as much as could be read of it, and what came after it."""
        raw = self.scanner.raw
        return raw[: self.scanner.end], raw[self.scanner.end :]

    def start(self, key: str, kind: str) -> None:
        """See a value begin."""
        if key == "name" and kind == '"' and self._name is None:
            self._raw_name.clear()
            self._take = self._raw_name.append
        elif key in _ARGUMENTS and kind != "n" and not self._has_arguments:
            self._has_arguments = True
            self._decoder = StringDecoder() if kind == '"' else None
            self._take = self._take_arguments

    def piece(self, raw: str) -> None:
        """See more of it."""
        if self._take is not None:
            self._take(raw)

    def end(self) -> None:
        """See its end."""
        if self._take == self._take_arguments:
            if self._decoder is not None:
                self._write(self._decoder.end())
        elif self._take is not None:
            self._name = unescape("".join(self._raw_name)) or None
            if self._name:
                self._write("", self._name)
        self._take = None

    def finish(self, raw: str) -> None:
        """Take the end of the object; a call without arguments has none to give."""
        if self._name is None:
            self.fail(raw)
        elif not self._has_arguments:
            self._write("{}")

    def fail(self, raw: str) -> None:
        """Make it a call that cannot be run, if it is not one by its own arguments."""
        if not self.begun:
            write_whole(self._output, None, raw)
        elif not self._has_arguments:
            self._write(raw)

    def _take_arguments(self, raw: str) -> None:
        self._write(raw if self._decoder is None else self._decoder.feed(raw))

    def _write(self, arguments: str, name: str | None = None) -> None:
        if self._held is not None:
            self._held.append((arguments, name))
            if not (self._name and self._has_arguments):
                return
            held, self._held = self._held, None
        else:
            held = [(arguments, name)]
        if self._index is None:
            self._index = self._output.new_call()
        for each, its_name in held:
            self._output.write(self._index, each, its_name)
