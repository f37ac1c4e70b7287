"""A served run in a journal: the durable job that answers, and its input as JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..commander import Node
from ..handlers import handler
from ..messages import Message
from ..messages.kept import read_message, write_message
from ..store import Durable, Journal, Live, live
from ._served import Question, Served

if TYPE_CHECKING:
    from ._run import Run

__all__ = ["PREFIX", "Answer", "Incomplete", "Outcome", "go_on", "read_question"]

PREFIX = "serve/"
"""The prefix of the journal's names of served runs."""

# A longer question is stored as notes of about this size instead of inputs of the run, in
# characters: the journal encodes and compares inputs several times, in one step of the event loop.
NOTE_SIZE = 64_000
NOTE = "asked"
# Messages that are written into one note, or read in one step of the event loop.
SLICE = 16


class Incomplete(Exception):
    """A process ended before it had stored a complete question; no client knows of that run."""


@dataclass(frozen=True)
class Outcome:
    """The result of a run, as clients get it."""

    text: str
    status: str
    calls: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    usage: dict[str, Any] = field(default_factory=dict[str, Any])
    items: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    refused: bool = False  # the text is a refusal

    @classmethod
    def of(cls, served: Served, result: Any, usage: dict[str, Any]) -> Outcome:
        """Read the result of a served thing."""
        calls: list[dict[str, Any]] = []
        for call in served.calls(result):
            # Arguments that were no JSON are the client's to see: it would call with "{}".
            text = call.raw if call.error is not None and call.raw is not None else call.text
            calls.append({"id": call.id, "name": call.name, "arguments": text, "index": call.index})
        items = [item.model_dump(exclude_defaults=True) for item in served.items(result)]
        refused = served.refused(result)
        return cls(served.text(result), served.status(result), calls, usage, items, refused)


class Answer(Durable[Outcome]):
    """Lets the served thing answer; the journal has its name and the question."""

    served: str
    asked: dict[str, Any]
    run: Live[Any] = live()

    async def task(self) -> Outcome:
        """Answer; the result reaches the disk after all entries of the log."""
        run: Run = self.run
        await run.log.begin_execution()
        if run.refused is not None:
            raise run.refused
        assert run.work is not None
        result = await self.call_handler(run.work)
        await run.log.stored()
        return Outcome.of(run.served, result, run.spent.to_wire())


@handler
async def go_on(node: Node[Any], run: Run, journal: Journal) -> Outcome:
    """Start a run in the journal, or resume it."""
    log = run.log
    if not run.is_accepted:
        asked, notes = await _write_question(run)
        await journal.start(Answer(run.served.name, asked), run_id=log.run_id)
        for note in notes:
            await journal.note(log.run_id, NOTE, note)
        run.accept()
    outcome = await journal.take_up(log.run_id, live={"run": run})
    if not log.has_begun:  # only the last entry is missing; another server may have added the rest
        await log.catch_up()
        run.set_text(log.replay.last_text)
    return outcome


async def _write_question(run: Run) -> tuple[dict[str, Any], list[str]]:
    """Return the inputs of a run, and the notes of a question that is too long for them."""
    question, about = run.asked()
    rest = {"fields": {**question.fields}, "options": {**question.options}, "echo": {**run.echo}}
    chunks = [[json.dumps({**rest, "tools": [dict(each) for each in question.tools]})]]
    sizes = [len(chunks[0][0])]
    for message in question.messages:
        if len(chunks[-1]) >= SLICE or sizes[-1] > NOTE_SIZE:
            await asyncio.sleep(0)
            chunks.append([])
            sizes.append(0)
        chunks[-1].append(json.dumps(write_message(message)))
        sizes[-1] += len(chunks[-1][-1])
    if sum(sizes) <= NOTE_SIZE:
        first, *messages = [json.loads(each) for chunk in chunks for each in chunk]
        return {**about, **first, "messages": messages}, []
    # One line for each: JSON text has no line breaks.
    return {**about, "notes": len(chunks)}, ["\n".join(chunk) for chunk in chunks]


async def read_question(
    journal: Journal, run_id: str, asked: Mapping[str, Any]
) -> tuple[Question, Mapping[str, Any]]:
    """Return the question of a run, and the fields of the request that its wire repeats.

    Raises `Incomplete` if the question was not stored completely.
    """
    first, written = asked, asked.get("messages", [])
    if "notes" in asked:
        notes = await journal.notes(run_id, NOTE)
        if len(notes) < asked["notes"]:
            raise Incomplete(run_id)
        for note in notes:
            await asyncio.sleep(0)
            written += map(json.loads, note.split("\n"))
        first, *written = written
    messages: list[Message] = []
    for place, each in enumerate(written):
        if place % SLICE == SLICE - 1:
            await asyncio.sleep(0)
        messages.append(read_message(each))
    return Question(messages, first["fields"], first["options"], first["tools"]), first["echo"]
