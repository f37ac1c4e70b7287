"""`end_interrupted` remembers what the guards have passed, and only the agent's own messages."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from anabranch import Agent, AgentMessage, Commander, handoff, tool
from anabranch.agents.errors import InputRefused
from anabranch.commander import NodeCancelled
from anabranch.messages import Message, Request, ToolCall
from anabranch.store import Journal
from anabranch.testing import ScriptedBackend, deltas


def calls(*named: tuple[str, dict[str, Any]]) -> Message:
    listed = [ToolCall(id=f"c{n}", name=name, arguments=a) for n, (name, a) in enumerate(named)]
    return Message(role="assistant", tool_calls=listed)


async def cut(agent: Agent[Any], reached: asyncio.Event, journal: Journal, text: str) -> None:
    """Leave the journal while a call runs, after `reached`."""
    async with journal:
        call = asyncio.ensure_future(agent(text, session_id="s"))
        await asyncio.wait_for(reached.wait(), 20)
    with suppress(asyncio.CancelledError, NodeCancelled):
        await call


async def ended(agent: Agent[Any], journal: Journal) -> list[str]:
    async with journal:
        assert await agent.end_interrupted("s")
        return [each.text for each in agent.memory.messages("s")]


class Slow:
    """A guard that hangs, and a model whose first reply is complete or not."""

    def __init__(self, *replies: Any) -> None:
        self.reached = asyncio.Event()
        self.backend = ScriptedBackend(*replies)

    async def __call__(self, message: AgentMessage) -> None:
        while len(self.backend.requests) < 1:  # noqa: ASYNC110
            await asyncio.sleep(0)
        for _ in range(50):
            await asyncio.sleep(0)
        self.reached.set()
        await asyncio.Event().wait()


@pytest.mark.parametrize("complete", [True, False])
async def test_nothing_is_remembered_or_shown_before_the_guards_have_passed(
    tmp_path: Path, complete: bool
) -> None:
    """Neither the message nor the reply, nor the growing text of the reply."""
    path = str(tmp_path / "runs.db")
    reply: list[Any] = [*deltas("forbidden answer here")]
    guard = Slow(reply if complete else [*reply, asyncio.Event()])
    journal = Journal(path, partials=0.001)
    agent = Agent(guard.backend, name="agent", guards=[guard], journal=journal)

    async def look() -> None:
        await guard.reached.wait()
        await asyncio.sleep(0.02)
        assert (await journal.look("agent/s")).partials == []

    looking = asyncio.ensure_future(look())
    gone = asyncio.Event()
    looking.add_done_callback(lambda _: gone.set())
    await cut(agent, gone, journal, "my password")
    await looking
    later = Journal(path)
    agent = Agent(ScriptedBackend("fine"), name="agent", guards=[lambda _: None], journal=later)
    assert await ended(agent, later) == []


async def test_what_the_guards_have_passed_is_remembered(tmp_path: Path) -> None:
    """The reply of a model that a guard asks is not."""
    path, reached = str(tmp_path / "runs.db"), asyncio.Event()
    judge = Agent(ScriptedBackend(otherwise="yes, allowed"), name="judge")

    async def guard(message: AgentMessage) -> None:
        await judge(message)

    @tool
    async def hang() -> str:
        """Hang."""
        reached.set()
        await asyncio.Event().wait()
        return ""

    fine = Agent(ScriptedBackend("FINE"), name="fine", description="Is fine.")
    backend = ScriptedBackend(calls(("fine", {"request": "x"})), calls(("sub", {"request": "y"})))
    sub = Agent(ScriptedBackend(calls(("hang", {}))), name="sub", description="x", tools=[hang])

    def make(journal: Journal) -> Agent[Any]:
        tools = [fine.as_tool(), sub.as_tool()]
        return Agent(backend, name="top", tools=tools, guards=[guard], journal=journal)

    journal = Journal(path, grace=0.01)
    await cut(make(journal), reached, journal, "hello")
    later = Journal(path)
    agent = make(later)
    texts = await ended(agent, later)
    assert texts == [
        "hello",
        '[calls fine({"request": "x"})]\n[fine gave: FINE]',
        '[calls sub({"request": "y"})]\n[sub gave: The call was interrupted.]',
    ]


async def test_the_growing_text_of_an_agent_below_is_not_remembered(tmp_path: Path) -> None:
    path, reached = str(tmp_path / "runs.db"), asyncio.Event()

    def say(request: Request) -> Any:
        return [*deltas("half a text of sub"), asyncio.Event()]

    sub = Agent(ScriptedBackend(otherwise=say), name="sub", description="Is slow.")

    def make(journal: Journal) -> Agent[Any]:
        backend = ScriptedBackend(calls(("sub", {"request": "x"})))
        return Agent(backend, name="top", tools=[sub.as_tool()], journal=journal)

    journal = Journal(path, partials=0.001)

    async def look() -> None:
        while True:
            for run in await journal.runs(prefix="top/"):
                if (await journal.look(run.run_id)).partials:
                    reached.set()
                    return

    async with journal:
        looking = asyncio.ensure_future(look())
        call = asyncio.ensure_future(make(journal)("hello", session_id="s"))
        await asyncio.wait_for(reached.wait(), 20)
        await looking
    with suppress(asyncio.CancelledError, NodeCancelled):
        await call
    later = Journal(path)
    texts = await ended(make(later), later)
    assert texts == [
        "hello",
        '[calls sub({"request": "x"})]\n[sub gave: The call was interrupted.]',
    ]


async def test_a_refusal_at_a_resume_forgets_no_effect(tmp_path: Path) -> None:
    """The guard passed, a tool paid, the process was cut, and now the guard refuses."""
    path, reached = str(tmp_path / "runs.db"), asyncio.Event()
    is_closed, paid = False, 0

    def guard(message: AgentMessage) -> None:
        if is_closed:
            raise InputRefused("the shop is closed now")

    @tool(effect="keyed")
    async def pay() -> str:
        """Pay."""
        nonlocal paid
        paid += 1
        return "paid"

    class Slow(ScriptedBackend):
        async def stream(self, request: Request) -> Any:  # type: ignore[override]
            if request.messages[-1].role == "tool":
                reached.set()
            async for each in super().stream(request):
                yield each

    backend = Slow(calls(("pay", {})), [*deltas("half"), asyncio.Event()])

    def make(journal: Journal) -> Agent[Any]:
        return Agent(backend, name="shop", tools=[pay], guards=[guard], journal=journal)

    journal = Journal(path)
    await cut(make(journal), reached, journal, "I pay")
    is_closed = True
    async with Journal(path) as journal, Commander() as commander:
        agent = make(journal)
        (call,) = (await agent.resume_interrupted(parent=commander)).values()
        with pytest.raises(InputRefused):
            await call
        expected = ["I pay", "[calls pay({})]\n[pay gave: paid]"]
        assert [each.text for each in agent.memory.messages("s")] == expected
        assert paid == 1
    async with Journal(path) as journal:
        assert [each.text for each in await make(journal).recall("s")] == expected


async def test_the_guards_of_an_agent_that_takes_over_hide_only_its_part(tmp_path: Path) -> None:
    path = str(tmp_path / "runs.db")
    guard = Slow("forbidden")

    def make(journal: Journal) -> Agent[Any]:
        other = Agent(guard.backend, name="other", guards=[guard])
        backend = ScriptedBackend(calls(("transfer_to_other", {})))
        return Agent(backend, name="first", tools=[handoff(other)], journal=journal)

    journal = Journal(path)
    await cut(make(journal), guard.reached, journal, "hello")
    later = Journal(path)
    texts = await ended(make(later), later)
    assert texts[0] == "hello"
    assert not any("forbidden" in each for each in texts)
