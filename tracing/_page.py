"""A recording as one page of HTML, which needs no other file and no network.

`page/` has the page's parts, and `page/data.js` reads the data that are made here: a column for
each property of all nodes (times in microseconds, as differences), and the rest node by node.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, get_args

from ..backends import Price
from ..messages import Usage
from ._replace import write_output
from ._trace import Trace
from ._trace_node import TraceError, TraceNode, TraceRequest, TraceState
from .pages import assemble

__all__ = ["write_page"]

PARTS = Path(__file__).parent / "page"
SCRIPTS = "data", "format", "rows", "tree", "timeline", "pointer", "details", "sums", "main"
POLICY = (
    "default-src 'none'; script-src '{script}'; style-src '{style}'; base-uri 'none';"
    " form-action 'none'"
)
STATES: tuple[TraceState, ...] = get_args(TraceState)
# The page links at most so many of the nodes that a node waits for.
MOST_LINKS = 50


def write_page(trace: Trace, file: str | PathLike[str], prices: Mapping[str, Price] | None) -> None:
    """Write the page; `prices` replace recorded ones."""
    known = {**trace.prices, **(prices or {})}
    # No text can end the element or begin a comment in it, and the file is plain ASCII here.
    data = json.dumps(_data(trace, known), separators=(",", ":"), allow_nan=False)
    before, _, after = assemble(PARTS, SCRIPTS, POLICY)[0].partition("{{data}}")
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
        "lives": [
            {"at": _us(life.offset), "pid": life.pid, "host": life.host, "ended": life.ended}
            for life in trace.lives
        ],
        "prices": [
            [model, price.input, price.output, _cached(price)] for model, price in prices.items()
        ],
        "states": STATES,
        "names": list(names),
        "nodes": _columns(nodes, index, names),
        "more": [[place, said] for place, said in more if said],
    }


def _cached(price: Price) -> float:
    return price.input if price.cached_input is None else price.cached_input


def _us(seconds: float) -> int:
    return round(seconds * 1e6)


def _columns(
    nodes: list[TraceNode], index: Mapping[TraceNode, int], names: Mapping[str, int]
) -> dict[str, Any]:
    """Return the properties of all nodes, with their first interval; most differences are small."""
    columns: dict[str, list[int | None]] = {
        name: [] for name in ("up", "number", "name", "put", "start", "joined", "ended")
    }
    number = put = 0
    for place, node in enumerate(nodes):
        at = _us(node.put)
        spell = node.spells[0] if node.spells else None
        start = None if spell is None else _us(spell.start)
        after = at if start is None else start
        ended = node.ended if spell is None or node.ended is None else spell.end
        joined = None if spell is None else spell.joined
        columns["up"].append(0 if node.parent is None else place - index[node.parent])
        columns["number"].append(node.number - number)
        columns["name"].append(names[node.name])
        columns["put"].append(at - put)
        columns["start"].append(None if start is None else start - at)
        columns["joined"].append(None if joined is None else _us(joined) - after)
        columns["ended"].append(None if ended is None else _us(ended) - after)
        number, put = node.number, at
    return {**columns, "state": "".join(str(STATES.index(node.state)) for node in nodes)}


class _Numbers:
    """Finds nodes by number; in several executions of a run a number can have several nodes."""

    def __init__(self, nodes: list[TraceNode], index: Mapping[TraceNode, int]) -> None:
        self._index = index
        self._nodes: dict[int, list[TraceNode]] = {}
        for node in nodes:
            self._nodes.setdefault(node.number, []).append(node)

    def find(self, number: int, node: TraceNode) -> int | None:
        """Return the place of the last node with the number that began before `node` ended."""
        ended = float("inf") if node.ended is None else node.ended
        there = [each for each in self._nodes.get(number, ()) if each.put <= ended]
        return self._index[max(there, key=lambda each: each.put)] if there else None


def _more(node: TraceNode, numbers: _Numbers) -> dict[str, Any]:
    """Return the properties that no column has, in the form that `page/data.js` reads."""
    first = node.spells[0].end if node.spells else node.ended
    more = _some(
        {
            "ownAgent": node.own_agent,
            "ownSession": node.own_session,
            "run": node.run_id,
            "id": node.identity,
            "kept": node.kept,
            "host": node.host,
            "reason": node.reason,
            "text": node.text,
            "lives": node.lives if node.lives > 1 else 0,
            "error": _error(node.error),
            "retried": [[_us(at), _error(error)] for at, error in node.retried],
            "slow": [[_us(at), seconds, line] for at, seconds, line in node.slow],
            "requests": [_request(request) for request in node.requests],
            "usage": _usage(node.usage),
            "others": [[account, _number(amount)] for account, amount in node.others.items()],
        }
    )
    if len(node.spells) > 1 or (node.spells and first != node.ended):
        more["spells"] = [
            {"start": _us(each.start), "joined": _maybe(each.joined), "end": _maybe(each.end)}
            for each in node.spells
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
        found = [numbers.find(number, node) for number in node.waits_for[:MOST_LINKS]]
        on = [place for place in found if place is not None]
        more["waits"] = _some({"text": node.waits, "on": on, "at": node.waits_at})
    if first != node.ended:
        more["ended"] = _maybe(node.ended)
    return more


def _some(said: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out empty values."""
    return {name: value for name, value in said.items() if value}


def _maybe(seconds: float | None) -> int | None:
    return None if seconds is None else _us(seconds)


def _number(amount: float) -> float | str:
    """Return a number of JSON; of a large or infinite one, the text."""
    return amount if abs(amount) < 2**53 else str(amount)


def _usage(usage: Mapping[str, Usage]) -> list[list[Any]]:
    fields = ("input_tokens", "output_tokens", "cached_input_tokens", "reasoning_tokens")
    return [[model, *(getattr(used, each) for each in fields)] for model, used in usage.items()]


def _error(error: TraceError | None) -> list[Any] | None:
    if error is None:
        return None
    said: list[Any] = [error.type, error.at, error.message, [_error(each) for each in error.of]]
    while len(said) > 1 and not said[-1]:
        said.pop()
    return said


def _request(request: TraceRequest) -> dict[str, Any]:
    said: dict[str, Any] = {
        "provider": request.provider,
        "model": request.model,
        "start": _us(request.start),
        "chunks": request.chunks,
    }
    if request.first is not None:
        said["first"] = _us(request.first)
    if request.end is not None:
        said["end"] = _us(request.end)
    return said | _some(
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
    """Return a value as text: the page shows content without reading it."""
    if value is None or value == {} or value == []:
        return ""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, indent=1, ensure_ascii=False)
    except RecursionError:
        return "(nested too deeply to be shown)"
