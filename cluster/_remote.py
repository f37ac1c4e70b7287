"""Both ends of a subtree that runs elsewhere: what home knows of it, and the commander there.

`RemoteNode` is the body of a node at home; what its far end reports becomes events, charges and
snapshots of the tree here. `RemoteCommander` drives the node's body there, and a `Reporter` gathers
what home should know.
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
from ._payload import describe_error, dump, dump_error, load, load_error
from ._protocol import EventRecord, NodeRecord, Outcome, Report, TreeContext
from ._ray import this_host

if TYPE_CHECKING:
    from ._mailbox import RemoteCall

__all__ = ["REPORT_DELAY", "RemoteCommander", "RemoteNode", "Reporter", "failure_outcome"]

# Seconds after which what happens is reported at the latest, unless home is slow to take reports.
REPORT_DELAY = 0.005
# As many events are kept for a report that has to wait; then the oldest are dropped and counted.
MAX_EVENTS = 10_000
# Below a node with the number 7 those elsewhere are 7000001, 7000002 and so on: the same numbers
# there, in its logs and errors, as at home.
NUMBERS = 1_000_000

LIFECYCLE = frozenset(("put", "started", "joining", "retried", "placed", *DONE))
STATES: dict[str, NodeState] = {"started": "running", "joining": "joining", "retried": "pending"}


# --- home


class RemoteNode:
    """The body of a node that runs elsewhere, and the nodes below it, as last reported."""

    def __init__(self) -> None:
        self.host: str | None = None  # the machine, once it has begun there
        self.pid: int | None = None
        self._below: dict[int, _Entry] = {}
        self._clock = _ClockOffset(0)

    def begin(self, node: Node[Any]) -> None:
        """Forget all: the body of `node` is started now."""
        self.host = None
        self._clock = _ClockOffset(event_time(node))
        self.clear()

    def clear(self) -> None:
        """Forget the nodes."""
        self._below.clear()

    def context(self, node: Node[Any], call: RemoteCall | None) -> TreeContext:
        """Return what the far end has to know of `node`; `call` is where it reaches home."""
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
        )

    def descendants(self, depth: int) -> Sequence[NodeSnapshot]:
        """Return the unfinished nodes, each before its children; the uppermost at `depth`."""
        children: dict[int | None, list[_Entry]] = {}
        for entry in self._below.values():
            parent = entry.parent if entry.parent in self._below else None
            children.setdefault(parent, []).append(entry)
        found: list[NodeSnapshot] = []
        stack = [(entry, depth) for entry in reversed(children.get(None, []))]
        while stack:
            entry, at = stack.pop()
            inner = children.get(entry.number, [])
            found.append(
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
        return found

    def take(self, node: Node[Any], report: Report) -> None:
        """Take a report in: publish its events here, and charge `node` with what was spent."""
        if self.host is None:
            self.host, self.pid = report.host, report.pid
            publish(node, "placed", report.host)
        self._clock.adjust(
            report.epoch + report.began, report.epoch + report.sent, event_time(node)
        )
        origin = Origin(self._clock.at_home(report.epoch), report.host)
        if report.nodes is not None:
            self._below = {record[0]: _Entry(*record) for record in report.nodes}
        for event in report.events:
            kind, number, parent, name, actor, clock, data = event
            if report.nodes is None:
                if kind in DONE:
                    self._below.pop(number, None)
                elif kind == "put":
                    self._below[number] = _Entry(number, parent, name, "pending")
                elif kind in STATES and number in self._below:
                    self._below[number].state = STATES[kind]
            if number == node.node_id:
                parent = None if node.parent is None else node.parent.node_id
            elif not parent:  # it was put beside the root, under the far end's own commander
                parent = node.node_id
            if has_listeners(node):
                # Below `node`, and of the agent whose work it does there or, if none is, here.
                segments = [] if number == node.node_id else [f"{name}#{number}"]
                above = parent
                while above is not None and (entry := self._below.get(above)) is not None:
                    segments.append(f"{entry.name}#{entry.number}")
                    above = entry.parent
                path = "/".join((node.path, *reversed(segments)))
                source = EventSource(number, parent, name, origin, path, actor or actor_of(node))
                relay(node, Event(kind, source, clock, data))
        for account, amount in report.charges.items():
            charge(account, amount, event=False)  # there is one from there
        if report.messages and (scope := current_scope()) is not None:
            scope.left = max(0, scope.left - report.messages)

    def end(self, node: Node[Any], outcome: Outcome) -> Any:
        """Let the body of `node` end as its far end has: return its result, or raise."""
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
class _Entry:
    """A node elsewhere."""

    number: int
    parent: int | None
    name: str
    state: NodeState


class _ClockOffset:
    """Brings the times of another machine in line with home's.

    A report cannot have been sent after it came, nor a body begun before it was started: within
    these bounds the two clocks are taken to agree.
    """

    def __init__(self, started: float) -> None:
        self._started = started
        self._least = float("-inf")
        self._most = float("inf")
        self._offset = 0.0

    def adjust(self, began: float, sent: float, received: float) -> None:
        """Take the bounds that a report sets."""
        self._least = max(self._least, self._started - began)
        self._most = min(self._most, received - sent)
        self._offset = min(max(0.0, self._least), self._most)

    def at_home(self, time: float) -> float:
        """Return what the clock at home showed."""
        return time + self._offset


# --- the far end


class RemoteCommander(SubtreeCommander, internal=True):
    """A commander whose paths and numbers are those of the tree at home."""

    def __init__(self, context: TreeContext) -> None:
        super().__init__(context.parent, slow_after=context.slow_after)
        self.limits = context.limits
        self.context = context
        self._root: Node[Any] | None = None

    def put_root(self, node: Node[Any]) -> None:
        """Put what runs here for home, under the number that it has there."""
        self._root = node
        number = self.context.node_id
        below = number * NUMBERS
        self.put_numbered(node, number=number, below=below, policy=self.context.policy)

    def outcome(self) -> Outcome:
        """Return how the root has ended; call it when the block has."""
        root = self._root
        assert root is not None
        try:
            if self.exit_value is not None:
                return ("exit", dump(self.exit_value[0]))
            if root.state == "completed":
                return ("completed", dump(root.result))
        except BaseException as error:  # noqa: BLE001 - whatever pickling raises
            left = self.exit_value
            what = f"returned a {type_name(root.result)}"
            if left is not None:
                what = f"left the commander with a {type_name(left[0])}"
            why = f"that cannot be sent home: {describe_error(error)}"
            return failure_outcome(TypeError(f"{root.path} {what} {why}"))
        if root.state == "cancelled":
            return ("cancelled", cancel_reason(root) or "")
        assert root.error is not None
        return failure_outcome(root.error)

    def usage(self, node: Node[Any] | None = None) -> dict[str, Any]:
        """Return what `node`, or the root, and all below it have spent so far."""
        return super().usage(node or self._root)


def failure_outcome(error: BaseException) -> Outcome:
    """Return the outcome of what has failed, with the traceback from here."""
    where = f"anabranch: in the Ray worker {os.getpid()} on {this_host()}"
    return ("failed", dump_error(error, where))


class Reporter:
    """Gathers what home should know of what a commander here drives for it."""

    def __init__(self, commander: RemoteCommander) -> None:
        self._commander = commander
        # Of the lives of these two home knows by itself.
        self._at_home = (0, commander.context.node_id)
        self._tap: Tap | None = None
        self._events: list[EventRecord] = []
        # Whether events were lost, so that home needs to know again what there is.
        self._gap = False
        self._began = 0.0

    def listen(self, on_news: Callable[[], None]) -> None:
        """Begin, once the commander has; `on_news` is called with the first event of a report."""
        self._began = self._commander.clock()
        self._tap = Tap(self._commander, MAX_EVENTS, on_news)

    def gather(self) -> bool:
        """Take what has happened; say whether there is anything to report."""
        for event in () if self._tap is None else self._tap.take():
            if event.kind == "missed":
                self._gap = True
            if event.node_id in self._at_home and event.kind in LIFECYCLE:
                continue
            at = event.source
            about = (event.kind, at.id, at.parent_id, at.name, at.actor)
            self._events.append((*about, event.clock, event.data))
        return bool(self._events)

    def report(self, messages: int, outcome: Outcome | None = None) -> bytes:
        """Return all that came since the last report, pickled; `messages` counts agents' ones.

        Raises what pickling a charge raises; that is then charged to nobody.
        """
        self.gather()
        commander = self._commander
        events, self._events = self._events, []
        nodes: list[NodeRecord] | None = None
        if self._gap:
            self._gap = False
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
        except BaseException:  # noqa: BLE001 - whatever pickling the data of an event raises
            for number, event in enumerate(events):
                try:
                    dump(event[-1])
                except BaseException:  # noqa: BLE001 - as above
                    events[number] = (*event[:-1], _shown(event[-1]))
            return dump(report)


def _shown(value: object) -> str:
    try:
        return repr(value)
    except BaseException:  # noqa: BLE001 - it is a user's code
        return f"a {type_name(value)}, which cannot be shown"
