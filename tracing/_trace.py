"""`Trace`: a recording as a tree of nodes, with their times, requests and usage.

All views read a trace: the page, the terminal, Perfetto, `diff`. It takes record after record, so
it can grow with its recording.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from os import PathLike
from typing import Any, cast

from ..backends import Price
from ..commander.errors import ConfigurationError
from ..messages import Usage
from ._trace_node import Execution, Interval, TraceError, TraceNode, TraceRequest
from .records import RECORDING_VERSION

__all__ = ["Trace"]


class Trace:
    """The tree of a recording; times are in seconds since the recording began.

        trace = read("run.jsonl")
        for node in trace:
            print(node.label, node.state)

    `root` is the commander. `feed` adds the next record. `executions` has one item for each process
    that has written to the recording. `prices` are the recorded prices of models. `missed` is the
    number of events that the recording lacks. `end` is the time of the last record.
    """

    def __init__(self) -> None:
        self.root: TraceNode = TraceNode(0, "Commander", None, 0.0, "running")
        self.executions: list[Execution] = []
        self.prices: dict[str, Price] = {}
        self.missed: int = 0
        self.end: float = 0.0
        # Whether open nodes may still continue; else they are "lost".
        self.live = False
        # Nodes that have changed, in order. A view that draws often puts a dictionary here, and
        # clears it after each drawing.
        self.changed: dict[TraceNode, None] | None = None
        # Nodes of the current execution by number, and nodes of durable runs by run and identity.
        self._by_number: dict[int, TraceNode] = {0: self.root}
        self._by_identity: dict[tuple[str, str], TraceNode] = {}
        self._current_runs: set[str] = set()
        # Usage of earlier executions that the current one may charge again.
        self._earlier_usage: dict[TraceNode, dict[str, Usage]] = {}
        # Open requests by node and number: the numbers are unique in one process only.
        self._requests: dict[tuple[int, int], TraceRequest] = {}
        # Nodes from a gap, whose own record has not arrived.
        self._gap_nodes: set[int] = set()
        # Usage of the current execution that records have charged to nodes; the rest of its total,
        # which is charged to the root.
        self._charged: dict[str, Usage] = {}
        self._rest: dict[str, Usage] = {}

    def __iter__(self) -> Iterator[TraceNode]:
        """Yield all nodes but the commander, each before its children."""
        nodes = self.root.walk()
        next(nodes)
        return nodes

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def time(self) -> float:
        """The time of day at which the recording began."""
        return self.executions[0].time if self.executions else 0.0

    def node(self, number: int) -> TraceNode | None:
        """Return the node with this number in the last execution."""
        return self._by_number.get(number)

    def usage(self, node: TraceNode | None = None) -> dict[str, Usage]:
        """Return the usage of `node` (default: the root) and all nodes below it, by model."""
        total: dict[str, Usage] = {}
        for each in (node or self.root).walk():
            for model, used in each.usage.items():
                _add(total, model, used)
        return total

    def usage_by_agent(self) -> dict[str, dict[str, Usage]]:
        """Return the usage of each agent, by model; "" has the usage without an agent."""
        total: dict[str, dict[str, Usage]] = {}
        stack = [(self.root, "")]
        while stack:
            node, agent = stack.pop()
            agent = node.own_agent or agent
            for model, used in node.usage.items():
                _add(total.setdefault(agent, {}), model, used)
            stack.extend((child, agent) for child in node.children)
        return total

    def cost(
        self, usage: Mapping[str, Usage], prices: Mapping[str, Price] | None = None
    ) -> float | None:
        """Return the cost of `usage` for the models with a price; None if no model has one."""
        known = self.prices if prices is None else {**self.prices, **prices}
        found = [known[model].of(used) for model, used in usage.items() if model in known]
        return sum(found) if found else None

    @property
    def first_failure(self) -> TraceNode | None:
        """The node or tool call that failed first; of several at one time, the deepest."""
        bad = [(node.ended, node) for node in self if node.is_bad and node.ended is not None]
        first = min((ended for ended, _ in bad), default=None)
        return max(
            (node for ended, node in bad if ended == first),
            key=lambda node: sum(1 for _ in node.upwards()),
            default=None,
        )

    # --- showing

    def html(self, file: str | PathLike[str], *, prices: Mapping[str, Price] | None = None) -> None:
        """Write a page that shows it; the page opens from disk and needs no network."""
        from ._page import write_page

        write_page(self, file, prices)

    def perfetto(self, file: str | PathLike[str]) -> None:
        """Write it as a trace for ui.perfetto.dev or chrome://tracing."""
        from ._perfetto import write_perfetto

        write_perfetto(self, file)

    # --- reading

    def feed(self, record: Mapping[str, Any]) -> None:
        """Add the next record. A record of an unknown kind changes nothing.

        Raises `ConfigurationError` if the recording has a later version, or does not begin as one.
        """
        if "recording" in record:
            self._begin_execution(record)
            return
        if not self.executions:
            raise ConfigurationError("this is not a recording: its first line is a different one")
        at = self.executions[-1].offset + _time(record.get("t", 0.0))
        self.end = max(self.end, at)
        kind = record.get("e")
        if kind == "put":
            self._put(record, at)
        elif kind == "price":
            names = "input", "output", "cached_input"
            self.prices[record["model"]] = Price(*(record[name] for name in names))
        elif kind == "gap":
            self._fill_gap(record, at)
        elif kind == "end":
            self.executions[-1].usage = usage = _usage(record["usage"])
            self._charge_rest(usage)
            self.executions[-1].ended = True
            self.root.state = "completed"
            self.root.ended = self.root.intervals[-1].end = self.end
        elif (node := self._by_number.get(record.get("n", -1))) is not None:
            self._update(node, str(kind), record, at)
            self._note(node)

    def _note(self, node: TraceNode) -> None:
        if self.changed is not None:
            self.changed[node] = None

    def _begin_execution(self, record: Mapping[str, Any]) -> None:
        version = record["recording"]
        if not isinstance(version, int) or version > RECORDING_VERSION:
            raise ConfigurationError(
                f"a newer Anabranch wrote this recording: it has version {version!r}, and must have"
                f" at most version {RECORDING_VERSION}"
            )
        if self.executions:
            self.lose_open()
        time = _time(record["time"])
        # Executions follow each other, even if the clock was set back in between.
        offset = max(self.end, time - self.executions[0].time) if self.executions else 0.0
        self.end = offset
        execution = Execution(time, offset, record["pid"], record["host"], bool(record["content"]))
        self.executions.append(execution)
        self.root.state = "running"
        self.root.intervals.append(Interval(offset))
        self.root.ended = None
        self._by_number = {0: self.root}
        self._current_runs, self._gap_nodes = set(), set()
        self._requests, self._charged, self._rest = {}, {}, {}

    def lose_open(self) -> None:
        """Mark open nodes as lost: their ends are not in the recording."""
        # Not down from the root: a durable node stays below the parent of its first execution. A
        # parent that is not durable is another node in each execution.
        for node in self._by_number.values():
            if node.is_open and not (node is self.root and self.executions[-1].ended):
                self._lose(node, self.end)

    def _lose_below(self, node: TraceNode, at: float) -> None:
        """Mark open nodes below an ended node as lost: their worker has died."""
        stack = [child for child in node.children if child.is_open]
        while stack:
            lost = stack.pop()
            self._lose(lost, at)
            stack.extend(child for child in lost.children if child.is_open)

    def _lose(self, node: TraceNode, at: float) -> None:
        node.state, node.ended = "lost", at
        node.forget_wait()
        node.close_interval(at)
        self._note(node)

    def _put(self, record: Mapping[str, Any], at: float) -> None:
        number, recorded = record["n"], bool(record.get("kept"))
        run_id, identity = place = record.get("run", ""), record.get("id", "")
        if run_id and run_id not in self._current_runs:
            self._current_runs.add(run_id)
            self._restart_usage(run_id)
        node = self._by_identity.get(place)
        if node is not None:  # it is also in an earlier execution
            node.number, node.state, node.ended, node.error = number, "pending", None, None
            node.forget_wait()
            node.executions += 1
            if not recorded:
                node.reason, node.text, node.host = "", "", ""
        elif number in self._gap_nodes:  # a gap named it before
            node = self._by_number[number]
            self._gap_nodes.remove(number)
        else:
            node = TraceNode(
                number, record["name"], self._by_number.get(record["p"], self.root), at
            )
            assert node.parent is not None
            node.parent.children.append(node)
        if identity:
            self._by_identity[place] = node
        node.run_id, node.identity, node.recorded = run_id, identity, recorded
        node.own_agent = record.get("agent", node.own_agent)
        node.own_session = str(record.get("session", node.own_session))
        node.host = record.get("host", node.host)
        self._by_number[number] = node
        self._note(node)

    def _restart_usage(self, run_id: str) -> None:
        """Set the usage of a run's nodes to zero: a resumed execution charges all of it again."""
        for (run, _), node in self._by_identity.items():
            if run == run_id:
                if node.usage:
                    self._earlier_usage[node] = node.usage
                node.usage, node.others = {}, {}
                self._note(node)

    def _update(self, node: TraceNode, kind: str, record: Mapping[str, Any], at: float) -> None:
        match kind:
            case "started":
                node.state = "running"
                node.intervals.append(Interval(at))
            case "joining":
                node.state = "joining"
                if node.intervals:
                    node.intervals[-1].joined = at
            case "retried":
                node.state = "pending"
                node.retried.append((at, TraceError.read(record.get("error"))))
                self._lose_below(node, at)
                node.close_interval(at)
            case "completed" | "failed" | "cancelled":
                node.state = kind
                node.ended = at
                node.error = TraceError.read(record.get("error"))
                node.reason = record.get("reason", "")
                node.forget_wait()
                self._lose_below(node, at)
                node.close_interval(at)
            case "placed":
                node.host = record["host"]
            case "charged":
                self._charge(node, record)
            case "waiting":
                node.waits = record.get("text", "")
                node.waits_for, node.waits_at = tuple(record.get("on", ())), record.get("at", "")
            case "slow":
                node.slow.append((at, record["seconds"], record.get("at", "")))
            case "text":
                node.text += record["text"]
            case "called":
                node.tool, node.call_id = record["tool"], record["call"]
                node.call_size, node.arguments = record["size"], record.get("arguments")
            case "answered":
                node.status, node.result_size = record["status"], record["size"]
                node.result = record.get("result", "")
            case "request":
                request = TraceRequest.read(record, at)
                node.requests.append(request)
                self._requests[record["n"], record["q"]] = request
            case "first_chunk":
                if request := self._requests.get((record["n"], record["q"])):
                    request.first = at
            case "reply":
                if request := self._requests.pop((record["n"], record["q"]), None):
                    request.end, request.chunks = at, record["chunks"]
                    request.finish_reason = record.get("finish", "")
                    request.error = TraceError.read(record.get("error"))
                    request.left = record.get("left", False)
                    request.usage = _usage(record["usage"])
                    request.output = record.get("output")
            case _:
                pass

    def _charge(self, node: TraceNode, record: Mapping[str, Any]) -> None:
        for account, amount in record["usage"].items():
            if isinstance(amount, (int, float)):
                node.others[account] = node.others.get(account, 0) + amount
            if not isinstance(amount, dict):
                continue
            used = left = Usage(**cast("dict[str, int]", amount))
            _add(self._charged, account, used)
            if record.get("again") and node.recorded:
                left = self._restore(node, account, used)
            if left != Usage():
                _add(node.usage, account, left)

    def _restore(self, node: TraceNode, model: str, used: Usage) -> Usage:
        """Restore the earlier usage of a node that does not run again, and of nodes below it.

        Returns the part of `used` that exceeds the earlier usage. If the journal counts less than
        that, it restores nothing and returns all of `used`.
        """
        found = [each for each in node.walk() if model in self._earlier_usage.get(each, ())]
        left = used
        for each in found:
            left = _minus(left, self._earlier_usage[each][model])
        if min(left.model_dump().values()) < 0:
            return used
        for each in found:
            _add(each.usage, model, self._earlier_usage[each].pop(model))
            self._note(each)
        return left

    def _fill_gap(self, record: Mapping[str, Any], at: float) -> None:
        """Continue after a gap: open nodes that it lacks have ended, with unknown results."""
        self.missed += record["missed"]
        named = {number for number, *_ in record["nodes"]}
        for number, parent, name, state in record["nodes"]:
            if number not in self._by_number:
                above = self._by_number.get(parent, self.root)
                node = self._by_number[number] = TraceNode(number, name, above, at)
                above.children.append(node)
                self._gap_nodes.add(number)
            node = self._by_number[number]
            self._note(node)
            if number and node.state != state:
                node.state = state
                if state != "pending" and not node.intervals:
                    node.intervals.append(Interval(at))
        for number, node in self._by_number.items():
            if number not in named and node.is_open:
                self._lose(node, at)
        self._charge_rest(_usage(record["usage"]))

    def _charge_rest(self, usage: dict[str, Usage]) -> None:
        """Charge the root with the part of this execution's usage that no record has charged."""
        for model, used in usage.items():
            rest = _minus(used, self._charged.get(model, Usage()))
            before = self._rest.get(model, Usage())
            if min(rest.model_dump().values()) >= 0 and rest != before:
                self._rest[model] = rest
                _add(self.root.usage, model, _minus(rest, before))
                self._note(self.root)


def _time(value: Any) -> float:
    if not isfinite(time := float(value)):
        raise ValueError(f"{time} is not a time")
    return time


def _add(total: dict[str, Usage], model: str, used: Usage) -> None:
    total[model] = total.get(model, Usage()) + used


def _usage(record: Mapping[str, Any]) -> dict[str, Usage]:
    usage: dict[str, Any] = {model: used for model, used in record.items() if type(used) is dict}
    return {model: Usage(**used) for model, used in usage.items()}


def _minus(more: Usage, less: Usage) -> Usage:
    fields = {name: getattr(more, name) - getattr(less, name) for name in Usage.model_fields}
    return Usage(**fields)
