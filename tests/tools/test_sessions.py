"""Tools keep state for the owner of a session, in any order of calls, resets and closings."""

from __future__ import annotations

import asyncio
import gc
import pickle
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.executor_agent import ExecutorAgent, call_message
from support.waiting import run_turns

from anabranch import Agent, AgentMessage, Commander, tool
from anabranch.agents import ConversableAgent, Directory, ToolExecutor, reply
from anabranch.handlers import handler
from anabranch.tools import PerSession, Toolkit


class Notes:
    """The state of one session."""

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
        """Keep a word; return all words so far."""
        notes = self.notes.get()
        notes.open = True
        notes.kept.append(word)
        return " ".join(notes.kept)


class Writer(ExecutorAgent):
    """Keeps the words in its messages."""

    tool, argument = "note", "word"


def noting(word: str) -> AgentMessage:
    return call_message("note", word=word)


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
    """A block has one state for all; a reset deletes one session, closing deletes none."""

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
    return [states[book.notes] for owner in book.notes._owners for states in owner.states.values()]


async def test_sessions_at_once_do_not_meet():
    """Also below handlers, in tasks and in threads, which inherit the context."""
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
    """The state is deleted together with the conversation."""

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
    """A toolkit that outlives many agents keeps no state of collected ones."""
    book = Book()
    for _ in range(3):
        await Writer(book)("x", session_id=1)
    gc.collect()
    assert all_notes(book) == []


async def test_closing_waits_for_what_takes_time_and_a_cancel_does_not_cut_it_short():
    """The cancel is raised after the end."""
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


class Slow(Toolkit):
    """Takes time to close, and may fail."""

    def __init__(self) -> None:
        self.closing: list[Future[None]] = []
        self.states = PerSession(dict[str, str], self.close)

    def close(self, _: object) -> Future[None]:
        self.closing.append(Future())
        return self.closing[-1]

    @tool
    async def note(self, word: str) -> str:
        """Keep a word."""
        self.states.get()["word"] = word
        return word


class Team(Agent[Any]):
    """Two agents that write, one below the other."""

    def __init__(self, *kits: Any) -> None:
        super().__init__()
        self.writers = [Writer(kit) for kit in kits]

    async def forward(self, message: Any, session_id: Any = 0) -> str:
        for each in self.writers:
            await each(message, session_id=session_id)
        return ""


async def test_all_are_closed_whatever_happens_meanwhile():
    """In all agents below, if one fails at once too; a cancel is raised at the end."""
    kits = [Slow(), Raising(), Slow()]
    team = Team(*kits)
    for each in team.writers:
        each.executor.tool_sessions = each.tool_sessions
    await team("x", session_id=1)
    closing = asyncio.create_task(team.aclose())
    await run_turns(3)
    closing.cancel()
    await run_turns(3)
    for kit in (kits[0], kits[2]):
        assert not closing.done()
        kit.closing[0].set_result(None)
        await run_turns(3)
    with pytest.raises(asyncio.CancelledError):
        await closing


class Raising(Slow):
    """Fails to start closing."""

    def close(self, _: object) -> Future[None]:
        raise OSError("a fault")


async def test_what_is_forgotten_is_closed_whatever_one_of_them_does():
    """A toolkit that raises does not keep others from closing."""
    slow, executor = Slow(), ToolExecutor([Raising()])
    executor.tools |= {"later": slow.note}
    for name in "note", "later":
        assert (await executor(call_message(name, word="x"))).content == "x"
    with pytest.raises(OSError, match="a fault"):
        executor.reset()
    assert len(slow.closing) == 1


def test_a_copy_of_an_agent_keeps_nothing_yet():
    """A process that receives it has none of its kernels."""
    agent = Writer(Book())
    asyncio.run(run_once(agent))
    copy = pickle.loads(pickle.dumps(agent.tool_sessions))
    assert (len(agent.tool_sessions.states), len(copy.states)) == (1, 0)


async def run_once(agent: Writer) -> None:
    await agent("x", session_id=1)
