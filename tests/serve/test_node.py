"""OpenAI's client for Node, unmodified, in a pinned and in the newest version."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import warnings
from pathlib import Path
from typing import Any

import pytest
from support.openai_client import on_uvicorn
from support.paths import TESTS

from anabranch import Agent
from anabranch.messages import Message, ToolCall, Usage
from anabranch.serve import serve
from anabranch.testing import ScriptedBackend

NODE = TESTS / "node"
PINNED: str = json.loads((NODE / "package.json").read_text("utf-8"))["dependencies"]["openai"]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "anabranch-tests"
PATIENCE = 120  # seconds, to install and for the requests
USAGE = Usage(input_tokens=3, output_tokens=4)


def installed(version: str) -> Path:
    """Return a folder with the client among its modules; skip with a warning without Node."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        _skip("there is no node, or no npm, on this machine")
    folder = CACHE / f"openai-{version}"
    package = folder / "node_modules" / "openai" / "package.json"
    if version != "latest" and package.exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    options = ["--no-audit", "--no-fund", "--no-save", "--loglevel=error", "--fetch-retries=0"]
    try:
        done = subprocess.run(
            ["npm", "install", "--prefix", str(folder), *options, f"openai@{version}"],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        _skip("the registry of npm does not answer")
    if not package.exists():
        _skip(f"npm could not install openai@{version}: {done.stderr[-200:].strip()}")
    return folder


def _skip(why: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn(f"OpenAI's client for Node was not tried: {why}", stacklevel=2)
    pytest.skip(why)


@pytest.mark.parametrize("version", [PINNED, pytest.param("latest", marks=pytest.mark.long)])
async def test_the_client_for_node_works(version: str) -> None:
    """S9, S10: chats, tools, Responses, reconnects at each event, a cancel, and errors."""
    folder = await asyncio.to_thread(installed, version)
    hello = Message(role="assistant", content="Hello you.", usage=USAGE)
    call = ToolCall(id="c0", name="weather", arguments={"city": "Rome"})
    failing = ScriptedBackend(otherwise=["Hel", RuntimeError("the secret is 42")])
    waiting = ScriptedBackend(otherwise=["Hel", asyncio.Event()])
    caller = ScriptedBackend(Message(role="assistant", tool_calls=[call]), otherwise=_repeat)
    server = serve(
        Agent(ScriptedBackend(otherwise=hello), name="writer"),
        {"caller": caller, "failing": failing, "waiting": waiting},
    )
    async with on_uvicorn(server) as url:
        process = await asyncio.create_subprocess_exec(
            *("node", str(NODE / "openai_client.mjs"), str(folder), url),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(PATIENCE):
                said, wrong = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
    assert process.returncode == 0, wrong.decode()
    seen = json.loads(said)
    assert version in ("latest", seen["version"])
    assert seen["models"] == ["writer", "caller", "failing", "waiting"]
    assert {seen[name] for name in ("whole", "streamed", "response", "final")} == {"Hello you."}
    assert seen["tokens"] == 7
    assert seen["tools"] == "warm in Rome"
    for number, left in enumerate(seen["left"]):
        assert left == {"numbers": [*range(len(seen["left"]))], "text": "Hello you."}, number
    assert len(seen["left"]) > 5
    assert seen["cancelled"] == "cancelled"
    assert waiting.closed == waiting.opened
    assert len(failing.requests) == 2  # none of them got a second request
    assert seen["errors"] == {
        "unknown": ["NotFoundError", 404, None],
        "refused": ["BadRequestError", 400, "n"],
        "failed": ["InternalServerError", 500, None],
        "broken": ["APIError", None, None],
    }


def _repeat(request: Any) -> str:
    return request.messages[-1].content
