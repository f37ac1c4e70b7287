"""What a model writes into its text beside text: formats of calls, and of text for a branch."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from ..messages import ToolCall
from ..messages.text import overlap

__all__ = ["Body", "CollectedBody", "Format", "Output", "Stepwise", "Until", "write_whole"]


class Output(Protocol):
    """Where the parts of a text go; the assembly is one."""

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
        """Take more of a call: its name, or a piece of its arguments, as JSON text."""
        ...


class Body(ABC):
    """Reads what follows an opening marker."""

    void = False
    """Whether there was no body: the marker, too, is text, and all that came is given back."""

    @abstractmethod
    def feed(self, text: str) -> str | None:
        """Take text; return None if it all belongs to the body, else what comes after the body."""

    @abstractmethod
    def end(self, *, stopped: bool) -> str:
        """Take the end of the reply; return what is not of the body: all that came if it is `void`.

        `stopped` says that the model did not end the reply itself: what is not closed broke off.
        """


class Stepwise(Body):
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


class Format:
    """A way to write calls, or text for a branch, between markers in the text of a reply.

    A subclass sets `open`, the marker that begins it, and `close`, the one that ends it (None: the
    end of the reply does), and writes `read`, which makes calls of what stands between. Or it sets
    `branch`: what stands between goes there as it arrives (`reply.branch(name)`). A format keeps
    no state, so one may serve many replies.

    Most models know their format, and servers tell them of the tools. One that does not is told by
    `instruction`, where `{tools}` is the list of those that `tool` allows (None: all); what it has
    called before is then put to it as `write` gives it.
    """

    open: str
    close: str | None = None
    branch: str | None = None
    at_line_start: bool = False
    """Whether `open` counts only at the start of a line."""
    instruction: str = ""
    tool: str | None = None

    def read(self, body: str) -> Iterable[tuple[str, str | dict[str, Any]]]:
        """Give the calls in `body`: of each the tool's name and its arguments, JSON or an object.

        A `ValueError` makes a call of the body that cannot be run.
        """
        raise NotImplementedError(f"{type(self).__name__} has neither read() nor a branch")

    def body(self, output: Output) -> Body:
        """Make the reader of one body; override it to read calls while they arrive."""
        return CollectedBody(output, self) if self.branch is None else _PassedBody(output, self)

    def write(self, call: ToolCall) -> str:
        """Write a call as the model does."""
        body = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
        return f"{self.open}{body}{self.close or ''}"


class Until:
    """Passes text on up to the first of some marks, which may be cut anywhere; else all of it."""

    def __init__(self, *marks: str | None) -> None:
        self._marks = [mark for mark in marks if mark]
        self._pattern = re.compile("|".join(map(re.escape, self._marks)) or "(?!)")
        self._held = ""  # a beginning of a mark, perhaps

    def feed(self, text: str) -> tuple[str, str, str]:
        """Return the text before a mark, the mark, and what comes after it, or empty strings."""
        text = self._held + text
        if found := self._pattern.search(text):
            self._held = ""
            return text[: found.start()], found[0], text[found.end() :]
        end = len(text) - max((overlap(text, mark) for mark in self._marks), default=0)
        self._held = text[end:]
        return text[:end], "", ""

    def push_back(self, text: str) -> None:
        """Take back the end of the text before what is held."""
        self._held = text + self._held

    def release(self) -> str:
        """Return what was held back because it might have begun a mark."""
        held, self._held = self._held, ""
        return held


def write_whole(output: Output, name: str | None, arguments: str | dict[str, Any]) -> None:
    """Write a call at once; without a name it is one that cannot be run."""
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    output.write(output.new_call(), arguments, name)


class CollectedBody(Body):
    """Waits for the whole body, and lets the format read it.

    One that is not closed ends where the next begins, if `start` is given: the mark of that.
    """

    def __init__(self, output: Output, format: Format, start: str | None = None) -> None:  # noqa: A002 - what it is
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
        if stopped:
            write_whole(self._output, None, body)
        else:
            self._read(body)
        return ""

    def _read(self, body: str) -> None:
        try:
            calls = list(self._format.read(body))
        except ValueError:
            calls = [(None, body)]
        for name, arguments in calls:
            write_whole(self._output, name, arguments)


class _PassedBody(Body):
    """Passes the body on to a branch as it arrives."""

    def __init__(self, output: Output, format: Format) -> None:  # noqa: A002 - what it is
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
