"""Going through a folder: which files are read, several at once, and how far it has come."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import anyio

from ._read_main import encodable
from ._reader import Reader, kind_of

__all__ = ["Added", "Progress", "add_files", "gone", "name_of", "origin_of", "shown", "walk"]

SHOWN = 20  # names of skipped files
READERS = min(4, os.cpu_count() or 1)  # files that are read at once
# Folders of things that somebody else has written, or a program.
LEFT_OUT = frozenset({"__pycache__", "node_modules", "site-packages", "venv"})


class Progress(NamedTuple):
    """How far it has come: files done, of so many, and the name of the last one."""

    done: int
    total: int
    name: str


@dataclass
class Added:
    """What `add_folder` did; files by their names."""

    added: list[str] = field(default_factory=list[str])
    changed: list[str] = field(default_factory=list[str])
    unchanged: list[str] = field(default_factory=list[str])
    removed: list[str] = field(default_factory=list[str])
    """Those that are in the folder no more."""
    skipped: list[str] = field(default_factory=list[str])
    """Those whose kind is not known by their name."""
    refused: dict[str, str] = field(default_factory=dict[str, str])
    """Those that could not be read, and why."""
    pieces: int = 0
    """Of those that were added or had changed."""

    def __str__(self) -> str:
        lines = [self.summary, *self.skipped_lines]
        for name, why in self.refused.items():
            lines.append(f"{name if name.isprintable() else ascii(name)} {why}")
        return "\n".join(lines)

    @property
    def skipped_lines(self) -> list[str]:
        """A line for each of the first skipped files, and one that counts the others."""
        names = [name if name.isprintable() else ascii(name) for name in self.skipped[:SHOWN]]
        lines = [f"{name} was skipped: its kind is not known" for name in names]
        if (more := len(self.skipped) - len(names)) > 0:
            lines.append(f"and {more:,} more files whose kind is not known")
        return lines

    @property
    def summary(self) -> str:
        """How many of each, in a line."""
        counts = {
            "added": self.added,
            "changed": self.changed,
            "unchanged": self.unchanged,
            "removed": self.removed,
            "skipped": self.skipped,
            "refused": self.refused,
        }
        said = [f"{len(names)} {what}" for what, names in counts.items() if names]
        line = ", ".join(said) or "no files"
        if self.added or self.changed:
            line += f"; {self.pieces:,} piece{'' if self.pieces == 1 else 's'}"
        return line


def name_of(path: str | os.PathLike[str]) -> str:
    """Return by which name a file is called."""
    return encodable(Path(path).as_posix())


def origin_of(path: Path) -> str:
    """Return by which name a file is known again, from wherever it is looked at."""
    return encodable(os.path.abspath(path))


def walk(root: Path, report: Added) -> list[Path]:
    """Return the files below a folder that are to be read; report those that are not."""
    files: list[Path] = []
    inside = Path(os.path.realpath(root))

    def refuse(error: OSError) -> None:
        why = f"cannot be read ({error.strerror or type(error).__name__})"
        report.refused[name_of(error.filename)] = why

    for folder, folders, names in os.walk(root, onerror=refuse):
        folders[:] = sorted(each for each in folders if each[0] != "." and each not in LEFT_OUT)
        for name in sorted(names):
            path = Path(folder, name)
            if name[0] == ".":
                continue
            if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(inside):
                continue
            if kind_of(path) is None:
                report.skipped.append(name_of(path))
            else:
                files.append(path)
    return files


def gone(root: Path, origins: Iterable[str]) -> list[str]:
    """Return those of files below a folder that are there no more, in a way that is certain."""
    inside = os.path.join(origin_of(root), "")
    found: list[str] = []
    for origin in origins:
        if origin.startswith(inside):
            try:
                os.lstat(origin)
                if os.path.isdir(origin):  # which is called so now
                    found.append(origin)
            except (FileNotFoundError, NotADirectoryError):
                found.append(origin)
            except OSError:  # a folder that may not be looked into just now
                pass
    return found


async def add_files(
    files: list[Path],
    take: Callable[[Path, Reader], Awaitable[None]],
    tell: Callable[[Progress], object],
    *,
    max_bytes: int,
    timeout: float,
) -> None:
    """Call `take` for each file, a few at once, and `tell` after each.

    The first error of either ends it, and is raised as it is.
    """
    left = iter(files)
    done = 0

    async def work() -> None:
        nonlocal done
        async with Reader(max_bytes=max_bytes, timeout=timeout) as reader:
            for file in left:
                await take(file, reader)
                done += 1
                tell(Progress(done, len(files), name_of(file)))

    tell(Progress(0, len(files), ""))
    try:
        async with anyio.create_task_group() as group:
            for _ in range(min(READERS, len(files))):
                group.start_soon(work)
    except BaseExceptionGroup as errors:
        first: BaseException = errors.exceptions[0]
        raise first from first.__cause__


@contextmanager
def shown(
    progress: bool | Callable[[Progress], object],
) -> Generator[Callable[[Progress], object]]:
    """Give what is to be told how far it has come; what it shows is gone after the block."""
    bar = _bar() if progress is True and sys.stderr.isatty() else None
    if bar is not None:
        with bar:
            task = bar.add_task("", total=None)

            def move(state: Progress) -> None:
                name = state.name if state.name.isprintable() else ascii(state.name)
                bar.update(task, completed=state.done, total=state.total, description=name[-60:])

            yield move
    elif progress is True:
        yield _tenths()
    else:
        yield progress or (lambda state: None)


def _bar() -> Any:
    """Return a bar of rich on the standard error; None if it is not installed."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bar
    except ImportError:
        return None
    name = TextColumn("{task.description}", markup=False)  # a name may look like markup
    columns = BarColumn(), MofNCompleteColumn(), name
    return Bar(*columns, console=Console(stderr=True), transient=True)


def _tenths() -> Callable[[Progress], None]:
    """Return what writes a line now and then."""
    last = -1

    def write(state: Progress) -> None:
        nonlocal last
        tenth = state.done * 10 // max(state.total, 1)
        if tenth != last:
            last = tenth
            print(f"read {state.done} of {state.total} files", file=sys.stderr, flush=True)  # noqa: T201 - this is what it is for

    return write
