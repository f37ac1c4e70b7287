"""Show a run live: as a tree at the bottom of a terminal, or as plain lines in a pipe."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from itertools import islice
from types import FrameType
from typing import Self, TextIO

from rich.console import Console
from rich.text import Text

from ..tracing import Trace
from ._output import allow_unencodable, has_unicode, print_error
from ._streams import CapturedStream, capture_streams, unfinished_lines
from ._tree_model import TreeSummary
from ._tree_view import ascii_signs, draw, name_failure, sum_line

__all__ = [
    "FRAME_SECONDS",
    "DisplayThread",
    "LiveRegion",
    "TreeDisplay",
    "can_draw",
    "elapsed_seconds",
    "print_lines",
]

FRAME_SECONDS = 0.125
# The drawing thread pauses for this many times the duration of a frame. So the drawing of a very
# large tree takes at most a fifth of a core.
IDLE_FACTOR = 4
# While a program prints much, the region is not drawn more often than this.
MIN_REDRAW_SECONDS = 0.03
PLAIN_LINE_SECONDS = 1.0
PLAIN_COLUMNS, PLAIN_LINES = 200, 50
HIDE_CURSOR, SHOW_CURSOR, CLEAR_LINE, CLEAR_BELOW = "\x1b[?25l", "\x1b[?25h", "\x1b[K", "\x1b[J"


def can_draw(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that can move the cursor and should show colours."""
    console = Console(file=stream)
    return console.is_terminal and not console.is_dumb_terminal and not os.environ.get("NO_COLOR")


def elapsed_seconds(trace: Trace) -> float:
    """Return the seconds since the start of a run, or its duration if it has ended."""
    return (
        max(trace.end, time.time() - trace.time) if trace.live and trace.executions else trace.end
    )


