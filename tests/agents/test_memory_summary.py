"""A memory with summaries: filtered messages, and texts too long for the model's context."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch import Agent, AgentMessage, ContextTooLong, Message, ToolCall, tool
from anabranch.agents import SummaryMemory
from anabranch.agents.orchestration import RunningSummary, State
from anabranch.messages import Request
from anabranch.testing import ScriptedBackend


def length(request: Request) -> int:
    return sum(len(each.content or "") for each in request.messages)


def summariser(context: int | None = None) -> ScriptedBackend:
    """A model with a context of some characters, which repeats the marked words of its request."""

    def summarise(request: Request) -> str:
        if context is not None and length(request) > context:
            raise ContextTooLong(f"{length(request)} characters are more than {context}")
        words = (request.messages[-1].content or "").split()
        return " ".join(["A summary.", *dict.fromkeys(w for w in words if w.startswith("@"))])

    return ScriptedBackend(otherwise=summarise)


def read_by(backend: ScriptedBackend) -> str:
    return "\n".join(
        each.content or "" for request in backend.requests for each in request.messages
    )


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 80)), min_size=1, max_size=12),
    st.integers(10, 60),
    st.booleans(),
)
def test_what_a_filter_hides_is_neither_summarised_nor_forgotten(
    said: list[tuple[bool, int]], limit: int, whitelist: bool
) -> None:
    """The model reads all other messages, or a summary, which the filter cannot hide."""

    def visible(message: AgentMessage) -> bool:
        if whitelist:
            return message.sender in ("user", "sage") and "@hidden" not in message.text
        return "@hidden" not in message.text

    summarises, backend = summariser(), ScriptedBackend(otherwise="Well.")
    memory = SummaryMemory(summarises, max_tokens=limit, filter=visible)
    agent = Agent(backend, name="sage", memory=memory)
    texts = [
        f"{'@hidden' if hidden else '@shown'}{n} {'x' * size}"
        for n, (hidden, size) in enumerate(said)
    ]

    async def main() -> None:
        for text in texts:
            await agent(text)

    asyncio.run(main())
    assert "@hidden" not in read_by(summarises) + read_by(backend)
    kept = [each.text for each in memory.messages()]
    assert [text for text in kept if "@hidden" in text] == [t for t in texts if "@hidden" in t]
    last = "\n".join(each.content or "" for each in backend.requests[-1].messages)
    shown = [text.split()[0] for text in texts if "@shown" in text]
    assert all(word in last for word in shown)


@pytest.mark.parametrize("size", [1_000, 100_000])
async def test_a_result_longer_than_the_summarisers_context_fails_no_call(size: int) -> None:
    """It loses its middle, and the next calls have a short memory."""

    @tool
    async def read() -> str:
        """Read a page."""
        return f"@begin {'x' * size} @end"

    call = Message(role="assistant", tool_calls=[ToolCall(id="1", name="read", arguments={})])
    summarises = summariser(1_000)
    memory = SummaryMemory(summarises, max_tokens=100)
    agent = Agent(ScriptedBackend(call, otherwise="Well."), tools=[read], memory=memory)
    for question in ("@first", "@second", "@third", "@fourth"):
        await agent(f"{question} {'?' * 100}")
    first = memory.messages()[0]
    assert (first.type, first.sender) == ("summary", "memory")
    assert all(word in first.text for word in ("@first", "@begin", "@end"))
    assert sum(map(memory.count, memory.get())) < 200
    assert len(summarises.requests) < 60


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 3_000), min_size=2, max_size=40), st.integers(700, 4_000))
def test_however_much_is_to_be_summarised_it_is(sizes: list[int], context: int) -> None:
    """In parts: each fits the context, and only middles are left out."""
    summarises = summariser(context)
    memory = SummaryMemory(summarises, max_tokens=50)
    for number, size in enumerate(sizes):
        memory.add(f"@{number} {'x' * size}")

    asyncio.run(memory.prepare(0))
    kept = memory.messages()
    if kept[0].type == "summary":
        gone = len(sizes) - len(kept) + 1
        assert gone > 0
        assert all(f"@{number}" in kept[0].text.split() for number in range(gone))
    else:
        assert sum(map(memory.count, kept)) <= 50
    assert len(summarises.requests) <= 20 * len(sizes)


async def test_a_summariser_without_any_room_is_an_error() -> None:
    """The error is the model's own, and the memory is unchanged."""
    memory = SummaryMemory(summariser(100), max_tokens=5)
    memory.add("one long message", "and another long one", "and a third one")
    before = memory.messages()
    with pytest.raises(ContextTooLong):
        await memory.prepare(0)
    assert memory.messages() == before


async def test_what_others_say_during_a_summary_in_parts_stays() -> None:
    """Hidden or not, in the order of the messages."""
    memory: Any = None

    def summarise(request: Request) -> str:
        memory.add("@hidden in between", "said in between")
        return "A summary."

    memory = SummaryMemory(
        ScriptedBackend(otherwise=summarise),
        max_tokens=10,
        filter=lambda each: "@hidden" not in each.text,
    )
    memory.add("@hidden first", "x" * 100, "@hidden second", "y" * 100, "z")
    await memory.prepare(0)
    said = [each.text for each in memory.messages()]
    hidden = ["@hidden first", "@hidden second", "z", "@hidden in between", "said in between"]
    assert [text for text in said if "Summary" not in text] == hidden
    assert said.index("Summary of what was said before:\nA summary.") == 1


async def test_a_running_summary_takes_what_is_too_long_too() -> None:
    """A long observation loses its middle."""
    summarises = summariser(2_000)
    module, state = RunningSummary(summarises), State(response="look", obs="")
    await module.before(f"@begin {'x' * 50_000} @end", state)
    assert state.notes["summary"] == "A summary. @begin @end"
