"""Orchestrators, strategies, chats and people below a durable job, killed between any two rows."""

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from support import killed_executions, memory_journal
from support.killed_executions import kill_everywhere
from support.memory_journal import RUN_ID, act

from anabranch import tool
from anabranch.agents import (
    Agent,
    AgentMessage,
    ConversableAgent,
    Observation,
    Orchestrator,
    PromptedAgent,
    PromptEngineer,
    Sequential,
    State,
    StepAgent,
    SummaryMemory,
    UserProxyAgent,
    planner_reviewer_executor,
    reflexion,
    single_agent,
)
from anabranch.agents.orchestration import ListMemory
from anabranch.backends import Backend
from anabranch.messages import Message, Request, ToolCall
from anabranch.store import Durable, Live
from anabranch.store import live as later
from anabranch.testing import ScriptedBackend

pytestmark = pytest.mark.contract("D22")

Said = Message | str


def script(*replies: Said) -> ScriptedBackend:
    """Answer with the next reply of the run: no requests are concurrent here."""

    def answer(request: Request) -> Said:
        rows = memory_journal.mounted[-1].rows[RUN_ID]
        return replies[sum(row.kind == "reply" for row in rows)]

    return ScriptedBackend(otherwise=answer)


@tool(effect="nested")
async def look(at: str) -> str:
    """Look at something."""
    return await act("look", at)


def looks(at: str) -> Message:
    return Message(
        role="assistant",
        content=f"I look at {at}.",
        tool_calls=[ToolCall(id=at, name="look", arguments={"at": at})],
    )


def json_of(**fields: Any) -> str:
    return json.dumps(fields)


class Door:
    """Opens when pulled; each action is an effect."""

    async def reset(self) -> str:
        return "A door."

    async def step(self, action: str) -> Observation:
        await act("door", action)
        opened = action == "pull"
        return Observation("It opens." if opened else "Nothing happens.", done=opened)


class Kind(Durable[list[str]]):
    """A job that calls a backend; its result is the text of the replies."""

    backend: Live[Backend] = later()

    async def task(self) -> list[str]:
        raise NotImplementedError


async def play(orchestrator: Orchestrator[Any]) -> list[str]:
    result = await orchestrator.play(Door())
    steps = [f"{step.action} {step.observation}" for step in result.steps]
    return [result.status, *steps, orchestrator.state.model_dump_json()]


class Single(Kind):
    async def task(self) -> list[str]:
        return await play(single_agent(self.backend, "Open it.", modules=[ListMemory()]))


class Reflects(Kind):
    async def task(self) -> list[str]:
        return await play(reflexion(self.backend, "Open it."))


class Plans(Kind):
    async def task(self) -> list[str]:
        return await play(planner_reviewer_executor(self.backend, "Open it."))


class Own(Kind):
    """Agents with tools whose order a function chooses."""

    async def task(self) -> list[str]:
        def next_agent(obs: str | None, state: State) -> str | None:
            return {None: "writer", "writer": "critic"}.get(state.agent)

        agents = [Agent(self.backend, name=name, tools=[look]) for name in ("writer", "critic")]
        orchestrator = Orchestrator(agents, next_agent, State())
        return [str(await orchestrator.forward("go")), str(orchestrator.usage)]


class Again(Kind):
    """An answer of each of two agents fails once, after its tool has run."""

    async def task(self) -> list[str]:
        failed: list[str] = []

        def fail_once(name: str) -> None:
            if name not in failed:
                failed.append(name)
                raise LookupError(name)

        class Critic(PromptEngineer[State]):
            def render_prompt(self, obs: str | None, history: list[Message], state: State) -> None:
                history[:] = [Message(role="user", content=f"Judge: {state.response}")]

            def process_response(
                self, obs: str | None, response: str, history: list[Message], state: State
            ) -> str:
                fail_once("critic")
                return response

        def next_agent(obs: str | None, state: State) -> str | None:
            return {None: "writer", "writer": "critic"}.get(state.agent)

        writer = Agent(self.backend, name="writer", tools=[look])

        @writer.after_agent
        def fail(_: object, said: AgentMessage, session_id: object) -> None:  # pyright: ignore[reportUnusedFunction]
            fail_once("writer")

        critic = PromptedAgent("critic", Critic(), self.backend, tools=[look])
        orchestrator = Orchestrator([writer, critic], next_agent, State())
        for _ in range(2):
            with suppress(LookupError):
                await orchestrator.forward("go")
        action = await orchestrator.forward("go")
        return [action.content, *failed, orchestrator.state.model_dump_json()]


