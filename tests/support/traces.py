"""Build traces from plain trees, as if they were read from a recording; draw random trees."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st

from anabranch.tracing import Trace

__all__ = ["Spec", "make_trace", "specs"]


@dataclass
class Spec:
    """The description of one node of a trace."""

    name: str = "node"
    children: list[Spec] = field(default_factory=list)
    agent: str = ""
    state: str = "completed"
    error: str = ""
    model: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    tokens: int = 0
    size: int = 0  # of a tool call's arguments
    arguments: Any = None
    retries: int = 0
    kept: bool = False
    seconds: float = 0.01

    def walk(self) -> Iterator[Spec]:
        """Yield this node and all descendants."""
        stack = [self]
        while stack:
            spec = stack.pop()
            yield spec
            stack.extend(spec.children)

    def copy(self) -> Spec:
        """Return a copy of the whole tree."""
        copied = replace(self)
        stack = [copied]
        while stack:
            spec = stack.pop()
            spec.children = [replace(child) for child in spec.children]
            stack.extend(spec.children)
        return copied


def make_trace(top: Spec, *, seed: int | None = None, content: bool = False) -> Trace:
    """Return the trace of a run whose top-level nodes are the children of `top`.

    With a `seed`, nodes begin in a random order, at random times, with random numbers.
    """
    chance = random.Random(seed)
    trace = Trace()
    trace.feed({"recording": 1, "time": 9e8, "pid": 1, "host": "box", "content": content})
    number, clock = chance.randrange(50) if seed is not None else 0, 0.0
    waiting = [(0, child) for child in top.children]
    ends: list[tuple[int, Spec, float]] = []
    while waiting:
        at = 0 if seed is None else chance.randrange(len(waiting))
        waiting[at], waiting[-1] = waiting[-1], waiting[at]
        parent, spec = waiting.pop()
        number, clock = number + 1, clock + (0.0 if seed is None else chance.random())
        _begin(trace, number, parent, spec, clock)
        ends.append((number, spec, clock))
        waiting.extend((number, child) for child in spec.children)
    for number, spec, begun in reversed(ends):
        _finish(trace, number, spec, begun + spec.seconds)
    trace.feed({"e": "end", "t": clock + 1, "usage": {}})
    return trace


def _begin(trace: Trace, number: int, parent: int, spec: Spec, clock: float) -> None:
    said: dict[str, Any] = {"e": "put", "t": clock, "n": number, "p": parent, "name": spec.name}
    if spec.agent:
        said["agent"] = spec.agent
    if spec.kept:
        said |= {"run": "r", "id": str(number), "kept": True}
    trace.feed(said)
    if spec.size:
        called = {"e": "called", "t": clock, "n": number, "tool": spec.name, "call": str(number)}
        trace.feed(called | {"size": spec.size, "arguments": spec.arguments})
    trace.feed({"e": "started", "t": clock, "n": number})
    for _ in range(spec.retries):
        trace.feed({"e": "retried", "t": clock, "n": number, "error": {"type": "OSError"}})
        trace.feed({"e": "started", "t": clock, "n": number})


def _finish(trace: Trace, number: int, spec: Spec, clock: float) -> None:
    here = {"t": clock, "n": number}
    if spec.model:
        usage = {spec.model: {"input_tokens": spec.tokens}} if spec.tokens else {}
        asked = {"q": number, "provider": "p", "model": spec.model, "options": spec.options}
        trace.feed({"e": "request", **here, **asked, "messages": 1})
        trace.feed({"e": "charged", **here, "usage": usage})
        trace.feed({"e": "reply", **here, "q": number, "chunks": 1, "usage": usage})
    if spec.size:
        trace.feed({"e": "answered", **here, "status": "ok", "size": 5, "result": "x" * 5})
    more = {"error": {"type": spec.error, "at": "app.py:1 in task"}} if spec.error else {}
    trace.feed({"e": spec.state, **here, **more})


def _spec(children: st.SearchStrategy[list[Spec]]) -> st.SearchStrategy[Spec]:
    return st.builds(
        Spec,
        name=st.sampled_from("abc"),
        children=children,
        agent=st.sampled_from(["", "", "ann", "bob"]),
        state=st.sampled_from(["completed", "completed", "failed", "cancelled"]),
        error=st.just(""),
        model=st.sampled_from(["", "m", "n"]),
        tokens=st.integers(0, 2),
        size=st.sampled_from([0, 0, 3, 4]),
        retries=st.sampled_from([0, 0, 1]),
        kept=st.booleans(),
    )


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    """Return a tree of up to about fifty nodes."""
    below = st.recursive(
        _spec(st.just([])), lambda inner: _spec(st.lists(inner, max_size=5)), max_leaves=20
    )
    top = Spec(children=draw(st.lists(below, min_size=1, max_size=5)))
    for number, spec in enumerate(top.walk()):
        if spec.state == "failed":
            spec.error = f"Error{number % 3}"
    return top.copy()
