"""A tool with `retry` is called again after the failures that it names."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from anabranch import Agent, AgentMessage, Commander, Message, Retry, ToolCall, tool
from anabranch.agents import ToolExecutor
from anabranch.testing import ScriptedBackend
from anabranch.tools import Approvals, Tool


class Unavailable(Exception):
    """A temporary failure of a service."""


def flaky(failures: list[Exception], *, approve: bool = False) -> tuple[Tool[..., Any], list[str]]:
    """Make a tool that raises one of these failures for each call, then works."""
    tried: list[str] = []

    @tool(retry=Retry(attempts=3, on=Unavailable), approve=approve)
    async def look(query: str) -> str:
        """Look something up."""
        tried.append(query)
        if len(tried) <= len(failures):
            raise failures[len(tried) - 1]
        return f"about {query}"

    return look, tried


def call(**parameters: Any) -> AgentMessage:
    return AgentMessage(content={"name": "look", "parameters": parameters})


@given(st.lists(st.sampled_from([Unavailable("busy"), OSError("gone")]), max_size=4))
def test_what_it_names_is_tried_again_and_nothing_else(failures: list[Exception]):
    """At most `attempts` times; the model reads the last failure, or the result."""
    look, tried = flaky(failures)
    answer = asyncio.run(ToolExecutor([look])(call(query="rivers")))

    expected = 0
    for each in [*failures, None]:
        expected += 1
        if not isinstance(each, Unavailable) or expected == 3:
            break
    assert len(tried) == expected
    last = failures[expected - 1] if expected <= len(failures) else None
    assert answer.content == (
        "about rivers" if last is None else f"Error: {type(last).__name__}: {last}"
    )


async def test_arguments_that_are_wrong_are_not_tried_again():
    """Whatever `retry` names: they stay wrong."""
    tried: list[BaseException] = []

    def take(error: BaseException) -> bool:
        tried.append(error)
        return True

    @tool(retry=Retry(on=take))
    async def look(query: str) -> str:
        """Look something up."""
        return query

    answer = await ToolExecutor([look])(call(what="rivers"))
    assert (answer.extra["status"], tried) == ("invalid", [])


async def test_a_person_is_asked_once_for_all_attempts():
    """One approval holds for all."""
    asked: list[str] = []
    approvals = Approvals(on_ask=lambda question: asked.append(question.path) or question.approve())
    look, tried = flaky([Unavailable("busy")], approve=True)
    answer = await ToolExecutor([look], approvals=approvals)(call(query="rivers"))

    assert (answer.content, len(tried), len(asked)) == ("about rivers", 2, 1)


async def test_each_attempt_is_seen_in_the_events_by_the_tools_name():
    """With an agent, through its hooks."""
    look, _ = flaky([Unavailable("busy")])
    reply = Message(
        role="assistant", tool_calls=[ToolCall(id="1", name="look", arguments={"query": "x"})]
    )
    agent = Agent(ScriptedBackend(reply, "done"), tools=[look])
    agent.before_action(lambda agent, message, session: None)
    async with Commander() as commander:
        events = commander.events()
        await commander.run(agent.call("?"))
    seen = [event.kind async for event in events if event.name == "look"]
    assert seen.count("retried") == 1
    assert seen[-1] == "completed"
