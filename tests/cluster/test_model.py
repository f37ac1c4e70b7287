"""Random trees with some nodes on Ray behave like the same trees without Ray.

`ANABRANCH_RAY_PROGRAMS` sets the number of trees (default 24).
"""

from __future__ import annotations

import asyncio
import os
import random
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from support.ray_jobs import Planned, read_notes

from anabranch import Commander

PROGRAMS = int(os.environ.get("ANABRANCH_RAY_PROGRAMS", "24"))

Plan = dict[str, Any]


class Author:
    """Makes plans; nodes of a `strict` one await each child before they continue."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.strict = self.chance.random() < 0.5
        self.numbers = count()

    def plan(self, depth: int = 0) -> Plan:
        label = f"node-{next(self.numbers)}"
        steps: list[Any] = []
        put = 0
        for _ in range(self.chance.randrange(1, 5)):
            what = self.chance.random()
            if what < 0.55 and depth < 3:
                steps.append(("put", self.plan(depth + 1)))
                put += 1
                if self.strict:
                    steps.append(("await", put - 1, self.chance.random() < 0.7))
            elif what < 0.8 and put and not self.strict:
                caught = self.chance.random() < 0.7
                number = self.chance.randrange(put)
                steps.append(self.chance.choice([("await", number, caught), ("cancel", number)]))
            else:
                steps.append(("pause",))
        if depth and self.chance.random() < 0.2:
            steps.append(("fail",) if self.strict else self.chance.choice([("fail",), ("stand",)]))
        return {
            "label": label,
            "steps": steps,
            "on": self.chance.choice((None, None, "left", "right")) if depth < 3 else None,
            "policy": self.chance.choice(("fail_fast", "collect", "isolate")),
            "claim": self.chance.random() < 0.5,
        }


def at_home(plan: Plan) -> Plan:
    """Return the same plan with all nodes in this process."""
    steps = [("put", at_home(step[1])) if step[0] == "put" else step for step in plan["steps"]]
    return {**plan, "on": None, "steps": steps}


def labels(plan: Plan) -> dict[str, list[str]]:
    """Return the labels of a plan's nodes, each with those of its children."""
    children = [step[1] for step in plan["steps"] if step[0] == "put"]
    found = {plan["label"]: [child["label"] for child in children]}
    for child in children:
        found |= labels(child)
    return found


async def play(plan: Plan, file: str) -> str:
    """Run a plan; cancel it after a while if it waits forever. Return the outcome."""
    async with Commander() as commander:
        root = Planned(plan, file).noting()
        commander.put_job(root, policy=plan["policy"], claim=True)
        ended = asyncio.ensure_future(_outcome(root))
        try:
            await asyncio.wait_for(asyncio.shield(ended), 1 if "'stand'" in repr(plan) else 30)
        except TimeoutError:
            root.cancel("enough")
        return await ended


async def _outcome(root: Planned) -> str:
    try:
        return f"completed {await root}"
    except Exception as error:
        return f"{root.state} {type(error).__name__} {error}"


def check(plan: Plan, noted: str) -> dict[str, str]:
    """Check what must hold of any run; return how each node ended."""
    starts: dict[str, int] = {}
    ends: dict[str, tuple[int, str]] = {}
    for number, line in enumerate(noted.splitlines()):
        label, what = line.split()
        if what == "starts":
            assert label not in starts, f"{label} ran twice"
            starts[label] = number
        else:
            assert label not in ends, f"{label} ended twice"
            ends[label] = (number, what)
    assert starts.keys() <= ends.keys(), "a node was left"
    for label, children in labels(plan).items():
        for child in children:
            if child in ends:
                assert ends[child][0] < ends[label][0], f"{child} ended after {label}"
    return {label: what for label, (_, what) in ends.items()}


@pytest.mark.usefixtures("nodes")
@pytest.mark.parametrize("part", range(4))
async def test_every_invariant_holds_in_random_trees_over_machines(
    part: int, tmp_path: Path
) -> None:
    """Each node runs once and ends after its children; strict plans end as without Ray."""
    for seed in range(part, PROGRAMS, 4):
        author = Author(seed)
        plan = author.plan()
        file, other = str(tmp_path / f"{seed}"), str(tmp_path / f"{seed}-home")
        try:
            async with asyncio.timeout(60):
                outcome = await play(plan, file)
                ended = check(plan, read_notes(file))
                if author.strict:
                    assert outcome == await play(at_home(plan), other)
                    assert ended == check(plan, read_notes(other))
        except BaseException as error:
            error.add_note(f"seed {seed}: {plan}")
            raise
