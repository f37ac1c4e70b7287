"""The usage of a tree, and limits of a commander."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest
from support.clock import sleep_virtual, virtual_time
from support.scripted_server import Reply, ScriptedServer, Step, chunk, text

from anabranch import BudgetExceeded, Commander, Job, Node, RateLimited, StreamInterrupted, handler
from anabranch.backends import Backend, Fallback, Limits, ModelBackend, Retries, connect
from anabranch.messages import Delta, Message, Request, Usage

pytestmark = pytest.mark.contract("B2")

ASK = Request([Message(role="user", content="Hello?")])


class Paid(ModelBackend):
    """Takes a second and 10 + 5 tokens for each reply; counts open ones."""

    opened = 0

    async def attempt(self, request: Request) -> AsyncGenerator[Delta, None]:
        self.opened += 1
        try:
            await sleep_virtual(1)
            yield Delta("a", usage=Usage(input_tokens=10))  # some servers count as they go
            yield Delta(usage=Usage(input_tokens=10, output_tokens=5), finish_reason="stop")
        finally:
            self.opened -= 1


@handler
async def asks(node: Node[Any], *backends: Backend) -> None:
    for backend in backends:
        await backend.complete(ASK)


def _spent(replies: int) -> Usage:
    return Usage(input_tokens=10 * replies, output_tokens=5 * replies)


@virtual_time
async def test_usage_is_summed_up_the_tree_for_each_model() -> None:
    """Once for each reply, whatever usage its deltas have."""
    small, large = Paid("small"), Paid("large")

    class Round(Job[Any]):
        async def task(self) -> Node[None]:
            await self.call_handler(asks(small))
            self.call_handler(asks(small, large))
            return asks(large)

    async with Commander() as commander:
        job = Round()
        await commander.run(job)
        assert commander.usage(job) == {"small": _spent(2), "large": _spent(2)}
        other = asks(small)
        await commander.run(other)
        assert commander.usage(other) == {"small": _spent(1)}
        assert commander.usage() == {"small": _spent(3), "large": _spent(2)}


async def test_what_a_broken_reply_told_is_charged_too() -> None:
    """For each attempt that sent usage, and no other."""
    paid = {"usage": {"prompt_tokens": 3, "completion_tokens": 1}}
    broken = Reply([chunk({"content": "a"}, **paid), Step.DROP])
    async with (
        asyncio.timeout(20),
        ScriptedServer(Reply.error(503, "down"), broken, text("Hi", usage=(5, 7))) as server,
        connect(server.url, model="tiny", retries=Retries(backoff=0)) as backend,
        Commander() as commander,
    ):
        with pytest.raises(StreamInterrupted):
            await commander.run(asks(backend))
        await commander.run(asks(Fallback([backend])))

        assert commander.usage() == {"tiny": Usage(input_tokens=8, output_tokens=8)}


@virtual_time
async def test_outside_a_tree_nothing_is_charged() -> None:
    """The reply still works."""
    assert (await Paid("small").complete(ASK)).usage == _spent(1)


@virtual_time
async def test_a_commanders_limits_hold_for_all_its_backends() -> None:
    """And for no other commander. A backend may have the same object."""
    limits = Limits(concurrency=1)
    one, other = Paid("one", limits=limits), Paid("other")
    time = asyncio.get_running_loop().time
    async with Commander() as free, Commander(limits=limits) as commander:
        for backend in one, other, other:
            commander.call_handler(asks(backend))
        await free.run(asks(other))
        assert time() == pytest.approx(1)
    assert time() == pytest.approx(3)


@virtual_time
async def test_a_spent_budget_stops_the_tree_cleanly() -> None:
    """Running replies are cancelled, waiting ones refused, and nothing remains."""
    backend = Paid("m", limits=Limits(concurrency=2))

    class Swarm(Job[None]):
        async def task(self) -> None:
            for _ in range(5):
                self.call_handler(forever())

    @handler
    async def forever(node: Node[Any]) -> None:
        while True:
            await backend.complete(ASK)

    async with Commander() as commander:
        commander.limits = Limits(budget=100)
        with pytest.raises(BudgetExceeded, match="of 100 tokens are used"):
            await commander.run(Swarm())
        assert not list(commander.children)
        assert backend.opened == 0
        assert commander.usage()["m"].total_tokens == 105
        with pytest.raises(BudgetExceeded):
            await commander.run(asks(backend))
    assert len(asyncio.all_tasks()) == 1


@virtual_time
async def test_a_reply_that_is_left_gives_its_place_back() -> None:
    """In the limits of the tree and of the backend."""
    backend = Paid("m", limits=Limits(concurrency=1))

    @handler
    async def leaves(node: Node[Any]) -> None:
        async with aclosing(backend.stream(ASK)) as deltas:
            await anext(deltas)

    async with Commander() as commander:
        commander.limits = Limits(concurrency=1)
        for _ in range(3):
            await commander.run(leaves())
        assert commander.usage() == {"m": Usage(input_tokens=30)}


@virtual_time
async def test_a_429_slows_its_backend_and_no_other_of_the_tree() -> None:
    """Other servers have not sent one."""

    class Refused(Paid):
        async def attempt(self, request: Request) -> AsyncGenerator[Delta, None]:
            raise RateLimited("slowly", retry_after=20)
            yield Delta()

    time = asyncio.get_running_loop().time
    async with Commander() as commander:
        commander.limits = Limits(requests_per_minute=100)
        refused = commander.call_handler(asks(Refused("m")), claim=True)
        await sleep_virtual(1)
        await commander.run(asks(Paid("other")))
        assert time() == pytest.approx(2)
        with pytest.raises(RateLimited):
            await refused
        assert 40 <= time() <= 44
