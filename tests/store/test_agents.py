"""Agents, orchestrators, groups and chats below a durable job are durable without a change."""

import json
from collections.abc import Callable
from dataclasses import field
from pathlib import Path

import pytest
from support.killed_executions import disk_after, execute_in_loop

from anabranch import Agent, Commander, tool
from anabranch.agents import (
    ConversableAgent,
    GroupChat,
    Orchestrator,
    State,
    StepAgent,
)
from anabranch.agents.conversation import random_speaker
from anabranch.backends import Backend
from anabranch.handlers import View
from anabranch.jobs import ChatJob
from anabranch.messages import Message, Request, ToolCall
from anabranch.store import Durable, Journal, Live
from anabranch.store import live as later
from anabranch.testing import ScriptedBackend

pytestmark = pytest.mark.contract("D22")


@tool(read_only=True)
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(read_only=True)
def double(number: int) -> int:
    """Double a number."""
    return 2 * number


class Counting:
    """Counts requests; each answer has the count, so that all answers differ."""

    def __init__(self, answer: Callable[[Request, int], Message | str]) -> None:
        self.count = 0
        self.answer = answer

    def __call__(self, request: Request) -> Message | str:
        self.count += 1
        return self.answer(request, self.count)


def calls_tools(request: Request, number: int) -> Message | str:
    """Call both tools, then one of them, then answer."""
    results = 0
    for message in reversed(request.messages):
        if message.role == "user":
            break
        results += message.role == "tool"
    calls = [("add", {"a": number, "b": 1}), ("double", {"number": number})]
    if results < 3:
        return Message(
            role="assistant",
            content=f"thought {number}",
            tool_calls=[
                ToolCall(id=f"{number}-{name}", name=name, arguments=arguments)
                for name, arguments in calls[results // 2 :]
            ],
        )
    return f"answer {number} to {len(request.messages)}"


class Speaks(Durable[list[str]]):
    """Calls a backend in some way; its result is the text of the replies."""

    backend: Live[Backend] = later()

    async def task(self) -> list[str]:
        raise NotImplementedError


class AgentRemembers(Speaks):
    """An agent with two tools, called in a named session and without one."""

    async def task(self) -> list[str]:
        agent = Agent(self.backend, "Compute.", tools=[add, double])
        said = [(await agent(text, session_id="s")).text for text in ("one", "two")]
        said += [(await agent("three")).text, str(agent.usage())]
        return [*said, json.dumps(agent.memory.save("s"))]


class AgentSteps(Speaks):
    """An agent whose model writes its calls as text."""

    async def task(self) -> list[str]:
        agent = StepAgent(self.backend, "Solve.", plugins=[add, double], name="solver")
        said = [(await agent("How much?", session_id=1)).text]
        return [*said, *(str(step) for step in agent.get_steps(1))]


def writes_calls(request: Request, number: int) -> str:
    if number % 3:
        call = {"name": "double", "parameters": {"number": number}}
        return f"thought {number}\n```json\n{json.dumps(call)}\n```"
    return f"answer {number}"


class Orchestrated(Speaks):
    """Two agents in turn; one gets a correction."""

    async def task(self) -> list[str]:
        def next_agent(obs: str | None, state: State) -> str | None:
            if state.agent == "critic" and "said 2 " in str(state.response):
                state.signal_error("no judgement", "Judge it.")
            return {None: "writer", "writer": "critic"}.get(state.agent)

        agents = [Agent(self.backend, name=name) for name in ("writer", "critic")]
        every = [Orchestrator(agents, next_agent, State()) for _ in range(2)]
        return [str(await each.forward("go")) for each in every]


def numbers(request: Request, number: int) -> str:
    return f"said {number} after {len(request.messages)}"


class Group(Speaks):
    """Three agents that speak in turn, the last with a tool."""

    async def task(self) -> list[str]:
        members = [ConversableAgent(name, self.backend, f"You are {name}.") for name in "abc"]
        team = GroupChat("team", members, max_turns=6)
        result = await ConversableAgent("user").initiate_chat(team, "Go.")
        return [result.text, *(each.text for each in team.talks["user"].messages)]


class AtRandom(Speaks):
    """Three agents that speak in random order."""

    async def task(self) -> list[str]:
        members = [ConversableAgent(name, self.backend, f"You are {name}.") for name in "abc"]
        team = GroupChat("team", members, speaker=random_speaker(), max_turns=6)
        await ConversableAgent("user").initiate_chat(team, "Go.")
        return [f"{each.sender}: {each.text}" for each in team.talks["user"].messages]


class Chats(Speaks):
    """A chat with several rounds under a commander of the job."""

    async def task(self) -> list[str]:
        talk = self.durable.conversation("chat", "Be kind.")
        lines = ["hello", "how are you", "bye"]
        async with Commander() as commander:
            commander.put_job(Chat(self.backend, talk, [add, double], View(), lines=lines))
        return [message.model_dump_json() for message in talk]


class Chat(ChatJob):
    lines: list[str] = field(default_factory=list[str])

    async def read(self) -> str | None:
        said = sum(message.role == "user" for message in self.conversation)
        return self.lines[said] if said < len(self.lines) else None


CASES: list[tuple[type[Speaks], Callable[[Request, int], Message | str], int]] = [
    (AgentRemembers, calls_tools, 9),
    (AgentSteps, writes_calls, 3),
    (Orchestrated, numbers, 5),
    (Group, numbers, 6),
    (AtRandom, numbers, 6),
    (Chats, calls_tools, 9),
]


@pytest.mark.parametrize(("kind", "answer", "asked"), CASES)
async def test_no_reply_that_is_kept_is_asked_again_after_any_kill(
    kind: type[Speaks], answer: Callable[[Request, int], Message | str], asked: int
) -> None:
    """After each kill the next execution replays recorded replies and requests only the rest."""
    first = await execute_in_loop(kind(ScriptedBackend(otherwise=Counting(answer))))
    assert first.count("reply") == asked
    for rows in range(len(first.rows) + 1):
        script = Counting(answer)
        script.count = sum(row.kind == "reply" for row in first.rows[:rows])
        again = await execute_in_loop(
            kind(ScriptedBackend(otherwise=script)), disk_after(first, rows)
        )
        assert (again.result, script.count) == (first.result, asked)


# --- the messages of a call as results and inputs


@tool
def tell_time() -> str:
    return "noon"


def use_clock(request: Request) -> Message | str:
    if request.messages[-1].role == "tool":
        return "It is noon."
    return Message(role="assistant", tool_calls=[ToolCall(id="1", name="tell_time")])


watcher = Agent(ScriptedBackend(otherwise=use_clock), tools=[tell_time], name="watcher")


async def ask_watcher() -> list[Message]:
    return (await watcher("When?")).new_messages()


class KeepMessages(Durable[list[Message]]):
    history: list[Message]

    async def task(self) -> list[Message]:
        new = (await watcher("And now?", history=self.history)).new_messages()
        return [*await self.durable.step(ask_watcher), *new]


async def test_the_messages_of_a_call_are_results_and_inputs_of_jobs(tmp_path: Path):
    history = await ask_watcher()
    for _ in range(2):
        async with Journal(tmp_path / "runs.db") as journal:
            found = await journal.run(KeepMessages(history), run_id="r")
            assert found[:4] == history
            assert [each.role for each in found] == ["user", "assistant", "tool", "assistant"] * 2
