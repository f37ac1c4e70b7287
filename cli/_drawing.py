"""A run shown while it goes on: a tree at the foot of a terminal, or a line now and then."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Protocol, Self

from rich.text import Text

from ..tracing import Trace
from ._screen import Screen, can_draw
from ._survey import Survey
from ._terminal import complain
from ._tree_view import draw, foot, name_failure

__all__ = ["Drawing", "Watcher", "now", "open_drawing"]

FRAME = 0.125  # seconds between two frames
# Of the time, one part in so many may go into drawing: a tree of very many nodes moves more slowly.
SHARE = 4
# How a run is shown where there is no terminal.
WIDE, HIGH = 200, 50


def now(trace: Trace) -> float:
    """Return how long a run has gone on, in seconds; of one that is over, how long it took."""
    return max(trace.end, time.time() - trace.time) if trace.live and trace.lives else trace.end


class Drawing(Protocol):
    """Where a run is shown; a context."""

    def show(self, trace: Trace) -> None:
        """Show how it is now."""
        ...

    def end(self, trace: Trace) -> None:
        """Show it for the last time: this remains."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def open_drawing(title: str) -> Drawing:
    """Return what shows a run on the standard error."""
    return _Tree(title) if can_draw(sys.stderr) else _Lines(title)


class _Surveys:
    """The survey of the trace that is shown; another one is surveyed anew."""

    _last: Survey | None = None

    def of(self, trace: Trace) -> Survey:
        """Return its survey."""
        if self._last is None or self._last.trace is not trace:
            self._last = Survey(trace)
        return self._last


class _Tree:
    """The tree at the foot of the terminal."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._screen = Screen()
        self._surveys = _Surveys()

    def show(self, trace: Trace) -> None:
        """Draw it in the place of what stood there."""
        screen, survey = self._screen, self._surveys.of(trace)
        columns, lines = screen.size
        screen.draw(draw(survey, columns, lines, now(trace), title=self._title, signs=screen.signs))

    end = show

    def __enter__(self) -> Self:
        self._screen.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._screen.__exit__()


class _Lines:
    """A plain line for what has changed, once a second at most; the whole tree at the end."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._counts: object = Counter[str]()
        self._failed = 0
        self._surveys = _Surveys()
        self._said = float("-inf")

    def show(self, trace: Trace) -> None:
        """Write a line if there is news."""
        if time.monotonic() - self._said < 1.0:
            return
        survey = self._surveys.of(trace)
        survey.update()
        if survey.counts == self._counts:
            return
        self._said, self._counts = time.monotonic(), survey.counts.copy()
        words = foot(survey, now(trace))
        if len(survey.bad) > self._failed:
            words += f" · {name_failure(next(islice(survey.bad, self._failed, None)))}"
        self._failed = len(survey.bad)
        _say([Text(words)])

    def end(self, trace: Trace) -> None:
        """Write the whole tree."""
        survey, signs = self._surveys.of(trace), _has_signs()
        _say(draw(survey, WIDE, HIGH, now(trace), title=self._title, signs=signs))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _has_signs() -> bool:
    return "utf" in (getattr(sys.stderr, "encoding", None) or "ascii").lower()


def _say(lines: list[Text]) -> None:
    text = "".join(f"{line.plain.rstrip()}\n" for line in lines)
    if not _has_signs():
        text = text.replace("…", "~").replace("·", "|")
    encoding = getattr(sys.stderr, "encoding", None) or "ascii"
    sys.stderr.write(text.encode(encoding, "replace").decode(encoding))
    sys.stderr.flush()


class Watcher:
    """Shows a run of this process from a thread of its own, so that its loop is not held up."""

    def __init__(self, drawing: Drawing, look: Callable[[], Trace]) -> None:
        self._drawing = drawing
        self._look = look
        self._shows = True
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="anabranch-drawing", daemon=True)

    def _run(self) -> None:
        pause = 0.0
        while not self._over.wait(pause):
            begun = time.perf_counter()
            if not self._try(self._drawing.show):
                return
            pause = max(FRAME, (time.perf_counter() - begun) * SHARE)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self._shows:
            self._try(self._drawing.end)

    def _try(self, show: Callable[[Trace], None]) -> bool:
        """Show it; what goes wrong there is said once, and concerns no node."""
        try:
            show(self._look())
        except Exception as error:  # noqa: BLE001 - the run goes on without its drawing
            self._shows = False
            complain(f"the drawing ends here: {type(error).__name__}: {error}")
        return self._shows
