"""Jobs that hold all CPUs lend them while they wait for something that needs CPUs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest
from support.ray_agents import Bob, Sender
from support.ray_jobs import add_note

from anabranch import Commander, Job
from anabranch.cluster import ActorNotFound, Ray, find, remote

# The whole machine, which each of the others needs too.
ALL = Ray(num_cpus=2, resources={"left": 0.001})

pytestmark = pytest.mark.usefixtures("nodes")


class Wait(Job[str]):
    """Holds all CPUs of a machine and waits for something that needs them."""

    kinds: list[str]

    async def task(self) -> str:
        kind, *rest = self.kinds
        if kind == "job":
            return await self.put_job(Wait(rest or ["nothing"]), on=ALL)
        if kind == "new agent":
            async with remote(Bob, f"bob-{self.node_id}", on=ALL) as bob:
                return await bob.invoke("name")
        if kind == "agent":
            sender = await find("sender")
            return await sender.invoke("put", Wait(rest or ["nothing"]), ALL)
        return "nothing"


@pytest.mark.parametrize("seed", range(2))
async def test_those_who_wait_lend_what_they_hold(seed: int) -> None:
    """While they wait for jobs, for the start of agents, or for agents that put jobs, nested."""
    chance = random.Random(seed)
    kinds = ["job", "agent", chance.choice(("job", "agent"))]
    chance.shuffle(kinds)
    async with remote(Sender, "sender"), Commander() as commander, asyncio.timeout(80):
        waiting = Wait([*kinds, "new agent"])
        assert (await commander.run(waiting, on=ALL)).startswith("bob")


class Seek(Job[str]):
    """Holds all CPUs of a machine, and locates an agent that waits for them."""

    file: str

    async def task(self) -> str:
        add_note(self.file, "seeking")
        while True:
            try:
                return (await find("late")).name
            except ActorNotFound:
                await asyncio.sleep(0.01)


async def test_who_looks_for_one_that_has_no_machine_yet_lends_its_own(
    file: str, noted: Callable[[str], Awaitable[str]]
) -> None:
    """Otherwise the two would wait for each other."""
    async with Commander() as commander, asyncio.timeout(60):
        seeking = commander.put_job(Seek(file), on=ALL)
        await noted("seeking")
        async with remote(Bob, "late", on=ALL):
            assert await seeking == "late"
