"""The memory of agents below a durable job is the same in each execution, or it is refused."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Any

import pytest
from support.killed_executions import Execution, Kill, kill_everywhere, run_execution
from support.seeds import SEED, example_count

from anabranch import Agent, ConfigurationError, Retry, StreamInterrupted, handler
from anabranch.agents import ConversableAgent, GroupTalk, SummaryMemory
from anabranch.messages import Delta, Request
from anabranch.store import Durable, Live, live
from anabranch.testing import ScriptedBackend

pytestmark = pytest.mark.contract("D17")

TRIED = Retry(attempts=3, on=StreamInterrupted, backoff=1)


class Moody:
    """Breaks off, hangs or answers, and never twice alike."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.asked = 0

    def __call__(self, request: Request) -> str | list[Any]:
        self.asked += 1
        said = f"{self.draw.random()}"
        if request.messages[-1].content == "end" or request.messages[0].role == "system":
            return said
        ends = [StreamInterrupted(said), asyncio.Event(), Delta(finish_reason="stop")]
        return [said, self.draw.choice(ends)]


@handler
async def ask(node: Any, agent: Agent[Any], how: str, number: int) -> None:
    call = agent.call(f"{number}", session_id="s")
    if how == "cancel":
        asked = node.call_handler(call)
        await asyncio.sleep(3)
        asked.cancel("too long")
    elif how == "limit":
        await node.call_handler(call, timeout=5)
    elif how == "tries":
        await node.call_handler(call, retry=TRIED)
    else:
        await node.call_handler(call)
        if how == "twice":
            await agent(f"{number} again", session_id="s")


class Asks(Durable[list[str]]):
    """Calls one agent several times, in several ways, and returns its memory."""

    hows: list[str]
    agent: Live[Agent[Any]] = live()

    async def task(self) -> list[str]:
        for number, how in enumerate(self.hows):
            with suppress(StreamInterrupted, TimeoutError):
                await self.call_handler(ask(self.agent, how, number), timeout=60)
        await self.agent("end", session_id="s")
        return [f"{each.sender}: {each.text}" for each in self.agent.memory.messages("s")]


@pytest.mark.parametrize("number", range(example_count(4, 60)))
def test_an_agent_remembers_the_same_in_each_life(number: int) -> None:
    """No recorded reply is requested again, whatever was cut off before it.

    Also if the agent object outlives an execution, or summarises its memory.
    """
    draw = random.Random(f"{SEED} {number}")
    ways = ["plain", "limit", "tries", "cancel", "twice"]
    hows = [draw.choice(ways) for _ in range(4)]
    moody = Moody(number)
    backend = ScriptedBackend(otherwise=lambda request: moody(request))
    tokens, outlives = draw.choice([20, 1000]), draw.random() < 0.5

    def agent_of() -> Agent[Any]:
        return Agent(backend, memory=SummaryMemory(backend, max_tokens=tokens))

    agent = agent_of()

    def make() -> Asks:
        return Asks(hows, agent if outlives else agent_of())

    first = run_execution(make, seed=number)

    def require_played(execution: Execution, where: str) -> None:
        assert execution.error is None, f"{where}: {execution.error}"
        result = next(row.seq for row in reversed(execution.rows) if row.kind == "result")
        before = moody.asked
        again = run_execution(
            make, Kill(result - 1, frozenset()).of(execution), seed=draw.randrange(1 << 30)
        )
        assert (again.outcome, moody.asked - before) == (execution.outcome, 0), where

    require_played(first, "never killed")
    for rows in range(number % 2, len(first.rows), example_count(2, 1)):
        execution = run_execution(
            make, Kill(rows, frozenset()).of(first), seed=draw.randrange(1 << 30)
        )
        require_played(execution, f"killed after row {rows}")


class Turn(Durable[str]):
    """One question, in a job whose answer is recorded."""

    session: str
    agent: Live[Agent[Any]] = live()

    async def task(self) -> str:
        return (await self.agent("what?", session_id=self.session)).text


class Turns(Durable[list[str]]):
    """Asks in its body, then by jobs in sessions, then in its body again."""

    sessions: list[str]
    asks_again: bool
    agent: Live[Agent[Any]] = live()

    async def task(self) -> list[str]:
        said = [(await self.agent("what?", session_id="s")).text]
        said += [await self.put_job(Turn(each, self.agent)) for each in self.sessions]
        if self.asks_again:
            said.append((await self.agent("and?", session_id="s")).text)
        return said


def counts(request: Request) -> str:
    return f"{len(request.messages)}"


def turns(sessions: list[str], *, again: bool) -> Execution:
    agent = Agent(ScriptedBackend(otherwise=counts), name="clerk")
    return run_execution(lambda: Turns(sessions, again, agent))


def test_what_a_job_has_heard_that_does_not_run_again_is_no_memory_of_others():
    """A later execution would silently forget it; its own session, or its last use, is allowed."""
    for sessions, again in ((["s", "s"], False), (["t", "t"], False), (["s"], True)):
        execution = turns(sessions, again=again)
        assert isinstance(execution.error, ConfigurationError)
        assert "of clerk has messages from a durable job" in str(execution.error)
    assert turns(["s"], again=False).result == ["1", "3"]
    assert turns(["t", "u"], again=True).result == ["1", "1", "1", "3"]


class Talks(Durable[list[str]]):
    """Two agents converse for longer than allowed; then again."""

    pair: Live[list[ConversableAgent]] = live()

    async def task(self) -> list[str]:
        one, two = self.pair
        for said in ("slow", "fast"):
            with suppress(TimeoutError):
                await self.call_handler(talk(one, two, said), timeout=5)
        return [f"{each.sender}: {each.text}" for each in two.memory.messages("one")]


@handler
async def talk(node: Any, one: ConversableAgent, two: ConversableAgent, said: str) -> None:
    await one.initiate_chat(two, said, clear_history=False, max_turns=1)


def test_agents_that_talk_forget_a_talk_that_took_too_long():
    """Like a later execution, which does not repeat that conversation."""

    def answer(request: Request) -> Any:
        slow = request.messages[-1].content == "slow"
        return [asyncio.Event()] if slow else f"{len(request.messages)}"

    backend = ScriptedBackend(otherwise=answer)
    pair = [ConversableAgent(name, backend) for name in ("one", "two")]
    first = run_execution(lambda: Talks(pair))
    assert first.result == ["one: fast", "two: 1"]
    for rows in range(len(first.rows) + 1):
        assert (
            run_execution(lambda: Talks(pair), Kill(rows, frozenset()).of(first)).outcome
            == first.outcome
        )


class TalksTwice(Durable[list[str]]):
    """Several agents converse at once, then again."""

    backend: Live[ScriptedBackend] = live()

    async def task(self) -> list[str]:
        members = [ConversableAgent(name, self.backend) for name in "abc"]
        team, user = GroupTalk("team", members, max_turns=1), ConversableAgent("user")
        for said in ("go", "go on"):
            await user.send(said, team)
        return [f"{m.name}: {each.text}" for m in members for each in m.chat_messages["team"]]


def test_who_was_at_a_talk_remembers_it_at_the_next_one():
    """Also members whose turn had not come at its end: each execution ends it so."""
    backend = ScriptedBackend(otherwise=lambda request: "word")
    first = kill_everywhere(lambda: TalksTwice(backend))
    assert {f"{name}: {said}" for name in "abc" for said in ("go", "go on")} <= set(first.result)
