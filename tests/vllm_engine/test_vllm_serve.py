"""The conformance suite over `vllm serve`: the `http` backend against a server of others."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen
from typing import Any

import pytest
from _conformance import CASES, HELLO, Subject, show
from _vllm import MODEL

from anabranch.backends import Backend, connect
from anabranch.messages import Message, Request

# Not a call: asked for one by `tool_choice`, this server lets the small model write `"1"` for the
# arguments, streamed or not, and that is no object.
SHOWN = ["text", "usage", "length", "left", "cancelled", "many", "again"]
REFUSED = ["unknown model", "wrong key", "too long"]
KEY = "sk-served"


def _free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return made.getsockname()[1]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The server, ready; its processes end with it."""
    port = _free_port()
    arguments = ["--model", MODEL, "--served-model-name", "tiny", "--api-key", KEY]
    arguments += ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", "1024"]
    arguments += ["--enforce-eager", "--dtype", "float32"]
    process = Popen(
        [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *arguments],
        stdout=PIPE,
        stderr=STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        _wait_until_ready(process)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)
        if process.stdout is not None:
            process.stdout.close()


def _wait_until_ready(process: Popen[str]) -> None:
    watchdog = threading.Timer(600, process.kill)
    watchdog.start()
    assert process.stdout is not None
    said: list[str] = []
    for line in process.stdout:
        said.append(line)
        if "Application startup complete" in line:
            break
    else:
        pytest.fail("vllm serve did not start:\n" + "".join(said[-20:]))
    watchdog.cancel()
    threading.Thread(target=process.stdout.read, daemon=True).start()  # or it would fill up


class ServeSubject(Subject):
    """The small model behind `vllm serve`."""

    def __init__(self, folder: Path, address: str) -> None:
        super().__init__(folder)
        self.address = address

    async def backend(self, case: str, **settings: Any) -> Backend:
        if case in {"left", "cancelled"}:
            settings["ignore_eos"] = True
        if case == "too long":
            words = [{"role": "user", "content": "many words " * 2000}]
            settings["extra"] = {"messages": words}
        model = "nobody" if case == "unknown model" else "tiny"
        key = "sk-wrong" if case == "wrong key" else KEY
        backend = connect(self.address, model=model, api_key=key, temperature=0, **settings)
        self.stack.push_async_callback(backend.aclose)
        return backend


@pytest.mark.parametrize("case", SHOWN + REFUSED)
async def test_vllm_serve_shows(case: str, address: str, tmp_path: Path) -> None:
    """What it can be made to show."""
    assert case in CASES
    await show(ServeSubject(tmp_path, address), case, seconds=120)


async def test_vllm_serve_goes_on_where_a_reply_broke_off(address: str) -> None:
    """Asked as `resume="continue"` asks, it writes what it would have written next."""
    async with asyncio.timeout(120), connect(address, model="tiny", api_key=KEY) as backend:
        options = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
        ask = Request(HELLO.messages, options=options)
        whole = (await backend.complete(ask)).content or ""
        async with aclosing(backend.stream(ask)) as deltas:
            said = "".join([(await anext(deltas)).text for _ in range(5)])
        partial = Message(role="assistant", content=said)
        rest = backend.continuation(ask, partial)  # type: ignore[attr-defined]
        more = (await backend.complete(rest)).content or ""

    assert said
    assert (said + more).startswith(whole)
