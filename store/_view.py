"""A run as others see it: its rows, its waits, and its questions to a person.

A question is a row. The answer is sent as a letter, and the first letter counts.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pydantic_core import to_jsonable_python

from ..tools.calls import write_text
from ._execution import FIRST_ROOT
from ._journal_file import ENDED_STATES, SESSION_CLASS, Letter, Row, RunRow
from ._unreplayed import child_name
from .errors import NotPending, RunNotFound

if TYPE_CHECKING:
    from ._journal_file import JournalFile

__all__ = [
    "APPROVAL",
    "DOUBT",
    "Partial",
    "PendingApproval",
    "PendingDoubt",
    "RunView",
    "RunWait",
    "is_abandoned",
    "pending",
    "view",
]

Q = TypeVar("Q", bound="_PendingQuestion")

APPROVAL, DOUBT = "approval", "doubt"


class RunWait(NamedTuple):
    """A wait of a run."""

    kind: str
    """"approval" or "doubt", which a person answers, "signal", "sleep" or "retry"."""
    name: str
    """The name of the tool or the signal."""
    number: int
    """The number of its row; approvals and doubts are answered by it."""
    until: float | None
    """When the wait ends by itself, in seconds since the epoch; None if it does not."""
    type: str = ""
    """The expected type of the signal."""


class Partial(NamedTuple):
    """A reply that is still growing, or was cut off and is requested again on resume."""

    number: int
    """The number of its last row."""
    text: str
    """The text so far."""
    time: float
    """When its last row was written, in seconds since the epoch."""


@dataclass(frozen=True, kw_only=True)
class RunView:
    """A run and all its rows and letters, at one moment."""

    run: RunRow
    abandoned: bool
    """Whether it counts as running although the process that owned it has died."""
    rows: list[Row]
    letters: list[Letter]
    """The letters that were sent to it, received or not."""
    refused: dict[int, str]
    """By number of a letter that did not fit the type of the signal: the reason."""
    waits: list[RunWait]
    """Oldest first; empty for a run that is over."""
    names: dict[bytes, str]
    """By identity: the nodes, effects and questions whose names the rows have."""
    unreplayed: list[str]
    """Recorded entries that the changed code did not replay: "PATH OF THE NODE: NAMES"."""
    result: bytes | None
    """The result of its first root, as JSON."""
    error: str | None
    """Why it failed, was cancelled or was parked."""
    usage: dict[str, dict[str, float]]
    """The usage of its replies by model: summed counts."""
    partials: list[Partial]
    """Incomplete replies, if `Journal(partials=)` is set."""


def view(run: RunRow, rows: list[Row], letters: list[Letter]) -> RunView:
    """Return the view of a run that its rows give."""
    names = {FIRST_ROOT: run.class_name}
    ends: dict[str, Row] = {}
    refused: dict[int, str] = {}
    unreplayed: list[str] = []
    usage: dict[str, dict[str, float]] = {}
    for row in rows:
        value: Any = json.loads(row.value) if row.value else None
        if name := child_name(row.ident):
            names[row.ident] = name
        elif row.kind in ("root", "intent", "question", "waits", "refused"):
            names[row.ident] = _name(value) or value["kind"]
        if row.kind == "refused":
            refused[value["id"]] = f"{value['why']} (expected {value['type']})"
        elif row.kind == "gone":
            unreplayed.append(f"{value['by']}: {', '.join(value['what'])}")
        elif row.kind in ("reply", "broken", "spent"):
            for model, spent in (value["said"] if row.kind == "broken" else value)["taken"]:
                total = usage.setdefault(model, {})
                for name, count in spent.items():
                    if isinstance(count, int | float):
                        total[name] = total.get(name, 0) + count
        elif row.ident == FIRST_ROOT and row.kind in ("result", "failure", "cancelled"):
            ends[row.kind] = row
    last = max(ends.values(), key=lambda row: row.seq, default=None)
    error = None if run.error is None else run.error.decode()
    if error is None and run.state in ENDED_STATES and last is not None and last.kind != "result":
        error = _why(last)
    return RunView(
        run=run,
        abandoned=is_abandoned(run),
        rows=rows,
        letters=letters,
        refused=refused,
        unreplayed=unreplayed,
        waits=_waits(run, rows, letters),
        names=names,
        result=last.value if last is not None and last.kind == "result" else None,
        error=error,
        usage=usage,
        partials=[] if run.state in ENDED_STATES else _partials(rows),
    )


def is_abandoned(run: RunRow) -> bool:
    """Return whether a run counts as running although its process, on this machine, has died."""
    host, _, pid = run.owner.rpartition(":")
    # `os.kill` with the signal 0 only checks, but on Windows it would end the process.
    if run.state != "running" or host != socket.gethostname() or sys.platform == "win32":
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError):
        pass
    return False


def _waiting(run: RunRow, rows: list[Row], letters: list[Letter]) -> dict[bytes, Row]:
    """Return, by identity, the rows of waits that have not ended, oldest first."""
    waiting: dict[bytes, Row] = {}
    if run.state in ENDED_STATES:
        return waiting
    for row in rows:
        # The calls of a session run one after the other, so the end of one ends all waits. It may
        # have left a question that changed code has not asked again.
        if run.class_name == SESSION_CLASS and row.kind in ("root", "over"):
            waiting.clear()
        if row.kind in ("letter", "withdrawn", "result", "failure", "cancelled"):
            waiting.pop(row.ident, None)
        elif row.kind in ("question", "waits", "attempt"):
            waiting[row.ident] = row
    for each in letters:
        if each.kind == "answer":
            waiting.pop(bytes.fromhex(each.name), None)
    return waiting


def _waits(run: RunRow, rows: list[Row], letters: list[Letter]) -> list[RunWait]:
    waits: list[RunWait] = []
    for row in _waiting(run, rows, letters).values():
        value = json.loads(row.value)
        kind = "retry" if row.kind == "attempt" else value["kind"]
        until = value.get("until", value.get("due"))
        if until is None or until > time.time():
            waits.append(RunWait(kind, _name(value), row.seq, until, value.get("type", "")))
    return waits


def _partials(rows: list[Row]) -> list[Partial]:
    growing: dict[bytes, Partial] = {}
    for row in rows:
        if row.kind == "partial":
            value = json.loads(row.value)
            before = growing[row.ident].text if value["at"] else ""
            growing[row.ident] = Partial(row.seq, before + value["text"], row.time)
        elif row.kind == "reply":
            growing.pop(row.ident, None)
    return [each for each in growing.values() if each.text]


def _name(value: dict[str, Any]) -> str:
    return value.get("class") or value.get("tool") or value.get("name") or ""


def _why(row: Row) -> str:
    value: Any = json.loads(row.value)
    if row.kind == "failure":
        return f"{value['type'][1]}: {value['message']}"
    reason: str = value["reason"]
    return f"cancelled: {reason}" if reason else "cancelled"


# --- questions to a person


@dataclass(frozen=True, kw_only=True)
class _PendingQuestion:
    """A question to a person; its run waits for the answer, or is resumed later."""

    run_id: str
    number: int
    """The number of its row, which identifies it in its run."""
    tool: str
    arguments: Mapping[str, Any]
    path: str
    """The path of the node that asks."""
    agent: str | None
    """The agent that makes the call, or None."""
    session_id: int | str | None
    asked: datetime
    """The time of the question, in UTC."""
    _file: JournalFile = field(repr=False)
    _ident: bytes = field(repr=False)

    async def _answer(self, answer: dict[str, Any]) -> None:
        """Send the answer, which counts when this returns. Raises `NotPending` if it cannot."""
        name, value = self._ident.hex(), json.dumps(answer).encode()
        try:
            if (run := await self._file.run(self.run_id)).state in ENDED_STATES:
                raise NotPending(self.run_id, self.number, f"the run is over ({run.state})")
            if self._ident not in await _open(self._file, self.run_id):
                raise NotPending(self.run_id, self.number, "it was answered or withdrawn")
            number = await self._file.post(self.run_id, "answer", name, value)
        except RunNotFound:
            raise NotPending(self.run_id, self.number, "the run was purged") from None
        with suppress(RunNotFound):  # the run was purged after the answer
            letters = await self._file.letters(self.run_id)
            first = next(each for each in letters if (each.kind, each.name) == ("answer", name))
            if first.id != number:
                raise NotPending(self.run_id, self.number, "another answer came first")


@dataclass(frozen=True, kw_only=True)
class PendingApproval(_PendingQuestion):
    """A call that waits for the approval of a person."""

    async def approve(self, arguments: Mapping[str, Any] | None = None) -> None:
        """Let the call run, with other arguments if given; durable when this returns.

        The arguments are validated where the call runs: for invalid ones a model gets an error, and
        a call by code fails. Raises `NotPending` if it was answered, or the run is over.
        """
        changed = None if arguments is None else dict(arguments)
        await self._answer({"approved": True, "arguments": changed, "reason": ""})

    async def deny(self, reason: str = "") -> None:
        """Refuse the call and tell the model why; otherwise as `approve`."""
        await self._answer({"approved": False, "arguments": None, "reason": reason})


@dataclass(frozen=True, kw_only=True)
class PendingDoubt(_PendingQuestion):
    """A call in doubt: its outcome is unknown, so a person decides."""

    note: str
    """Why a person is asked."""

    async def done(self, value: object) -> None:
        """Answer that it was done, with the result that the tool would have returned.

        The answer is on disk when this returns. Raises `NotPending` if it was answered, or the run
        is over.
        """
        plain = to_jsonable_python(value, fallback=str)
        await self._answer({"done": write_text(value), "value": plain})

    async def not_done(self) -> None:
        """Answer that it was not done, so that it is done now; otherwise as `done`."""
        await self._answer({"not_done": True})


async def pending(file: JournalFile, cls: type[Q], run_id: str | None = None) -> list[Q]:
    """Return the questions of all runs that are not over, or of one, oldest first."""
    kind = APPROVAL if cls is PendingApproval else DOUBT
    found: list[Q] = []
    for run in await file.runs() if run_id is None else [await file.run(run_id)]:
        if run.state in ENDED_STATES:
            continue
        try:
            waiting = await _open(file, run.run_id)
        except RunNotFound:
            if run_id is not None:
                raise
            continue  # it was purged after it was listed
        for ident, row in waiting.items():
            question = json.loads(row.value)
            if question.pop("kind") == kind:
                when = datetime.fromtimestamp(row.time, UTC)
                more = {"run_id": run.run_id, "number": row.seq, "asked": when}
                found.append(cls(**more, **question, _file=file, _ident=ident))
    return sorted(found, key=lambda each: each.asked)


async def _open(file: JournalFile, run_id: str) -> dict[bytes, Row]:
    """Return the rows of a run's questions that wait for an answer."""
    run, rows, letters = await file.look(run_id)
    waiting = _waiting(run, rows, letters)
    return {ident: row for ident, row in waiting.items() if row.kind == "question"}
