"""The context of agents' calls."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from anabranch import Agent, Commander, Context, ContextError, ToolExecutor, current_context, tool
from anabranch.agents import AgentMessage
from anabranch.messages import Message, Request, ToolCall
from anabranch.testing import ScriptedBackend


@dataclass
class User:
    name: str


@tool
def who(ctx: Context[User]) -> str:
    return f"{ctx.value.name} {ctx.agent} {ctx.session_id}"


def calls(*names: str) -> Message:
    return Message(
        role="assistant",
        tool_calls=[ToolCall(id=f"c{n}", name=name, index=n) for n, name in enumerate(names)],
    )


def last_result(request: Request) -> str:
    """Call the tool, then reply with its result."""
    last = request.messages[-1]
    return last.content or "" if last.role == "tool" else calls(request.tools[0].name)  # type: ignore


def new_agent(*tools: Any, **options: Any) -> Agent[Any]:
    return Agent(ScriptedBackend(otherwise=last_result), tools=tools, **options)


async def test_tools_of_all_agents_below_see_the_context():
    inner = new_agent(who, name="inner")

    @tool
    async def delegate() -> str:
        return (await inner("who?")).text

    outer = new_agent(delegate, name="outer")
    answer = await outer("who?", context=User("ada"), session_id="s")
    assert answer.text == "ada inner None"
    assert (await inner("who?", context=User("eve"), session_id="s")).text == "eve inner s"


async def test_an_inner_context_replaces_that_of_the_caller():
    inner = new_agent(who, name="inner")

    @tool
    async def delegate(ctx: Context[User]) -> str:
        inside = await inner("who?", context=User("eve"))
        return f"{inside.text}, {ctx.value.name}, {current_context(User).value.name}"

    answer = await new_agent(delegate)("who?", context=User("ada"))
    assert answer.text == "eve inner None, ada, ada"


async def test_concurrent_calls_of_one_agent_do_not_mix_their_contexts():
    agent = new_agent(who, name="one")
    users = [User(f"u{n}") for n in range(20)]
    answers = await asyncio.gather(*(agent("who?", context=user) for user in users))
    assert [answer.text for answer in answers] == [f"{user.name} one None" for user in users]


async def test_every_way_to_call_an_agent_takes_a_context():
    agent = new_agent(who, name="one")
    expected = "ada one None"
    messages = [message async for message in agent.stream("who?", context=User("ada"))]
    assert messages[-1].text == expected
    async with Commander() as commander:
        assert (await commander.run(agent.call("who?", context=User("ada")))).text == expected
        assert (await commander.run(agent.call("who?"), context=User("ada"))).text == expected
        nested = agent.call("who?", context=User("ada"))
        assert (await commander.run(nested, context=User("eve"))).text == expected
    answer = await asyncio.to_thread(agent.run_sync, "who?", context=User("ada"))
    assert answer.text == expected


async def test_a_tool_without_its_context_fails_the_call():
    agent = new_agent(who)
    with pytest.raises(ContextError, match=r"the tool who has the parameter 'ctx'"):
        await agent("who?")
    with pytest.raises(ContextError, match="type User"):
        await agent("who?", context="ada")
    assert len(agent.backend.requests) == 2  # type: ignore[union-attr]

    @tool
    async def delegate() -> str:
        return (await agent("who?")).text

    with pytest.raises(ContextError):
        await new_agent(delegate)("who?")


async def test_hooks_read_the_context():
    seen: list[str] = []

    def note(_owner: object, message: AgentMessage, _session: object) -> None:
        context = current_context(User)
        seen.append(f"{context.value.name} {context.agent}")

    agent = new_agent(who, name="one")
    for add in (agent.before_agent, agent.after_agent, agent.before_action, agent.after_action):
        add(note)
    await agent("who?", context=User("ada"))
    assert seen == ["ada one"] * 4


async def test_an_executor_passes_the_context_and_raises_its_error():
    executor = ToolExecutor([who])
    message = AgentMessage(content="", sender="user", output=ToolCall(id="1", name="who"))
    async with Commander() as commander:
        answer = await commander.run(executor.call(message), context=User("ada"))
        assert answer.text == "ada  None"
        with pytest.raises(ContextError):
            await executor(message)
