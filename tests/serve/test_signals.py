"""The end of a server process by signals."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.raw_client import chat_request
from support.waiting import TIMEOUT_SECONDS, block_until

PROGRAM = """
import asyncio
from anabranch import Agent, handler
from anabranch.messages import Delta
from anabranch.serve import _runs, _uvicorn
from anabranch.testing import ScriptedBackend

TELL = "tell.txt"
_runs.CANCEL_SECONDS, _uvicorn.EXIT_SECONDS, _uvicorn.CLOSE_SECONDS = 0.1, 1.5, 0.2
end = [Delta(finish_reason="stop"), Delta(done=True)]

async def told():
    while not __import__("os").path.exists(TELL):
        await asyncio.sleep(0.01)

def reply(request):
    event = asyncio.Event()
    task = asyncio.ensure_future(told())
    task.add_done_callback(lambda _: event.set())
    return ["one ", event, "two", *end]

writer = Agent(ScriptedBackend(otherwise=reply, size=None), "You answer.", name="writer")

@handler
async def stubborn(node, text: str) -> str:
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass

@handler
async def talkative(node, text: str) -> str:
    return "a" * 7_000_000
"""
LAST = b"0\r\n\r\n"  # the regular end of a chunked body


class Served:
    """The process, and its port."""

    def __init__(self, folder: Path, drain: float, thing: str) -> None:
        (folder / "talk.py").write_text(PROGRAM)
        self._tell = folder / "tell.txt"
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        asked = [f"talk:{thing}", "--port", str(self.port), "--drain", str(drain)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "anabranch", "serve", *asked],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert block_until(self._listens)

    def _listens(self) -> bool:
        with socket.socket() as trying:
            return trying.connect_ex(("127.0.0.1", self.port)) == 0

    def tell(self) -> None:
        """Let the replies continue."""
        self._tell.touch()

    def ask(self, until: bytes, model: str = "writer") -> tuple[socket.socket, bytes]:
        """Send a request, and read until some data arrives."""
        client = socket.create_connection(("127.0.0.1", self.port), TIMEOUT_SECONDS)
        client.sendall(chat_request(model=model))
        said = b""
        while until not in said:
            said += client.recv(4096)
        return client, said

    def refuses(self) -> bool:
        """Return whether a new request is refused."""
        client, said = self.ask(b"\r\n\r\n")
        client.close()
        return b" 503 " in said.split(b"\r\n")[0] and b"retry-after: 5" in said.lower()

    def end(self) -> tuple[int, str]:
        """Wait for the end; return the exit status and the output."""
        out, _ = self.process.communicate(timeout=TIMEOUT_SECONDS)
        return self.process.returncode, out.decode()


@contextmanager
def _served(folder: Path, drain: float, thing: str = "writer") -> Generator[Served]:
    served = Served(folder, drain, thing)
    try:
        yield served
    finally:
        served.process.kill()
        served.process.communicate()


def _rest(client: socket.socket) -> bytes:
    with client:
        said = b""
        while more := client.recv(4096):
            said += more
        return said


def test_a_signal_lets_open_runs_end_and_refuses_new_ones(tmp_path: Path) -> None:
    """S15: the stream ends normally, then the process, without a traceback."""
    with _served(tmp_path, drain=TIMEOUT_SECONDS) as served:
        client, _ = served.ask(b"one ")
        served.process.send_signal(signal.SIGTERM)
        assert block_until(served.refuses)
        served.tell()
        said = _rest(client)
        assert b"two" in said
        assert said.endswith(LAST)
        found, printed = served.end()
        assert found == -signal.SIGTERM
        assert "Traceback" not in printed


@pytest.mark.parametrize(
    ("signals", "status"),
    [([signal.SIGINT], 0), ([signal.SIGTERM, signal.SIGTERM], -signal.SIGTERM)],
    ids=["Ctrl-C", "two signals"],
)
def test_runs_that_take_too_long_are_cancelled(
    tmp_path: Path, signals: list[signal.Signals], status: int
) -> None:
    """S15: after `drain` seconds, or at a second signal; streams end with their wire's error."""
    with _served(tmp_path, drain=TIMEOUT_SECONDS if len(signals) > 1 else 0.1) as served:
        client, _ = served.ask(b"one ")
        served.process.send_signal(signals.pop())
        if signals:
            assert block_until(served.refuses)
            served.process.send_signal(signals.pop())
        said = _rest(client)
        assert b'{"error":{"message":"The run was cancelled.","type":"server_error"' in said
        assert said.endswith(LAST)
        found, printed = served.end()
        assert found == status
        assert "Traceback" not in printed


def test_a_run_that_ignores_its_cancel_does_not_block_the_end(tmp_path: Path) -> None:
    """S15: its readers get the end; later the process ends without it."""
    with _served(tmp_path, drain=0.1, thing="stubborn") as served:
        client, _ = served.ask(b"\r\n\r\n", "stubborn")
        served.process.send_signal(signal.SIGTERM)
        said = _rest(client)
        assert b'{"error":{"message":"The run was cancelled."' in said
        assert said.endswith(LAST)
        found, printed = served.end()
        assert found == 1
        assert "of stubborn ignores its cancel" in printed
        assert "the process ends without waiting for it" in printed
        assert "Traceback" not in printed


def test_a_connection_that_is_not_read_is_aborted_at_the_end(tmp_path: Path) -> None:
    """S12: it delays the server's end only a little, and nothing is logged as an error."""
    with _served(tmp_path, drain=0.1, thing="talkative") as served:
        client, _ = served.ask(b'"aaaa', "talkative")
        served.process.send_signal(signal.SIGTERM)
        with client:
            found, printed = served.end()
        assert found == -signal.SIGTERM
        assert "ERROR" not in printed
        assert "Traceback" not in printed
