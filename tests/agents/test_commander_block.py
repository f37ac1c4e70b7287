"""Agents, tools and bare requests in a commander's block: budgets, limits and cancellation."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from support.waiting import settle_loop

from anabranch import (
    Agent,
    BudgetExceeded,
    Commander,
    Job,
    Node,
    NodeCancelled,
    Retry,
    handler,
    tool,
)
from anabranch.agents import AgentMessage, ToolExecutor
from anabranch.backends import Limits, ModelBackend
from anabranch.messages import Delta, Message, Request, ToolCall, Usage

ASK = Request([Message(role="user", content="Hello?")])


class ChargedModel(ModelBackend):
    """Each reply takes 10 + 5 tokens, and waits for the gate if there is one."""

    opened = 0

    def __init__(self, gate: asyncio.Event | None = None, **settings: Any) -> None:
        super().__init__("m", **settings)
        self.gate = gate

    async def attempt(self, request: Request) -> AsyncGenerator[Delta, None]:
        self.opened += 1
        yield Delta("Yes.", usage=Usage(input_tokens=10))
        if self.gate is not None:
            await self.gate.wait()
        yield Delta(usage=Usage(input_tokens=10, output_tokens=5), finish_reason="stop")


def _spent(replies: int) -> dict[str, Usage]:
    return {"m": Usage(input_tokens=10 * replies, output_tokens=5 * replies)}


async def test_an_agent_that_is_asked_in_the_block_keeps_to_its_budget() -> None:
    """The tree's usage includes the call, and the next call is refused."""
    agent = Agent(backend := ChargedModel())
    async with asyncio.timeout(5), Commander(limits=Limits(budget=20)) as commander:
        await agent("one")
        await agent("two")
        with pytest.raises(BudgetExceeded):
            await agent("three")
        assert commander.usage() == _spent(2)
    assert backend.opened == 2


async def test_agents_that_are_asked_at_once_belong_to_the_block() -> None:
    """In `gather`; `explain` and the tree show them."""
    gate = asyncio.Event()
    agents = [Agent(ChargedModel(gate), name=name) for name in ("ada", "bob")]
    async with asyncio.timeout(5), Commander() as commander:
        asking = asyncio.gather(*(agent("?") for agent in agents))
        await settle_loop()
        assert [child.path for child in commander.children] == [
            "Commander/ada#1",
            "Commander/bob#2",
        ]
        assert "ada#1 is running" in commander.explain()
        gate.set()
        await asking
        assert commander.usage() == _spent(2)


async def test_cancelling_the_commander_reaches_an_agent_in_the_block() -> None:
    """Its stream is closed, and the block ends."""
    agent = Agent(ChargedModel(asyncio.Event()))
    async with asyncio.timeout(5):
        with pytest.raises(NodeCancelled):
            async with Commander() as commander:
                asyncio.get_running_loop().call_later(0, commander.cancel, "enough")
                await agent("?")


async def test_tools_that_are_run_in_the_block_belong_to_it() -> None:
    """By an executor, and a plain function in its thread."""

    @tool
    def look() -> str:
        """Look."""
        seen.extend(commander.children)
        return "seen"

    seen: list[Node[Any]] = []
    async with asyncio.timeout(5), Commander() as commander:
        call = ToolCall(id="1", name="look", arguments={})
        answer = await ToolExecutor([look])(AgentMessage(output=call))
        assert answer.output[0].content == "seen"
        assert await look.run({}) == "seen"
    assert len(seen) == 2
    assert {child.parent for child in seen} == {commander}


async def test_a_bare_request_in_the_block_has_limits_and_usage_but_no_node() -> None:
    """The commander is charged, also if another task abandons the request."""
    backend = ChargedModel()
    async with asyncio.timeout(5), Commander(limits=Limits(budget=12)) as commander:
        stream = backend.stream(ASK)
        await anext(stream)
        assert commander.children == ()
        await asyncio.create_task(stream.aclose())
        assert commander.usage() == {"m": Usage(input_tokens=10)}
        await backend.complete(ASK)
        with pytest.raises(BudgetExceeded):
            await backend.complete(ASK)


async def test_a_cancelled_reply_is_in_the_usage_as_it_is_in_the_limits() -> None:
    """Also a reply that only the loop's shutdown closes."""
    backend = ChargedModel(asyncio.Event())
    async with asyncio.timeout(5), Commander(limits=Limits(budget=1000)) as commander:
        call = commander.call_handler(Agent(backend).call("?"))
        await settle_loop()
        call.cancel()
        await settle_loop()
        stream = backend.stream(ASK)
        await anext(stream)
        del stream
        await settle_loop()
        assert isinstance(commander.limits, Limits)
        assert commander.limits.spent == commander.usage()["m"].total_tokens == 20


async def test_a_thread_with_a_loop_of_its_own_may_ask_an_agent() -> None:
    """It runs under a new commander there; the limits and the usage of this one include it."""
    agent = Agent(ChargedModel())
    async with asyncio.timeout(5), Commander(limits=Limits(budget=20)) as commander:
        await asyncio.to_thread(lambda: asyncio.run(_ask(agent)))
        await asyncio.to_thread(agent.run_sync, "?")
        assert commander.children == ()
        assert commander.usage() == _spent(2)
        with pytest.raises(BudgetExceeded):
            await asyncio.to_thread(lambda: asyncio.run(_ask(agent)))


async def test_a_tool_in_a_thread_may_ask_an_agent_in_a_loop_of_its_own() -> None:
    """Also below a node of another loop."""
    agent = Agent(ChargedModel())

    @handler
    async def body(node: Node[Any]) -> None:
        await node.in_thread(lambda: asyncio.run(_ask(agent)))

    async with asyncio.timeout(5), Commander() as commander:
        node = body()
        await commander.run(node)
        assert commander.usage(node) == _spent(1)


