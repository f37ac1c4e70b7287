"""Where a failure goes: to its awaiters, to the parent's policy, or to the log (contract T4)."""

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

PATH_NOTE = "anabranch: failed in "
UNAWAITED = "%s failed, and its failure was not awaited"


def blame(record: Record, error: BaseException) -> None:
    """Add a note with the node's path, unless a node below has added one."""
    if not any(each.startswith(PATH_NOTE) for each in notes_of(error)):
        note(error, PATH_NOTE + record.path)


def log_lost(record: Record, error: BaseException, what: str) -> None:
    """Log a failure that reaches no code, with the node's path and the traceback."""
    if is_a(error, AnabranchError) and getattr(error, "reported", False):
        return
    log(logging.ERROR, what, record.path, error=error)


def interrupt(record: Record, error: BaseException) -> None:
    """If a node raised an interrupt, let it stop the loop, as asyncio does for any task."""
    if not is_a(error, KeyboardInterrupt, SystemExit):
        return
    if record.scope is not None:
        record.scope.record_abort(error)
    if record.tree.stops_loop:
        record.tree.interrupts.append(error)
        raise_soon(error)


def body_failed(record: Record, error: BaseException) -> None:
    """Handle the exception that left a node's body."""
    if record.state == "pending" and record.attempts is not None:
        # The task ended before the body began, as by a task factory. This counts as an attempt.
        record.attempts.starts.append(record.tree.loop.time())
    blame(record, error)
    if record.is_ending:
        if record.scope is not None:
            record.scope.record_lost_failure(error)
        # An interrupt is not lost: `interrupt` has raised it from the loop.
        if error is not record.abort_error and not is_a(
            error, NodeCancelled, KeyboardInterrupt, SystemExit
        ):
            log_lost(record, error, "%s raised while it was being cancelled")
        return
    record.failure = error
    if record.policy == "fail_fast" or isinstance(record.policy, Quorum):
        record.abort_error = error  # so children that are put from now on do not run either
        cancel_subtrees(record.unfinished_children, f"failure: {describe(error)}", failed=True)


def child_failed(parent: Record, child: Record) -> None:
    """Handle a child's failure that no code awaits when the child ends.

    It aborts the parent, waits for the join (claimed, or the policy decides there), or is logged.
    """
    error = child.failure
    assert error is not None
    if parent.is_closing or parent.state in DONE or parent.policy == "isolate":
        waits_for_join = child.is_claimed and parent.state not in DONE
    else:
        waits_for_join = child.is_claimed or parent.policy != "fail_fast"
        if not waits_for_join and (abort(parent, error) or error is parent.abort_error):
            return
        if not waits_for_join and parent.scope is not None:
            parent.scope.record_lost_failure(error)  # the parent is failing for another cause
    if waits_for_join:
        if parent.failures is None:
            parent.failures = {}
        parent.failures[child.id] = child
    else:
        log_lost(child, error, UNAWAITED)


def take_failure(record: Record) -> None:
    """Count an awaiter that received the failure of a node that is done."""
    record.failure_receivers += 1
    parent = record.parent
    # The policy has had the failure of any other child since its end: a late await changes nothing.
    if record.is_claimed and parent is not None and parent.failures is not None:
        parent.failures.pop(record.id, None)


def untake_failure(record: Record) -> None:
    """Uncount an awaiter that lost the failure, because it was cancelled in the same turn.

    Without a receiver, the failure goes to the parent's policy.
    """
    record.failure_receivers -= 1
    if record.state == "failed" and not record.failure_receivers and record.parent is not None:
        child_failed(record.parent, record)


def child_completed(parent: Record, policy: Quorum) -> None:
    """Count a completed child under a quorum; cancel the others when it is reached."""
    parent.completed += 1
    if parent.completed == policy.n:
        cancel_subtrees(parent.unfinished_children, f"quorum of {policy.n} reached")


def weigh(record: Record) -> None:
    """Apply the node's policy to the failures of its children that waited for the join."""
    failed, record.failures = record.failures or {}, None
    left = [(child, error) for child in failed.values() if (error := child.failure) is not None]
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
