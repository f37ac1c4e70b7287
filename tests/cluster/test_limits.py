"""The limits of a tree apply to all of it, on all machines."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest
from support.ray_jobs import Ask, AskThere
from support.scripted_server import DONE, Reply, ScriptedServer, Step, chunk
from support.waiting import wait_until

from anabranch import BudgetExceeded, Commander, NodeCancelled, Retry, WorkerLost, connect
from anabranch.agents import Chat, ConversableAgent, UserProxyAgent
from anabranch.backends import Limits, Price
from anabranch.cluster import Ray, remote

pytestmark = pytest.mark.usefixtures("nodes")

LEFT = Ray(num_cpus=0, resources={"left": 1})
RIGHT = Ray(num_cpus=0, resources={"right": 1})


class Counted:
    """Counts running replies, and ends them when the expected number runs."""

    def __init__(self, together: int = 1) -> None:
        self.now = self.most = 0
        self.together = together
        self.enough = asyncio.Event()
        usage = {"prompt_tokens": 60, "completion_tokens": 40}
        end = chunk(finish="stop", usage=usage)
        self.reply = Reply(
            [self.begin, chunk({"content": "x"}), self.enough, self.finish, end, DONE]
        )

    def begin(self) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        if self.now >= self.together:
            self.enough.set()

    def finish(self) -> None:
        self.now -= 1


def hanging_first(counted: Counted) -> tuple[Reply, Reply]:
    return Reply([chunk({"content": "x"}), Step.HANG]), counted.reply


@pytest.mark.parametrize("most", [1, 2])
async def test_so_many_replies_come_at_once_on_all_machines_together(most: int) -> None:
    """Including those of the local tree."""
    counted = Counted(together=most)
    async with ScriptedServer(counted.reply) as server, Commander() as commander:
        commander.limits = Limits(concurrency=most)
        backend = connect(server.url, model="tiny")
        jobs = [commander.put_job(Ask(backend), on=on) for on in (LEFT, RIGHT, None) * 2]
        assert [await job for job in jobs] == ["x"] * 6
    assert counted.most == most


async def test_a_budget_is_one_for_all_machines() -> None:
    """Usage is counted here, and requests are refused everywhere once it is spent."""
    counted = Counted()
    async with ScriptedServer(counted.reply) as server, Commander() as commander:
        prices = {"tiny": Price(input=1e6, output=1e6)}
        commander.limits = Limits(budget=150, concurrency=1, prices=prices)
        backend = connect(server.url, model="tiny")
        jobs = [commander.put_job(Ask(backend), on=on) for on in (LEFT, RIGHT) * 2]
        ends = await asyncio.gather(*jobs, return_exceptions=True)
        assert commander.limits.spent == 200
        assert commander.usage()["tiny"].total_tokens == 200
    refused = [end for end in ends if isinstance(end, BudgetExceeded)]
    assert len(refused) == len(server.requests) == 2
    assert "200 of 150 (in the currency of prices=) are used" in str(refused[0])


async def test_jobs_that_are_sent_on_share_them_too() -> None:
    """For the jobs of a worker on other machines, and for its own requests."""
    counted = Counted()
    async with ScriptedServer(counted.reply) as server, Commander() as commander:
        commander.limits = Limits(concurrency=1)
        job = AskThere(connect(server.url, model="tiny"), [LEFT, RIGHT, None])
        assert await commander.run(job, on=LEFT) == ["x"] * 3
    assert counted.most == 1


async def test_a_cancel_gives_the_turn_back() -> None:
    """Also a cancel while waiting for a turn."""
    async with ScriptedServer(*hanging_first(Counted())) as server, Commander() as commander:
        commander.limits = Limits(concurrency=1)
        backend = connect(server.url, model="tiny")
        stands = commander.put_job(Ask(backend), on=LEFT)
        await server.asked.wait()
        waits, goes_on = (commander.put_job(Ask(backend), on=RIGHT) for _ in range(2))
        await waiting(commander.limits, 2)
        for job in (waits, stands):
            job.cancel()
            with pytest.raises(NodeCancelled):
                await job
        assert await goes_on == "x"


async def test_a_lost_worker_gives_the_turn_back() -> None:
    """When its loss is noticed."""
    async with ScriptedServer(*hanging_first(Counted())) as server, Commander() as commander:
        commander.limits = Limits(concurrency=1)
        backend = connect(server.url, model="tiny")
        events = commander.events(("text",))
        stands = commander.put_job(Ask(backend, tells=True), on=LEFT)
        pid = int((await anext(aiter(events))).data)
        await server.asked.wait()
        goes_on = commander.put_job(Ask(backend), on=RIGHT)
        await waiting(commander.limits, 1)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerLost):
            await stands
        assert await goes_on == "x"


async def test_an_agent_elsewhere_keeps_the_limits_of_whoever_asks_it() -> None:
    """A call from a tree has its limits; a call outside of trees has none."""
    user = UserProxyAgent(human_input_mode="NEVER", max_consecutive_auto_reply=0)
    async with ScriptedServer(Counted().reply) as server:
        backend = connect(server.url, model="tiny")
        async with remote(ConversableAgent, "bob", backend) as bob:
            async with Commander(limits=(limits := Limits(budget=100))) as commander:
                await commander.run(Chat(user, bob, "Well?"))
                assert limits.spent == 100
                with pytest.raises(BudgetExceeded):
                    await user.send("Well?", bob)
            assert (await user.send("Well?", bob)).text == "x"


async def test_who_gives_the_turns_may_be_lost_and_comes_again(nodes: Any) -> None:
    """After the loss of the mailbox, a new attempt works."""
    async with ScriptedServer(Counted().reply) as server, Commander() as commander:
        commander.limits = Limits(concurrency=1)
        backend = connect(server.url, model="tiny")
        assert await commander.run(Ask(backend), on=LEFT) == "x"
        await nodes.lose_mailbox()
        again = Retry(attempts=3, on=WorkerLost)
        assert await commander.run(Ask(backend), on=LEFT, retry=again) == "x"


async def waiting(limits: Any, count: int) -> None:
    """Wait until `count` requests wait for a turn, on any machine."""
    await wait_until(lambda: sum(map(len, limits.queues.values())) == count)
