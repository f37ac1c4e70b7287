"""A recording as one page of HTML, which needs no other file and no network.

`page/` has the parts of the page. `page/data.js` reads the data that this module makes: a column
for each property of all nodes (times in microseconds, as differences), and the other properties
node by node.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, get_args

from ..backends import Price
from ..messages import Usage
from ._recording_file import write_output
from ._trace import Trace
from ._trace_node import TraceError, TraceNode, TraceRequest, TraceState
from .pages import assemble

__all__ = ["write_page"]

PAGE_FOLDER = Path(__file__).parent / "page"
PAGE_SCRIPTS = ("data", "format", "rows", "tree", "timeline", "pointer", "details", "sums", "main")
PAGE_POLICY = (
    "default-src 'none'; script-src '{script}'; style-src '{style}'; base-uri 'none';"
    " form-action 'none'"
)
TRACE_STATES: tuple[TraceState, ...] = get_args(TraceState)
# The most links to nodes that a node waits for.
MAX_WAIT_LINKS = 50


def write_page(trace: Trace, file: str | PathLike[str], prices: Mapping[str, Price] | None) -> None:
    """Write the page; `prices` replace recorded prices."""
    known = {**trace.prices, **(prices or {})}
    data = json.dumps(_data(trace, known), separators=(",", ":"), allow_nan=False)
    before, _, after = assemble(PAGE_FOLDER, PAGE_SCRIPTS, PAGE_POLICY)[0].partition("{{data}}")
    # Without "<" no text of a run can end the script element, or begin a comment in it.
    write_output(file, [before, data.replace("<", "\\u003c"), after])


def _data(trace: Trace, prices: Mapping[str, Price]) -> dict[str, Any]:
    nodes = [trace.root, *trace]
    index = {node: place for place, node in enumerate(nodes)}
    names = {name: place for place, name in enumerate(dict.fromkeys(each.name for each in nodes))}
    numbers = _Numbers(nodes, index)
    more = [(place, _more(node, numbers)) for place, node in enumerate(nodes)]
    first = trace.first_failure
    return {
        "time": trace.time,
        "end": _us(trace.end),
        "live": trace.live,
        "missed": trace.missed,
        "first": None if first is None else index[first],
        "executions": [
            {"at": _us(each.offset), "pid": each.pid, "host": each.host, "ended": each.ended}
            for each in trace.executions
        ],
        "prices": [
            [model, price.input, price.output, _cached(price)] for model, price in prices.items()
        ],
        "states": TRACE_STATES,
        "names": list(names),
        "nodes": _columns(nodes, index, names),
        "more": [[place, fields] for place, fields in more if fields],
    }


def _cached(price: Price) -> float:
    return price.input if price.cached_input is None else price.cached_input


def _us(seconds: float) -> int:
    return round(seconds * 1e6)


def _columns(
    nodes: list[TraceNode], index: Mapping[TraceNode, int], names: Mapping[str, int]
) -> dict[str, Any]:
    """Return the properties of all nodes, with their first interval, as (small) differences."""
    columns: dict[str, list[int | None]] = {
        name: [] for name in ("up", "number", "name", "put", "start", "joined", "ended")
    }
    number = put = 0
    for place, node in enumerate(nodes):
        at = _us(node.put)
        interval = node.intervals[0] if node.intervals else None
        start = None if interval is None else _us(interval.start)
        after = at if start is None else start
        ended = node.ended if interval is None or node.ended is None else interval.end
        joined = None if interval is None else interval.joined
        columns["up"].append(0 if node.parent is None else place - index[node.parent])
        columns["number"].append(node.number - number)
        columns["name"].append(names[node.name])
        columns["put"].append(at - put)
        columns["start"].append(None if start is None else start - at)
        columns["joined"].append(None if joined is None else _us(joined) - after)
        columns["ended"].append(None if ended is None else _us(ended) - after)
        number, put = node.number, at
    return {**columns, "state": "".join(str(TRACE_STATES.index(node.state)) for node in nodes)}


class _Numbers:
    """Finds nodes by number; each execution of a run may use a number for another node."""

    def __init__(self, nodes: list[TraceNode], index: Mapping[TraceNode, int]) -> None:
        self._index = index
        self._nodes: dict[int, list[TraceNode]] = {}
        for node in nodes:
            self._nodes.setdefault(node.number, []).append(node)

    def find(self, number: int, node: TraceNode) -> int | None:
        """Return the index of the last node with the number that was put before `node` ended."""
        ended = float("inf") if node.ended is None else node.ended
        there = [each for each in self._nodes.get(number, ()) if each.put <= ended]
        return self._index[max(there, key=lambda each: each.put)] if there else None


def _more(node: TraceNode, numbers: _Numbers) -> dict[str, Any]:
    """Return the properties without a column, in the form that `page/data.js` reads."""
    first = node.intervals[0].end if node.intervals else node.ended
    more = _some(
        {
            "ownAgent": node.own_agent,
            "ownSession": node.own_session,
            "run": node.run_id,
            "id": node.identity,
            "recorded": node.recorded,
            "host": node.host,
            "reason": node.reason,
            "text": node.text,
            "executions": node.executions if node.executions > 1 else 0,
            "error": _error(node.error),
            "retried": [[_us(at), _error(error)] for at, error in node.retried],
            "slow": [[_us(at), seconds, line] for at, seconds, line in node.slow],
            "requests": [_request(request) for request in node.requests],
            "usage": _usage(node.usage),
            "others": [[account, _number(amount)] for account, amount in node.others.items()],
        }
    )
    if len(node.intervals) > 1 or (node.intervals and first != node.ended):
        more["intervals"] = [
            {"start": _us(each.start), "joined": _maybe(each.joined), "end": _maybe(each.end)}
            for each in node.intervals
        ]
    if node.tool:
        more["tool"] = {
            "name": node.tool,
            "call": node.call_id,
            "size": node.call_size,
            "status": node.status,
            "resultSize": node.result_size,
        } | _some({"arguments": _shown(node.arguments), "result": node.result})
    if node.waits or node.waits_for:
        found = [numbers.find(number, node) for number in node.waits_for[:MAX_WAIT_LINKS]]
        on = [place for place in found if place is not None]
        more["waits"] = _some({"text": node.waits, "on": on, "at": node.waits_at})
    if first != node.ended:
        more["ended"] = _maybe(node.ended)
    return more


def _some(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out empty values."""
    return {name: value for name, value in fields.items() if value}


