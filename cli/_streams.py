"""Capture what the program prints, so that it appears above a prompt or a live region."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, TextIO, cast

from rich.cells import cell_len, set_cell_size

from ..handlers.legible import legible

__all__ = ["CapturedStream", "begun_lines", "captured_streams"]

# A longer line, or one that never ends, is printed in pieces.
MAX_LINE_CHARS = 20_000

# Colours and other styles: the only sequences that do not move the cursor.
_STYLE = re.compile(r"(\x1b\[[0-9;:]*m)")
# Sequences of progress bars. Erasing a line starts it again, like a carriage return; moving or
# hiding the cursor has no meaning above a prompt.
_ERASE_LINE = re.compile(r"\x1b\[[12]K")
_OTHER_SEQUENCE = re.compile(r"\x1b\[(?![0-9;:]*m)[0-?]*[ -/]*[@-~]")


class CapturedStream:
    """A terminal stream whose complete lines go to `put`, from any thread.

    Unless it is `raw`, nothing in these lines moves the cursor. `begun` is the line without its
    end, which a progress bar may write again behind a carriage return; a flush calls `changed`. All
    other attributes are those of the stream.
    """

    def __init__(
        self,
        stream: TextIO,
        put: Callable[[str], None],
        changed: Callable[[], None],
        *,
        raw: bool = False,
    ) -> None:
        self._raw = raw
        self._stream = stream
        self._put = put
        self._changed = changed
        self._line = ""
        self._released = False
        self._lock = threading.RLock()  # a destructor that runs inside of `write` may print too

    def write(self, text: str) -> int:
        """Take a piece of text."""
        if self._released:  # something has stored this object, such as a log handler
            return self._stream.write(text)
        with self._lock:
            lines, newline, self._line = (self._line + text).rpartition("\n")
            if len(self._line) > MAX_LINE_CHARS:
                self._line = _last_state(self._line)  # a progress bar may never end its line
            if len(self._line) > MAX_LINE_CHARS:
                lines, newline, self._line = lines + newline + self._line, "\n", ""
            if newline:
                self._put(self._shown(lines) + "\n")
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Take several pieces of text."""
        self.write("".join(lines))

    def flush(self) -> None:
        """Show the line that has no end yet."""
        if self._released:
            self._stream.flush()
        else:
            self._changed()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def begun(self) -> str:
        """The line that has no end yet, without its colours."""
        return _STYLE.sub("", _legible_state(self._line)).rstrip()

    def take(self) -> str:
        """Return the line that has no end yet, with an end: later text begins another line."""
        with self._lock:
            line, self._line = self._line, ""
        shown = self._shown(line)
        return shown + "\n" if _STYLE.sub("", shown).strip() else ""

    def _shown(self, lines: str) -> str:
        return lines if self._raw else "\n".join(map(_legible_state, lines.split("\n")))

    def release(self) -> None:
        """Write directly to the stream from now on."""
        self._released = True


def begun_lines(streams: Sequence[CapturedStream], columns: int) -> list[str]:
    """Return the lines that have no end yet, each cut to the width of the terminal."""
    begun = [line for stream in streams if (line := stream.begun)]
    return [set_cell_size(line, min(cell_len(line), columns - 1)) for line in begun]


def _last_state(line: str) -> str:
    """Return the part of a line that overwrites the others."""
    line = _OTHER_SEQUENCE.sub("", _ERASE_LINE.sub("\r", line))
    return next((each for each in reversed(line.split("\r")) if each), "")


def _legible_state(line: str) -> str:
    """Return what a line shows in the end, with its colours; nothing in it moves the cursor."""
    text, *styles = _STYLE.split(_last_state(line))
    shown = [piece if at % 2 == 0 else legible(piece) for at, piece in enumerate(styles)]
    return "".join([legible(text), *shown, "\x1b[0m" if styles else ""])


@contextmanager
def captured_streams(
    put: Callable[[str], None],
    changed: Callable[[], None],
    *,
    raw: bool = False,
    hide_input: bool = False,
) -> Generator[list[CapturedStream]]:
    """Capture standard output and error during this block, as far as they are terminals.

    With `hide_input`, standard input is empty if it is a terminal: other readers, such as a tool,
    would take the prompt's keys and wait for ever.
    """
    before = sys.stdin, sys.stdout, sys.stderr
    captured: list[CapturedStream] = []
    for name, stream in (("stdout", sys.stdout), ("stderr", sys.stderr)):
        if stream.isatty():
            captured.append(CapturedStream(stream, put, changed, raw=raw))
            setattr(sys, name, cast("TextIO", captured[-1]))
    nothing: Any = open(os.devnull, encoding="utf-8")  # noqa: SIM115 - closed below
    if hide_input and cast("Any", sys.stdin) is not None and sys.stdin.isatty():
        sys.stdin = nothing
    try:
        yield captured
    finally:
        sys.stdin, sys.stdout, sys.stderr = before
        for stream in captured:
            if line := stream.take():
                put(line)
            stream.release()
        nothing.close()
