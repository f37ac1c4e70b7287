"""What all commands show of errors and logs, as lines that cannot steer a terminal."""

from __future__ import annotations

import logging
import sys
import traceback
from io import TextIOWrapper
from typing import Any, cast

from rich.console import Console
from rich.text import Text

from ..handlers.legible import legible
from ..messages.mask import mask

__all__ = [
    "LONGEST",
    "LegibleLog",
    "allow_unencodable",
    "complain",
    "has_unicode",
    "in_line",
    "show_traceback",
]

# The most characters that are shown of a call or a result, and of an error.
LONGEST, MOST = 400, 2000


def complain(error: BaseException | str) -> None:
    """Show an error in one line on the standard error."""
    text = in_line(str(error), MOST) or type(error).__name__
    Console(stderr=True, soft_wrap=True, highlight=False).print(
        Text.assemble(("anabranch: ", "red"), text)
    )


def allow_unencodable(stream: Any = None, errors: str = "backslashreplace") -> None:
    """Let a stream, or else standard output, escape or replace what its encoding lacks."""
    stream = sys.stdout if stream is None else stream
    if isinstance(stream, TextIOWrapper):
        cast("Any", stream).reconfigure(errors=errors)


def has_unicode(stream: Any) -> bool:
    """Return whether the encoding of a stream has more than ASCII."""
    return "utf" in (getattr(stream, "encoding", None) or "ascii").lower()


def show_traceback(error: BaseException) -> None:
    """Show where an error comes from on the standard error."""
    sys.stderr.write(legible("".join(traceback.format_exception(error))))


class LegibleLog(logging.StreamHandler[Any]):
    """Writes what is logged to the standard error, so that it cannot steer the terminal.

    That is what stands for it at the moment: a prompt puts another stream in its place.
    """

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> Any:  # type: ignore[override]
        """Where it writes."""
        return sys.stderr

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as text to read, without what looks like a key."""
        return legible(mask(super().format(record)))


def in_line(text: str, most: int) -> str:
    """Return text as a piece of one line; a longer one says how long it is."""
    text = " ".join(legible(text).split())
    return text if len(text) <= most else f"{text[:most]} ... ({len(text)} characters)"
