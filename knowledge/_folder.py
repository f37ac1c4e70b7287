"""Go through a folder: select its files, read several at once, and show the progress."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import anyio

from ._read_main import escape_surrogates
from ._reader import FileReader, file_kind

__all__ = [
    "FolderProgress",
    "FolderReport",
    "add_files",
    "display_name",
    "document_origin",
    "find_removed",
    "list_files",
    "show_progress",
]

# Names of skipped files in a report.
MAX_SHOWN_FILES = 20
# Files that are read at once.
READERS = min(4, os.cpu_count() or 1)
# Folders with generated files, or files of other authors.
SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "site-packages", "venv"})


class FolderProgress(NamedTuple):
    """The progress of reading a folder; `name` is the last file that was read."""

    done: int
    total: int
    name: str


@dataclass
class FolderReport:
    """The result of `add_folder`, with the names of files."""

    added: list[str] = field(default_factory=list[str])
    changed: list[str] = field(default_factory=list[str])
    unchanged: list[str] = field(default_factory=list[str])
    removed: list[str] = field(default_factory=list[str])
    """No longer in the folder."""
    skipped: list[str] = field(default_factory=list[str])
    """Of unknown kind, by their names."""
    refused: dict[str, str] = field(default_factory=dict[str, str])
    """Could not be read, with the reason."""
    pieces: int = 0
    """Pieces of the added and changed files."""

    def __str__(self) -> str:
        lines = [self.summary, *self.skipped_lines]
        for name, why in self.refused.items():
            lines.append(f"{name if name.isprintable() else ascii(name)} {why}")
        return "\n".join(lines)

    @property
    def skipped_lines(self) -> list[str]:
        """A line for each of the first skipped files, and one that counts the others."""
        names = [
            name if name.isprintable() else ascii(name) for name in self.skipped[:MAX_SHOWN_FILES]
        ]
        lines = [f"{name} was skipped: unknown kind of file" for name in names]
        if (more := len(self.skipped) - len(names)) > 0:
            lines.append(f"and {more:,} more files of unknown kind")
        return lines

    @property
    def summary(self) -> str:
        """The number of files in each group, in one line."""
        counts = {
            "added": self.added,
            "changed": self.changed,
            "unchanged": self.unchanged,
            "removed": self.removed,
            "skipped": self.skipped,
            "refused": self.refused,
        }
        counts_text = [f"{len(names)} {what}" for what, names in counts.items() if names]
        line = ", ".join(counts_text) or "no files"
        if self.added or self.changed:
            line += f"; {self.pieces:,} piece{'' if self.pieces == 1 else 's'}"
        return line


def display_name(path: str | os.PathLike[str]) -> str:
    """Return the name of a file in messages and passages."""
    return escape_surrogates(Path(path).as_posix())


def document_origin(path: Path) -> str:
    """Return the identity of a file, independent of the working directory."""
    return escape_surrogates(os.path.abspath(path))


def list_files(root: Path, report: FolderReport) -> list[Path]:
    """Return the files below a folder that are to be read; report the others."""
    files: list[Path] = []
    inside = Path(os.path.realpath(root))

    def refuse(error: OSError) -> None:
        why = f"cannot be read ({error.strerror or type(error).__name__})"
        report.refused[display_name(error.filename)] = why

    for folder, folders, names in os.walk(root, onerror=refuse):
        folders[:] = sorted(
            each for each in folders if each[0] != "." and each not in SKIPPED_FOLDERS
        )
        for name in sorted(names):
            path = Path(folder, name)
            if name[0] == ".":
                continue
            if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(inside):
                continue
            if file_kind(path) is None:
                report.skipped.append(display_name(path))
            else:
                files.append(path)
    return files


def find_removed(root: Path, origins: Iterable[str]) -> list[str]:
    """Return the origins below a folder whose files certainly no longer exist."""
    inside = os.path.join(document_origin(root), "")
    found: list[str] = []
    for origin in origins:
        if origin.startswith(inside):
            try:
                os.lstat(origin)
                if os.path.isdir(origin):  # a folder has this name now
                    found.append(origin)
            except (FileNotFoundError, NotADirectoryError):
                found.append(origin)
            except OSError:  # perhaps only unreadable at the moment
                pass
    return found


async def add_files(
    files: list[Path],
    take: Callable[[Path, FileReader], Awaitable[None]],
    tell: Callable[[FolderProgress], object],
    *,
    max_bytes: int,
    timeout: float,
) -> None:
    """Call `take` for each file, a few at once, and `tell` after each.

    The first error of either one stops the others and is raised.
    """
    left = iter(files)
    done = 0

    async def work() -> None:
        nonlocal done
        async with FileReader(max_bytes=max_bytes, timeout=timeout) as reader:
            for file in left:
                await take(file, reader)
                done += 1
                tell(FolderProgress(done, len(files), display_name(file)))

    tell(FolderProgress(0, len(files), ""))
    try:
        async with anyio.create_task_group() as group:
            for _ in range(min(READERS, len(files))):
                group.start_soon(work)
    except BaseExceptionGroup as errors:
        first: BaseException = errors.exceptions[0]
        raise first from first.__cause__


@contextmanager
def show_progress(
    progress: bool | Callable[[FolderProgress], object],
) -> Generator[Callable[[FolderProgress], object]]:
    """Yield a function that shows the progress; a progress bar disappears after the block."""
    bar = _make_bar() if progress is True and sys.stderr.isatty() else None
    if bar is not None:
        with bar:
            task = bar.add_task("", total=None)

            def move(state: FolderProgress) -> None:
                name = state.name if state.name.isprintable() else ascii(state.name)
                bar.update(task, completed=state.done, total=state.total, description=name[-60:])

            yield move
    elif progress is True:
        yield _line_writer()
    else:
        yield progress or (lambda state: None)


def _make_bar() -> Any:
    """Return a progress bar on standard error, None without rich."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bar
    except ImportError:
        return None
    name = TextColumn("{task.description}", markup=False)  # a name may look like markup
    columns = BarColumn(), MofNCompleteColumn(), name
    return Bar(*columns, console=Console(stderr=True), transient=True)


def _line_writer() -> Callable[[FolderProgress], None]:
    """Return a function that prints a line for each tenth of the files."""
    last = -1

    def write(state: FolderProgress) -> None:
        nonlocal last
        tenth = state.done * 10 // max(state.total, 1)
        if tenth != last:
            last = tenth
            print(f"read {state.done} of {state.total} files", file=sys.stderr, flush=True)  # noqa: T201 - the user asked for progress

    return write
