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
    """Return a new display: one changing line on a terminal, else a line now and then.

    It writes no escape sequences, so that any prompt can show the line above itself, and nothing
    needs to be restored if the fetching breaks off.
    """
    return _rewrite_line() if sys.stderr.isatty() else _write_lines()


def _rewrite_line() -> Callable[[Progress], None]:
    width = 0

    def write(state: Progress) -> None:
        nonlocal width
        line = ""  # once the model is ready
        if state.stage != "ready":
            line = _WORDS[state.stage]
        if state.stage == "fetching":
            line += f": {state.done * 100 // state.total}% of {state.total // 1_000_000} MB"
        width = max(width, len(line))
        # The cursor stays at the line's begin: an error that ends the fetching is written over it.
        print(line.ljust(width), end="\r", file=sys.stderr, flush=True)  # noqa: T201

    return write


def _write_lines() -> Callable[[Progress], None]:
    last = ""

    def write(state: Progress) -> None:
        nonlocal last
        tenth = state.done * 10 // state.total * 10 if state.stage == "fetching" else None
        line = _WORDS[state.stage] + (f": {tenth}%" if tenth is not None else "")
        if line != last:
            last = line
            print(line, file=sys.stderr, flush=True)  # noqa: T201 - this is what it is for

    return write
