"""Whatever a tool does, its call has a result that the model reads, and nothing else fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from anabranch.agents import Agent, AgentMessage, ToolExecutor
from anabranch.commander import Commander
from anabranch.handlers import View, respond
from anabranch.messages import Conversation, Message, ToolCall
from anabranch.testing import ScriptedBackend
from anabranch.tools import Approvals, Decision, tool


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("it says nothing")

    __repr__ = __str__


class Leaving(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class Fleeing(BaseException):
    def __str__(self) -> str:
        raise SystemExit(3)


class Unnamed(type):
    @property
    def __name__(cls) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        raise ValueError("it has no name")


class Nameless(Exception, metaclass=Unnamed):
    pass


class Opaque:
    def __str__(self) -> str:
        raise ValueError("it shows nothing")


def circular() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


RAISED = [
    *(SystemExit(3), GeneratorExit(), BaseException("odd"), StopIteration(1), StopAsyncIteration()),
    *(asyncio.CancelledError(), TimeoutError(), RecursionError(), MemoryError(), Mute(), Leaving()),
    Fleeing(),
    *(ValueError("\ud800"), ExceptionGroup("two", [ValueError("one")])),
    *(BaseExceptionGroup("two", [SystemExit(1), ValueError("one")]), KeyError(Opaque())),
]
RETURNED = [circular(), Opaque(), b"\xff", {(1, 2): 3}, object(), 10**5000]


def raising(error: BaseException) -> list[Callable[[], Any]]:
    def plain() -> str:
        raise error

    async def waiting() -> str:
        raise error

    return [plain, waiting]


def returning(value: Any) -> list[Callable[[], Any]]:
    async def waiting() -> Any:
        return value

    return [lambda: value, waiting]


FUNCTIONS = [
    *(pytest.param(each, id=type(e).__name__) for e in RAISED for each in raising(e)),
    *(
        pytest.param(each, id=f"returns {type(v).__name__}")
        for v in RETURNED
        for each in returning(v)
    ),
]


@pytest.mark.parametrize("approve", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS)
async def test_whatever_a_tool_does_is_told_to_the_model(
    function: Callable[[], Any], approve: bool
) -> None:
    """With and without a thread and an approval; the conversation continues."""
    odd = tool(name="odd", approve=approve)(function)
    made = [ToolCall(id=name, name=name, arguments={}) for name in ("odd", "sound")]

    @tool
    async def sound() -> str:
        return "sound"

    class Quiet(View):
        def write(self, text: str) -> None: ...

        async def approve(self, call: ToolCall) -> bool:
            return True

    conversation = Conversation()
    backend = ScriptedBackend(Message(role="assistant", tool_calls=made), "I see.")
    async with asyncio.timeout(20), Commander() as commander:
        message = await commander.run(respond(backend, conversation, [odd, sound], Quiet()))

    assert message.content == "I see."
    answers = [each.content for each in conversation if each.role == "tool"]
    assert len(answers) == 2
    assert answers[0]
    assert answers[1] == "sound"


@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit(), BaseException("odd")])
async def test_a_tool_that_would_end_the_program_is_a_failed_call(error: BaseException) -> None:
    """Also outside of a tree."""
    for function in raising(error):
        answer = await ToolExecutor([tool(name="odd")(function)])(
            AgentMessage(content={"name": "odd", "parameters": {}})
        )
        assert answer.extra == {"status": "failed"}
        assert type(error).__name__ in answer.content


@pytest.mark.parametrize("error", [Mute(), Leaving(), Nameless()])
async def test_what_fails_without_words_is_a_failure(error: Exception) -> None:
    """For a tool and for an executor's hooks, also if the error has no text."""
    for function in raising(error):
        executor = ToolExecutor([tool(name="odd")(function)])
        answer = await executor(AgentMessage(content={"name": "odd", "parameters": {}}))
        assert answer.extra == {"status": "failed"}
        assert "hook" not in answer.content

    def hook(executor: Any, message: AgentMessage, session_id: object) -> None:
        raise error

    executor = ToolExecutor([tool(name="odd")(lambda: "fine")])
    for add in (executor.after_action, executor.before_action):
        add(hook)
        answer = await executor(AgentMessage(content={"name": "odd", "parameters": {}}))
        assert answer.extra == {"status": "failed"}
        assert "a hook raised" in answer.content


@pytest.mark.parametrize("kind", ["ask", "message"])
async def test_what_was_asked_about_is_what_runs(kind: str) -> None:
    """Changes of the question or of the message during the approval have no effect."""
    ran: list[Any] = []

    @tool(approve=True)
    async def send(to: list[str]) -> str:
        ran.append(to)
        return "sent"

    call = ToolCall(id="a", name="send", arguments={"to": ["Ann"]})

    def meddle(question: Any) -> None:
        changed = question.call if kind == "ask" else call
        changed.arguments["to"].append("Eve")
        question.approve()

    executor = ToolExecutor([send], approvals=Approvals(on_ask=meddle))
    await executor(AgentMessage(content="", output=call))

    assert ran == [["Ann"]]
    assert Decision.of(True).apply_to(call) is call


@pytest.mark.parametrize("kind", ["another", "in place", "later", "not", "exit"])
@pytest.mark.parametrize("edit", [None, {"to": ["Bob"]}])
async def test_an_agents_hooks_come_before_the_question(kind: str, edit: Any) -> None:
    """So no hook changes an approved call; a hook's error is the call's result."""
    ran: list[Any] = []
    asked: list[Any] = []
    seen: list[ToolCall] = []

    @tool(approve=True)
    async def send(to: list[str]) -> str:
        ran.append(to)
        return "sent"

    def hook(agent: Any, message: AgentMessage, session_id: object) -> AgentMessage | None:
        call: ToolCall = message.output
        seen.append(call)
        if kind == "exit":
            raise SystemExit(3)
        if kind == "in place":
            call.arguments["to"] = ["Eve"]
        if kind in ("another", "not"):
            made = call.model_copy(update={"arguments": {"to": ["Eve"]}})
            return message.model_copy(update={"output": made if kind == "another" else None})
        return None

    class Person(View):
        def write(self, text: str) -> None: ...

        async def approve(self, call: ToolCall) -> Decision:
            asked.append(json.loads(call.text)["to"])
            seen[0].arguments["to"] = ["Mallory"]
            return Decision(True, edit)

    call = ToolCall(id="a", name="send", arguments={"to": ["Ann"]}, raw='{"to": ["Ann"]}')
    backend = ScriptedBackend(Message(role="assistant", tool_calls=[call]), "I see.")
    agent = Agent(backend, tools=[send], view=Person())
    agent.before_action(hook)
    async with asyncio.timeout(20):
        assert (await agent("Send.")).content == "I see."

    wanted = {"another": [["Eve"]], "in place": [["Eve"]], "later": [["Ann"]]}.get(kind, [])
    assert asked == wanted
    assert ran == (wanted if edit is None else [["Bob"]] * len(wanted))
    assert len(seen) == 1
