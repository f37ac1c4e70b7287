"""How a command ends: its status, one line for an error, and the signals that end it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from ..commander import AnabranchError
from ._terminal import complain, show_traceback

__all__ = [
    "FAILED",
    "INTERRUPTED",
    "KILLED",
    "TERMINATING",
    "USAGE",
    "handle_signals",
    "report_errors",
]

FAILED, USAGE, INTERRUPTED = 1, 2, 130
# The exit status of a program that a signal has ended is this and its number.
KILLED = 128
TERMINATING = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
SIGNALS = [signal.SIGINT, *TERMINATING]


@contextmanager
def report_errors(
    status: int, debug: bool, usage: tuple[type[Exception], ...] = ()
) -> Generator[None]:
    """Turn an error into one line on the standard error and an exit status.

    For those of the kinds in `usage` that is `USAGE`.
    """
    try:
        yield
        _flush()
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    except BrokenPipeError:
        raise SystemExit(status) from None
    except Exception as error:  # noqa: BLE001 - here the program ends
        if debug:
            show_traceback(error)
        foreseen = isinstance(error, (AnabranchError, OSError))
        complain(error if foreseen else f"{type(error).__name__}: {error} (--debug shows where)")
        raise SystemExit(USAGE if isinstance(error, usage) else status) from None
    finally:
        try:
            _flush()
        except OSError:
            # What is still in the buffer has nowhere to go, and Python would say so at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _flush() -> None:
    with suppress(AttributeError, ValueError):  # there is none, or it is closed
        sys.stdout.flush()


@contextmanager
def handle_signals(
    received: Callable[[int], None], signals: Sequence[signal.Signals] = SIGNALS
) -> Generator[None]:
    """Call `received` in the running loop with each of these, which would end the program."""
    loop = asyncio.get_running_loop()

    def pass_on(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(received, number)

    before = {number: signal.signal(number, pass_on) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
