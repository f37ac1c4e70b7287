"""Messages of an external store: `history=` and `new_messages()`."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from support.media_files import PNG

from anabranch.agents import Agent, AgentMessage, Memory, Sequential, StepAgent, handoff
from anabranch.commander import Commander, Retry, current_node
from anabranch.commander.errors import BackendUnavailable, ConfigurationError, NodeCancelled
from anabranch.messages import Message, Part, ProviderItem, ToolCall, request_body
from anabranch.testing import ScriptedBackend
from anabranch.tools import tool

TEXTS = st.text("ab \n\u00e9\U0001f600", max_size=4)
IMAGE = Part.from_bytes(PNG)


@tool
def look(place: str) -> str:
    """Look at a place."""
    if place == "nowhere":
        raise LookupError(place)
    return f"It is cold in {place}."


@tool
async def ask(question: str) -> str:
    """Ask another agent."""
    return (await Agent(ScriptedBackend("So it is."), name="other")(question)).text


@tool
async def nudge() -> str:
    """Let the user write during the call."""
    node = current_node()
    call: Any = next(each for each in node.ancestors if hasattr(each, "steer"))
    call.steer("Hurry.", Message(role="user", content="And this?", parts=[IMAGE]))
    return "done"


@st.composite
def replies(draw: st.DrawFn) -> list[Message]:
    """Replies with tool calls, then an answer."""
    found: list[Message] = []
    for number in range(draw(st.integers(0, 2))):
        made = draw(st.lists(st.sampled_from(["look", "ask", "nudge", "nowhere"]), min_size=1))
        calls = [
            ToolCall(
                id=f"{number}-{place}",
                name="look" if name == "nowhere" else name,
                arguments={"look": {"place": "Oslo"}, "ask": {"question": "?"}}.get(
                    name, {"place": name} if name == "nowhere" else {}
                ),
                index=place,
            )
            for place, name in enumerate(made[:3])
        ]
        found.append(draw(assistants(calls)))
    return [*found, draw(assistants(()))]


@st.composite
def assistants(draw: st.DrawFn, calls: Sequence[ToolCall]) -> Message:
    """A reply with these calls, perhaps with reasoning, a refusal and items of the provider."""
    content = draw(TEXTS if calls else TEXTS.filter(bool))
    items = [
        ProviderItem(provider="scripted", data=json.dumps(value), after_text=len(content))
        for value in draw(st.lists(st.integers(0, 9), max_size=2))
    ]
    return Message(
        role="assistant",
        content=content or None,
        tool_calls=[*calls],
        reasoning=draw(TEXTS) or None,
        refusal=None if calls else draw(st.sampled_from([None, None, "I cannot."])),
        finish_reason=None if calls else draw(st.sampled_from(["stop", "length"])),
        provider_items=items,
    )


@st.composite
def questions(draw: st.DrawFn) -> list[Any]:
    """One or two messages of the user, or of another agent."""
    one = st.one_of(
        TEXTS,
        st.just(IMAGE),
        st.builds(
            AgentMessage[Any],
            content=TEXTS | TEXTS.map(lambda text: {"text": text}),
            sender=st.sampled_from(["user", "poet", "Agent"]),
        ),
    )
    return draw(st.lists(one, min_size=1, max_size=2))


def json_dumps(**how: Any) -> Callable[[list[Message]], list[Any]]:
    return lambda new: json.loads(json.dumps([each.model_dump(mode="json", **how) for each in new]))


MESSAGES = TypeAdapter(list[Message])

STORES: dict[str, Callable[[list[Message]], list[Any]]] = {
    "objects": list,
    "dumps": json_dumps(),
    "short dumps": json_dumps(exclude_defaults=True),
    "dumps without None": json_dumps(exclude_none=True),
    "the wire": lambda new: json.loads(json.dumps([each.to_record() for each in new])),
}


@pytest.mark.parametrize("store", STORES)
@given(turns=st.lists(st.tuples(questions(), replies()), min_size=2, max_size=3))
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
async def test_a_history_makes_the_requests_that_a_session_would_have_made(
    store: str, turns: list[tuple[list[Any], list[Message]]]
) -> None:
    script = [reply for _, replies in turns for reply in replies]
    in_session, in_store = ScriptedBackend(*script), ScriptedBackend(*script)
    tools = [look, ask, nudge]
    one = Agent(in_session, "You are brief.", tools=tools)
    two = Agent(in_store, "You are brief.", tools=tools)
    stored: list[Any] = []

    for question, _ in turns:
        first = await one(*question, session_id="s")
        second = await two(*question, history=stored)
        assert first == second
        assert first.new_messages() == second.new_messages()
        new = second.new_messages()
        assert {type(each) for each in new} == {Message}
        assert MESSAGES.validate_python(MESSAGES.dump_python(new)) == new
        assert MESSAGES.validate_json(MESSAGES.dump_json(new)) == new
        stored += STORES[store](new)

    assert [bodies(each) for each in (in_store,)] == [bodies(each) for each in (in_session,)]
    if store in ("objects", "dumps"):
        assert as_dumps(in_store) == as_dumps(in_session)
    assert two.memory.sessions == []


def as_dumps(backend: ScriptedBackend) -> list[Any]:
    """The messages of each request, without the fields that only a running call has."""
    only = {"status", "files"}
    return [[each.model_dump(exclude=only) for each in r.messages] for r in backend.requests]


def bodies(backend: ScriptedBackend) -> list[Any]:
    return [request_body("m", each, provider="scripted") for each in backend.requests]


async def test_messages_that_another_system_has_stored_are_a_history() -> None:
    """Dictionaries of chat completions, with the agent's own system message."""
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}
    history = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Where?"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "Oslo"},
        {"role": "assistant", "content": "In Oslo."},
    ]
    backend = ScriptedBackend("Cold.")

    answer = await Agent(backend, "Be brief.", name="sage")("How is it?", history=history)

    sent = request_body("m", backend.requests[0])["messages"]
    expected = [dict(each) for each in history]
    expected[1] = {"role": "user", "content": "Where?"}
    assert sent == [*expected, {"role": "user", "content": "How is it?"}]
    assert [each.role for each in answer.new_messages()] == ["user", "assistant"]


