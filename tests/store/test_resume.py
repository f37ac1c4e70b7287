"""D21: a resume runs the failed parts of a run again, and nothing else."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from support.killed_executions import Execution, Kill, effects_in_doubt, run_execution
from support.memory_journal import RUN_ID, Disk, act, journal_of
from support.seeds import example_count, seeds

from anabranch.backends import Backend
from anabranch.commander import BackendUnavailable, Node, Retry
from anabranch.commander.durable import scope_here
from anabranch.handlers import handler
from anabranch.messages import Delta, Message, Request
from anabranch.store import Durable, DurableCalls, Live
from anabranch.store import live as later

pytestmark = pytest.mark.contract("D21")

# By name: things that fail at the moment, how often each was tried, and the questions about them.
BROKEN: set[str] = set()
TRIED: Counter[str] = Counter()
ASKED: list[str] = []

Step = list[Any]


def attempt(name: str) -> str:
    TRIED[name] += 1
    if name in BROKEN:
        raise ValueError(name)
    return name


class Model(Backend):
    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        name = str(request.messages[0].content)
        TRIED[name] += 1
        yield Delta(text="said")
        if name in BROKEN:
            raise BackendUnavailable(name)
        yield Delta(text=f" {name}", finish_reason="stop")


async def try_to(name: str) -> str:
    """Do something outside, whose outcome is always known."""

    async def work() -> str:
        return attempt(name)

    async def reconcile(_: str) -> bool:
        ASKED.append(name)
        return False

    return await scope_here().effect(name, {}).do(work, reconcile=reconcile)  # type: ignore[union-attr]


async def in_step(name: str) -> str:
    return attempt(name)


class Branch(Durable[list[str]]):
    steps: list[Any]
    backend: Live[Backend] = later()

    async def task(self) -> list[str]:
        return await follow(self, self.steps, self.backend)


@handler
async def branch(node: Node[Any], steps: list[Step], backend: Backend) -> list[str]:
    return await follow(node, steps, backend)


async def follow(node: Node[Any], steps: list[Step], backend: Backend) -> list[str]:
    """Follow the steps; return their outcomes."""
    seen: list[str] = []
    for what, name, caught, *rest in steps:
        try:
            match what:
                case "step":
                    seen.append(await DurableCalls(node).step(in_step, name))
                case "effect":
                    seen.append(await try_to(name))
                case "reply":
                    seen.append(str((await backend.complete(asks(name))).content))
                case "act":
                    seen.append(await act(name))
                case _:
                    seen.append(await below(node, backend, *rest))
        except (ValueError, BackendUnavailable, ExceptionGroup, LookupError) as error:
            if caught == "wrapped":
                raise LookupError(name) from error
            if not caught:
                raise
            seen.append(await act(f"caught {name}", f"{error}"))
    return seen


def asks(name: str) -> Request:
    return Request([Message(role="user", content=name)])


async def below(node: Node[Any], backend: Backend, programs: list[Any], policy: Any) -> str:
    nodes: list[Node[Any]] = []
    for durable, retried, steps in programs:
        retry = Retry(attempts=2, backoff=0) if retried else None
        if durable:
            nodes.append(
                node.put_job(Branch(steps, backend), policy=policy, retry=retry, claim=True)
            )
        else:
            nodes.append(
                node.call_handler(branch(steps, backend), policy=policy, retry=retry, claim=True)
            )
    return str([await each for each in nodes])


def draw(chance: random.Random, depth: int, counter: list[int]) -> list[Step]:
    steps: list[Step] = []
    for _ in range(chance.randint(1, 3)):
        counter[0] += 1
        name = str(counter[0])
        kinds = ["step", "effect", "reply", "act"] + ["below"] * 3 * (depth > 0)
        what = chance.choice(kinds)
        rest: list[Any] = []
        if what == "below":
            programs = [
                [chance.random() < 0.5, chance.random() < 0.2, draw(chance, depth - 1, counter)]
                for _ in range(chance.randint(1, 2))
            ]
            rest = [programs, chance.choice(["fail_fast", "collect"])]
        caught = chance.choice([False, False, True, "wrapped"])
        steps.append([what, name, caught, *rest])
    return steps


def program(seed: int) -> tuple[Branch, list[str]]:
    """Return a program and its steps that fail at first."""
    chance, counter = random.Random(seed), [0]
    job = Branch(draw(chance, 2, counter), Model("model"))
    return job, [str(n + 1) for n in range(counter[0]) if chance.random() < 0.3]


def resume(disk: Disk) -> None:
    async def main() -> None:
        async with journal_of(disk) as journal:
            await journal.resume(RUN_ID)

    asyncio.run(main())


def broken_at_first(seed: int) -> Execution:
    """Play the first execution of a program."""
    BROKEN.clear()
    TRIED.clear()
    ASKED.clear()
    job, broken = program(seed)
    BROKEN.update(broken)
    return run_execution(lambda: job)


def unknown(execution: Execution) -> set[str]:
    """Return the names of calls that were cut off, so that their outcome is unknown."""
    last = {row.ident: row for row in execution.rows if row.kind in ("intent", "gave", "failed")}
    return {json.loads(row.value)["name"] for row in last.values() if row.kind == "intent"}


# Several of these fail in one turn.
AT_ONCE = {892, 1015, 2172}


@pytest.mark.parametrize("seed", sorted({*seeds(example_count(30, 4000)), *AT_ONCE}))
def test_what_has_failed_runs_again_and_nothing_else(seed: int) -> None:
    """One resume after the repair is enough; known outcomes are never asked about."""
    execution = broken_at_first(seed)
    if execution.state != "failed":
        assert execution.state == "completed"
        return
    kept = {row.ident for row in execution.rows if row.kind in ("result", "gave", "reply")}
    before = Counter(TRIED)
    BROKEN.clear()
    resume(execution.disk)
    again = run_execution(lambda: program(seed)[0], execution.disk)
    assert (again.error, again.state) == (None, "completed")
    assert set(ASKED) <= unknown(execution), "it was known"
    repeated = [
        row for row in again.rows[len(execution.rows) :] if row.kind in ("result", "gave", "reply")
    ]
    assert not kept & {row.ident for row in repeated}, "what had completed ran again"
    assert all(count - before[name] <= 1 for name, count in TRIED.items())
    rows = len(again.rows)
    for number in range(len(execution.rows) + 1, rows + 1):
        for done in {frozenset(effects_in_doubt(again, number)), frozenset[str]()}:
            last = run_execution(
                lambda: program(seed)[0], Kill(number, done).of(again), seed=number
            )
            assert last.outcome == again.outcome, f"killed after row {number}"


class Aborted(Durable[list[str]]):
    """Is ended by a child that it does not await; others fail in the same turn, or later."""

    below: list[list[Any]]
    backend: Live[Backend] = later()

    async def task(self) -> list[str]:
        jobs = [
            self.put_job(Branch(steps, self.backend), key=f"{n}")
            for n, steps in enumerate(self.below)
        ]
        first = await self.durable.step(in_step, "first")
        return [first, *[str(await job) for job in jobs]]


STEP, EFFECT, WRAPPED = ["step", "a", False], ["effect", "b", False], ["step", "c", "wrapped"]


@pytest.mark.parametrize(
    "below", [[[STEP]], [[EFFECT], [STEP]], [[EFFECT, STEP]], [[EFFECT], [EFFECT]], [[WRAPPED]]]
)
def test_a_job_that_was_cut_short_runs_again_with_what_cut_it_short(below: list[Any]) -> None:
    """After a kill at any point, and any number of failures at once: one resume is enough."""
    BROKEN.clear()
    BROKEN.update("abc")

    def make() -> Aborted:
        return Aborted(below, Model("model"))

    first = run_execution(make)
    # A kill between two failures of one turn leaves one of them without a consequence.
    kills = [row.seq for row in first.rows if row.kind == "aborted"] if len(below) > 1 else None
    for rows in kills or range(len(first.rows) + 1):
        BROKEN.update("abc")
        execution = run_execution(make, Kill(rows, frozenset()).of(first))
        assert execution.outcome == first.outcome
        BROKEN.clear()
        resume(execution.disk)
        again = run_execution(make, execution.disk)
        assert (again.error, again.state) == (None, "completed"), f"killed after row {rows}"


@pytest.mark.parametrize("seed", seeds(example_count(20, 2000)))
def test_a_run_may_be_resumed_again_and_again(seed: int) -> None:
    """Each time one more thing is repaired; the run completes, and repeats no effect."""
    execution = broken_at_first(seed)
    left = sorted(BROKEN, key=int)
    for _ in range(len(left) + 2):
        if execution.state != "failed":
            break
        before = len(execution.rows)
        resume(execution.disk)
        resume(execution.disk)  # a second resume changes nothing
        assert [row.kind for row in execution.disk.rows[RUN_ID][before:]].count("resumed") <= 2
        BROKEN.difference_update(left[-1:])
        del left[-1:]
        ASKED.clear()
        unsure = unknown(execution)
        execution = run_execution(lambda: program(seed)[0], execution.disk)
        assert set(ASKED) <= unsure, "it was known"
    assert execution.error is None


class Wait(Durable[str]):
    async def task(self) -> str:
        await act("before")
        return await self.durable.signal("go", str)


def test_a_run_in_which_nothing_has_failed_is_left_as_it_is() -> None:
    """A new, suspended or cancelled run: no row is added and its state stays."""

    async def beside(journal: Any) -> None:
        await journal.start(Wait(), run_id="other")
        await journal.resume("other")
        assert (await journal._file.run("other")).state == "pending"
        await journal.cancel("other")
        rows = (await journal._file.run("other")).rows
        await journal.resume("other")
        assert (await journal._file.run("other")).rows == rows
        assert (await journal._file.run("other")).state == "cancelled"
        await journal.signal(RUN_ID, "go", "on")

    execution = run_execution(Wait, beside=beside)
    cut = Kill(2, frozenset(execution.disk.done)).of(execution)
    resume(cut)
    assert (len(cut.rows[RUN_ID]), cut.runs[RUN_ID].state) == (2, "suspended")
    assert run_execution(Wait, cut).result == "on"


class Cleans(Durable[str]):
    """Waits for a job with its own timer, and cleans up if the job fails."""

    async def task(self) -> str:
        job = asyncio.ensure_future(seen(self.put_job(Breaks(), claim=True)))
        timer = asyncio.ensure_future(asyncio.sleep(3))
        await asyncio.wait([job, timer], return_when=asyncio.FIRST_COMPLETED)
        timer.cancel()
        try:
            return await act("ship", await job) if job.done() else "late"
        except ValueError:
            await act("clean")
            raise


class Breaks(Durable[str]):
    async def task(self) -> str:
        await asyncio.sleep(2)
        return attempt("job")


async def seen(job: Node[str]) -> str:
    return await job


def test_what_was_done_because_of_a_failure_holds_nothing_that_runs_again() -> None:
    """The failure does not happen again, so the job ends before the timer."""
    BROKEN.clear()
    BROKEN.add("job")
    execution = run_execution(Cleans)
    assert isinstance(execution.error, ValueError)
    BROKEN.clear()
    resume(execution.disk)
    assert str(run_execution(Cleans, execution.disk).result).startswith("ship(job)")
