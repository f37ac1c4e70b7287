"""Helpers for journal files: an open file, rows, and another process that uses the file."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from anabranch.store._journal_file import JournalFile, Row

__all__ = ["IDENT", "acquire_run", "journal_process", "make_row", "open_journal", "row_values"]

IDENT = bytes(range(16))

BEGINNING = """
import asyncio, os, signal, sys
from anabranch.store._journal_file import JournalFile, Row
from anabranch.store.errors import *
def row(number):
    return Row(bytes(16), "result", b"%d" % number)
async def taken(run_id):
    file = JournalFile(sys.argv[1])
    await file.open()
    await file.start(run_id, "C", 1, b"{}")
    run, _ = await file.acquire(run_id, "child")
    return file, run.fence
"""


def make_row(value: bytes | int = b"", kind: str = "result") -> Row:
    """Return a row for `append`; an integer becomes its digits."""
    return Row(IDENT, kind, value if isinstance(value, bytes) else b"%d" % value)


@asynccontextmanager
async def open_journal(path: Path | str) -> AsyncIterator[JournalFile]:
    """Open a journal file for the block."""
    file = JournalFile(str(path))
    await file.open()
    try:
        yield file
    finally:
        await file.close()


async def acquire_run(file: JournalFile, run_id: str = "run") -> int:
    """Create the run if it is missing, and acquire its lease; return the fence."""
    await file.start(run_id, "Order", 1, b"{}")
    run, _ = await file.acquire(run_id, "test")
    return run.fence


async def row_values(file: JournalFile, run_id: str = "run") -> list[bytes]:
    return [each.value for each in await file.rows(run_id)]


@contextmanager
def journal_process(path: Path, text: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program with the journal's path as first argument; kill it at the end of the block."""
    with subprocess.Popen(
        [sys.executable, "-c", BEGINNING + text, str(path), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            yield child
        finally:
            child.kill()
            child.communicate()
