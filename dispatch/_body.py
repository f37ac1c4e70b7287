"""Readers of streaming calls: a name with a JSON object, code, and a choice between two readers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from ._format import Body, Output, Stepwise, Until, write_complete_call
from ._json_body import JsonBody
from ._marked import MarkedObject
from ._scan import SPACE, ObjectScanner, end_of

__all__ = ["ChoiceBody", "CodeBody", "NamedBody"]

# The head of a named call must end within this many characters, or it is text. The limit bounds the
# cost of matching it again with each piece, and the text held back that only looks like a head.
_MAX_HEAD_CHARS = 256

_STRAY = "}],;"  # superfluous signs that models write after an object


class NamedBody(Stepwise):
    """Reads a head with the name of the call, then a JSON object, then an optional `close`.

    `head` matches the head; its first group is the name. `no_head` matches text that can no longer
    become a head. Anything but an object counts as invalid arguments, up to `close` or to `start`,
    the mark of the next call. An object that breaks off ends there too (see `MarkedObject`).
    """

    def __init__(
        self,
        output: Output,
        head: re.Pattern[str],
        no_head: re.Pattern[str],
        close: str | None = None,
        start: str | None = None,
    ) -> None:
        super().__init__(self._in_head)
        self._output = output
        self._head = head
        self._no_head = no_head
        self._close = close
        self._until = Until(close, start)
        self._head_text = ""  # the text so far, until the head is complete
        self._index = -1
        scanner = ObjectScanner()

        def take(text: str) -> None:
            # The text behind the object is not part of the arguments.
            after = len(scanner.raw) - scanner.end if scanner.feed(text) else 0
            output.write(self._index, text[: max(0, len(text) - after)])

        self._object: MarkedObject | None = MarkedObject(scanner, take, close, start)
        self._gap: list[str] = []  # white space after the object
        self._held = ""  # the possible beginning of `close`

    def end(self, *, stopped: bool) -> str:
        if self._index >= 0:
            if self._object is not None and (rest := self._object.end()):
                self._state = self._in_text
                return self.feed(rest) or ""
            self._output.write(self._index, self._until.release())
        elif self._head_text.strip():
            write_complete_call(self._output, None, self._head_text)
        else:
            self.void = True
        return self._head_text if self.void else ""

    def _in_head(self, text: str) -> str:
        head_text = self._head_text = self._head_text + text
        found = self._head.match(head_text, 0, _MAX_HEAD_CHARS)
        if found is None:
            self.void = (
                len(head_text) >= _MAX_HEAD_CHARS or self._no_head.match(head_text) is not None
            )
            return self._leave(head_text) if self.void else ""
        self._index = self._output.new_call()
        self._output.write(self._index, name=found[1])
        self._state = self._before_object
        return head_text[found.end() :]

    def _before_object(self, text: str) -> str:
        text = text.lstrip()
        if text:
            self._state = self._in_object if text[0] == "{" else self._in_text
        return text

    def _in_object(self, text: str) -> str:
        assert self._object is not None
        rest = self._object.feed(text)
        if rest is None:
            return ""
        self._state = self._in_text if self._object.broken else self._in_gap
        self._object = None
        return rest

    def _in_text(self, text: str) -> str:
        before, mark, after = self._until.feed(text)
        self._output.write(self._index, before)
        if not mark:
            return ""
        return self._leave(after if mark == self._close else mark + after)

    def _in_gap(self, text: str) -> str:
        text, self._held = self._held + text, ""
        space = end_of(SPACE, text, 0)
        self._gap.append(text[:space])
        rest = text[space:]
        if not rest:
            return ""
        if rest[0] in _STRAY:
            self._gap.clear()
            return rest[1:]
        if self._close is not None and rest.startswith(self._close):
            return self._leave(rest[len(self._close) :])
        if self._close is not None and self._close.startswith(rest):
            self._held = rest
            return ""
        return self._leave(
            "".join(self._gap) + rest
        )  # the white space is part of the text that follows


class CodeBody(Body):
    """Reads code up to `close` as the only argument of a call of `name`, while it arrives.

    `close` begins with a newline. It may also follow the opening marker directly: then the code is
    empty.
    """

    def __init__(self, output: Output, name: str, argument: str, close: str) -> None:
        self._output = output
        self._until = Until(close)
        self._until.feed("\n")  # the marker ended with a newline, which may begin `close`
        self._begun = False  # the code has begun, and that newline has been removed
        self._index = output.new_call()
        output.write(self._index, f'{{{json.dumps(argument)}: "', name)

    def feed(self, text: str) -> str | None:
        before, mark, after = self._until.feed(text)
        self._write(before)
        if not mark:
            return None
        self._output.write(self._index, '"}')
        return after

    def end(self, *, stopped: bool) -> str:
        self._write(self._until.release())
        if not stopped:  # code that broke off stays invalid JSON, so that it cannot run
            self._output.write(self._index, '"}')
        return ""

    def _write(self, code: str) -> None:
        if code and not self._begun:
            self._begun = True
            code = code[1:]
        if code:
            self._output.write(self._index, json.dumps(code, ensure_ascii=False)[1:-1])


class ChoiceBody(Body):
    """Delegates to `as_json` if the first visible character is in `starts`, else to `otherwise()`.

    `otherwise` is a factory because some readers begin a call when they are made.
    """

    def __init__(self, starts: str, as_json: JsonBody, otherwise: Callable[[], Body]) -> None:
        self._starts = starts
        self._as_json = as_json
        self._otherwise = otherwise
        self._chosen: Body | None = None
        self._space: list[str] = []

    def feed(self, text: str) -> str | None:
        if self._chosen is None:
            self._space.append(text)
            start = text.lstrip()[:1]
            if not start:
                return None
            self._chosen = self._as_json if start in self._starts else self._otherwise()
            text = "".join(self._space)
        rest = self._chosen.feed(text)
        self.void = self._chosen.void
        return rest

    def end(self, *, stopped: bool) -> str:
        if self._chosen is None:
            self.void = True
            return "".join(self._space)
        left = self._chosen.end(stopped=stopped)
        self.void = self._chosen.void
        return left
