"""Publishes events of kind `waiting`, with an explanation of each node's wait.

An event at the start of each wait would slow down every node. Instead, a timer explains the nodes
periodically, in a bounded share of the loop's time.
"""

from __future__ import annotations

from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING

from ._events import publish_asked
from ._explain import Explanation, explain_one
from ._record import DONE, Record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ._commander import Tree

__all__ = ["WaitPublisher"]

# The pause between two looks. A look skips nodes that are in their state for less than this.
PERIOD_SECONDS = 0.25
# A look ends after this time. The next look continues with the next node.
MAX_LOOK_SECONDS = 0.004
# The share of the loop's time for looks. A node may take longer than that; then the pause grows.
MAX_LOOP_SHARE = MAX_LOOK_SECONDS / PERIOD_SECONDS


class WaitPublisher:
    """A timer that explains the nodes of `tree` in turn, as long as a listener wants it."""

    # The timer does no work of the tree, so the test loop ignores it in its deadlock check.
    only_looks = True

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        # The explanations of the previous round and of this one, by node. A single table would keep
        # the nodes that have ended.
        self._previous: dict[int, tuple[object, ...]] = {}
        self._found: dict[int, tuple[object, ...]] = {}
        self._round: Iterator[Record] = _all_below(tree.root)
        self._timer = tree.loop.call_later(PERIOD_SECONDS, self._look)

    def close(self) -> None:
        """Stop the timer."""
        self._timer.cancel()
        self._tree.wait_publisher = None

    def _look(self) -> None:
        tree = self._tree
        if not any(listener.wants_waits for listener in tree.listeners):
            self.close()
            return
        begun = perf_counter()
        for record in self._round:
            self._look_at(record)
            if perf_counter() - begun > MAX_LOOK_SECONDS:
                break
        else:
            self._previous, self._found = self._found, {}
            self._round = _all_below(tree.root)
        pause = max(PERIOD_SECONDS, (perf_counter() - begun) / MAX_LOOP_SHARE)
        self._timer = tree.loop.call_later(pause, self._look)

    def _look_at(self, record: Record) -> None:
        since = record.state_since
        if record.state in DONE or since is None or record.tree.clock() - since < PERIOD_SECONDS:
            return
        explanation, _ = explain_one(record)
        found = _without_times(explanation)
        self._found[record.id] = found
        if self._previous.get(record.id) != found:
            publish_asked(record, "waiting", explanation)


def _without_times(explanation: Explanation) -> tuple[object, ...]:
    """Return the parts of an explanation whose change is published."""
    return (explanation.state, explanation.waits_for, explanation.at, explanation.branches)


def _all_below(root: Record) -> Iterator[Record]:
    """Yield the unfinished nodes. The tree may change between two of them."""
    waiting = deque(root.unfinished_children)
    while waiting:
        record = waiting.popleft()
        yield record
        waiting.extend(record.unfinished_children)
