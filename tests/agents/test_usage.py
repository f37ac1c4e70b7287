"""The usage of agents: per call, agent, session and member of a group, in tokens and money."""

from __future__ import annotations

import asyncio
import copy
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.waiting import settle_loop

from anabranch import Agent, BudgetExceeded, Commander, Retry, tool
from anabranch.agents import AgentMessage, ConversableAgent, GroupChat
from anabranch.backends import Limits, ModelBackend, Price, cost
from anabranch.messages import Delta, Message, Request, ToolCallDelta, Usage

ONE = Usage(input_tokens=10, output_tokens=5)


class ChargedModel(ModelBackend):
    """Each reply takes 10 + 5 tokens; the first ones call a tool, and it may wait for a gate."""

    def __init__(self, model: str = "m", calls: int = 0, **settings: Any) -> None:
        super().__init__(model, **settings)
        self.calls = calls
        self.gate: asyncio.Event | None = None

    async def attempt(self, request: Request) -> AsyncGenerator[Delta, None]:
        yield Delta("Yes.", usage=Usage(input_tokens=10))
        if self.gate is not None:
            await self.gate.wait()
        self.calls -= 1
        if self.calls >= 0:
            yield Delta(tool_calls=(ToolCallDelta(0, "1", "look", "{}"),))
        yield Delta(usage=ONE, finish_reason="stop" if self.calls < 0 else "tool_calls")


@tool
def look() -> str:
    """Look."""
    return "seen"


@given(st.lists(st.builds(Usage, input_tokens=st.integers(0, 9), output_tokens=st.integers(0, 9))))
def test_usages_can_be_summed(usages: list[Usage]) -> None:
    """By `sum` and by `+`."""
    total = sum(usages, Usage())
    assert total.total_tokens == sum(each.total_tokens for each in usages)
    if usages:
        assert sum(usages) == total


async def test_an_answer_tells_what_its_call_took() -> None:
    """With all replies on the way; a plain `await agent()` can be counted."""
    agent = Agent(ChargedModel(calls=2), tools=[look])
    async with asyncio.timeout(5):
        answer = await agent("?")
    assert answer.usage == ONE + ONE + ONE
    assert agent.usage() == {"m": answer.usage}


async def test_a_call_tells_what_it_has_taken_so_far() -> None:
    """Nothing before its start; also if it is cancelled, as in the limits and the tree."""
    backend = ChargedModel()
    backend.gate = asyncio.Event()
    agent = Agent(backend)
    call = agent.call("?", session_id=3)
    assert call.usage == Usage()
    async with asyncio.timeout(5), Commander(limits=Limits()) as commander:
        commander.call_handler(call)
        await settle_loop()
        call.cancel()
        await settle_loop()
        assert call.usage == commander.usage()["m"] == Usage(input_tokens=10)
        assert commander.limits.spent == 10  # type: ignore[union-attr] - counted without a budget
    assert agent.usage(3) == agent.usage() == {"m": call.usage}


async def test_a_call_that_is_tried_again_is_counted_once_with_all_its_attempts() -> None:
    """A copy of the call counts separately."""

    class Fails(Agent[Any]):
        tried = 0

        async def forward(self, *messages: Any, **options: Any) -> AgentMessage | str:
            self.tried += 1
            answer = await super().forward(*messages, **options)
            if self.tried == 1:
                raise OSError
            return answer

    agent = Fails(ChargedModel())
    async with asyncio.timeout(5), Commander() as commander:
        call = agent.call("?", session_id=0)
        answer = await commander.run(call, retry=Retry(on=OSError, backoff=0))
        assert answer.usage == call.usage == ONE + ONE
        assert agent.usage() == {"m": ONE + ONE}
        await commander.run(copy.copy(call))
    assert agent.usage() == agent.usage(0) == {"m": ONE + ONE + ONE}


async def test_each_session_has_its_own_usage() -> None:
    """With failed calls; the reset of a session drops its part, not the agent's total."""
    agent = Agent(ChargedModel(limits=Limits(budget=40)))
    async with asyncio.timeout(5):
        await asyncio.gather(agent("?", session_id="a"), agent("?", session_id="b"))
        await agent("?", session_id="a")
        with pytest.raises(BudgetExceeded):
            await agent("?", session_id="a")
    assert agent.usage("a") == {"m": ONE + ONE}
    assert agent.usage("b") == {"m": ONE}
    agent.reset("a")
    assert agent.usage("a") == {}
    assert agent.usage() == {"m": ONE + ONE + ONE}
    prices = {"m": Price(input=1e6, output=2e6)}
    assert cost(agent.usage(), prices) == pytest.approx(60)


