"""Show the log of a run, entry by entry, for local runs and for runs on a server."""

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
from .._output import one_line

__all__ = ["BadEntry", "LogRenderer", "lay_out_result"]

# Replies that stream at the same time alternate after each line, or after this many characters.
TURN_CHARACTERS = 80
MAX_ANSWER_CHARACTERS = 16_000_000  # limits the memory for a server that never stops sending
MAX_TABLE_ROWS = 200
MAX_NAME_CHARACTERS = 60


class BadEntry(ValueError):
    """A log contains an invalid entry. Only a faulty server sends one."""


@dataclass(eq=False, slots=True)
class _StreamingReply:
    """A reply that is streaming."""

    agent: str | None
    aside: bool
    text: list[str] = field(default_factory=list[str])
    unshown: list[str] = field(default_factory=list[str])


class LogRenderer:
    """Shows the entries of a run's log on `view`; `name` is the agent whose reply is the answer.

    Replies of other agents get their name as a heading. If several replies stream at the same time,
    one is shown as it grows and the others line by line. `raw` shows a result without layout.
    """

    def __init__(self, view: View, name: str, *, raw: bool = False) -> None:
        self._view = view
        self._name = name
        self._raw = raw
        self._replies: dict[str, _StreamingReply] = {}
        self._shown: _StreamingReply | None = None  # the reply that grows on the screen
        self._needs_names = False  # once another agent has replied, each reply gets a name
        self._answer: _StreamingReply | None = None
        self._reasoning: list[str] = []
        self._reasoning_reply = ""  # the key of the reply that the reasoning belongs to
        self._size = 0

    @property
    def text(self) -> str:
        """The answer so far."""
        return "" if self._answer is None else "".join(self._answer.text)

    @property
    def reasoning(self) -> str | None:
        """The reasoning of the last reply, None if there is none."""
        return "".join(self._reasoning) or None

    async def show(self, kind: str, data: Mapping[str, Any]) -> None:
        """Show an entry; ignore kinds that are not for people.

        Raises `BadEntry` for an invalid entry and for an answer above the size limit.
        """
        match kind:
            case "text":
                await self._add(data)
            case "reasoning":
                self._add_reasoning(data)
            case "called":
                await self._flush()
                self._reasoning = []  # the reasoning before a call is not that of the answer
                arguments, error = read_arguments(_text(data, "arguments"))
                name, call_id = _text(data, "name"), _text(data, "call")
                self._view.called(ToolCall(id=call_id, name=name, arguments=arguments, error=error))
            case "answered":
                await self._flush()
                result = ToolResult(role="tool", content=_text(data, "text"))
                result.tool_call_id = _text(data, "call")
                if (status := _text(data, "status")) not in ("ok", "failed", "invalid"):
                    raise BadEntry(f"the status is {status!r:.100}")
                result.status = status
                self._view.answered(result)
            case "broken" | "asked" | "completed" | "failed" | "cancelled":
                await self._flush()
            case _:
                pass

    async def _flush(self) -> None:
        """Show all text that is not visible yet, and end the reply on the screen."""
        for reply in [*self._replies.values()]:
            if reply.unshown:
                await self._switch_to(reply)
        self.end()

    def end(self) -> None:
        """End the reply on the screen, without text that is not visible yet."""
        if self._shown is not None:
            self._shown = None
            self._view.ended()

    def _add_reasoning(self, data: Mapping[str, Any]) -> None:
        text, name = self._text(data), _text(data, "speech")
        if name != self._reasoning_reply:
            self._reasoning_reply, self._reasoning = name, []
        self._reasoning.append(text)

    def _text(self, data: Mapping[str, Any]) -> str:
        text = _text(data, "text")
        self._size += len(text)
        if self._size > MAX_ANSWER_CHARACTERS:
            raise BadEntry("the answer is too long")
        return text

    async def _add(self, data: Mapping[str, Any]) -> None:
        text, name = self._text(data), _text(data, "speech")
        reply = self._replies.get(name)
        if reply is None:
            agent = data.get("agent")
            reply = _StreamingReply(
                agent if isinstance(agent, str) else None, data.get("aside") is True
            )
            self._replies[name] = reply
        if not reply.aside:
            self._answer = reply
            reply.text.append(text)
        if name == "result":
            await self._flush()
            text = text if self._raw else lay_out_result(text)
        reply.unshown.append(text)
        is_turn = "\n" in text or sum(map(len, reply.unshown)) >= TURN_CHARACTERS
        if self._shown in (None, reply) or is_turn:
            await self._switch_to(reply)

    async def _switch_to(self, reply: _StreamingReply) -> None:
        """Show the new text of a reply; its further text appears as it arrives."""
        text = "".join(reply.unshown)
        reply.unshown.clear()
        if self._shown is not reply:
            self.end()
            self._shown = reply
            self._needs_names = self._needs_names or reply.agent not in (None, self._name)
            if self._needs_names and reply.agent is not None:
                await self._write(f"{one_line(reply.agent, MAX_NAME_CHARACTERS)}:\n\n")
        await self._write(text)

    async def _write(self, text: str) -> None:
        if isawaitable(written := self._view.write(text)):
            await written


def _text(data: Mapping[str, Any], name: str) -> str:
    found = data.get(name)
    if not isinstance(found, str):
        raise BadEntry(f"the field {name} is missing")
    return encodable(found)


def lay_out_result(text: str) -> str:
    """Return a result as Markdown: JSON as a table or indented, other text unchanged."""
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
    """Return rows as a Markdown table if all have the same fields with simple values."""
    if not rows or len(rows) > MAX_TABLE_ROWS or not all(isinstance(row, dict) for row in rows):
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
