"""Effects that a reply causes wait until the reply is complete, as models never answer alike."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from support.killed_executions import Execution, require_consistent, run_execution
from support.seeds import SEED, example_count

from anabranch import ConfigurationError, Retry, StreamInterrupted, handler, tool
from anabranch.agents import (
    Agent,
    ConversableAgent,
    GroupChat,
    Orchestrator,
    State,
)
from anabranch.agents.conversation import random_speaker
from anabranch.dispatch import fork
from anabranch.handlers import View, call_tools, respond
from anabranch.messages import Delta, Message, Request, ToolCall, ToolCallDelta
from anabranch.store import Durable, Live, live
from anabranch.testing import ScriptedBackend, deltas
from anabranch.tools import AnyTool
from tests.store.test_effects import TOOLS, change, found, keyed, kills, left_after

pytestmark = pytest.mark.contract("D3")


@tool(approve=True, reconcile=found, reconcile_after=0)
async def send(n: int, fails: int = 0) -> str:
    return change(f"sent {n}")


@tool(read_only=True)
async def peek(n: int) -> str:
    return f"saw {n}"


@tool(read_only=True, approve=True)
async def open_letter(n: int) -> str:
    return f"read {n}"


EVERY: list[AnyTool] = [*TOOLS, peek, open_letter, send]
ONCE = {"mail": 1, "again": 1, "keyed": 1, "limited": 1, "send": 1, "nested": 2}
"""How much each tool does outside."""


class Liar:
    """A model that calls tools at random, and never answers twice alike."""

    def __init__(self, seed: int, tools: list[AnyTool]) -> None:
        self.draw = random.Random(seed)
        self.tools = tools

    def __call__(self, request: Request) -> Message | str:
        draw = self.draw
        if sum(message.role == "tool" for message in request.messages) > 4 or draw.random() < 0.2:
            return f"done {draw.random()}"
        calls = [
            ToolCall(
                id=f"{draw.random()}",
                name=draw.choice(self.tools).name,
                arguments={"n": draw.randint(0, 2)},
                index=index,
            )
            for index in range(draw.randint(1, 3))
        ]
        return Message(role="assistant", content=f"{draw.random()}", tool_calls=calls)


class Yes(View):
    async def approve(self, call: ToolCall) -> bool:
        return True


class Talk(Durable[list[Any]]):
    """Lets a model act, by `respond` or by hand."""

    by_hand: bool
    backend: Live[ScriptedBackend] = live()

    async def task(self) -> list[Any]:
        talk = self.durable.conversation("t")
        talk.add("go")
        if self.by_hand:
            reply = await self.call_handler(act_at_once(self.backend, talk.request()))
            talk.add(*reply)
        else:
            await self.call_handler(respond(self.backend, talk, EVERY, Yes()))
        return [message.model_dump(mode="json") for message in talk.messages]


@handler
async def act_at_once(node: Any, backend: ScriptedBackend, request: Request) -> list[Message]:
    """Run each call once it is complete."""
    reply = fork(node, backend.stream(request))
    results: list[Message] = []
    async for call in reply.tool_calls:
        assert isinstance(call, ToolCall)
        results += await node.call_handler(call_tools(one(call), EVERY, Yes()))
    return [await reply.message, *results]


async def one(call: ToolCall) -> AsyncIterator[ToolCall]:
    yield call


class Team(Durable[str]):
    """Agents that act: one, two in turn, or a group with a random order of speakers."""

    kind: str
    backend: Live[ScriptedBackend] = live()

    async def task(self) -> str:
        acts = [each for each in EVERY if not each.approve]
        if self.kind == "group":
            members = [ConversableAgent(name, self.backend, "Act.", tools=acts) for name in "ab"]
            team = GroupChat("team", members, speaker=random_speaker(), max_turns=2)
            return (await ConversableAgent("user").initiate_chat(team, "Go.")).text
        first, second = (Agent(self.backend, tools=acts, name=name) for name in "ab")
        if self.kind == "turns":
            following = {None: "a", "a": "b"}
            turns = Orchestrator(
                [first, second], lambda obs, state: following.get(state.agent), State()
            )
            return str(await turns.forward("go"))
        return (await first("go")).text


def require_all_done_once(execution: Execution, where: str) -> None:
    """Require that all calls of the recorded replies, and no others, have happened."""
    require_consistent(execution, where)
    assert execution.error is None, f"{where}: {execution.error}"
    replies = [json.loads(row.value)["message"] for row in execution.rows if row.kind == "reply"]
    calls = [call for each in replies for call in each.get("tool_calls") or ()]
    assert len(execution.disk.done) == sum(ONCE.get(_name(call), 0) for call in calls), where
    if not isinstance(execution.result, str):
        said: list[dict[str, Any]] = execution.result
        called = [call["name"] for each in said for call in each.get("tool_calls") or ()]
        gave = [each for each in said if each["role"] == "tool"]
        assert [each["name"] for each in gave] == called, where
        told = " ".join(each["content"] for each in gave)
        assert all(done in told for done in execution.disk.done.values()), where
    asked = {row.ident for row in execution.rows if row.kind == "question"}
    assert asked <= {row.ident for row in execution.rows if row.kind == "letter"}, where


def _name(call: dict[str, Any]) -> str:
    return call.get("name") or call["function"]["name"]


@pytest.mark.parametrize("kind", ["respond", "by hand", "agent", "turns", "group"])
@pytest.mark.parametrize("number", range(example_count(1, 40)))
def test_a_model_that_answers_otherwise_in_each_life_doubles_and_loses_nothing(
    kind: str, number: int
) -> None:
    """D3, D7, D8: the calls of the recorded replies happen, and no run is parked.

    The same holds for a run that is killed twice.
    """
    draw = random.Random(f"{SEED} {number}")

    def make() -> Durable[Any]:
        talks = kind in ("respond", "by hand")
        liar = Liar(draw.randrange(1 << 30), [each for each in EVERY if talks or not each.approve])
        backend = ScriptedBackend(otherwise=liar)
        return Talk(kind == "by hand", backend) if talks else Team(kind, backend)

    first = run_execution(make, seed=number)
    require_all_done_once(first, "never killed")
    for where, disk in kills(first):
        execution = run_execution(make, disk, seed=draw.randrange(1 << 30))
        require_all_done_once(execution, where)
        again, left = draw.choice(list(kills(execution))[2 * execution.before :])
        require_all_done_once(run_execution(make, left), f"{where}, then {again}")


def breaks_off(request: Request) -> list[Any]:
    """Call once; some seconds later the connection breaks."""
    cut = asyncio.Event()
    asyncio.get_running_loop().call_later(9, cut.set)
    calls = [ToolCall(id=f"{n}", name="keyed", arguments={"n": 0}, index=n) for n in (0, 1)]
    said = deltas(Message(role="assistant", tool_calls=calls))
    return [*said[:-3], cut, StreamInterrupted("the line is cut")]


class Broken(Durable[str]):
    backend: Live[ScriptedBackend] = live()

    async def task(self) -> str:
        try:
            await self.call_handler(act_at_once(self.backend, Request([])))
        except StreamInterrupted as error:
            return str(error)
        return "whole"


def test_a_call_of_a_reply_that_breaks_off_is_not_made() -> None:
    execution = run_execution(lambda: Broken(ScriptedBackend(otherwise=breaks_off)))
    assert execution.result == "the line is cut"
    assert not any(row.kind == "intent" for row in execution.rows)


class Moody:
    """Breaks off, stops in the middle or answers, and never twice alike."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.asked = 0

    def __call__(self, request: Request) -> str | list[Any]:
        self.asked += 1
        said = f"{self.draw.random()}"
        ends = [StreamInterrupted(said), asyncio.Event(), Delta(finish_reason="stop")]
        return [said, self.draw.choice(ends)]