async def _ask(agent: Agent) -> None:
    await agent("?")


async def test_a_commander_in_a_job_takes_nothing_out_of_the_outer_budget() -> None:
    """Both limits hold for it, and the job is charged."""
    agent = Agent(ChargedModel())

    class Nested(Job[None]):
        async def task(self) -> None:
            async with Commander(limits=own) as inner:
                await agent("one")
                await inner.run(agent.call("two"))
                with pytest.raises(BudgetExceeded):
                    await inner.run(agent.call("three"))

    own = Limits(budget=1000)
    async with asyncio.timeout(5), Commander(limits=Limits(budget=20)) as commander:
        job = Nested()
        await commander.run(job)
        assert commander.usage(job) == commander.usage() == _spent(2)
    assert own.spent == 30


async def test_an_agent_in_a_task_that_outlives_the_block_runs_on_its_own() -> None:
    """A closed commander neither limits it nor is charged for it."""
    agent = Agent(ChargedModel())

    async def later() -> None:
        await over.wait()
        await agent("?")

    async with asyncio.timeout(5):
        over = asyncio.Event()
        async with Commander(limits=Limits(budget=1)) as commander:
            task = asyncio.create_task(later())
        over.set()
        await task
    assert commander.usage() == {}


async def test_an_agents_failure_outside_a_tree_begins_with_itself() -> None:
    """Its context has no unrelated exception."""
    agent = Agent(ChargedModel(limits=Limits(budget=0)))
    async with asyncio.timeout(5):
        with pytest.raises(BudgetExceeded) as caught:
            await agent("?")
    error: BaseException | None = caught.value
    while error is not None:
        assert not isinstance(error, LookupError)
        error = error.__context__


# --- limits of a part of a tree


async def test_a_run_may_have_a_budget_of_its_own() -> None:
    """One commander for many clients refuses only the client whose budget is used up."""
    agent = Agent(ChargedModel())

    @handler
    async def client(node: Node[Any], requests: int) -> None:
        for _ in range(requests):
            await agent("?", session_id=node.node_id)

    async with asyncio.timeout(5), Commander(limits=Limits(budget=1000)) as commander:
        for limits in (Limits(budget=20), Limits(budget=20)):
            with pytest.raises(BudgetExceeded):
                await commander.run(client(3), limits=limits)
            assert limits.spent == 30
        await commander.run(client(3))
        assert commander.usage() == _spent(7)


class Ask(Job[None]):
    agent: Agent[Any]

    async def task(self) -> None:
        for _ in range(3):
            await self.agent("?")


@handler
async def ask(node: Node[Any], agent: Agent[Any]) -> Node[None]:
    return Ask(agent)


@pytest.mark.parametrize(
    "way", ["put", "call", "put threadsafe", "call threadsafe", "run", "below"]
)
async def test_limits_hold_for_a_node_and_all_below_it(way: str) -> None:
    """In each way to put it; the limits of its ancestors hold too."""
    agent, limits = Agent(ChargedModel()), Limits(budget=20)
    async with asyncio.timeout(5), Commander() as commander:
        with pytest.raises(BudgetExceeded):
            match way:
                case "put":
                    await commander.put_job(Ask(agent), limits=limits, claim=True)
                case "call":
                    await commander.call_handler(ask(agent), limits=limits, claim=True)
                case "put threadsafe":
                    future = commander.put_job_threadsafe(Ask(agent), limits=limits)
                    await asyncio.wrap_future(future)
                case "call threadsafe":
                    future = commander.call_handler_threadsafe(ask(agent), limits=limits)
                    await asyncio.wrap_future(future)
                case "run":
                    await commander.run(Ask(agent), limits=limits)
                case _:
                    above = commander.call_handler(hold(agent), limits=limits, claim=True)
                    await above
        assert commander.usage() == _spent(2)
    assert limits.spent == 30


@handler
async def hold(node: Node[Any], agent: Agent[Any]) -> None:
    node.call_handler(ask(agent), limits=Limits(budget=1000))


async def test_a_retried_job_goes_on_with_the_budget_that_it_has_left() -> None:
    """The limits belong to the node, not to an attempt."""
    agent, limits = Agent(backend := ChargedModel()), Limits(budget=40)
    async with asyncio.timeout(5), Commander() as commander:

        class Fails(Job[None]):
            async def task(self) -> None:
                await agent("?")
                raise OSError

        with pytest.raises(BudgetExceeded):
            await commander.run(
                Fails(), limits=limits, retry=Retry(attempts=9, on=OSError, backoff=0)
            )
    assert (backend.opened, limits.spent) == (3, 45)


async def test_what_are_no_limits_is_refused_by_name() -> None:
    """At once, and no node starts."""
    wrong: Any = 5000
    async with asyncio.timeout(5), Commander() as commander:
        job = Ask(Agent(ChargedModel()))
        with pytest.raises(TypeError, match=r"Limits\(budget=...\), not int"):
            commander.put_job(job, limits=wrong)
        with pytest.raises(TypeError, match="limits must be"):
            commander.limits = wrong
        assert job.state == "pending"
    with pytest.raises(TypeError, match="limits must be"):
        Commander(limits=wrong)


async def test_a_failure_in_the_block_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """The caller gets it, and it is not logged."""
    agent = Agent(ChargedModel(limits=Limits(budget=0)))
    async with asyncio.timeout(5), Commander():
        with caplog.at_level(logging.ERROR), pytest.raises(BudgetExceeded):
            await agent("?")
    assert caplog.records == []
