"""What the nodes of a tree wait for, told now and then to those who listen for it.

To tell it at every wait would cost every node; so it is looked at from time to time, as `explain`
does, for a bounded part of the loop's time.
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

# Seconds between two looks; a node that has come into its state later than that is passed over.
PERIOD = 0.25
# Seconds after which a look ends; the next one goes on from there.
LONGEST = 0.004
# The part of the loop's time that looks take: after one node that took long, the next look waits.
SHARE = LONGEST / PERIOD


class WaitPublisher:
    """Looks at the nodes of `tree` in turn, until it is closed or nobody asks any more."""

    # Its timer brings the tree nothing to do: a loop for tests takes it for none.
    only_looks = True

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        # What was told of each node last, and what is found in this round of all nodes.
        self._told: dict[int, tuple[object, ...]] = {}
        self._found: dict[int, tuple[object, ...]] = {}
        self._round: Iterator[Record] = _all_below(tree.root)
        self._timer = tree.loop.call_later(PERIOD, self._look)

    def close(self) -> None:
        """Look no more."""
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
            if perf_counter() - begun > LONGEST:
                break
        else:
            self._told, self._found = self._found, {}
            self._round = _all_below(tree.root)
        pause = max(PERIOD, (perf_counter() - begun) / SHARE)
        self._timer = tree.loop.call_later(pause, self._look)

    def _look_at(self, record: Record) -> None:
        since = record.state_since
        if record.state in DONE or since is None or record.tree.clock() - since < PERIOD:
            return
        explanation, _ = explain_one(record)
        found = _essence(explanation)
        self._found[record.id] = found
        if self._told.get(record.id) != found:
            publish_asked(record, "waiting", explanation)


def _essence(explanation: Explanation) -> tuple[object, ...]:
    """Return what is news if it has changed; for how long it has been so is none."""
    return (explanation.state, explanation.waits_for, explanation.at, explanation.branches)


def _all_below(root: Record) -> Iterator[Record]:
    """Yield the unfinished nodes; those that end meanwhile may come, those that begin may not."""
    waiting = deque(root.unfinished_children)
    while waiting:
        record = waiting.popleft()
        yield record
        waiting.extend(record.unfinished_children)
