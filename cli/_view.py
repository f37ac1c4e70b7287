"""`anabranch view` and `anabranch diff`: show a recording as a page or as text, compare two."""

from __future__ import annotations

import os
import sys
import tempfile
import webbrowser
from collections.abc import Iterable
from heapq import nlargest
from operator import itemgetter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from ..commander import ConfigurationError
from ..messages import Usage
from ..messages.mask import mask
from ..tracing import Trace, TraceNode, diff, read
from ._display import can_draw, print_lines
from ._exit import FAILED, USAGE, AsJson, Debug, report_errors
from ._output import allow_unencodable, has_unicode, one_line, print_error, print_json
from ._tree_model import TreeSummary
from ._tree_view import (
    clean_line,
    draw,
    format_cost,
    format_seconds,
    format_tokens,
    name_failure,
    name_node,
)

__all__ = ["show_diff", "summarize", "view"]

PLAIN_COLUMNS, MAX_TREE_LINES = 120, 60
MAX_SLOWEST = 10
MAX_PATH_CHARS, MAX_LINE_CHARS = 100, 2_000
DIFFERENT = 1
DIFF_STYLES = {"added": "green", "removed": "red", "changed": "yellow"}


def view(
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="A recording, for example from run --record."),
    ],
    out: Annotated[
        str | None,
        typer.Option(
            "--out", "-o", metavar="FILE", help="The file for the page. Default: a temporary file."
        ),
    ] = None,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open a browser.")] = False,
    text: Annotated[
        bool, typer.Option("--text", help="Print a summary instead of writing a page.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Show a recording as a page in the browser, or as text.

    The page is one file and needs no network. Exit status: 0; 1 if it failed; 2 for wrong usage.
    """
    allow_unencodable()
    with report_errors(FAILED, debug, (ConfigurationError,)):
        trace = read(file)
        if text:
            if out is not None:
                raise ConfigurationError("--text and --out cannot be combined")
            _show_text(trace, os.path.basename(file))
            return
        if out is None:
            descriptor, out = tempfile.mkstemp(prefix="anabranch-", suffix=".html")
            os.close(descriptor)
        trace.html(out)
        print(out)
        if not no_open and not webbrowser.open(Path(out).absolute().as_uri()):
            print_error("cannot open a browser. Open the file in one, or use --text")


def _show_text(trace: Trace, title: str) -> None:
    console = Console(highlight=False, force_terminal=can_draw(sys.stdout))
    width = console.width if console.is_terminal else PLAIN_COLUMNS
    unicode = has_unicode(sys.stdout)
    print_lines(console, summarize(trace, title, width, MAX_TREE_LINES, unicode=unicode))


def summarize(trace: Trace, title: str, width: int, height: int, *, unicode: bool) -> list[Text]:
    """Return a recording as text, for machines without a browser."""
    lines = draw(TreeSummary(trace), width, height, trace.end, title=title, unicode=unicode)
    if any(life.content for life in trace.executions):
        lines.append(Text("with content: prompts, replies and arguments", "dim"))
    lines += _sums("by agent", trace, trace.usage_by_agent().items())
    by_model = [(model, {model: used}) for model, used in trace.usage().items()]
    lines += _sums("by model", trace, by_model)
    ran = [(_own_seconds(node, trace.end), node) for node in trace if node.intervals]
    if ran:
        lines += [Text(), Text("slowest, without the time of their children", "bold")]
        for length, node in nlargest(MAX_SLOWEST, ran, key=itemgetter(0)):
            lines.append(Text(f"{format_seconds(length):>9}  {_path(node)}"))
    if (first := trace.first_failure) is not None:
        lines += [Text(), Text("first failure", "bold"), Text(f"  {name_failure(first)}", "red")]
        lines.append(Text(f"  {_path(first)}, after {format_seconds(first.ended or 0.0)}"))
    blocked = [(length, at, node) for node in trace for _, length, at in node.slow]
    if blocked:
        lines += [Text(), Text("blocked the event loop", "bold")]
        for length, at, node in nlargest(MAX_SLOWEST, blocked, key=itemgetter(0)):
            place = clean_line(at, MAX_PATH_CHARS)
            lines.append(Text(f"{format_seconds(length):>9}  {name_node(node)} at {place}"))
    return lines


def _sums(title: str, trace: Trace, sums: Iterable[tuple[str, dict[str, Usage]]]) -> list[Text]:
    rows = [(clean_line(name) or "(no agent)", used) for name, used in sums]
    if not rows:
        return []
    wide = max(len(name) for name, _ in rows)
    lines = [Text(), Text(f"{title:<{wide + 2}}      in     out      cost", "bold")]
    for name, used in sorted(
        rows, key=lambda row: -sum(each.total_tokens for each in row[1].values())
    ):
        tokens_in = format_tokens(sum(each.input_tokens for each in used.values())) or "0"
        tokens_out = format_tokens(sum(each.output_tokens for each in used.values())) or "0"
        cost = format_cost(trace.cost(used))
        lines.append(Text(f"  {name:<{wide}}  {tokens_in:>6}  {tokens_out:>6}  {cost:>8}"))
    return lines


def _own_seconds(node: TraceNode, end: float) -> float:
    """Return the seconds for which a node ran while none of its children did."""
    own = sum((end if each.end is None else each.end) - each.start for each in node.intervals)
    below = [
        (interval.start, end if interval.end is None else interval.end)
        for child in node.children
        for interval in child.intervals
    ]
    reached = 0.0
    for start, stop in sorted(below):
        own -= max(0.0, stop - max(start, reached))
        reached = max(reached, stop)
    return max(own, 0.0)


def _path(node: TraceNode) -> str:
    above = [each for each in node.upwards() if each.parent is not None]
    return clean_line(" > ".join(name_node(each) for each in reversed(above)), MAX_PATH_CHARS)


def show_diff(
    before: Annotated[str, typer.Argument(metavar="A", help="A recording.")],
    after: Annotated[str, typer.Argument(metavar="B", help="The recording to compare with A.")],
    as_json: AsJson = False,
    times: Annotated[
        bool, typer.Option("--times", help="Also show nodes that became much slower or faster.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Show how recording B differs from recording A.

    Times, and the order of nodes that ran at the same time, are not differences. Exit status: 0
    without differences; 1 with differences; 2 if the recordings cannot be compared.
    """
    allow_unencodable()
    with report_errors(USAGE, debug):
        difference = diff(read(before), read(after))
        if as_json:
            print_json(difference.to_json())
        else:
            _print_diff(mask(difference.lines(times=times)))
        if difference:
            raise SystemExit(DIFFERENT)


def _print_diff(lines: list[str]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for line in lines:
        rest = line.lstrip(" ")
        indent = line[: len(line) - len(rest)]
        style = "" if indent else DIFF_STYLES.get(rest.split(" ", 1)[0], "")
        console.print(Text(indent + one_line(rest, MAX_LINE_CHARS), style))