class Tries(Durable[list[str]]):
    """Requests several replies in one conversation, with attempts or a time limit."""

    limits: list[bool]
    backend: Live[ScriptedBackend] = live()

    async def task(self) -> list[str]:
        talk = self.durable.conversation("t")
        talk.add("go")
        attempts = Retry(attempts=4, on=StreamInterrupted, backoff=1)
        for limited in self.limits:
            # A request that hangs without its own limit is ended by an outer one.
            for_it = {"timeout": 5} if limited else {"retry": attempts}
            node = self.call_handler(patient(self.backend, talk, for_it), timeout=60)
            with suppress(StreamInterrupted, TimeoutError):
                await node
        return [f"{message.role}: {message.content}" for message in talk.messages]


@handler
async def patient(node: Any, backend: Any, talk: Any, options: dict[str, Any]) -> None:
    await node.call_handler(respond(backend, talk), **options)


@pytest.mark.parametrize("number", range(example_count(4, 60)))
def test_attempts_and_late_replies_are_played_in_the_conversation_that_they_had(
    number: int,
) -> None:
    """D17: each request finds exactly the messages that it had; none is repeated."""
    draw = random.Random(f"{SEED} {number}")
    limits = [draw.random() < 0.5 for _ in range(3)]

    def require_played(execution: Execution, where: str) -> None:
        assert execution.error is None, f"{where}: {execution.error}"
        result = next(row.seq for row in reversed(execution.rows) if row.kind == "result")
        nobody = Moody(0)
        again = run_execution(
            lambda: Tries(limits, ScriptedBackend(otherwise=nobody)),
            left_after(execution, result - 1, done=True),
        )
        assert (again.result, nobody.asked) == (execution.result, 0), where

    def make() -> Tries:
        return Tries(limits, ScriptedBackend(otherwise=Moody(draw.randrange(1 << 30))))

    first = run_execution(make, seed=number)
    require_played(first, "never killed")
    for where, disk in kills(first):
        require_played(run_execution(make, disk, seed=draw.randrange(1 << 30)), where)


