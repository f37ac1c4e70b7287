"""`StepAgent`: thoughts, calls of plugins and code, until there is an answer."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import leaks
from support.waiting import run_turns

from anabranch import AgentMessage, Commander, Message, NodeCancelled, tool
from anabranch.agents import Orchestrator, State, StepAgent
from anabranch.agents.layers import FencedCall, ToolParser
from anabranch.dispatch import (
    BareJSON,
    FencedCode,
    Format,
    Hermes,
    InternLMInterpreter,
    InternLMPlugin,
    Llama,
    Mistral,
    Think,
)
from anabranch.messages import Request
from anabranch.testing import ScriptedBackend
from anabranch.tools import PerSession, PythonKernel, Toolkit


class Notes(Toolkit):
    """Runs "code" that is a number or a word; each session has a separate list of it."""

    def __init__(self) -> None:
        self.made: list[list[str]] = []
        self.closed: list[list[str]] = []
        self.kept = PerSession(self.make, self.closed.append)

    def make(self) -> list[str]:
        self.made.append([])
        return self.made[-1]

    @tool
    async def run(self, code: str) -> str:
        """Keep the code."""
        kept = self.kept.get()
        kept.append(code)
        return " ".join(kept)


@tool
async def search(query: str) -> str:
    """Search the web."""
    return f"about {query}"


def plugin(name: str, **parameters: Any) -> str:
    call = Message.from_wire(
        {
            "role": "assistant",
            "tool_calls": [{"function": {"name": name, "arguments": parameters}}],
        }
    ).tool_calls[0]
    return f'I look it up.\n```json\n{{"name": "{name}", "parameters": {call.text}}}\n```\n'


def code(text: str) -> str:
    return f"I compute.\n```python\n{text}\n```"


async def test_it_calls_plugins_and_code_until_it_has_an_answer() -> None:
    """The tools are in the prompt, and `get_steps` lists the way to the answer."""
    backend = ScriptedBackend(plugin("search", query="rivers"), code("6*7"), "It is 42.")
    agent = StepAgent(backend, "Solve it.", plugins=[search], interpreter=Notes(), name="solver")

    answer = await agent("How many?", session_id=0)

    assert (answer.content, answer.sender, answer.extra["status"]) == ("It is 42.", "solver", "ok")
    assert answer.output["status"] == "none"
    prompt = backend.requests[0].messages[0].content or ""
    assert "- search: Search the web." in prompt
    assert "```python" in prompt
    assert [m.role for m in backend.requests[2].messages] == [
        *("system", "user", "assistant", "user", "assistant", "user")
    ]
    assert [(step["kind"], step["content"], step["name"]) for step in agent.get_steps()] == [
        ("thought", "I look it up.\n", None),
        ("call", {"query": "rivers"}, "search"),
        ("result", "about rivers", "search"),
        ("thought", "I compute.\n", None),
        ("call", {"code": "6*7"}, "interpreter"),
        ("result", "6*7", "interpreter"),
        ("thought", "It is 42.", None),
    ]
    assert list(agent.state_dict()) == ["memory", "agent.memory"]


async def test_at_max_rounds_the_last_reply_is_the_answer() -> None:
    """Its status is "max_rounds", and its call does not run."""
    toolkit = Notes()
    agent = StepAgent(ScriptedBackend(otherwise=code("x")), interpreter=toolkit, max_rounds=3)
    answer = await agent("?")

    assert answer.extra["status"] == "max_rounds"
    assert toolkit.made == [["x", "x"]]
    with pytest.raises(ValueError, match="at least 1"):
        StepAgent(ScriptedBackend(), max_rounds=0)


async def test_a_call_that_cannot_be_used_is_told_to_the_model() -> None:
    """Garbage, an unknown tool, wrong arguments, a missing interpreter."""
    wrong = [
        ("```json\n{name: 1}\n```", "Error: not valid JSON: Expecting property name"),
        (plugin("find"), "Error: there is no tool 'find'; the tools are: search"),
        (plugin("search", q="x"), "query"),
        (code("1"), "Error: there is no tool 'interpreter'; the tools are: search"),
    ]
    backend = ScriptedBackend(*(reply for reply, _ in wrong), "I give up.")
    formats = [FencedCall(), FencedCode(tool="interpreter")]
    agent = StepAgent(backend, plugins=[search], formats=formats, max_rounds=9)

    assert (await agent("?", session_id=0)).content == "I give up."
    told = [step["content"] for step in agent.get_steps() if step["kind"] == "result"]
    assert all(text in said for (_, text), said in zip(wrong, told, strict=True))


async def test_what_is_finished_is_up_to_the_user() -> None:
    """An unfinished reply without a call is followed by another."""
    backend = ScriptedBackend("Hm.", "42 [END]")
    agent = StepAgent(backend, finished=lambda message: "[END]" in message.content)

    assert (await agent("?")).content == "42 [END]"
    assert backend.requests[1].messages[-1].content == "Go on."


async def test_each_session_has_an_interpreter_of_its_own() -> None:
    """Sessions do not see each other's variables; `aclose` ends all interpreters."""

    def reply(request: Any) -> str:
        asked = next(m.content for m in request.messages if m.role == "user")
        return "done" if any(m.role == "assistant" for m in request.messages) else code(asked)

    notes = Notes()
    async with StepAgent(ScriptedBackend(otherwise=reply, seed=2), interpreter=notes) as agent:
        await asyncio.gather(*(agent(f"s{n}", session_id=n) for n in range(5)))
        assert sorted(notes.made) == [[f"s{n}"] for n in range(5)]
        agent.reset(3)
        assert notes.closed == [["s3"]]
    assert sorted(notes.closed) == sorted(notes.made)


