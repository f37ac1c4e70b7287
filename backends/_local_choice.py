"""Let a small model choose a tool or none, by sorting the request under a heading.

Asked whether a tool fits, such a model says yes or no at random. But it can sort. The prompt shows
requests with their headings, one heading for each tool and one for plain answers. Then the
likelihoods of the headings are compared for the request. The examples are made from the tools'
descriptions and come after those that need no tool (the reverse order and mixed order did worse). A
heading may be likely for any request, so its average over some requests that need no tool is
subtracted first.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from ..messages import ProgressEvent, ToolSchema, Usage
from ._local_model import Model

__all__ = ["choose", "get_ready"]

_T = TypeVar("_T")
# Yields progress or None, and returns the result.
Steps: TypeAlias = Generator[ProgressEvent | None, None, _T]

_OTHER_HEADING = "other"
_PLAIN_REQUESTS = (
    "Tell me a riddle.",
    "Who was Napoleon?",
    "How do plants grow?",
    "Good morning!",
    "Write a short story.",
)
# Other requests than those in the prompt, because the model would repeat the headings of those.
_NEUTRAL_REQUESTS = (
    "Why do birds sing?",
    "What is a window?",
    "Tell me something nice.",
    "Who built the pyramids?",
    "How are you?",
    "Explain gravity.",
)
# Tuned on the questions marked `tune` and `other` in tests/data/tool_choice.json, not on those
# marked `held_out`.
_CHOICE_MARGIN = 3.75
# The heading of a single tool gains less. Measured with each of that file's three tools alone: 1.5
# to 4.1 for requests that need the tool, at most 2.4 for others.
_SINGLE_TOOL_MARGIN = 2.45
_MIN_LOGPROB = -20.0


@dataclass(frozen=True, slots=True)
class _Sorting:
    """A prompt that sorts requests under headings; the last heading is for plain answers."""

    headings: tuple[str, ...]
    shown: tuple[tuple[str, str], ...]

    @classmethod
    def under(cls, tools: Sequence[ToolSchema]) -> _Sorting:
        """Return the prompt for these tools, from their descriptions."""
        headings = (*_headings([tool.name for tool in tools]), _OTHER_HEADING)
        about: list[tuple[str, str]] = []
        for tool, heading in zip(tools, headings, strict=False):
            first_line = tool.description.strip().partition("\n")[0]
            about.append((first_line or " ".join(_words(tool.name)), heading))
        rules = ["Sort each request under one heading."]
        rules += [f"{heading}: {text}" for text, heading in about]
        rules += [f"{_OTHER_HEADING}: Anything else."]
        shown = [("system", "\n".join(rules))]
        for request, heading in [
            *((request, _OTHER_HEADING) for request in _PLAIN_REQUESTS),
            *about,
        ]:
            shown += [("user", request), ("assistant", heading)]
        return cls(headings, tuple(shown))

    def ask(self, model: Model, request: str) -> Steps[tuple[list[float], Usage]]:
        """Return the log likelihood of each tool's heading minus that of plain answers."""
        chat = [{"role": role, "content": text} for role, text in (*self.shown, ("user", request))]
        yield from model.read(chat)
        tokens, usage = model.first_tokens(chat)
        likelihoods: list[float] = []
        for heading in self.headings:  # sum over the tokens that can begin only this heading
            rivals = [other for other in self.headings if other != heading]
            starts = [
                math.exp(logprob)
                for token, logprob in tokens.items()
                if token
                and heading.startswith(token)
                and not any(rival.startswith(token) for rival in rivals)
            ]
            likelihoods.append(math.log(sum(starts)) if starts else _MIN_LOGPROB)
        *tools, plain = likelihoods
        return [tool - plain for tool in tools], usage


def choose(
    model: Model, request: str, tools: Sequence[ToolSchema], *, must: bool
) -> Steps[tuple[ToolSchema | None, Usage]]:
    """Return a tool for `request`, or None unless one `must` be chosen, and the usage.

    The model prefers the last headings in the prompt. So if a tool is needed, the model is asked
    again with the tools in reverse, and both scores are added. Yields between the steps,
    where it can be stopped. The baselines are measured once for a model and its tools.
    """
    gains, cost = yield from _score_gains(model, request, tools)
    margin = _CHOICE_MARGIN if len(tools) > 1 else _SINGLE_TOOL_MARGIN
    if not must and max(gains) <= margin:
        return None, cost
    if len(tools) > 1:
        reverse_gains, reverse_cost = yield from _score_gains(model, request, tools[::-1])
        gains = [gain + other for gain, other in zip(gains, reversed(reverse_gains), strict=True)]
        cost += reverse_cost
    return tools[max(range(len(tools)), key=gains.__getitem__)], cost


def get_ready(model: Model, tools: Sequence[ToolSchema]) -> Steps[None]:
    """Read the beginning of each prompt for `tools`, and measure the baselines."""
    yield from _baseline(model, _Sorting.under(tools))
    if len(tools) > 1:
        yield from _baseline(model, _Sorting.under(tools[::-1]))


def _score_gains(
    model: Model, request: str, tools: Sequence[ToolSchema]
) -> Steps[tuple[list[float], Usage]]:
    """Return how much likelier than its baseline each tool's heading is, and the usage."""
    sorting = _Sorting.under(tools)
    usual, cost = yield from _baseline(model, sorting)
    scores, usage = yield from sorting.ask(model, request)
    yield
    return [score - mean for score, mean in zip(scores, usual, strict=True)], cost + usage


def _baseline(model: Model, sorting: _Sorting) -> Steps[tuple[list[float], Usage]]:
    """Return the average scores over requests that need no tool, and the usage.

    The model's memory caches the scores, so an interrupted measurement continues.
    """
    cost = Usage()
    usual: list[float] | None = model.memory.get(sorting)
    if usual is None:
        rows: list[list[float]] = model.memory.setdefault((sorting, "rows"), [])
        for neutral in _NEUTRAL_REQUESTS[len(rows) :]:
            row, usage = yield from sorting.ask(model, neutral)
            rows.append(row)
            cost += usage
            yield
        usual = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
        model.memory[sorting] = usual
    return usual, cost


def _headings(names: Sequence[str]) -> list[str]:
    """Return a heading for each name: its last word that no other name has, if there is one."""
    counts = Counter(word for name in names for word in set(_words(name)))
    found = [next((w for w in reversed(_words(n)) if counts[w] == 1), "") for n in names]
    if all(word and word != _OTHER_HEADING for word in found):
        return found
    return [f"{number} {' '.join(_words(name))}" for number, name in enumerate(names, 1)]


def _words(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[^\W\d_A-Z]+|\d+", name)]
