"""What strategies share: prompts from files, moves that are written as text, what was done."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..layers._prompt import fill_template
from ._state import Namespace, State

__all__ = [
    "PastAction",
    "Prompts",
    "describe_actions",
    "describe_notes",
    "number_lines",
    "read_move",
]

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


class PastAction(Namespace):
    """An action, and what was seen after it, None before that."""

    action: str
    seen: str | None = None


def describe_actions(actions: Iterable[PastAction]) -> str:
    """Write what was done, and what came of it, for a prompt."""
    return "\n".join(f"> {past.action}\n{(past.seen or '').strip()}" for past in actions)


def describe_notes(state: State, *, scene: bool = True, modules: bool = True) -> str:
    """Write what the environment showed at first and what modules noted, for a prompt.

    It is "" if there is nothing of that.
    """
    first = (state.scene or "").strip() if scene else ""
    notes = {"What the environment showed at first": first} if first else {}
    notes |= state.notes if modules else {}
    return "".join(f"\n{name}:\n{text}\n" for name, text in notes.items())


def number_lines(lines: Iterable[str]) -> str:
    """Write a numbered list, for a prompt."""
    return "\n".join(f"{number}. {line}" for number, line in enumerate(lines, 1)) or "(none)"


def read_move(response: str, state: State) -> tuple[str | None, str]:
    """Return "Action" or "Answer" and the text after it, of a reply that ends with one of them.

    An action goes to the environment. Any other reply is signalled, and returned after None.
    """
    found = list(_MOVE.finditer(response))
    if len(found) == 1 and (text := response[found[0].end() :].strip().strip("`").strip()):
        if found[0][1] == "Action":
            state.step_environment()
        return found[0][1], text
    state.signal_error(
        "no action in the reply",
        "Your reply must end with exactly one line that begins with `Action:`, or with `Answer:` "
        f"when the task is done, and has text after it; it has {len(found)}.",
    )
    return None, response
