"""Print results, errors and logs without control characters and secrets.

All commands print through this module, so no model, tool or server can steer the terminal.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from io import TextIOWrapper
from typing import Any, cast

from rich.console import Console
from rich.text import Text

from ..commander import AnabranchError
from ..handlers.legible import legible
from ..messages.mask import mask

__all__ = [
    "MAX_SHOWN_CHARS",
    "LegibleLog",
    "allow_unencodable",
    "error_text",
    "format_count",
    "has_unicode",
    "one_line",
    "print_error",
    "print_json",
    "print_line",
    "print_result",
    "show_traceback",
]

# The maximum for a call or a result in one line, and for an error.
MAX_SHOWN_CHARS, MAX_ERROR_CHARS = 400, 2000


def print_error(error: BaseException | str) -> None:
    """Print an error as one line to standard error, without secrets."""
    text = one_line(mask(str(error)), MAX_ERROR_CHARS) or type(error).__name__
    Console(stderr=True, soft_wrap=True, highlight=False).print(
        Text.assemble(("anabranch: ", "red"), text)
    )


def error_text(error: BaseException, plain: tuple[type[BaseException], ...] = ()) -> str:
    """Return the message of an error, after its type unless it is Anabranch's own or in `plain`."""
    if isinstance(error, (AnabranchError, *plain)):
        return str(error)
    return f"{type(error).__name__}: {error}"


def print_result(result: object) -> None:
    """Print a result: a string as text, anything else as JSON."""
    if isinstance(result, str):
        print(legible(result))
    else:
        print_json(result)


def print_line(text: str | Text) -> None:
    """Print a line to standard output; the terminal wraps it. Markup of rich is not interpreted."""
    Console(highlight=False, markup=False, soft_wrap=True).print(text)


def print_json(value: object) -> None:
    """Print a value as JSON for programs, with secrets masked.

    Control characters and lone surrogates are escaped.
    """
    encoding = getattr(sys.stdout, "encoding", "")  # a closed stream has none
    text = json.dumps(mask(value), ensure_ascii=encoding.lower() != "utf-8", indent=2)
    if text != legible(text):
        text = "".join(each if each == legible(each) else json.dumps(each)[1:-1] for each in text)
    print(text)


def format_count(number: int, noun: str) -> str:
    """Return a number and a noun, such as "1 run" or "2 runs"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def allow_unencodable(stream: Any = None, errors: str = "backslashreplace") -> None:
    """Let a stream escape or replace characters that its encoding lacks.

    The default is standard output.
    """
    stream = sys.stdout if stream is None else stream
    if isinstance(stream, TextIOWrapper):
        cast("Any", stream).reconfigure(errors=errors)


def has_unicode(stream: Any) -> bool:
    """Return whether the encoding of a stream has more than ASCII."""
    return "utf" in (getattr(stream, "encoding", None) or "ascii").lower()


def show_traceback(error: BaseException) -> None:
    """Print the traceback of an error to standard error."""
    sys.stderr.write(legible("".join(traceback.format_exception(error))))


class LegibleLog(logging.StreamHandler[Any]):
    """A log handler that writes to standard error, without control characters and secrets.

    It looks the stream up for each record, because a prompt or a live region replaces it.
    """

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> Any:  # type: ignore[override]
        """The stream to write to."""
        return sys.stderr

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a record."""
        return legible(mask(super().format(record)))


def one_line(text: str, limit: int) -> str:
    """Return a text without line ends and control characters; a cut text ends with its length."""
    text = " ".join(legible(text).split())
    return text if len(text) <= limit else f"{text[:limit]} ... ({len(text)} characters)"