@pytest.mark.parametrize(
    ("history", "why"),
    [
        ("Hello", "must be a list of messages, not 'Hello'. Give the question as text"),
        ({"role": "user", "content": "x"}, "must be a list of messages"),
        ([5], r"history\[0\] must be a Message, an AgentMessage or a dictionary with a role"),
        ([{"content": "x"}], r"history\[0\] is no message with a role and a content"),
        ([{"role": "king", "content": "x"}], r"history\[0\] is no message"),
        ([{"role": "system", "content": "Be long."}], "differs from the one of sage"),
        ([{"role": "tool", "tool_call_id": "1", "content": "x"}], "is the result of a call that"),
        (
            [Message(role="assistant", tool_calls=[ToolCall(id="7", name="look")])],
            r"must have the results of the calls \['7'\] directly after them",
        ),
    ],
)
def test_a_history_that_is_no_conversation_is_refused_before_the_call(
    history: Any, why: str
) -> None:
    agent = Agent(ScriptedBackend("x"), "Be brief.", name="sage")
    with pytest.raises(ConfigurationError, match=why):
        agent.call("Hi", history=history)


async def test_a_history_needs_an_empty_session() -> None:
    agent = Agent(ScriptedBackend("one", "two", "three"))
    old = [Message(role="user", content="a"), Message(role="assistant", content="b")]

    await agent("Hi", session_id="s", history=old)
    with pytest.raises(ConfigurationError, match="the session 's' of Agent has messages already"):
        await agent("Hi", session_id="s", history=old)

    assert [each.text for each in agent.memory.messages("s")] == ["a", "b", "Hi", "one"]


@pytest.mark.parametrize("given", ["a session of its own", "no message"])
async def test_calls_with_a_history_have_sessions_of_their_own_with_the_limits_of_the_memory(
    given: str,
) -> None:
    backend = ScriptedBackend(otherwise="ok")
    own = Agent(backend, memory=Memory(recent_n=3))
    await own("Kept")
    olds: list[list[Message]] = [
        [Message(role="user", content=f"{n}{place}") for place in "abc"] for n in range(3)
    ]
    if given == "no message":
        olds = [[], [], []]

    answers = await asyncio.gather(*(own(f"q{n}", history=old) for n, old in enumerate(olds)))

    found = sorted(r.messages[-1].content or "" for r in backend.requests[1:])
    expected = [f"{n}b\n{n}c\nq{n}" if olds[n] else f"q{n}" for n in range(3)]
    assert found == expected
    assert [[m.content for m in each.new_messages()] for each in answers] == [
        [f"q{n}", "ok"] for n in range(3)
    ]
    assert [m.text for m in own.memory.messages()] == ["Kept", "ok"]
    assert own.memory.sessions == [0]


