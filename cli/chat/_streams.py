"""The program's standard streams while the prompt has the terminal: nobody else reads keys."""

from __future__ import annotations

import io
import os
import re
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from ...handlers.legible import legible

__all__ = ["Above", "streams_above"]

# A line that is longer, or has no end, goes out in pieces.
LONGEST = 20_000

# Colours and other styles, the only sequences of a tool that do not move what stands there.
_STYLE = re.compile(r"(\x1b\[[0-9;:]*m)")
# What progress bars write: a line that is erased begins again, as behind a carriage return; what
# moves or hides the cursor has no meaning above a prompt.
_ERASED = re.compile(r"\x1b\[[12]K")
_MOVED = re.compile(r"\x1b\[(?![0-9;:]*m)[0-?]*[ -/]*[@-~]")


class Above(io.TextIOBase):
    """Takes what is written to a stream of the terminal, from any thread: each line goes to `put`.

    A line that has no end yet is `begun`, and `changed` tells of it: it may be written anew behind
    a carriage return, as progress bars do.
    """

    def __init__(
        self, stream: TextIO, put: Callable[[str], None], changed: Callable[[], None]
    ) -> None:
        self._stream = stream
        self._put = put
        self._changed = changed
        self._line = ""
        self._lock = threading.RLock()  # what is deleted meanwhile may print, too

    def write(self, text: str) -> int:
        """Take a piece of text."""
        with self._lock:
            lines, newline, self._line = (self._line + text).rpartition("\n")
            if len(self._line) > LONGEST:
                lines, newline, self._line = lines + newline + self._line, "\n", ""
            if newline:
                self._put("".join(_last_state(line) + "\n" for line in lines.split("\n")))
        return len(text)

    def flush(self) -> None:
        """Show the line that has no end yet."""
        self._changed()

    @property
    def begun(self) -> str:
        """The line that has no end yet, without its colours."""
        return _STYLE.sub("", _last_state(self._line)).rstrip()

    def take(self) -> str:
        """Return the line that has no end yet, ended: what comes now begins another."""
        with self._lock:
            line, self._line = self._line, ""
        state = _last_state(line)
        return state + "\n" if _STYLE.sub("", state).strip() else ""

    def isatty(self) -> bool:
        """Say that it is a terminal: what is written is seen there."""
        return True

    def fileno(self) -> int:
        """Return the descriptor of the terminal."""
        return self._stream.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the stream."""
        return self._stream.encoding


def _last_state(line: str) -> str:
    """Return what a line shows in the end, in its colours, without what would steer the screen."""
    line = _MOVED.sub("", _ERASED.sub("\r", line))
    states = [each for each in line.split("\r") if each] or [""]
    text, *styles = _STYLE.split(states[-1])
    shown = [piece if at % 2 == 0 else legible(piece) for at, piece in enumerate(styles)]
    return "".join([legible(text), *shown, "\x1b[0m" if styles else ""])


@contextmanager
def streams_above(
    put: Callable[[str], None], changed: Callable[[], None]
) -> Generator[list[Above]]:
    """Give the lines that anybody prints to `put`, and nobody the keys: input is at its end.

    Who reads the standard input of this process, as a tool may do, would take the keys of the
    prompt, and wait for ever.
    """
    before = sys.stdin, sys.stdout, sys.stderr
    above: list[Above] = []
    for name, stream in (("stdout", sys.stdout), ("stderr", sys.stderr)):
        if stream.isatty():
            above.append(Above(stream, put, changed))
            setattr(sys, name, cast("TextIO", above[-1]))
    nothing: Any = open(os.devnull, encoding="utf-8")  # noqa: SIM115 - it is closed below
    if cast("Any", sys.stdin) is not None and sys.stdin.isatty():
        sys.stdin = nothing
    try:
        yield above
    finally:
        sys.stdin, sys.stdout, sys.stderr = before
        nothing.close()
