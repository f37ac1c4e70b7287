"""What can go wrong with a journal and its runs, beside the errors of the commander.

AnabranchError
├── JournalError        the journal cannot be opened, read or written
├── LeaseLost           another owner has the run now: nothing more of this one is written
├── RunExists           the name belongs to a run of another class or with other inputs
├── RunNotFound         the journal has no run of this name (also a LookupError)
├── RunBusy             another process, or another journal of this one, has the run
├── NotPending          a question that is answered already, or whose run is over
├── RunParked           the run is not taken up by itself any more
├── JournalMismatch     code or inputs changed under the run
├── NotDurable          the commander's: something durable outside a durable run
└── NotStorable         a value or a field that a journal cannot keep (also a TypeError)
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

    What was on disk before stays there, and its runs can be taken up by a journal opened anew.
    Attributes: `journal`, its name; `why`, what happened; `remedy`, what to do.
    """

    def __init__(self, journal: str, why: str, remedy: str) -> None:
        super().__init__(f"the journal {journal!r} {why}: {remedy}")
        self.journal = journal
        self.why = why
        self.remedy = remedy


class LeaseLost(AnabranchError):
    """The run belongs to another owner, or was given back. Attribute: `run_id`."""

    def __init__(self, run_id: str) -> None:
        super().__init__(
            f"the run {run_id!r} is no longer owned here: it was given back, or another owner took "
            "it; nothing more is written to it"
        )
        self.run_id = run_id


class RunExists(AnabranchError):
    """A run of this name is another one. Attributes: `run_id`; `why`, wherein it differs."""

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
    """Somebody works on the run now.

    Attributes: `run_id`; `pid`, the process that has it, and `since`, in seconds since the epoch,
    both None if they could not be learnt.
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
    """A run that is not taken up by itself any more. Attribute: `run_id`."""

    def __init__(self, run_id: str, why: str) -> None:
        name = quote(run_id)
        super().__init__(
            f"the run {run_id!r} {why}: see what it does (anabranch runs show {name}), then"
            f" resume it (anabranch runs resume {name}) or cancel it"
        )
        self.run_id = run_id


class JournalMismatch(AnabranchError):
    """Code or inputs changed under the run; the message says where, and what to do."""


class NotPending(AnabranchError):
    """A question of a run that waits for no answer. Attributes: `run_id`, `number`."""

    def __init__(self, run_id: str, number: int, why: str) -> None:
        super().__init__(f"question {number} of the run {run_id!r} waits for no answer: {why}")
        self.run_id = run_id
        self.number = number


class NotStorable(AnabranchError, TypeError):
    """A value or a field that a journal cannot keep; the message says which and why."""
