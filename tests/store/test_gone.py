"""D15: code that has changed since the run began: new calls run, missing ones are reported."""

from __future__ import annotations

from typing import Any

import pytest
from support.killed_executions import (
    Execution,
    Kill,
    effects_in_doubt,
    kill_at_random,
    run_execution,
)
from support.memory_journal import act
from support.seeds import example_count, seeds

from anabranch import tool
from anabranch.commander import Node
from anabranch.handlers import handler
from anabranch.store import Durable
from anabranch.store._execution import FIRST_ROOT
from anabranch.store._unreplayed import child_name
from anabranch.store._view import RunView, view

pytestmark = pytest.mark.contract("D15")

CODE: dict[str, list[str]] = {}


class Part(Durable[str]):
    name: str

    async def task(self) -> str:
        return await act("part", self.name)


class Whole(Durable[str]):
    """Follows `CODE` in its body and in a plain handler."""

    async def task(self) -> str:
        await self.call_handler(plain())
        for job in put(self, "body"):
            await job
        for name in CODE.get("acts", ()):
            await act(f"act {name}", name)
        for name in CODE.get("calls", ()):
            await self.durable.call(keep if name == "k" else look, name)
        return await self.durable.signal("go", str)


@tool
async def keep(name: str) -> str:
    return name


@tool(read_only=True)
async def look(name: str) -> str:
    return name


@handler
async def plain(node: Node[Any]) -> None:
    put(node, "plain")


def put(node: Node[Any], where: str) -> list[Any]:
    jobs: list[Any] = []
    for name in CODE.get(where, ()):
        kind, _, key = name.partition(" ")
        step = kind == "step" and isinstance(node, Durable)
        job = node.durable.step(load, key) if step else node.put_job(Part(name), key=key or None)  # type: ignore[union-attr]
        jobs.append(job)
    return jobs


def load(name: str) -> str:
    return name


async def go(journal: Any) -> None:
    await journal.signal("run", "go", "went")


def seen(execution: Execution) -> RunView:
    return view(execution.disk.runs["run"], execution.rows, [])


BEFORE = {
    "body": ["a", "part b", "step c", "step d"],
    "plain": ["p", "q"],
    "acts": ["x", "y"],
    "calls": ["k", "l"],
}


def life_with(code: dict[str, list[str]], *lives: Execution, rows: int | None = None) -> Execution:
    CODE.clear()
    CODE.update(code)
    if not lives:
        return run_execution(Whole, beside=go)
    rows = len(lives[0].rows) if rows is None else rows
    return run_execution(Whole, Kill(rows, frozenset()).of(lives[0]))


def rows_before_the_end(execution: Execution) -> int:
    """Return the number of rows before the root's result."""
    ends = [row.seq for row in execution.rows if row.kind == "result" and len(row.ident) == 16]
    return ends[0] - 1


def test_what_is_gone_is_reported_and_what_is_new_runs(caplog: pytest.LogCaptureFixture) -> None:
    """By putter, in a warning and for `runs show`; the run continues."""
    first = life_with(BEFORE)
    assert first.result == "went"
    assert seen(first).unreplayed == []
    changed = {"body": ["a", "new", "step d"], "plain": ["q"], "acts": ["y", "z"]}
    execution = life_with(changed, first, rows=rows_before_the_end(first))
    assert execution.result == "went"
    assert seen(execution).unreplayed == [
        "Commander/Whole#1/plain#2: Part",
        "Commander/Whole#1: Part[b], load, call:look, act x, keep",
    ]
    assert {name.split("#")[0] for name in execution.disk.done.values()} >= {
        "part(new)",
        "act z(z)",
    }
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 2
    assert "'run'" in warnings[1]
    assert "Part[b], load, call:look, act x, keep" in warnings[1]
    caplog.clear()
    again = run_execution(Whole, Kill(len(execution.rows) - 2, frozenset()).of(execution))
    assert seen(again).unreplayed == seen(execution).unreplayed
    assert not caplog.records


@pytest.mark.parametrize("seed", seeds(example_count(3, 100)))
def test_nothing_is_gone_where_nothing_has_changed(seed: int) -> None:
    """After any kill, and any number of kills."""
    CODE.clear()
    CODE.update(BEFORE)
    first = run_execution(Whole, beside=go, seed=seed)
    execution = kill_at_random(Whole, seed, first=first, beside=go)
    assert seen(execution).unreplayed == []


def test_rows_say_whose_they_are() -> None:
    """A history names the nodes of outcomes, with their keys."""
    first = life_with(BEFORE)
    found = seen(first)
    names = [found.names.get(row.ident) for row in first.rows if row.kind == "result"]
    assert names.count("Part[b]") == 1
    assert names.count("load") == 2
    assert names.count("Part") == 3


class Chain(Durable[str]):
    """Puts a round from its body, from a handler below it, and from a final callback."""

    def __post_init__(self) -> None:
        self.at_end(put_last)

    async def task(self) -> str:
        put_rounds(self, "body")
        await self.call_handler(puts_below())
        return await act("done")


@handler
async def puts_below(node: Node[Any]) -> None:
    put_rounds(node, "plain")


async def put_last(job: Durable[Any]) -> None:
    put_rounds(job, "callback")
    await act("between")


def put_rounds(node: Node[Any], where: str) -> None:
    for name in CODE.get(where, ()):
        node.put_job(Part(name), parent=node.commander, key=name)


ROUNDS = {"body": ["a", "b"], "plain": ["c"], "callback": ["d", "e"]}
FEWER = {"body": ["b"], "callback": ["e"]}


def test_rounds_that_are_not_put_again_are_reported_and_done() -> None:
    """For any putter, over or not; unchanged code reports nothing."""
    CODE.clear()
    CODE.update(ROUNDS)
    first = run_execution(Chain)
    for rows in range(len(first.rows)):
        before = first.rows[:rows]
        known = {child_name(row.ident) for row in before if row.kind == "root"}
        ended = {
            row.kind for row in before if row.ident == FIRST_ROOT and row.kind in ("result", "over")
        }
        gone = {"Part[a]", "Part[c]", "Part[d]"} & known
        if ended:  # its body does not run again
            gone &= set() if "over" in ended else {"Part[d]"}
        for code, left in ((ROUNDS, set[str]()), (FEWER, gone)):
            CODE.clear()
            CODE.update(code)
            execution = run_execution(
                Chain, Kill(rows, frozenset(effects_in_doubt(first, rows))).of(first)
            )
            assert execution.state == "completed"
            told = [
                each
                for text in seen(execution).unreplayed
                for each in text.split(": ")[1].split(", ")
            ]
            assert sorted(told) == sorted(left), f"killed after row {rows}"
            done = {name.split("#")[0] for name in execution.disk.done.values()}
            assert {f"part({name[5]})" for name in known} <= done