def is_slow(request: Request) -> list[Any]:
    """Call once; the reply ends much later."""
    whole = asyncio.Event()
    asyncio.get_running_loop().call_later(1000, whole.set)
    call = ToolCall(id="c", name="limited", arguments={"n": 0})
    said = deltas(Message(role="assistant", tool_calls=[call]))
    next_call = ToolCallDelta(1, "d", "peek", '{"n": 1}')
    return [*said[:-2], Delta(tool_calls=(next_call,)), whole, *said[-2:]]


def test_a_call_s_time_begins_when_its_reply_is_whole() -> None:
    """Its tool has a `timeout`, which does not cover the reply."""
    execution = run_execution(lambda: Talk(True, ScriptedBackend(otherwise=is_slow)))
    assert execution.error is None
    assert [each["status"] for each in execution.result if each["role"] == "tool"] == ["ok", "ok"]
    intent = next(row for row in execution.rows if row.kind == "intent")
    assert intent.seq > next(row.seq for row in execution.rows if row.kind == "reply")


class InTheMiddle(Durable[str]):
    """Reads a reply in its own code, and calls a tool before its end."""

    backend: Live[ScriptedBackend] = live()

    async def task(self) -> str:
        async for _ in self.backend.stream(Request([])):
            await self.durable.call(keyed, n=0)
        return ""


def test_code_that_reads_a_reply_by_itself_cannot_call_before_its_end() -> None:
    """It would wait for itself, as the only reader."""
    execution = run_execution(lambda: InTheMiddle(ScriptedBackend("text")))
    assert isinstance(execution.error, ConfigurationError)
    assert "before the reply that the same code reads was complete" in str(execution.error)
    assert not any(row.kind == "intent" for row in execution.rows)
