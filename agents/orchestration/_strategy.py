"""What strategies share: prompts from files, moves that are written as text, what was done."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..layers._prompt import fill_template
from ._state import Namespace, State

__all__ = ["Deed", "Prompts", "deeds_text", "listed", "notes_text", "read_move"]

_MOVE = re.compile(r"^[ \t*]*(Action|Answer)[ \t*]*:[ \t*]*", re.MULTILINE)


class Prompts:
    """Prompts in files `NAME.md`: those in `folder`, and the package's own where it has none.

    They are templates in the manner of `str.format`, a brace itself is written twice.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = None if folder is None else Path(folder)
        if self.folder is not None and not self.folder.is_dir():
            raise FileNotFoundError(f"there is no folder of prompts {str(self.folder)!r}")

    def text(self, name: str) -> str:
        """Return a prompt as it stands in its file; raise `FileNotFoundError` if there is none."""
        own = None if self.folder is None else self.folder / f"{name}.md"
        if own is not None and own.is_file():
            return own.read_text(encoding="utf-8")
        return files(__package__ or "").joinpath("prompts", f"{name}.md").read_text("utf-8")

    def fill(self, name: str, **values: Any) -> str:
        """Return a prompt with its fields filled in; raise `LookupError` for an unknown field."""
        return fill_template(self.text(name), values, name).strip()


class Deed(Namespace):
    """An action, and what was seen after it, None before that."""

    action: str
    seen: str | None = None


def deeds_text(deeds: Iterable[Deed]) -> str:
    """Write what was done, and what came of it, for a prompt."""
    return "\n".join(f"> {deed.action}\n{(deed.seen or '').strip()}" for deed in deeds)


def listed(lines: Iterable[str]) -> str:
    """Write a numbered list, for a prompt."""
    return "\n".join(f"{number}. {line}" for number, line in enumerate(lines, 1)) or "(none)"


def notes_text(state: State) -> str:
    """Write what modules noted, for a prompt; "" if they noted nothing."""
    return "".join(f"\n{name}:\n{text}\n" for name, text in state.notes.items())


def read_move(said: str) -> tuple[str, str]:
    """Return "Action" or "Answer" and the text after it, from a reply that ends with one of them.

    Raises `ValueError`, with a text that a model can use, if there is none or more than one.
    """
    found = list(_MOVE.finditer(said))
    if len(found) == 1 and (text := said[found[0].end() :].strip().strip("`").strip()):
        return found[0][1], text
    raise ValueError(
        "Your reply must end with exactly one line that begins with `Action:`, or with `Answer:` "
        f"when the task is done, and has text after it; it has {len(found)}."
    )
