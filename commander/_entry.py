"""The one gate through which every node enters the tree."""

from __future__ import annotations

from asyncio import _get_running_loop
from typing import TYPE_CHECKING, Any

from ._events import publish
from ._policy import Policy, Quorum, Restart, Retry, check_policy
from ._record import CURRENT, DONE, Attempts, Record, record_of, wrong_loop
from .errors import NodeClosed

if TYPE_CHECKING:
    from ._node import Node

__all__ = ["enter"]


def enter(
    above: Node[Any],
    node: Node[Any],
    timeout: float | None,
    retry: Retry | Restart | None,
    policy: Policy | None,
    claim: bool,
) -> Record:
    """Make `node` a child of `above`; return its record. Or raise and leave both as they were."""
    # One long function: every node comes by.
    if policy is not None:
        check_policy(policy)
    parent = above._node_record or record_of(above)
    record = node._node_record
    if record is None:
        record = Record()
        # Stored although they are the class's defaults, here and below: the hot path reads them
        # from the instance.
        record.special = False
        record.callbacks = None
    elif record.parent is not None or record.tree:
        raise RuntimeError(f"{node!r} was started before: a node runs once, make another")
    tree = parent.tree
    if not parent.open:
        _require_next_round(parent)
    if _get_running_loop() is not tree.loop:  # None where none runs
        call = "put_job" if node._node_queued else "call_handler"
        raise wrong_loop(parent, f"commander.{call}_threadsafe(...)")
    if timeout is not None or retry is not None:
        _require_attempts(timeout, retry)
    doomed = parent.special and _is_ending(parent)
    if doomed:
        # One that was doomed itself puts no other: a round whose at_done puts the next would never
        # end.
        putter = CURRENT.get(None)
        if putter is not None and record_of(putter).doomed:
            raise NodeClosed(parent.path, "is ending")
    record.children = record.waiters = record.context = None
    record.open = True
    record.name = node._node_name
    if node._node_settings is not None:
        record.policy, special = node._node_settings
        record.special = record.special or special
    if policy is not None:
        record.policy = policy
        record.special = record.special or policy.__class__ is Quorum
    if timeout is not None or retry is not None:
        record.attempts = Attempts(timeout, retry)
        record.special = True
    if doomed:
        # It has no task yet: whoever starts it will find the mark and end it without its body.
        record.special = record.doomed = True
        if record.cancelled is None:
            why = tree.ending if parent is tree.root else ""
            record.cancelled = why or "its parent is ending"
    if claim:
        record.claimed = True
    record.node = node
    record.parent_node = above
    record.parent = parent
    record.tree = tree
    node._node_record = record
    tree.count = record.id = number = tree.count + 1
    if parent.children is None:
        parent.children = {number: record}
    else:
        parent.children[number] = record
    if tree.listeners:
        publish(record, "put")
    return record


def _require_next_round(parent: Record) -> None:
    """Refuse a child of a node that takes none, but not the next round in a tree that is left."""
    if not parent.tree:
        raise RuntimeError(f"{parent!r} is not in a tree yet, so it can have no children")
    if parent.state in DONE:
        raise NodeClosed(parent.path, "is done")
    putter = CURRENT.get(None)
    by = None if putter is None else record_of(putter)
    if (
        by is None
        or by is parent
        or by.state in DONE
        or parent.closing
        or not by.tree
        or by.tree.root is not parent
    ):
        raise NodeClosed(parent.path, "is ending")


def _require_attempts(timeout: object, retry: object) -> None:
    # Here, because what raises later, between two attempts, would have nobody to raise to.
    if timeout is not None and not (isinstance(timeout, (int, float)) and timeout == timeout):
        raise TypeError(f"timeout must be a number of seconds or None, not {timeout!r}")
    if retry is not None and not isinstance(retry, (Retry, Restart)):
        raise TypeError(f"retry must be a Retry, a Restart or None, not {retry!r}")


def _is_ending(parent: Record) -> bool:
    if parent.ending or (parent.parent is None and parent.tree.ending):
        return True
    policy = parent.policy
    return isinstance(policy, Quorum) and parent.completed >= policy.n
