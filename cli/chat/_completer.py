"""Completion at the prompt: commands, their arguments, and file names after `@`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import merge
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

from prompt_toolkit.completion import CompleteEvent, Completer, Completion, ThreadedCompleter
from prompt_toolkit.document import Document

from ._attach import find_mention, quote_name

__all__ = ["ChatCompleter", "Choices"]

Choices: TypeAlias = Callable[[], Iterable[tuple[str, str]]]
"""Returns the possible arguments of a command, each with a description."""

MAX_COMPLETIONS = 200  # offered at once
SORTED_AT_ONCE = 2000
MAX_GITIGNORE_BYTES = 100_000


class ChatCompleter(Completer):
    """Completes commands by prefix, their arguments by any part, and files after `@`.

    `commands` maps each command to its help. `choices` maps some of them to their arguments.
    """

    def __init__(self, commands: Mapping[str, str], choices: Mapping[str, Choices]) -> None:
        self._commands = commands
        self._choices = choices
        # In a thread, so that keys never wait for the disk.
        self._files = ThreadedCompleter(_FileCompleter(None))

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        """Yield the completions at the cursor."""
        name, space, argument = document.text_before_cursor.partition(" ")
        if not name.startswith("/") or "\n" in document.text_before_cursor:
            yield from self._files.get_completions(document, complete_event)
        elif not space:
            for each, words in self._commands.items():
                if each.startswith(name):
                    yield Completion(each, -len(name), display_meta=words)
        elif name in self._choices:
            wanted = argument.casefold().split()
            for text, words in self._choices[name]():
                if all(word in f"{text} {words}".casefold() for word in wanted):
                    yield Completion(text, -len(argument), display_meta=words)
        else:
            yield from self._files.get_completions(document, complete_event)


class _FileCompleter(Completer):
    """Completes names relative to `folder`, by default the working folder; folders come first.

    Hidden files are offered only after a dot. If pathspec is installed, files that .gitignore
    excludes are not offered.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        # The last listed folder, its modification time and its entries: the person usually
        # continues in the same folder, and listing a large one is slow.
        self._listed: tuple[Path, int, list[tuple[bool, str]]] | None = None

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        """Yield the names that begin with the name at the cursor."""
        mention = find_mention(document.text_before_cursor)
        if mention is None:
            return
        written, length = mention
        above, slash, begun = written.rpartition("/")
        above += slash
        for is_folder, name in self._matching(above, begun):
            text = f"@{quote_name(above + name)}"
            if is_folder:  # the name continues, so its quotation mark stays open
                text = (text[:-1] if text[1] in "\"'" else text) + "/"
            yield Completion(text, -length, display=f"{name}/" if is_folder else name)

    def _matching(self, above: str, begun: str) -> Iterator[tuple[bool, str]]:
        try:
            base = self._folder or Path.cwd()
            place = base / Path(above).expanduser() if above else base
            entries = self._list(place)
        except (OSError, ValueError, RuntimeError):
            return
        offered = 0
        is_ignored = _ignore_rules(place)
        for is_folder, name in entries:
            if not name.lower().startswith(begun.lower()):
                continue
            if name[0] == "." and not begun.startswith("."):
                continue
            if is_ignored(f"{name}/" if is_folder else name):
                continue
            yield is_folder, name
            offered += 1
            if offered == MAX_COMPLETIONS:
                return

    def _list(self, place: Path) -> list[tuple[bool, str]]:
        """Return the printable names in a folder, folders first."""
        changed = os.stat(place).st_mtime_ns
        if self._listed is not None and self._listed[:2] == (place, changed):
            return self._listed[2]
        with os.scandir(place) as found:
            entries = [
                (not _is_folder(each), each.name.lower(), each.name)
                for each in found
                if each.name.isprintable()
            ]
        # Sorting holds the interpreter lock. One long sort would delay keys, short ones do not.
        starts = range(0, len(entries), SORTED_AT_ONCE)
        pieces = [sorted(entries[at : at + SORTED_AT_ONCE]) for at in starts]
        names = [(not is_file, name) for is_file, _, name in merge(*pieces)]
        self._listed = place, changed, names
        return names


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _ignore_rules(place: Path) -> Callable[[str], bool]:
    """Return a function that tests whether git ignores a name in a folder."""
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
                    text = opened.read(MAX_GITIGNORE_BYTES).decode("utf-8", "replace")
                below = "".join(f"{part}/" for part in place.relative_to(folder).parts)
                rules.append((below, read(text.splitlines())))
            if (folder / ".git").exists():
                return lambda name: any(each.match_file(below + name) for below, each in rules)
    except (OSError, ValueError):
        pass
    return lambda _: False  # the folder is not in a repository
