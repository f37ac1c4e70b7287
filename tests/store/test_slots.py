"""T9 in durable runs: a job keeps its slot while it waits only for its own steps and effects."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support.killed_executions import Execution, Kill, kill_at_random, run_execution
from support.memory_journal import START_TIME
from support.random_program_draw import draw_body
from support.random_programs import LIVE, program, send_signals
from support.seeds import example_count, seeds

from anabranch import Node, Retry, current_node, handler, tool
from anabranch.commander import Commander, settle
from anabranch.jobs import Job
from anabranch.store import Durable, DurableCalls, Journal, Live, live
from tests.commander.test_t09_waits import SEEN, UNSEEN, Child

pytestmark = pytest.mark.contract("T9")

# The limit, the jobs in progress, and their maximum.
LIMIT, BEGUN, MOST = [0], set[int](), [0]


async def work() -> None:
    await asyncio.sleep(0.01)


def work_in_thread() -> None:
    pass


@tool(effect="keyed")
async def fetch() -> None:
    await work()


@tool(effect="keyed", timeout=60)
async def fetch_in_time() -> None:
    await work()


@tool(effect="keyed")
def fetch_in_thread() -> None:
    pass


@tool(read_only=True)
async def look() -> None:
    await work()


FAILED: set[object] = set()


@tool(effect="keyed", retry=Retry(attempts=2, backoff=0.01, jitter=0))
async def fetch_again(number: int) -> None:
    await work()
    if number not in FAILED:
        FAILED.add(number)
        raise OSError


async def step(job: Durable[Any]) -> None:
    await job.durable.step(work)


async def step_in_thread(job: Durable[Any]) -> None:
    await job.durable.step(work_in_thread)


async def several_steps(job: Durable[Any]) -> None:
    for number in range(3):
        await job.durable.step(work, key=str(number))


async def step_in_a_task(job: Durable[Any]) -> None:
    await asyncio.wait_for(asyncio.shield(asyncio.gather(job.durable.step(work))), 60)


async def settled_steps(job: Durable[Any]) -> None:
    await settle(step(job), job.durable.step(work, key="another"))


async def effect(job: Durable[Any]) -> None:
    await job.durable.call(fetch)


async def effect_in_time(job: Durable[Any]) -> None:
    await job.durable.call(fetch_in_time)


async def effect_in_thread(job: Durable[Any]) -> None:
    await job.durable.call(fetch_in_thread)


async def harmless_effect(job: Durable[Any]) -> None:
    await job.durable.call(look)


async def effect_again(job: Durable[Any]) -> None:
    await job.durable.call(fetch_again, job.number)  # type: ignore[attr-defined]


OWN: dict[str, Callable[[Durable[Any]], Awaitable[None]]] = {
    each.__name__: each
    for each in (
        step, step_in_thread, several_steps, step_in_a_task, settled_steps, effect, effect_in_time,
        effect_in_thread, harmless_effect, effect_again,
    )
}  # fmt: skip


class Works(Durable[None]):
    number: int
    how: str

    async def task(self) -> None:
        BEGUN.add(self.number)
        MOST[0] = max(MOST[0], len(BEGUN))
        await OWN[self.how](self)
        BEGUN.remove(self.number)


class Many(Durable[None]):
    hows: list[str]

    async def task(self) -> None:
        await asyncio.gather(*(Works(number, how) for number, how in enumerate(self.hows)))


def under(limit: int, make: Callable[[], Durable[Any]], **options: Any) -> Execution:
    """Play a run under a limit."""
    LIMIT[0], MOST[0] = limit, 0
    FAILED.clear()
    BEGUN.clear()
    execution = run_execution(
        make, around=lambda: Commander(max_concurrency=limit, slow_after=None), **options
    )
    if execution.error is not None:
        raise execution.error
    return execution


@pytest.mark.parametrize("how", OWN)
def test_no_more_jobs_work_at_once_than_the_limit_allows(how: str) -> None:
    """Although each job only awaits its own step or effect."""
    under(5, lambda: Many([how] * 30))
    assert MOST[0] == 5


def test_no_mixture_of_steps_and_effects_passes_the_limit() -> None:
    """With any work of the jobs, in any order."""
    for seed in seeds(10):
        draw = random.Random(seed)
        limit, hows = draw.randint(1, 3), draw.choices(list(OWN), k=8)
        under(limit, lambda hows=hows: Many(hows), seed=seed)
        assert MOST[0] == limit


# --- a step that awaits nodes


async def wait_in_step(name: str) -> None:
    way = next(each for each in (*SEEN, *UNSEEN) if each.__name__ == name)
    await way(current_node())  # type: ignore[arg-type]


class StepWaits(Durable[None]):
    way: str

    async def task(self) -> None:
        await self.durable.step(wait_in_step, self.way)


# Except steps that put something outside the run.
OUTSIDE = ("aclose", "drain", "run", "commander", "another", "thread")
WAYS = [each.__name__ for each in (*SEEN, *UNSEEN)]
WAYS = [each for each in WAYS if not any(word in each for word in OUTSIDE)]


@pytest.mark.parametrize("way", WAYS)
def test_a_step_that_waits_for_the_tree_lends_the_slot_of_its_job(way: str) -> None:
    """Else the awaited job could not start; it does so at once if the wait is visible."""
    execution = under(1, lambda: StepWaits(way))
    assert execution.state == "completed"
    assert execution.disk.now - START_TIME < (5 if "unseen" in way else 0.1)


class Sibling(Durable[None]):
    """Awaits a step of another job, which holds the only slot for something else."""

    async def task(self) -> None:
        holder = Holds()
        self.put_job(holder)
        await holder


class Holds(Durable[int]):
    async def task(self) -> int:
        taken = self.durable.step(take, key="its own")
        self.put_job(AwaitsStep(taken), claim=True)
        await self.durable.step(wait_for_child)
        return await taken


async def take() -> int:
    await asyncio.sleep(1)
    return 1


async def wait_for_child() -> None:
    node = current_node()
    assert node.parent is not None
    await next(each for each in node.parent.children if isinstance(each, AwaitsStep))


class AwaitsStep(Job[int]):
    step: Any

    async def task(self) -> int:
        await asyncio.gather(self.step, Child())
        return 1


def test_a_step_of_another_job_is_not_the_job_s_own_work() -> None:
    """A job that awaits one lends its slot, and so does a step that awaits such a job."""
    under(1, Sibling)


# --- an effect that waits for others


@tool(effect="keyed", approve=True)
async def send(text: str) -> str:
    return text


class Asks(Durable[str]):
    async def task(self) -> str:
        return await self.durable.call(send, "hello")


class Both(Durable[list[str]]):
    async def task(self) -> list[str]:
        asks = self.put_job(Asks())
        await self.durable.sleep(1)
        await Works(0, "effect")  # while the other job waits for its answer
        ENDED.append(self.durable.now().timestamp())
        return [await asks]


ENDED: list[float] = []


def test_a_job_lends_its_slot_while_its_effect_waits_for_a_person() -> None:
    """The only slot is free during that time, and the job gets it back for the effect."""

    async def answer(journal: Journal) -> None:
        while True:
            await asyncio.sleep(86_400)
            for approval in await journal.approvals():
                await approval.approve()

    execution = under(1, Both, beside=answer)
    assert execution.result == ["hello"]
    assert ENDED.pop() - START_TIME < 10
    assert execution.disk.now - START_TIME > 80_000


@tool(effect="keyed")
async def note(text: str) -> str:
    return text


class Changed(Durable[list[str]]):
    """In its second execution a new effect precedes the recorded ones."""

    changed: Live[bool] = live()

    async def task(self) -> list[str]:
        async def later(text: str) -> str:
            await asyncio.sleep(3)
            return await self.durable.call(note, text)

        if not self.changed:
            await asyncio.gather(self.durable.call(note, "a"), self.durable.call(note, "b"))
            return []
        loop = asyncio.get_running_loop()
        self.put_job(Child().at_done(lambda _: ENDED.append(loop.time())))
        return list(await asyncio.gather(self.durable.call(note, "c"), later("a"), later("b")))


def test_a_job_lends_its_slot_while_a_new_effect_is_held_for_recorded_ones() -> None:
    """The callers of these may need the slot."""
    first = run_execution(Changed, live={"changed": False})
    last = max(row.seq for row in first.rows if row.kind == "gave")
    execution = under(1, Changed, disk=Kill(last, frozenset()).of(first), live={"changed": True})
    assert execution.result == ["c", "a", "b"]
    assert ENDED.pop() < 1


# --- random programs

# Nodes that are cut off by the clock end differently when jobs wait for slots.
TIMED = {"quorum", "break", "collect", "cancel", "limit", "race", "silence"}


def names_in(body: Any) -> set[str]:
    if not isinstance(body, list):
        return set()
    own = {body[0]} if body and isinstance(body[0], str) else set()
    return own.union(*map(names_in, body))


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_random_programs_end_alike_under_any_limit(limit: int) -> None:
    """Nothing deadlocks, also after kills: as without a limit, with the same effects."""
    drawn = ((number, draw_body(f"slots {number}", 3)) for number in seeds(1000))
    bodies = [(number, body) for number, body in drawn if not names_in(body) & TIMED]
    for number, body in bodies[limit::3][: example_count(30, 400)]:
        options: Any = {"live": LIVE, "beside": send_signals(body)}
        free = run_execution(program(body), seed=number, **options)
        options["around"] = lambda: Commander(max_concurrency=limit, slow_after=None)
        first = run_execution(program(body), seed=number, **options)
        try:
            assert first.outcome == free.outcome
            kill_at_random(program(body), number, first=first, **options)
        except BaseException as error:
            error.add_note(f"seed {number}, limit {limit}: {body}")
            raise


# Steps and tools that put jobs and await them, in all ways, below each other.


class Program(Durable[int]):
    """Counts the jobs that do not wait for the tree; those in a `gather` may do both."""

    body: Any

    async def task(self) -> int:
        busy(self.node_id)
        try:
            return sum([await play_one(self, *each) for each in self.body])
        finally:
            BEGUN.discard(self.node_id)


class Plain(Job[int]):
    body: Any

    async def task(self) -> int:
        busy(self.node_id)
        try:
            return sum([await play_one(self, *each) for each in self.body])
        finally:
            BEGUN.discard(self.node_id)


def busy(number: int) -> None:
    BEGUN.add(number)
    assert len(BEGUN) <= LIMIT[0]


def one() -> int:
    return 1


async def in_a_while(number: int) -> int:
    await asyncio.sleep(number / 10)
    return number


async def put_below(kind: str, body: Any) -> int:
    """Put a job below this step or effect, and wait for it in one of the ways."""
    job = (Plain if kind == "plain" else Program)(body)
    node = current_node().put_job(job)
    if len(body) % 2:
        return await asyncio.wait_for(node, 1e6)
    await in_a_while(1)
    return await node


@tool(effect="keyed")
async def count(number: int) -> int:
    return await in_a_while(number)


@tool(effect="nested")
async def put_by_tool(kind: str, body: Any) -> int:
    return await put_below(kind, body)


async def play_one(job: Job[Any], kind: str, *parts: Any) -> int:
    durable = DurableCalls(job)
    match kind:
        case "step":
            return await durable.step(in_a_while, *parts)
        case "thread":
            return await durable.step(one)
        case "call":
            return await durable.call(count, *parts)
        case "nap":
            return await in_a_while(*parts)
    BEGUN.discard(job.node_id)
    try:
        match kind:
            case "job":
                return await (Program if parts[0] == "durable" else Plain)(parts[1])
            case "step of a job":
                return await durable.step(put_below, *parts)
            case "tool of a job":
                return await durable.call(put_by_tool, *parts)
            case _:
                inner = [job.call_handler(play_aside(each)) for each in parts[0]]
                return sum(await asyncio.gather(*inner))
    finally:
        busy(job.node_id)


@handler
async def play_aside(node: Node[int], operation: Any) -> int:
    kind, *parts = operation
    if kind in ("job", "step of a job"):
        return await node.put_job(Program(parts[1]))
    return await DurableCalls(node).step(in_a_while, 2)


def draw_operations(draw: random.Random, depth: int) -> list[Any]:
    operations: list[Any] = []
    for _ in range(draw.randint(1, 3)):
        kind = draw.choice(["step", "thread", "call", "nap", *BELOW * bool(depth)])
        if kind in BELOW:
            body = draw_operations(draw, depth - 1)
            where = [] if kind == "gather" else [draw.choice(["plain", "durable"])]
            operations.append([kind, *where, body])
        else:
            operations.append([kind, *([] if kind == "thread" else [draw.randint(0, 9)])])
    return operations


BELOW = ["job", "step of a job", "tool of a job", "gather"]


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_random_steps_and_effects_that_await_jobs_never_deadlock_nor_pass_the_limit(
    limit: int,
) -> None:
    """At any depth, in any order, also in a later execution."""
    for number in seeds(example_count(25, 1000)):
        body = draw_operations(random.Random(f"{number} {limit}"), 3)
        try:
            first = under(limit, lambda body=body: Program(body), seed=number)
            BEGUN.clear()
            last = first.rows[random.Random(number).randrange(len(first.rows))].seq
            left = Kill(last, frozenset()).of(first)
            execution = under(limit, lambda body=body: Program(body), disk=left, seed=number + 1)
            assert execution.result == first.result
        except BaseException as error:
            error.add_note(f"seed {number}, limit {limit}: {body}")
            raise
