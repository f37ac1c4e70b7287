"""Draw random bodies of durable programs, and shrink them. See `random_programs.py`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from support.random_programs import KINDS, TOOLS, Body

__all__ = ["draw_body", "shrink_body"]

LEAVES = ["act", "fail", "step", "thread", "random", "now", "pause", "ask", "tools", "table"]
WAITS = ["sleep", "signal", "silence", "talk"]
ONE = ["below", "keyed", "left", "later", "retry", "caught", "rounds"]
MANY = ["settle", "race"]
CUTS = ["quorum", "break", "collect", "cancel", "limit"]


class _Draw:
    def __init__(self, seed: object, unit: float) -> None:
        self.unit = unit
        self.draw = draw = random.Random(f"{seed}")
        self.times = self.names = 0
        # The number of ancestors that may fail or be retried. Below them, rounds and nodes without
        # a waiting parent would be cancelled at a different moment in each execution.
        self.unsure = 0
        # In programs that cancel nodes, only the journal's clock moves.
        self.cuts = draw.random() < 0.5

    def seconds(self) -> float:
        """Return a new duration; no two sums of durations, each used at most twice, are equal."""
        self.times += 1
        return self.unit * 3 ** (self.times - 1)

    def name(self) -> str:
        self.names += 1
        return f"n{self.names}"

    def body(self, depth: int) -> Body:
        return [self.operation(depth) for _ in range(self.draw.randint(1, 3))]

    def operation(self, depth: int) -> list[Any]:
        draw = self.draw
        more = CUTS if depth and self.cuts else WAITS if self.cuts else ["nap"]
        groups = [LEAVES, LEAVES, WAITS, more] + ([ONE, ONE, MANY] if depth else [])
        name = draw.choice(draw.choice(groups))
        if self.times > 6 and name in ("sleep", "silence", *CUTS):
            name = "act"
        if self.unsure and name == "left":
            name = "below"
        few = draw.randint(1, 2)
        match name:
            case "random" | "now":
                return [name]
            case "sleep" | "silence":
                return [name, self.seconds()]
            case "nap":
                return [name, few / 10]
            case "signal":
                return [name, self.name()]
            case "talk":
                return [name, self.name(), few]
            case "ask":
                return [name, draw.choice(["say", "act"])]
            case "tools":
                chosen = draw.choices([each.name for each in TOOLS], k=draw.randint(1, 3))
                return [name, [[each, draw.randint(1, 2)] for each in chosen]]
            case "rounds":
                return [name, self.body(depth - 1), self.body(depth - 1)]
            case _ if name in LEAVES:
                return [name, few]
            case _:
                pass
        fails = name in ("retry", "caught", *CUTS)
        self.unsure += fails
        drawn = self.with_bodies(name, few, depth)
        self.unsure -= fails
        return drawn

    def with_bodies(self, name: str, few: int, depth: int) -> list[Any]:
        kind = self.draw.choice([*KINDS])
        if name in ("cancel", "limit"):
            return [name, self.seconds(), kind, self.timed(depth - 1)]
        if name in CUTS:
            return [name, kind, *[self.timed(depth - 1) for _ in range(1 + few)]]
        bodies = 1 if name in ONE else 1 + few
        return [name, kind, *[self.body(depth - 1) for _ in range(bodies)]]

    def timed(self, depth: int) -> Body:
        return [["sleep", self.seconds()], *self.body(depth)]


def draw_body(seed: object, depth: int = 2, unit: float = 0.5) -> Body:
    """Draw a program whose shortest sleep takes `unit` seconds."""
    return _Draw(seed, unit).body(depth)


def smaller(body: Body) -> Iterator[Body]:
    """Yield each body with one operation removed or made smaller."""
    for at, (name, *parts) in enumerate(body):
        before, after = body[:at], body[at + 1 :]
        yield [*before, *after]
        for place, part in enumerate(parts):
            if not isinstance(part, list) or name == "tools":
                continue
            kept = part[:1] if name in CUTS else []  # the sleep
            yield [*before, *part, *after]
            for less in smaller(part[len(kept) :]):
                yield [*before, [name, *parts[:place], kept + less, *parts[place + 1 :]], *after]


def shrink_body(body: Body, fails: Callable[[Body], bool]) -> Body:
    """Remove operations from a failing body as long as it still fails; return the smallest."""
    for less in smaller(body):
        if fails(less):
            return shrink_body(less, fails)
    return body
