"""Three programs of a new user: a nightly report, a web service, a research desk."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from support.aiohttp_server import serve_app
from support.examples import EXAMPLES
from support.scripted_server import Reply, ScriptedServer, calls, text

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")


def environment(server: ScriptedServer) -> dict[str, str]:
    models = {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "sk-test"}
    return {**os.environ, **models, "ANABRANCH_MODEL": "openai:tiny"}


def last(body: dict[str, Any]) -> str:
    return str(body["messages"][-1]["content"])


# --- the nightly report


class Feeds:
    """Thirty feeds; some do not exist. Counts how often each is read."""

    def __init__(self, missing: set[int]) -> None:
        self.missing = missing
        self.reads = Counter[int]()

    async def answer(self, request: web.Request) -> web.Response:
        number = int(request.match_info["number"])
        self.reads[number] += 1
        if number in self.missing:
            raise web.HTTPNotFound
        return web.Response(text=f"news of feed {number}.")


def summarize(body: dict[str, Any]) -> Reply:
    (number,) = re.findall(r"news of feed (\d+)\.", last(body))
    importance = ["high", "normal", "low"][int(number) % 3]
    return text(json.dumps({"title": f"T{number}", "points": ["p"], "importance": importance}))


@asynccontextmanager
async def report(
    folder: Path, server: ScriptedServer, *arguments: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, str(EXAMPLES / "nightly_report.py"), "feeds.txt", *arguments),
        cwd=folder,
        env=environment(server),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield program
    finally:
        if program.returncode is None:
            program.kill()
        await program.communicate()


async def test_a_killed_report_continues_and_repeats_nothing(tmp_path: Path) -> None:
    """Only reads and requests that the kill interrupted are repeated."""
    feeds, app = Feeds(missing={4, 9}), web.Application()
    app.router.add_get("/{number}", feeds.answer)
    killed = asyncio.Event()

    def model(body: dict[str, Any]) -> Reply:
        reply = summarize(body)
        # After 15 requests it answers no more until the kill.
        return reply if len(server.requests) <= 15 else Reply([killed, *reply.steps])

    async with (
        asyncio.timeout(90),
        serve_app(app) as url,
        ScriptedServer(model) as server,
    ):
        (tmp_path / "feeds.txt").write_text("".join(f"{url}/{each}\n" for each in range(30)))
        async with report(tmp_path, server) as program:
            assert program.stderr is not None
            while not (await program.stderr.readline()).startswith(b"12/30"):
                assert program.returncode is None
            program.kill()
            await program.wait()
        killed.set()
        async with report(tmp_path, server) as program:
            out, progress = await program.communicate()
            assert program.returncode == 0, progress
        assert progress.splitlines()[-1].startswith(b"30/30")
        titles = [int(each) for each in re.findall(r"^## T(\d+)$", out.decode(), re.MULTILINE)]
        good = sorted({*range(30)} - feeds.missing, key=lambda each: (each % 3, each))
        assert titles == good
        assert {
            int(each.rsplit("/", 1)[1]) for each in re.findall(r"^- (http\S+):", out.decode(), re.M)
        } == feeds.missing
        at_once = 5
        assert len(server.requests) <= len(good) + at_once
        assert sum(feeds.reads[each] for each in good) <= len(good) + at_once

        # A third start prints the same report, from the journal alone.
        before = len(server.requests), feeds.reads.total()
        async with report(tmp_path, server) as program:
            again, _ = await program.communicate()
        assert again == out
        assert (len(server.requests), feeds.reads.total()) == before


async def test_a_spent_budget_ends_the_report_with_an_advice(tmp_path: Path) -> None:
    feeds, app = Feeds(missing=set()), web.Application()
    app.router.add_get("/{number}", feeds.answer)
    async with asyncio.timeout(60), serve_app(app) as url, ScriptedServer(summarize) as server:
        (tmp_path / "feeds.txt").write_text("".join(f"{url}/{each}\n" for each in range(30)))
        async with report(tmp_path, server, "--budget", "50") as program:
            _, errors = await program.communicate()
            assert program.returncode == 1
        assert b"run the same command again" in errors
        assert b"Traceback" not in errors
        # More tokens are enough, and the finished summaries count.
        asked = len(server.requests)
        async with report(tmp_path, server, "--budget", "100000") as program:
            _, errors = await program.communicate()
        assert b"Traceback" not in errors
        assert asked <= 50 // 12 + 6


# --- the research desk


def answer_desk(body: dict[str, Any]) -> Reply:
    system, messages = str(body["messages"][0]["content"]), body["messages"]
    if "You write a report" in system:
        file = "nowhere.md" if len(messages) <= 2 else "frost.md"
        finding = {"claim": "It was cold.", "file": file}
        found = {"summary": "No summer.", "findings": [finding], "open_questions": ["Why?"]}
        return text(json.dumps(found))
    if messages[-1]["role"] == "tool":
        return text("Frost in ", "July.")
    return calls(("search_notes", '{"words": ["frost"]}'))


async def test_the_desk_shows_all_researchers_and_a_report_with_real_files(tmp_path: Path) -> None:
    (tmp_path / "frost.md").write_text("Frost in July.")
    async with asyncio.timeout(60), ScriptedServer(answer_desk) as server:
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, str(EXAMPLES / "research_desk.py"), str(tmp_path), "Why?"),
            env=environment(server),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, errors = await program.communicate()
    assert program.returncode == 0, errors
    shown = out.decode()
    for color in range(31, 36):  # each researcher has one
        pieces = re.findall(rf"\033\[{color}m(.*?)\033\[0m", shown)
        assert "".join(pieces) == "Frost in July."
    assert "{" not in shown
    assert "- It was cold. (frost.md)" in shown
    assert "? Why?" in shown
    corrected = [each for each in server.requests if "nowhere.md" in last(each.body)]
    assert corrected, "the editor was told that the file does not exist"
    assert "ctx" not in json.dumps([each.body.get("tools") for each in server.requests])


# --- customer service


def answer_customer(body: dict[str, Any]) -> Reply:
    messages = body["messages"]
    if "Sort the message" in str(messages[0]["content"]):
        return text('{"topic": "delivery", "is_urgent": false}')
    if messages[-1]["role"] == "tool":
        return text("Done: ", str(messages[-1]["content"]))
    if "refund" in last(body):
        return calls(("refund", '{"order": "A-17", "cents": 1900}'))
    return text("Hello!")


@asynccontextmanager
async def service(folder: Path, server: ScriptedServer) -> AsyncIterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "uvicorn", "--app-dir", str(EXAMPLES), "customer_service:app"),
        *("--port", str(port)),
        cwd=folder,
        env=environment(server),
        stderr=subprocess.PIPE,
    )
    try:
        assert program.stderr is not None
        while b"running on" not in (line := await program.stderr.readline()):
            assert line, "the server has ended"
        draining = asyncio.ensure_future(program.stderr.read())
        yield f"http://127.0.0.1:{port}"
    finally:
        program.kill()
        await program.wait()
    await draining


async def read_events(response: aiohttp.ClientResponse) -> list[tuple[str, Any]]:
    body = await response.text()
    found = re.findall(r"event: (\w+)\ndata: (.*)\n\n", body)
    return [(kind, json.loads(data)) for kind, data in found]


async def open_question(client: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    while True:
        async with client.get(f"{url}/questions") as response:
            if found := await response.json():
                return found[0]


async def test_the_service_streams_asks_and_remembers_over_a_kill(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(90),
        ScriptedServer(answer_customer) as server,
        aiohttp.ClientSession() as client,
    ):
        async with service(tmp_path, server) as url:
            async with client.post(f"{url}/ticket", json={"text": "Where is it?"}) as response:
                assert await response.json() == {"topic": "delivery", "is_urgent": False}
            async with client.post(f"{url}/chat/ann", json={"text": "Hi"}) as response:
                events = await read_events(response)
            assert "".join(data for kind, data in events if kind == "text") == "Hello!"
            assert events[-1][0] == "end"

            refund = asyncio.ensure_future(
                client.post(f"{url}/chat/ann", json={"text": "Please refund it."})
            )
            question = await open_question(client, url)
            assert question["user"] == "ann"
            assert question["call"]["arguments"] == {"order": "A-17", "cents": 1900}
            refund.cancel()
            await asyncio.wait([refund])
        async with service(tmp_path, server) as url:  # the question is open before ann returns
            question = await open_question(client, url)
            decision = {"approved": True}
            async with client.post(f"{url}/questions/{question['number']}", json=decision) as done:
                assert await done.json() is True
            async with client.post(f"{url}/questions/99", json=decision) as done:
                assert done.status == 404
            async with client.post(f"{url}/chat/ann", json={"text": "Thanks!"}) as response:
                events = await read_events(response)
            assert "".join(data for kind, data in events if kind == "text") == "Hello!"
            async with client.get(f"{url}/chat/ann") as response:
                history = [each["text"] for each in await response.json()]
            refunded = "Done: 1900 cents of order A-17 are on their way to ann"
            assert [history[place] for place in (0, 1, 2, -3, -2, -1)] == [
                *("Hi", "Hello!", "Please refund it."),
                *(refunded, "Thanks!", "Hello!"),
            ]
