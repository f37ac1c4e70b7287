"""Output of all commands: results, errors and logs, none of which can steer a terminal."""

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
    "LONGEST",
    "LegibleLog",
    "allow_unencodable",
    "complain",
    "count",
    "error_text",
    "has_unicode",
    "in_line",
    "print_json",
    "print_result",
    "show_traceback",
]

# The most characters that are shown of a call or a result, and of an error.
LONGEST, MAX_ERROR_CHARS = 400, 2000


def complain(error: BaseException | str) -> None:
    """Print an error in one line to standard error, without secrets."""
    text = in_line(mask(str(error)), MAX_ERROR_CHARS) or type(error).__name__
    Console(stderr=True, soft_wrap=True, highlight=False).print(
        Text.assemble(("anabranch: ", "red"), text)
    )


def error_text(error: BaseException, plain: tuple[type[BaseException], ...] = ()) -> str:
    """Return the message of an error, after its type unless it is Anabranch's own or `plain`."""
    if isinstance(error, (AnabranchError, *plain)):
        return str(error)
    return f"{type(error).__name__}: {error}"


def print_result(result: object) -> None:
    """Print a result: a text as it is, anything else as JSON."""
    if isinstance(result, str):
        print(legible(result))
    else:
        print_json(result)


def print_json(value: object) -> None:
    """Print a value for programs, with secrets masked.

    Control characters and halves of surrogate pairs are escaped as in JSON.
    """
    encoding = getattr(sys.stdout, "encoding", "")  # it has none once it is closed
    text = json.dumps(mask(value), ensure_ascii=encoding.lower() != "utf-8", indent=2)
    if text != legible(text):
        text = "".join(each if each == legible(each) else json.dumps(each)[1:-1] for each in text)
    print(text)


def count(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def allow_unencodable(stream: Any = None, errors: str = "backslashreplace") -> None:
    """Let a stream, or else standard output, escape or replace what its encoding lacks."""
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
    """Writes log records to the current standard error, without control characters and secrets.

    The stream changes, because a prompt or a live region replaces it for a time.
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


def in_line(text: str, limit: int) -> str:
    """Return a text as a part of one line; a text that is cut says how long it was."""
    text = " ".join(legible(text).split())
    return text if len(text) <= limit else f"{text[:limit]} ... ({len(text)} characters)"