def test_a_journal_needs_no_history() -> None:
    agent = Agent(ScriptedBackend("x"), journal="never-made.db")
    with pytest.raises(ConfigurationError, match=r"session_id=\. Leave out history="):
        agent.call("Hi", session_id="s", history=[])


async def test_agents_without_one_memory_for_their_model_take_no_history() -> None:
    inner = Agent(ScriptedBackend("x"), name="inner")
    old = [Message(role="user", content="a")]
    with pytest.raises(ConfigurationError, match="so it takes no history="):
        await Sequential(inner)("Hi", history=old)

    answer = await Sequential(inner)("Hi")
    assert [(m.role, m.content, m.name) for m in answer.new_messages()] == [
        ("user", "Hi", None),
        ("assistant", "x", "inner"),
    ]


class Asks(Agent):
    """Asks another agent, which never reads this one's memory."""

    def __init__(self, inner: Agent) -> None:
        super().__init__(name="asks")
        self.inner = inner

    async def forward(self, message: AgentMessage, session_id: int | str = 0) -> AgentMessage:
        return await self.inner(message, session_id=session_id)


class Trims(Agent):
    async def forward(self, *messages: AgentMessage, **options: Any) -> str:
        answer: Any = await super().forward(*messages, **options)
        return answer.text.strip()


class Counts(Agent):
    async def forward(self, message: AgentMessage, session_id: int | str = 0) -> str:
        return " ".join(each.text for each in self.memory.messages(session_id))


class Lends(Asks):
    @property
    def conversant(self) -> Agent:
        return self.inner


async def test_an_agent_with_its_own_forward_takes_a_history_only_if_it_reads_it() -> None:
    backend = ScriptedBackend(otherwise=" ok ")
    inner, old = Agent(backend, name="inner"), [Message(role="user", content="The Nile")]

    for history in (old, []):
        with pytest.raises(ConfigurationError, match=r"asks has a forward\(\) that does not read"):
            Asks(inner).call("Which?", history=history)
    assert not backend.requests

    assert (await Trims(backend)("Which?", history=old)).text == "ok"
    assert backend.requests[-1].messages[0].content == "The Nile\nWhich?"
    assert (await Counts()("Which?", history=old)).text == "The Nile Which?"
    await Lends(inner)("Which?", history=old)
    assert "The Nile" in (backend.requests[-1].messages[0].content or "")


async def test_a_single_message_is_no_history() -> None:
    with pytest.raises(ConfigurationError, match=r"not one: history=\[message\]"):
        Agent(ScriptedBackend()).call("Hi", history=Message(role="user", content="a"))  # type: ignore


@given(script=replies(), fails_at=st.integers(0, 3), cancelled=st.booleans())
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow], deadline=None)
async def test_a_call_that_fails_has_the_messages_that_a_session_would_remember(
    script: list[Message], fails_at: int, cancelled: bool
) -> None:
    fails_at = min(fails_at, len(script) - 1)

    def make() -> tuple[ScriptedBackend, Agent]:
        left = iter(script[:fails_at])

        def reply(request: Any) -> Message | str:
            made = next(left, None)
            if made is not None:
                return made
            if (request.messages[-1].content or "").endswith("And now?"):
                return "done"
            if cancelled:
                raise asyncio.CancelledError
            raise RuntimeError("down")

        backend = ScriptedBackend(otherwise=reply)
        return backend, Agent(backend, tools=[look, ask, nudge], name="sage")

    (one, first), (two, second) = make(), make()
    with suppress(RuntimeError, NodeCancelled, asyncio.CancelledError):
        await first("Hi", session_id="s")
    call = second.call("Hi", history=[])
    with pytest.raises(RuntimeError, match="when it has ended"):
        call.new_messages()
    async with Commander() as commander:
        commander.call_handler(call, claim=True)
        with suppress(RuntimeError, NodeCancelled):
            await call

    new = call.new_messages()
    assert MESSAGES.validate_python(MESSAGES.dump_python(new)) == new
    assert bool(new) == bool(fails_at)
    await first("And now?", session_id="s")
    await second("And now?", history=new)
    assert as_dumps(one)[-1] == as_dumps(two)[-1]
    assert second.memory.sessions == []


