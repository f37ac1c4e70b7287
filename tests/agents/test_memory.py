"""Memory: separate sessions, messages that it leaves out, messages that it stores."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.seeds import SEED

from anabranch import AgentMessage, BadResponse, ConfigurationError, Memory, Message, ToolCall
from anabranch.agents import Agent, SummaryMemory
from anabranch.agents.layers import TOOLS
from anabranch.commander import Commander
from anabranch.messages import Request
from anabranch.testing import ScriptedBackend, pause, run_seeded
from anabranch.tools import ToolResult

relaxed = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])

contents = st.text(max_size=20)
scalars = st.none() | st.booleans() | st.integers() | st.floats(-9, 9) | st.text(max_size=5)
json_values = (
    scalars | st.lists(scalars, max_size=2) | st.dictionaries(contents, scalars, max_size=2)
)
plain = st.builds(
    AgentMessage,
    content=contents | json_values,
    sender=st.sampled_from(["user", "alice", "bob"]),
    output=json_values,
    extra=st.dictionaries(contents, scalars, max_size=2),
    receiver=st.none() | st.just("alice"),
    stream_state=st.sampled_from(["end", "failed"]),
)


def exchange(content: str) -> AgentMessage:
    call = ToolCall(id="c", name="look", arguments={"x": content})
    return AgentMessage(
        content=content,
        sender="alice",
        type=TOOLS,
        output=[
            Message(role="assistant", content=content, tool_calls=[call]),
            ToolResult(content=content, tool_call_id="c", name="look"),
        ],
    )


messages = plain | contents.map(exchange)
sessions = st.sampled_from([0, 1, "alice"])


@relaxed
@given(st.lists(st.tuples(sessions, st.sampled_from(["add", "reset", "retract"]), messages)))
def test_sessions_are_lists_apart(steps: list[tuple[int | str, str, AgentMessage]]) -> None:
    """A change in one session does not change another."""
    memory = Memory()
    model: dict[int | str, list[AgentMessage]] = {}
    for session, step, message in steps:
        mine = model.setdefault(session, [])
        if step == "add":
            memory.add(message, session_id=session)
            mine.append(message)
        elif step == "reset":
            memory.reset(session)
            mine.clear()
        else:
            kept = memory.add(message, session_id=session)
            assert memory.retract(kept, session)
        assert memory.get(session) == mine
    assert {s: memory.get(s) for s in memory.sessions} == {s: m for s, m in model.items() if m}


@relaxed
@given(
    st.lists(messages, max_size=8),
    st.none() | st.integers(0, 9),
    st.none() | st.integers(1, 60),
    st.booleans(),
)
def test_what_get_leaves_out(
    said: list[AgentMessage], recent_n: int | None, max_tokens: int | None, only: bool
) -> None:
    """First the filter, then all but the newest; the memory still has all messages."""
    memory = Memory(
        recent_n=recent_n,
        max_tokens=max_tokens,
        filter=(lambda message: message.sender == "alice") if only else None,
    )
    memory.add(*said)
    got = memory.get()

    wanted = [message for message in said if not only or message.sender == "alice"]
    assert got == wanted[len(wanted) - len(got) :]
    assert recent_n is None or len(got) <= recent_n
    if max_tokens is not None and len(got) > 1:
        assert sum(map(memory.count, got)) <= max_tokens
    if recent_n is None and max_tokens is None:
        assert got == wanted
    assert bool(got) == (bool(wanted) and recent_n != 0)
    assert memory.messages() == said


@relaxed
@given(
    st.lists(messages, max_size=6), st.none() | st.integers(0, 6), st.none() | st.integers(1, 30)
)
def test_no_limit_parts_a_call_from_its_result(
    said: list[AgentMessage], recent_n: int | None, max_tokens: int | None
) -> None:
    """So each request of an agent is valid for a provider."""
    memory = Memory(recent_n=recent_n, max_tokens=max_tokens)
    memory.add(*said)
    agent: Agent = Agent(name="alice", memory=memory)

    open_calls: set[str] = set()
    for message in agent.aggregate():
        if message.role == "tool":
            open_calls.remove(message.tool_call_id or "")
        else:
            assert not open_calls
            open_calls = {call.id for call in message.tool_calls}
    assert not open_calls


@relaxed
@given(st.lists(messages, max_size=6))
def test_a_saved_memory_is_json_and_comes_back(said: list[AgentMessage]) -> None:
    """Unchanged, in any session."""
    memory = Memory()
    memory.add(*said)
    saved = json.loads(json.dumps(memory.save()))

    other = Memory()
    other.load(saved, session_id="x")

    assert other.get("x") == memory.get()
    assert other.sessions == (["x"] if said else [])


async def test_what_is_no_json_is_saved_as_text() -> None:
    """So a memory can always be saved."""
    memory = Memory()
    memory.add(AgentMessage(content="?", output={"when": object(), "raw": b"\xff"}))

    assert "object" in json.dumps(memory.save())


@pytest.mark.parametrize(
    "wrong", [[{"sender": 3}], ["text"], [{"type": "tools", "formatted": 1}], 7, [{"nope": 1}][:0]]
)
def test_what_was_not_saved_is_refused_and_changes_nothing(wrong: Any) -> None:
    """Except an empty list, which is an empty memory."""
    memory = Memory()
    memory.add("kept")
    if wrong == []:
        memory.load(wrong)
        assert memory.get() == []
    else:
        with pytest.raises(ConfigurationError, match="not a saved memory"):
            memory.load(wrong)
        assert [message.content for message in memory.get()] == ["kept"]


def test_a_message_is_copied_so_that_no_one_changes_anothers_memory() -> None:
    """Neither by its content nor by its `extra`."""
    memory, message = Memory(), AgentMessage(content="said", extra={"a": 1})
    memory.add(message)
    message.content, message.extra["a"] = "changed", 2

    assert memory.get() == [AgentMessage(content="said", extra={"a": 1})]


@pytest.mark.parametrize("limits", [{"recent_n": -1}, {"max_tokens": 0}])
def test_limits_that_are_too_low_are_refused(limits: dict[str, int]) -> None:
    """By a `ValueError` with the numbers."""
    with pytest.raises(ValueError, match="must be at least"):
        Memory(**limits)


# --- SummaryMemory


async def test_the_beginning_of_a_long_session_is_summarised() -> None:
    """The newest messages stay unchanged, and each session has a summary."""
    summarises = ScriptedBackend(otherwise="They spoke of rivers.")
    backend = ScriptedBackend(otherwise="The Nile, by most who have measured it.")
    memory = SummaryMemory(summarises, max_tokens=60)
    agent = Agent(backend, "Be brief.", memory=memory, name="sage")

    await agent("short", session_id=1)
    for _ in range(4):
        await agent("Which is the longest of all rivers, and who says so?")

    asked = [message.content or "" for message in backend.requests[-1].messages]
    assert asked[1].startswith("Summary of what was said before:\nThey spoke of rivers.")
    assert sum(map(memory.count, memory.get())) <= 60
    assert "user: Which is the longest" in (summarises.requests[0].messages[1].content or "")
    assert "sage: The Nile" in (summarises.requests[0].messages[1].content or "")
    assert memory.get(1)[0].content == "short"


async def test_a_summary_that_fails_loses_nothing() -> None:
    """The call that needed it fails, and the memory is unchanged."""
    memory = SummaryMemory(ScriptedBackend(""), max_tokens=5)
    agent = Agent(ScriptedBackend(), memory=memory)
    memory.add("one long message that is there", "and another long one")
    before = memory.messages()

    with pytest.raises(BadResponse, match="empty summary"):
        await agent("?")

    assert memory.messages() == before


async def test_what_is_said_during_a_summary_is_kept() -> None:
    """Two calls in one session summarize once, and both are remembered."""
    both_ask = asyncio.Barrier(2)

    async def slowly(request: Request) -> str:
        await both_ask.wait()
        return "short"

    summarises = ScriptedBackend(otherwise=slowly)
    memory = SummaryMemory(summarises, max_tokens=10)
    memory.add("something that is rather long", "and something that is longer still, by far")
    agent = Agent(ScriptedBackend(otherwise="ok"), memory=memory)

    async with asyncio.timeout(5):
        await asyncio.gather(agent("first"), agent("second"))

    said = [message.content for message in memory.get()]
    assert {"first", "second", "ok"} <= set(said)
    assert sum("Summary" in text for text in said) == 1


class Overlapping(Agent):
    """Ends as its message says, some loop iterations later."""

    async def forward(
        self, message: AgentMessage, *, session_id: int | str = 0, **_: Any
    ) -> AgentMessage | str:
        how = message.text.split()[0]
        await pause()
        if how == "asks":  # itself, and says something by that
            await self(f"answers {message.text}", session_id=session_id)
        elif how == "says":
            half = AgentMessage(content=f"half {message.text}", sender=self.name)
            self.memory.add(half, session_id=session_id)
        await pause()
        if how != "answers":
            raise LookupError
        return f"answer to {message.text}"


@relaxed
@given(
    st.lists(st.sampled_from(["answers", "fails", "says", "asks", "cancelled"]), max_size=6),
    st.integers(0, 2**20),
)
def test_of_calls_that_overlap_in_a_session_each_leaves_what_it_would_leave_alone(
    calls: list[str], seed: int
) -> None:
    """A failed call removes its question, whatever the others have added."""
    agent, expected = Overlapping(), list[str]()
    for number, how in enumerate(calls):
        question = f"{how} {number}"
        inner = f"answers {question}"
        expected += {
            "answers": [question, f"answer to {question}"],
            "says": [question, f"half {question}"],
            "asks": [question, inner, f"answer to {inner}"],
        }.get(how, [])

    async def main() -> None:
        async with Commander() as commander:
            for number, how in enumerate(calls):
                call = commander.call_handler(agent.call(f"{how} {number}", session_id=7))
                if how == "cancelled":
                    asyncio.get_running_loop().call_soon(call.cancel)
                await pause()

    run_seeded(main, seed=SEED + seed)
    said = [each.text for each in agent.memory.get(7)]
    assert sorted(said) == sorted(expected)
    order = {text: place for place, text in enumerate(said)}
    for text in said:
        for later in (f"answer to {text}", f"half {text}"):
            assert order[text] < order.get(later, len(said))