async def test_action_hooks_see_every_action() -> None:
    """Before, the parsed message; after, the executor's."""
    seen: list[Any] = []
    agent = StepAgent(ScriptedBackend(code("1"), "done"), interpreter=Notes())

    def look(agent: StepAgent, message: AgentMessage, session_id: object) -> None:
        seen.append((agent.name, message.content))

    agent.before_action(look)
    agent.after_action(look)
    await agent("?")

    assert seen == [("StepAgent", code("1")), ("StepAgent", "1")]


@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.parametrize("orchestrated", [False, True])
def test_whenever_it_is_cancelled_the_model_reads_what_its_action_came_to(
    orchestrated: bool, hooked: bool
) -> None:
    """At each loop iteration; results reach the model only after the hooks."""
    ends = set[str]()

    async def main(after: int) -> bool:
        made: list[str] = []

        @tool
        async def make() -> str:
            """Make something."""
            await run_turns(3)
            made.append("")
            return "secret" if hooked else "made"

        async def hide(agent: StepAgent, message: AgentMessage, session_id: object) -> AgentMessage:
            await run_turns(3)
            return message.model_copy(update={"content": "made"})

        def play(request: Request) -> str:
            acted = any(each.role == "assistant" for each in request.messages)
            return "done" if acted else plugin("make")

        backend = ScriptedBackend(otherwise=play, size=None)
        agent = StepAgent(backend, plugins=[make], name="maker")
        if hooked:
            agent.after_action(hide)
        orchestrator = Orchestrator([agent], lambda _, s: None if s.agent else "maker", State())

        def ask() -> Any:
            return orchestrator.forward("Go.") if orchestrated else agent("Go.", session_id=1)

        asked = asyncio.ensure_future(ask())
        await run_turns(after)
        if asked.done():
            return False
        asked.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asked
        ran = len(made)
        await ask()
        read = [(each.role, each.content or "") for each in backend.requests[-1].messages[1:]]
        results = [
            then.split("\n")[0]
            for (role, text), (_, then) in itertools.pairwise(read)
            if role == "assistant" and "```json" in text
        ]
        if results != ["Go."]:  # the reply itself was cut, and its action did not begin
            assert results in (["made"], ["The call was interrupted."]), after
            ends.update(results)
        assert bool(made) >= (results == ["made"])
        assert ran <= (results != ["Go."])
        return True

    after = 0
    while asyncio.run(main(after)):
        after += 1
    assert ends == {"made", "The call was interrupted."}


async def cancelled_while_code_runs() -> None:
    backend = ScriptedBackend(code("x = 6\nx * 7"), code("import time; time.sleep(600)"))
    agent = StepAgent(backend, interpreter=PythonKernel())
    sleeping = asyncio.Event()

    def ran(agent: StepAgent, message: AgentMessage, session_id: object) -> None:
        if "sleep" in message.content:
            sleeping.set()

    agent.before_action(ran)
    async with asyncio.timeout(120), Commander() as commander:
        call = commander.call_handler(agent.call("?", session_id=0), claim=True)
        await sleeping.wait()
        call.cancel("enough")
        with pytest.raises(NodeCancelled):
            await call
    await agent.aclose()
    assert agent.get_steps()[2]["content"] == "42"


def test_real_code_runs_and_a_cancelled_agent_leaves_no_kernel_when_it_is_closed() -> None:
    """No process and no thread remains."""
    asyncio.run(cancelled_while_code_runs())  # loads what stays loaded, such as ZeroMQ's own
    before, still = leaks.child_processes(), leaks.thread_ids()
    asyncio.run(cancelled_while_code_runs())

    assert not leaks.find_leaks(leaks.child_processes, before)
    assert not leaks.find_leaks(leaks.thread_ids, still)


class Angles(Format):
    """A user's format, which the model does not know."""

    open, close = "<<", ">>"

    def read(self, body: str) -> Iterable[tuple[str, str | dict[str, Any]]]:
        call = json.loads(body)
        yield call["name"], call["arguments"]


SILENT: list[Format] = [
    Angles(),
    Hermes(),
    Mistral(),
    Llama(),
    InternLMPlugin(),
    InternLMInterpreter(),
    BareJSON(),
]


@given(
    st.lists(st.sampled_from([*SILENT, Think(), FencedCode(tool="interpreter")]), min_size=1),
    st.booleans(),
    st.booleans(),
)
def test_the_model_is_told_of_its_tools_whatever_the_formats_say(
    formats: list[Format], plugins: bool, code: bool
) -> None:
    """A format without an instruction is shown by an example that the parser reads."""
    agent = StepAgent(
        ScriptedBackend(),
        plugins=[search] if plugins else [],
        interpreter=Notes() if code else None,
        formats=formats,
    )
    told = "".join(each.content or "" for each in agent.agent.aggregate())
    parser = agent.agent.output_format
    assert isinstance(parser, ToolParser)
    of_calls = [each for each in formats if each.branch is None]
    if plugins and any(each.tool is None for each in of_calls if each in SILENT):
        assert "- search: Search the web." in told
    for each in of_calls:
        writes_code = isinstance(each, InternLMInterpreter | FencedCode)
        if (code if writes_code else plugins or code) and not isinstance(each, BareJSON):
            assert each.open in told
            found = ToolParser(each).parse(told[told.rindex(each.open) :])
            assert found["tool_type"] in ("search", "interpreter")
