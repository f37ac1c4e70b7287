"""The one gate through which every node enters the tree."""

from __future__ import annotations

from asyncio import _get_running_loop
from typing import TYPE_CHECKING, Any

from ._errors import NodeClosed
from ._events import publish
from ._loop import elsewhere
from ._policy import Policy, Quorum, Restart, Retry, check_policy
from ._record import DONE, Attempts

if TYPE_CHECKING:
    from ._node import Node

__all__ = ["enter"]


def enter(
    parent: Node[Any],
    node: Node[Any],
    timeout: float | None,
    retry: Retry | Restart | None,
    policy: Policy | None,
    claim: bool,
) -> None:
    """Make `node` a child of `parent`, or raise and leave both as they were."""
    if policy is not None:
        check_policy(policy)
    commander = parent._n_commander
    if node._n_parent is not None or not parent._n_open:
        _refuse(parent, node)
    if _get_running_loop() is not commander._n_loop:  # None where none runs
        call = "put_job" if node._n_queued else "call_handler"
        raise elsewhere(parent, f"commander.{call}_threadsafe(...)")
    if policy is not None:
        node._n_policy = policy
    if claim:
        node._n_claimed = True
    # Stored although they are the class's defaults: the hot path reads them from the instance.
    node._n_special = node._n_special
    node._n_children = node._n_waiters = node._n_context = None
    if timeout is not None or retry is not None or policy.__class__ is Quorum:
        _make_special(node, timeout, retry)
    node._n_open = True
    node._n_parent = parent
    node._n_commander = commander
    commander._n_count = node._n_id = number = commander._n_count + 1
    if parent._n_children is None:
        parent._n_children = {number: node}
    else:
        parent._n_children[number] = node
    if parent._n_special and _is_ending(parent):
        _mark(node)
    if commander._n_listeners:
        publish(node, "put")


def _make_special(node: Node[Any], timeout: float | None, retry: Retry | Restart | None) -> None:
    node._n_special = True
    if timeout is not None or retry is not None:
        node._n_attempts = Attempts(timeout, retry)


def _mark(node: Node[Any]) -> None:
    # It has no task yet: whoever starts it will find the mark and end it without its body.
    node._n_special = True
    if node._n_cancel is None:
        node._n_cancel = "its parent is ending"


def _refuse(parent: Node[Any], node: Node[Any]) -> None:
    if node._n_parent is not None or node._n_commander is node:
        raise RuntimeError(f"{node!r} was started before: a node runs once, make another")
    if not parent._n_commander:
        raise RuntimeError(f"{parent!r} is not in a tree yet, so it can have no children")
    if parent._n_state in DONE:
        raise NodeClosed(parent.path, "is done")
    raise NodeClosed(parent.path, "is ending")


def _is_ending(parent: Node[Any]) -> bool:
    if parent._n_cancel is not None or parent._n_abort is not None:
        return True
    policy = parent._n_policy
    return isinstance(policy, Quorum) and parent._n_completed >= policy.n
