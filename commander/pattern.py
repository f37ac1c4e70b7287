"""Start a node more than once, as copies with the same inputs, callbacks and options.

For edges: the target of an edge in a cycle runs more than once.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

from ._entry import enter
from ._node import add_callback
from ._record import Callback, Record, record_of

if TYPE_CHECKING:
    from ._node import Node

__all__ = ["keep_template", "start"]


class Pattern:
    """The template for copies of a node: its inputs, and the callbacks from before its start."""

    def __init__(self, node: Node[Any]) -> None:
        self._original = copy(node)
        # An edge from another node starts it, so awaiting it does not.
        self.awaits_edge = False
        # The callbacks at the start of the first run. Those that the run itself adds are only its
        # own.
        self._callbacks: _Callbacks | None = None

        def begin(node: Node[Any]) -> None:
            if self._callbacks is None:
                self._callbacks = _Callbacks(record_of(node))

        node.at_start(begin)
        starts = record_of(node).at_start
        assert starts is not None
        starts.insert(0, starts.pop())  # first, before any that adds callbacks

    def copy(self, record: Record) -> Node[Any]:
        """Return a copy of the node of `record`, which has not started."""
        twin = copy(self._original)
        callbacks = self._callbacks or _Callbacks(record)
        for callback in callbacks.at_start:
            twin.at_start(callback)
        for callback in callbacks.at_retry:
            twin.at_retry(callback)
        for callback in callbacks.at_commander_end:
            twin.at_commander_end(callback)
        record_of(twin).pattern = self
        for moment, callback in callbacks.final:
            add_callback(twin, moment, callback)
        return twin


class _Callbacks:
    def __init__(self, record: Record) -> None:
        self.at_start: list[Callback] = [*(record.at_start or ())]
        self.at_retry: list[Callback] = [*(record.at_retry or ())]
        self.final = [*record.later_callbacks(0)]
        if record.callback is not None:
            self.final.insert(0, (record.callback_moment, record.callback))
        self.at_commander_end: list[Callback] = [*(record.at_commander_end or ())]


def keep_template(node: Node[Any], *, awaits_edge: bool = False) -> None:
    """Store a template of `node`, so that `start` can start copies of it.

    With the inputs of now, and the callbacks at its start. Raises `RuntimeError` if the node has
    started. With `awaits_edge`, awaiting the node does not start it from now on.
    """
    record = record_of(node)
    if record.parent is not None:
        raise RuntimeError(f"{node!r} has started: add its edges before that")
    if record.pattern is None:
        record.pattern = Pattern(node)
    record.pattern.awaits_edge |= awaits_edge


def start(node: Node[Any], parent: Node[Any]) -> Node[Any]:
    """Start `node` as a child of `parent`, or a copy if it has started. Return the started node.

    A copy has the options of the node's put. Raises `RuntimeError` if it needs a template and has
    none.
    """
    record = record_of(node)
    attempts = record.attempts
    if record.parent is not None:
        if record.pattern is None:
            raise RuntimeError(f"an edge's function returned {node!r}, which has started before")
        node = record.pattern.copy(record)
    enter(
        parent,
        node,
        timeout=None if attempts is None else attempts.timeout,
        retry=None if attempts is None else attempts.retry,
        policy=record.policy if record.tree else None,
        priority=record.priority,
        on=None if record.remote is None else record.remote.place,
        limits=record.limits,
    )
    return node
