"""Read files in a separate process, which is killed if a file takes too long or too much memory."""

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
from ._read_main import KIND_BY_EXTENSION, Block

__all__ = ["FileContent", "FileReader", "UnreadableFile", "file_kind"]

READER_SCRIPT = Path(__file__).with_name("_read_main.py")
# Files with these names and without an extension are text.
TEXT_FILE_NAMES = ("dockerfile", "license", "makefile", "readme")


class UnreadableFile(Exception):
    """A file that cannot be read. The message continues a sentence that begins with its name."""


class FileContent(NamedTuple):
    """The content of a file, and the digest of its bytes."""

    digest: str
    blocks: list[Block]


def file_kind(path: Path) -> str | None:
    """Return the kind of a file by its name; None if unknown."""
    if not path.suffix and path.name.lower() in TEXT_FILE_NAMES:
        return "text"
    return KIND_BY_EXTENSION.get(path.suffix[1:].lower())


class FileReader:
    """A process that starts with the first file and ends with the block, or with this process."""

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

    async def read(self, path: Path, known: str | None = None) -> FileContent | None:
        """Return the content of a file; None if the digest of its bytes is `known`.

        Raises `UnreadableFile`, and `MissingExtra` for a library that is not installed. The process
        is killed on a cancel and after its time.
        """
        request: dict[str, Any] = {
            "path": str(path),
            "kind": file_kind(path) or "text",
            "known": known,
        }
        line = json.dumps(request | {"max_bytes": self._max_bytes, "seconds": self._timeout})
        is_complete = False
        try:
            async with asyncio.timeout(self._timeout):
                data = await self._ask(line.encode() + b"\n")
                is_complete = True
        except TimeoutError:
            raise UnreadableFile(f"takes more than {self._timeout:g} s to read") from None
        except (OSError, EOFError):
            raise UnreadableFile("takes too much memory or time to read, or is broken") from None
        finally:
            if not is_complete:
                await self._end()
        # In a thread, because the text of a large file takes long to parse.
        answer = await anyio.to_thread.run_sync(json.loads, data)
        if "missing" in answer:
            raise MissingExtra(f"reading {path.name}", "knowledge") from ImportError(
                answer["missing"]
            )
        if "refused" in answer:
            raise UnreadableFile(answer["refused"])
        return None if "same" in answer else FileContent(answer["digest"], answer["blocks"])

    async def _ask(self, line: bytes) -> bytes:
        if self._process is None:
            self._process = await start_process(
                *(sys.executable, "-P", str(READER_SCRIPT)),
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
