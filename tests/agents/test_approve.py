"""One function approves the calls of all agents; its question names the agent."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from anabranch import Agent, AgentMessage, Approvals, Message, Retry, ToolCall, tool
from anabranch.agents import ConversableAgent, StepAgent, UserProxyAgent
from anabranch.handlers import View
from anabranch.messages import Request
from anabranch.testing import ScriptedBackend
from anabranch.tools import Approve, Decision, ToolQuestion


@tool(approve=True)
async def send(to: str) -> str:
    """Send something."""
    return f"sent to {to}"


def reply(request: Request) -> Message:
    """Call the tool, then repeat its result."""
    last = request.messages[-1]
    if last.role == "tool":
        return Message(role="assistant", content=last.content)
    call = ToolCall(id="c", name="send", arguments={"to": last.content})
    return Message(role="assistant", tool_calls=[call])


def sender(name: str, **options: Any) -> Agent:
    return Agent(ScriptedBackend(otherwise=reply), tools=[send], name=name, **options)


def yes(question: ToolQuestion) -> bool:
    return True


def no(question: ToolQuestion) -> bool:
    return False


class Desk(Agent):
    """Asks two agents without `approve` at the same time."""

    def __init__(self, **options: Any) -> None:
        super().__init__(name="desk", **options)
        self.agents = [sender("ann"), sender("ben")]

    async def forward(self, message: AgentMessage, session_id: int | str = 0) -> str:
        said = await asyncio.gather(*(a(message, session_id=session_id) for a in self.agents))
        return ", ".join(each.text for each in said)


async def test_the_question_names_agent_and_session() -> None:
    """Plain or async; its result decides whether the call runs. The model reads a refusal."""
    asked: list[ToolQuestion] = []

    async def ask(question: ToolQuestion) -> bool | Decision:
        asked.append(question)
        if question.session_id == 8:
            return Decision(False, reason="not today")
        return Decision(True, {"to": "Bob"}) if question.session_id else True

    agent = sender("clerk", approve=ask)
    assert (await agent("Ann")).text == "sent to Ann"
    assert "sent to Bob" in (await agent("Ann", session_id=7)).text
    assert "not today" in (await agent("Ann", session_id=8)).text
    assert [(q.agent, q.session_id, q.call.name, q.tool) for q in asked] == [
        *(("clerk", session, "send", send) for session in (None, 7, 8))
    ]
    assert (await sender("clerk", approve=yes)("Ann")).text == "sent to Ann"


async def test_agents_below_ask_the_same() -> None:
    """Unless they have an `approve` or a view."""
    asked: list[tuple[str | None, Any]] = []

    def ask(question: ToolQuestion) -> bool:
        asked.append((question.agent, question.session_id))
        return True

    desk = Desk(approve=ask)
    assert (await desk("x", session_id="s")).text == "sent to x, sent to x"
    assert sorted(asked) == [("ann", "s"), ("ben", "s")]
    desk.agents[0].approve = no
    desk.agents[1].view = View()
    assert (await desk("x")).text.count("did not allow") == 2
    assert len(asked) == 2
    assert "nobody is there to ask" in (await Desk()("x")).text


async def test_an_application_answers_for_all_agents_in_one_place() -> None:
    """`Approvals` in place of a function collects the questions, each with its agent."""
    approvals = Approvals()
    asking = asyncio.create_task(Desk(approve=approvals)("x", session_id=7))
    found: dict[str | None, Any] = {}
    async with asyncio.timeout(5):
        async for question in approvals:
            found[question.agent] = question.session_id
            question.approve()
            if len(found) == 2:
                break
        assert (await asking).text == "sent to x, sent to x"
    assert found == {"ann": 7, "ben": 7}


@pytest.mark.parametrize("kind", ["steps", "conversation"])
async def test_every_kind_of_agent_asks(kind: str) -> None:
    """Also a `StepAgent` and a conversable agent."""
    asked: list[str | None] = []

    def ask(question: ToolQuestion) -> bool:
        asked.append(question.agent)
        return True

    approve: Approve = ask
    if kind == "steps":
        call = '```json\n{"name": "send", "parameters": {"to": "Ann"}}\n```'
        backend = ScriptedBackend(call, "Done.")
        await StepAgent(backend, plugins=[send], name="bob", approve=approve)("?")
    else:
        backend = ScriptedBackend(otherwise=reply)
        bob = ConversableAgent("bob", backend, tools=[send], approve=approve)
        user = UserProxyAgent(human_input_mode="NEVER", max_consecutive_auto_reply=0)
        await user.initiate_chat(bob, "Ann")
    assert asked == ["bob"]
    assert "sent to Ann" in (backend.requests[-1].messages[-1].content or "")


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("answer", ["no", "n", 1, None, [False]])
async def test_what_is_neither_yes_nor_no_is_no_yes(answer: Any, wrapped: bool) -> None:
    """The text "no" is true in Python, but approves no call."""

    def ask(question: ToolQuestion) -> Any:
        return Decision(answer) if wrapped else answer

    agent = sender("clerk", approve=ask)
    with pytest.raises(TypeError, match="True, False or a Decision"):
        await agent("Ann")


class Unreachable(Exception):
    """Takes no attributes but those of Python."""

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("__"):
            raise AttributeError(name)
        super().__setattr__(name, value)


def failing_approve(kind: str) -> tuple[Approve, type[Exception]]:
    """Return something that fails to decide, and the error that it raises."""

    def fail(question: object) -> Any:
        raise Unreachable

    async def fail_later(question: object) -> Any:
        await asyncio.sleep(0)
        raise Unreachable

    def answer_wrongly(question: object) -> Any:
        return "no"

    def typo(question: Any) -> Any:
        return question.call.args

    made: dict[str, tuple[Approve, type[Exception]]] = {
        "function": (fail, Unreachable),
        "async": (fail_later, Unreachable),
        "on_ask": (Approvals(on_ask=fail), Unreachable),
        "async on_ask": (Approvals(on_ask=fail_later), Unreachable),
        "typo": (typo, AttributeError),
        "wrong value": (answer_wrongly, TypeError),
    }
    return made[kind]


KINDS = ["function", "async", "on_ask", "async on_ask", "typo", "wrong value"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", ["agent", "below", "tool of an agent", "retried tool"])
async def test_a_failure_to_ask_fails_the_call(kind: str, place: str) -> None:
    """The exception reaches the caller, from any depth; no model reads it; nothing repeats."""
    approve, expected = failing_approve(kind)
    inner = sender("inner", description="Sends.")
    backend: Any = inner.backend
    agent: Agent = inner
    if place == "below":
        agent = Desk()
        agent.agents = [inner]
    elif place != "agent":
        outer = ToolCall(id="o", name="inner", arguments={"message": "x"})
        script = ScriptedBackend(Message(role="assistant", tool_calls=[outer]), "never")
        retry = Retry(attempts=3) if place == "retried tool" else None

        @tool(name="inner", retry=retry)
        async def call_inner(message: str) -> str:
            """Send."""
            return (await inner(message)).text

        agent = Agent(script, tools=[call_inner], name="outer")
    agent.approve = approve
    with pytest.raises(expected):
        await agent("x")
    assert len(backend.requests) == 1
    if isinstance(approve, Approvals):
        assert not approve.pending


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_below", [False, True])
async def test_a_session_asks_again_after_a_failure_to_ask(
    kind: str, is_below: bool, tmp_path: Path
) -> None:
    """The journal stores no answer. The same message resumes the call, and asks again."""
    failing, expected = failing_approve(kind)
    inner = sender("inner")
    journal = str(tmp_path / "runs.db")

    @tool
    async def forward_to_inner(message: str) -> str:
        """Send."""
        return (await inner(message)).text

    def reply_outer(request: Request) -> Message:
        last = request.messages[-1]
        if last.role == "tool":
            return Message(role="assistant", content=last.content)
        call = ToolCall(id="o", name="forward_to_inner", arguments={"message": "x"})
        return Message(role="assistant", tool_calls=[call])

    agent = inner
    if is_below:
        outer = ScriptedBackend(otherwise=reply_outer)
        agent = Agent(outer, tools=[forward_to_inner], name="outer")
    agent.journal = journal
    for _ in range(2):
        agent.approve = failing
        with pytest.raises(expected):
            await agent("x", session_id="s")
        assert [each.text for each in await agent.find_interrupted("s") or ()] == ["x"]
    agent.approve = yes
    assert (await agent("x", session_id="s")).text == "sent to x"
    assert await agent.find_interrupted("s") is None
