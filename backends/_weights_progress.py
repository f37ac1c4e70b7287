"""Showing on the standard error how the fetching of weights goes."""

from __future__ import annotations

import sys
from collections.abc import Callable

from ._weights import Progress

__all__ = ["show_progress"]

_WORDS = {
    "waiting": "waiting for another process that fetches the small model",
    "fetching": "fetching the small model, once",
    "verifying": "checking the small model",
    "ready": "the small model is ready",
}


def show_progress() -> Callable[[Progress], None]:
    """Return a new display: a bar on a terminal if rich is installed, else a line now and then."""
    if sys.stderr.isatty():
        try:
            return _bar()
        except ImportError:
            pass
    return _lines()


def _bar() -> Callable[[Progress], None]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    bar = Bar(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task("")

    def show(state: Progress) -> None:
        bar.start()
        bar.update(task, description=_WORDS[state.stage], completed=state.done, total=state.total)
        if state.stage == "ready":
            bar.stop()

    return show


def _lines() -> Callable[[Progress], None]:
    last = ""

    def show(state: Progress) -> None:
        nonlocal last
        tenth = state.done * 10 // state.total * 10 if state.stage == "fetching" else None
        line = _WORDS[state.stage] + (f": {tenth}%" if tenth is not None else "")
        if line != last:
            last = line
            print(line, file=sys.stderr, flush=True)  # noqa: T201 - this is what it is for

    return show
