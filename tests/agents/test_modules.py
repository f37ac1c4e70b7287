"""Work before an agent's prompt, and prompts that are too long."""

import asyncio
from typing import Any

import pytest
from support.orchestrators import (
    CountState,
    backend_of,
    counter_agent,
    counting_orchestrator,
)

from anabranch import (
    BackendUnavailable,
    Commander,
    ContextTooLong,
    Message,
    Retry,
)
from anabranch.agents import Orchestrator
from anabranch.agents.orchestration import ListMemory, Retrieval, RunningSummary
from anabranch.knowledge import Index
from anabranch.messages import Request
from anabranch.testing import ScriptedBackend

# --- a prompt that is too long


class LimitedContext(ScriptedBackend):
    """A model with a context of this number of characters."""

    def __init__(self, room: int) -> None:
        def reply(request: Request) -> Any:
            length = sum(len(message.content or "") for message in request.messages)
            return "1" if length <= room else ContextTooLong(f"{length} is too long")

        super().__init__(otherwise=reply)


async def test_a_prompt_that_is_too_long_loses_its_oldest_messages() -> None:
    """The system's and the last one stay, and the next prompt is as short."""
    state = CountState()
    state.histories["counter"] = [
        Message(role="system", content="Be brief."),
        *(Message(role="user", content=f"{number}" * 100) for number in range(9)),
    ]
    backend = LimitedContext(400)
    orchestrator = Orchestrator([counter_agent(backend)], lambda obs, state: "counter", state)
    assert (await orchestrator.forward("last")).content == "1"
    contents = [message.content for message in backend.requests[-1].messages]
    assert contents == ["Be brief.", "7" * 100, "8" * 100, "last"]
    assert len(state.histories["counter"]) == 5


async def test_a_single_message_that_is_too_long_loses_its_middle() -> None:
    """Its beginning and its end stay."""
    backend = LimitedContext(2500)
    orchestrator = Orchestrator(
        [counter_agent(backend)], lambda obs, state: "counter", CountState()
    )
    await orchestrator.forward("begin" + "x" * 8000 + "end")
    (message,) = backend.requests[-1].messages
    assert message.content is not None
    assert message.content.startswith("begin")
    assert "left out" in message.content
    assert message.content.endswith("end")


async def test_a_prompt_that_cannot_be_shortened_is_an_error() -> None:
    """After a few attempts."""
    backend = LimitedContext(10)
    orchestrator = Orchestrator(
        [counter_agent(backend)], lambda obs, state: "counter", CountState()
    )
    async with asyncio.timeout(10):
        with pytest.raises(ContextTooLong):
            await orchestrator.forward("x" * 100_000)
    assert len(backend.requests) < 15
    assert orchestrator.state.histories == {}


# --- modules


async def test_a_list_memory_notes_the_last_steps() -> None:
    """Actions and observations, long ones cut."""
    orchestrator = counting_orchestrator(
        "1", "2", "3", "4", modules=[ListMemory(last=2, max_output=8)]
    )
    for obs in ("go", "seen one", "", "x" * 9):
        await orchestrator.forward(obs)
    assert orchestrator.state.notes["memory"] == "> 2\n(no output)\n> 3\nxxxxxxxx [...]"
    with pytest.raises(ValueError, match="at least 1, not 0"):
        ListMemory(last=0)


async def test_a_summary_and_a_retrieval_note_what_they_find() -> None:
    """Before the prompt is made; the summary's model reads the earlier summary."""

    async def search(question: str) -> list[str]:
        return [f"{question} {number}" for number in range(9)]

    summarist = ScriptedBackend("It saw b.", "It saw b and c.")
    orchestrator = counting_orchestrator(
        "1", "2", "3", modules=[RunningSummary(summarist), Retrieval(search, limit=2)]
    )
    for obs in "abc":
        await orchestrator.forward(obs)
    assert orchestrator.state.notes == {
        "summary": "It saw b and c.",
        "knowledge": "c 0\n\nc 1",
    }
    assert "It saw b." in (summarist.requests[1].messages[0].content or "")


async def test_retrieval_from_an_index_keeps_to_its_limit_and_its_question() -> None:
    """It notes passages for citation; the question is made in a plain or async way."""

    async def query(obs: str | None, state: Any) -> str | None:
        return "otter" if obs == "b" else None

    async with Index(":memory:") as notes:
        await notes.add("otters.md", "\n\n".join(f"# H{n}\n\nAn otter, {n}." for n in range(5)))
        module = Retrieval(notes, limit=2, query=query)
        orchestrator = counting_orchestrator("1", "2", modules=[module])
        await orchestrator.forward("a")
        assert orchestrator.state.notes == {}
        await orchestrator.forward("b")
    noted = orchestrator.state.notes["knowledge"]
    assert noted.count('{"number"') == 2
    assert len(Index.cited(None, [noted])) == 2


async def test_what_modules_note_of_a_step_they_note_once() -> None:
    """Also when the answer fails and the node's retry repeats it."""
    summarist = ScriptedBackend("It saw b.")
    orchestrator = counting_orchestrator(
        "1",
        BackendUnavailable("gone"),
        "2",
        modules=[ListMemory(), RunningSummary(summarist)],
    )
    await orchestrator.forward("a")
    async with Commander() as commander:
        node = commander.call_handler(orchestrator.call("b"), retry=Retry(attempts=2))
        assert (await node).content == "2"
    assert orchestrator.state.notes == {"memory": "> 1\nb", "summary": "It saw b."}
    assert len(summarist.requests) == 1


async def test_a_module_that_fails_fails_the_answer() -> None:
    """With its own error, and without a request to the model."""

    async def search(question: str) -> list[str]:
        raise ConnectionError("no index")

    orchestrator = counting_orchestrator("1", modules=[Retrieval(search)])
    with pytest.raises(ConnectionError, match="no index"):
        await orchestrator.forward("a")
    assert backend_of(orchestrator).requests == []
