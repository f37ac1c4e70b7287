"""How a command ends: exit statuses, one line for an error, and signals."""

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

from ._output import error_text, print_error, show_traceback

__all__ = [
    "FAILED",
    "INTERRUPTED",
    "SIGNAL_STATUS",
    "TERMINATING_SIGNALS",
    "USAGE",
    "AsJson",
    "Debug",
    "KilledBySignal",
    "handle_signals",
    "report_errors",
    "run_until_signal",
]

T = TypeVar("T")
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Debug: TypeAlias = Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")]
FAILED, USAGE, INTERRUPTED = 1, 2, 130
# Added to the number of the signal that ended the program, as shells do.
SIGNAL_STATUS = 128
TERMINATING_SIGNALS = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
ENDING_SIGNALS = [signal.SIGINT, *TERMINATING_SIGNALS]


@contextmanager
def report_errors(
    status: int, debug: bool, usage: tuple[type[Exception], ...] = ()
) -> Generator[None]:
    """Turn an error into one line on standard error and an exit status.

    Errors of the types in `usage` end with `USAGE`, all others with `status`.
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
        print_error(text if text == str(error) else f"{text} (--debug shows the traceback)")
        raise SystemExit(USAGE if isinstance(error, usage) else status) from None
    finally:
        try:
            _flush()
        except OSError:
            # Python flushes again at its exit and would report the same error there.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _flush() -> None:
    with suppress(AttributeError, ValueError):  # no stream, or a closed one
        sys.stdout.flush()


@contextmanager
def handle_signals(
    received: Callable[[int], None], signals: Sequence[signal.Signals] = ENDING_SIGNALS
) -> Generator[None]:
    """Call `received` in the running loop for each of these signals, instead of ending the process.

    The previous signal handlers are restored at the end of the block.
    """
    loop = asyncio.get_running_loop()

    def forward_signal(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(received, number)

    before = {number: signal.signal(number, forward_signal) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class KilledBySignal(Exception):
    """A signal cancelled a command. `error` is what the command raised at its end, if anything."""

    def __init__(self, number: int, error: Exception | None = None) -> None:
        super().__init__(number)
        self.status = SIGNAL_STATUS + number
        self.error = error


async def run_until_signal(
    work: Awaitable[T], signals: Sequence[signal.Signals] = ENDING_SIGNALS
) -> T:
    """Return the result of `work`. A signal cancels it.

    Raises `KilledBySignal` once the cancelled work has ended. If the work returns a result in spite
    of a signal, that result is returned.
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
            raise KilledBySignal(
                killed[0], error if isinstance(error, Exception) else None
            ) from None