class LiveRegion:
    """Lines that stay at the bottom of the terminal, below all printed output.

    Inside the block, text printed to standard output or standard error appears unchanged above the
    lines. A line without a line end waits at the top of the region. Each frame overwrites the
    previous one without clearing it, so nothing flickers. Any thread may draw and print.
    """

    def __init__(self) -> None:
        self._out: TextIO = sys.stderr
        allow_unencodable(self._out, "replace")  # an escape would make a line too wide
        self._console = Console(file=self._out, force_terminal=True, highlight=False)
        self._lock = threading.RLock()
        self._stack = ExitStack()
        self._captured: list[CapturedStream] = []
        self._lines: Sequence[Text] = ()
        # The columns of each line on the screen; empty after something was printed.
        self._visible: list[int] = []
        self._painted = 0.0

    @property
    def size(self) -> tuple[int, int]:
        """The columns and lines that the region may use.

        It leaves out the line of the cursor and the first line of the screen. Some terminals move
        lines that are cleared from the first line on into the scrollback.
        """
        columns, lines = 80, 24
        with suppress(OSError, ValueError):
            columns, lines = os.get_terminal_size(self._out.fileno())
        return max(columns or 80, 20), max((lines or 24) - 2, 3)

    def draw(self, lines: Sequence[Text]) -> None:
        """Replace the lines."""
        with self._lock:
            self._lines = lines
            self._paint()

    def _print(self, text: str) -> None:
        with self._lock:
            self._out.write(f"{self._move_up()}{CLEAR_BELOW}{text}")
            self._out.flush()
            self._visible = []
            self._refresh()

    def _refresh(self) -> None:
        with self._lock:
            if time.monotonic() - self._painted > MIN_REDRAW_SECONDS:
                self._paint()

    def _move_up(self) -> str:
        """Return the sequence that moves the cursor to the first of the visible lines."""
        columns, height = self.size
        # A terminal that has become narrower has wrapped the lines that are too long for it.
        rows = sum(max(1, -(-width // columns)) for width in self._visible)
        return (f"\x1b[{min(rows, height)}A" if rows else "") + "\r"

    def _paint(self) -> None:
        columns, height = self.size
        unfinished = [Text(line, end="") for line in unfinished_lines(self._captured, columns)]
        lines = [*unfinished, *self._lines][-height:]
        self._console.width = columns
        drawn = list[str]()
        for line in lines:
            line.truncate(columns)
            line.rstrip()
            with self._console.capture() as captured:
                self._console.print(line, soft_wrap=True, end="")
            # After a full line the cursor is still on its last column: clearing would erase a cell.
            drawn.append(captured.get() + (CLEAR_LINE if line.cell_len < columns else "") + "\r\n")
        self._out.write(f"{HIDE_CURSOR}{self._move_up()}{''.join(drawn)}{CLEAR_BELOW}{SHOW_CURSOR}")
        self._out.flush()
        self._visible = [line.cell_len for line in lines]
        self._painted = time.monotonic()

    def __enter__(self) -> Self:
        capture = capture_streams(self._print, self._refresh, raw=True)
        self._captured = self._stack.enter_context(capture)
        if hasattr(signal, "SIGCONT") and threading.current_thread() is threading.main_thread():
            before = signal.signal(signal.SIGCONT, self._continue)
            self._stack.callback(signal.signal, signal.SIGCONT, before)
        return self

    def _continue(self, number: int, frame: FrameType | None) -> None:
        """Draw the region again, below the text that a shell wrote during the stop."""
        self._visible = []

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._stack.close()
            if self._lines and not self._visible:
                self._paint()


class TreeDisplay:
    """Shows a run on standard error.

    A terminal gets the tree in a live region. A pipe gets one line about changes, at most once a
    second, and the complete tree at the end.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._region = LiveRegion() if can_draw(sys.stderr) else None
        self._summary: TreeSummary | None = None
        self._counts: object = Counter[str]()  # of the last plain line
        self._failed = 0
        self._printed = float("-inf")

    def show(self, trace: Trace) -> None:
        """Show the current state of the run."""
        if self._region is not None:
            self._region.draw(self._draw(trace, *self._region.size))
        elif time.monotonic() - self._printed >= PLAIN_LINE_SECONDS:
            self._print_changes(trace)

    def end(self, trace: Trace) -> None:
        """Show the final state of the run, which remains on the screen."""
        if self._region is not None:
            self.show(trace)
        else:
            self._print(self._draw(trace, PLAIN_COLUMNS, PLAIN_LINES))

    def _draw(self, trace: Trace, columns: int, lines: int) -> list[Text]:
        summary, unicode = self._summarize(trace), has_unicode(sys.stderr)
        return draw(
            summary, columns, lines, elapsed_seconds(trace), title=self._title, unicode=unicode
        )

    def _summarize(self, trace: Trace) -> TreeSummary:
        if self._summary is None or self._summary.trace is not trace:
            self._summary = TreeSummary(trace)
        return self._summary

    def _print_changes(self, trace: Trace) -> None:
        summary = self._summarize(trace)
        summary.update()
        if summary.counts == self._counts:
            return
        self._printed, self._counts = time.monotonic(), summary.counts.copy()
        words = sum_line(summary, elapsed_seconds(trace))
        if len(summary.failed) > self._failed:
            words += f" · {name_failure(next(islice(summary.failed, self._failed, None)))}"
        self._failed = len(summary.failed)
        self._print([Text(words if has_unicode(sys.stderr) else ascii_signs(words))])

    def _print(self, lines: Sequence[Text]) -> None:
        allow_unencodable(sys.stderr, "replace")
        print_lines(Console(stderr=True, highlight=False, force_terminal=False), lines)

    def __enter__(self) -> Self:
        if self._region is not None:
            self._region.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._region is not None:
            self._region.__exit__()


def print_lines(console: Console, lines: Sequence[Text]) -> None:
    """Print lines without wrapping them."""
    for line in lines:
        line.rstrip()
        console.print(line, soft_wrap=True, end="\n")


class DisplayThread:
    """A thread that shows a run of this process, so that drawing does not delay the event loop."""

    def __init__(self, display: TreeDisplay, current: Callable[[], Trace]) -> None:
        self._display = display
        self._current = current
        self._works = True
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="anabranch-display", daemon=True)

    def _run(self) -> None:
        pause = 0.0
        while not self._ended.wait(pause):
            started = time.perf_counter()
            if not self._try(self._display.show):
                return
            pause = max(FRAME_SECONDS, (time.perf_counter() - started) * IDLE_FACTOR)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        if self._works:
            self._try(self._display.end)

    def _try(self, show: Callable[[Trace], None]) -> bool:
        """Show the run. After an error, report it and stop the display; the run continues."""
        try:
            show(self._current())
        except Exception as error:  # noqa: BLE001 - no error of the display may reach the run
            self._works = False
            print_error(f"the display of the run failed: {type(error).__name__}: {error}")
        return self._works
