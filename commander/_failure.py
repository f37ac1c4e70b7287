"""Where a failure goes: to those who await it, to the parent's policy, or to the log (T4)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ._cancel import abort, cancel_subtrees
from ._policy import Quorum
from ._record import DONE
from ._report import describe, group, is_a, log, note, notes_of
from .errors import NodeCancelled, QuorumNotMet

if TYPE_CHECKING:
    from ._node import Node

__all__ = [
    "blame",
    "body_failed",
    "child_completed",
    "child_failed",
    "log_lost",
    "take_claimed",
    "weigh",
]

NOTE = "anabranch: failed in "


def blame(node: Node[Any], error: BaseException) -> None:
    """Note the path of the node that failed first on the exception; later nodes add nothing."""
    if not any(each.startswith(NOTE) for each in notes_of(error)):
        note(error, NOTE + node.path)


def log_lost(node: Node[Any], error: BaseException, what: str) -> None:
    """Log a failure that reaches nobody, with its path and traceback."""
    log(logging.ERROR, what, node.path, error=error)


def body_failed(node: Node[Any], error: BaseException) -> None:
    """Take the exception that left a node's body."""
    blame(node, error)
    if node._n_cancel is not None or node._n_abort is not None:
        if error is not node._n_abort and not is_a(error, NodeCancelled):
            log_lost(node, error, "%s raised while it was being cancelled")
        return
    node._n_error = error
    node._n_special = True
    if node._n_policy == "fail_fast" or isinstance(node._n_policy, Quorum):
        cancel_subtrees(node.children, f"failure: {describe(error)}")


def child_failed(parent: Node[Any], child: Node[Any]) -> None:
    """Deal with a child's failure that nobody has awaited by the time the child ends."""
    error = child._n_error
    assert error is not None
    if parent._n_closing or parent._n_state in DONE or parent._n_policy == "isolate":
        if child._n_claimed and parent._n_state not in DONE:
            _keep(parent, child)
        else:
            log_lost(child, error, "%s failed and nobody awaited it")
    elif child._n_claimed or parent._n_policy != "fail_fast":
        _keep(parent, child)
    elif not abort(parent, error) and error is not parent._n_abort:
        log_lost(child, error, "%s failed and nobody awaited it")


def _keep(parent: Node[Any], child: Node[Any]) -> None:
    parent._n_special = True
    if parent._n_failures is None:
        parent._n_failures = {}
    parent._n_failures[child._n_id] = child


def take_claimed(node: Node[Any]) -> None:
    """Note that somebody awaits the claimed failure of a node that is done: it is theirs."""
    parent = node._n_parent
    if node._n_claimed and parent is not None and parent._n_failures is not None:
        parent._n_failures.pop(node._n_id, None)


def child_completed(parent: Node[Any], policy: Quorum) -> None:
    """Count a completed child; once there are enough, cancel the others."""
    parent._n_completed += 1
    if parent._n_completed == policy.n:
        cancel_subtrees(parent.children, f"quorum of {policy.n} reached")


def weigh(node: Node[Any]) -> None:
    """At the join, let the node's policy judge the failures that were kept for it."""
    kept, node._n_failures = node._n_failures or {}, None
    left = [(child, error) for child in kept.values() if (error := child._n_error) is not None]
    policy = node._n_policy
    if node._n_cancel is not None or node._n_abort is not None or policy == "isolate":
        for child, error in left:
            if error is not node._n_abort:
                log_lost(child, error, "%s failed and nobody awaited it")
    elif isinstance(policy, Quorum):
        _weigh_quorum(node, policy, left)
    elif policy == "fail_fast":
        _weigh_fail_fast(node, left)
    elif left:
        own = [] if node._n_error is None else [node._n_error]
        errors = own + [error for _, error in left]
        node._n_error = group(f"{len(left)} children failed", errors)
        blame(node, node._n_error)


def _weigh_fail_fast(node: Node[Any], left: list[tuple[Node[Any], BaseException]]) -> None:
    for child, error in left:
        if node._n_error is None:
            node._n_error = error
        elif error is not node._n_error:
            log_lost(child, error, "%s failed and nobody awaited it")


def _weigh_quorum(
    node: Node[Any], policy: Quorum, left: list[tuple[Node[Any], BaseException]]
) -> None:
    if node._n_error is None and node._n_completed < policy.n:
        node._n_error = QuorumNotMet(policy.n, node._n_completed, [error for _, error in left])
        blame(node, node._n_error)
        return
    for child, error in left:
        what = "%s failed; the quorum of %s was met without it"
        log(logging.WARNING, what, child.path, node.path, error=error)
