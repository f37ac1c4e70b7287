"""The conformance suite over `vllm serve`: our HTTP backends and another server."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen
from typing import Any
from urllib.request import Request as HttpRequest
from urllib.request import urlopen

import pytest
from support.conformance import CASES, HELLO, SUM, Subject, show
from support.vllm import MODEL
from support.waiting import POLL_SECONDS

from anabranch.backends import Backend, ModelBackend, Retries, connect
from anabranch.commander import StreamInterrupted
from anabranch.messages import Message, Request

# "call" is missing: with `tool_choice`, this server lets the small model write `"1"` for the
# arguments, streamed or not, which is not an object.
SHOWN = ["text", "usage", "length", "left", "cancelled", "many", "again"]
REFUSED = ["unknown model", "wrong key", "too long"]
KINDS = ["http", "openai"]
KEY = "sk-served"
_RUNNING = r"vllm:num_requests_running\{.*\}"
_FULL_LENGTH = r'vllm:request_success_total\{.*finished_reason="length".*\}'
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
# Forces the model to write text and two calls, as the server's parser of calls reads them.
_CALL = r'<tool_call>\n\{{"name": "add", "arguments": \{{"a": {}, "b": {}\}}\}}\n</tool_call>'
TWO_CALLS = "So: " + _CALL.format(1, 2) + r"\n" + _CALL.format(3, 4)


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
    arguments += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    process = Popen(
        [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *arguments],
        env={**os.environ, "VLLM_SERVER_DEV_MODE": "1"},  # for /abort_requests
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


def reach(kind: str, address: str, **settings: Any) -> Backend:
    """Return a backend of this kind for the server."""
    settings = {"model": "tiny", "api_key": KEY} | settings
    if kind == "http":
        return connect(address, **settings)
    return connect(f"openai:{settings.pop('model')}", base_url=address, **settings)


async def ask_server(address: str, path: str, body: bytes | None = None) -> str:
    """Get another page of the server, or post to it."""
    request = HttpRequest(address.removesuffix("/v1") + path, body)
    with await asyncio.to_thread(urlopen, request) as answer:
        return answer.read().decode()


class ServeSubject(Subject):
    """The small model behind `vllm serve`."""

    def __init__(self, folder: Path, kind: str, address: str) -> None:
        super().__init__(folder)
        self.kind = kind
        self.address = address

    async def backend(self, case: str, **settings: Any) -> Backend:
        if case in {"left", "cancelled"}:
            settings["ignore_eos"] = True
            settings["extra"] = {"max_tokens": 900}
            self.full_length = await self._count(_FULL_LENGTH)
        if case == "too long":
            words = [{"role": "user", "content": "many words " * 2000}]
            settings["extra"] = {"messages": words}
        if case == "unknown model":
            settings["model"] = "nobody"
        if case == "wrong key":
            settings["api_key"] = "sk-wrong"
        backend = reach(self.kind, self.address, temperature=0, **settings)
        self.stack.push_async_callback(backend.aclose)
        return backend

    async def left(self) -> None:
        """Wait until the engine is idle. The last request did not run to its full length."""
        while await self._count(_RUNNING):  # noqa: ASYNC110 - the server sets no event
            await asyncio.sleep(POLL_SECONDS)
        assert await self._count(_FULL_LENGTH) == self.full_length

    async def _count(self, metric: str) -> float:
        page = await ask_server(self.address, "/metrics")
        found = re.findall(rf"^{metric} (.*)$", page, re.MULTILINE)
        assert found
        return sum(map(float, found))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", SHOWN + REFUSED)
async def test_vllm_serve_shows(case: str, kind: str, address: str, tmp_path: Path) -> None:
    """The cases that it can be made to show."""
    assert case in CASES
    await show(ServeSubject(tmp_path, kind, address), case, seconds=120)


@pytest.mark.parametrize("kind", KINDS)
async def test_vllm_serve_goes_on_where_a_reply_broke_off(kind: str, address: str) -> None:
    """With the request of `resume="continue"`, it writes the same text as without the break."""
    async with asyncio.timeout(120), reach(kind, address) as backend:
        ask = Request(HELLO.messages, options={**GREEDY, "max_tokens": 12})
        whole = (await backend.complete(ask)).content or ""
        async with aclosing(backend.stream(ask)) as deltas:
            said = "".join([(await anext(deltas)).text for _ in range(5)])
        partial = Message(role="assistant", content=said)
        assert isinstance(backend, ModelBackend)
        rest = backend.continuation(ask, partial)
        assert rest is not None
        more = (await backend.complete(rest)).content or ""

    assert said
    assert (said + more).startswith(whole)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_reply_that_vllm_serve_aborts_is_not_complete(kind: str, address: str) -> None:
    """It ends with the finish reason `abort` and an end mark; `resume` continues it."""
    ask = Request(HELLO.messages, options={**GREEDY, "max_tokens": 60})
    async with asyncio.timeout(120):
        async with reach(kind, address) as backend:
            whole = (await backend.complete(ask)).content or ""
            with pytest.raises(StreamInterrupted, match="aborted") as caught:
                await _read_aborted(backend, address, ask)
        async with reach(kind, address, resume="continue", retries=Retries(backoff=0)) as backend:
            said = await _read_aborted(backend, address, ask)

    part = caught.value.partial.content or ""
    assert whole.startswith(part)
    assert part != whole
    # How many tokens came before is estimated where no usage has come, and rather too high.
    assert whole.startswith(said)
    assert len(part) < len(said)


async def _read_aborted(backend: Backend, address: str, ask: Request) -> str:
    """Return a reply whose request the server aborts after the first text."""
    said = ""
    async with aclosing(backend.stream(ask)) as deltas:
        async for delta in deltas:
            if delta.text and not said:
                await ask_server(address, "/abort_requests", b"{}")
            said += delta.text
    return said


@pytest.mark.parametrize("kind", KINDS)
async def test_calls_that_vllm_serve_streams_are_read(kind: str, address: str) -> None:
    """After the text before them."""
    options = {"structured_outputs": {"regex": TWO_CALLS}, "max_tokens": 200, "temperature": 0}
    async with asyncio.timeout(120), reach(kind, address) as backend:
        message = await backend.complete(Request(SUM.messages, SUM.tools, options))

    assert (message.content or "").strip() == "So:"
    assert [call.name for call in message.tool_calls] == ["add", "add"]
    assert [call.arguments for call in message.tool_calls] == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
    assert message.finish_reason == "tool_calls"
