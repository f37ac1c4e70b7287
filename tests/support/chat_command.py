"""Run `anabranch chat` as a user does, with a pipe or in a separate terminal."""

from __future__ import annotations

import asyncio
import json
import os
import struct
import sys
import termios
from fcntl import ioctl
from pathlib import Path
from typing import Any
from weakref import finalize

import pexpect
from pexpect.fdpexpect import fdspawn

from support.forked_python import run_forked, start_forked
from support.scripted_server import ScriptedServer

__all__ = [
    "CHAT",
    "TIMEOUT_SECONDS",
    "ChatFolder",
    "ForkedTerminal",
    "environment",
    "run_chat",
    "run_program",
    "saved_messages",
    "spawn_chat",
]

CHAT = [sys.executable, "-m", "anabranch", "chat"]
# The variables that a child inherits: no keys, and no settings of the developer.
KEPT = (
    *("PATH", "HOME", "XDG_CACHE_HOME", "ANABRANCH_CACHE"),
    *("XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"),  # a folder for the tests
    *("LANG", "EDITOR", "VIRTUAL_ENV", "RAYON_NUM_THREADS"),
)
READ_LATER = ("ANABRANCH_", "OPENAI_")  # settings that no import looks at
TIMEOUT_SECONDS = 120  # seconds; the first test of a new machine fetches the model


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a child process: the inherited variables and `more`."""
    return {**{name: os.environ[name] for name in KEPT if name in os.environ}, **more}


async def run_chat(*options: str, said: str = "", **env: str) -> tuple[int, str, str]:
    """Run the program with `said` on its standard input; return status, output and errors."""
    return await run_program([*CHAT, *options], Path.cwd(), said, **env)


async def run_program(
    command: list[str], folder: Path, said: str = "", **env: str
) -> tuple[int, str, str]:
    """Run a Python program in a folder; return status, output and errors."""
    # The warm process imports once. Other variables could change which modules it imports.
    if command[1] in ("-m", "-c") and all(name.startswith(READ_LATER) for name in env):
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await run_forked(command[1:], folder, said, environment(**env))
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=folder,
        env=environment(**env),
    )
    async with asyncio.timeout(TIMEOUT_SECONDS):
        out, err = await process.communicate(said.encode())
    return process.returncode or 0, out.decode(), err.decode()


class ForkedTerminal(fdspawn):  # type: ignore[misc]
    """A `pexpect.spawn` for Python programs, which forks a process with the imports done."""

    def __init__(
        self,
        arguments: list[str],
        folder: Path,
        env: dict[str, str],
        dimensions: tuple[int, int],
    ) -> None:
        master, slave = os.openpty()
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *dimensions, 0, 0))
        streams = [slave, os.dup(slave), os.dup(slave)]
        status = start_forked(arguments, folder, env, streams, terminal=True)
        super().__init__(master, encoding="utf-8", timeout=TIMEOUT_SECONDS)
        self._status = os.fdopen(status)
        self._close_status = finalize(self, self._status.close)
        self._hang_up = finalize(self, os.close, master)

    def sendcontrol(self, char: str) -> int:
        return self.send(chr(ord(char) - ord("a") + 1))

    def sendintr(self) -> int:
        return self.sendcontrol("c")

    def close(self) -> None:
        """Close the terminal, and wait for the program's end."""
        if not self.closed:
            if not self.flag_eof:  # SIGHUP would reach a program that is about to end
                self._hang_up()
            self.exitstatus = int(self._status.read().split()[1])
            self._hang_up()
            self._close_status()
            self.child_fd, self.closed = -1, True


def spawn_chat(*options: str, folder: Path, **env: str) -> Any:
    """Start `anabranch chat` in a new process and terminal, with its data in `folder`."""
    kept = {f"XDG_{kind}_HOME": str(folder / ".kept") for kind in ("DATA", "STATE", "CONFIG")}
    child = pexpect.spawn(
        CHAT[0],
        [*CHAT[1:], *options],
        cwd=str(folder),
        env={**environment(**kept), "TERM": "xterm", **env},
        encoding="utf-8",
        timeout=TIMEOUT_SECONDS,
        dimensions=(40, 200),
    )
    child.delaybeforesend = None
    return child


def saved_messages(path: Path) -> list[dict[str, Any]]:
    """Return the messages of a conversation that the chat saved to a file."""
    return json.loads(path.read_text())["messages"]


class ChatFolder:
    """A separate folder for chat data and settings, and the scripted server that answers."""

    def __init__(self, folder: Path, server: ScriptedServer) -> None:
        self.folder = folder
        self.server = server
        names = ("DATA", "STATE", "CONFIG")
        self.settings = {f"XDG_{name}_HOME": str(folder / name.lower()) for name in names}
        self.data = folder / "data" / "anabranch" / "chats.db"

    async def chat(self, *options: str, said: str = "", **env: str) -> tuple[int, str, str]:
        """Run `anabranch chat`; return status, output and errors."""
        arguments = ["-m", "anabranch", "chat", *options]
        return await run_forked(arguments, self.folder, said, environment(**self.settings, **env))

    async def ask(self, *options: str, said: str = "", **env: str) -> tuple[int, str, str]:
        """Run `anabranch chat` with the scripted server as its model."""
        return await self.chat("--model", f"{self.server.url} m", *options, said=said, **env)

    def sent_messages(self, at: int = -1) -> list[tuple[str, Any]]:
        """Return the role and content of each message in a request to the server."""
        sent = self.server.requests[at].body["messages"]
        return [(each["role"], each["content"]) for each in sent]
