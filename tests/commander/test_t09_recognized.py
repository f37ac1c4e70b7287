"""T9 and F5: which waits are recognized as waits for the tree, and which are not."""

from __future__ import annotations

import asyncio
import functools
import random
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.to_thread
import pytest
from support.seeds import SEED
from support.waiting import run_turns, settle_loop

from anabranch.commander import Commander, _task_waits, settle
from anabranch.commander.waiting import waits_for_tree
from anabranch.jobs import Job
from anabranch.testing import run_seeded
from tests.commander.test_t09_waits import SEEN, UNSEEN, Child, Waits, Way, one_place, put

pytestmark = pytest.mark.contract("T9")

# --- further recognized waits


async def by_a_handle(job: Job[Any]) -> None:
    async with anyio.create_task_group() as group:
        await group.create_task(put(job))


async def by_the_wait_of_a_handle(job: Job[Any]) -> None:
    async with anyio.create_task_group() as group:
        await group.create_task(put(job)).wait()


async def by_gather_of_anyio(job: Job[Any]) -> None:
    await anyio.gather(put(job), put(job))


async def by_a_start_that_is_cancelled(job: Job[Any]) -> None:
    """Await a cancelled start. Its task needs a job to clean up."""

    async def begin(*, task_status: anyio.abc.TaskStatus[None]) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            with anyio.CancelScope(shield=True):
                await put(job)

    async with anyio.create_task_group() as group:
        with anyio.move_on_after(0.01):
            await group.start(begin)


async def by_wait_for_that_cancels(job: Job[Any]) -> None:
    async def cleans_up() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await put(job)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.create_task(cleans_up()), 0.01)


async def by_settle(job: Job[Any]) -> None:
    assert await settle(put(job), asyncio.wait_for(put(job), 60), Child()) == [1, 1, 1]


async def by_async_for_as_completed(job: Job[Any]) -> None:
    tasks = [asyncio.create_task(asyncio.wait_for(put(job), 60)) for _ in range(3)]
    async for each in asyncio.as_completed(tasks):
        await each


async def by_as_completed_in_tasks(job: Job[Any]) -> None:
    tasks = [asyncio.create_task(asyncio.wait_for(put(job), 60)) for _ in range(3)]
    for each in asyncio.as_completed(tasks):
        await asyncio.create_task(asyncio.wait_for(each, 60))


MORE = [
    by_settle,
    by_wait_for_that_cancels,
    by_a_start_that_is_cancelled,
    *([by_a_handle, by_the_wait_of_a_handle] if hasattr(anyio, "TaskHandle") else []),
    *([by_gather_of_anyio] if hasattr(anyio, "gather") else []),
    *([by_async_for_as_completed, by_as_completed_in_tasks] if sys.version_info >= (3, 13) else []),
]


@pytest.mark.parametrize("way", MORE)
def test_every_recognized_wait_lends_the_slot_at_once(way: Way) -> None:
    """The slot is lent without an idle period first."""
    for seed in range(3):
        assert run_seeded(lambda: one_place(way), seed) < 0.1


async def test_the_end_of_a_task_group_is_recognized_in_newer_patch_releases() -> None:
    """Python 3.12.8 and 3.13.1 renamed the method that waits."""
    code = "class TaskGroup:\n    async def _aexit(self):\n        await self.over"
    names: dict[str, Any] = {"__name__": "asyncio.taskgroups"}
    exec(code, names)
    group = names["TaskGroup"]()
    group.over = asyncio.get_running_loop().create_future()

    async def works(_: Job[Any]) -> None:
        await group._aexit()

    async with Commander(max_concurrency=1) as commander:
        group._tasks = {asyncio.create_task(commander.run(Child()))}
        group._tasks.copy().pop().add_done_callback(lambda _: group.over.set_result(None))
        job = commander.put_job(Waits(works))
        async with asyncio.timeout(0.4):
            await job


# --- waits for other things


def blocks(job: Job[Any]) -> Callable[[], bool]:
    """Return a function that blocks its thread for some turns of the loop."""
    go_on = threading.Event()

    async def later() -> None:
        await run_turns(job.commander.chance.randint(1, 9))  # type: ignore[attr-defined]
        go_on.set()

    job.commander.aside.append(asyncio.create_task(later()))  # type: ignore[attr-defined]
    return functools.partial(go_on.wait, 30)


async def in_a_thread_of_anyio(job: Job[Any]) -> None:
    await anyio.to_thread.run_sync(blocks(job))


async def in_a_thread_of_a_task(job: Job[Any]) -> None:
    await asyncio.gather(anyio.to_thread.run_sync(blocks(job)), run_turns(2))


async def in_a_thread_of_asyncio(job: Job[Any]) -> None:
    await asyncio.to_thread(blocks(job))


async def in_an_executor(job: Job[Any]) -> None:
    await asyncio.get_running_loop().run_in_executor(None, blocks(job))