def _maybe(seconds: float | None) -> int | None:
    return None if seconds is None else _us(seconds)


def _number(amount: float) -> float | str:
    """Return an amount as a number, or as text if JavaScript cannot read it exactly."""
    return amount if abs(amount) < 2**53 else str(amount)


def _usage(usage: Mapping[str, Usage]) -> list[list[Any]]:
    fields = ("input_tokens", "output_tokens", "cached_input_tokens", "reasoning_tokens")
    return [[model, *(getattr(used, each) for each in fields)] for model, used in usage.items()]


def _error(error: TraceError | None) -> list[Any] | None:
    if error is None:
        return None
    fields: list[Any] = [error.type, error.at, error.message, [_error(each) for each in error.of]]
    while len(fields) > 1 and not fields[-1]:
        fields.pop()
    return fields


def _request(request: TraceRequest) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "provider": request.provider,
        "model": request.model,
        "start": _us(request.start),
        "chunks": request.chunks,
    }
    if request.first is not None:
        fields["first"] = _us(request.first)
    if request.end is not None:
        fields["end"] = _us(request.end)
    return fields | _some(
        {
            "finish": request.finish_reason,
            "error": _error(request.error),
            "left": request.left,
            "replayed": request.replayed,
            "messages": request.messages,
            "tools": list(request.tools),
            "options": _shown(request.options),
            "usage": _usage(request.usage),
            "input": _messages(request.input),
            "output": next(iter(_messages([request.output] if request.output else [])), None),
        }
    )


def _messages(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"role": str(each.get("role", "?"))}
        | _some(
            {
                "content": each.get("content"),
                "reasoning": each.get("reasoning"),
                "calls": _shown(each.get("tool_calls")),
            }
        )
        for each in messages
    ]


def _shown(value: Any) -> str:
    """Return a value as text; the page does not interpret content."""
    if value is None or value == {} or value == []:
        return ""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, indent=1, ensure_ascii=False)
    except RecursionError:
        return "(nested too deeply to be shown)"
