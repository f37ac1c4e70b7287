"""Each kind of thing that can be served, used by OpenAI's client; and things that cannot."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Callable
from datetime import date
from typing import Any, Literal

import aiohttp
import pytest
from openai import BadRequestError, InternalServerError
from support.openai_client import on_uvicorn, serve_to_client

from anabranch import Agent, Job, Node, handler, tool
from anabranch.agents import AgentMessage, JsonParser
from anabranch.agents.conversation import ConversableAgent, GroupChat, reply
from anabranch.agents.orchestration import Orchestrator, State
from anabranch.commander.errors import ConfigurationError
from anabranch.messages import Message, ToolCall
from anabranch.serve import serve
from anabranch.store import Durable, Live, live
from anabranch.testing import ScriptedBackend, deltas

HI: Any = [{"role": "user", "content": "hi"}]


@tool
def double(number: int) -> int:
    """Double a number."""
    return 2 * number


def calling(name: str, text: str | None = None, **arguments: Any) -> Message:
    """Make a reply that calls a tool."""
    call = ToolCall(id="c0", name=name, arguments=arguments)
    return Message(role="assistant", content=text, tool_calls=[call])


async def say(client: Any, model: str, said: Any = "hi", **fields: Any) -> str:
    """Request a completion, complete and streamed, and return both texts."""
    messages = [{"role": "user", "content": said}] if isinstance(said, str) else said
    asked = {"model": model, "messages": messages, "extra_body": {"fields": fields or None}}
    stream = await client.chat.completions.create(**asked, stream=True)
    streamed = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    whole = (await client.chat.completions.create(**asked)).choices[0].message.content
    assert streamed == whole
    return whole


# --- agents


async def test_an_agent_answers_with_its_tools() -> None:
    """S9: its texts before and after a tool call are the answer; the tool runs in the server."""
    replies = [calling("double", "Let me see.", number=21), "It is 42."] * 2
    agent = Agent(ScriptedBackend(*replies), name="agent", tools=[double])
    async with serve_to_client(agent) as client:
        assert await say(client, "agent") == "Let me see.\n\nIt is 42."


async def test_a_reply_that_cannot_be_parsed_is_an_incomplete_item() -> None:
    """S10: it is separate from the reply that follows."""
    replies = "No idea.", '{"a": 1}'
    agent = Agent(ScriptedBackend(*replies), name="agent", output_format=JsonParser(dict))
    async with serve_to_client(agent) as client:
        said = await client.responses.create(model="agent", input="hi")
    items: list[Any] = said.output
    assert [item.status for item in items] == ["incomplete", "completed"]
    assert [item.content[0].text for item in items] == ["No idea.", '{"a": 1}']


async def test_the_text_of_an_agent_below_is_not_sent() -> None:
    """S9: only the served agent's text is the answer."""
    below = Agent(ScriptedBackend(otherwise="hidden"), name="below")

    @tool
    async def ask_below(question: str) -> str:
        """Ask another agent."""
        return (await below(question)).text

    replies = [calling("ask_below", question="what?"), "Told."] * 2
    agent = Agent(ScriptedBackend(*replies), name="agent", tools=[ask_below])
    async with serve_to_client(agent) as client:
        assert await say(client, "agent") == "Told."


async def test_an_agent_with_another_forward_uses_it() -> None:
    """S9: also if it returns a text."""

    class Echo(Agent[Any]):
        async def forward(self, *messages: AgentMessage, **options: Any) -> Any:
            return f"You said {messages[-1].text}."

    async with serve_to_client(Echo(name="echo")) as client:
        assert await say(client, "echo") == "You said hi."


async def test_an_agent_that_has_too_many_rounds_fails() -> None:
    """S9: a limit of the server is not an error of the client."""
    backend = ScriptedBackend(otherwise=calling("double", number=1))
    agent = Agent(backend, name="agent", tools=[double], max_rounds=2)
    async with serve_to_client(agent) as client:
        with pytest.raises(InternalServerError, match="The run failed"):
            await client.chat.completions.create(model="agent", messages=HI)
    assert len(backend.requests) <= 3


