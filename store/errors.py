"""The errors of a journal and its runs; those of the engine are in the commander.

AnabranchError
├── JournalError        the journal cannot be opened, read or written
├── LeaseLost           another owner has the run now: this one can write nothing more
├── RunExists           the name belongs to a run of another class or with other inputs
├── RunNotFound         the journal has no run of this name (also a LookupError)
├── RunBusy             another process, or another journal of this one, owns the run
├── NotPending          a question that was answered, or whose run is over
├── RunParked           the run is not resumed automatically any more
├── JournalMismatch     code or inputs have changed since the run began
├── NotDurable          the commander's: something durable outside a durable run
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

    What is on disk stays there, and a journal that is opened again can resume its runs. Attributes:
    `journal`, its name; `why`, what happened; `remedy`, what to do.
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
            f"the run {run_id!r} is no longer owned here: it was given back, or another owner took "
            "it; nothing more is written to it"
        )
        self.run_id = run_id


class RunExists(AnabranchError):
    """The run of this name differs. Attributes: `run_id`; `why`, the difference."""

    def __init__(self, run_id: str, why: str) -> None:
        super().__init__(f"there is another run {run_id!r}: {why}; give this one another run_id")
        self.run_id = run_id
        self.why = why


class RunNotFound(AnabranchError, LookupError):
    """The journal has no run of this name. Attributes: `run_id`, `journal`."""

    def __init__(self, run_id: str, journal: str) -> None:
        super().__init__(f"the journal {journal!r} has no run {run_id!r}")
        self.run_id = run_id
        self.journal = journal


class RunBusy(AnabranchError):
    """The run has an owner now.

    Attributes: `run_id`; `pid`, the process that owns it, and `since`, in seconds since the epoch,
    both None if they are unknown.
    """

    def __init__(self, run_id: str, pid: int | None = None, since: float | None = None) -> None:
        who = "another process" if pid is None else f"process {pid}"
        if pid == os.getpid():
            who = f"a journal of this process ({pid})"
        when = "" if since is None else f" since {datetime.fromtimestamp(since):%Y-%m-%d %H:%M:%S}"
        super().__init__(
            f"the run {run_id!r} has been taken by {who}{when}: it can be taken up when that one "
            "has given it back or has ended"
        )
        self.run_id = run_id
        self.pid = pid
        self.since = since


class RunParked(AnabranchError):
    """A run that is not resumed automatically any more. Attribute: `run_id`."""

    def __init__(self, run_id: str, why: str) -> None:
        name = quote(run_id)
        super().__init__(
            f"the run {run_id!r} {why}: see what it does (anabranch runs show {name}), then"
            f" resume it (anabranch runs resume {name}) or cancel it"
        )
        self.run_id = run_id


class JournalMismatch(AnabranchError):
    """Code or inputs have changed since the run began; the message says where and what to do."""


class NotPending(AnabranchError):
    """A question of a run that does not wait for an answer. Attributes: `run_id`, `number`."""

    def __init__(self, run_id: str, number: int, why: str) -> None:
        super().__init__(f"question {number} of the run {run_id!r} waits for no answer: {why}")
        self.run_id = run_id
        self.number = number


class NotStorable(AnabranchError, TypeError):
    """A value or a field that a journal cannot store; the message says which and why."""
