"""A run that a journal keeps: the durable job that answers, and what it is asked, as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..commander import Node
from ..handlers import handler
from ..messages.kept import read_message, write_message
from ..store import Durable, Journal, Live, live
from ._kept_log import KeptLog
from ._served import Question, Served

if TYPE_CHECKING:
    from ._run import Run

__all__ = ["PREFIX", "Answer", "Told", "go_on", "read_question", "write_question"]

PREFIX = "serve/"
"""What the names of runs begin with that a server has begun."""


@dataclass(frozen=True)
class Told:
    """What a run has come to."""

    text: str
    status: str
    calls: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    usage: dict[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def of(cls, served: Served, result: Any, usage: dict[str, Any]) -> Told:
        """Read the result of what was served."""
        calls: list[dict[str, Any]] = []
        for call in served.calls(result):
            # What was no JSON is the client's to see: it would take "{}" for what was meant.
            text = call.raw if call.error is not None and call.raw is not None else call.text
            said = {"name": call.name, "arguments": text, "index": call.index}
            calls.append({"id": call.id, **said})
        return cls(served.text(result), served.status(result), calls, usage)


class Answer(Durable[Told]):
    """Lets what is served answer; what it is asked, and by whom, is written."""

    served: str
    asked: dict[str, Any]
    run: Live[Any] = live()

    async def task(self) -> Told:
        """Answer; the result is on disk after all that was said."""
        run: Run = self.run
        assert isinstance(run.log, KeptLog)
        await run.log.begin_life()
        if run.refused is not None:
            raise run.refused
        assert run.work is not None
        result = await self.call_handler(run.work)
        await run.log.told()
        return Told.of(run.served, result, run.spent.to_wire())


@handler
async def go_on(node: Node[Any], run: Run, journal: Journal) -> Told:
    """Begin a run in the journal, or take it up."""
    name, log = PREFIX + run.id, run.log
    assert isinstance(log, KeptLog)
    job = Answer(run.served.name, run.asked())
    await journal.start(job, run_id=name)
    run.accept()
    told = await journal.run(job, run_id=name, live={"run": run})
    if not log.has_begun:  # all but the end was said before, perhaps by another server just now
        await log.catch_up()
        run.said_before(log.spoken)
    return told


def write_question(question: Question) -> dict[str, Any]:
    """Return a question as JSON; `read_question` gives it again."""
    return {
        "messages": [write_message(each) for each in question.messages],
        "fields": dict(question.fields),
        "options": dict(question.options),
        "tools": [dict(each) for each in question.tools],
    }


def read_question(written: Mapping[str, Any]) -> Question:
    """Return the question that was written."""
    messages = [read_message(each) for each in written["messages"]]
    return Question(messages, written["fields"], written["options"], written["tools"])
