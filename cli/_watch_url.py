"""A run of a server, followed over HTTP: where `watch` is given an address."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator
from typing import Any
from urllib.parse import urlsplit

from ..commander import AnabranchError, ConfigurationError
from ..tracing import Trace
from ._terminal import in_line

__all__ = ["follow_url"]

TOKEN = "ANABRANCH_TOKEN"  # noqa: S105 - the variable's name
LONGEST = 16_000_000  # bytes of one line


class CannotWatch(AnabranchError):
    """A server does not show a run; the message says why."""


async def follow_url(url: str) -> AsyncGenerator[Trace]:
    """Yield the trace of a run of a server each time that it has grown, until the run's end.

    `url` is `http://HOST/runs/ID`, or where the server is: its newest run then. The key is what
    `ANABRANCH_TOKEN` has. Raises `ConfigurationError` for what is no such address, and
    `CannotWatch` if there is no server, no such run, or no way in, or if the connection ends before
    the run.
    """
    import aiohttp

    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError(f"{in_line(url, 200)!r} is no http address")
    key = os.environ.get(TOKEN)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    where = url.split("?")[0].rstrip("/").removesuffix("/trace").removesuffix("/runs")
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=60)
    trace = Trace()
    trace.live = True
    try:
        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as client:
            if "/runs/" not in where:
                where = f"{where}/runs/{await _newest(client, where)}"
            async with client.get(f"{where}/trace") as answer:
                await _require(answer, where)
                async for text in _data_of(answer.content):
                    trace.feed(json.loads(text))
                    trace.live = not (trace.lives and trace.lives[-1].ended)
                    yield trace
    except (aiohttp.ClientError, TimeoutError) as error:
        why = in_line(str(error), 300) or type(error).__name__
        raise CannotWatch(f"{in_line(where, 200)} cannot be read: {why}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise CannotWatch(f"{in_line(where, 200)} sends no recording: {error!r:.200}") from None
    if trace.live:
        trace.live = False
        trace.lose_open()
        yield trace
        raise CannotWatch(f"{in_line(where, 200)}: the connection ended before the run")


async def _newest(client: Any, server: str) -> str:
    """Return the id of the newest run that has been recorded."""
    async with client.get(f"{server}/runs") as answer:
        await _require(answer, server)
        runs = (await answer.json())["runs"]
    for run in runs:
        if run["traced"]:
            return str(run["id"])
    raise CannotWatch(
        f"{in_line(server, 200)} has no run to watch: POST /runs and its page begin one"
    )


async def _require(answer: Any, what: str) -> None:
    """Raise what a refusal says."""
    if answer.status == 401:
        raise CannotWatch(f"{in_line(what, 200)} asks for a key: set {TOKEN} to one that is right")
    if answer.status >= 400:
        try:
            said = (await answer.json())["error"]["message"]
        except Exception:  # noqa: BLE001 - whatever a server of another kind says
            said = f"status {answer.status}; is it a server of anabranch's?"
        raise CannotWatch(f"{in_line(what, 200)}: {in_line(str(said), 300)}")


async def _data_of(content: Any) -> AsyncGenerator[str]:
    """Give the data of server-sent events, each of which is one line here."""
    rest = b""
    async for piece in content.iter_any():
        *lines, rest = (rest + piece).split(b"\n")
        if len(rest) > LONGEST:
            raise ValueError("a line without end")
        for line in lines:
            if line.startswith(b"data: "):
                yield line.removeprefix(b"data: ").decode()