class InARow(Kind):
    """A step agent and an agent that summarises its memory, twice."""

    async def task(self) -> list[str]:
        memory = SummaryMemory(self.backend, max_tokens=12)
        last = Agent(self.backend, "Judge.", memory=memory, tools=[look], name="last")
        team = Sequential(StepAgent(self.backend, plugins=[look], name="step"), last)
        said = [(await team(text, session_id="s")).text for text in ("one", "two")]
        return [*said, json.dumps(team.state_dict("s"))]


TYPED: list[str] = []


class WithAPerson(Kind):
    """A person who answers an agent; each line is typed once."""

    async def task(self) -> list[str]:
        async def typed(prompt: str) -> str | None:
            TYPED.append(prompt)
            return f"line of {len(prompt)}"

        user = UserProxyAgent("user", human_input=typed)
        bob = ConversableAgent("bob", self.backend, "You are Bob.", tools=[look])
        result = await user.initiate_chat(bob, "Hello.", max_turns=3)
        return [result.status, *(each.text for each in result.messages)]


FENCED = '```json\n{"name": "look", "parameters": {"at": "sky"}}\n```'
PLANNED: list[Said] = [
    json_of(plan=["wait"]),
    json_of(feedback=["waiting opens no door"]),
    json_of(plan=["try", "tell"]),
    json_of(feedback=[]),
    json_of(status="progress", action="push"),
    json_of(status="done", summary="pushing does nothing"),
    json_of(feedback=[]),
    json_of(status="progress", action="pull"),
]
CASES: list[tuple[type[Kind], list[Said], int]] = [
    (Single, ["Action: push", "Hm.", "Action: push", "Action: pull"], 3),
    (Reflects, [*["Action: push"] * 3, "Do not push.", "Action: pull"], 4),
    (Plans, PLANNED, 2),
    (Own, [looks("sky"), "a draft", looks("draft"), looks("sky"), "good"], 3),
    (Again, [looks("sky"), "x", "a draft", looks("draft"), "x", "good"], 2),
    (InARow, [FENCED, "seen", looks("it"), "fine", "again", "sum", FENCED, "no", "so"], 2),
    (WithAPerson, [looks("you"), "Hi.", "Well.", "Bye."], 1),
]


@pytest.mark.parametrize(("kind", "replies", "effects"), CASES)
def test_what_was_said_and_done_stays_after_any_kill(
    kind: type[Kind], replies: list[Said], effects: int
) -> None:
    """The same result and the same effects, each once, also with another order of the loop."""
    make: Callable[[], Kind] = lambda: kind(script(*replies))  # noqa: E731
    first = kill_everywhere(make, seeds=(None, 1))
    assert first.error is None
    assert len(first.disk.done) == effects


def test_a_person_types_no_line_again() -> None:
    """Typed lines are recorded; only the line in progress is requested again."""

    def make() -> WithAPerson:
        return WithAPerson(script(looks("you"), "Hi.", "Well.", "Bye."))

    TYPED.clear()
    first = killed_executions.run_execution(make)
    typed = list(TYPED)
    assert len(typed) == 2
    for rows in range(len(first.rows)):
        kept = sum(b"line of" in row.value for row in first.rows[:rows] if row.kind == "gave")
        TYPED.clear()
        execution = killed_executions.run_execution(
            make, killed_executions.Kill(rows, frozenset()).of(first)
        )
        assert typed[kept:] == TYPED or execution.rows[rows - 1].kind == "result"
