"""`anabranch watch`: follow a run in another process, through its recording or its server."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any

import typer

from ..commander import ConfigurationError
from ..tracing import Trace, follow
from ._display import FRAME_SECONDS, TreeDisplay
from ._exit import FAILED, Debug, report_errors
from ._http import BadServer, address_of, open_client, read_events, read_object, require_ok
from ._output import allow_unencodable, format_count, one_line, print_error

__all__ = ["follow_url", "watch"]

NEW_FILE_POLL_SECONDS = 0.1  # for a file that does not exist yet
RECONNECT_SECONDS = 30.0  # the time for attempts to open a lost connection again
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.25, 4.0  # between two attempts


def watch(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE_OR_URL",
            help="A recording, for example from run --record, or a run on a server:"
            " http://HOST:PORT/runs/ID, or http://HOST:PORT for its newest run. Set ANABRANCH_TOKEN"
            " to the server's key.",
        ),
    ],
    debug: Debug = False,
) -> None:
    """Draw the tree of a run in another process until the run ends.

    Waits for a file that does not exist yet. Exit status: 0; 1 if the process died before the run
    ended, or if the run is not on the server; 2 for wrong usage; 130 after Ctrl-C.
    """
    allow_unencodable()
    with report_errors(FAILED, debug, (ConfigurationError,)):
        if "://" in source:
            title, traces = source, follow_url(source)
        else:
            path = Path(source)
            _wait_for(path)
            title, traces = path.name, follow(path)
        with TreeDisplay(one_line(title, 100)) as display:
            trace = asyncio.run(_show(traces, display))
        if trace is not None and trace.executions and not trace.executions[-1].ended:
            process = trace.executions[-1]
            lost = sum(1 for node in trace if node.state == "lost")
            nodes = f"{format_count(lost, 'node')} {'was' if lost == 1 else 'were'} open"
            print_error(
                f"process {process.pid} on {process.host} died before the run ended: {nodes}"
            )
            raise SystemExit(FAILED)


def _wait_for(path: Path) -> None:
    """Wait until a file exists."""
    if not path.parent.is_dir():
        raise ConfigurationError(f"there is no folder {str(path.parent)!r}")
    if not path.exists():
        hint = f"waiting for {path}, which anabranch run --record writes (Ctrl-C stops)"
        print(one_line(hint, 400), file=sys.stderr)
        while not path.exists():
            time.sleep(NEW_FILE_POLL_SECONDS)


async def _show(traces: AsyncGenerator[Trace], display: TreeDisplay) -> Trace | None:
    """Show the latest trace several times a second until `traces` ends; return the last one."""
    latest: Trace | None = None

    async def read() -> None:
        nonlocal latest
        async for trace in traces:
            latest = trace

    reading = asyncio.create_task(read())
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


async def follow_url(url: str) -> AsyncGenerator[Trace]:
    """Yield the trace of a run on a server after each new event, until the run ends.

    `url` is `http://HOST/runs/ID`, or the address of the server for its newest run. The environment
    variable `ANABRANCH_TOKEN` is the key. After a lost connection is opened again, a new trace
    object is yielded. Raises `ConfigurationError` for an invalid address. Raises `BadServer` if the
    server cannot be reached, refuses, or has no such run.
    """
    where = address_of(url).removesuffix("/trace").removesuffix("/runs")
    import aiohttp

    trace = Trace()
    try:
        async with open_client() as client:
            if "/runs/" not in where:
                where = f"{where}/runs/{await _newest_run(client, where)}"
            retry = _Reconnect(where)
            while True:
                lines, why = 0, "the server closed the connection before the run ended"
                try:
                    async with aclosing(_lines(client, where, retry)) as texts:
                        async for text in texts:
                            trace = trace if lines else Trace()
                            lines += 1
                            trace.feed(json.loads(text))
                            trace.live = not trace.executions[-1].ended
                            yield trace
                            if not trace.live:
                                return
                except (aiohttp.ClientError, TimeoutError) as error:
                    if not trace.executions:
                        raise
                    why = why if lines else _error_line(error)
                await retry.wait(why, lines)
    except BadServer as error:
        failed = error
    except (aiohttp.ClientError, TimeoutError) as error:
        failed = BadServer(f"cannot read {one_line(where, 200)}: {_error_line(error)}")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        failed = BadServer(f"{one_line(where, 200)} did not send a recording: {error!r:.200}")
    if trace.executions:
        trace.live = False
        trace.lose_open()
        yield trace
    raise failed from None


class _Reconnect:
    """The pauses before a lost connection is opened again: each longer, within a total time."""

    def __init__(self, where: str) -> None:
        self._where = one_line(where, 200)
        self._pause = self._until = 0.0
        self._lines = 0
        self.started = 0.0  # the time of the last attempt
        self.has_lost = False  # whether a connection was lost

    async def wait(self, why: str, lines: int) -> None:
        """Pause, or raise `BadServer` after the total time.

        `lines` is the number of lines that the lost connection delivered. The time starts again if
        the connection was open for long, or delivered more lines than the previous one.
        """
        self.has_lost, now = True, time.monotonic()
        if lines > self._lines or (lines and now - self.started > RECONNECT_SECONDS):
            self._pause, self._until = FIRST_PAUSE_SECONDS, now + RECONNECT_SECONDS
            print_error(f"{self._where}: {why}. Reconnecting for {RECONNECT_SECONDS:g} seconds")
        elif now + self._pause > self._until:
            raise BadServer(f"{self._where}: {why}")
        self._lines = lines
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, MAX_PAUSE_SECONDS)


async def _lines(client: Any, where: str, retry: _Reconnect) -> AsyncGenerator[str]:
    """Yield the lines of a recording over one connection."""
    retry.started = time.monotonic()
    async with client.get(f"{where}/trace", allow_redirects=False) as answer:
        if retry.has_lost and answer.status >= 500:  # a proxy whose server restarts
            answer.raise_for_status()
        await require_ok(answer, where)
        async for event in read_events(answer.content):
            if not event.kind:  # the lines of a recording have none
                yield event.data


def _error_line(error: Exception) -> str:
    return one_line(str(error), 300) or type(error).__name__


async def _newest_run(client: Any, server: str) -> str:
    """Return the id of the newest run with a recording."""
    async with client.get(f"{server}/runs", allow_redirects=False) as answer:
        await require_ok(answer, server)
        runs = (await read_object(answer))["runs"]
    for run in runs:
        if run["traced"]:
            return str(run["id"])
    raise BadServer(f"{one_line(server, 200)} has no run to watch yet. Start one on its chat page")
