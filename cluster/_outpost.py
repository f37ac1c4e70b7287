"""The far end of a tree: a commander for what runs here of it, and what home is told of that."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from typing import Any

from ..commander import Node
from ..commander.remote import SubtreeCommander, Tap, cancel_reason
from ._parcel import dump, dump_error
from ._ray import this_host
from ._report import End, Happened, Report, Stand, Standing, first_id

__all__ = ["BREATH", "Feed", "Outpost", "failed"]

# What happens is reported so many seconds later at most, unless home is slow to take reports.
BREATH = 0.005
# As many events are kept for a report that has to wait; then the oldest are dropped and counted.
MOST = 10_000


class Outpost(SubtreeCommander, internal=True):
    """A commander whose paths and numbers are those of the tree at home."""

    def __init__(self, stand: Stand) -> None:
        super().__init__(stand.parent, slow_after=stand.slow_after)
        self.limits = stand.limits
        self.stand = stand
        self._root: Node[Any] | None = None

    def put_root(self, node: Node[Any]) -> None:
        """Put what runs here for home, under the number that it has there."""
        self._root = node
        number = self.stand.node_id
        self.put_numbered(node, number=number, below=first_id(number), policy=self.stand.policy)

    def ending(self) -> End:
        """Return how the root has ended; call it when the block has."""
        root = self._root
        assert root is not None
        try:
            if self.exit_value is not None:
                return ("exit", dump(self.exit_value[0]))
            if root.state == "completed":
                return ("completed", dump(root.result))
        except Exception as error:  # noqa: BLE001 - whatever pickling raises
            return failed(_unsendable(root, error))
        if root.state == "cancelled":
            return ("cancelled", cancel_reason(root) or "")
        assert root.error is not None
        return failed(root.error)

    def usage(self, node: Node[Any] | None = None) -> dict[str, Any]:
        """Return what `node`, or the root, and all below it have spent so far."""
        return super().usage(node or self._root)

    def standing(self) -> list[Standing]:
        """Return all unfinished nodes but the commander and the root."""
        own = (self.node_id, self.stand.node_id)
        return [
            (node.node_id, node.parent_id, node.name, node.state)
            for node in self.tree()
            if node.node_id not in own
        ]


def failed(error: BaseException) -> End:
    """Return the end of what has failed, with the traceback from here."""
    where = f"anabranch: in the Ray worker {os.getpid()} on {this_host()}"
    return ("failed", dump_error(error, where))


def _unsendable(root: Node[Any], error: Exception) -> TypeError:
    return TypeError(
        f"{root.path} returned a {type(root.result).__name__} that cannot be sent home: {error}"
    )


class Feed:
    """Gathers what home is to be told of an outpost."""

    def __init__(self, outpost: Outpost) -> None:
        self._outpost = outpost
        self._at_home = (0, outpost.stand.node_id)
        self._tap: Tap | None = None
        self._events: list[Happened] = []
        # Whether events were lost, so that home needs to know again what there is.
        self._gap = False
        self._began = 0.0

    def listen(self, told: Callable[[], None]) -> None:
        """Begin, once the outpost has; `told` is called with the first event after each report."""
        self._began = self._outpost.clock()
        self._tap = Tap(self._outpost, MOST, told)

    def gather(self) -> bool:
        """Take what has happened; say whether there is anything to report."""
        for event in [] if self._tap is None else self._tap.take():
            if event.kind == "missed":
                self._gap = True
            if event.node_id in self._at_home and event.kind in _AT_HOME:
                continue  # home has seen to it
            about = (event.kind, event.node_id, event.parent_id, event.name)
            self._events.append((*about, event.clock, event.data))
        return bool(self._events)

    def report(self, said: int, end: End | None = None) -> bytes:
        """Return all that came since the last report, pickled; `said` counts agents' messages."""
        self.gather()
        outpost = self._outpost
        events, self._events = self._events, []
        nodes, self._gap = outpost.standing() if self._gap else None, False
        report = Report(
            this_host(),
            os.getpid(),
            outpost.epoch,
            self._began,
            outpost.clock(),
            events,
            outpost.take_charges(),
            said,
            nodes,
            end,
        )
        if not events and not report.spent:
            return pickle.dumps(report)
        try:
            return dump(report)
        except Exception:  # noqa: BLE001 - whatever pickling the data of an event raises
            return dump(report._replace(events=[_sendable(event) for event in events]))


_AT_HOME = frozenset(
    ("put", "started", "joining", "completed", "failed", "cancelled", "retried", "placed")
)


def _sendable(event: Happened) -> Happened:
    try:
        dump(event[-1])
    except Exception:  # noqa: BLE001 - as above
        return (*event[:-1], repr(event[-1]))
    return event
