"""How a command ends: its exit status, one line for an error, and signals."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Annotated, TypeAlias, TypeVar

import typer

from ._terminal import complain, error_text, show_traceback

__all__ = [
    "FAILED",
    "INTERRUPTED",
    "KILLED",
    "TERMINATING",
    "USAGE",
    "AsJson",
    "Debug",
    "Killed",
    "handle_signals",
    "report_errors",
    "run_until_signal",
]

T = TypeVar("T")
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="JSON for programs.")]
Debug: TypeAlias = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
FAILED, USAGE, INTERRUPTED = 1, 2, 130
# A program that a signal ends has this plus the number of the signal as its exit status.
KILLED = 128
TERMINATING = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
SIGNALS = [signal.SIGINT, *TERMINATING]


@contextmanager
def report_errors(
    status: int, debug: bool, usage: tuple[type[Exception], ...] = ()
) -> Generator[None]:
    """Turn an error into one line on standard error and an exit status.

    For the types in `usage` the status is `USAGE`.
    """
    try:
        yield
        _flush()
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    except BrokenPipeError:
        raise SystemExit(status) from None
    except Exception as error:  # noqa: BLE001 - the program ends here
        if debug:
            show_traceback(error)
        text = error_text(error, (OSError,))
        complain(text if text == str(error) else f"{text} (--debug shows where)")
        raise SystemExit(USAGE if isinstance(error, usage) else status) from None
    finally:
        try:
            _flush()
        except OSError:
            # The rest of the buffer cannot be written, and Python would report that at its exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _flush() -> None:
    with suppress(AttributeError, ValueError):  # there is no stream, or it is closed
        sys.stdout.flush()


@contextmanager
def handle_signals(
    received: Callable[[int], None], signals: Sequence[signal.Signals] = SIGNALS
) -> Generator[None]:
    """Call `received` in the running loop for each of these signals, which then end nothing."""
    loop = asyncio.get_running_loop()

    def pass_on(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(received, number)

    before = {number: signal.signal(number, pass_on) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Killed(Exception):
    """A signal has cancelled the work of a command, which may have raised an error then."""

    def __init__(self, number: int, error: Exception | None = None) -> None:
        super().__init__(number)
        self.status = KILLED + number
        self.error = error


async def run_until_signal(work: Awaitable[T], signals: Sequence[signal.Signals] = SIGNALS) -> T:
    """Return the result of `work`; a signal cancels it, which raises `Killed` once it has ended.

    A result that comes in spite of a signal is returned.
    """
    task = asyncio.ensure_future(work)
    killed: list[int] = []

    def stop(number: int) -> None:
        killed.append(number)
        task.cancel()

    with handle_signals(stop, signals):
        try:
            return await task
        except (asyncio.CancelledError, Exception) as error:
            if not killed:
                raise
            raise Killed(killed[0], error if isinstance(error, Exception) else None) from None
