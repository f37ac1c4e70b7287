"""The mode of the terminal's keyboard: what is typed is shown by the prompt alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any

__all__ = ["Mode", "unechoed"]

LOCAL = 3  # where `tcgetattr` has the flags of the line


class Mode:
    """The mode in which the prompt reads a terminal, as it is when this is made.

    Another program that a tool has started may change it, and the shell does while the program is
    stopped: then keys would be echoed, and come line by line.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._mode = _mode(descriptor)

    def take_back(self) -> bool:
        """Set it again; say whether it had been changed."""
        if self._mode is None or _mode(self._descriptor) in (None, self._mode):
            return False
        _set(self._descriptor, self._mode)
        return True


@contextmanager
def unechoed(wanted: bool = True) -> Generator[None]:
    """Let keys be kept for the prompt to come, and not be echoed, if there is a terminal."""
    terminal = wanted and os.environ.get("TERM") != "dumb" and os.isatty(1)
    before = _mode(0) if terminal else None
    if before is None:
        yield
        return
    _set(0, _without_echo(before))
    try:
        yield
    finally:
        sys.stdout.flush()
        _set(0, before)


if sys.platform == "win32":  # each program has a mode of its own there

    def _mode(descriptor: int) -> list[Any] | None:
        return None

    def _set(descriptor: int, mode: list[Any]) -> None:
        pass

    def _without_echo(mode: list[Any]) -> list[Any]:
        return mode

else:
    import termios

    def _mode(descriptor: int) -> list[Any] | None:
        with suppress(termios.error):  # that is no terminal
            return termios.tcgetattr(descriptor)
        return None

    def _set(descriptor: int, mode: list[Any]) -> None:
        with suppress(termios.error):
            termios.tcsetattr(descriptor, termios.TCSANOW, mode)

    def _without_echo(mode: list[Any]) -> list[Any]:
        return [*mode[:LOCAL], mode[LOCAL] & ~termios.ECHO, *mode[LOCAL + 1 :]]
