"""Both ends of a subtree that runs in another process.

The *home* process put the node. There, `RemoteNode` is the node's body: it turns reports into
events, charges and snapshots of the local tree. `RemoteCommander` runs the real body in the other
process, and a `Reporter` collects the reports.
"""

from __future__ import annotations

import asyncio
import os
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..agents.integration import current_scope, current_session
from ..commander import Node, NodeSnapshot, NodeState, actor_of, charge
from ..commander.context import receive_context, send_context
from ..commander.remote import (
    DONE,
    Event,
    EventSource,
    Origin,
    SubtreeCommander,
    cancel_reason,
    event_time,
    has_listeners,
    policy_of,
    publish,
    relay,
    type_name,
)
from ..commander.tap import Tap
from ._payload import describe_error, dump, dump_error, load, load_error, pack, unpack
from ._protocol import EventRecord, NodeRecord, Outcome, Report, TreeContext
from ._ray import this_host

if TYPE_CHECKING:
    from ._mailbox import RemoteCall

__all__ = ["REPORT_DELAY_SECONDS", "RemoteCommander", "RemoteNode", "Reporter", "failure_outcome"]

# Seconds after which an event is reported at the latest, unless home is slow to take reports.
REPORT_DELAY_SECONDS = 0.005
# Events that are buffered while home does not take reports. Beyond that the oldest are dropped.
MAX_EVENTS = 10_000
# Below node 7 the remote nodes are 7000001, 7000002 and so on: they have the same numbers in the
# logs and errors of both processes.
NUMBERS_PER_NODE = 1_000_000

LIFECYCLE_EVENTS = frozenset(("put", "started", "joining", "retried", "placed", *DONE))
STATE_AFTER_EVENT: dict[str, NodeState] = {
    "started": "running",
    "joining": "joining",
    "retried": "pending",
}


# --- at home


class RemoteNode:
    """The body of a remote node, and the nodes below it, as last reported."""

    def __init__(self) -> None:
        self.host: str | None = None  # its machine, once it has started there
        self.pid: int | None = None
        self._below: dict[int, _RemoteEntry] = {}
        self._clock = _ClockOffset(0)

    def begin(self, node: Node[Any]) -> None:
        """Reset the state, since the body of `node` starts now."""
        self.host = None
        self._clock = _ClockOffset(event_time(node))
        self.clear()

    def clear(self) -> None:
        """Forget the nodes below."""
        self._below.clear()

    def context(self, node: Node[Any], call: RemoteCall | None) -> TreeContext:
        """Return the context of `node` for the other process; `call` has the address of home."""
        assert node.parent is not None
        scope = current_scope()
        return TreeContext(
            node.node_id,
            node.parent.path,
            policy_of(node),
            node.commander.slow_after,
            None if call is None else call.address,
            None if call is None else call.limits,
            None if scope is None else (scope.limit, scope.left, current_session()),
            send_context(lambda value: pack(value, "it")),
        )

    def descendants(self, depth: int) -> Sequence[NodeSnapshot]:
        """Return the unfinished remote nodes, parents first; the top ones have this `depth`."""
        children: dict[int | None, list[_RemoteEntry]] = {}
        for entry in self._below.values():
            parent = entry.parent if entry.parent in self._below else None
            children.setdefault(parent, []).append(entry)
        snapshots: list[NodeSnapshot] = []
        stack = [(entry, depth) for entry in reversed(children.get(None, []))]
        while stack:
            entry, at = stack.pop()
            inner = children.get(entry.number, [])
            snapshots.append(
                NodeSnapshot(
                    entry.number,
                    entry.parent,
                    at,
                    entry.name,
                    entry.state,
                    len(inner),
                    False,
                    self.host,
                )
            )
            stack.extend((child, at + 1) for child in reversed(inner))
        return snapshots

    def take(self, node: Node[Any], report: Report) -> None:
        """Take a report: publish its events here, and charge its usage to `node`."""
        if self.host is None:
            self.host, self.pid = report.host, report.pid
            publish(node, "placed", report.host)
        self._clock.adjust(
            report.epoch + report.began, report.epoch + report.sent, event_time(node)
        )
        origin = Origin(self._clock.at_home(report.epoch), report.host)
        if report.nodes is not None:
            self._below = {record[0]: _RemoteEntry(*record) for record in report.nodes}
        for event in report.events:
            kind, number, parent, name, actor, clock, data = event
            if report.nodes is None:
                if kind in DONE:
                    self._below.pop(number, None)
                elif kind == "put":
                    self._below[number] = _RemoteEntry(number, parent, name, "pending")
                elif kind in STATE_AFTER_EVENT and number in self._below:
                    self._below[number].state = STATE_AFTER_EVENT[kind]
            if number == node.node_id:
                parent = None if node.parent is None else node.parent.node_id
            elif not parent:  # put beside the remote root: home shows it below `node`
                parent = node.node_id
            if has_listeners(node):
                # The path continues that of `node`. Without a remote agent, the local one acts.
                segments = [] if number == node.node_id else [f"{name}#{number}"]
                ancestor = parent
                while ancestor is not None and (entry := self._below.get(ancestor)) is not None:
                    segments.append(f"{entry.name}#{entry.number}")
                    ancestor = entry.parent
                path = "/".join((node.path, *reversed(segments)))
                source = EventSource(number, parent, name, origin, path, actor or actor_of(node))
                relay(node, Event(kind, source, clock, data))
        for account, amount in report.charges.items():
            charge(account, amount, event=False)  # the remote tree has published one
        if report.messages and (scope := current_scope()) is not None:
            scope.left = max(0, scope.left - report.messages)

    def end(self, node: Node[Any], outcome: Outcome) -> Any:
        """End the body of `node` as the remote body ended: return its result, or raise."""
        kind, value = outcome
        if kind == "completed":
            return load(value)
        if kind == "failed":
            raise load_error(value)
        if kind == "exit":
            node.commander.exit(load(value))
        else:
            node.cancel(value)
        raise asyncio.CancelledError


