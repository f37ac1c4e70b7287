"""Run Python programs in forks of a process that has already imported the package.

Each program gets a separate process with its folder, environment and standard streams. The imports
take half a second and most commands 50 ms, so each test process does the imports only once.
"""

from __future__ import annotations

import asyncio
import atexit
import fcntl
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import termios
from contextlib import closing
from functools import cache
from io import BufferedReader, BufferedWriter, FileIO, TextIOWrapper
from pathlib import Path
from typing import Any

from support.paths import TESTS

__all__ = ["run_forked", "start_forked"]


async def run_forked(
    arguments: list[str], folder: Path, said: str, env: dict[str, str]
) -> tuple[int, str, str]:
    """Run Python with `-m MODULE`, `-c PROGRAM` or `FILE`; return status, output and errors."""
    (stdin, says), (out, stdout), (err, stderr) = (os.pipe() for _ in range(3))
    status = start_forked(arguments, folder, env, [stdin, stdout, stderr])

    def say() -> None:
        with open(says, "wb") as file:
            file.write(said.encode())

    def read(fd: int) -> str:
        with open(fd, "rb") as file:
            return file.read().decode()

    calls = [asyncio.to_thread(read, fd) for fd in (out, err, status)]
    outputs, errors, code, _ = await asyncio.gather(*calls, asyncio.to_thread(say))
    return int(code.split()[1]), outputs, errors


def start_forked(
    arguments: list[str],
    folder: Path,
    env: dict[str, str],
    streams: list[int],
    *,
    terminal: bool = False,
) -> int:
    """Start a program on these streams, which this process then closes.

    On a `terminal` the program leads the session. Returns a pipe that yields the process id in one
    line, and the exit status after the end.
    """
    status, ended = os.pipe()
    request = {"arguments": arguments, "folder": str(folder), "env": env, "terminal": terminal}
    given = [*streams, ended]
    socket.send_fds(_warm(), [json.dumps(request).encode()], given)
    for each in given:
        os.close(each)
    return status


@cache
def _warm() -> socket.socket:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with closing(there):
        command = [sys.executable, "-m", "support.forked_python", str(there.fileno())]
        process = subprocess.Popen(
            command, pass_fds=[there.fileno()], stdin=subprocess.DEVNULL, cwd=TESTS
        )

    def end() -> None:
        here.close()
        process.wait()

    atexit.register(end)
    return here


# --- the code below runs in the other process


def serve(requests: socket.socket) -> None:
    """Fork for each request until the socket is closed."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        data, fds, _, _ = socket.recv_fds(requests, 1 << 20, 4)
        if not data:
            return
        if not os.fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            requests.close()
            _tell_status(json.loads(data), fds)
        for each in fds:
            os.close(each)


def _tell_status(request: dict[str, Any], fds: list[int]) -> None:
    """Run the request in a new process, and write its exit status to the pipe."""
    if not (child := os.fork()):
        os.close(fds[3])
        become(request, fds[:3])  # returns or raises like any program, so that exit handlers run
        return
    for each in fds[:3]:
        os.close(each)
    os.write(fds[3], f"{child}\n".encode())
    _, status = os.waitpid(child, 0)
    os.write(fds[3], str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def become(request: dict[str, Any], streams: list[int]) -> None:
    """Turn this process into the requested program."""
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
        os.close(fd)
    if request["terminal"]:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    # As in any program: text in UTF-8, and errors at once.
    sys.stdin, sys.stdout, sys.stderr = (
        TextIOWrapper(BufferedReader(FileIO(0)), encoding="utf-8"),
        TextIOWrapper(BufferedWriter(FileIO(1, "w")), "utf-8", line_buffering=os.isatty(1)),
        TextIOWrapper(
            BufferedWriter(FileIO(2, "w")), "utf-8", "backslashreplace", line_buffering=True
        ),
    )
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["env"])
    kind, *rest = request["arguments"]
    if kind == "-m":
        sys.path[0], sys.argv = request["folder"], rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.path[0], sys.argv = "", ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.path[0], sys.argv = str(Path(kind).resolve().parent), [kind, *rest]
        runpy.run_path(kind, run_name="__main__")
    raise SystemExit


if __name__ == "__main__":
    # A program imports these later, with its first request to a server.
    import aiohttp  # noqa: F401
    import anyio.streams.tls  # noqa: F401

    import anabranch.cli._app
    import anabranch.cli.chat
    import anabranch.store
    import anabranch.testing  # noqa: F401

    gc.collect()
    gc.freeze()  # the collection at a program's end then skips the imported objects
    serve(socket.socket(fileno=int(sys.argv[1])))
