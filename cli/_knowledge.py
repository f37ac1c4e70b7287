"""`anabranch knowledge`: to put documents into an index, and to search them."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, TypeAlias

import typer
from rich.console import Console
from rich.text import Text

from ..backends import connect
from ..commander import ConfigurationError
from ..handlers.legible import legible
from ..knowledge import Index, KnowledgeError, Passage
from ._exit import FAILED, AsJson, Debug, report_errors
from ._terminal import allow_unencodable, complain, count, in_line, print_json

__all__ = ["Embedder", "knowledge", "open_index"]

knowledge = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Put documents into an index, and search them. Ends with status 0; 1 if it failed, or a"
    " file could not be read; 2 for wrong usage.",
)

# The lines of a passage that are shown, and how wide they are at most.
LINES, WIDE = 4, 100

File: TypeAlias = Annotated[
    str,
    typer.Option(
        "--index",
        "-i",
        envvar="ANABRANCH_KNOWLEDGE",
        help="The index's file, or its address in PostgreSQL.",
    ),
]
Embedder: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--embed",
        envvar="ANABRANCH_EMBED",
        help="A model that makes vectors, as openai:text-embedding-3-small. Default: words alone.",
    ),
]
DEFAULT = "notes.db"


@asynccontextmanager
async def open_index(
    file: str, embed: str | None = None, *, size: int = 300, new: bool = False
) -> AsyncGenerator[Index]:
    """Open an index and the model of its vectors; make the index only if it may be `new`.

    Raises `ConfigurationError`.
    """
    async with AsyncExitStack() as stack:
        embedder = None
        if embed is not None:
            embedder = (await stack.enter_async_context(connect(embed))).embed
        index = Index(file, embed=embedder, size=size, overlap=size // 10)
        missing = "://" not in file and not await asyncio.to_thread(os.path.exists, file)
        if missing and not new:
            raise ConfigurationError(
                f"there is no index {file!r}: anabranch knowledge add --index {quote(file)} FOLDER"
                " makes one"
            )
        yield await stack.enter_async_context(index)


def _do(debug: bool, work: Callable[[], Coroutine[Any, Any, int]]) -> None:
    allow_unencodable()
    with report_errors(FAILED, debug, (ConfigurationError,)):
        if status := asyncio.run(work()):
            raise SystemExit(status)


@knowledge.command()
def add(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH", help="Folders and files.")],
    index: File = DEFAULT,
    embed: Embedder = None,
    size: Annotated[int, typer.Option(min=16, help="The most tokens of a piece.")] = 300,
    debug: Debug = False,
) -> None:
    """Read folders and files: those that are new or have changed; forget what is gone of a folder.

    Text, Markdown, HTML, PDF, Word and source code are read. What cannot be is named, with why.
    """

    async def work() -> int:
        for path in paths:
            if not path.exists():
                raise ConfigurationError(f"there is no file or folder {str(path)!r}")
        async with open_index(index, embed, size=size, new=True) as notes:
            try:
                whole = [await _add(notes, path) for path in paths]
            except asyncio.CancelledError:
                complain("stopped; what was read by then is in the index")
                raise
        return 0 if all(whole) else FAILED

    _do(debug, work)


async def _add(notes: Index, path: Path) -> bool:
    """Read a folder or a file; say whether all of it could be read."""
    name = in_line(str(path), 300)
    if not await asyncio.to_thread(path.is_dir):
        try:
            _say(f"{name}: {count(await notes.add_file(path), 'piece')}")
        except KnowledgeError as error:
            complain(error)
            return False
        return True
    report = await notes.add_folder(path, progress=sys.stderr.isatty())
    _say(f"{name}: {report.summary}")
    for line in report.skipped_lines:
        _say(in_line(line, 400))
    for file, why in report.refused.items():
        complain(f"{file} {why}")
    return not report.refused


@knowledge.command()
def search(
    question: Annotated[str, typer.Argument(metavar="QUESTION")],
    k: Annotated[int, typer.Option("-k", min=1, help="At most so many passages.")] = 5,
    index: File = DEFAULT,
    embed: Embedder = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show the passages that fit a question best."""

    async def work() -> int:
        async with open_index(index, embed) as notes:
            found = await notes.search(question, k)
        if as_json:
            print_json([each._asdict() | {"place": each.place} for each in found])
            return 0
        if not found:
            _say("nothing was found")
        for each in found:
            _show(each)
        return 0

    _do(debug, work)


def _show(passage: Passage) -> None:
    width = min(shutil.get_terminal_size((WIDE, 24)).columns, WIDE)
    text = Text("\n".join(line for line in legible(passage.text).splitlines() if line.strip()))
    lines = text.wrap(Console(), max(width - 4, 20), tab_size=4)
    _say(
        Text.assemble(
            (f"[{passage.number}] {in_line(passage.place, 200)}", "bold cyan"),
            (f"  {in_line(passage.heading, 200)}", "dim"),
        )
    )
    for line in lines[:LINES]:
        line.rstrip()
        _say(Text("    ") + line)
    if len(lines) > LINES:
        _say(Text("    ...", style="dim"))


def _say(text: str | Text) -> None:
    Console(highlight=False, markup=False, soft_wrap=True).print(text)


@knowledge.command("list")
def list_documents(index: File = DEFAULT, as_json: AsJson = False, debug: Debug = False) -> None:
    """Show the documents of an index."""

    async def work() -> int:
        async with open_index(index) as notes:
            found = await notes.sources()
        if as_json:
            print_json([each._asdict() for each in found])
            return 0
        for each in found:
            _say(f"{in_line(each.name, 300)}  {count(each.pieces, 'piece')}")
        _say(f"{count(len(found), 'document')}, {count(sum(s.pieces for s in found), 'piece')}")
        return 0

    _do(debug, work)


@knowledge.command()
def remove(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="As list shows them.")],
    index: File = DEFAULT,
    debug: Debug = False,
) -> None:
    """Remove documents from an index; files stay where they are."""

    async def work() -> int:
        async with open_index(index) as notes:
            there = {each.name for each in await notes.sources()}
            for name in names:
                if name not in there:
                    raise ConfigurationError(
                        f"the index has no document {name!r}: anabranch knowledge list shows all"
                    )
            gone = sum([await notes.remove(name) for name in names])
        _say(f"removed {count(gone, 'document')}")
        return 0

    _do(debug, work)
