"""How often the local model picks the right tool, or none. The questions are with the tests.

    python benchmarks/tool_choice.py [--verbose]

Prompts and margin were tuned on the parts `tune` and `other`, without `held_out`. An answer counts
if it calls the expected tool, or if it is text and no tool is needed. Arguments are not judged;
--verbose prints them.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anabranch.backends._local import LocalBackend
from anabranch.messages import Message, Request

DATA = Path(__file__).parent.parent / "tests" / "data" / "tool_choice.json"


@dataclass
class Schema:
    name: str
    description: str
    parameters: dict[str, Any]


@dataclass
class Score:
    right: int = 0
    asked: int = 0
    missed: int = 0
    needless: int = 0
    wrong: int = 0

    def count(self, expected: str | None, picked: str | None) -> None:
        self.asked += 1
        self.right += picked == expected
        self.missed += expected is not None and picked is None
        self.needless += expected is None and picked is not None
        self.wrong += None not in (expected, picked) and picked != expected

    def __str__(self) -> str:
        return (
            f"{self.right:2} of {self.asked} right"
            f" ({self.missed} missed, {self.needless} needless, {self.wrong} the wrong tool)"
        )


async def pick(
    backend: LocalBackend, question: str, tools: list[Schema], whole: bool = False
) -> tuple[str | None, str]:
    """Ask, and return the tool called with its arguments, or None as soon as text comes."""
    request = Request([Message(role="user", content=question)], tools)
    name, arguments = None, ""
    async with aclosing(backend.stream(request)) as deltas:
        async for delta in deltas:
            for call in delta.tool_calls:
                name = call.name or name
                arguments += call.arguments
            if name is None or not whole:
                break
    return name, arguments


async def measure(
    backend: LocalBackend, questions: list[dict[str, Any]], tools: list[Schema], verbose: bool
) -> Score:
    """Ask every question and count."""
    score = Score()
    for entry in questions:
        picked, arguments = await pick(backend, entry["question"], tools, verbose)
        score.count(entry["tool"], picked)
        if verbose:
            mark = " " if picked == entry["tool"] else "x"
            print(mark, entry["question"], "->", picked, arguments)
    return score


async def main(verbose: bool) -> None:
    data = json.loads(DATA.read_text(encoding="utf-8"))
    async with LocalBackend(max_tokens=100) as backend:
        for part, offer in (("tune", "tools"), ("held_out", "tools"), ("other", "other_tools")):
            tools = [Schema(**tool) for tool in data[offer]]
            began = time.perf_counter()
            score = await measure(backend, data[part], tools, verbose)
            seconds = (time.perf_counter() - began) / score.asked
            print(f"{part:9} {score}, {seconds:.2f} s a question")


if __name__ == "__main__":
    asyncio.run(main("--verbose" in sys.argv))
