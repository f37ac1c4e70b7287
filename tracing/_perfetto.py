"""A recording as a trace in Chrome's format, which Perfetto reads.

The format is JSON. Google's document "Trace Event Format" describes it; Perfetto's page
"Visualizing external trace formats" (perfetto.dev/docs/getting-started/other-formats) has the link.
This file uses complete events (`X`: a slice with `ts` and `dur`), instants (`i`), counters (`C`)
and names (`M`); times are in microseconds. Slices on one track must nest, so a slice that does not
gets another track.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from heapq import heappop, heappush
from operator import attrgetter
from os import PathLike
from typing import Any

from ..messages import Usage
from ._recording_file import write_output
from ._trace import Trace
from ._trace_node import Execution, TraceNode, TraceRequest

__all__ = ["write_perfetto"]

# The most nested slices on a track. Readers have a limit, and screens do not show more.
MAX_NESTED_SLICES = 200


def write_perfetto(trace: Trace, file: str | PathLike[str]) -> None:
    """Write the trace for ui.perfetto.dev or chrome://tracing; it replaces the file in one step.

    Each process of the recording, and each other machine, is a process there. Each attempt of a
    node is a slice, and so is each request to a model. Nodes that ran one after the other share the
    track of their parent; concurrent nodes have separate tracks.
    """
    write_output(file, _write(trace))


def _write(trace: Trace) -> Iterator[str]:
    started_at = datetime.fromtimestamp(trace.time, UTC).isoformat(timespec="seconds")
    about = {"recorded": started_at, "events missed": trace.missed}
    yield f'{{"displayTimeUnit":"ms","otherData":{json.dumps(about)},"traceEvents":[\n'
    first = True
    for event in _Drawing(trace).events():
        yield _json(event) if first else f",\n{_json(event)}"
        first = False
    yield "\n]}\n"


def _json(event: dict[str, Any]) -> str:
    try:
        return json.dumps(event, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (ValueError, RecursionError):  # a number that JSON lacks, such as NaN, from a model
        event = {**event, "args": {name: _str(each) for name, each in event["args"].items()}}
        return json.dumps(event, ensure_ascii=False, separators=(",", ":"))


def _str(value: object) -> str:
    try:
        return str(value)
    except RecursionError:
        return "(nested too deeply to be shown)"


@dataclass(eq=False, slots=True)
class _Slice:
    start: int
    end: int
    name: str
    category: str
    args: dict[str, Any]
    process: _Process
    above: _Slice | None
    lane: int = 0

    def holds(self, other: _Slice) -> bool:
        return self.process is other.process and self.start <= other.start <= other.end <= self.end


@dataclass(eq=False, slots=True)
class _Process:
    """A process of the recording, or another machine: its tracks, each with its open slices.

    `busy` has the end of each used track, and `free` the other tracks.
    """

    number: int
    name: str
    lanes: list[list[_Slice]] = field(default_factory=lambda: list[list[_Slice]]())
    busy: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    free: list[int] = field(default_factory=list[int])

    def place(self, new: _Slice) -> None:
        """Give a slice its lane: that of its parent's slice, unless another slice there is open.

        Slices arrive in the order of their starts, outer slices first.
        """
        while self.busy and self.busy[0][0] <= new.start:
            heappush(self.free, heappop(self.busy)[1])
        above = new.above
        if above is not None and above.holds(new):
            inside = self.lanes[above.lane]
            while inside and inside[-1] is not above and inside[-1].end <= new.start:
                inside.pop()
            if inside and inside[-1] is above and len(inside) < MAX_NESTED_SLICES:
                new.lane = above.lane
                inside.append(new)
                return
        if not self.free:
            self.free.append(len(self.lanes))
            self.lanes.append([])
        new.lane = heappop(self.free)
        self.lanes[new.lane] = [new]
        heappush(self.busy, (new.end, new.lane))


class _Drawing:
    """The slices and marks of a trace, with their tracks."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._processes: dict[tuple[int, str], _Process] = {}
        self._slices: list[_Slice] = []
        # Time, slice on the track of the mark, name, details.
        self._marks: list[tuple[int, _Slice, str, dict[str, Any]]] = []
        self._of: dict[TraceNode, list[_Slice]] = {}
        for node in trace.root.walk():
            self._draw(node)
        # The sort is stable, so of equal slices that of the parent stays first.
        self._slices.sort(key=lambda each: (each.start, -each.end))
        for each in self._slices:
            each.process.place(each)

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the names, and then all events in the order of time."""
        firsts: dict[_Process, int] = {}
        number = len(self._processes) + 1
        for process in self._processes.values():
            firsts[process] = number
            yield from _names(process, number)
            number += len(process.lanes)

        def on_track(on: _Slice) -> dict[str, Any]:
            return {"pid": on.process.number, "tid": firsts[on.process] + on.lane}

        slices: list[dict[str, Any]] = [
            {"ph": "X", "name": each.name, "cat": each.category, "ts": each.start}
            | {"dur": each.end - each.start, **on_track(each), "args": each.args}
            for each in self._slices
        ]
        marks: list[dict[str, Any]] = [
            {"ph": "i", "s": "t", "name": name, "cat": "mark", "ts": at}
            | {**on_track(on), "args": args}
            for at, on, name, args in self._marks
        ]
        yield from sorted([*slices, *marks, *self._counts()], key=lambda event: event["ts"])

    # --- nodes

    def _draw(self, node: TraceNode) -> None:
        args = _details(node)
        own = self._of[node] = list[_Slice]()
        for number, interval in enumerate(node.intervals):
            start = _us(interval.start)
            end = _us(self._trace.end if interval.end is None else interval.end)
            process = self._process(node, interval.start)
            more: dict[str, Any] = {"attempt": number + 1} if len(node.intervals) > 1 else {}
            if number == 0:
                more["waited to start (s)"] = round(interval.start - node.put, 6)
            above = None if node.parent is None else self._slice_at(node.parent, start)
            kind = "tool" if node.tool else "node"
            own.append(
                _Slice(start, max(start, end), node.label, kind, more | args, process, above)
            )
        self._slices += own
        on = own[-1] if own else self._slice_at(node.parent, _us(node.put)) if node.parent else None
        if on is not None:
            self._mark(node, on, ran=bool(own))
        for request in node.requests:
            self._draw_request(node, request, self._slice_at(node, _us(request.start)) or on)

    def _mark(self, node: TraceNode, on: _Slice, ran: bool) -> None:
        own = self._of[node]
        for at, error in node.retried:
            args = {"error": str(error)} if error else {}
            self._add_mark(at, self._slice_at(node, _us(at)) or on, "retried", args)
        for at, seconds, where in node.slow:
            args = {"seconds": seconds, "at": where}
            self._add_mark(at, self._slice_at(node, _us(at)) or on, "blocked the loop", args)
        ended = node.put if node.ended is None else node.ended
        prefix = "" if ran else f"{node.label} never started: "
        if node.error is not None:
            self._add_mark(
                ended, on, f"{prefix}failed: {node.error.type}", {"error": str(node.error)}
            )
        elif node.status in ("failed", "invalid"):
            self._add_mark(ended, on, f"call {node.status}", {})
        elif node.state in ("cancelled", "lost") or not own:
            args = {"reason": node.reason} if node.reason else {}
            self._add_mark(ended, on, f"{prefix}{node.state}", args)

    def _add_mark(self, at: float, on: _Slice, name: str, args: dict[str, Any]) -> None:
        self._marks.append((min(max(_us(at), on.start), on.end), on, name, args))

    def _draw_request(self, node: TraceNode, request: TraceRequest, above: _Slice | None) -> None:
        start = _us(request.start)
        end = _us(self._trace.end if request.end is None else request.end)
        process = above.process if above else self._process(node, request.start)
        args = _details_of_request(request)
        drawn = _Slice(start, max(start, end), request.model, "request", args, process, above)
        self._slices.append(drawn)
        if request.first is not None:
            self._add_mark(request.first, drawn, "first chunk", {})
        if request.error is not None:
            name = f"request failed: {request.error.type}"
            self._add_mark(request.end or 0.0, drawn, name, {"error": str(request.error)})

    def _slice_at(self, node: TraceNode, at: int) -> _Slice | None:
        """Return the last slice of a node that started before a time, or its first slice."""
        own = self._of[node]
        if not own:
            return None
        return own[max(0, bisect_right(own, at, key=attrgetter("start")) - 1)]

    def _process(self, node: TraceNode, at: float) -> _Process:
        executions = self._trace.executions or [Execution(0.0, 0.0, 0, "", content=False)]
        index = max(0, bisect_right(executions, at, key=attrgetter("offset")) - 1)
        known = self._processes.get((index, node.host))
        if known is None:
            execution = executions[index]
            name = node.host or f"process {execution.pid} on {execution.host}"
            number = len(self._processes) + 1
            known = self._processes[index, node.host] = _Process(number, name)
        return known

    # --- counters

    def _counts(self) -> Iterator[dict[str, Any]]:
        """Yield the tokens of each model, and the cost, at the ends of replies."""
        trace = self._trace
        replies = [
            (_us(request.end), request.usage)
            for node in trace.root.walk()
            for request in node.requests
            if request.end is not None and not request.replayed
        ]
        total: dict[str, Usage] = {}
        for at, usage in sorted(replies, key=lambda reply: reply[0]):
            for model, used in usage.items():
                total[model] = now = total.get(model, Usage()) + used
                tokens = {"input": now.input_tokens, "output": now.output_tokens}
                yield _counter(f"tokens of {model}", at, tokens)
            if usage and (cost := trace.cost(total)) is not None:
                yield _counter("cost", at, {"cost": round(cost, 9)})


def _us(seconds: float) -> int:
    return round(seconds * 1e6)


def _counter(name: str, at: int, values: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "C", "name": name, "ts": at, "pid": 1, "args": values}


def _names(process: _Process, first: int) -> Iterator[dict[str, Any]]:
    about = {"ph": "M", "pid": process.number}
    yield {**about, "name": "process_name", "args": {"name": process.name}}
    yield {**about, "name": "process_sort_index", "args": {"sort_index": process.number}}
    for lane in range(len(process.lanes)):
        here = {**about, "tid": first + lane}
        yield {**here, "name": "thread_name", "args": {"name": f"lane {lane + 1}"}}
        yield {**here, "name": "thread_sort_index", "args": {"sort_index": lane}}


def _details(node: TraceNode) -> dict[str, Any]:
    """Return the details of a node, without empty values."""
    args = {
        "state": node.state,
        "agent": node.own_agent,
        "session": node.own_session,
        "run": node.run_id,
        "from the journal": node.recorded,
        "error": str(node.error or ""),
        "attempts failed": len(node.retried),
        "waits": node.waits,
        "tool": node.tool,
        "status": node.status,
        "size of arguments": node.call_size,
        "size of result": node.result_size,
        "arguments": node.arguments,
        "result": node.result,
        "text": node.text,
        **_tokens(node.usage),
        **node.others,
    }
    return {name: value for name, value in args.items() if value}


def _details_of_request(request: TraceRequest) -> dict[str, Any]:
    args = {
        "provider": request.provider,
        "options": request.options,
        "messages": request.messages,
        "tools": list(request.tools),
        "replayed": request.replayed,
        "chunks": request.chunks,
        "finish reason": request.finish_reason,
        "error": str(request.error or ""),
        "left": request.left,
        "input": request.input,
        "output": request.output,
        **_tokens(request.usage),
    }
    return {name: value for name, value in args.items() if value}


def _tokens(usage: dict[str, Usage]) -> dict[str, Any]:
    return {
        f"tokens of {model}": used.model_dump(exclude_defaults=True)
        for model, used in usage.items()
    }