@dataclass(slots=True)
class _RemoteEntry:
    """A remote node."""

    number: int
    parent: int | None
    name: str
    state: NodeState


class _ClockOffset:
    """Converts times of another machine to the clock of home.

    Two facts bound the offset: a report was sent before it arrives, and the remote body starts
    after home started the node. The smallest offset within these bounds is used.
    """

    def __init__(self, started: float) -> None:
        self._started = started
        self._lower_bound = float("-inf")
        self._upper_bound = float("inf")
        self._offset = 0.0

    def adjust(self, began: float, sent: float, received: float) -> None:
        """Narrow the bounds by a report."""
        self._lower_bound = max(self._lower_bound, self._started - began)
        self._upper_bound = min(self._upper_bound, received - sent)
        self._offset = min(max(0.0, self._lower_bound), self._upper_bound)

    def at_home(self, time: float) -> float:
        """Return the time on home's clock."""
        return time + self._offset


# --- in the other process


class RemoteCommander(SubtreeCommander, internal=True):
    """A commander whose paths and numbers match the home tree."""

    def __init__(self, context: TreeContext) -> None:
        super().__init__(context.parent, slow_after=context.slow_after)
        self.limits = context.limits
        self.context = context
        self._root: Node[Any] | None = None

    def put_root(self, node: Node[Any]) -> None:
        """Put the node that runs the body for home, with the number that it has at home."""
        self._root = node
        receive_context(self.context.value, unpack)  # in the context of the task that serves it
        number = self.context.node_id
        below = number * NUMBERS_PER_NODE
        self.put_numbered(node, number=number, below=below, policy=self.context.policy)

    def outcome(self) -> Outcome:
        """Return the end of the root; call it after the block."""
        root = self._root
        assert root is not None
        try:
            if self.exit_value is not None:
                return ("exit", dump(self.exit_value[0]))
            if root.state == "completed":
                return ("completed", dump(root.result))
        except BaseException as error:  # noqa: BLE001 - pickling may raise anything
            exit_value = self.exit_value
            what = f"returned a {type_name(root.result)}"
            if exit_value is not None:
                what = f"left the commander with a {type_name(exit_value[0])}"
            why = f"that cannot be sent back: {describe_error(error)}"
            return failure_outcome(TypeError(f"{root.path} {what} {why}"))
        if root.state == "cancelled":
            return ("cancelled", cancel_reason(root) or "")
        assert root.error is not None
        return failure_outcome(root.error)

    def usage(self, node: Node[Any] | None = None) -> dict[str, Any]:
        """Return the usage of `node`, or of the root, with all nodes below."""
        return super().usage(node or self._root)


def failure_outcome(error: BaseException) -> Outcome:
    """Return the outcome of a failure, with its traceback from here."""
    where = f"anabranch: in the Ray worker {os.getpid()} on {this_host()}"
    return ("failed", dump_error(error, where))


class Reporter:
    """Collects the reports of a commander for home."""

    def __init__(self, commander: RemoteCommander) -> None:
        self._commander = commander
        # The commander and its root: home publishes the lifecycle of these itself.
        self._at_home = (0, commander.context.node_id)
        self._tap: Tap | None = None
        self._events: list[EventRecord] = []
        # Whether events were lost: the next report then lists all unfinished nodes.
        self._has_lost_events = False
        self._began = 0.0

    def listen(self, on_news: Callable[[], None]) -> None:
        """Start to listen, once the commander has started.

        `on_news` is called with the first event of each report.
        """
        self._began = self._commander.clock()
        self._tap = Tap(self._commander, MAX_EVENTS, on_news)

    def gather(self) -> bool:
        """Collect the events so far; return whether there are any."""
        for event in () if self._tap is None else self._tap.take():
            if event.kind == "missed":
                self._has_lost_events = True
            if event.node_id in self._at_home and event.kind in LIFECYCLE_EVENTS:
                continue
            at = event.source
            about = (event.kind, at.id, at.parent_id, at.name, at.actor)
            self._events.append((*about, event.clock, event.data))
        return bool(self._events)

    def report(self, messages: int, outcome: Outcome | None = None) -> bytes:
        """Return everything since the last report, pickled; `messages` counts messages of agents.

        Raises the error of pickling a charge, which is then lost.
        """
        self.gather()
        commander = self._commander
        events, self._events = self._events, []
        nodes: list[NodeRecord] | None = None
        if self._has_lost_events:
            self._has_lost_events = False
            nodes = [
                (node.node_id, node.parent_id, node.name, node.state)
                for node in commander.tree()
                if node.node_id not in self._at_home
            ]
        report = Report(
            this_host(),
            os.getpid(),
            commander.epoch,
            self._began,
            commander.clock(),
            events,
            commander.take_charges(),
            messages,
            nodes,
            outcome,
        )
        if not events and not report.charges:
            return pickle.dumps(report)
        try:
            return dump(report)
        except BaseException:  # noqa: BLE001 - pickling may raise anything
            for number, event in enumerate(events):
                try:
                    dump(event[-1])
                except BaseException:  # noqa: BLE001 - as above
                    events[number] = (*event[:-1], _describe_value(event[-1]))
            return dump(report)


def _describe_value(value: object) -> str:
    try:
        return repr(value)
    except BaseException:  # noqa: BLE001 - the user's code may raise anything
        return f"a {type_name(value)}, without a repr"
