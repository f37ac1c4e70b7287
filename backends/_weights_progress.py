"""Showing on the standard error how the fetching of weights goes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress

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
        with suppress(ImportError):
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
            from rich.progress import Progress as Bar

            text = TextColumn("{task.description}")
            columns = text, BarColumn(), DownloadColumn(), TransferSpeedColumn()
            bar = Bar(*columns, console=Console(stderr=True), transient=True)
            task = bar.add_task("")

            def move(state: Progress) -> None:
                words, done, total = _WORDS[state.stage], state.done, state.total
                bar.start()
                bar.update(task, description=words, completed=done, total=total)
                if state.stage == "ready":
                    bar.stop()

            return move
    last = ""

    def write(state: Progress) -> None:
        nonlocal last
        tenth = state.done * 10 // state.total * 10 if state.stage == "fetching" else None
        line = _WORDS[state.stage] + (f": {tenth}%" if tenth is not None else "")
        if line != last:
            last = line
            print(line, file=sys.stderr, flush=True)  # noqa: T201 - this is what it is for

    return write
