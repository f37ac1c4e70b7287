"""Capture the program's output, so that it appears above a prompt or a live region."""

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

__all__ = ["CapturedStream", "capture_streams", "unfinished_lines"]

# A longer line is printed in pieces, so that a line that never ends takes bounded memory.
MAX_CAPTURED_CHARS = 20_000

# Colours and other styles. These are the only sequences that cannot move the cursor.
_STYLE = re.compile(r"(\x1b\[[0-9;:]*m)")
# Sequences of progress bars. Erasing a line restarts it, like a carriage return. Sequences that
# move or hide the cursor are dropped: the prompt owns the cursor.
_ERASE_LINE = re.compile(r"\x1b\[[12]K")
_OTHER_SEQUENCE = re.compile(r"\x1b\[(?![0-9;:]*m)[0-?]*[ -/]*[@-~]")


class CapturedStream:
    """A terminal stream whose complete lines go to `put`, from any thread.

    Unless it is `raw`, nothing in these lines moves the cursor. `unfinished` is the text after the
    last line end, which a progress bar may overwrite. A flush calls `changed`. All other attributes
    come from the stream.
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
        self._lock = threading.RLock()  # reentrant: a destructor may print during `write`

    def write(self, text: str) -> int:
        """Add text; pass its complete lines on."""
        if self._released:  # a log handler, for example, still holds this object
            return self._stream.write(text)
        with self._lock:
            lines, newline, self._line = (self._line + text).rpartition("\n")
            if len(self._line) > MAX_CAPTURED_CHARS:
                self._line = _last_state(self._line)  # a progress bar may never end its line
            if len(self._line) > MAX_CAPTURED_CHARS:
                lines, newline, self._line = lines + newline + self._line, "\n", ""
            if newline:
                self._put(self._shown(lines) + "\n")
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Add several pieces of text."""
        self.write("".join(lines))

    def flush(self) -> None:
        """Show the unfinished line."""
        if self._released:
            self._stream.flush()
        else:
            self._changed()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def unfinished(self) -> str:
        """The unfinished line, without colours."""
        return _STYLE.sub("", _legible_state(self._line)).rstrip()

    def take(self) -> str:
        """Return the unfinished line with a line end; later text begins another line."""
        with self._lock:
            line, self._line = self._line, ""
        text = self._shown(line)
        return text + "\n" if _STYLE.sub("", text).strip() else ""

    def _shown(self, lines: str) -> str:
        return lines if self._raw else "\n".join(map(_legible_state, lines.split("\n")))

    def release(self) -> None:
        """Pass further text directly to the stream."""
        self._released = True


def unfinished_lines(streams: Sequence[CapturedStream], columns: int) -> list[str]:
    """Return the unfinished lines, each cut to the width of the terminal."""
    unfinished = [line for stream in streams if (line := stream.unfinished)]
    return [set_cell_size(line, min(cell_len(line), columns - 1)) for line in unfinished]


def _last_state(line: str) -> str:
    """Return the part of a line after its last carriage return, which overwrites the others."""
    line = _OTHER_SEQUENCE.sub("", _ERASE_LINE.sub("\r", line))
    return next((each for each in reversed(line.split("\r")) if each), "")


def _legible_state(line: str) -> str:
    """Return the final text of a line with its colours, without other control sequences."""
    text, *styles = _STYLE.split(_last_state(line))
    pieces = [piece if at % 2 == 0 else legible(piece) for at, piece in enumerate(styles)]
    return "".join([legible(text), *pieces, "\x1b[0m" if styles else ""])


@contextmanager
def capture_streams(
    put: Callable[[str], None],
    changed: Callable[[], None],
    *,
    raw: bool = False,
    hide_input: bool = False,
) -> Generator[list[CapturedStream]]:
    """Capture standard output and standard error during this block, if they are terminals.

    With `hide_input`, a terminal as standard input is replaced by an empty file. Otherwise a tool
    that reads it would take the prompt's keys and wait for ever.
    """
    before = sys.stdin, sys.stdout, sys.stderr
    captured: list[CapturedStream] = []
    for name, stream in (("stdout", sys.stdout), ("stderr", sys.stderr)):
        if stream.isatty():
            captured.append(CapturedStream(stream, put, changed, raw=raw))
            setattr(sys, name, cast("TextIO", captured[-1]))
    empty: Any = open(os.devnull, encoding="utf-8")  # noqa: SIM115 - closed below
    if hide_input and cast("Any", sys.stdin) is not None and sys.stdin.isatty():
        sys.stdin = empty
    try:
        yield captured
    finally:
        sys.stdin, sys.stdout, sys.stderr = before
        for stream in captured:
            if line := stream.take():
                put(line)
            stream.release()
        empty.close()
