"""Read calls that the model writes as JSON objects, while they arrive."""

from __future__ import annotations

from collections.abc import Callable

from ._format import Output, Stepwise, Until, write_complete_call
from ._marked import MarkedObject
from ._scan import SPACE, ObjectScanner, StringDecoder, end_of, unescape

__all__ = ["JsonBody"]

_ARGUMENTS = ("arguments", "parameters")
# The signs that may come next: at first, in a list, after an object, after a list. Superfluous
# signs are dropped, since they are not text for the user.
_FIRST, _IN_LIST, _AFTER_OBJECT, _AFTER_LIST = "[{", "{", "{,;]}", ",;]}"


class JsonBody(Stepwise):
    """Reads calls as JSON objects with `name` and `arguments` (or `parameters`).

    The body is one object, several with white space or signs between them, or a list of objects;
    then `close`, if there is one.

    - A call that breaks off ends at `close` or at `start`, the mark of the next call (see
      `MarkedObject`).
    - Anything else is a faulty call, or text if it neither began as an object nor was closed.
    - Text between the objects and `close` is dropped. It stays text if `start` or the end of the
      reply comes before `close`.
    - With `bare` everything is text, unless the first object turns out to be a call.
    """

    def __init__(
        self,
        output: Output,
        close: str | None = None,
        start: str | None = None,
        *,
        bare: bool = False,
    ) -> None:
        super().__init__(self._in_gap)
        self._output = output
        self._close = close
        self._start = start
        # The text so far, until it is clear whether this is a call.
        self._undecided: list[str] | None = [] if bare else None
        self._call: _JsonCall | None = None
        self._object: MarkedObject | None = None  # of that call, until its end
        self._calls = 0  # complete calls
        # The last complete call: what follows decides whether it is faulty.
        self._last: tuple[_JsonCall, str] | None = None
        self._signs = _FIRST
        self._gap: list[str] = []  # white space since the last sign or object, and leading signs
        self._held = ""  # the possible beginning of `close`
        self._unreadable: list[str] = []  # text up to a mark
        self._until = Until(close, start)

    def feed(self, text: str) -> str | None:
        if self._undecided is not None:
            self._undecided.append(text)
        return super().feed(text)

    def end(self, *, stopped: bool) -> str:
        if self._undecided is not None:
            return self._become_text(self._undecided)
        if self._object is not None and (rest := self._object.end()):
            return self.feed(self._break_off(rest)) or ""
        unreadable = "".join(self._unreadable or [*self._gap, self._held]) + self._until.release()
        if self._call is not None:
            self._call.fail(unreadable if self._object is None else self._object.raw)
        elif self._calls:
            self._settle()
            return unreadable if self._unreadable else ""
        elif stopped or self._close is None:
            write_complete_call(self._output, None, unreadable)
        else:
            return self._become_text([unreadable])
        return ""

    def _in_gap(self, text: str) -> str:
        text, self._held = self._held + text, ""
        space = end_of(SPACE, text, 0)
        self._gap.append(text[:space])
        rest = text[space:]
        if not rest:
            return ""
        if rest[0] == "{" and "{" in self._signs:
            self._settle()
            self._gap.clear()
            call = self._call = _JsonCall(self._output, hold=self._undecided is not None)
            self._object = MarkedObject(call.scanner, call.scanner.feed, self._close, self._start)
            self._state = self._in_object
            return rest
        if rest[0] in self._signs:
            if self._calls:  # before the first call, a sign may still turn out to be text
                self._gap.clear()
                self._signs = _AFTER_LIST if rest[0] == "]" else self._signs
            else:
                self._gap.append(rest[0])
                self._signs = _IN_LIST
            return rest[1:]
        if self._close is not None and rest.startswith(self._close):
            self._settle()  # only signs and white space came before `close`
            return self._leave(rest[len(self._close) :])
        if self._close is not None and self._close.startswith(rest):
            self._held = rest
            return ""
        rest = "".join(self._gap) + rest
        if self._calls and self._close is None:
            return self._leave(rest)
        if self._undecided is not None:
            return self._leave(self._become_text(self._undecided))
        self._state = self._after_calls if self._calls else self._in_broken
        return rest

    def _in_object(self, text: str) -> str:
        call, written = self._call, self._object
        assert call is not None
        assert written is not None
        rest = written.feed(text)
        if call.has_begun:  # a part of the call has been written: it can no longer become text
            self._undecided = None
        if rest is None:
            return ""
        if written.broken or self._undecided is not None:
            return self._break_off(rest)
        self._last = call, written.raw
        self._call = self._object = None
        self._calls += 1
        if self._close is None:  # no text before a `close` can make the call faulty
            self._settle()
        self._signs = _AFTER_OBJECT
        self._state = self._in_gap
        return rest

    def _break_off(self, rest: str) -> str:
        """Leave an object that broke off; `rest` is the text after its readable part."""
        if self._undecided is not None:
            return self._leave(self._become_text(self._undecided))
        assert self._object is not None
        self._unreadable.append(self._object.raw)
        self._object = None
        self._state = self._in_broken
        return rest

    def _in_broken(self, text: str) -> str:
        before, mark, after = self._until.feed(text)
        self._unreadable.append(before)
        if not mark:
            return ""
        if self._call is not None:
            self._call.fail("".join(self._unreadable))
        elif mark == self._close:
            write_complete_call(self._output, None, "".join(self._unreadable))
        else:
            return self._leave(self._become_text([*self._unreadable, mark, after]))
        return self._leave(after if mark == self._close else mark + after)

    def _after_calls(self, text: str) -> str:
        before, mark, after = self._until.feed(text)
        self._unreadable.append(before)
        if not mark:
            return ""
        unreadable = "".join(self._unreadable)
        if mark == self._close:
            self._settle(followed_by=unreadable)
            return self._leave(after)
        self._settle()
        return self._leave(unreadable + mark + after)

    def _settle(self, followed_by: str = "") -> None:
        """Finish the last complete call, or make it faulty if it is `followed_by` other text."""
        if self._last is not None:
            call, raw = self._last
            self._last = None
            if followed_by:
                call.fail(followed_by)
            else:
                call.finish(raw)

    def _become_text(self, parts: list[str]) -> str:
        self.void = True
        self._undecided = None
        return "".join(parts)