class Pair(Agent[Any]):
    """Asks two agents, and itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Agent(ChargedModel("small"))
        self.second = Agent(ChargedModel("large"))

    async def forward(self, *messages: Any, **options: Any) -> AgentMessage | str:
        session = options["session_id"]
        if session == "inner":
            return await self.first("?")
        await self("?", session_id="inner")
        await self.first("?")
        return await self.second("?")


async def test_what_agents_below_spend_is_part_of_an_agents_usage() -> None:
    """By model; a call inside another one of the same agent counts once."""
    pair = Pair()
    async with asyncio.timeout(5):
        answer = await pair("?")
    assert answer.usage == ONE + ONE + ONE
    assert pair.usage() == {"small": ONE + ONE, "large": ONE}
    assert pair.usage("inner") == {"small": ONE}
    assert pair.first.usage() == {"small": ONE + ONE}
    assert pair.second.usage() == {"large": ONE}


@pytest.mark.parametrize("way", ["block", "thread", "later"])
async def test_a_call_beyond_an_inner_commander_is_counted_once(way: str) -> None:
    """In a block in a tool, in its thread, and where the block outlives the call."""
    late: list[asyncio.Task[Any]] = []

    async def ask() -> None:
        async with Commander():
            if way == "later":
                await ended.wait()
            await agent("?", session_id="s")

    if way == "thread":

        def look() -> str:
            """Look."""
            agent.run_sync("?", session_id="s")
            return "seen"

    else:

        async def look() -> str:
            """Look."""
            asking = asyncio.ensure_future(ask())
            late.append(asking)
            if way == "block":
                await asking
            return "seen"

    ended = asyncio.Event()
    agent = Agent(ChargedModel(calls=1), tools=[tool(look)])
    async with asyncio.timeout(5), Commander() as commander:
        answer = await agent("?", session_id="s")
        assert answer.usage == (ONE + ONE if way == "later" else ONE + ONE + ONE)
        ended.set()
        await asyncio.gather(*late)
        assert commander.usage() == agent.usage() == agent.usage("s") == {"m": ONE + ONE + ONE}


async def test_no_memory_keeps_what_was_spent() -> None:
    """Neither that of the agent nor that of the receiver of its answer."""
    first, second = Agent(ChargedModel()), Agent(ChargedModel())
    async with asyncio.timeout(5):
        await second(await first("?", session_id=0), session_id=0)
    for agent in (first, second):
        assert all(message.usage == Usage() for message in agent.memory.messages(0))
        assert all("usage" not in record for record in agent.memory.save())


async def test_each_member_of_a_group_has_its_usage() -> None:
    """In the session of the group; each answer in a conversation has its usage."""
    ada, bob = (ConversableAgent(name, ChargedModel(name)) for name in ("ada", "bob"))
    user = ConversableAgent("user", default_auto_reply=None)
    team = GroupChat("team", [ada, bob], max_turns=3)
    async with asyncio.timeout(5), Commander() as commander:
        result = await user.initiate_chat(team, "Talk.", max_turns=1)
        assert commander.usage() == {"ada": ONE + ONE, "bob": ONE}
        assert (ada.usage("team"), bob.usage("team")) == ({"ada": ONE + ONE}, {"bob": ONE})
        assert result.messages[0].usage == Usage()
        result = await user.initiate_chat(ada, "You alone.", max_turns=1)
    assert result.last.usage == ONE
    assert ada.usage("user") == {"ada": ONE}
    assert ada.usage() == {"ada": ONE + ONE + ONE}


@given(st.lists(st.tuples(st.sampled_from(["ann", "ann#7", "ann@x", "'"]), st.integers(6, 8))))
def test_what_each_session_with_a_partner_took_is_counted_apart(
    chats: list[tuple[str, int]],
) -> None:
    """Also for a name that looks like a session; after one is forgotten the others stay."""
    bob = ConversableAgent("bob", ChargedModel())

    async def main() -> None:
        for name, session in chats:
            sender = ConversableAgent(name, default_auto_reply=None)
            await sender.initiate_chat(
                bob, "?", max_turns=1, session_id=session, clear_history=False
            )

    asyncio.run(main())
    counts = Counter(chats)
    while counts:
        for name, session in chats:
            replies = [ONE] * counts[name, session]
            took = bob.usage(bob.session_with(name, session)).get("m", Usage())
            assert took == sum(replies, Usage())
            together = [ONE] * sum(count for (who, _), count in counts.items() if who == name)
            key = bob.session_with(name)
            assert bob.usage(key).get("m", Usage()) == sum(together, Usage())
        (name, session), _ = counts.popitem()
        bob.clear_history(name, session)
    assert bob.usage().get("m", Usage()) == sum([ONE] * len(chats), Usage())


async def test_what_is_charged_is_an_event_of_the_node_that_pays() -> None:
    """Once for each reply, and not again for its ancestors; also from a thread."""
    agent = Agent(ChargedModel(calls=1), tools=[look], name="ada")
    async with asyncio.timeout(5), Commander() as commander:
        events = commander.events({"charged"})
        await agent("?")
        told = [await anext(events), await anext(events)]
        assert [event.data for event in told] == [{"m": ONE}, {"m": ONE}]
        backend, request = ChargedModel("bare"), Request([Message(role="user", content="?")])
        await backend.complete(request)
        event = await anext(events)
        assert (event.node_id, event.data) == (0, {"bare": ONE})
        there = commander.in_thread(lambda: [*backend.stream_sync(request)])
        await there
        event = await anext(events)
        assert (event.path, event.data) == (there.path, {"bare": ONE})
