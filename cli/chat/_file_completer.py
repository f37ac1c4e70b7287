"""Names of files behind `@`, offered while a person writes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from importlib import import_module
from pathlib import Path
from typing import Any

from prompt_toolkit.completion import (
    CompleteEvent,
    Completer,
    Completion,
    ThreadedCompleter,
)
from prompt_toolkit.document import Document

from ._attach import find_mention, quote_name

__all__ = ["file_completer"]

MOST = 200  # names that are offered at once
PIECE = 2000
MOST_RULES = 100_000  # bytes of a .gitignore


def file_completer(folder: Path | None = None) -> Completer:
    """Return what completes names behind `@`, relative to `folder`, by default the working folder.

    Folders come first. Hidden files are offered where the name begins with a dot; what a
    .gitignore names is not offered, if pathspec is installed. It looks in a thread, so no key waits
    for a disk.
    """
    return ThreadedCompleter(_Files(folder))


class _Files(Completer):
    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        # The last folder that was listed, its time of change, and what was in it: who writes on
        # stays there, and a large one takes a while.
        self._listed: tuple[Path, int, list[tuple[bool, str]]] | None = None

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        """Give what the name at the cursor may become."""
        mention = find_mention(document.text_before_cursor)
        if mention is None:
            return
        written, length = mention
        above, _, begun = written.rpartition("/")
        above += "/" if "/" in written else ""
        for is_folder, name in self._matching(above, begun):
            whole = f"{above}{name}"
            text = f"@{quote_name(whole)}"
            if is_folder:  # the name goes on, so that no quotation ends there
                text = f"@{_quote_open(whole)}/"
            yield Completion(text, -length, display=f"{name}/" if is_folder else name)

    def _matching(self, above: str, begun: str) -> Iterator[tuple[bool, str]]:
        try:
            base = self._folder or Path.cwd()
            place = base / Path(above).expanduser() if above else base
            entries = self._list(place)
        except (OSError, ValueError, RuntimeError):
            return
        low = begun.lower()
        offered = 0
        ignored = _ignored_in(place)
        for is_folder, name in entries:
            if not name.lower().startswith(low) or (name[0] == "." and not begun.startswith(".")):
                continue
            if ignored(f"{name}/" if is_folder else name):
                continue
            yield is_folder, name
            offered += 1
            if offered == MOST:
                return

    def _list(self, place: Path) -> list[tuple[bool, str]]:
        """Return what is in a folder, folders first, without names that nobody can write."""
        changed = os.stat(place).st_mtime_ns
        listed = self._listed
        if listed is not None and listed[:2] == (place, changed):
            return listed[2]
        with os.scandir(place) as found:
            entries = [
                (not _is_folder(each), each.name.lower(), each.name)
                for each in found
                if each.name.isprintable()
            ]
        # In pieces: while a long list is sorted, no other thread runs, and keys would wait.
        pieces = [sorted(entries[at : at + PIECE]) for at in range(0, len(entries), PIECE)]
        names = [(not is_file, name) for is_file, _, name in merge(*pieces)]
        self._listed = place, changed, names
        return names


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _quote_open(name: str) -> str:
    """Return a name without the quotation mark at its end."""
    quoted = quote_name(name)
    return quoted[:-1] if quoted[0] in "\"'" else quoted


def _ignored_in(place: Path) -> Callable[[str], bool]:
    """Return what says whether a name in a folder is ignored there, by the rules of git."""
    try:
        read: Any = import_module("pathspec").GitIgnoreSpec.from_lines
    except (ImportError, AttributeError):
        return lambda _: False
    rules: list[tuple[str, Any]] = []
    try:
        place = place.resolve()
        for folder in (place, *place.parents):
            if (file := folder / ".gitignore").is_file():
                with file.open("rb") as opened:
                    lines = opened.read(MOST_RULES).decode("utf-8", "replace").splitlines()
                below = "".join(f"{part}/" for part in place.relative_to(folder).parts)
                rules.append((below, read(lines)))
            if (folder / ".git").exists():
                return lambda name: any(each.match_file(below + name) for below, each in rules)
    except (OSError, ValueError):
        pass
    return lambda _: False  # no folder of git's
