"""The foot of a terminal that is drawn again and again, below what else is printed."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from io import StringIO
from types import FrameType
from typing import Any, Self, TextIO, cast

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from ..handlers.legible import legible

__all__ = ["Screen", "can_draw"]

# The most characters of a line without an end that stand at the top of the drawing.
HELD = 2000
# Seconds after which lines are drawn again though more is printed.
BREATH = 0.03
# What moves the cursor or colours, as it may stand in a line that has no end yet.
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
HIDE, SHOW, CLEAR_LINE, CLEAR_BELOW = "\x1b[?25l", "\x1b[?25h", "\x1b[K", "\x1b[J"


def can_draw(stream: TextIO) -> bool:
    """Say whether a stream is a terminal on which the cursor may be moved, and colours be shown."""
    console = Console(file=stream)
    return console.is_terminal and not console.is_dumb_terminal and not os.environ.get("NO_COLOR")


class Screen:
    """Lines at the foot of the terminal that the standard error is.

    They are written over those before, without clearing them first, so nothing flickers. In its
    block, what Python code prints to the standard output and error stands above them as it was
    written, as far as these are that terminal; a line that has no end yet waits at their top. Any
    thread may draw and print.
    """

    def __init__(self) -> None:
        self._out: TextIO = sys.stderr
        self._streams = sys.stdout, sys.stderr
        colours = cast("Any", Console(file=self._out).color_system)
        self._console = Console(
            file=StringIO(), force_terminal=True, color_system=colours, highlight=False
        )
        self._lock = threading.RLock()
        self._lines: list[str] = []  # as they were drawn last, with their colours
        self._widths: list[int] = []
        # The columns of the lines that stand there now: none while much is printed.
        self._there: list[int] = []
        self._painted = 0.0
        self._before: Any = None  # what was done when the program went on
        # What was printed of a line without its end, and whither.
        self._begun = ""
        self._begun_in = self._out
        encoding = getattr(self._out, "encoding", None) or "ascii"
        self.signs = "utf" in encoding.lower()
        reconfigure: Any = getattr(self._out, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines that may be used.

        A line is for the cursor, and one is left above: some terminals keep what is cleared from
        their first line on as if it had been scrolled.
        """
        columns, lines = 80, 24
        with suppress(OSError, ValueError):
            columns, lines = os.get_terminal_size(self._out.fileno())
        return max(columns or 80, 20), max((lines or 24) - 2, 3)

    def draw(self, lines: Sequence[Text]) -> None:
        """Draw these lines in the place of those before."""
        with self._lock:
            columns = self._console.width = self.size[0]
            with self._console.capture() as captured:
                for line in lines:
                    line.truncate(columns)
                    line.rstrip()
                    self._console.print(line, soft_wrap=True, end="\n")
            self._lines = captured.get().split("\n")[:-1]
            self._widths = [cell_len(line.plain) for line in lines]
            self._paint()

    def print(self, stream: TextIO, text: str) -> None:
        """Print above the lines, as it is; what has no line's end yet waits."""
        with self._lock:
            whole, newline, begun = (self._begun + text).rpartition("\n")
            self._begun = _written_over(begun)
            self._begun_in = stream
            if len(self._begun) > HELD:
                whole, newline, self._begun = f"{whole}{newline}{self._begun}", "\n", ""
            if newline:
                self._out.write(self._up() + CLEAR_BELOW)
                self._out.flush()
                stream.write(whole + newline)
                stream.flush()
                self._there = []
            if time.monotonic() - self._painted > BREATH:
                self._paint()

    def _up(self) -> str:
        """Return what brings the cursor to the first of the lines."""
        columns, height = self.size
        # A terminal that was made narrower has broken the lines that are too long for it now.
        rows = sum(max(1, -(-width // columns)) for width in self._there)
        return (f"\x1b[{min(rows, height)}A" if rows else "") + "\r"

    def _paint(self) -> None:
        columns, height = self.size
        lines, widths = self._lines, self._widths
        if self._begun:
            begun = legible(_CONTROL.sub("", self._begun).expandtabs())[1 - columns :]
            lines, widths = [begun, *lines], [cell_len(begun), *widths]
        lines, widths = lines[-height:], widths[-height:]
        # At the end of a full line the cursor stands on its last column, which would be cleared.
        drawn = "".join(
            f"{line}{CLEAR_LINE if width < columns else ''}\r\n"
            for line, width in zip(lines, widths, strict=True)
        )
        self._out.write(f"{HIDE}{self._up()}{drawn}{CLEAR_BELOW}{SHOW}")
        self._out.flush()
        self._there, self._painted = widths, time.monotonic()

    def __enter__(self) -> Self:
        out, err = self._streams
        if out.isatty():
            sys.stdout = cast("TextIO", _Above(self, out))
        sys.stderr = cast("TextIO", _Above(self, err))
        if hasattr(signal, "SIGCONT") and threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGCONT, self._go_on)
        return self

    def _go_on(self, number: int, frame: FrameType | None) -> None:
        """Begin below what a shell wrote while the program was suspended."""
        self._there = []

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGCONT, self._before)
        with self._lock:
            if self._begun:
                self.print(self._begun_in, "\n")
            if self._lines and not self._there:  # somebody has just printed
                self._paint()
            for stream in (sys.stdout, sys.stderr):
                if isinstance(stream, _Above):
                    stream.screen = None
            sys.stdout, sys.stderr = self._streams


class _Above:
    """A standard stream whose text stands above the lines while these are drawn."""

    def __init__(self, screen: Screen, stream: TextIO) -> None:
        self.screen: Screen | None = screen
        self._stream = stream

    def write(self, text: str) -> int:
        """Write above the lines."""
        if self.screen is None:  # somebody has kept it, such as a log handler
            return self._stream.write(text)
        self.screen.print(self._stream, text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several pieces above the lines."""
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _written_over(line: str) -> str:
    """Return what is left of a line in which a progress bar goes back to the beginning."""
    start = line.rstrip("\r").rfind("\r")
    return line[start:] if start > 0 else line
