"""A durable run that dies and is taken up again is one picture, whoever is killed when."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from _lives import Disk, Kill, Life, MemoryFile, doubtful, play
from _program_draw import draw_body
from _programs import LIVE, program, send_signals
from _scale import many, seeds

from anabranch.commander import Commander
from anabranch.tracing import Recorder, Trace, TraceNode, read, record

Key = tuple[str, str]


class Recorded:
    """Lives whose recordings go to one file; after each row it is known how long the file was."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sizes: dict[int, int] = {}
        self.usage: dict[str, Any] = {}
        self._recorder: Recorder | None = None

    @asynccontextmanager
    async def around(self) -> AsyncIterator[None]:
        async with Commander() as commander, record(commander, self.path, append=True) as recorder:
            self._recorder = recorder
            yield
        self.usage = commander.usage()

    def file(self, disk: Disk) -> MemoryFile:
        noted = self

        class Noted(MemoryFile):
            def append(self, run_id: str, fence: int, row: Any) -> int:
                number = super().append(run_id, fence, row)
                assert noted._recorder is not None
                assert noted._recorder._feed.flush()
                noted.sizes[number] = noted.path.stat().st_size
                return number

        return Noted(disk)

    def live(self, body: Any, seed: int, disk: Disk | None = None) -> Life:
        self.sizes = {}
        return play(
            program(body),
            disk,
            seed=seed,
            live=LIVE,
            beside=send_signals(body),
            around=self.around,
            file=self.file,
        )


def places(trace: Trace) -> dict[Key, TraceNode]:
    """Return the nodes by who they are; nobody is there twice.

    But for those whose inputs are what each run says anew: a time, a random number, a reply.
    """
    found: dict[Key, TraceNode] = {}
    for node in trace:
        if node.name == "echo":
            continue
        assert node.identity, node
        assert found.setdefault((node.run_id, node.identity), node) is node, node
    return found


def parent_of(node: TraceNode) -> Key:
    assert node.parent is not None
    return node.parent.run_id, node.parent.identity


@pytest.mark.parametrize("seed", seeds(many(12, 300)))
def test_a_run_that_was_killed_is_one_tree(seed: int, tmp_path: Path) -> None:
    """Each node once, below its parent, ended; and spent is what the last life says."""
    body, draw = draw_body(f"tracing {seed}", 1 + seed % 3), random.Random(seed)
    lives = Recorded(tmp_path / "lives.jsonl")
    life = first = lives.live(body, seed)
    assert first.error is None
    expected = places(read(lives.path))
    assert read(lives.path).usage() == lives.usage

    lossless = True
    for _ in range(draw.randint(1, 3)):
        rows = draw.randint(min(life.before + 1, len(life.rows)), len(life.rows))
        if rows in lives.sizes:
            size = lives.sizes[rows]
            if draw.random() < 0.5:  # the last events were not written yet
                size, lossless = draw.randint(0, size), False
            os.truncate(lives.path, size)
        done = frozenset(key for key in doubtful(life, rows) if draw.random() < 0.5)
        life = lives.live(body, draw.randrange(1 << 30), Kill(rows, done).of(life))
        assert life.outcome == first.outcome

    trace = read(lives.path)
    found = places(trace)
    assert trace.missed == 0
    assert found.keys() <= expected.keys(), body
    assert found.keys() == expected.keys() or not lossless, body
    for key, node in found.items():
        assert parent_of(node) == parent_of(expected[key]), (node, body)
        assert not node.is_open
        assert node.state in (expected[key].state, "lost"), (node, body)
    if any(node.lives > 1 for node in trace):  # else there was nothing left to do
        assert trace.usage() == lives.usage, body
    assert trace.root.usage == {}
