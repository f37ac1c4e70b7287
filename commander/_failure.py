"""Where a failure goes: to those who await it, to the parent's policy, or to the log (T4)."""

from __future__ import annotations

import logging

from ._cancel import abort, cancel_subtrees
from ._policy import Quorum
from ._record import DONE, Record
from ._report import describe, group, is_a, log, note, notes_of, raise_soon
from .errors import AnabranchError, NodeCancelled, QuorumNotMet

__all__ = [
    "blame",
    "body_failed",
    "child_completed",
    "child_failed",
    "interrupt",
    "log_lost",
    "take_failure",
    "untake_failure",
    "weigh",
]

NOTE = "anabranch: failed in "
UNAWAITED = "%s failed and nobody awaited it"


def blame(record: Record, error: BaseException) -> None:
    """Note the path of the node that failed first on the exception; later nodes add nothing."""
    if not any(each.startswith(NOTE) for each in notes_of(error)):
        note(error, NOTE + record.path)


def log_lost(record: Record, error: BaseException, what: str) -> None:
    """Log a failure that reaches nobody, with its path and traceback."""
    if is_a(error, AnabranchError) and getattr(error, "reported", False):
        return
    log(logging.ERROR, what, record.path, error=error)


def interrupt(record: Record, error: BaseException) -> None:
    """Let an interrupt that a user's code has raised in a node stop the loop, as in any task."""
    if not is_a(error, KeyboardInterrupt, SystemExit):
        return
    if record.scope is not None:
        record.scope.record_abort(error)
    if record.tree.stops_loop:
        record.tree.interrupts.append(error)
        raise_soon(error)


def body_failed(record: Record, error: BaseException) -> None:
    """Take the exception that left a node's body."""
    if record.state == "pending" and record.attempts is not None:
        # Whoever made the task has raised it before the body began: that is an attempt too.
        record.attempts.starts.append(record.tree.loop.time())
    blame(record, error)
    if record.is_ending:
        if record.scope is not None:
            record.scope.record_lost_failure(error)
        # An interrupt is not lost: it leaves the loop.
        if error is not record.abort_error and not is_a(
            error, NodeCancelled, KeyboardInterrupt, SystemExit
        ):
            log_lost(record, error, "%s raised while it was being cancelled")
        return
    record.failure = error
    if record.policy == "fail_fast" or isinstance(record.policy, Quorum):
        record.abort_error = error  # children that are put from now on do not run either
        cancel_subtrees(record.unfinished_children, f"failure: {describe(error)}", failed=True)


def child_failed(parent: Record, child: Record) -> None:
    """Deal with a child's failure that nobody has awaited by the time the child ends."""
    error = child.failure
    assert error is not None
    if parent.is_closing or parent.state in DONE or parent.policy == "isolate":
        kept = child.is_claimed and parent.state not in DONE
    else:
        kept = child.is_claimed or parent.policy != "fail_fast"
        if not kept and (abort(parent, error) or error is parent.abort_error):
            return
        if not kept and parent.scope is not None:
            parent.scope.record_lost_failure(error)  # another one has made it fail
    if kept:
        if parent.failures is None:
            parent.failures = {}
        parent.failures[child.id] = child
    else:
        log_lost(child, error, UNAWAITED)


def take_failure(record: Record) -> None:
    """Note that somebody awaits the failure of a node that is done: it is theirs."""
    record.failure_receivers += 1
    parent = record.parent
    if record.is_claimed and parent is not None and parent.failures is not None:
        parent.failures.pop(record.id, None)


def untake_failure(record: Record) -> None:
    """Take back that somebody has had the node's failure; left with nobody, it goes its way."""
    record.failure_receivers -= 1
    if record.state == "failed" and not record.failure_receivers and record.parent is not None:
        child_failed(record.parent, record)


def child_completed(parent: Record, policy: Quorum) -> None:
    """Count a completed child; once there are enough, cancel the others."""
    parent.completed += 1
    if parent.completed == policy.n:
        cancel_subtrees(parent.unfinished_children, f"quorum of {policy.n} reached")


def weigh(record: Record) -> None:
    """At the join, let the node's policy judge the failures that were kept for it."""
    kept, record.failures = record.failures or {}, None
    left = [(child, error) for child in kept.values() if (error := child.failure) is not None]
    policy = record.policy
    if record.is_ending or policy == "isolate":
        for child, error in left:
            if error is not record.abort_error:
                log_lost(child, error, UNAWAITED)
    elif isinstance(policy, Quorum):
        if record.failure is None and record.completed < policy.n:
            failures = [error for _, error in left]
            record.failure = QuorumNotMet(policy.n, record.completed, failures)
            blame(record, record.failure)
            return
        for child, error in left:
            what = "%s failed; the quorum of %s was met without it"
            log(logging.WARNING, what, child.path, record.path, error=error)
    elif policy == "fail_fast":
        for child, error in left:
            if record.failure is None:
                record.failure = error
            elif error is not record.failure:
                log_lost(child, error, UNAWAITED)
    elif left:
        own = [] if record.failure is None else [record.failure]
        errors = own + [error for _, error in left]
        record.failure = group(f"{len(left)} children failed", errors)
        blame(record, record.failure)
