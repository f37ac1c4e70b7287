"""The one gate through which every node enters the tree."""

from __future__ import annotations

from asyncio import _get_running_loop
from typing import TYPE_CHECKING, Any

from ._events import publish
from ._loop import elsewhere
from ._policy import Policy, Quorum, Restart, Retry, check_policy
from ._record import CURRENT, DONE, Attempts
from .errors import NodeClosed

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
    if timeout is not None or retry is not None or policy.__class__ is Quorum:
        _make_special(node, timeout, retry)
    if parent._n_special and _is_ending(parent):
        _doom(parent, node)
    if policy is not None:
        node._n_policy = policy
    if claim:
        node._n_claimed = True
    # Stored although they are the class's defaults: the hot path reads them from the instance.
    node._n_special = node._n_special
    node._n_children = node._n_waiters = node._n_context = None
    node._n_open = True
    node._n_parent = parent
    node._n_commander = commander
    commander._n_count = node._n_id = number = commander._n_count + 1
    if parent._n_children is None:
        parent._n_children = {number: node}
    else:
        parent._n_children[number] = node
    if commander._n_listeners:
        publish(node, "put")


def _make_special(node: Node[Any], timeout: float | None, retry: Retry | Restart | None) -> None:
    _check_attempts(timeout, retry)
    node._n_special = True
    if timeout is not None or retry is not None:
        node._n_attempts = Attempts(timeout, retry)


def _check_attempts(timeout: object, retry: object) -> None:
    # Here, because what raises later, between two attempts, would have nobody to raise to.
    if timeout is not None and not (isinstance(timeout, (int, float)) and timeout == timeout):
        raise TypeError(f"timeout must be a number of seconds or None, not {timeout!r}")
    if retry is not None and not isinstance(retry, (Retry, Restart)):
        raise TypeError(f"retry must be a Retry, a Restart or None, not {retry!r}")


def _doom(parent: Node[Any], node: Node[Any]) -> None:
    # It has no task yet: whoever starts it will find the mark and end it without its body. One
    # that was doomed itself puts no other: a round whose at_done puts the next would never end.
    putter = CURRENT.get(None)
    if putter is not None and putter._n_doomed:
        raise NodeClosed(parent.path, "is ending")
    node._n_special = node._n_doomed = True
    if node._n_cancel is None:
        top = parent._n_commander
        node._n_cancel = (top._n_ending if parent is top else "") or "its parent is ending"


def _refuse(parent: Node[Any], node: Node[Any]) -> None:
    if node._n_parent is not None or node._n_commander is node:
        raise RuntimeError(f"{node!r} was started before: a node runs once, make another")
    if not parent._n_commander:
        raise RuntimeError(f"{parent!r} is not in a tree yet, so it can have no children")
    if parent._n_state in DONE:
        raise NodeClosed(parent.path, "is done")
    if not _is_next_round(parent):
        raise NodeClosed(parent.path, "is ending")


def _is_next_round(parent: Node[Any]) -> bool:
    """Say whether a live node of a tree that takes no new ones at its top puts one there."""
    putter = CURRENT.get(None)
    if putter is None or putter is parent or putter._n_commander is not parent:
        return False
    return not parent._n_closing and putter._n_state not in DONE


def _is_ending(parent: Node[Any]) -> bool:
    if parent._n_cancel is not None or parent._n_abort is not None:
        return True
    if parent._n_parent is None and parent._n_commander._n_ending:
        return True
    policy = parent._n_policy
    return isinstance(policy, Quorum) and parent._n_completed >= policy.n