async def test_an_agent_with_a_journal_is_refused(tmp_path: Any) -> None:
    """S17: a client's messages expire with the run, so there is nothing to store."""
    agent = Agent(ScriptedBackend(), name="agent", journal=str(tmp_path / "journal.db"))
    with pytest.raises(ConfigurationError, match="journal"):
        serve(agent)


# --- memory


def _history(name: str) -> Any:
    return [
        {"role": "user", "content": f"I am {name}."},
        {"role": "assistant", "content": f"Hello {name}."},
        {"role": "user", "content": f"Who am I, {name}?"},
    ]


def _heard(backend: ScriptedBackend) -> list[str]:
    return ["\n".join(each.content or "" for each in r.messages) for r in backend.requests]


def _conversable(backend: ScriptedBackend) -> tuple[Any, Callable[[], bool]]:
    agent = ConversableAgent("thing", backend)
    return agent, lambda: not agent.memory.sessions


def _agent(backend: ScriptedBackend) -> tuple[Any, Callable[[], bool]]:
    agent = Agent(backend, name="thing")
    return agent, lambda: not agent.memory.sessions


def _group(backend: ScriptedBackend) -> tuple[Any, Callable[[], bool]]:
    members = [ConversableAgent(name, backend) for name in ("user", "ann")]
    group = GroupChat("thing", members, max_turns=1)
    return group, lambda: not group.talks and not any(m.memory.sessions for m in members)


@pytest.mark.parametrize("make", [_agent, _conversable, _group])
async def test_two_clients_at_once_are_separate(make: Any) -> None:
    """S14: a run knows only its client's messages, and forgets them at its end."""
    both = asyncio.Barrier(2)

    async def answer(request: Any) -> str:
        async with asyncio.timeout(5):
            await both.wait()
        return "You."

    backend = ScriptedBackend(otherwise=answer)
    thing, forgotten = make(backend)
    async with serve_to_client({"thing": thing}) as client:
        for _ in range(2):  # in the second request they come back
            made = await asyncio.gather(
                *[
                    client.chat.completions.create(model="thing", messages=_history(name))
                    for name in ("Ann", "Bob")
                ]
            )
            assert [each.choices[0].message.content for each in made] == ["You.", "You."]
    heard = _heard(backend)
    assert len(heard) == 4
    for text in heard:
        assert ("Ann" in text) != ("Bob" in text)
        assert all(text.count(said) == 1 for said in ("I am ", "Hello ", "Who am I, "))
    gc.collect()
    assert forgotten()


async def test_an_agents_history_has_its_roles() -> None:
    """S9: earlier answers of the agent return to it as its own."""
    backend = ScriptedBackend(otherwise="You.")
    async with serve_to_client(Agent(backend, "Be short.", name="agent")) as client:
        await client.chat.completions.create(model="agent", messages=_history("Ann"))
    assert [each.role for each in backend.requests[0].messages] == [
        *("system", "user", "assistant", "user")
    ]


# --- conversations


async def test_a_conversable_agent_answers_by_its_reply_functions() -> None:
    """S9: as in a chat; without an answer the text is empty."""

    class Bob(ConversableAgent):
        @reply
        async def introduce(self, message: AgentMessage) -> str:
            return f"I am Bob, {message.text}."

    silent = ConversableAgent("silent", is_termination=lambda message: True)
    async with serve_to_client(Bob("bob"), silent) as client:
        assert await say(client, "bob") == "I am Bob, hi."
        assert await say(client, "silent") == ""


async def test_no_person_is_asked_at_the_servers_terminal() -> None:
    """S16: an agent that would do this is refused, also inside a group."""
    person = ConversableAgent("person", human_input_mode="ALWAYS")
    with pytest.raises(ConfigurationError, match="person"):
        serve(person)
    with pytest.raises(ConfigurationError, match="person"):
        serve(GroupChat("group", [person]))


async def test_an_orchestrator_is_made_for_each_run() -> None:
    """S9: the last agent gives the answer, and no state is shared."""
    made: list[Orchestrator[Any]] = []

    def factory() -> Orchestrator[Any]:
        agent = Agent(ScriptedBackend(otherwise="Done."), name="only")

        def transition(obs: Any, state: State) -> str | None:
            state.step_environment()
            return "only"

        made.append(Orchestrator([agent], transition, State(), name="orchestra"))
        return made[-1]

    async with serve_to_client(factory) as client:
        assert await say(client, "orchestra") == "Done."
    assert len(made) == 3  # one to find out its type, and one for each run


