"""Choosing a tool or none with a small model: which heading does the request go under?

Asked whether a tool fits, a model this small says yes or no at random. What it can do is sort: it
is shown requests and the heading each goes under, a heading for every tool and one for plain
answers, and the likelihoods of the headings are compared for the request at hand. The examples
are made from the tools' own descriptions and come after those that need no tool (the other order,
or taking turns, did worse). Since a heading may be likely whatever the request, its average over
some requests that need no tool is taken off first.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from ..messages import ToolSchema, Usage, Working
from ._local_model import Model

__all__ = ["choose", "get_ready"]

_T = TypeVar("_T")
# What it is busy with, or None; then the result.
Steps: TypeAlias = Generator[Working | None, None, _T]

_NONE = "other"
_PLAIN = (
    "Tell me a riddle.",
    "Who was Napoleon?",
    "How do plants grow?",
    "Good morning!",
    "Write a short story.",
)
# Other than the examples, which would score as what they are.
_NEUTRAL = (
    "Why do birds sing?",
    "What is a window?",
    "Tell me something nice.",
    "Who built the pyramids?",
    "How are you?",
    "Explain gravity.",
)
# Tuned on the questions marked `tune` and `other` in tests/data/tool_choice.json, and not on those
# marked `held_out`.
_MARGIN = 3.75
# A tool that is offered alone gains less: 1.5 to 4.1 where it is needed, at most 2.4 where none is
# (each of the three tools of that file by itself).
_MARGIN_ALONE = 2.45
_FLOOR = -20.0


@dataclass(frozen=True, slots=True)
class _Sorting:
    """A prompt that sorts requests under headings; the last heading is for plain answers."""

    headings: tuple[str, ...]
    shown: tuple[tuple[str, str], ...]

    @classmethod
    def under(cls, tools: Sequence[ToolSchema]) -> _Sorting:
        """Make the prompt for these tools, of their own descriptions."""
        headings = (*_headings([tool.name for tool in tools]), _NONE)
        about: list[tuple[str, str]] = []
        for tool, heading in zip(tools, headings, strict=False):
            first_line = tool.description.strip().partition("\n")[0]
            about.append((first_line or " ".join(_words(tool.name)), heading))
        rules = ["Sort each request under one heading."]
        rules += [f"{heading}: {text}" for text, heading in about]
        rules += [f"{_NONE}: Anything else."]
        shown = [("system", "\n".join(rules))]
        for request, heading in [*((request, _NONE) for request in _PLAIN), *about]:
            shown += [("user", request), ("assistant", heading)]
        return cls(headings, tuple(shown))

    def ask(self, model: Model, request: str) -> Steps[tuple[list[float], Usage]]:
        """Return how much likelier each tool's heading is than the one for plain answers."""
        chat = [{"role": role, "content": text} for role, text in (*self.shown, ("user", request))]
        yield from model.read(chat)
        tokens, usage = model.first_tokens(chat)
        likelihoods: list[float] = []
        for heading in self.headings:  # the sum of the tokens that can only begin this heading
            rivals = [other for other in self.headings if other != heading]
            starts = [
                math.exp(logprob)
                for token, logprob in tokens.items()
                if token
                and heading.startswith(token)
                and not any(rival.startswith(token) for rival in rivals)
            ]
            likelihoods.append(math.log(sum(starts)) if starts else _FLOOR)
        *tools, plain = likelihoods
        return [tool - plain for tool in tools], usage


def choose(
    model: Model, request: str, tools: Sequence[ToolSchema], *, must: bool
) -> Steps[tuple[ToolSchema | None, Usage]]:
    """Pick a tool for `request`, or none unless one `must` be picked; return it and the cost.

    A heading gains from being shown last. So if a tool is needed, which one is asked a second
    time with the tools in reverse, and the two answers count alike. Yields between the steps,
    where it may be stopped. What the headings score without a reason is measured once for a
    model and its tools.
    """
    gains, cost = yield from _gains(model, request, tools)
    margin = _MARGIN if len(tools) > 1 else _MARGIN_ALONE
    if not must and max(gains) <= margin:
        return None, cost
    if len(tools) > 1:
        again, more = yield from _gains(model, request, tools[::-1])
        gains = [gain + other for gain, other in zip(gains, reversed(again), strict=True)]
        cost += more
    return tools[max(range(len(tools)), key=gains.__getitem__)], cost


def get_ready(model: Model, tools: Sequence[ToolSchema]) -> Steps[None]:
    """Read what every choice between `tools` begins with, and measure what it needs once."""
    yield from _usual(model, _Sorting.under(tools))
    if len(tools) > 1:
        yield from _usual(model, _Sorting.under(tools[::-1]))


def _gains(
    model: Model, request: str, tools: Sequence[ToolSchema]
) -> Steps[tuple[list[float], Usage]]:
    """Return by how much each tool's heading is likelier than usual, and the cost of asking."""
    sorting = _Sorting.under(tools)
    usual, cost = yield from _usual(model, sorting)
    scores, usage = yield from sorting.ask(model, request)
    yield
    return [score - mean for score, mean in zip(scores, usual, strict=True)], cost + usage


def _usual(model: Model, sorting: _Sorting) -> Steps[tuple[list[float], Usage]]:
    """Return the average scores over requests that need no tool, and the cost of asking.

    What was measured before is kept, also where it was stopped on the way.
    """
    cost = Usage()
    usual: list[float] | None = model.memory.get(sorting)
    if usual is None:
        rows: list[list[float]] = model.memory.setdefault((sorting, "rows"), [])
        for neutral in _NEUTRAL[len(rows) :]:
            row, usage = yield from sorting.ask(model, neutral)
            rows.append(row)
            cost += usage
            yield
        usual = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
        model.memory[sorting] = usual
    return usual, cost


def _headings(names: Sequence[str]) -> list[str]:
    """Give each name a word of its own: the last that no other name has, if there is one."""
    counts = Counter(word for name in names for word in set(_words(name)))
    found = [next((w for w in reversed(_words(n)) if counts[w] == 1), "") for n in names]
    if all(word and word != _NONE for word in found):
        return found
    return [f"{number} {' '.join(_words(name))}" for number, name in enumerate(names, 1)]


def _words(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[^\W\d_A-Z]+|\d+", name)]
