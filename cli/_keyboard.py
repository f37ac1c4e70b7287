"""The terminal's mode, and keys that were typed before a prompt was visible."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any

__all__ = ["QUIET_SECONDS", "TerminalMode", "disable_echo", "discard_typeahead", "wait_until_quiet"]

# After this time without a key, the person is not typing.
QUIET_SECONDS = 0.15
# After this time without a key, a person who was typing has stopped.
STOPPED_SECONDS = 1.0

# Indices in the list that `tcgetattr` returns: local flags such as ECHO, and special characters.
LOCAL_FLAGS, CHARACTERS = 3, 6


class TerminalMode:
    """The terminal mode at the time this object is created, which the prompt needs to read keys.

    A program that a tool started can change the mode, and so can the shell while this process is
    stopped. Keys would then be echoed and arrive line by line.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._mode = _get_mode(descriptor)

    def restore(self) -> bool:
        """Set this mode again; return whether the terminal was in another one."""
        if self._mode is None or _get_mode(self._descriptor) in (None, self._mode):
            return False
        _set_mode(self._descriptor, self._mode)
        return True


@contextmanager
def disable_echo(wanted: bool = True) -> Generator[None]:
    """Let the terminal buffer keys for a later prompt without echoing them."""
    terminal = wanted and os.environ.get("TERM") != "dumb" and os.isatty(1)
    with _changed_mode("ECHO", wanted=terminal):
        yield


async def discard_typeahead() -> bool:
    """Discard keys, so that they cannot answer a prompt the user has not seen.

    Waits until the user stops typing, since a user who has not noticed the prompt continues to
    type. Returns whether any keys came.
    """
    with _changed_mode("ECHO", "ICANON"):
        return await wait_until_quiet(_drain)


async def wait_until_quiet(has_typed: Callable[[], bool], *, is_typing: bool = False) -> bool:
    """Wait until the user is not typing; return whether they were.

    `has_typed` returns whether a key has come since its last call.
    """
    while True:
        await asyncio.sleep(STOPPED_SECONDS if is_typing else QUIET_SECONDS)
        if not has_typed():
            return is_typing
        is_typing = True


if sys.platform == "win32":  # each program has its own terminal mode
    import msvcrt

    def _get_mode(descriptor: int) -> list[Any] | None:
        return None

    def _set_mode(descriptor: int, mode: list[Any]) -> None:
        pass

    @contextmanager
    def _changed_mode(*flags: str, wanted: bool = True) -> Generator[None]:
        yield

    def _drain() -> bool:
        found = False
        while msvcrt.kbhit():
            msvcrt.getwch()
            found = True
        return found

else:
    import select
    import termios

    def _get_mode(descriptor: int) -> list[Any] | None:
        with suppress(termios.error):  # not a terminal
            return termios.tcgetattr(descriptor)
        return None

    def _set_mode(descriptor: int, mode: list[Any]) -> None:
        with suppress(termios.error):
            termios.tcsetattr(descriptor, termios.TCSANOW, mode)

    @contextmanager
    def _changed_mode(*flags: str, wanted: bool = True) -> Generator[None]:
        """Clear local flags in the mode of standard input during this block."""
        before = _get_mode(0) if wanted else None
        if before is None:
            yield
            return
        mode = [*before[:CHARACTERS], [*before[CHARACTERS]]]
        for flag in flags:
            mode[LOCAL_FLAGS] &= ~getattr(termios, flag)
        if "ICANON" in flags:  # each key is readable at once
            mode[CHARACTERS][termios.VMIN], mode[CHARACTERS][termios.VTIME] = 1, 0
        _set_mode(0, mode)
        try:
            yield
        finally:
            sys.stdout.flush()
            _set_mode(0, before)

    def _drain() -> bool:
        found = False
        while select.select([0], [], [], 0)[0] and os.read(0, 65_536):
            found = True
        return found