async def test_an_agent_that_calls_tools_in_its_text_takes_a_history() -> None:
    script = ['```json\n{"name": "look", "parameters": {"place": "Oslo"}}\n```', "Cold.", "Yes."]
    in_session, in_store = ScriptedBackend(*script), ScriptedBackend(*script)
    one, two = (StepAgent(each, plugins=[look]) for each in (in_session, in_store))
    stored: list[Any] = []

    for question in "How is Oslo?", "Really?":
        await one(question, session_id="s")
        stored += STORES["dumps"]((await two(question, history=stored)).new_messages())

    assert bodies(in_store) == bodies(in_session)
    assert len(stored) == 6
    assert two.agent.memory.sessions == two.memory.sessions == []


async def test_a_second_attempt_reads_the_history_once() -> None:
    """Also if the first attempt has run tools, and so stays in the memory."""
    call = Message(role="assistant", tool_calls=[ToolCall(id="1", name="look", arguments={})])
    call.tool_calls[0].arguments = {"place": "Oslo"}
    old = [Message(role="user", content="a"), Message(role="assistant", content="b")]
    down = BackendUnavailable("down")

    async with Commander() as commander:
        for script, sent in ([down, "x"], ["a", "b", "Hi"]), ([call, down, "x"], None):
            backend = ScriptedBackend(*script)
            agent = Agent(backend, tools=[look])
            call_node = agent.call("Hi", history=old)
            answer = await commander.call_handler(call_node, retry=Retry(attempts=2))
            last = [each.content for each in backend.requests[-1].messages]
            assert last.count("a") == 1
            assert sent is None or last == sent
            assert [m.content for m in answer.new_messages()][-1] == "x"
            assert "a" not in [m.content for m in answer.new_messages()]


async def test_only_the_answer_of_a_call_has_new_messages() -> None:
    agent = Agent(ScriptedBackend("x", "y", "z"))
    answer = await agent("Hi")

    again = pickle.loads(pickle.dumps(answer))
    assert again == answer
    for other in again, AgentMessage(content="x"):
        with pytest.raises(RuntimeError, match="this message has no new messages"):
            other.new_messages()

    await agent(answer, session_id="s")
    assert not any("_new_messages" in vars(each) for each in agent.memory.messages("s"))
    last = [message async for message in agent.stream("Hi", history=[answer])][-1]
    assert [each.content for each in last.new_messages()] == ["Hi", "z"]


async def test_calls_at_the_same_time_in_one_session_have_their_own_new_messages() -> None:
    agent = Agent(ScriptedBackend(otherwise=lambda r: f"to {r.messages[-1].content}", seed=3))
    async with Commander() as commander:
        calls = [
            commander.call_handler(agent.call(text, session_id="s")) for text in ("a", "b", "c")
        ]
        answers = [await each for each in calls]

    for text, answer in zip("abc", answers, strict=True):
        assert answer.new_messages()[0].content == text
        assert len(answer.new_messages()) == 2


async def test_a_history_of_a_conversation_that_was_handed_over_is_its_agents() -> None:
    """The first agent answers again at the next turn, and reads the other's messages as its own."""
    transfer = ToolCall(id="1", name="transfer_to_billing")
    looked = ToolCall(id="2", name="look", arguments={"place": "Oslo"})
    script = [Message(role="assistant", tool_calls=[transfer]), "Paid back.", "You are welcome."]
    beside = [Message(role="assistant", tool_calls=[looked]), "It is cold in Oslo."]
    in_session, in_store = ScriptedBackend(*script), ScriptedBackend(*script)
    pairs: list[tuple[Agent[Any], ScriptedBackend]] = []
    for backend in in_session, in_store:
        other = ScriptedBackend(*beside)
        billing = Agent(other, "You pay back.", tools=[look], name="billing")
        pairs.append((Agent(backend, tools=[handoff(billing)], name="triage"), other))
    stored: list[Any] = []

    for question in "Pay!", "Thanks.":
        first = await pairs[0][0](question, session_id="s")
        second = await pairs[1][0](question, history=stored)
        assert first == second
        stored += STORES["dumps"](second.new_messages())

    assert bodies(in_store) == bodies(in_session)
    assert bodies(pairs[0][1]) == bodies(pairs[1][1])
    assert [each["role"] for each in stored].count("tool") == 2