async def in_a_thread_that_is_settled(job: Job[Any]) -> None:
    await settle(asyncio.to_thread(blocks(job)))


async def for_a_lock_of_anyio(job: Job[Any]) -> None:
    async with job.commander.lock:  # type: ignore[attr-defined]
        await run_turns(3)


async def for_a_turn_of_anyio(job: Job[Any]) -> None:
    await anyio.to_thread.run_sync(blocks(job), limiter=job.commander.limiter)  # type: ignore[attr-defined]


async def for_a_stream(job: Job[Any]) -> None:
    send, receive = anyio.create_memory_object_stream[int](1)
    job.commander.aside.append(asyncio.create_task(send.send(1)))  # type: ignore[attr-defined]
    async with send, receive:
        await receive.receive()


async def for_a_future(job: Job[Any]) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.001, future.set_result, None)
    await future


KEPT = [each for name, each in list(globals().items()) if name.startswith(("in_a", "for_a_"))]


async def one_by_one(jobs: list[Job[Any]]) -> None:
    for job in jobs:
        await job


AWAITED: dict[str, Callable[[list[Job[Any]]], Awaitable[object]]] = {
    "one by one": one_by_one,
    "gather": lambda jobs: asyncio.gather(*jobs),
    "wait": lambda jobs: asyncio.wait([asyncio.ensure_future(each) for each in jobs]),
    "task": lambda jobs: asyncio.create_task(one_by_one(jobs)),
}


async def within(limit: int, ways: list[Way], awaited: str, chance: random.Random) -> None:
    """Run jobs that wait in these ways while the main task awaits them. Check the limit."""
    running, most = 0, 0

    async def works(job: Job[Any], way: Way) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await way(job)
        running -= 1

    async with Commander(max_concurrency=limit, slow_after=None) as commander:
        shared: Any = commander
        shared.chance, shared.aside = chance, []
        shared.lock, shared.limiter = anyio.Lock(), anyio.CapacityLimiter(1)
        jobs = [commander.put_job(Waits(functools.partial(works, way=way))) for way in ways]
        await AWAITED[awaited](jobs)
        await asyncio.gather(*shared.aside)
    assert most <= limit
    assert running == 0


LOOPS: list[Callable[[], asyncio.AbstractEventLoop]] = [asyncio.new_event_loop]
try:
    import uvloop
except ImportError:
    pass
else:
    LOOPS.append(uvloop.new_event_loop)


