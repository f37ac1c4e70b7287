"""The program as a user starts it: from a pipe, or in a terminal of its own."""

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

from support.warm import run_warm, start_warm

__all__ = [
    "CHAT",
    "PATIENCE",
    "WarmTerminal",
    "chat",
    "ended",
    "environment",
    "messages",
    "terminal",
]

CHAT = [sys.executable, "-m", "anabranch", "chat"]
# What a child gets of this environment: no keys, no settings of the developer's own.
KEPT = (
    *("PATH", "HOME", "XDG_CACHE_HOME", "ANABRANCH_CACHE"),
    *("XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"),  # a folder of the tests' own
    *("LANG", "EDITOR", "VIRTUAL_ENV", "RAYON_NUM_THREADS"),
)
READ_LATER = ("ANABRANCH_", "OPENAI_")  # settings that no import looks at
PATIENCE = 120  # seconds; the first test of a new machine fetches the model


def environment(**more: str) -> dict[str, str]:
    return {**{name: os.environ[name] for name in KEPT if name in os.environ}, **more}


async def chat(*options: str, said: str = "", **env: str) -> tuple[int, str, str]:
    """Run the program with `said` on its standard input; return status, output and errors."""
    return await ended([*CHAT, *options], Path.cwd(), said, **env)


async def ended(
    command: list[str], folder: Path, said: str = "", **env: str
) -> tuple[int, str, str]:
    """Run a program of Python in a folder; return status, output and errors."""
    # What else is in the environment may decide what is imported, and how.
    if command[1] in ("-m", "-c") and all(name.startswith(READ_LATER) for name in env):
        async with asyncio.timeout(PATIENCE):
            return await run_warm(command[1:], folder, said, environment(**env))
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=folder,
        env=environment(**env),
    )
    async with asyncio.timeout(PATIENCE):
        out, err = await process.communicate(said.encode())
    return process.returncode or 0, out.decode(), err.decode()


class WarmTerminal(fdspawn):  # type: ignore[misc]
    """As `pexpect.spawn` for a program of Python, which is a fork of a warm one."""

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
        status = start_warm(arguments, folder, env, streams, terminal=True)
        super().__init__(master, encoding="utf-8", timeout=PATIENCE)
        self._status = os.fdopen(status)
        self._close_status = finalize(self, self._status.close)
        self._hang_up = finalize(self, os.close, master)

    def sendcontrol(self, char: str) -> int:
        return self.send(chr(ord(char) - ord("a") + 1))

    def sendintr(self) -> int:
        return self.sendcontrol("c")

    def close(self) -> None:
        """Take the terminal away, and wait for the program's end."""
        if not self.closed:
            if not self.flag_eof:  # SIGHUP would reach a program that is about to end
                self._hang_up()
            self.exitstatus = int(self._status.read().split()[1])
            self._hang_up()
            self._close_status()
            self.child_fd, self.closed = -1, True


def terminal(*options: str, folder: Path, **env: str) -> Any:
    kept = {f"XDG_{kind}_HOME": str(folder / ".kept") for kind in ("DATA", "STATE", "CONFIG")}
    child = pexpect.spawn(
        CHAT[0],
        [*CHAT[1:], *options],
        cwd=str(folder),
        env={**environment(**kept), "TERM": "xterm", **env},
        encoding="utf-8",
        timeout=PATIENCE,
        dimensions=(40, 200),
    )
    child.delaybeforesend = None
    return child


def messages(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text())["messages"]
