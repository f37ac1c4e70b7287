"""Reads files in a process of its own, which is ended where a file takes too long or too much."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import anyio.to_thread

from ..commander.errors import MissingExtra
from ..commander.process import end_process, start_process
from ._read_main import KINDS, Block

__all__ = ["Reader", "Refused", "Said", "kind_of"]

MAIN = Path(__file__).with_name("_read_main.py")
NAMES = ("dockerfile", "license", "makefile", "readme")  # of files that have no ending


class Refused(Exception):
    """A file that cannot be read; the text says why, to be put after its name."""


class Said(NamedTuple):
    """What a file says, and the digest of its bytes."""

    digest: str
    blocks: list[Block]


def kind_of(path: Path) -> str | None:
    """Return how a file is read by its name; None for one whose kind is not known."""
    if not path.suffix and path.name.lower() in NAMES:
        return "text"
    return KINDS.get(path.suffix[1:].lower())


class Reader:
    """One process, started at the first file; it ends with the block, or with this process."""

    def __init__(self, *, max_bytes: int, timeout: float) -> None:
        self._max_bytes = max_bytes
        self._timeout = timeout
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._end()

    async def read(self, path: Path, known: str | None = None) -> Said | None:
        """Return what a file says; None if its bytes have the digest that is `known`.

        Raises `Refused`, and `MissingExtra` for a library that is not installed. Cancelled, or
        after its time, the process is killed.
        """
        request: dict[str, Any] = {
            "path": str(path),
            "kind": kind_of(path) or "text",
            "known": known,
        }
        line = json.dumps(request | {"most": self._max_bytes, "seconds": self._timeout})
        whole = False
        try:
            async with asyncio.timeout(self._timeout):
                data = await self._ask(line.encode() + b"\n")
                whole = True
        except TimeoutError:
            raise Refused(f"takes more than {self._timeout:g} s to read") from None
        except (OSError, EOFError):
            raise Refused("takes too much memory or time to read, or is broken") from None
        finally:
            if not whole:
                await self._end()
        answer = await anyio.to_thread.run_sync(json.loads, data)  # it may be long
        if "missing" in answer:
            raise MissingExtra(f"reading {path.name}", "knowledge") from ImportError(
                answer["missing"]
            )
        if "refused" in answer:
            raise Refused(answer["refused"])
        return None if "same" in answer else Said(answer["digest"], answer["blocks"])

    async def _ask(self, line: bytes) -> bytes:
        if self._process is None:
            self._process = await start_process(
                *(sys.executable, "-P", str(MAIN)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(line)
        await process.stdin.drain()
        length = int.from_bytes(await process.stdout.readexactly(8), "big")
        return await process.stdout.readexactly(length)

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await end_process(process)
