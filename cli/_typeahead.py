"""What was typed before a question stood there, which cannot be meant as its answer."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Generator
from contextlib import contextmanager

__all__ = ["drop_typeahead"]

# Seconds without a key after which somebody has not been typing, or has stopped.
QUIET, STOPPED = 0.15, 1.0


async def drop_typeahead() -> bool:
    """Drop what is typed or pasted at the terminal until nobody types any more; whether any was.

    What somebody types who has not seen the question yet does not end with the moment in which it
    appears, so whoever is typing is waited for.
    """
    dropped = False
    with _unbuffered():
        while True:
            await asyncio.sleep(STOPPED if dropped else QUIET)
            if not _drain():
                return dropped
            dropped = True


if sys.platform == "win32":
    import msvcrt

    @contextmanager
    def _unbuffered() -> Generator[None]:
        yield

    def _drain() -> bool:
        found = False
        while msvcrt.kbhit():
            msvcrt.getwch()
            found = True
        return found

else:
    import os
    import select
    import termios
    import tty

    @contextmanager
    def _unbuffered() -> Generator[None]:
        """Let each key be seen at once, and none be echoed; Ctrl-C remains what it is."""
        descriptor = sys.stdin.fileno()
        before = termios.tcgetattr(descriptor)
        tty.setcbreak(descriptor, termios.TCSANOW)
        try:
            yield
        finally:
            termios.tcsetattr(descriptor, termios.TCSANOW, before)

    def _drain() -> bool:
        descriptor, found = sys.stdin.fileno(), False
        while select.select([descriptor], [], [], 0)[0] and os.read(descriptor, 65_536):
            found = True
        return found
