"""A run of a server, followed over HTTP: where `watch` is given an address."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

from ..tracing import Trace
from ._http import BadServer, address_of, open_client, read_events, read_object, require_ok
from ._terminal import in_line

__all__ = ["follow_url"]


async def follow_url(url: str) -> AsyncGenerator[Trace]:
    """Yield the trace of a run of a server each time that it has grown, until the run's end.

    `url` is `http://HOST/runs/ID`, or where the server is: its newest run then. The key is what
    `ANABRANCH_TOKEN` has. Raises `ConfigurationError` for what is no such address, and
    `BadServer` if there is no server, no such run, or no way in, or if the connection ends before
    the run.
    """
    import aiohttp

    where = address_of(url).removesuffix("/trace").removesuffix("/runs")
    trace = Trace()
    trace.live = True
    try:
        async with open_client() as client:
            if "/runs/" not in where:
                where = f"{where}/runs/{await _newest(client, where)}"
            async with client.get(f"{where}/trace", allow_redirects=False) as answer:
                await require_ok(answer, where)
                async for event in read_events(answer.content):
                    if event.kind:  # a recording's lines have none
                        continue
                    trace.feed(json.loads(event.data))
                    trace.live = not (trace.lives and trace.lives[-1].ended)
                    yield trace
    except (aiohttp.ClientError, TimeoutError) as error:
        why = in_line(str(error), 300) or type(error).__name__
        raise BadServer(f"{in_line(where, 200)} cannot be read: {why}") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadServer(f"{in_line(where, 200)} sends no recording: {error!r:.200}") from None
    if trace.live:
        trace.live = False
        trace.lose_open()
        yield trace
        raise BadServer(f"{in_line(where, 200)}: the connection ended before the run")


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
