"""What tools keep belongs to whoever opened it: any order of calls, resets and closings."""

from __future__ import annotations

import asyncio
import gc
import pickle
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch import Agent, AgentMessage, Commander, tool
from anabranch.agents import ConversableAgent, Directory, ToolExecutor, reply
from anabranch.handlers import handler
from anabranch.tools import PerSession, Toolkit


class Notes:
    """What one session has, and whether it is open."""

    def __init__(self) -> None:
        self.kept: list[str] = []
        self.open = False


class Book(Toolkit):
    """Keeps words."""

    def __init__(self) -> None:
        self.closed = 0
        self.notes = PerSession(Notes, self.close)

    def close(self, notes: Notes) -> None:
        self.closed += notes.open
        notes.open = False

    @tool
    async def note(self, word: str) -> str:
        """Keep a word; return all that there are."""
        notes = self.notes.get()
        notes.open = True
        notes.kept.append(word)
        return " ".join(notes.kept)


class Writer(Agent[Any]):
    """Keeps what it is told, with an executor that takes its sessions."""

    def __init__(self, book: Book) -> None:
        super().__init__()
        self.executor = ToolExecutor([book])

    async def forward(self, *messages: Any, **options: Any) -> str:
        return (await self.executor(noting(messages[-1].content))).content


def noting(word: str) -> AgentMessage:
    return AgentMessage(content={"name": "note", "parameters": {"word": word}})


OWNERS = st.sampled_from(["agent 0", "agent 1", "executor"])
STEPS = st.one_of(
    st.tuples(st.just("call"), OWNERS, st.integers(0, 2)),
    st.tuples(st.just("reset"), OWNERS, st.integers(0, 2)),
    st.tuples(st.just("close"), OWNERS, st.none()),
    st.tuples(st.just("call"), st.just("nobody"), st.none()),
    st.tuples(st.sampled_from(["enter", "leave", "close"]), st.just("book"), st.none()),
)


@given(st.lists(STEPS, max_size=30))
def test_each_session_sees_what_it_kept_and_nothing_else(steps: list[tuple[str, str, Any]]):
    """A block has one for all; a reset forgets one session, a closing forgets none."""

    async def main() -> None:
        book = Book()
        owners: dict[str, Any] = {"agent 0": Writer(book), "agent 1": Writer(book)}
        owners["executor"] = ToolExecutor([book])
        expected: dict[tuple[str, Any], list[str]] = {}
        blocks = 0
        for number, (what, who, session) in enumerate(steps):
            if what == "call":
                shared = blocks > 0 or who == "nobody"
                kept = expected.setdefault(("nobody", None) if shared else (who, session), [])
                kept.append(str(number))
                if who == "nobody":
                    said = await book.tools[0].run({"word": str(number)})
                elif who == "executor":
                    said = (await owners[who](noting(str(number)), session_id=session)).content
                else:
                    said = (await owners[who](str(number), session_id=session)).content
                assert said == " ".join(kept)
            elif what == "reset":
                owners[who].reset(session)
                expected.pop((who, session), None)
            elif what == "enter":
                await book.__aenter__()
                blocks += 1
            elif what == "leave" and blocks:
                await book.__aexit__()
                blocks -= 1
            elif what == "close":
                await (book if who == "book" else owners[who]).aclose()
        await book.aclose()
        assert not any(notes.open for notes in all_notes(book))

    asyncio.run(main())


def all_notes(book: Book) -> list[Notes]:
    return [states[book.notes] for owner in book.notes._owners for states in owner.kept.values()]


async def test_sessions_at_once_do_not_meet():
    """Also below handlers, in tasks and in threads: the session goes down with the context."""
    book = Book()
    agents = [Writer(book) for _ in range(3)]

    @handler
    async def work(node: Any, agent: Writer, session: int) -> str:
        for word in ("a", "b"):
            answer = await asyncio.create_task(agent(f"{word}{session}", session_id=session))
        return answer.content

    async with Commander() as commander:
        said = await asyncio.gather(
            *(commander.run(work(agent, n)) for agent in agents for n in range(3))
        )
        assert said == [f"a{n} b{n}" for _ in agents for n in range(3)]


async def test_a_participant_keeps_state_for_each_partner():
    """With what it said, and forgets it with that."""

    class Clerk(ConversableAgent):
        @reply
        async def keep(self, message: AgentMessage) -> str:
            return await book.tools[0].run({"word": message.content})

    book, directory = Book(), Directory()
    clerk = Clerk("clerk", directory=directory)
    ann, bob = (
        ConversableAgent(name, directory=directory, max_consecutive_auto_reply=0)
        for name in ("ann", "bob")
    )
    said = [
        (await each.initiate_chat(clerk, word, clear_history=False)).messages[-1].content
        for each, word in [(ann, "a"), (bob, "b"), (ann, "c")]
    ]
    assert said == ["a", "b", "a c"]
    clerk.clear_history("ann")
    assert [notes.kept for notes in all_notes(book)] == [["b"]]


async def test_what_an_owner_had_goes_with_it():
    """A toolkit that outlives many agents keeps nothing of those that are gone."""
    book = Book()
    for _ in range(3):
        await Writer(book)("x", session_id=1)
    gc.collect()
    assert all_notes(book) == []


async def test_closing_waits_for_what_takes_time_and_a_cancel_does_not_cut_it_short():
    """The cancel is raised when it is over."""
    ending: Future[None] = Future()
    states = PerSession(list[int], lambda _: ending)
    states.get()
    closing = asyncio.create_task(states.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.sleep(0)
    assert not closing.done()
    ending.set_result(None)
    with pytest.raises(asyncio.CancelledError):
        await closing


def test_a_copy_of_an_agent_keeps_nothing_yet():
    """A process that it is sent to has none of its kernels."""
    agent = Writer(Book())
    asyncio.run(run_once(agent))
    copy = pickle.loads(pickle.dumps(agent.tool_sessions))
    assert (len(agent.tool_sessions.kept), len(copy.kept)) == (1, 0)


async def run_once(agent: Writer) -> None:
    await agent("x", session_id=1)
