"""The program as a user starts it: from a pipe, or in a terminal of its own."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pexpect
from _warm import run_warm

__all__ = [
    "CHAT",
    "PATIENCE",
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
