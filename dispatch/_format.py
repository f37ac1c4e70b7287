"""The base class of formats, which find calls or text for a branch in the text of a reply."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from ..messages import ToolCall
from ..messages.text import overlap

__all__ = ["Body", "CollectedBody", "Format", "Output", "Stepwise", "Until", "write_complete_call"]


class Output(Protocol):
    """Receives the parts of a text from its readers; the assembly implements it."""

    def show(self, text: str) -> None:
        """Take text for the user."""
        ...

    def put(self, branch: str, text: str) -> None:
        """Take text for a branch."""
        ...

    def new_call(self) -> int:
        """Begin a call; return its index."""
        ...

    def write(self, index: int, arguments: str = "", name: str | None = None) -> None:
        """Take the name of a call, or a piece of its arguments as JSON text."""
        ...


class Body(ABC):
    """Reads the text that follows an opening marker."""

    void = False
    """Whether this turned out to be no body. It then returns all its text, and the marker is text
    too."""

    @abstractmethod
    def feed(self, text: str) -> str | None:
        """Take text; return None while the body continues, else the text after the body."""

    @abstractmethod
    def end(self, *, stopped: bool) -> str:
        """Take the end of the reply; return the text after the body, or all text if it is `void`.

        `stopped`: the model did not end the reply itself, so an unclosed body broke off.
        """


class Stepwise(Body):
    """A body as a state machine: each state takes text and returns the rest for the next state."""

    def __init__(self, first: Callable[[str], str]) -> None:
        self._state = first
        self._is_over = False

    def feed(self, text: str) -> str | None:
        while text and not self._is_over:
            text = self._state(text)
        return text if self._is_over else None

    def _leave(self, rest: str) -> str:
        self._is_over = True
        return rest


class Format:
    """A way to write calls, or text for a branch, between markers in the text of a reply.

    A subclass sets `open`, the marker that begins the body, and `close`, the marker that ends it
    (None: the end of the reply). It then defines `read`, which parses the body into calls. Or it
    sets `branch`: the body goes to that branch as it arrives (`reply.branch(name)`). A format has
    no state, so one instance can serve many replies.

    Most models know their format, and servers describe the tools to them. For other models,
    `instruction` explains the format; it may contain `{tools}`, the list of the tools that `tool`
    allows (None: all). Their earlier calls are shown to them in the form that `write` returns.

    ```python
    class Shell(Format):
        open, close = "<sh>", "</sh>"

        def read(self, body):
            yield "shell", {"command": body}
    ```
    """

    open: str
    close: str | None = None
    branch: str | None = None
    at_line_start: bool = False
    """Whether `open` counts only at the start of a line."""
    instruction: str = ""
    tool: str | None = None

    def read(self, body: str) -> Iterable[tuple[str, str | dict[str, Any]]]:
        """Yield a tool's name and its arguments, as JSON text or an object, for each call.

        A `ValueError` turns the body into a faulty call.
        """
        raise NotImplementedError(f"{type(self).__name__} has neither read() nor a branch")

    def body(self, output: Output) -> Body:
        """Return a reader for one body; override it to read calls while they arrive."""
        return CollectedBody(output, self) if self.branch is None else _PassedBody(output, self)

    def write(self, call: ToolCall) -> str:
        """Return the text of a call as the model writes it."""
        body = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
        return f"{self.open}{body}{self.close or ''}"


class Until:
    """Finds the first of several marks in streaming text; a mark may be cut anywhere."""

    def __init__(self, *marks: str | None) -> None:
        self._marks = [mark for mark in marks if mark]
        self._pattern = re.compile("|".join(map(re.escape, self._marks)) or "(?!)")
        self._held = ""  # the possible beginning of a mark

    def feed(self, text: str) -> tuple[str, str, str]:
        """Return the text before a mark, the mark and the text after it, as `str.partition`.

        A possible beginning of a mark is held back until the next call.
        """
        text = self._held + text
        if found := self._pattern.search(text):
            self._held = ""
            return text[: found.start()], found[0], text[found.end() :]
        end = len(text) - max((overlap(text, mark) for mark in self._marks), default=0)
        self._held = text[end:]
        return text[:end], "", ""

    def push_back(self, text: str) -> None:
        """Take the end of the last returned text back, to return it with the next text."""
        self._held = text + self._held

    def release(self) -> str:
        """Return the held beginning of a mark, which turned out to be text."""
        held, self._held = self._held, ""
        return held


def write_complete_call(output: Output, name: str | None, arguments: str | dict[str, Any]) -> None:
    """Write a complete call; without a name it is a faulty call."""
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    output.write(output.new_call(), arguments, name)


class CollectedBody(Body):
    """Collects the complete body, then lets the format read it.

    An unclosed body ends at `start`, the mark of the next call, if that is given.
    """

    def __init__(self, output: Output, format: Format, start: str | None = None) -> None:  # noqa: A002 - the public term
        self._output = output
        self._format = format
        self._start = start
        self._until = Until(format.close, start)
        self._parts: list[str] = []

    def feed(self, text: str) -> str | None:
        before, mark, after = self._until.feed(text)
        self._parts.append(before)
        if not mark:
            return None
        self._read("".join(self._parts))
        return mark + after if mark == self._start else after

    def end(self, *, stopped: bool) -> str:
        body = "".join(self._parts) + self._until.release()
        if stopped:  # the body broke off: a call that may be incomplete must not run
            write_complete_call(self._output, None, body)
        else:
            self._read(body)
        return ""

    def _read(self, body: str) -> None:
        try:
            calls = list(self._format.read(body))
        except ValueError:
            calls = [(None, body)]
        for name, arguments in calls:
            write_complete_call(self._output, name, arguments)


class _PassedBody(Body):
    """Passes the body on to a branch as it arrives."""

    def __init__(self, output: Output, format: Format) -> None:  # noqa: A002 - the public term
        assert format.branch is not None
        self._output = output
        self._branch = format.branch
        self._until = Until(format.close)

    def feed(self, text: str) -> str | None:
        before, mark, after = self._until.feed(text)
        self._put(before)
        return after if mark else None

    def end(self, *, stopped: bool) -> str:
        self._put(self._until.release())
        return ""

    def _put(self, text: str) -> None:
        if text:
            self._output.put(self._branch, text)
