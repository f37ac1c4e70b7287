"""Readers of calls while they arrive: JSON objects, a name and an object, code."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from ._format import Body, Output, Until, write_whole
from ._scan import ObjectScanner, StringDecoder, unescape

__all__ = ["ChoiceBody", "CodeBody", "JsonBody", "NamedBody"]

_ARGUMENTS = ("arguments", "parameters")

# What may stand before the first object, between two, between two in a list, and after a list.
_FIRST = re.compile(r"\s*+\[?\s*+")
_NEXT = re.compile(r"[\s;]*+")
_NEXT_IN_LIST = re.compile(r"\s*+,?\s*+")
_AFTER_LIST = re.compile(r"\s*+")


class _Stepwise(Body):
    """A body in states: each takes text and returns what is left for the next one."""

    def __init__(self, first: Callable[[str], str]) -> None:
        self._state = first
        self._over = False

    def feed(self, text: str) -> str | None:
        while text and not self._over:
            text = self._state(text)
        return text if self._over else None

    def _leave(self, rest: str) -> str:
        self._over = True
        return rest


class JsonBody(_Stepwise):
    """Calls as JSON objects with `name` and `arguments` (or `parameters`).

    One object; several, with white space or `;` between; or a list of them; then `close`, if there
    is one: it counts only outside of the JSON, so a string may hold it. What is no such object is
    a call that cannot be run. With `bare` it is text, unless the first object was begun as a call.
    """

    def __init__(self, output: Output, close: str | None = None, *, bare: bool = False) -> None:
        super().__init__(self._in_gap)
        self._output = output
        self._close = close
        self._undecided: list[str] | None = [] if bare else None  # all that came, as long as it is
        self._call: _JsonCall | None = None
        self._calls = 0
        self._between = _FIRST
        self._gap = ""  # what came since the last object
        self._broken: list[str] = []  # what cannot be read, up to the close
        self._until = Until(close)

    def feed(self, text: str) -> str | None:
        if self._undecided is not None:
            self._undecided.append(text)
        return super().feed(text)

    def end(self, *, stopped: bool) -> str:
        if self._undecided is not None:
            return "".join(self._undecided)
        if self._broken:
            self._fail("".join(self._broken) + self._until.held)
        elif self._call is not None:
            self._fail(self._call.scanner.raw)
        elif not self._calls:
            self._fail(self._gap)
        return ""

    def _in_gap(self, text: str) -> str:
        gap = self._gap + text
        match = self._between.match(gap)
        rest = gap[match.end() :] if match else gap
        self._gap = ""
        if rest.startswith("{") and self._between is not _AFTER_LIST:
            if self._between is _FIRST:
                self._between = _NEXT_IN_LIST if "[" in gap[: -len(rest)] else _NEXT
            self._call = _JsonCall(self._output, hold=self._undecided is not None)
            self._state = self._in_object
            return rest
        if rest.startswith("]") and self._between is _NEXT_IN_LIST:
            self._between = _AFTER_LIST
            return rest[1:]
        if self._close is not None and rest.startswith(self._close):
            return self._leave(rest[len(self._close) :])
        if not rest or (self._close is not None and self._close.startswith(rest)):
            self._gap = gap  # the close may follow, or another object
            return ""
        return self._leave(gap) if self._calls else self._give_up("", gap)

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
            text, self._undecided = "".join(self._undecided), None
            return self._leave(text)
        self._broken = [raw]
        self._state = self._in_broken
        return rest

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


class NamedBody(_Stepwise):
    """A call as a name, then `label`, then a JSON object; then `close`, if it follows.

    What is no object is taken up to `close`, as arguments that are not valid.
    """

    def __init__(self, output: Output, label: str, close: str | None = None) -> None:
        super().__init__(self._in_name)
        self._output = output
        self._close = close
        self._label = Until(label)
        self._until = Until(close)
        self._name: list[str] = []
        self._index = -1
        self._object = ObjectScanner()
        self._gap = ""  # what came after the object

    def end(self, *, stopped: bool) -> str:
        if self._index < 0:
            write_whole(self._output, None, "".join(self._name) + self._label.held)
        elif self._until.held:
            self._output.write(self._index, self._until.held)
        return ""

    def _in_name(self, text: str) -> str:
        before, after = self._label.feed(text)
        self._name.append(before)
        if after is None:
            return ""
        self._index = self._output.new_call()
        self._output.write(self._index, name="".join(self._name).strip())
        self._state = self._before_object
        return after

    def _before_object(self, text: str) -> str:
        text = text.lstrip()
        if text:
            self._state = self._in_object if text[0] == "{" else self._in_text
        return text

    def _in_object(self, text: str) -> str:
        rest = ""
        if self._object.feed(text):
            rest = self._object.raw[self._object.end :]
            self._state = self._in_gap
        self._output.write(self._index, text[: len(text) - len(rest)])
        return rest

    def _in_text(self, text: str) -> str:
        before, after = self._until.feed(text)
        self._output.write(self._index, before)
        return "" if after is None else self._leave(after)

    def _in_gap(self, text: str) -> str:
        gap = self._gap + text
        rest = gap.lstrip()
        if self._close is None:
            return self._leave(gap)
        if rest.startswith(self._close):
            return self._leave(rest[len(self._close) :])
        if self._close.startswith(rest):
            self._gap = gap
            return ""
        return self._leave(gap)


class CodeBody(Body):
    """A call of the tool `name` whose one argument is the code up to `close`, as it arrives.

    `close` begins with a newline, and may stand at the very beginning.
    """

    def __init__(self, output: Output, name: str, argument: str, close: str) -> None:
        self._output = output
        self._until = Until(close)
        self._until.feed("\n")
        self._begun = False  # beyond the newline that is only there for the close
        self._index = output.new_call()
        output.write(self._index, f'{{{json.dumps(argument)}: "', name)

    def feed(self, text: str) -> str | None:
        before, after = self._until.feed(text)
        self._write(before)
        if after is not None:
            self._output.write(self._index, '"}')
        return after

    def end(self, *, stopped: bool) -> str:
        self._write(self._until.held)
        if not stopped:
            self._output.write(self._index, '"}')
        return ""

    def _write(self, code: str) -> None:
        if code and not self._begun:
            self._begun = True
            code = code[1:]
        if code:
            self._output.write(self._index, json.dumps(code, ensure_ascii=False)[1:-1])


class ChoiceBody(Body):
    """Is `as_json` if the first character is one of `starts`, else what `otherwise` makes."""

    def __init__(self, starts: str, as_json: JsonBody, otherwise: Callable[[], Body]) -> None:
        self._starts = starts
        self._as_json = as_json
        self._otherwise = otherwise
        self._chosen: Body | None = None
        self._space = ""

    def feed(self, text: str) -> str | None:
        if self._chosen is None:
            text = self._space + text
            start = text.lstrip()[:1]
            if not start:
                self._space = text
                return None
            self._chosen = self._as_json if start in self._starts else self._otherwise()
        return self._chosen.feed(text)

    def end(self, *, stopped: bool) -> str:
        return (self._chosen or self._as_json).end(stopped=stopped)
