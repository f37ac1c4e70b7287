"""A run of a server, followed over HTTP: where `watch` is given an address."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from ..tracing import Trace
from ._http import BadServer, address_of, open_client, read_events, read_object, require_ok
from ._terminal import complain, in_line

__all__ = ["follow_url"]

PATIENCE = 30.0  # seconds for which a connection that was lost is tried again
FIRST, LONGEST_PAUSE = 0.25, 4.0  # seconds between two attempts


async def follow_url(url: str) -> AsyncGenerator[Trace]:
    """Yield the trace of a run of a server each time that it has grown, until the run's end.

    `url` is `http://HOST/runs/ID`, or where the server is: its newest run then. The key is what
    `ANABRANCH_TOKEN` has. A connection that is lost is made again, which gives another trace.
    Raises `ConfigurationError` for what is no such address, and `BadServer` if there is no
    server, no such run, or no way in, or if what was lost does not come again.
    """
    where = address_of(url).removesuffix("/trace").removesuffix("/runs")
    import aiohttp

    trace = Trace()
    try:
        async with open_client() as client:
            if "/runs/" not in where:
                where = f"{where}/runs/{await _newest(client, where)}"
            again = _Again(where)
            while True:
                lines, why = 0, "the connection ended before the run"
                try:
                    async with aclosing(_recording(client, where, again)) as texts:
                        async for text in texts:
                            trace = trace if lines else Trace()
                            lines += 1
                            trace.feed(json.loads(text))
                            trace.live = not trace.lives[-1].ended
                            yield trace
                            if not trace.live:
                                return
                except (aiohttp.ClientError, TimeoutError) as error:
                    if not trace.lives:
                        raise
                    why = why if lines else _words(error)
                await again.wait(why, lines)
    except BadServer as error:
        failed = error
    except (aiohttp.ClientError, TimeoutError) as error:
        failed = BadServer(f"{in_line(where, 200)} cannot be read: {_words(error)}")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        failed = BadServer(f"{in_line(where, 200)} sends no recording: {error!r:.200}")
    if trace.lives:
        trace.live = False
        trace.lose_open()
        yield trace
    raise failed from None


class _Again:
    """Waits before a connection that was lost is made again, longer each time, and not for ever."""

    def __init__(self, where: str) -> None:
        self._where = in_line(where, 200)
        self._pause = self._until = 0.0
        self._lines = 0
        self.begun = 0.0  # when the last attempt began
        self.tries = False  # whether there was a connection, and it was lost

    async def wait(self, why: str, lines: int) -> None:
        """Wait, or raise `BadServer`; `lines` is how many the connection has given.

        Time is counted anew where it has held for long, or has given more than the one before.
        """
        self.tries, now = True, time.monotonic()
        if lines > self._lines or (lines and now - self.begun > PATIENCE):
            self._pause, self._until = FIRST, now + PATIENCE
            complain(f"{self._where}: {why}; it is tried again for {PATIENCE:g} seconds")
        elif now + self._pause > self._until:
            raise BadServer(f"{self._where}: {why}")
        self._lines = lines
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)


async def _recording(client: Any, where: str, again: _Again) -> AsyncGenerator[str]:
    """Give the lines of a recording over one connection."""
    again.begun = time.monotonic()
    async with client.get(f"{where}/trace", allow_redirects=False) as answer:
        if again.tries and answer.status >= 500:  # a proxy whose server is away
            answer.raise_for_status()
        await require_ok(answer, where)
        async for event in read_events(answer.content):
            if not event.kind:  # a recording's lines have none
                yield event.data


def _words(error: Exception) -> str:
    return in_line(str(error), 300) or type(error).__name__


async def _newest(client: Any, server: str) -> str:
    """Return the id of the newest run that has been recorded."""
    async with client.get(f"{server}/runs", allow_redirects=False) as answer:
        await require_ok(answer, server)
        runs = (await read_object(answer))["runs"]
    for run in runs:
        if run["traced"]:
            return str(run["id"])
    raise BadServer(
        f"{in_line(server, 200)} has no run to watch: POST /runs and its page begin one"
    )