# --- jobs and handlers


class Shout(Job[str]):
    """A job with fields."""

    times: int
    text: str
    ending: Literal["!", "?"] = "!"
    day: date | None = None
    hook: Callable[[], None] | None = None

    async def task(self) -> str:
        return self.text.upper() * self.times + self.ending


async def test_a_job_has_fields_that_are_checked() -> None:
    """S17: wrong types, missing and unknown fields are refused by name; a text fills the first."""
    async with serve_to_client(Shout) as client:
        assert await say(client, "Shout", times=2) == "HIHI!"
        assert await say(client, "Shout", "2", text="a", ending="?") == "AA?"
        assert await say(client, "Shout", "", text="a", times=1, day="2026-01-31") == "A!"
        for fields, named in [
            ({"times": "many", "text": "a"}, "times"),
            ({"times": 1, "text": "a", "ending": "."}, "ending"),
            ({"times": 1, "day": "tomorrow"}, "day"),
            ({"times": 1, "volume": 3}, "volume"),
            ({"times": 1, "hook": "print"}, "hook"),
            ({}, "text"),
        ]:
            said = "2" if not fields else ""
            with pytest.raises(BadRequestError) as no:
                await say(client, "Shout", said, **fields)
            assert (no.value.param, f"'{named}'" in no.value.message) == ("fields", True)
        with pytest.raises(BadRequestError) as no:
            await say(client, "Shout", "hi", times=1, text="a")
        assert no.value.param == "messages"


async def test_a_job_with_another_init_is_filled_by_that() -> None:
    """S17: clients may fill its annotated parameters; its refusals are errors of the client."""

    class Own(Job[str]):
        def __init__(self, count: int, *rest: int, **options: Any) -> None:
            super().__init__()
            if count < 0:
                raise ValueError("the secret is 42")
            self.count = count

        async def task(self) -> str:
            return f"{self.count!r}"

    async with serve_to_client(Own) as client:
        assert await say(client, "Own", "3") == "3"
        with pytest.raises(BadRequestError, match="fields") as no:
            await say(client, "Own", "-1")
        assert "secret" not in no.value.message
        with pytest.raises(BadRequestError, match="options"):
            await say(client, "Own", "1", options={})


@handler
async def greet(node: Node[Any], who: str, times: int = 1) -> str:
    """Greet a person."""
    return ", ".join([f"Hello {who}"] * times)


@handler
async def report(node: Node[Any]) -> dict[str, int]:
    """Return a value that is not text."""
    return {"a": 1}


async def test_a_handler_is_filled_by_its_annotations() -> None:
    """S9: other results than text are sent as JSON; a handler without fields takes any text."""
    async with serve_to_client(greet, report) as client:
        assert await say(client, "greet", "Ann", times=2) == "Hello Ann, Hello Ann"
        with pytest.raises(BadRequestError, match="'times'"):
            await say(client, "greet", "Ann", times="x")
        assert await say(client, "report") == '{"a":1}'


class OfBackend(Job[str]):
    """A job with a field that no client can send."""

    text: str
    backend: ScriptedBackend

    async def task(self) -> str:
        return self.text


class OfLive(Durable[str]):
    """A durable job that needs a backend as a live field."""

    text: str
    backend: Live[ScriptedBackend] = live()

    async def task(self) -> str:
        return self.text


class OfNothing(Job[str]):
    """A job whose annotations cannot be read."""

    text: Nowhere  # type: ignore[name-defined]  # noqa: F821

    async def task(self) -> str:
        return ""


def raises() -> Any:
    """Raise an error."""
    raise RuntimeError("not today")


def needs(more: int) -> Any:
    """Need an argument."""


def makes_maker() -> Any:
    """Return a function."""
    return makes_maker