@pytest.mark.parametrize("make_loop", LOOPS)
@pytest.mark.parametrize("way", KEPT)
def test_a_job_that_waits_for_something_else_keeps_its_slot(
    way: Way, make_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """The slot stays even if the program's main task awaits the job, which anyio threads note."""
    with asyncio.Runner(loop_factory=make_loop) as runner:
        for awaited in AWAITED:
            runner.run(within(1, [way] * 4, awaited, random.Random(0)))


@pytest.mark.parametrize("make_loop", LOOPS)
def test_no_mixture_of_such_jobs_passes_the_limit(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """This holds for any mixture of waits and of ways to await the jobs."""
    chance = random.Random(SEED)
    with asyncio.Runner(loop_factory=make_loop) as runner:
        for _ in range(15):
            ways = chance.choices(KEPT, k=8)
            awaited = chance.choice(list(AWAITED))
            runner.run(within(chance.randint(1, 3), ways, awaited, chance))


async def stand_at(coroutine: Any) -> bool:
    """Return whether the coroutine's wait counts as a wait for code of this process."""
    task = asyncio.ensure_future(coroutine)
    await settle_loop()
    ends = _task_waits.reach(task.get_coro(), _task_waits.awaited(task))[2]
    assert ends
    here = all(map(_task_waits.ends_here, ends))
    task.cancel()
    await asyncio.wait([task])
    return here


async def test_locks_and_events_are_brought_by_this_process_and_sockets_are_not() -> None:
    """Idle waits for locks and events lend the slot. Waits for sockets do not, also in anyio."""
    lock, semaphore = anyio.Lock(), anyio.Semaphore(0)
    limiter, condition = anyio.CapacityLimiter(1), anyio.Condition()
    lock.acquire_nowait()
    limiter.acquire_on_behalf_of_nowait(1)

    async def notified() -> None:
        async with condition:
            await condition.wait()

    for wait in (
        asyncio.Event().wait, asyncio.Queue[int]().get, anyio.Event().wait, lock.acquire,
        semaphore.acquire, limiter.acquire, notified,
    ):  # fmt: skip
        assert await stand_at(wait())
    kept: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: kept.append(writer), "127.0.0.1")
    async with server:
        host, port = server.sockets[0].getsockname()
        async with await anyio.connect_tcp(host, port) as stream:
            assert not await stand_at(stream.receive())
        reader, writer = await asyncio.open_connection(host, port)
        assert not await stand_at(reader.read(1))
        writer.close()
        await writer.wait_closed()
        for each in kept:
            each.close()
            await each.wait_closed()


# --- other uses of the search


async def test_explain_reports_no_deadlock_for_work_in_a_thread_of_a_job_that_main_awaits() -> None:
    """`explain` names the thread's node and the line that awaits the job."""
    go_on, begun = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def work() -> None:
        loop.call_soon_threadsafe(begun.set)
        assert go_on.wait(30)

    async def works(job: Job[Any]) -> None:
        await job.in_thread(work)

    async def look(job: Job[Any], commander: Commander) -> str:
        await begun.wait()
        await settle_loop()
        told = commander.explain(job)
        go_on.set()
        return told

    async with Commander() as commander:
        job = commander.put_job(Waits(works))
        looks = asyncio.create_task(look(job, commander))
        await job
    own, below = (await looks).splitlines()
    assert own.startswith("Waits#1 is running, awaits work#2 at test_t09_recognized.py:")
    assert own.endswith(" in works")
    assert below == "  work#2 is running"


async def test_explain_shows_the_line_that_awaits_a_thread_of_anyio() -> None:
    """`explain` shows neither the main task's line nor a line of a library."""
    go_on = threading.Event()

    async def works(_: Job[Any]) -> None:
        await anyio.to_thread.run_sync(go_on.wait, 30)

    async def look(job: Job[Any], commander: Commander) -> str:
        await settle_loop()
        told = commander.explain(job)
        go_on.set()
        return told

    async with Commander() as commander:
        job = commander.put_job(Waits(works))
        looks = asyncio.create_task(look(job, commander))
        await job
    assert (await looks).startswith("Waits#1 is running, stands at test_t09_recognized.py:")
    assert (await looks).endswith(" in works")


async def test_a_task_that_waits_for_a_thread_does_not_wait_for_the_tree() -> None:
    """Only the main task does. The source of a reply therefore waits for such a reader (F5)."""
    go_on = threading.Event()

    async def look(task: asyncio.Task[Any]) -> bool:
        await settle_loop()
        waits = waits_for_tree(task)
        go_on.set()
        return waits

    async with Commander() as commander:
        thread = asyncio.create_task(anyio.to_thread.run_sync(go_on.wait, 30))
        looks = asyncio.create_task(look(thread))
        await commander.run(Waits(lambda _: thread))
    assert not await looks


# --- without a private name


@pytest.fixture
def without_private_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove private names that a release of Python or anyio may rename."""
    monkeypatch.setattr(_task_waits, "GATHERING", None)
    monkeypatch.setattr(_task_waits, "GATHERS", set())
    monkeypatch.setattr(_task_waits, "SHIELDS", set())
    monkeypatch.setattr(_task_waits, "HOLDS", {})
    monkeypatch.setattr(_task_waits, "AS_COMPLETED", None)
    monkeypatch.setattr(_task_waits, "WAITER", "_no_such_name")


@pytest.mark.usefixtures("without_private_names")
@pytest.mark.parametrize("way", [*SEEN, *UNSEEN, *MORE])
def test_without_the_private_names_nothing_deadlocks(way: Way) -> None:
    """An unrecognized wait lends its slot after an idle period."""
    assert run_seeded(lambda: one_place(way)) < 30


@pytest.mark.usefixtures("without_private_names")
@pytest.mark.parametrize("way", KEPT)
def test_without_the_private_names_the_limit_holds(way: Way) -> None:
    """The limit holds for jobs that wait for other things."""
    for awaited in AWAITED:
        asyncio.run(within(1, [way] * 3, awaited, random.Random(0)))


@pytest.mark.parametrize("way", SEEN)
def test_a_task_s_future_is_found_without_its_private_name(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All recognized waits are still recognized."""
    monkeypatch.setattr(_task_waits, "WAITER", "_no_such_name")
    assert run_seeded(lambda: one_place(way)) < 0.1


def test_code_that_is_missing_is_found_to_be_none() -> None:
    """The search returns None, as if `gather` were written in C or renamed its callback."""
    assert _task_waits._nested_code(len, "_done_callback") == set()
    assert _task_waits._nested_code(asyncio.gather, "_no_such_callback") == set()
    assert len(_task_waits._nested_code(asyncio.gather, "_done_callback")) == 1

    def function() -> object:
        return way

    way = 1
    assert _task_waits._closed_over(function, "way") == 1
    assert _task_waits._closed_over(function, "inner") is None


def test_the_package_imports_without_the_private_names_of_asyncio() -> None:
    """The names are looked up at import."""
    code = """
import asyncio
del asyncio.tasks._GatheringFuture
asyncio.gather = asyncio.shield = len
from anabranch.commander import _task_waits
print(_task_waits.GATHERING, _task_waits.GATHERS, _task_waits.SHIELDS)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["None", "set()", "set()"]
