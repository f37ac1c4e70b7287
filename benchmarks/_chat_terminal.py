"""`anabranch chat` in a separate terminal, with a server whose replies are scripted.

It also runs as a program. `server FILE` is the server, which streams pieces of the file's text.
`chat FILE ARGUMENTS` is the chat, which writes the delays of its event loop to the file.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

PROBE = 0.02  # seconds between two checks of the event loop
# A request: how long the model reads, how many pieces it sends, and how many of them a second.
ASK = "read {read} say {pieces} rate {rate}"


class Terminal:
    """The chat in a pty. `home` is the user's folder; `late` records the loop's delays."""

    def __init__(
        self,
        command: Sequence[str],
        home: Path,
        columns: int = 80,
        rows: int = 40,
        *,
        late: bool = False,
    ) -> None:
        self._late = home / "late.json" if late else None
        if late:
            command = [sys.executable, __file__, "chat", str(self._late), *command[1:]]
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(environment(home))
            os.chdir(home)
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            os.execv(command[0], command)

    def read(self, seconds: float) -> bytes:
        """Return the first output within a time, as soon as it arrives."""
        if not select.select([self.fd], [], [], max(seconds, 0))[0]:
            return b""
        try:
            return os.read(self.fd, 65536)
        except OSError:
            return b""

    def until(self, what: bytes, limit: float = 60) -> float:
        """Read until a text has arrived; return the seconds it took."""
        begun, seen = time.perf_counter(), b""
        while what not in seen:
            passed = time.perf_counter() - begun
            if passed > limit:
                raise TimeoutError(f"{what!r} did not come: {seen[-2000:]!r}")
            seen += self.read(limit - passed)
        return time.perf_counter() - begun

    def drain(self, seconds: float) -> None:
        """Read for a time."""
        end = time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > 0:
            self.read(left)

    def write(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def cpu(self) -> float:
        """Return the CPU seconds of all its threads."""
        tasks = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(each.read_text().split()[0]) for each in tasks) / 1e9

    def close(self) -> list[float]:
        """End the chat; return the delays of its event loop in seconds."""
        self.write("\x03\x15\x04")
        end = time.perf_counter() + 10
        while os.waitpid(self.pid, os.WNOHANG) == (0, 0):
            self.read(0.05)
            if time.perf_counter() > end:
                os.kill(self.pid, 9)
        os.close(self.fd)
        return [] if self._late is None else json.loads(self._late.read_text())


def environment(home: Path) -> dict[str, str]:
    folders = {f"XDG_{name}_HOME": str(home / name) for name in ("DATA", "STATE", "CONFIG")}
    return {**os.environ, **folders, "TERM": "xterm-256color", "OPENAI_API_KEY": "none"}


@contextmanager
def home() -> Generator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@contextmanager
def server(text: str) -> Generator[str]:
    """Run a model on loopback that streams pieces of a text; yield its address."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(text)
        file.flush()
        command = [sys.executable, __file__, "server", file.name]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                yield process.stdout.readline().strip()
            finally:
                process.terminate()


def quantiles(values: Sequence[float]) -> str:
    """Return the median, the 90th and 99th percentiles and the maximum, in milliseconds."""
    shown = [*(percentile(values, each) for each in (50, 90, 99)), max(values)]
    return " ".join(f"{each * 1000:8.1f}" for each in shown)


def percentile(values: Sequence[float], number: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[number - 1]


# --- the two programs


async def _serve(text: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not reader.at_eof():
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                break
            names = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
            body = json.loads(await reader.readexactly(int(names[b"content-length"])))
            said = [each for each in body["messages"] if each["role"] == "user"][-1]["content"]
            words = said.split()
            read, pieces, rate = (float(words[words.index(name) + 1]) for name in NAMES)
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n"
            )
            await asyncio.sleep(read)
            began = time.perf_counter()
            for number in range(int(pieces)):
                if writer.is_closing():
                    return
                at = number * 4 % len(text)
                _event(writer, {"delta": {"content": text[at : at + 4]}, "index": 0})
                if rate:
                    await asyncio.sleep(began + (number + 1) / rate - time.perf_counter())
            _event(writer, {"delta": {}, "index": 0, "finish_reason": "stop"})
            _send(writer, b"data: [DONE]\n\n")
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        print(f"http://127.0.0.1:{port}/v1", flush=True)
        await listening.serve_forever()


NAMES = ("read", "say", "rate")


def _event(writer: asyncio.StreamWriter, choice: object) -> None:
    value = {"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}
    _send(writer, b"data: " + json.dumps(value).encode() + b"\n\n")


def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))


def _chat(path: str) -> None:
    """Run the chat, and record by how much its event loop wakes late."""
    late: list[float] = []

    async def probe() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(PROBE)
            late.append(time.perf_counter() - before - PROBE)

    run = asyncio.run

    async def probed(chat: object) -> object:
        task = asyncio.ensure_future(probe())
        try:
            return await chat  # pyright: ignore[reportGeneralTypeIssues]
        finally:
            task.cancel()

    asyncio.run = lambda chat, **more: run(probed(chat), **more)  # pyright: ignore
    from anabranch.cli import main

    try:
        main()
    finally:
        Path(path).write_text(json.dumps(late))


if __name__ == "__main__":
    kind, file, *arguments = sys.argv[1:]
    if kind == "server":
        asyncio.run(_serve(Path(file).read_text()))
    else:
        sys.argv = ["anabranch", *arguments]
        _chat(file)
