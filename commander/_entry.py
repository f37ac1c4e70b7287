"""`enter`, the function that adds every node to the tree and starts it."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import copy_context
from operator import index
from typing import TYPE_CHECKING, Any

from ._body import replay
from ._event import KeyedName
from ._events import publish
from ._options import NodeLimits, check_limits
from ._place import On, find_place
from ._policy import (
    Policy,
    Quorum,
    Restart,
    Retry,
    check_policy,
    check_retry,
    check_timeout,
)
from ._record import (
    DONE,
    RARE_DEFAULTS,
    Attempts,
    RareValues,
    Record,
    enclosing,
    node_in,
    record_of,
    wrong_loop,
)
from .context import INHERITED, context_set
from .durable import DurableScope, find_scope
from .errors import NodeClosed, NotDurable
from .private import running_loop

if TYPE_CHECKING:
    from ._node import Node

__all__ = ["enter", "enter_with"]


def enter(
    above: Node[Any],
    node: Node[Any],
    timeout: float | None = None,
    retry: Retry | Restart | None = None,
    policy: Policy | None = None,
    claim: bool = False,
    priority: int = 0,
    on: On | None = None,
    limits: NodeLimits | None = None,
    key: str | None = None,
) -> Record:
    """Make `node` a child of `above` and start it. Return its record.

    If this raises, the node and its parent are unchanged.
    """
    # One long function with few calls, because every node passes here: five calls less for each
    # node reduced the time of the benchmarks fan and tree by 0.03 of a raw `TaskGroup`'s
    # (benchmarks/NOTES.md). For the same reason `record_of` is inlined: see there.
    if priority != 0:
        priority = index(priority)
    parent = above._node_record or record_of(above)
    record = node._node_record
    if record is None:
        record = Record()
        record.state = "pending"
        record.policy = "fail_fast"
        record.is_closing = False
        record.is_special = False
        record.rare = RARE_DEFAULTS
        record.result = record.callback = record.state_since = record.task = None
    elif record.parent_node is not None or record.tree:
        raise RuntimeError(f"{node!r} was started before: a node runs once, create another")
    if not parent.is_open:
        _require_next_round(parent)
    tree = parent.tree
    if running_loop() is not tree.loop:  # None where none runs
        call = "put_job" if node._node_is_queued else "call_handler"
        raise wrong_loop(parent, f"commander.{call}_threadsafe(...)")
    doomed = False
    if parent.is_special:
        rare = parent.rare
        enough = isinstance(parent.policy, Quorum) and rare.completed >= parent.policy.n
        left = bool(tree.closing_reason) and parent is tree.root
        doomed = enough or left or rare.cancel_reason is not None or rare.abort_error is not None
        # A node that never runs must not put another: a loop whose rounds put the next one in
        # at_done would continue for ever.
        if doomed and any(record_of(putter).never_runs for putter in enclosing()):
            raise NodeClosed(parent.path, "is ending")
    plain = node._node_is_plain
    if not (
        (plain or node._node_has_defaults) and policy is timeout is retry is on is limits is None
    ):
        _take_options(record, parent, node, timeout, retry, policy, on, limits)
    scope = find_scope(parent, node, record, key) if tree.has_scopes else None
    if scope is None and not plain and node._node_is_durable:
        raise NotDurable(
            f"{node!r} is durable, and this is no durable run: start it by run(..., journal=...,"
            " run_id=...) or journal.run(...), or put it below a node of such a run"
        )
    if doomed:
        record.never_runs = True
        if record.cancel_reason is None:
            record.cancel_reason = (
                parent is tree.root and tree.closing_reason
            ) or "its parent is ending"
    record.children = record.waiters = record.context = None
    record.is_open = True
    record.is_claimed = claim
    record.name = node._node_name if key is None else KeyedName(node._node_name, key)
    record.node = node
    record.parent_node = above
    record.tree = tree
    node._node_record = record
    tree.last_id = record.id = number = tree.last_id + 1
    if parent.children is None:
        parent.children = {number: record}
    else:
        parent.children[number] = record
    if tree.listeners:
        if scope is not None:
            # Before the event: a full tap hands it to a thread at once, which reads the scope.
            record.scope = scope
        publish(record, "put")
    if scope is not None and _take_up(record, scope):
        return record
    if not node._node_is_queued or (record.is_special and record.cancel_reason is not None):
        tree.spawn(record, None)  # a job that ends without its body needs no slot
    else:
        tree.queue.put(record, priority)
    return record


def enter_with(above: Node[Any], node: Node[Any], options: Mapping[str, Any]) -> Record:
    """Call `enter` with the options of a put. A `context` is for the node and all below it."""
    if "context" not in options:
        return enter(above, node, **options)
    others = {**options}
    value = others.pop("context")
    # The node starts in a copy of this code's context, also when it is queued or retried.
    with context_set(value):
        record = enter(above, node, **others)
    if value is INHERITED:
        return record
    record.own_context = (value,)
    return record


def _take_up(record: Record, scope: DurableScope) -> bool:
    """Attach the scope of a durable run; return whether this has started the node, or will."""
    # `RareField`, inlined to save a call for each node of a durable run.
    if record.rare is RARE_DEFAULTS:
        record.rare = RareValues()
    record.is_special, rare = True, record.rare
    rare.scope = scope
    if scope.is_recorded and rare.cancel_reason is None:
        record.context = copy_context()
        scope.schedule_replay(record.node, replay)
        return True  # a recorded node needs no slot
    starts, pause = scope.recorded_attempts(record.node, record.tree.loop.time())
    if scope.cancel_reason is not None or record.cancel_reason is not None:
        record.tree.spawn(record, None)  # nor does one that ends without its body
        return True
    if record.attempts is None:
        return False
    record.attempts.starts = starts
    if pause > 0:
        record.attempts.start_after(record, pause)
    return pause > 0


def _require_next_round(parent: Record) -> None:
    """Raise if a closed parent may not take the child.

    A commander that is ending takes the next round of an unfinished node: it is cancelled before it
    runs, so that the node that puts it does not fail.
    """
    if not parent.tree:
        raise RuntimeError(f"{parent!r} is not in a tree yet, so it can have no children")
    if parent.state in DONE:
        raise NodeClosed(parent.path, "is done")
    by = node_in(parent.tree)
    if (
        by is None
        or by is parent
        or by.state in DONE
        or parent.is_closing
        or parent.parent_node is not None
    ):
        raise NodeClosed(parent.path, "is ending")


def _take_options(
    record: Record,
    parent: Record,
    node: Node[Any],
    timeout: float | None,
    retry: Retry | Restart | None,
    policy: Policy | None,
    on: On | None,
    limits: NodeLimits | None,
) -> None:
    """Check and store the options of the put and of the node's class."""
    if policy is None:
        policy = node.policy
    check_policy(policy)
    # Check now: an error between two attempts would reach no caller.
    check_timeout(timeout)
    check_retry(retry)
    if timeout is None:
        timeout = node._node_timeout
    if retry is None:
        retry = node._node_retry
    check_limits(limits)
    if on is None and node._node_is_queued:
        on = node.on
    if on is not None:
        record.remote = find_place(on).prepare(node)
    record.policy = policy
    if node._node_actor is not None:
        record.own_actor = actor = node._node_actor
        if actor.session_id is None and (outer := parent.actor) is not None:
            # The caller named no session, so the work belongs to the session around it.
            record.own_actor = actor._replace(session_id=outer.session_id)
    if limits is not None:
        record.limits = limits
    if timeout is not None or retry is not None:
        record.attempts = Attempts(timeout, retry)
    if on is not None or record.attempts is not None or isinstance(policy, Quorum):
        record.is_special = True
