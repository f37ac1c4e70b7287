"""Starting a node again: a copy with the same inputs, callbacks and options, for whoever repeats.

It is what edges are made of: a node that is the target of a cycle runs more than once.
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
    """What the copies of a node are made of: its inputs, and the callbacks that its maker added."""

    def __init__(self, node: Node[Any]) -> None:
        self._made = copy(node)
        # Whether an edge from another node leads here: awaiting the node then does not start it.
        self.awaits_edge = False
        # As they were when the first run began: what it adds itself is not for the others.
        self._callbacks: _Callbacks | None = None

        def begin(node: Node[Any]) -> None:
            if self._callbacks is None:
                self._callbacks = _Callbacks(record_of(node))

        node.at_start(begin)
        starts = record_of(node).at_start
        assert starts is not None
        starts.insert(0, starts.pop())  # before one that adds callbacks

    def copy(self, record: Record) -> Node[Any]:
        """Return a copy of the node of `record`, which has not started."""
        twin = copy(self._made)
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
    """Keep what `node` is made of, so that `start` can make copies of it.

    Inputs are those of now, callbacks those from before its first run. A node that has started is
    a `RuntimeError`. With `awaits_edge` it is not started by being awaited, from now on.
    """
    record = record_of(node)
    if record.parent is not None:
        raise RuntimeError(f"{node!r} has started: give it its edges before")
    if record.pattern is None:
        record.pattern = Pattern(node)
    record.pattern.awaits_edge |= awaits_edge


def start(node: Node[Any], parent: Node[Any]) -> Node[Any]:
    """Start `node` as a child of `parent`, or a copy if it has started before; return which.

    The options of its put go with the copy. Without a pattern there is no copy: a `RuntimeError`.
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