class _JsonCall:
    """Writes the name and the arguments of one object as they arrive.

    With `hold` it writes nothing before it has both: until then the object may not be a call.
    """

    def __init__(self, output: Output, *, hold: bool) -> None:
        self.scanner = ObjectScanner(("name", *_ARGUMENTS), self)
        self._output = output
        self._index: int | None = None
        self._held: list[tuple[str, str | None]] | None = [] if hold else None
        self._name: str | None = None
        self._raw_name: list[str] = []
        self._has_arguments = False
        self._decoder: StringDecoder | None = None  # for arguments that are a JSON string
        self._take: Callable[[str], None] | None = None  # takes the value that is arriving

    @property
    def has_begun(self) -> bool:
        """Whether a part of the call has been written."""
        return self._index is not None

    def start(self, key: str, kind: str) -> None:
        """Take the beginning of a value; the first name and the first arguments count."""
        if key == "name" and kind == '"' and self._name is None:
            self._raw_name.clear()
            self._take = self._raw_name.append
        elif key in _ARGUMENTS and kind != "n" and not self._has_arguments:  # "n": null
            self._has_arguments = True
            self._decoder = StringDecoder() if kind == '"' else None
            self._take = self._take_arguments

    def piece(self, raw: str) -> None:
        """Take a piece of the value."""
        if self._take is not None:
            self._take(raw)

    def end(self) -> None:
        """Take the end of the value."""
        if self._take == self._take_arguments:
            if self._decoder is not None:
                self._write(self._decoder.end())
        elif self._take is not None:
            self._name = unescape("".join(self._raw_name)) or None
            if self._name:
                self._write("", self._name)
        self._take = None

    def finish(self, raw: str) -> None:
        """Take the end of the object; a call without arguments gets an empty object."""
        if self._name is None:
            self.fail(raw)
        elif not self._has_arguments:
            self._write("{}")

    def fail(self, raw: str) -> None:
        """Make the call faulty, unless its own arguments already do so."""
        if not self.has_begun:
            write_complete_call(self._output, None, raw)
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
