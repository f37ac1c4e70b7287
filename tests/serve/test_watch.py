"""`anabranch watch URL` with lost connections and ended servers."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from support.aiohttp_server import serve_app as web_served
from support.threaded_server import serve_in_thread
from support.waiting import wait_until

from anabranch import Job, MissingExtra
from anabranch.cli import _watch
from anabranch.cli._http import BadServer
from anabranch.cli._watch import follow_url
from anabranch.serve import serve
from anabranch.tracing import Trace


class Step(Job[int]):
    """Ends at once."""

    async def task(self) -> int:
        return 1


class Work(Job[int]):
    """Puts a child each time that a test allows it, and ends after `steps`."""

    policy = "isolate"
    steps: int

    async def task(self) -> int:
        while self.steps:
            await self.put_job(Step())
            self.steps -= 1
            await GATES[self.steps].wait()
        return 0


GATES: dict[int, asyncio.Event] = {}


async def _begin(url: str, steps: int) -> str:
    GATES.update({number: asyncio.Event() for number in range(steps)})
    body = {"model": "Work", "input": "", "fields": {"steps": steps}}
    async with aiohttp.ClientSession() as client, client.post(f"{url}runs", json=body) as answer:
        return str((await answer.json())["id"])


async def test_a_lost_connection_is_replaced(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time, to the end of the run; a line reports it, and no node is shown as lost."""
    monkeypatch.setattr(_watch, "FIRST_PAUSE_SECONDS", 0.01)
    steps = 4
    last = Trace()
    with serve_in_thread(serve(Work)) as served:
        run = await _begin(served.url, steps)
        async for trace in follow_url(f"{served.url}runs/{run}"):
            last = trace
            done = sum(node.name == "Step" and node.state == "completed" for node in trace)
            if done + len(GATES) > steps:  # this step is visible, so the next one may start
                served.cut()
                served.do(GATES.pop(len(GATES) - 1).set)
    assert {node.state for node in last} == {"completed"}
    assert last.executions[-1].ended
    said = capsys.readouterr().err.splitlines()
    assert 1 <= len(said) <= steps
    again = "the server closed the connection before the run ended. Reconnecting for 30 seconds"
    assert all(line.endswith(again) for line in said)


async def test_open_nodes_are_lost_if_the_connection_stays_lost(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a time limit; one line reports the attempts."""
    monkeypatch.setattr(_watch, "RECONNECT_SECONDS", 0.05)
    last = Trace()
    with pytest.raises(BadServer, match="Cannot connect"):
        with serve_in_thread(serve(Work)) as served:
            watching = follow_url(f"{served.url}runs/{await _begin(served.url, 2)}")
            while sum(node.state == "running" for node in await anext(watching)) < 2:
                pass
            served.cut()
            served.server.should_exit = True
            await wait_until(lambda: not _is_there(served.url))
        async for trace in watching:
            last = trace
    assert "lost" in {node.state for node in last}
    assert not last.live
    assert len(capsys.readouterr().err.splitlines()) == 1


def _is_there(url: str) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", int(url.rstrip("/").rpartition(":")[2]))) == 0


async def test_an_expired_run_is_reported() -> None:
    """With the server's message, without further attempts."""
    app = serve(Work)

    def forget(runs: dict[str, Any]) -> None:
        del runs[run]

    with serve_in_thread(app) as served:
        run = await _begin(served.url, 2)
        watching = follow_url(f"{served.url}runs/{run}")
        await anext(watching)
        served.do(lambda: forget(app.runs._runs))  # type: ignore[attr-defined]
        served.cut()
        with pytest.raises(BadServer, match="there is no such run"):
            async for _ in watching:
                pass


async def test_a_server_that_always_breaks_off_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that always starts and never makes progress counts as not answering."""
    monkeypatch.setattr(_watch, "RECONNECT_SECONDS", 0.05)
    monkeypatch.setattr(_watch, "FIRST_PAUSE_SECONDS", 0.01)

    async def trace(request: Any) -> web.Response:
        line = '{"recording":1,"time":0,"pid":0,"host":"","content":false}'
        return web.Response(text=f"data: {line}\n\n", content_type="text/event-stream")

    app = web.Application()
    app.router.add_get("/runs/a/trace", trace)
    async with web_served(app) as url:
        with pytest.raises(
            BadServer, match="the server closed the connection before the run ended"
        ):
            async for _ in follow_url(f"{url}/runs/a"):
                pass


async def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no package for requests is installed."""
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(MissingExtra, match=r"anabranch\[http\]"):
        await anext(follow_url("http://127.0.0.1:1/runs/a"))
