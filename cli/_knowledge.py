"""`anabranch knowledge`: add documents to an index, search, list and remove them."""

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

from ..commander import ConfigurationError
from ..handlers.legible import legible
from ..knowledge import Index, KnowledgeError, Passage
from ._exit import FAILED, AsJson, Debug, report_errors
from ._output import allow_unencodable, format_count, one_line, print_error, print_json, print_line
from ._user_code import connect_named

__all__ = ["EmbedderOption", "knowledge", "open_index"]

knowledge = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Add documents to an index and search them. Exit status: 0; 1 if it failed or a file could"
    " not be read; 2 for wrong usage.",
)

# `search` shows at most this much of each passage.
MAX_PASSAGE_LINES, MAX_PASSAGE_COLUMNS = 4, 100

IndexOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--index",
        "-i",
        envvar="ANABRANCH_KNOWLEDGE",
        help="The file of the index, or a PostgreSQL URL.",
    ),
]
EmbedderOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--embed",
        envvar="ANABRANCH_EMBED",
        help="An embedding model, such as openai:text-embedding-3-small. Default: words only.",
    ),
]
DEFAULT_INDEX = "notes.db"


@asynccontextmanager
async def open_index(
    file: str, embed: str | None = None, *, size: int = 300, new: bool = False
) -> AsyncGenerator[Index]:
    """Open an index and its embedding model.

    Raises `ConfigurationError` if the index does not exist, unless `new` allows to create it.
    """
    async with AsyncExitStack() as stack:
        embedder = None
        if embed is not None:
            embedder = (await stack.enter_async_context(connect_named(embed))).embed
        index = Index(file, embed=embedder, size=size, overlap=size // 10)
        missing = "://" not in file and not await asyncio.to_thread(os.path.exists, file)
        if missing and not new:
            raise ConfigurationError(
                f"there is no index {file!r}. Create it: anabranch knowledge add --index"
                f" {quote(file)} FOLDER"
            )
        yield await stack.enter_async_context(index)


def _run_command(debug: bool, work: Callable[[], Coroutine[Any, Any, int]]) -> None:
    allow_unencodable()
    with report_errors(FAILED, debug, (ConfigurationError,)):
        if status := asyncio.run(work()):
            raise SystemExit(status)


@knowledge.command()
def add(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH", help="Folders and files to add.")],
    index: IndexOption = DEFAULT_INDEX,
    embed: EmbedderOption = None,
    size: Annotated[
        int, typer.Option(min=16, help="The maximum number of tokens in one piece of a document.")
    ] = 300,
    debug: Debug = False,
) -> None:
    """Add new and changed files; remove files that were deleted from a folder.

    Reads text, Markdown, HTML, PDF, Word and source code. Names each file that it cannot read, and
    the reason.
    """

    async def work() -> int:
        for path in paths:
            if not path.exists():
                raise ConfigurationError(f"{str(path)!r} does not exist")
        async with open_index(index, embed, size=size, new=True) as notes:
            try:
                complete = [await _add(notes, path) for path in paths]
            except asyncio.CancelledError:
                print_error("stopped; the files that were read are in the index")
                raise
        return 0 if all(complete) else FAILED

    _run_command(debug, work)


async def _add(notes: Index, path: Path) -> bool:
    """Add a folder or a file to the index; return whether all of it could be read."""
    name = one_line(str(path), 300)
    if not await asyncio.to_thread(path.is_dir):
        try:
            print_line(f"{name}: {format_count(await notes.add_file(path), 'piece')}")
        except KnowledgeError as error:
            print_error(error)
            return False
        return True
    report = await notes.add_folder(path, progress=sys.stderr.isatty())
    print_line(f"{name}: {report.summary}")
    for line in report.skipped_lines:
        print_line(one_line(line, 400))
    for file, why in report.refused.items():
        print_error(f"{file} {why}")
    return not report.refused


@knowledge.command()
def search(
    question: Annotated[
        str, typer.Argument(metavar="QUESTION", help="The words or the question to search for.")
    ],
    k: Annotated[int, typer.Option("-k", min=1, help="The maximum number of passages.")] = 5,
    index: IndexOption = DEFAULT_INDEX,
    embed: EmbedderOption = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show the passages that match a question best."""

    async def work() -> int:
        async with open_index(index, embed) as notes:
            found = await notes.search(question, k)
        if as_json:
            print_json([each._asdict() | {"place": each.place} for each in found])
            return 0
        if not found:
            print_line("no passage matches")
        for each in found:
            _show(each)
        return 0

    _run_command(debug, work)


def _show(passage: Passage) -> None:
    width = min(shutil.get_terminal_size((MAX_PASSAGE_COLUMNS, 24)).columns, MAX_PASSAGE_COLUMNS)
    text = Text("\n".join(line for line in legible(passage.text).splitlines() if line.strip()))
    lines = text.wrap(Console(), max(width - 4, 20), tab_size=4)
    print_line(
        Text.assemble(
            (f"[{passage.number}] {one_line(passage.place, 200)}", "bold cyan"),
            (f"  {one_line(passage.heading, 200)}", "dim"),
        )
    )
    for line in lines[:MAX_PASSAGE_LINES]:
        line.rstrip()
        print_line(Text("    ") + line)
    if len(lines) > MAX_PASSAGE_LINES:
        print_line(Text("    ...", style="dim"))


@knowledge.command("list")
def list_documents(
    index: IndexOption = DEFAULT_INDEX, as_json: AsJson = False, debug: Debug = False
) -> None:
    """List the documents in an index."""

    async def work() -> int:
        async with open_index(index) as notes:
            found = await notes.sources()
        if as_json:
            print_json([each._asdict() for each in found])
            return 0
        for each in found:
            print_line(f"{one_line(each.name, 300)}  {format_count(each.pieces, 'piece')}")
        pieces = format_count(sum(each.pieces for each in found), "piece")
        print_line(f"{format_count(len(found), 'document')}, {pieces}")
        return 0

    _run_command(debug, work)


@knowledge.command()
def remove(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME", help="Documents, named as in the list.")
    ],
    index: IndexOption = DEFAULT_INDEX,
    debug: Debug = False,
) -> None:
    """Remove documents from an index. The files are not deleted."""

    async def work() -> int:
        async with open_index(index) as notes:
            known = {each.name for each in await notes.sources()}
            for name in names:
                if name not in known:
                    raise ConfigurationError(
                        f"unknown document {name!r}. List all: anabranch knowledge list"
                    )
            removed = sum([await notes.remove(name) for name in names])
        print_line(f"removed {format_count(removed, 'document')}")
        return 0

    _run_command(debug, work)
