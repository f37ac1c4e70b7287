"""Show a run while it goes on: a tree at the bottom of a terminal, or plain lines elsewhere."""

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
from ._streams import CapturedStream, begun_lines, captured_streams
from ._terminal import allow_unencodable, complain, has_unicode
from ._tree_model import TreeSummary
from ._tree_view import ascii_signs, draw, name_failure, sum_line

__all__ = [
    "FRAME_SECONDS",
    "LiveRegion",
    "TreeDisplay",
    "Watcher",
    "can_draw",
    "elapsed",
    "print_lines",
]

FRAME_SECONDS = 0.125
# A thread that draws rests so many times as long as a frame takes: a very large tree moves slowly.
REST_FACTOR = 4
# While a program prints much, the region is drawn again only after this time.
MIN_PAUSE_SECONDS = 0.03
PLAIN_LINE_SECONDS = 1.0
PLAIN_COLUMNS, PLAIN_LINES = 200, 50
HIDE, SHOW, CLEAR_LINE, CLEAR_BELOW = "\x1b[?25l", "\x1b[?25h", "\x1b[K", "\x1b[J"


def can_draw(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that can move the cursor and should show colours."""
    console = Console(file=stream)
    return console.is_terminal and not console.is_dumb_terminal and not os.environ.get("NO_COLOR")


def elapsed(trace: Trace) -> float:
    """Return the duration of a run so far, in seconds; of one that has ended, its duration."""
    return max(trace.end, time.time() - trace.time) if trace.live and trace.lives else trace.end


class LiveRegion:
    """Lines at the bottom of the terminal, drawn again below everything that is printed.

    In its block, text printed to standard output or error appears above the lines, as it was
    written; a line without an end waits at their top. Each frame overwrites the one before instead
    of clearing it first, so nothing flickers. Any thread may draw and print.
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
        """Columns and lines that may be used.

        One line is for the cursor, and one is left above: some terminals move what is cleared from
        their first line on into the scrollback.
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
            if time.monotonic() - self._painted > MIN_PAUSE_SECONDS:
                self._paint()

    def _move_up(self) -> str:
        """Return the sequence that moves the cursor to the first of the visible lines."""
        columns, height = self.size
        # A terminal that has become narrower has wrapped the lines that are too long for it.
        rows = sum(max(1, -(-width // columns)) for width in self._visible)
        return (f"\x1b[{min(rows, height)}A" if rows else "") + "\r"

    def _paint(self) -> None:
        columns, height = self.size
        begun = [Text(line, end="") for line in begun_lines(self._captured, columns)]
        lines = [*begun, *self._lines][-height:]
        self._console.width = columns
        drawn = list[str]()
        for line in lines:
            line.truncate(columns)
            line.rstrip()
            with self._console.capture() as captured:
                self._console.print(line, soft_wrap=True, end="")
            # After a full line the cursor is on its last column, which must not be cleared.
            drawn.append(captured.get() + (CLEAR_LINE if line.cell_len < columns else "") + "\r\n")
        self._out.write(f"{HIDE}{self._move_up()}{''.join(drawn)}{CLEAR_BELOW}{SHOW}")
        self._out.flush()
        self._visible = [line.cell_len for line in lines]
        self._painted = time.monotonic()

    def __enter__(self) -> Self:
        capture = captured_streams(self._print, self._refresh, raw=True)
        self._captured = self._stack.enter_context(capture)
        if hasattr(signal, "SIGCONT") and threading.current_thread() is threading.main_thread():
            before = signal.signal(signal.SIGCONT, self._continue)
            self._stack.callback(signal.signal, signal.SIGCONT, before)
        return self

    def _continue(self, number: int, frame: FrameType | None) -> None:
        """Draw below the text that a shell wrote while the process was stopped."""
        self._visible = []

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._stack.close()
            if self._lines and not self._visible:
                self._paint()


class TreeDisplay:
    """Shows a run on standard error.

    On a terminal that is its tree in a live region. Elsewhere it is a plain line about changes,
    once a second at most, and the complete tree at the end.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._region = LiveRegion() if can_draw(sys.stderr) else None
        self._summary: TreeSummary | None = None
        self._counts: object = Counter[str]()  # of the last plain line
        self._failed = 0
        self._printed = float("-inf")

    def show(self, trace: Trace) -> None:
        """Show the run as it is now."""
        if self._region is not None:
            self._region.draw(self._draw(trace, *self._region.size))
        elif time.monotonic() - self._printed >= PLAIN_LINE_SECONDS:
            self._print_changes(trace)

    def end(self, trace: Trace) -> None:
        """Show the run for the last time; this remains on the screen."""
        if self._region is not None:
            self.show(trace)
        else:
            self._print(self._draw(trace, PLAIN_COLUMNS, PLAIN_LINES))

    def _draw(self, trace: Trace, columns: int, lines: int) -> list[Text]:
        summary, unicode = self._summarize(trace), has_unicode(sys.stderr)
        return draw(summary, columns, lines, elapsed(trace), title=self._title, unicode=unicode)

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
        words = sum_line(summary, elapsed(trace))
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
    """Print lines as they are, without wrapping them."""
    for line in lines:
        line.rstrip()
        console.print(line, soft_wrap=True, end="\n")


class Watcher:
    """Shows a run of this process from its own thread, so that it does not delay the event loop."""

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
            pause = max(FRAME_SECONDS, (time.perf_counter() - started) * REST_FACTOR)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        if self._works:
            self._try(self._display.end)

    def _try(self, show: Callable[[Trace], None]) -> bool:
        """Show the run; an error is reported once, and the run goes on without a display."""
        try:
            show(self._current())
        except Exception as error:  # noqa: BLE001 - no error of the display may reach the run
            self._works = False
            complain(f"the drawing ends here: {type(error).__name__}: {error}")
        return self._works