@pytest.mark.parametrize(
    ("thing", "named"),
    [
        (OfBackend, "backend"),
        (OfLive, "backend"),
        (OfNothing, "Nowhere"),
        (raises, "not today"),
        (needs, "more"),
        (makes_maker, "cannot be served"),
        (int, "cannot be served"),
        (42, "cannot be served"),
        ("agent", "cannot be served"),
        (None, "cannot be served"),
    ],
)
def test_a_thing_that_cannot_be_served_is_refused_at_once(thing: Any, named: str) -> None:
    """S17: with the reason, before any request."""
    with pytest.raises(ConfigurationError, match=named):
        serve(thing)


async def test_a_factory_that_fails_later_fails_the_run() -> None:
    """S17: such as one that makes an orchestrator; clients do not learn the cause."""
    agent = Agent(ScriptedBackend(), name="only")
    made: list[int] = []

    def factory() -> Orchestrator[Any]:
        made.append(1)
        if len(made) > 1:
            raise RuntimeError("the secret is 42")
        return Orchestrator([agent], lambda obs, state: None, State(), name="orchestra")

    async with serve_to_client(factory) as client:
        with pytest.raises(InternalServerError) as failed:
            await client.chat.completions.create(model="orchestra", messages=HI)
    assert "secret" not in str(failed.value)
    assert len(made) == 2


# --- approvals


@tool(approve=True)
def erase(path: str) -> str:
    """Erase a file."""
    return f"erased {path}"


def _eraser() -> tuple[Agent[Any], ScriptedBackend]:
    backend = ScriptedBackend(calling("erase", path="a"), otherwise="Done.")
    return Agent(backend, name="eraser", tools=[erase]), backend


@pytest.mark.parametrize("wire", ["chat", "responses", "background"])
async def test_approvals_are_denied_if_no_person_can_be_asked(wire: str) -> None:
    """S16: on OpenAI's wire a run never waits for a person."""
    agent, backend = _eraser()
    async with serve_to_client(agent) as client:
        if wire == "chat":
            await client.chat.completions.create(model="eraser", messages=HI)
        elif wire == "responses":
            await client.responses.create(model="eraser", input="hi")
        else:
            made = await client.responses.create(model="eraser", input="hi", background=True)
            stream = await client.responses.retrieve(made.id, stream=True)
            assert [event.type async for event in stream][-1] == "response.completed"
    assert "no person can be asked" in (backend.requests[1].messages[-1].content or "")


ANSWERS: dict[str, tuple[Any, bool]] = {
    "yes": ({"approved": True}, True),
    "no": ({"approved": False}, False),
    "missing": ({}, False),
    "a text": ({"approved": "yes"}, False),
    "a number": ({"approved": 1}, False),
    "null": ({"approved": None}, False),
    "no object": ([True], False),
    "no json": (b"{", False),
}


@pytest.mark.parametrize("case", ANSWERS)
async def test_only_a_yes_approves_in_a_run_of_the_page(
    case: str,
) -> None:
    """S16: a missing or malformed answer denies, and the run continues."""
    agent, backend = _eraser()
    answer, approved = ANSWERS[case]
    body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    kind = {"Content-Type": "application/json"}
    async with on_uvicorn(serve(agent)) as url, aiohttp.ClientSession(url, headers=kind) as client:
        async with client.post("/runs", data=b'{"model": "eraser", "input": "hi"}') as begun:
            run = f"/runs/{(await begun.json())['id']}"
        async with client.get(f"{run}/events") as events:
            async for line in events.content:
                if line == b"event: asked\n":
                    break
            async with client.post(f"{run}/answers/1", data=body) as answered:
                assert answered.status == (200 if isinstance(answer, dict) else 400)
            rest = await events.content.read()
    assert b"event: completed\n" in rest
    told = backend.requests[1].messages[-1].content or ""
    assert ("erased a" in told) == approved
    assert ("the user said no" in told) == (not approved)


async def test_a_served_backend_gets_the_clients_system_prompt() -> None:
    """S9: unlike an agent."""
    backend = ScriptedBackend(otherwise=deltas("Hello."))
    said = [{"role": "system", "content": "Be short."}, *HI]
    async with serve_to_client({"model": backend}) as client:
        assert await say(client, "model", said) == "Hello."
    assert [each.role for each in backend.requests[0].messages] == ["system", "user"]
