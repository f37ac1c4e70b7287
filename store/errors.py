"""The errors of a journal and its runs; those of the engine are in the commander.

AnabranchError
├── JournalError        the journal cannot be opened, read or written
├── LeaseLost           another owner has the run, so this one cannot write to it any more
├── RunExists           the id belongs to a run of another class or with other inputs
├── RunNotFound         a run that is not in the journal (also a LookupError)
├── RunBusy             another process, or another journal of this one, owns the run
├── NotPending          a question that was answered, or whose run is over
├── RunParked           a run that waits for a person before it is resumed
├── JournalMismatch     code or inputs have changed since the run began
├── NotDurable          a durable call outside a durable run (from `commander.errors`)
└── NotStorable         a value or a field that a journal cannot store (also a TypeError)
"""

from __future__ import annotations

import os
from datetime import datetime
from shlex import quote

from ..commander.errors import AnabranchError, NotDurable

__all__ = [
    "JournalError",
    "JournalMismatch",
    "LeaseLost",
    "NotDurable",
    "NotPending",
    "NotStorable",
    "RunBusy",
    "RunExists",
    "RunNotFound",
    "RunParked",
]


class JournalError(AnabranchError):
    """The journal cannot be opened, read or written.

    Rows on disk stay there, and the runs can be resumed once the journal can be opened again.
    Attributes: `journal`, its name; `why`, what happened; `remedy`, what to do.
    """

    def __init__(self, journal: str, why: str, remedy: str) -> None:
        super().__init__(f"the journal {journal!r} {why}: {remedy}")
        self.journal = journal
        self.why = why
        self.remedy = remedy


class LeaseLost(AnabranchError):
    """The run has another owner or was released. Attribute: `run_id`."""

    def __init__(self, run_id: str) -> None:
        super().__init__(
            f"this process no longer owns the run {run_id!r}, so it cannot write to it: the run was"
            " released, or has another owner"
        )
        self.run_id = run_id


class RunExists(AnabranchError):
    """The id belongs to another run. Attributes: `run_id`; `why`, the difference."""

    def __init__(self, run_id: str, why: str) -> None:
        super().__init__(f"the run {run_id!r} exists already, and {why}: use another run_id")
        self.run_id = run_id
        self.why = why


class RunNotFound(AnabranchError, LookupError):
    """A run that is not in the journal. Attributes: `run_id`, `journal`."""

    def __init__(self, run_id: str, journal: str) -> None:
        super().__init__(f"the journal {journal!r} has no run {run_id!r}")
        self.run_id = run_id
        self.journal = journal


class RunBusy(AnabranchError):
    """The run has an owner.

    Attributes: `run_id`; `pid`, the process that owns it, and `since`, in seconds since the epoch,
    both None if they are unknown.
    """

    def __init__(self, run_id: str, pid: int | None = None, since: float | None = None) -> None:
        owner = "another process" if pid is None else f"process {pid}"
        if pid == os.getpid():
            owner = f"a journal of this process ({pid})"
        when = "" if since is None else f" since {datetime.fromtimestamp(since):%Y-%m-%d %H:%M:%S}"
        super().__init__(
            f"the run {run_id!r} is in use by {owner}{when}: wait until it releases the run or ends"
        )
        self.run_id = run_id
        self.pid = pid
        self.since = since


class RunParked(AnabranchError):
    """A run that waits for a person before it is resumed. Attribute: `run_id`."""

    def __init__(self, run_id: str, why: str) -> None:
        name = quote(run_id)
        super().__init__(
            f"the run {run_id!r} {why}: look at it (anabranch runs show {name}), then resume it"
            f" (anabranch runs resume {name}) or cancel it"
        )
        self.run_id = run_id


class JournalMismatch(AnabranchError):
    """Code or inputs have changed since the run began; the message says where, and what to do."""


class NotPending(AnabranchError):
    """A question that does not wait for an answer. Attributes: `run_id`, `number`."""

    def __init__(self, run_id: str, number: int, why: str) -> None:
        super().__init__(f"cannot answer question {number} of the run {run_id!r}: {why}")
        self.run_id = run_id
        self.number = number


class NotStorable(AnabranchError, TypeError):
    """A value or a field that a journal cannot store; the message says which and why."""
