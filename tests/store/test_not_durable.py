"""D20: outside a durable run, nothing is silently not durable."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from anabranch import run
from anabranch.commander import Commander
from anabranch.commander.durable import scope_here
from anabranch.jobs import Job
from anabranch.store import Durable, Journal, NotDurable

pytestmark = pytest.mark.contract("D20")


class Pack(Durable[str]):
    async def task(self) -> str:
        return self.durable.run_id


class Plain(Job[str]):
    how: str

    async def task(self) -> str:
        return await (Pack() if self.how == "await" else self.put_job(Pack()))


async def by_commander(how: str) -> Any:
    async with Commander() as commander:
        match how:
            case "put":
                return await commander.put_job(Pack())
            case "run":
                return await commander.run(Pack())
            case _:
                future = asyncio.to_thread(lambda: commander.put_job_threadsafe(Pack()).result(30))
                return await future


OUTSIDE: dict[str, Callable[[], Any]] = {
    "run": lambda: run(Pack()),
    "below a plain job": lambda: run(Plain("put")),
    "awaited in a plain job": lambda: run(Plain("await")),
    "commander.put_job": lambda: asyncio.run(by_commander("put")),
    "commander.run": lambda: asyncio.run(by_commander("run")),
    "from a thread": lambda: asyncio.run(by_commander("thread")),
    "its calls": lambda: Pack().durable.now(),
}


@pytest.mark.parametrize("how", OUTSIDE)
def test_outside_a_run_it_is_refused_and_says_what_to_do(how: str) -> None:
    """At the put, before anything runs."""
    with pytest.raises(
        NotDurable, match=r"start it by run\(\.\.\., journal=\.\.\., run_id=\.\.\.\)"
    ):
        OUTSIDE[how]()


class Does(Durable[Any]):
    how: str

    async def task(self) -> Any:
        return await DOES[self.how](self)


async def on_another_commander(job: Does) -> Any:
    async with Commander() as commander:
        return await commander.put_job(Pack())


async def in_a_task(job: Does) -> Any:
    async def put() -> str:
        return await job.put_job(Pack())

    return await asyncio.create_task(put())


async def from_a_thread(job: Does) -> Any:
    return await job.in_thread(lambda: job.commander.put_job_threadsafe(Pack()).result(30))


async def name_in_a_step(job: Does) -> Any:
    return await job.durable.step(lambda: job.durable.run_id)


async def effect_in_a_thread(job: Does) -> Any:
    async def effect() -> None:
        scope_here().effect("pay", {})  # type: ignore[union-attr]

    return await job.in_thread(lambda: run(Inner(effect)))


class Inner(Job[Any]):
    work: Callable[[], Awaitable[Any]]

    async def task(self) -> Any:
        return await self.work()


def in_thread(call: Callable[[Does], Any]) -> Callable[[Does], Awaitable[Any]]:
    async def does(job: Does) -> Any:
        return await job.in_thread(call, job)

    return does


async def transact(job: Does) -> None:
    async with job.durable.transaction():
        pass


DOES: dict[str, Callable[[Does], Awaitable[Any]]] = {
    "on another commander": on_another_commander,
    "in a task": in_a_task,
    "from a thread": from_a_thread,
    "its name in a step": name_in_a_step,
    "a run in a thread": in_thread(lambda _: run(Pack())),
    "an effect in a thread": effect_in_a_thread,
    "now": in_thread(lambda job: job.durable.now()),
    "random": in_thread(lambda job: job.durable.random()),
    "sleep": in_thread(lambda job: asyncio.run(job.durable.sleep(1))),
    "signal": in_thread(lambda job: asyncio.run(job.durable.signal("x"))),
    "conversation": in_thread(lambda job: job.durable.conversation("x")),
    "transaction": in_thread(lambda job: asyncio.run(transact(job))),
}
GOOD = list(DOES)[:4]


async def play(how: str) -> Any:
    async with Journal(":memory:") as journal:
        return await journal.run(Does(how), run_id="r")


@pytest.mark.parametrize("how", GOOD)
async def test_below_a_run_it_is_of_the_run(how: str) -> None:
    """On another commander, in tasks, and put from a thread: it has the run's name."""
    assert await play(how) == "r"


@pytest.mark.parametrize("how", list(DOES)[4:])
async def test_a_thread_is_refused_what_only_the_loop_can_keep(how: str) -> None:
    """Rows of two threads would have no order."""
    with pytest.raises(NotDurable, match="in a thread"):
        await play(how)


async def test_another_task_is_in_the_run_by_the_node_at_which_it_puts() -> None:
    """At the commander that drives a run beside other work, it belongs to no run."""
    put, done = asyncio.Event(), asyncio.Event()
    jobs: list[Does] = []

    async def waits(job: Does) -> str:
        jobs.append(job)
        put.set()
        await done.wait()
        return "done"

    DOES["waits"] = waits
    async with Commander(), asyncio.TaskGroup() as group:
        running = group.create_task(play("waits"))
        await put.wait()
        with pytest.raises(NotDurable):
            jobs[0].commander.put_job(Pack())
        assert await jobs[0].put_job(Pack()) == "r"
        done.set()
    assert running.result() == "done"
