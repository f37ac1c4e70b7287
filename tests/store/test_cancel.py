"""D6, D11: cancels, quorums and failures that ended nodes survive a restart."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from support.killed_executions import Kill, kill_at_random, kill_everywhere, run_execution
from support.memory_journal import RUN_ID, act, journal_of
from support.seeds import example_count, seeds
from support.waiting import wait_until

from anabranch.commander import Node, NodeCancelled, Retry, quorum
from anabranch.handlers import handler
from anabranch.store import Durable, Journal
from anabranch.store.errors import JournalError

pytestmark = pytest.mark.contract("D6")


class Waits(Durable[str]):
    seconds: float = 3600

    async def task(self) -> str:
        await act("before", self.seconds)
        await self.durable.sleep(self.seconds)
        return await act("after", self.seconds)


class Below(Durable[str]):
    async def task(self) -> str:
        return await self.put_job(Waits(), claim=True)


async def cancel_soon(journal: Journal) -> None:
    await asyncio.sleep(1)
    await journal.cancel(RUN_ID, "enough")


@pytest.mark.parametrize("seed", [None, *seeds(5)])
def test_a_cancel_from_elsewhere_stays(seed: int | None) -> None:
    """It reaches a run that sleeps; whenever the process dies, the run ends cancelled."""
    execution = run_execution(Below, seed=seed, beside=cancel_soon)
    assert (type(execution.error), execution.state) == (NodeCancelled, "cancelled")
    for rows in range(len(execution.rows) + 1):
        again = run_execution(Below, Kill(rows, frozenset()).of(execution), seed=seed)
        assert (type(again.error), again.state) == (NodeCancelled, "cancelled")
        assert not any(name.startswith("after") for name in again.disk.done.values())
    assert again.error.reason == "enough"  # type: ignore[union-attr]


class Nothing(Durable[str]):
    async def task(self) -> str:
        return "done"


def test_a_run_that_nobody_drives_is_cancelled_at_once() -> None:
    """Also a pending run: it never begins, and refuses further letters."""

    async def beside(journal: Journal) -> None:
        await journal.start(Waits(), run_id="other")
        await journal.cancel("other", "no")
        assert (await journal._file.run("other")).state == "cancelled"
        with pytest.raises(NodeCancelled, match="no"):
            await journal.run(Waits(), run_id="other")
        for letter in (journal.cancel("other"), journal.signal("other", "name")):
            with pytest.raises(JournalError, match="is over"):
                await letter
        ended.append(True)

    ended: list[bool] = []
    run_execution(lambda: Waits(5), beside=beside)
    assert ended


class Listens(Durable[str]):
    async def task(self) -> str:
        said: str = await self.durable.signal("go", str)
        if said == "fail":
            raise ValueError(said)
        return said


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("said", ["on", "fail"])
@pytest.mark.parametrize("what", ["cancel", "resume"])
async def test_what_comes_when_a_run_has_just_ended_leaves_it_so(
    tmp_path: Path, what: str, said: str, killed: bool
) -> None:
    """Its state follows from its outcome, also if its process died before it wrote the state."""
    path = tmp_path / "runs.db"
    async with Journal(path) as here, Journal(path) as there:
        running = asyncio.create_task(here.run(Listens(), run_id="r"))
        await wait_until(lambda: here._driven)

        async def late(*args: Any, **options: Any) -> Any:
            """Ask after the run has ended."""
            if not running.done():
                await here.signal("r", "go", said)
                await asyncio.wait([running])
                if killed:
                    state = "update anabranch_run set state = 'running'"
                    await here._file.call(lambda sql: sql.execute(state))
            return await asked(*args, **options)

        name = {"cancel": "post", "resume": "acquire"}[what]
        asked = getattr(there._file, name)
        setattr(there._file, name, late)
        refused = what == "cancel" and not killed  # a second look within the same commit
        with pytest.raises(JournalError, match="is over") if refused else nullcontext():
            await getattr(there, what)("r")
        if said == "on":
            assert [run.state for run in await here.runs()] == ["completed"]
            assert await here.run(Listens(), run_id="r") == "on"
        else:
            assert [run.state for run in await here.runs()] == [
                {"cancel": "failed", "resume": "suspended"}[what]
            ]


class CancelsOne(Durable[list[Any]]):
    async def task(self) -> list[Any]:
        jobs = [self.put_job(Waits(seconds), claim=True) for seconds in (1, 2, 3)]
        results: list[Any] = [await jobs[0]]
        jobs[1].cancel("not needed")
        for job in jobs[1:]:
            try:
                results.append(await job)
            except NodeCancelled as error:
                results.append(error.reason)
        return results


def test_a_cancelled_node_stays_cancelled() -> None:
    """`node.cancel` is a row; the cancelled node does not begin again."""
    first = kill_everywhere(CancelsOne, seeds=(None, 1), same_effects=False)
    assert first.result[1] == "not needed"


class Plain(Durable[list[Any]]):
    """Waits for two of five nodes, beside one that would be quick only this time."""

    async def task(self) -> list[Any]:
        return await self.call_handler(enough(), policy=quorum(2))


@handler
async def enough(node: Node[Any]) -> list[Any]:
    jobs = [node.put_job(Waits(seconds), claim=True) for seconds in (3, 1, 2, 5)]
    jobs.append(node.call_handler(slow_once(), claim=True))
    results = []
    for job in jobs:
        try:
            results.append(await job)
        except NodeCancelled:
            results.append(None)
    await act("decided", [result is not None for result in results])
    return results


@handler
async def slow_once(node: Node[Any]) -> str:
    await act("slow")
    await asyncio.sleep(1.5)
    return "slow"


@pytest.mark.parametrize("seed", seeds(example_count(10, 100)))
def test_a_quorum_is_decided_once(seed: int) -> None:
    """Once it can be observed, it is decided: `decided` ends with one set of results."""
    first = run_execution(Plain, seed=seed)
    assert sum(result is not None for result in first.result) == 2
    for rows in range(len(first.rows) + 1):
        execution = run_execution(Plain, Kill(rows, frozenset()).of(first), seed=seed + 1)
        done = [name for name in execution.disk.done.values() if name.startswith("decided")]
        assert len(done) == 1
        if any(row.kind == "cancelled" for row in first.rows[:rows]):
            assert execution.outcome == first.outcome


class Breaks(Durable[Any]):
    how: str

    async def task(self) -> Any:
        policy = "isolate" if self.how == "fail, then time out" else None
        call = self.call_handler(
            group(self.how), claim=True, timeout=10, retry=ONCE_MORE, policy=policy
        )
        try:
            return await call
        except (TimeoutError, ValueError) as error:
            return [str(error), await act("broken")]


ONCE_MORE = Retry(attempts=2, on=TimeoutError, backoff=5)


@handler
async def group(node: Node[Any], how: str) -> Any:
    jobs: list[Any] = [node.put_job(Waits(seconds)) for seconds in (1, 3000)]
    if how == "fail":
        jobs.append(node.put_job(Fails()))
    if how == "fail, then time out":
        raise ValueError("early")
    return [await job for job in jobs]


class Fails(Durable[str]):
    async def task(self) -> str:
        await self.durable.sleep(2)
        raise ValueError("broken")


@pytest.mark.parametrize("how", ["fail", "time out", "fail, then time out"])
def test_a_failure_that_cut_others_short_stays(how: str) -> None:
    """The failure of a child or a timeout ends its siblings once, and the attempt with them."""
    kill_everywhere(lambda: Breaks(how), seeds=(None, 1), same_effects=False, check=None)
    for seed in seeds(example_count(10, 100)):
        kill_at_random(lambda: Breaks(how), seed, same_effects=False)


class Flaky(Durable[list[Any]]):
    async def task(self) -> list[Any]:
        good = await self.put_job(Waits(1))
        other = self.put_job(Waits(50), claim=True)
        bad = await self.put_job(Needs())
        return [good, bad, await other]


class Needs(Durable[str]):
    async def task(self) -> str:
        await self.durable.sleep(5)
        if "ready" not in SWITCH:
            raise ValueError("not ready")
        return await act("needed")


SWITCH: set[str] = set()


def test_a_failed_run_is_resumed_where_it_failed() -> None:
    """The failed nodes, and those cancelled for them, run again; the others do not."""
    SWITCH.clear()
    first = run_execution(Flaky)
    assert (str(first.error), first.state) == ("not ready", "failed")
    again = run_execution(Flaky, first.disk)
    assert str(again.error) == "not ready"
    SWITCH.add("ready")

    asyncio.run(_resume(journal_of(first.disk)))
    last = run_execution(Flaky, first.disk)
    assert last.error is None
    assert last.state == "completed"
    names = sorted(name.split("#")[0] for name in first.disk.done.values())
    assert names == ["after(1)", "after(50)", "before(1)", "before(50)", "needed(None)"]
    with pytest.raises(JournalError, match="has completed"):
        asyncio.run(_resume(journal_of(first.disk)))


async def _resume(journal: Journal) -> None:
    async with journal:
        await journal.resume(RUN_ID)
