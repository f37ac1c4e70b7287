"""The transcript of a conversation, on the terminal, as people know it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TextIO

from ...handlers.legible import legible
from ..layers import AgentMessage

__all__ = ["Transcript"]

RULE = "-" * 80
BROKEN_OFF = "\n(broken off)"


@dataclass(slots=True)
class _Entry:
    heading: str
    text: str = ""
    shown: int = -1  # -1 until the heading is written
    ending: str | None = None


class Transcript:
    """Writes what is said: `alice (to bob):`, an empty line, the text, a line of dashes.

    A message that streams is written as it arrives; what others say meanwhile waits for its end,
    so that no two are mixed. Without `file` it writes to the standard output of the moment.
    """

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = file
        self._entries: list[_Entry] = []

    def __call__(self, part: AgentMessage) -> None:
        """Take a part of a message, or a whole one; what is said to nobody is not shown."""
        if part.receiver is None or part.type in ("tool_call", "tool_result"):
            return
        heading = f"{part.sender} (to {part.receiver}):"
        for entry in self._entries:
            if entry.heading == heading and entry.ending is None:
                if part.text.startswith(entry.text):
                    entry.text = part.text
                    break
                entry.ending = BROKEN_OFF  # it became something else
        else:
            entry = _Entry(heading, part.text)
            self._entries.append(entry)
        if part.stream_state == "end":
            entry.ending = ""
        elif part.stream_state == "failed":
            entry.ending = BROKEN_OFF
        out = self._file or sys.stdout
        while self._entries:
            entry = self._entries[0]
            if entry.shown < 0:
                out.write(f"{legible(entry.heading)}\n\n")
                entry.shown = 0
            out.write(legible(entry.text[entry.shown :]))
            entry.shown = len(entry.text)
            if entry.ending is None:
                break
            out.write(f"{entry.ending}\n\n{RULE}\n")
            del self._entries[0]
        out.flush()
