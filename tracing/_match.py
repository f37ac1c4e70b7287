"""`match`: pair the nodes of two traces that correspond to each other.

It works from the root down. It pairs the children of two paired nodes by keys, from the most to the
least specific, and children with equal keys in order. The first key identifies a node with all
nodes below it, as in the algorithm of Aho, Hopcroft and Ullman for isomorphic trees. Each key takes
linear time. Nothing is recursive, because trees may be wide and deep.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple, TypeAlias, cast

from ..messages import Usage
from ._trace import Trace
from ._trace_node import TraceError, TraceNode, TraceRequest
from .records import is_plain_option

__all__ = ["Pair", "Side", "as_key", "match"]


def as_key(value: object) -> str:
    """Return a text that is equal for equal JSON values."""
    try:
        return json.dumps(value, sort_keys=True)
    except RecursionError:
        return "nested too deeply to be compared"


class Side:
    """One of the two traces: the facts of its nodes to compare, and the keys to pair them.

    Facts exclude times, numbers, machines and executions. A tool call is a node, with its arguments
    and result. So the facts of requests do not repeat them: neither the call in the reply nor the
    result in the next request.
    """

    def __init__(self, trace: Trace, content: bool, numbers: dict[Hashable, int]) -> None:
        self._content = content
        self._calls: set[str] = set()
        self._results: set[str] = set()
        self._replies: set[str] = set()
        nodes = list(trace.root.walk())
        for node in nodes if content else ():
            if node.tool:
                self._calls.add(as_key([node.tool, node.arguments]))
                self._results.add(node.result)
            for request in node.requests:
                self._replies.add((request.output or {}).get("content", ""))
        self.agent: dict[TraceNode, str] = {}
        # For each node, numbers that stand for its facts, for the facts of all nodes below it, and
        # for both. Equal facts have the same number on both sides.
        self.own: dict[TraceNode, int] = {}
        self.below: dict[TraceNode, int] = {}
        self.complete: dict[TraceNode, int] = {}
        for node in nodes:
            above = "" if node.parent is None else self.agent[node.parent]
            agent = self.agent[node] = node.own_agent or above
            requests = sorted(map(as_key, self.requests(node)))
            own = (as_key(self.facts(node)), agent != above and agent, *requests)
            self.own[node] = numbers.setdefault(own, len(numbers))
        for node in reversed(nodes):
            below = tuple(sorted(self.complete[child] for child in node.children))
            self.below[node] = numbers.setdefault(below, len(numbers))
            both = (self.own[node], self.below[node])
            self.complete[node] = numbers.setdefault(both, len(numbers))

    # --- facts

    def facts(self, node: TraceNode) -> dict[str, Any]:
        """Return the facts of a node, without its agent and its requests."""
        facts: dict[str, Any] = {"name": node.name, "state": node.state}
        if node.tool:
            facts |= {"tool": node.tool, "size of arguments": node.call_size}
            facts |= {"status": node.status, "size of result": node.result_size}
        if node.error is not None:
            facts["error"] = self._error(node.error)
        if node.retried:
            facts["retries"] = len(node.retried)
            facts["retried after"] = [self._error(each) for _, each in node.retried]
        if node.recorded:
            facts["from the journal"] = True
        for model, used in node.usage.items():
            for field in Usage.model_fields:
                if tokens := getattr(used, field):
                    facts[f"{field.replace('_', ' ')} of {model}"] = tokens
        facts |= {f"charged to {account}": amount for account, amount in node.others.items()}
        if self._content:
            if node.tool:
                facts |= {"arguments": node.arguments, "result": node.result}
            if node.reason:
                facts["reason"] = node.reason
            if node.text and node.text not in self._replies:
                facts["text"] = node.text
        return facts

    def requests(self, node: TraceNode) -> list[dict[str, Any]]:
        """Return the facts of a node's requests."""
        return [self._request(request) for request in node.requests]

    def _request(self, request: TraceRequest) -> dict[str, Any]:
        facts: dict[str, Any] = {"provider": request.provider, "model": request.model}
        for name, value in request.options.items():
            if self._content or is_plain_option((name, value)):
                facts[f"option {name}"] = value
        facts["messages"] = request.messages
        facts["tools"] = list(request.tools)
        facts["finish reason"] = request.finish_reason
        if request.error is not None:
            facts["error"] = self._error(request.error)
        for name in "left", "replayed":
            if getattr(request, name):
                facts[name] = True
        if self._content:
            facts["input"] = [each for each in request.input if not self._is_result(each)]
            facts["output"] = self._without_calls(request.output)
        return facts

    def _error(self, error: TraceError | None) -> str:
        if error is None:
            return ""
        message = error.message if self._content else ""
        text = str(TraceError(error.type, error.at, message))
        inner = "; ".join(map(self._error, error.of))
        return f"{text} [{inner}]" if inner else text

    def _is_result(self, message: dict[str, Any]) -> bool:
        return message.get("role") == "tool" and message.get("content", "") in self._results

    def _without_calls(self, message: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return a reply without the calls that were made: each of them is a node."""
        if not message or "tool_calls" not in message:
            return message
        calls = cast("list[dict[str, Any]]", message["tool_calls"])
        rest = [
            each for each in calls if as_key([each["name"], each["arguments"]]) not in self._calls
        ]
        return {**message, "tool_calls": rest}


# --- pairing


def _own_key(side: Side, node: TraceNode) -> Hashable:
    return node.name, side.own[node]


def _call_and_below_key(side: Side, node: TraceNode) -> Hashable:
    return _call_key(side, node), side.below[node]


def _call_key(side: Side, node: TraceNode) -> Hashable:
    return node.name, node.tool, node.call_size, as_key(node.arguments)


def _name_key(side: Side, node: TraceNode) -> Hashable:
    return node.name


def _all_but_name_key(side: Side, node: TraceNode) -> Hashable:
    facts = {name: value for name, value in side.facts(node).items() if name != "name"}
    requests = sorted(map(as_key, side.requests(node)))
    return as_key(facts), *requests, side.below[node]


# From the most to the least specific. Children without an equal key have no partner.
_Key: TypeAlias = "Callable[[Side, TraceNode], Hashable]"
_KEYS: tuple[_Key, ...] = (
    lambda side, node: side.complete[node],
    _own_key,
    _call_and_below_key,
    _call_key,
    _name_key,
    _all_but_name_key,  # renamed
    lambda side, node: "call" if node.tool else None,  # a call of another tool
)


class Pair(NamedTuple):
    """Two nodes that correspond, or a node of only one trace.

    `above` is the index of the parents' pair, -1 for the roots.
    """

    before: TraceNode | None
    after: TraceNode | None
    above: int
    same: bool  # whether their facts and those of all nodes below them are equal


def match(a: Side, b: Side, roots: tuple[TraceNode, TraceNode]) -> list[Pair]:
    """Return all pairs, each before those below it; a node without a partner has none below it.

    The two roots are a pair in any case.
    """
    pairs: list[Pair] = []
    stack = [Pair(*roots, -1, a.complete[roots[0]] == b.complete[roots[1]])]
    while stack:
        pair = stack.pop()
        pairs.append(pair)
        if pair.before is None or pair.after is None:
            continue
        here = len(pairs) - 1
        for x, y in reversed([*_pair_children(a, b, pair.before, pair.after)]):
            same = x is not None and y is not None and a.complete[x] == b.complete[y]
            stack.append(Pair(x, y, here, same))
    return pairs


def _pair_children(
    a: Side, b: Side, before: TraceNode, after: TraceNode
) -> Iterator[tuple[TraceNode | None, TraceNode | None]]:
    """Yield pairs of children: those of `before` in their order, then the rest of `after`."""
    found: dict[TraceNode, TraceNode] = {}
    xs: list[TraceNode] = before.children
    ys: list[TraceNode] = after.children
    for key in _KEYS:
        if not xs or not ys:
            break
        waiting: defaultdict[Hashable, deque[TraceNode]] = defaultdict(deque)
        for y in ys:
            if (of_y := key(b, y)) is not None:
                waiting[of_y].append(y)
        for x in xs:
            if partners := waiting.get(key(a, x)):
                found[x] = partners.popleft()
        taken = set(found.values())
        xs, ys = [x for x in xs if x not in found], [y for y in ys if y not in taken]
    yield from ((each, found.get(each)) for each in before.children)
    yield from ((None, each) for each in ys)
