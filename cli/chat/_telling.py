"""What a run says, entry by entry, as a person sees it: here and from a server alike."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from inspect import isawaitable
from typing import Any, cast

from ...handlers import View
from ...handlers.legible import legible
from ...messages import ToolCall
from ...messages.arguments import read_arguments
from ...messages.text import encodable
from ...tools import ToolResult
from .._terminal import in_line

__all__ = ["BadEntry", "Telling", "lay_out_result"]

# Two that speak at once take turns of a line, or of as many characters.
TURN = 80
# The characters of one answer: more is no answer, but a server that never ends.
LONGEST = 16_000_000
MOST_ROWS = 200
CELL = 60


class BadEntry(ValueError):
    """An entry of a log is none; only a server that is none sends it."""


@dataclass(eq=False, slots=True)
class _Speech:
    """One text as it grows."""

    agent: str | None
    aside: bool
    said: list[str] = field(default_factory=list[str])
    waiting: list[str] = field(default_factory=list[str])  # what is not shown yet


class Telling:
    """Shows the entries of a run's log to `view`, in order; `name` is who answers.

    The texts of others have their name above them. Of several that speak at once one is shown as
    it grows, and the others a line at a time. With `raw` a result is shown as it came.
    """

    def __init__(self, view: View, name: str, *, raw: bool = False) -> None:
        self.view = view
        self._name = name
        self._raw = raw
        self._speeches: dict[str, _Speech] = {}
        self._shown: _Speech | None = None  # whose text grows on the screen
        self._headed = False  # a name stands there, so that each text needs one
        self._answer: _Speech | None = None
        self._reasoning: list[str] = []
        self._reasoner = ""  # the reply that this is of
        self._size = 0

    @property
    def text(self) -> str:
        """The answer, as far as it has come."""
        return "" if self._answer is None else "".join(self._answer.said)

    @property
    def reasoning(self) -> str | None:
        """What the model reasoned for its last reply, if anything."""
        return "".join(self._reasoning) or None

    async def tell(self, kind: str, data: Mapping[str, Any]) -> None:
        """Show an entry; one of a kind that nobody sees is passed over.

        Raises `BadEntry` for one that is none, and for what never ends.
        """
        match kind:
            case "text":
                await self._hear(data)
            case "reasoning":
                self._reason(data)
            case "called":
                await self.pause()
                self._reasoning = []  # it was for the call
                arguments, error = read_arguments(_text(data, "arguments"))
                name, call_id = _text(data, "name"), _text(data, "call")
                self.view.called(ToolCall(id=call_id, name=name, arguments=arguments, error=error))
            case "answered":
                await self.pause()
                result = ToolResult(role="tool", content=_text(data, "text"))
                result.tool_call_id = _text(data, "call")
                if (status := _text(data, "status")) not in ("ok", "failed", "invalid"):
                    raise BadEntry(f"its status is {status!r:.100}")
                result.status = status
                self.view.answered(result)
            case "broken" | "asked" | "completed" | "failed" | "cancelled":
                await self.pause()
            case _:
                pass

    async def pause(self) -> None:
        """Show all that waits to be shown, and end the text that grows."""
        for speech in [*self._speeches.values()]:
            if speech.waiting:
                await self._turn_to(speech)
        self.end()

    def end(self) -> None:
        """End the text that grows; what still waits is not shown any more."""
        if self._shown is not None:
            self._shown = None
            self.view.ended()

    def _reason(self, data: Mapping[str, Any]) -> None:
        text, name = _text(data, "text"), _text(data, "speech")
        self._count(text)
        if name != self._reasoner:
            self._reasoner, self._reasoning = name, []
        self._reasoning.append(text)

    def _count(self, text: str) -> None:
        self._size += len(text)
        if self._size > LONGEST:
            raise BadEntry("an answer without end")

    async def _hear(self, data: Mapping[str, Any]) -> None:
        text, name = _text(data, "text"), _text(data, "speech")
        self._count(text)
        speech = self._speeches.get(name)
        if speech is None:
            agent = data.get("agent")
            speech = _Speech(agent if isinstance(agent, str) else None, data.get("aside") is True)
            self._speeches[name] = speech
        if not speech.aside:
            self._answer = speech
            speech.said.append(text)
        if name == "result":
            await self.pause()
            text = text if self._raw else lay_out_result(text)
        speech.waiting.append(text)
        if self._shown in (None, speech) or _is_turn(speech.waiting):
            await self._turn_to(speech)

    async def _turn_to(self, speech: _Speech) -> None:
        """Show what a speech has said meanwhile, which goes on to be shown as it grows."""
        text = "".join(speech.waiting)
        speech.waiting.clear()
        if self._shown is not speech:
            self.end()
            self._shown = speech
            other = speech.agent not in (None, self._name)
            self._headed = self._headed or other
            if self._headed and speech.agent is not None:
                await self._write(f"{in_line(speech.agent, CELL)}:\n\n")
        await self._write(text)

    async def _write(self, text: str) -> None:
        if isawaitable(written := self.view.write(text)):
            await written


def _is_turn(waiting: list[str]) -> bool:
    return "\n" in waiting[-1] or sum(map(len, waiting)) >= TURN


def _text(data: Mapping[str, Any], name: str) -> str:
    found = data.get(name)
    if not isinstance(found, str):
        raise BadEntry(f"it has no {name}")
    return encodable(found)


def lay_out_result(text: str) -> str:
    """Return a result as Markdown: JSON as a table if it is one, else indented; a text as it is."""
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        found: Any = json.loads(text)
        indented = json.dumps(found, ensure_ascii=False, indent=2)
    except (ValueError, RecursionError):
        return text
    table = _table(cast("list[Any]", found)) if isinstance(found, list) else None
    return table or f"```json\n{indented}\n```\n"


def _table(rows: list[Any]) -> str | None:
    """Return rows that all have the same plain fields as a table of Markdown."""
    if not rows or len(rows) > MOST_ROWS or not all(isinstance(row, dict) for row in rows):
        return None
    names = [*rows[0]]
    if not names or any([*row] != names for row in rows):
        return None
    if any(isinstance(cell, (dict, list)) for row in rows for cell in row.values()):
        return None
    lines = [names, ["---"] * len(names), *([_cell(row[name]) for name in names] for row in rows)]
    return "".join(f"| {' | '.join(map(_escape, line))} |\n" for line in lines)


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _escape(cell: str) -> str:
    return " ".join(legible(cell).split()).replace("\\", "\\\\").replace("|", "\\|")
