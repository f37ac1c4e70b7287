"""The commands that show runs: `run`, `watch`, `view`."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
import webbrowser
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Annotated, TypeAlias

import typer
from rich.console import Console

from ..commander import ConfigurationError
from ..tracing import Trace, follow, read
from ._display import FRAME_SECONDS, TreeDisplay, can_draw
from ._exit import FAILED, report_errors
from ._summary import summarize
from ._terminal import allow_unencodable, complain, has_unicode, in_line

__all__ = ["run", "view", "watch"]

Debug: TypeAlias = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
Recording: TypeAlias = Annotated[
    str, typer.Argument(metavar="FILE", help="A recording: record(...) or run --record made it.")
]
LOOK = 0.1  # seconds between two looks for a file that is not there yet
WIDE, HIGH = 120, 60


def run(
    job: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:JOB",
            help="A class of jobs, a @handler or async function, an agent, a job, or a function"
            " that makes one.",
        ),
    ],
    fields: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FIELD=VALUE]...", help="Its inputs; lists and the like as JSON."),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Draw the tree while it runs.")
    ] = False,
    record: Annotated[
        str | None, typer.Option("--record", "-r", metavar="FILE", help="Record the run.")
    ] = None,
    append: Annotated[
        bool, typer.Option("--append", help="Go on with the recording, as for a resumed run.")
    ] = False,
    content: Annotated[
        bool, typer.Option("--content", help="Also prompts, replies, arguments and messages.")
    ] = False,
    journal: Annotated[
        str | None,
        typer.Option("--journal", "-j", metavar="FILE", help="Keep a Durable job's run in it."),
    ] = None,
    run_id: Annotated[
        str | None, typer.Option("--run-id", metavar="NAME", help="The run's name there.")
    ] = None,
    live: Annotated[
        list[str] | None,
        typer.Option("--live", metavar="NAME=MODULE:ATTRIBUTE", help="What is never written."),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="The longest it may take.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON for programs.")] = False,
    debug: Debug = False,
) -> None:
    """Run a job and print what it gives: a text as it is, anything else as JSON.

    Ctrl-C cancels its tree, and once more ends at once. Ends with status 0; 1 if it failed; 2 for
    wrong usage; 128 and its number after a signal.
    """
    from ._run_job import RunOptions, run_job

    options = RunOptions(
        watch=watch,
        record=record,
        append=append,
        content=content,
        journal=journal,
        run_id=run_id,
        live=tuple(live or ()),
        timeout=timeout,
        as_json=as_json,
        debug=debug,
    )
    allow_unencodable()
    with report_errors(FAILED, debug, (ConfigurationError,)):
        if status := run_job(job, fields or [], options):
            raise SystemExit(status)


def watch(
    what: Annotated[
        str,
        typer.Argument(
            metavar="FILE_OR_URL",
            help="A recording, which record(...) or run --record writes, or a run of a server:"
            " http://HOST:PORT/runs/ID, or http://HOST:PORT for its newest. The key is"
            " ANABRANCH_TOKEN.",
        ),
    ],
    debug: Debug = False,
) -> None:
    """Draw the tree of a run in another process, until its end.

    A file that is not there yet is waited for. Ends with status 0; 1 if the process has ended
    before the run, or the server shows no such run; 2 for wrong usage; 130 after Ctrl-C.
    """
    allow_unencodable()
    with report_errors(FAILED, debug, (ConfigurationError,)):
        if "://" in what:
            from ._watch_url import follow_url

            title, traces = what, follow_url(what)
        else:
            path = Path(what)
            _wait_for(path)
            title, traces = path.name, follow(path)
        if status := asyncio.run(_watch(title, traces)):
            raise SystemExit(status)


def _wait_for(path: Path) -> None:
    """Wait until a file is there."""
    if not path.parent.is_dir():
        raise ConfigurationError(f"there is no folder {str(path.parent)!r}")
    if not path.exists():
        hint = f"waits for {path}: anabranch run ... --record writes it (Ctrl-C ends)"
        print(in_line(hint, 400), file=sys.stderr)
        while not path.exists():
            time.sleep(LOOK)


async def _watch(title: str, traces: AsyncGenerator[Trace]) -> int:
    with TreeDisplay(in_line(title, 100)) as display:
        trace = await _draw(traces, display)
    if trace is None or not trace.lives or trace.lives[-1].ended:
        return 0
    life = trace.lives[-1]
    lost = sum(1 for node in trace if node.state == "lost")
    nodes = f"{lost:,} node{'s were' if lost != 1 else ' was'} open"
    complain(f"the process {life.pid} on {life.host} ended before the run: {nodes}")
    return FAILED


async def _draw(traces: AsyncGenerator[Trace], display: TreeDisplay) -> Trace | None:
    """Draw what is read, several times a second, until there is no more."""
    latest: Trace | None = None

    async def read_on() -> None:
        nonlocal latest
        async for trace in traces:
            latest = trace

    reading = asyncio.create_task(read_on())
    try:
        while not reading.done():
            if latest is not None:
                display.show(latest)
            await asyncio.wait([reading], timeout=FRAME_SECONDS)
        reading.result()
    finally:
        reading.cancel()
        if latest is not None:
            display.end(latest)
    return latest


def view(
    file: Recording,
    out: Annotated[
        str | None,
        typer.Option("--out", "-o", metavar="FILE", help="Where the page is written."),
    ] = None,
    no_open: Annotated[bool, typer.Option("--no-open", help="Open no browser.")] = False,
    text: Annotated[
        bool, typer.Option("--text", help="A summary on the screen, and no page.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Show a recording as a page in the browser, or as text.

    The page is one file that asks nobody. Ends with status 0; 1 if it failed; 2 for wrong usage.
    """
    allow_unencodable()
    with report_errors(FAILED, debug, (ConfigurationError,)):
        trace = read(file)
        if text:
            if out is not None:
                raise ConfigurationError("--text writes no page: give it without --out")
            _show_text(trace, os.path.basename(file))
            return
        if out is None:
            descriptor, out = tempfile.mkstemp(prefix="anabranch-", suffix=".html")
            os.close(descriptor)
        trace.html(out)
        print(out)
        if not no_open and not webbrowser.open(Path(out).absolute().as_uri()):
            complain("there is no browser here: open the file in one, or see it with --text")


def _show_text(trace: Trace, title: str) -> None:
    console = Console(highlight=False, soft_wrap=True)
    plain = not can_draw(sys.stdout)
    width = WIDE if plain else console.width
    for line in summarize(trace, title, width, HIGH, unicode=has_unicode(sys.stdout)):
        if plain:
            print(line.plain.rstrip())
        else:
            line.end = "\n"
            line.rstrip()
            console.print(line, end="\n")
