"""`anabranch diff`: what is different between two recordings."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from ..messages.mask import mask
from ..tracing import diff, read
from ._exit import USAGE, report_errors
from ._runs_view import print_json
from ._terminal import allow_unencodable, in_line

__all__ = ["show_diff"]

DIFFERENT = 1
STYLES = {"added": "green", "removed": "red", "changed": "yellow"}
# The most characters of a line; values are cut before.
LONGEST = 2_000


def show_diff(
    before: Annotated[str, typer.Argument(metavar="A", help="A recording.")],
    after: Annotated[str, typer.Argument(metavar="B", help="The recording compared with it.")],
    as_json: Annotated[bool, typer.Option("--json", help="JSON for programs.")] = False,
    times: Annotated[
        bool, typer.Option("--times", help="Show what became much slower or faster, too.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Say what is different in recording B, compared with recording A.

    The exit status is 0 if nothing is, 1 if anything is, 2 if they cannot be compared. Times are no
    difference, nor is the order of what ran at once.
    """
    allow_unencodable()
    with report_errors(USAGE, debug):
        difference = diff(read(before), read(after))
        if as_json:
            print_json(difference.to_json())
        else:
            _print(mask(difference.lines(times=times)))
        if difference:
            raise SystemExit(DIFFERENT)


def _print(lines: list[str]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for line in lines:
        rest = line.lstrip(" ")
        indent = line[: len(line) - len(rest)]
        shown = indent + in_line(rest, LONGEST)
        if console.is_terminal:
            style = "" if indent else STYLES.get(rest.split(" ", 1)[0], "")
            console.print(Text(shown, style))
        else:
            print(shown)
