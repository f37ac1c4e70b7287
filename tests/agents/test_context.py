"""The context of agents' calls."""

from __future__ import annotations

import asyncio
import copy
import pickle
import re
from dataclasses import dataclass
from typing import Any

import pytest
from support.paths import ROOT

from anabranch import (
    Agent,
    Commander,
    ConfigurationError,
    Context,
    ContextError,
    ToolExecutor,
    current_context,
    tool,
)
from anabranch.agents import (
    AgentMessage,
    ConversableAgent,
    GroupChat,
    Orchestrator,
    State,
    StepAgent,
    UserProxyAgent,
)
from anabranch.commander.context import INHERITED
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
    assert answer.text == "ada inner s"  # it named no session, so the outer one
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


# --- instructions


def opening(agent: Agent[Any], request: int = -1) -> list[tuple[str, str | None]]:
    messages = agent.backend.requests[request].messages  # type: ignore[union-attr]
    return [(each.role, each.content) for each in messages if each.role == "system"]


async def test_instructions_may_be_a_function_of_the_context():
    def plain(ctx: Context[User]) -> str:
        return f"Help {ctx.value.name}."

    async def later(ctx: Context[User]) -> list[Message]:
        await asyncio.sleep(0)
        return [Message(role="system", content=f"Help {ctx.value.name} as {ctx.agent}.")]

    class Help:
        def __call__(self, ctx: Context[User]) -> str:
            return f"Help {ctx.value.name}."

    for function, expected in (
        (plain, "Help ada."),
        (lambda ctx: f"Help {ctx.value.name}.", "Help ada."),
        (Help(), "Help ada."),
        (later, "Help ada as one."),
        (lambda: "Help all.", "Help all."),
    ):
        agent = Agent(ScriptedBackend("ok"), function, name="one")  # type: ignore[arg-type]
        await agent("?", context=User("ada"))
        assert opening(agent) == [("system", expected)]


async def test_the_function_is_called_for_each_call():
    names = iter(["ada", "eve"])
    agent = Agent(ScriptedBackend("ok", "ok"), lambda: f"Help {next(names)}.")
    await agent("?", session_id=1)
    await agent("?", session_id=1)
    assert opening(agent, 0) == [("system", "Help ada.")]
    assert opening(agent, 1) == [("system", "Help eve.")]
    assert [each.role for each in agent.aggregate(1)] == ["user", "assistant"] * 2


async def test_a_function_may_return_none():
    agent = Agent(ScriptedBackend("ok"), lambda: None)
    await agent("?")
    assert opening(agent) == []


async def test_wrong_instructions_are_an_error_that_names_the_agent():
    agent = Agent(ScriptedBackend(), lambda: 7, name="one")  # type: ignore[arg-type,return-value]
    with pytest.raises(ConfigurationError, match="instructions of one returned 7"):
        await agent("?")
    with pytest.raises(TypeError):
        Agent(ScriptedBackend(), 7)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="instructions"):
        Agent(ScriptedBackend(), system="x")


async def test_instructions_that_need_a_context_fail_without_one():
    agent = Agent(ScriptedBackend("ok"), lambda ctx: ctx.value)
    with pytest.raises(ContextError, match="'ctx'"):
        await agent("?")
    assert agent.backend.requests == []  # type: ignore[union-attr]
    assert (await agent("?", context="Be kind.")).text == "ok"


async def test_a_step_agent_takes_a_function_too():
    agent = StepAgent(ScriptedBackend("done"), lambda ctx: f"Help {ctx.value}.")
    await agent("?", context="ada")
    (text,) = [content for _, content in opening(agent.agent)]
    assert text is not None
    assert text.startswith("Help ada.")


# --- the programs of the docs


def programs(page: str, title: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8").split(f"# {title}\n")[1]
    return re.findall(r"```python\n(.*?)```", re.split(r"\n##", text)[0], re.DOTALL)


def compiled(program: str) -> Any:
    return compile(program, "docs", "exec", dont_inherit=True)


async def test_the_programs_about_the_context_run(capsys: pytest.CaptureFixture[str]):
    backend = ScriptedBackend(otherwise=last_result)
    space: dict[str, Any] = {"__name__": "docs", "Agent": Agent, "backend": backend}
    shop, web = programs("agents.md", "One agent for all requests")
    await asyncio.to_thread(exec, compiled(shop), space)
    assert "Middlemarch" in capsys.readouterr().out
    assert opening(space["shop"]) == [
        ("system", "You work in a bookshop. The customer is called Ada.")
    ]
    exec(compiled(web), space)
    assert await space["ask"]("What did I order?", space["find_user"]("eve")) == "[]"
    (delete,) = programs("tools.md", "Read the context of the call")
    exec(compiled(delete), {"__name__": "docs"})


# --- conversations, orchestrators, executors


async def test_conversations_orchestrators_and_executors_take_a_context():
    bob = ConversableAgent("bob", ScriptedBackend(otherwise=last_result), tools=[who])
    user = UserProxyAgent(human_input_mode="NEVER", max_consecutive_auto_reply=0)
    for name in ("ada", "eve"):
        result = await user.initiate_chat(bob, "who?", context=User(name))
        assert result.text.startswith(f"{name} bob")
    copied = pickle.loads(pickle.dumps(INHERITED))
    assert copied is copy.deepcopy(INHERITED) is INHERITED

    orchestrator = single(new_agent(who, name="one"))
    assert (await orchestrator.forward("who?", context=User("ada"))).content.startswith("ada one")

    message = AgentMessage(content="", sender="user", output=ToolCall(id="1", name="who"))
    executor = ToolExecutor([who])
    assert (await executor(message, context=User("ada"))).text == "ada  None"
    answer = await asyncio.to_thread(executor.run_sync, message, context=User("ada"))
    assert answer.text == "ada  None"


def single(agent: Agent[Any]) -> Orchestrator[State]:
    def transition(obs: str | None, state: State) -> str | None:
        return agent.name if obs is not None else None

    return Orchestrator([agent], transition, State())


async def test_a_group_passes_the_context_on():
    members = [
        ConversableAgent(name, ScriptedBackend(otherwise=last_result), tools=[who])
        for name in ("one", "two")
    ]
    group = GroupChat("group", members, max_turns=2)
    user = UserProxyAgent(human_input_mode="NEVER", max_consecutive_auto_reply=0)
    seen: list[AgentMessage] = []
    await user.send("who?", group, listener=seen.append, context=User("ada"))
    texts = {each.text for each in seen if each.sender in ("one", "two") and each.text}
    assert any(text.startswith("ada one") for text in texts)
