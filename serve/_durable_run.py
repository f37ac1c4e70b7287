"""A run in a journal: the durable job that answers, and the stored form of its input."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..commander import Node
from ..handlers import handler
from ..messages import Message
from ..messages.compact_json import read_message, write_message
from ..store import Durable, Journal, Live, live
from ._served_model import RunInput, ServedModel

if TYPE_CHECKING:
    from ._run import Run

__all__ = [
    "RUN_ID_PREFIX",
    "DurableAnswer",
    "IncompleteInput",
    "Outcome",
    "read_stored_input",
    "run_in_journal",
]

RUN_ID_PREFIX = "serve/"
"""The prefix of the ids of served runs in a journal."""

# Longer input is stored as notes of about this size instead of inputs of the job: the journal
# encodes and compares inputs several times, in one step of the event loop.
MAX_NOTE_CHARS = 64_000
# The name of these notes.
INPUT_NOTE = "asked"
# Messages in one note, and messages that are read in one step of the event loop.
MESSAGES_PER_NOTE = 16


class IncompleteInput(Exception):
    """A process ended before it had stored the complete input. No client knows of that run."""


@dataclass(frozen=True)
class Outcome:
    """The result of a run, as clients get it; the journal stores it as JSON."""

    text: str
    status: str
    calls: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    usage: dict[str, Any] = field(default_factory=dict[str, Any])
    items: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    refused: bool = False  # the text is a refusal

    @classmethod
    def of(cls, served: ServedModel, result: Any, usage: dict[str, Any]) -> Outcome:
        """Return the outcome for the result of a served model."""
        calls: list[dict[str, Any]] = []
        for call in served.calls(result):
            # For arguments that are not JSON `text` is "{}": the client must see the model's text.
            text = call.raw if call.error is not None and call.raw is not None else call.text
            calls.append({"id": call.id, "name": call.name, "arguments": text, "index": call.index})
        items = [item.model_dump(exclude_defaults=True) for item in served.items(result)]
        refused = served.is_refusal(result)
        return cls(served.text(result), served.status(result), calls, usage, items, refused)


class DurableAnswer(Durable[Outcome], name="Answer"):
    """Runs the node of a served model; the journal stores the model's name and the input."""

    served: str
    asked: dict[str, Any]
    run: Live[Any] = live()

    async def task(self) -> Outcome:
        """Answer; the journal stores the result after all entries of the log."""
        run: Run = self.run
        await run.log.begin_execution()
        if run.refusal is not None:
            raise run.refusal
        assert run.work is not None
        result = await self.call_handler(run.work)
        # A restart does not repeat a completed run, so it could not add missing entries.
        await run.log.until_stored()
        return Outcome.of(run.served, result, run.total_usage.to_wire())


@handler
async def run_in_journal(node: Node[Any], run: Run, journal: Journal) -> Outcome:
    """Start a run in the journal, or resume it."""
    log = run.log
    if not run.is_accepted:
        asked, notes = await _write_input(run)
        await journal.start(DurableAnswer(run.served.name, asked), run_id=log.run_id)
        for note in notes:
            await journal.note(log.run_id, INPUT_NOTE, note)
        run.accept()
    outcome = await journal.take_up(log.run_id, live={"run": run})
    if not log.has_begun:  # the job had completed: at most the last entry of its log is missing
        await log.catch_up()
        run.set_text(log.replay.last_text)
    return outcome


async def _write_input(run: Run) -> tuple[dict[str, Any], list[str]]:
    """Return the inputs of the job, and notes with the rest of a long input."""
    run_input, about = run.input_and_facts()
    rest = {"fields": {**run_input.fields}, "options": {**run_input.options}, "echo": {**run.echo}}
    chunks = [[json.dumps({**rest, "tools": [dict(each) for each in run_input.tools]})]]
    sizes = [len(chunks[0][0])]
    for message in run_input.messages:
        if len(chunks[-1]) >= MESSAGES_PER_NOTE or sizes[-1] > MAX_NOTE_CHARS:
            await asyncio.sleep(0)
            chunks.append([])
            sizes.append(0)
        chunks[-1].append(json.dumps(write_message(message)))
        sizes[-1] += len(chunks[-1][-1])
    if sum(sizes) <= MAX_NOTE_CHARS:
        first, *messages = [json.loads(each) for chunk in chunks for each in chunk]
        return {**about, **first, "messages": messages}, []
    # One line for each: JSON text never contains a line break.
    return {**about, "notes": len(chunks)}, ["\n".join(chunk) for chunk in chunks]


async def read_stored_input(
    journal: Journal, run_id: str, asked: Mapping[str, Any]
) -> tuple[RunInput, Mapping[str, Any]]:
    """Return the input of a run, and the request's fields that its wire repeats (`Run.echo`).

    Raises `IncompleteInput` if the input was not stored completely.
    """
    first, written = asked, asked.get("messages", [])
    if "notes" in asked:
        notes = await journal.notes(run_id, INPUT_NOTE)
        if len(notes) < asked["notes"]:
            raise IncompleteInput(run_id)
        for note in notes:
            await asyncio.sleep(0)
            written += map(json.loads, note.split("\n"))
        first, *written = written
    messages: list[Message] = []
    for place, each in enumerate(written):
        if place % MESSAGES_PER_NOTE == MESSAGES_PER_NOTE - 1:
            await asyncio.sleep(0)
        messages.append(read_message(each))
    return RunInput(messages, first["fields"], first["options"], first["tools"]), first["echo"]
