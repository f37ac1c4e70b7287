"""D8, D15: an edit that moves a call or renames its tool repeats nothing."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from support.killed_executions import Execution, Kill, effects_in_doubt, run_execution
from support.memory_journal import RUN_ID, Disk, current_disk
from support.seeds import example_count, seeds
from support.waiting import run_turns as wait_turns

from anabranch import ConfigurationError, Node, Retry, ToolCall, handler, tool
from anabranch.commander import settle
from anabranch.commander.durable import scope_here
from anabranch.handlers import call_tools
from anabranch.jobs import Job
from anabranch.store import Done, Durable, DurableCalls, JournalMismatch, NotDone, effect_key

pytestmark = pytest.mark.contract("D8")

CODE: list[Callable[[Any], Any]] = []


def find(n: int, *, effect_key: str) -> Done | NotDone:
    done = current_disk().done
    return Done(done[effect_key]) if effect_key in done else NotDone()


@tool(reconcile=find, reconcile_after=0)
async def charge(n: int) -> str:
    return current_disk().do(effect_key(), f"charge {n}")


@tool(reconcile=find, reconcile_after=0)
async def bill(n: int) -> str:
    return current_disk().do(effect_key(), f"bill {n}")


@tool(effect="keyed")
async def look_up(key: str) -> str:
    return key


class Shop(Durable[Any]):
    async def task(self) -> Any:
        return await CODE[-1](self)


class Pay(Durable[str]):
    n: int

    async def task(self) -> str:
        return await self.durable.call(charge, self.n)


class Plain(Job[str]):
    n: int

    async def task(self) -> str:
        return await DurableCalls(self).call(charge, self.n)


class Settle(Durable[str]):
    """The same call in a job of another name."""

    n: int

    async def task(self) -> str:
        return await self.durable.call(charge, self.n)


class Outer(Durable[Any]):
    async def task(self) -> Any:
        return await self.put_job(Pay(1))


@handler
async def pays(node: Node[Any], n: int) -> str:
    return await DurableCalls(node).call(charge if CODE[-1] is not renamed_below else bill, n)


async def models(node: Node[Any]) -> Any:
    async def calls() -> AsyncIterator[ToolCall]:
        yield ToolCall(id="c", name="charge", arguments={"n": 1})

    return await node.call_handler(call_tools(calls(), [charge]))


async def here(job: Any) -> Any:
    return await job.durable.call(charge, 1)


async def renamed(job: Any) -> Any:
    return await job.durable.call(bill, 1)


async def renamed_below(job: Any) -> Any:
    return await job.call_handler(pays(1))


async def other_inputs(job: Any) -> Any:
    return await job.durable.call(charge, 2)


async def child(job: Any) -> Any:
    return await job.put_job(Pay(1))


async def other_child(job: Any) -> Any:
    return await job.put_job(Settle(1))


async def plain_child(job: Any) -> Any:
    return await job.put_job(Plain(1))


async def below(job: Any) -> Any:
    return await job.call_handler(pays(1))


async def nested(job: Any) -> Any:
    return await job.put_job(Outer())


async def left(job: Any) -> None:
    job.put_job(Pay(1))


async def gathered(job: Any) -> Any:
    return await asyncio.gather(job.put_job(Pay(1)), job.put_job(Pay(2)))


async def settled(job: Any) -> Any:
    return await settle(Pay(2), Pay(1))


async def in_time(job: Any) -> Any:
    return await asyncio.wait_for(job.put_job(Pay(1)), 3600)


async def in_group(job: Any) -> Any:
    async with asyncio.TaskGroup() as group:
        return await group.create_task(pay_beside(job))


async def pay_beside(job: Any) -> Any:
    return await job.put_job(Pay(1))


async def then_other(job: Any) -> Any:
    """Put the node of the recorded call, which makes no call now."""
    await job.put_job(Empty())
    return await job.durable.call(charge, 1)


class Empty(Durable[None]):
    async def task(self) -> None:
        if CALLS:
            await self.durable.call(charge, 1)
        await DurableCalls(self).step(int)


CALLS: list[bool] = []


async def empty(job: Any) -> Any:
    CALLS.append(True)
    try:
        return await job.put_job(Empty())
    finally:
        CALLS.clear()


PLACES = [here, child, plain_child, below, nested, other_child, models, empty]
EDITS = [*PLACES, left, gathered, settled, in_time, in_group, then_other]


def with_code(code: Callable[[Any], Any], *left: Any) -> Execution:
    CODE.append(code)
    try:
        return run_execution(Shop, *left)
    finally:
        CODE.pop()


# The same job below the same node, or the same call of the same node, is not an edit.
SAME = [(child, each) for each in (left, gathered, settled, in_time, in_group)]
SAME += [(each, each) for each in PLACES] + [(here, then_other)]
MOVES = [(one, other) for one in PLACES for other in EDITS if (one, other) not in SAME]
MOVES += [(here, renamed), (below, renamed_below)]


@pytest.mark.parametrize(
    ("before", "after"), MOVES, ids=[f"{one.__name__} {other.__name__}" for one, other in MOVES]
)
def test_a_call_that_an_edit_has_moved_parks_the_run_before_it_is_done(
    before: Callable[[Any], Any], after: Callable[[Any], Any]
) -> None:
    """The message says where the call was and is; with the old code the run continues."""
    first = with_code(before)
    for rows in (1, 2):
        execution = with_code(after, Kill(rows, frozenset(first.disk.done)).of(first))
        assert isinstance(execution.error, JournalMismatch), execution.outcome
        assert execution.state == "parked"
        assert "with the same inputs at Commander/Shop#1" in str(execution.error)
        assert str(execution.error).count("Commander/Shop#1") == 2
        new = [text for key, text in execution.disk.done.items() if key not in first.disk.done]
        assert not any("charge 1" in text or "bill" in text for text in new)
        # On each try.
        again = with_code(after, execution.disk)
        assert isinstance(again.error, JournalMismatch)
        assert again.disk.done == execution.disk.done
        assert with_code(before, again.disk).outcome == first.outcome


def test_a_call_that_an_earlier_release_recorded_is_found_and_no_other_takes_its_place() -> None:
    """Its journal has neither the inputs nor the path of a call, but only the caller."""
    first = with_code(here)
    intent = json.loads(first.rows[0].value)
    del intent["inputs"]
    old = Kill(1, frozenset(first.disk.done)).of(first)
    old.rows[RUN_ID][0] = first.rows[0]._replace(value=json.dumps(intent).encode())
    assert with_code(here, copied(old)).outcome == first.outcome
    execution = with_code(other_inputs, copied(old))
    assert isinstance(execution.error, JournalMismatch)
    assert "with other inputs" in str(execution.error)


def copied(disk: Disk) -> Disk:
    return disk.cut(len(disk.rows[RUN_ID]), disk.done)


# --- unchanged code


@handler
async def behind(node: Node[Any], n: int, place: int) -> str:
    """Call behind a lock, at a moment that differs in each execution."""
    await wait_turns(TURNS[-1][place])
    async with LOCKS[-1]:
        return await DurableCalls(node).call(charge, n)


async def locks(job: Any) -> Any:
    async def beside(n: int, place: int) -> str:
        await wait_turns(TURNS[-1][place])
        async with LOCKS[-1]:
            return await job.durable.call(charge, n)

    nodes = [job.call_handler(behind(1, place)) for place in range(3)]
    LOCKS.append(asyncio.Semaphore(1) if TURNS[-1][0] % 2 else asyncio.Lock())
    try:
        return await asyncio.gather(*nodes, *[beside(place, place) for place in (3, 4)])
    finally:
        LOCKS.pop()


TURNS: list[list[int]] = []
LOCKS: list[Any] = []


@pytest.mark.parametrize("seed", seeds(example_count(10, 1000)))
def test_calls_behind_a_lock_are_made_in_any_order(seed: int) -> None:
    """A call that gets the lock first is not held for the one that had it first before."""
    draw = random.Random(seed)
    TURNS.append([0] * 5)
    try:
        execution = first = with_code(locks)
        for _ in range(4):
            rows = draw.randint(0, len(first.rows) - 1)
            done = frozenset(key for key in effects_in_doubt(first, rows) if draw.random() < 0.5)
            TURNS[-1] = [draw.randrange(12) for _ in range(5)]
            execution = with_code(locks, Kill(rows, done).of(first))
            assert execution.outcome == first.outcome, f"killed after row {rows}, turns {TURNS[-1]}"
            assert execution.disk.done == first.disk.done
    finally:
        TURNS.pop()


def test_a_call_that_is_held_for_long_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """As long as the recorded call may come, which may follow any event."""
    gate = asyncio.Event()

    async def beside_an_event(job: Any) -> Any:
        return await asyncio.gather(job.call_handler(pays(1)), gate.wait())

    async def open_late(_: Any) -> None:
        await asyncio.sleep(50)
        assert current_disk().done == first.disk.done
        assert caplog.text.count("the run 'run' waits: Commander/Shop#1/pays#2 would call") == 1
        gate.set()
        await asyncio.sleep(60)

    first = with_code(here)
    CODE.append(beside_an_event)
    execution = run_execution(Shop, Kill(2, frozenset(first.disk.done)).of(first), beside=open_late)
    CODE.pop()
    assert isinstance(execution.error, JournalMismatch)
    assert gate.is_set()
    assert execution.disk.done == first.disk.done


# --- keys


async def named(job: Any) -> Any:
    return await job.durable.call(charge, 1, key="pay")


async def named_bill(job: Any) -> Any:
    return await job.durable.call(bill, n=1, key="pay")


async def named_inputs(job: Any) -> Any:
    return await job.durable.call(charge, 5, key="pay")


async def named_child(job: Any) -> Any:
    return await job.put_job(Named("pay"))


async def named_below(job: Any) -> Any:
    async with asyncio.TaskGroup() as group:
        return await group.create_task(named_child(job))


async def named_again(job: Any) -> Any:
    """Fail after the call; the next attempt makes it in another place."""
    return await job.put_job(Again(), retry=Retry(attempts=2, on=KeyError, backoff=0))


class Named(Durable[str]):
    name: str

    async def task(self) -> str:
        return await self.durable.call(bill, 1, key=self.name)


class Again(Job[Any]):
    async def task(self) -> Any:
        if scope_here().attempt == 1:  # type: ignore[union-attr]
            await DurableCalls(self).call(charge, 1, key="pay")
            raise KeyError
        return await self.put_job(Named("pay"))


NAMED = [named, named_bill, named_inputs, named_child, named_below, named_again]


@pytest.mark.parametrize("after", NAMED, ids=lambda each: each.__name__)
@pytest.mark.parametrize("before", NAMED, ids=lambda each: each.__name__)
def test_a_call_with_a_key_is_found_wherever_it_is_now(
    before: Callable[[Any], Any], after: Callable[[Any], Any]
) -> None:
    """In another job, of a renamed tool, with other inputs: it is not repeated."""
    first = with_code(before)
    assert len(first.disk.done) == 1
    for rows in range(1, len(first.rows)):
        execution = with_code(after, Kill(rows, frozenset(first.disk.done)).of(first))
        assert execution.error is None
        assert execution.disk.done == first.disk.done
        assert execution.result in (first.result, [first.result])
        assert execution.count("gone") == 0 or execution.rows[rows - 1].ident[16:] == b"Named"


def test_a_key_may_be_added_and_the_call_moved_after_that() -> None:
    first = with_code(here)
    second = with_code(named, Kill(2, frozenset(first.disk.done)).of(first))
    assert (second.error, second.disk.done) == (None, first.disk.done)
    rows = second.before + 1
    execution = with_code(named_child, Kill(rows, frozenset(first.disk.done)).of(second))
    assert (execution.error, execution.disk.done) == (None, first.disk.done)


async def key_twice(job: Any) -> Any:
    return await asyncio.gather(named_child(job), job.durable.call(charge, 1, key="pay"))


async def key_after(job: Any) -> Any:
    return await named_child(job), await named(job)


async def key_in_one_body(job: Any) -> Any:
    return await named(job), await named(job)


@pytest.mark.parametrize("code", [key_twice, key_after, key_in_one_body])
def test_a_key_that_two_calls_have_is_refused(code: Callable[[Any], Any]) -> None:
    execution = with_code(code)
    assert isinstance(execution.error, ConfigurationError)
    assert "have the key 'pay'" in str(execution.error)


async def other_keys(job: Any) -> Any:
    return [await job.durable.call(charge, 1, key=key) for key in ("a", "b")]


async def keys_swapped(job: Any) -> Any:
    return [await job.durable.call(charge, 1, key=key) for key in ("c", "a", "b")]


def test_calls_with_other_keys_are_other_calls() -> None:
    """Although they have the same inputs: none is held for another."""
    first = with_code(other_keys)
    assert len({*first.result}) == 2
    execution = with_code(keys_swapped, Kill(2, frozenset()).of(first))
    assert execution.error is None
    assert len(execution.disk.done) == 3


async def own_key(job: Any) -> Any:
    return await job.durable.call(look_up, key="x")


async def bad_key(job: Any) -> Any:
    return await job.durable.call(charge, 1, key=3)


def test_a_key_is_a_text_and_a_tool_keeps_a_parameter_of_that_name() -> None:
    assert with_code(own_key).result == "x"
    assert isinstance(with_code(bad_key).error, TypeError)
