"""What runs ask a person: whether a call may run, and what became of one that is in doubt.

A question is a row of its run, and so is the answer once it is taken; on its way that is a letter.
The first letter counts, whoever has sent it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic_core import to_jsonable_python

from ..commander import Node, actor_of
from ..tools.calls import write_text
from ._file import ENDED
from .errors import NotPending, RunNotFound

if TYPE_CHECKING:
    from ._file import JournalFile
    from ._ledger import Ledger

__all__ = ["APPROVAL", "DOUBT", "PendingApproval", "PendingDoubt", "pending", "write_question"]

Q = TypeVar("Q", bound="_Question")

APPROVAL, DOUBT = "approval", "doubt"


@dataclass(frozen=True, kw_only=True)
class _Question:
    """A question that waits for a person; its run may wait too, or be taken up later."""

    run_id: str
    number: int
    """Of its row: by this the run's questions are told apart."""
    tool: str
    arguments: Mapping[str, Any]
    path: str
    """The path of the node that asks."""
    agent: str | None
    """The agent that makes the call, None if it is no agent's."""
    session_id: int | str | None
    asked: datetime
    """When, in UTC."""
    _file: JournalFile = field(repr=False)
    _ident: bytes = field(repr=False)

    async def _answer(self, answer: dict[str, Any]) -> None:
        """Send the answer; it counts when this returns. Raises `NotPending` if it never will."""
        name, value = self._ident.hex(), json.dumps(answer).encode()
        try:
            if (run := await self._file.run(self.run_id)).state in ENDED:
                raise NotPending(self.run_id, self.number, f"the run is over ({run.state})")
            if self._ident not in await _open(self._file, self.run_id):
                raise NotPending(self.run_id, self.number, "it was answered, or is asked no more")
            number = await self._file.post(self.run_id, "answer", name, value)
        except RunNotFound:
            raise NotPending(self.run_id, self.number, "the run is over and was purged") from None
        with suppress(RunNotFound):  # the run has ended since then, and was purged
            letters = await self._file.letters(self.run_id)
            first = next(each for each in letters if (each.kind, each.name) == ("answer", name))
            if first.id != number:
                raise NotPending(self.run_id, self.number, "it was answered at the same time")


@dataclass(frozen=True, kw_only=True)
class PendingApproval(_Question):
    """A call that waits for a person's yes."""

    async def approve(self, arguments: Mapping[str, Any] | None = None) -> None:
        """Let the call run, with other arguments if given; on disk when this returns.

        The arguments are checked where the call runs: of wrong ones the model is told, and a call
        by code fails. Raises `NotPending` if it was answered, or the run is over.
        """
        changed = None if arguments is None else dict(arguments)
        await self._answer({"approved": True, "arguments": changed, "reason": ""})

    async def deny(self, reason: str = "") -> None:
        """Refuse the call, and tell the model why; as `approve`."""
        await self._answer({"approved": False, "arguments": None, "reason": reason})


@dataclass(frozen=True, kw_only=True)
class PendingDoubt(_Question):
    """A call of which nobody knows whether it was done; it is not done again without a word."""

    note: str
    """Why a person is asked."""

    async def done(self, value: object) -> None:
        """Say that it was done, and what the tool would have returned; on disk when this returns.

        Raises `NotPending` if it was answered, or the run is over.
        """
        plain = to_jsonable_python(value, fallback=str)
        await self._answer({"done": write_text(value), "value": plain})

    async def not_done(self) -> None:
        """Say that it was not done, so that it is done now; as `done`."""
        await self._answer({"not_done": True})


def write_question(
    ledger: Ledger, ident: bytes, question: dict[str, Any], node: Node[Any]
) -> dict[str, Any]:
    """Write what `node` asks, and return it: as an earlier life has asked it, if one has."""
    row, withdrawn = ledger.find(ident, "question"), ledger.find(ident, "withdrawn")
    if row is not None and (withdrawn is None or withdrawn.seq < row.seq):
        return json.loads(row.value)
    actor = actor_of(node)
    by = (None, None) if actor is None else (actor.agent, actor.session_id)
    data = json.dumps({**question, "path": node.path, "agent": by[0], "session_id": by[1]})
    return json.loads(ledger.append(ident, "question", data.encode(), find=True))


async def pending(file: JournalFile, cls: type[Q], run_id: str | None = None) -> list[Q]:
    """Return the questions of all runs that are not over, or of one, oldest first."""
    kind = APPROVAL if cls is PendingApproval else DOUBT
    found: list[Q] = []
    for run in await file.runs() if run_id is None else [await file.run(run_id)]:
        if run.state in ENDED:
            continue
        try:
            waiting = await _open(file, run.run_id)
        except RunNotFound:
            if run_id is not None:
                raise
            continue  # it has ended since it was listed, and was purged
        for ident, (number, asked, question) in waiting.items():
            if question.pop("kind") == kind:
                when = datetime.fromtimestamp(asked, UTC)
                more = {"run_id": run.run_id, "number": number, "asked": when}
                found.append(cls(**more, **question, _file=file, _ident=ident))
    return sorted(found, key=lambda each: each.asked)


async def _open(file: JournalFile, run_id: str) -> dict[bytes, tuple[int, float, dict[str, Any]]]:
    """Return the questions of a run that wait: number, time and what is asked."""
    waiting: dict[bytes, tuple[int, float, dict[str, Any]]] = {}
    run, rows, letters = await file.look(run_id)
    for row in () if run.state in ENDED else rows:
        if row.kind == "question":
            waiting[row.ident] = row.seq, row.time, json.loads(row.value)
        elif row.kind in ("letter", "withdrawn"):
            waiting.pop(row.ident, None)
    for letter in letters:
        if letter.kind == "answer":
            waiting.pop(bytes.fromhex(letter.name), None)
    return waiting
