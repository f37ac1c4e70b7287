"""Agents with sessions in a journal: killed between any two rows, called again."""

import asyncio
import itertools
import json
import random
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from contextvars import Context
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.memory_journal import Disk, journal_of, use_disk_clock
from support.seeds import SEED, example_count

from anabranch import Agent, Commander, Handler, handler, tool
from anabranch.agents import JsonParser, Sequential, StepAgent, SummaryMemory
from anabranch.commander.errors import ConfigurationError, NodeCancelled
from anabranch.commander.waiting import observe
from anabranch.messages import Message, Request, ToolCall, Usage
from anabranch.store import (
    Done,
    Durable,
    Journal,
    JournalError,
    NotDone,
    NotStorable,
    RunBusy,
    effect_key,
)
from anabranch.testing import ScriptedBackend, run_seeded

pytestmark = pytest.mark.contract("D22")

MAILS = "notes/s"


class World:
    """The outside world: the number of requests, and the mails."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.asked = 0

    def play(self, request: Request) -> Message | str:
        """Send a mail for each question that demands it, then answer by the conversation."""
        self.asked += 1
        last = request.messages[-1]
        if last.role == "user" and "send" in str(last.content):
            call = ToolCall(id=f"c{len(request.messages)}", name="send", arguments={"text": "hi"})
            return Message(role="assistant", content="I send it.", tool_calls=[call])
        read = "|".join(str(each.content) for each in request.messages)
        return f"answer to {len(request.messages)}: {len(read)}"

    def agent(self, journal: Journal | str, **options: Any) -> Agent[Any]:
        disk = self.disk

        def was_sent(text: str, effect_key: str) -> Done | NotDone:
            return Done(disk.done[effect_key]) if effect_key in disk.done else NotDone()

        @tool(reconcile=was_sent, reconcile_after=0)
        async def send(text: str) -> str:
            """Send a mail."""
            if effect_key() in disk.done:
                disk.twice.append(effect_key())
            disk.done[effect_key()] = f"sent {text} as {effect_key()[:6]}"
            return disk.done[effect_key()]

        backend = ScriptedBackend(otherwise=self.play)
        given = {"name": "notes", "tools": [send], **options}
        return Agent(backend, "Be kind.", journal=journal, **given)


def left(execution: Disk, rows: int, *, done: bool, run: str = MAILS) -> Disk:
    """Return the disk of a process that died after these rows; a call in doubt was `done`."""
    kept = execution.rows[run]
    ends = {row.ident for row in kept[:rows] if row.kind in ("gave", "failed")}
    began = {row.ident for row in kept[:rows] if row.kind == "intent"}
    from anabranch.store._json import digest

    keys = {digest(run, ident).hex() for ident in ends | (began if done else set())}
    return execution.cut(rows, {key: said for key, said in execution.done.items() if key in keys})


def live(
    disk: Disk, script: Callable[[Agent[Any], World, Journal], Awaitable[Any]], **options: Any
):
    """Let one process use the sessions on a disk."""

    async def main() -> Any:
        world = World(disk)
        with use_disk_clock(disk):
            async with journal_of(disk) as journal:
                given = options.pop("make", world.agent)
                return await script(given(journal, **options), world, journal)

    return run_seeded(main, None)


QUESTIONS = ["hello", "send it", "what is new?", "send another", "bye"]


async def ask_all(agent: Agent[Any], world: World, journal: Journal) -> tuple[list[Any], int]:
    """Ask all unanswered questions, beginning with the interrupted one."""
    async with journal.session(MAILS) as session:
        over = sum(call.is_over for call in session.calls)
    for question in QUESTIONS[over:]:
        await agent(question, session_id="s")
    await agent.recall("s")
    return agent.memory.save("s"), world.asked


def test_a_session_goes_on_after_any_kill_and_does_nothing_twice():
    """The interrupted question is asked again: memory, mails and replies are as without a kill."""
    first = Disk()
    memory, asked = live(first, ask_all)
    assert asked == 7
    assert len(first.done) == 2
    replies = [row.kind for row in first.rows[MAILS]]
    for rows, done in itertools.product(range(len(first.rows[MAILS]) + 1), (True, False)):
        disk = left(first, rows, done=done)
        again, more = live(disk, ask_all)
        assert again == memory, rows
        assert replies[:rows].count("reply") + more == asked
        assert (disk.done, disk.twice) == (first.done, [])
        assert disk.runs[MAILS].state == "suspended"


async def ask_something_else(agent: Agent[Any], world: World, journal: Journal) -> Any:
    await agent("something else", session_id="s")
    return agent.memory.save("s")


def test_another_question_waits_until_the_one_that_was_cut_is_answered():
    """No question is lost, and no tool runs again silently."""
    first = Disk()
    live(first, ask_all)
    rows = first.rows[MAILS]
    for number in range(1, len(rows) + 1):
        disk = left(first, number, done=number % 2 == 0)
        begun = sum(row.kind == "root" for row in rows[:number])
        memory = live(disk, ask_something_else)
        said = [each["content"] for each in memory if each["sender"] == "user"]
        assert said == [*QUESTIONS[:begun], "something else"]
        assert not disk.twice
        assert disk.done.items() <= first.done.items()
        over = sum(row.kind == "over" for row in disk.rows[MAILS])
        assert over == begun + 1


def test_a_session_survives_several_kills_at_random():
    """Each execution ends at any row, in either world."""
    first = Disk()
    memory, _ = live(first, ask_all)
    for seed in range(SEED, SEED + example_count(10, 300)):
        draw, disk, least = random.Random(seed), first, 0
        for _ in range(3):
            least = draw.randint(least, len(disk.rows[MAILS]))
            disk = left(disk, least, done=draw.random() < 0.5)
            again, _ = live(disk, ask_all)
        assert (again, disk.done, disk.twice) == (memory, first.done, []), seed


@dataclass
class City:
    """A parsed value."""

    city: str


class Team(Agent[Any]):
    """A writer and a critic, whose memory lasts as long as the team's."""

    def __init__(self, world: World, journal: Journal, **options: Any) -> None:
        super().__init__(name="notes", journal=journal, **options)
        backend = ScriptedBackend(otherwise=world.play)
        self.writer = Agent(backend, "Write.", name="writer", output_format=None)
        self.critic = Agent(
            backend, "Judge.", memory=SummaryMemory(backend, max_tokens=16), name="critic"
        )

    async def forward(self, *messages: Any, session_id: Any = 0, **options: Any) -> Any:
        text = await self.writer(*messages, session_id=session_id)
        judged = await self.critic(text, session_id=session_id)
        return f"{text.text}, and {judged.text}"


async def ask_team(agent: Agent[Any], world: World, journal: Journal) -> tuple[Any, int]:
    await ask_all(agent, world, journal)
    return agent.state_dict("s"), world.asked


def test_agents_below_and_summaries_are_kept_with_the_session():
    """Their memories are restored, also parts that a summary has replaced."""

    def play(disk: Disk) -> Any:
        world = World(disk)
        return live(
            disk,
            lambda agent, _, journal: ask_team(agent, world, journal),
            make=(lambda journal: Team(world, journal)),
        )

    first = Disk()
    state, asked = play(first)
    assert state.keys() == {"memory", "writer.memory", "critic.memory"}
    assert any(each["type"] == "summary" for each in state["critic.memory"])
    kinds = [row.kind for row in first.rows[MAILS]]
    for rows in range(len(kinds) + 1):
        again, more = play(left(first, rows, done=True))
        assert (again, kinds[:rows].count("reply") + more) == (state, asked), rows


# --- real files


def notes(path: Any, **options: Any) -> Agent[Any]:
    return World(Disk()).agent(str(path), **options)


async def test_a_new_process_finds_the_session_byte_for_byte(tmp_path):
    """Also by `recall`, which makes no request."""
    path = tmp_path / "notes.db"
    agent = notes(path)
    for question in ("one", "send it", "three"):
        await agent(question, session_id="s")
    await agent("elsewhere", session_id=7)
    other = notes(path)
    assert await other.recall("s") == await agent.recall("s") == agent.memory.messages("s")
    assert json.dumps(other.memory.save("s")) == json.dumps(agent.memory.save("s"))
    assert other.memory.sessions == ["s"]
    assert (await other.recall(7))[0].text == "elsewhere"
    assert await other.recall("7") == []


async def test_two_agents_may_take_turns_in_a_session(tmp_path):
    """Each reads the other's messages; a concurrent call raises RunBusy with the owner."""
    path, gate = tmp_path / "notes.db", asyncio.Event()
    one, two = notes(path), notes(path)
    for agent in (one, two, one):
        await agent("hello", session_id="s")
    assert len(await two.recall("s")) == 6

    async def wait(agent: Any, message: Any, session: Any) -> None:
        await gate.wait()

    one.before_agent(wait)
    call = asyncio.create_task(one("wait", session_id="s"))
    async with Journal(str(path)) as journal:
        while (await journal.runs())[0].state != "running":  # noqa: ASYNC110 - another journal's
            await asyncio.sleep(0)
    with pytest.raises(RunBusy, match="notes/s"):
        await two("now", session_id="s")
    gate.set()
    await call
    assert [each.text for each in (await two.recall("s"))][-2] == "wait"


async def test_calls_of_one_session_at_once_are_made_one_after_the_other(tmp_path):
    """In the order of the calls; other sessions are not delayed."""
    agent = notes(tmp_path / "notes.db")
    await asyncio.gather(*(agent(f"{n}", session_id=n % 2) for n in range(6)))
    for session in (0, 1):
        said = [each.text for each in agent.memory.messages(session) if each.sender == "user"]
        assert said == [f"{n}" for n in range(6) if n % 2 == session]


async def test_a_stream_is_kept_and_an_answer_that_is_kept_is_streamed():
    """The answer comes last, in each execution, also if nothing is left to do."""
    first = Disk()

    async def read(agent: Agent[Any]) -> list[tuple[str, str]]:
        async with aclosing(agent.stream("hello", session_id="s")) as messages:
            return [(message.stream_state, message.text) async for message in messages]

    async with journal_of(first) as journal:
        said = await read(World(first).agent(journal))
    for rows in range(len(first.rows[MAILS])):
        disk = left(first, rows, done=True)
        async with journal_of(disk) as journal:
            again = await read(World(disk).agent(journal))
        assert again[-1] == said[-1] == ("end", "answer to 2: 14")
        assert len(again) <= len(said)


async def test_a_cut_call_is_finished_without_a_listener():
    """The caller of another question gets only its own answer."""
    first = Disk()
    async with journal_of(first) as journal:
        await World(first).agent(journal)("hello", session_id="s")
    disk = left(first, 1, done=True)
    async with journal_of(disk) as journal:
        agent = World(disk).agent(journal)
        said = [each.text async for each in agent.stream("other", session_id="s")]
    assert said[-1] == "answer to 4: 36"
    assert all(
        "to 4: 36".startswith(each.removeprefix("answer ")) or each in said[-1] for each in said
    )


def test_sync_agents_keep_their_sessions_too(tmp_path):
    """`run_sync` has a loop for each call."""
    path = tmp_path / "notes.db"
    agent = notes(path)
    agent.run_sync("one", session_id="s")
    notes(path).run_sync("two", session_id="s")
    agent.run_sync("three", session_id="s")
    assert [each.text for each in agent.memory.messages("s")][::2] == ["one", "two", "three"]


async def test_what_is_remembered_before_a_call_is_written_with_it(tmp_path):
    """`memory.add`, `load_state_dict` and `retract` change what the next call stores."""
    path = tmp_path / "notes.db"
    agent = notes(path)
    agent.memory.add("remember me", session_id="s")
    await agent("one", session_id="s")
    kept = agent.memory.add("and me", "and not me", session_id="s")
    agent.memory.retract(kept[1:], "s")
    await agent("two", session_id="s")
    other = notes(path)
    said = [each.text for each in await other.recall("s") if each.sender == "user"]
    assert said == ["remember me", "one", "and me", "two"]
    state = other.state_dict("s")
    state["memory"] = state["memory"][2:]
    other.load_state_dict(state, "s")
    await other("three", session_id="s")
    assert await agent.recall("s") == other.memory.messages("s")


async def test_what_is_forgotten_here_stands_in_the_journal(tmp_path):
    """Whenever it is forgotten, also during a call; with agents below, too."""

    class Pair(Agent[Any]):
        def __init__(self) -> None:
            super().__init__(name="notes", journal=str(tmp_path / "notes.db"))
            self.began, self.go = asyncio.Event(), asyncio.Event()
            self.below = Agent(ScriptedBackend(otherwise=self.play), name="below")

        async def play(self, request: Request) -> str:
            self.began.set()
            await self.go.wait()
            return f"{len(request.messages)}"

        async def forward(self, *messages: Any, session_id: Any = 0, **options: Any) -> str:
            return (await self.below(*messages, session_id=session_id)).text

    agent = Pair()
    agent.go.set()
    assert (await agent("one", session_id="s")).text == "1"
    agent.forget("s")
    assert (await agent("two", session_id="s")).text == "3"
    for each in agent.named_agents().values():
        each.forget("s")
    agent.began.clear()
    agent.go.clear()
    call = asyncio.create_task(agent("three", session_id="s"))
    await agent.began.wait()
    agent.forget("s")
    agent.go.set()
    assert (await call).text == "5"
    assert agent.memory.messages("s") == []
    said = [each.text for each in await Pair().recall("s")]
    assert said == ["one", "1", "two", "3", "three", "5"]
    assert [each.text for each in await agent.recall("s")] == said
    agent.forget("s")
    agent.memory.add("mine", session_id="s")
    with pytest.raises(ConfigurationError, match="differs from the journal's"):
        await agent("four", session_id="s")


async def test_a_memory_that_is_not_the_journals_is_refused(tmp_path):
    """Either memory would be lost."""
    path = tmp_path / "notes.db"
    await notes(path)("one", session_id="s")
    agent = notes(path)
    agent.memory.add("mine", session_id="s")
    with pytest.raises(ConfigurationError, match="differs from the journal's"):
        await agent("two", session_id="s")
    agent.forget("s")
    assert len(await agent.recall("s")) == 2
    agent.forget("s")
    assert agent.memory.messages("s") == []
    await agent("two", session_id="s")
    assert len(agent.memory.messages("s")) == 4


async def test_what_a_journal_could_not_keep_is_refused(tmp_path):
    """One clear error for each: a call without a session, reset, an agent in another run."""
    path = tmp_path / "notes.db"
    agent = notes(path)
    with pytest.raises(ConfigurationError, match="Give it session_id="):
        await agent("hello")
    await agent("hello", session_id="s")
    with pytest.raises(ConfigurationError, match="which forgets nothing"):
        agent.reset("s")
    with pytest.raises(ConfigurationError, match="without '/'"):
        await notes(path, name="a/b")("hello", session_id="s")
    with pytest.raises(NotStorable, match="content \\(set\\)"):
        from anabranch.agents import AgentMessage

        await agent(AgentMessage(content={1, 2}), session_id="s")
    with pytest.raises(TypeError, match="journal must be"):
        Agent(journal=3)  # type: ignore[arg-type]

    class Outer(Durable[str]):
        async def task(self) -> str:
            return (await agent("inside", session_id="s")).text

    async with Journal(":memory:") as journal:
        with pytest.raises(ConfigurationError, match="inside a durable run"):
            await journal.run(Outer(), run_id="outer")
    assert len(await agent.recall("s")) == 2


async def test_an_agent_below_that_would_forget_is_refused(tmp_path):
    """One that a tool calls in its own session; without a session it is a part of the call."""
    below = notes(tmp_path / "unused.db", name="below")
    below.journal = None
    sessions: list[Any] = [None, "own"]

    @tool(effect="nested")
    async def send(text: str) -> str:
        """Ask another agent."""
        return (await below("question", session_id=sessions[0])).text

    agent = notes(tmp_path / "notes.db", tools=[send])
    await agent("send it", session_id="s")
    assert "[send gave: answer" in agent.memory.messages("s")[1].text
    del sessions[0]
    await agent("send it", session_id="s")
    assert "would not store" in agent.memory.messages("s")[-2].text


async def test_a_call_that_fails_is_over_and_the_session_goes_on(tmp_path):
    """Its messages are remembered as without a journal, and found again."""
    path = tmp_path / "notes.db"
    agent = notes(path)

    def fail(agent: Any, message: Any, session: Any) -> None:
        if "fail" in message.text:
            raise ValueError("no")

    agent.after_agent(
        lambda agent, message, session: fail(agent, agent.memory.messages(session)[-2], 0)
    )
    await agent("one", session_id="s")
    with pytest.raises(ValueError, match="no"):
        await agent("fail", session_id="s")
    await agent("three", session_id="s")
    assert await notes(path).recall("s") == agent.memory.messages("s")


async def test_a_cancelled_call_is_over_and_one_whose_tree_ends_goes_on(tmp_path):
    """`node.cancel` is final; the end of a process is not."""
    path, gate, begun = tmp_path / "notes.db", asyncio.Event(), asyncio.Event()

    async def wait(agent: Any, message: Any, session: Any) -> None:
        begun.set()
        await gate.wait()

    agent = notes(path)
    agent.before_agent(wait)
    async with Commander() as commander:
        call = commander.call_handler(agent.call("cancel me", session_id="s"))
        await begun.wait()
        call.cancel("not this")
    begun.clear()
    task = asyncio.create_task(agent("cut me", session_id="s"))
    await begun.wait()
    task.cancel()
    await asyncio.wait([task])
    gate.set()
    assert task.cancelled()
    other = notes(path)
    await other("new", session_id="s")
    said = [each.text for each in other.memory.messages("s") if each.sender == "user"]
    assert said == ["cut me", "new"]
    await agent("newer", session_id="s")
    assert agent.memory.messages("s")[:4] == other.memory.messages("s")


PLACES = ["alone", "block", "parent", "handler"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("number", range(example_count(8, 100)))
def test_a_call_whose_caller_goes_away_is_cut_wherever_it_is(place: str, number: int):
    """A closed stream and a cancelled task leave a call that the same message resumes."""
    draw = random.Random(f"{SEED} {number}")
    is_stream, turns = draw.random() < 0.5, draw.choice([0, 1, 3, 5, 8, 13, 20, 30, 40, 60, 90])
    question = draw.choice(["hello", "send"])

    async def go_away(agent: Agent[Any], world: World, journal: Journal) -> None:
        await agent("before", session_id="s")

        async def ask(parent: Commander | None = None) -> None:
            if is_stream or parent is not None:
                async with agent.stream(question, session_id="s", parent=parent) as stream:
                    await stream.answer()
            else:
                await agent(question, session_id="s")

        async def leave(parent: Commander | None = None) -> None:
            task = asyncio.create_task(ask(parent))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])

        @handler
        async def handle(node: Handler[None]) -> None:
            await leave()

        if place == "alone":
            await leave()
        else:
            async with Commander() as commander:
                if place == "handler":
                    await commander.call_handler(handle())
                else:
                    await asyncio.create_task(
                        leave(commander if place == "parent" else None),
                        context=None if place == "block" else Context(),
                    )
        memory = [each.text for each in await agent.recall("s")]
        cut = await agent.find_interrupted("s")
        if question not in memory or cut is not None:
            await agent(question, session_id="s")
        memory = [each.text for each in await agent.recall("s")]
        assert memory.count(question) == 1
        assert memory[-1].startswith("answer")
        assert not any(each.stream_state == "failed" for each in agent.memory.messages("s"))
        assert not world.disk.twice

    live(Disk(), go_away)


async def test_a_call_whose_tree_is_cancelled_is_over(tmp_path):
    """The cancel or the timeout of a node above it is that of the call."""
    begun = asyncio.Event()

    async def wait(agent: Any, message: Any, session: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    agent = notes(tmp_path / "notes.db")
    agent.before_agent(wait)

    @handler
    async def ask(node: Handler[None], is_stream: bool) -> None:
        if is_stream:
            async with agent.stream("x", session_id="s") as stream:
                await stream.answer()
        else:
            await agent("x", session_id="s")

    for is_stream in (False, True):
        async with Commander() as commander:
            begun.clear()
            call = commander.call_handler(ask(is_stream))
            await begun.wait()
            call.cancel("enough")
        assert await agent.find_interrupted("s") is None
        begun.clear()
        async with Commander() as commander:
            call = commander.call_handler(ask(is_stream), timeout=0.01)
            with pytest.raises(TimeoutError):
                await call
        assert await agent.find_interrupted("s") is None


@pytest.mark.parametrize("number", range(example_count(12, 200)))
def test_what_is_remembered_of_a_cancelled_call_is_in_the_journal(number: int):
    """Whenever it is cancelled, in any execution: each reader gets the same."""
    draw = random.Random(f"{SEED} {number}")

    async def ask_and_cancel(agent: Agent[Any], world: World, journal: Journal) -> None:
        async with journal.session(MAILS) as session:
            over = sum(call.is_over for call in session.calls)
        await agent.recall("s")
        async with Commander() as commander:
            for question in QUESTIONS[over:3]:
                call = commander.call_handler(agent.call(question, session_id="s"))
                for _ in range(draw.choice([0, 5, 10, 20, 30, 40, 200])):
                    await asyncio.sleep(0)
                call.cancel("enough")
                await asyncio.wait([asyncio.ensure_future(observe(call))])
        other = world.agent(journal)
        await other.recall("s")
        assert other.memory.save("s") == agent.memory.save("s")

    disk = Disk()
    for _ in range(4):
        live(disk, ask_and_cancel)
        disk = left(disk, draw.randint(0, len(disk.rows[MAILS])), done=draw.random() < 0.5)


def test_the_same_message_after_a_cancel_is_a_new_call_whenever_the_process_dies():
    """Also if it died during the end of the cancelled call."""

    async def cancel(agent: Agent[Any], world: World, journal: Journal) -> None:
        async with Commander() as commander:
            call = commander.call_handler(agent.call("send it", session_id="s"))
            while not world.disk.done:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0)
            call.cancel("enough")
            await asyncio.wait([asyncio.ensure_future(observe(call))])

    async def ask(agent: Agent[Any], world: World, journal: Journal) -> str:
        return (await agent("send it", session_id="s")).text

    first = Disk()
    live(first, cancel)
    kinds = [row.kind for row in first.rows[MAILS]]
    for rows in range(kinds.index("cancelled") + 1, len(kinds) + 1):
        disk = left(first, rows, done=True)
        assert live(disk, ask).startswith("answer to")
        assert [row.kind for row in disk.rows[MAILS]].count("root") == 2, rows


async def test_tools_under_way_come_to_their_end_when_a_call_is_cut(tmp_path):
    """Then nothing is in doubt; else the outcome would be unknown."""
    begun, gate, done = asyncio.Event(), asyncio.Event(), []

    @tool
    async def send(text: str) -> str:
        """Send."""
        begun.set()
        await gate.wait()
        done.append(text)
        return "sent"

    agent = notes(tmp_path / "notes.db", tools=[send])
    call = asyncio.create_task(agent("send it", session_id="s"))
    await begun.wait()
    call.cancel()
    await asyncio.sleep(0)
    gate.set()
    await asyncio.wait([call])
    assert call.cancelled()
    other = notes(tmp_path / "notes.db", tools=[send])
    assert (await other("send it", session_id="s")).text.startswith("answer to 4")
    assert done == ["hi"]


async def test_a_timeout_is_the_end_of_a_call(tmp_path):
    """It is recorded, like every end that comes from the tree."""
    agent = notes(tmp_path / "notes.db")
    agent.before_agent(lambda agent, message, session: asyncio.Event().wait())
    for seconds in (0.0001, 0.01, 0.1):
        async with Commander() as commander:
            with pytest.raises(TimeoutError):
                await commander.run(agent.call("slow", session_id="s"), timeout=seconds)
    other = notes(tmp_path / "notes.db")
    await other("new", session_id="s")
    assert other.memory.messages("s")[0].text == "new"


async def test_a_session_is_listed_shown_forked_cancelled_and_purged(tmp_path):
    """Like every run; `resume` and `take_up` say how to continue it."""
    agent = notes(tmp_path / "notes.db")
    await agent("one", session_id="s")
    await agent("two", session_id="s")
    async with Journal(str(tmp_path / "notes.db")) as journal:
        agent.journal = journal
        (run,) = await journal.runs(prefix="notes/")
        assert (run.run_id, run.state) == ("notes/s", "suspended")
        view = await journal.look("notes/s")
        at = next(row.seq for row in view.rows if row.kind == "over")
        await journal.fork("notes/s", "notes/t", at=at)
        await journal.fork("notes/s", "notes/u")
        await agent("other", session_id="t")
        said = [each.text for each in agent.memory.messages("t")]
        assert (said[0], said[2], len(said)) == ("one", "other", 4)
        assert await agent.recall("u") == await agent.recall("s")
        with pytest.raises(ConfigurationError, match="session of an agent"):
            await journal.take_up("notes/s")
        await journal.resume("notes/s")
        await agent("three", session_id="s")
        await journal.cancel("notes/s", "enough")
        assert (await journal.look("notes/s")).run.state == "cancelled"
        with pytest.raises(JournalError, match="has the session 'notes/s', which is over"):
            await agent("four", session_id="s")
        assert await journal.purge(float("inf")) == 1
        agent.forget("s")
        await agent("anew", session_id="s")
        assert len(agent.memory.messages("s")) == 2


async def test_runs_cancel_ends_a_call_that_is_under_way(tmp_path):
    """Its caller gets the cancel."""
    from anabranch import NodeCancelled

    agent, begun = notes(tmp_path / "notes.db"), asyncio.Event()

    async def wait(agent: Any, message: Any, session: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    agent.before_agent(wait)
    call = asyncio.create_task(agent("hello", session_id="s"))
    await begun.wait()
    async with Journal(str(tmp_path / "notes.db")) as journal:
        await journal.cancel("notes/s", "enough")
        with pytest.raises(NodeCancelled, match="enough"):
            await call
        assert (await journal.look("notes/s")).run.state == "cancelled"


async def test_a_call_that_waits_for_a_person_is_answered_from_elsewhere(tmp_path):
    """Also after the death of its process: the approval is in the journal."""
    sent: list[str] = []

    @tool(approve=True, effect="keyed")
    async def send(text: str) -> str:
        """Send."""
        sent.append(text)
        return "sent"

    path = tmp_path / "notes.db"
    agent = notes(path, tools=[send])
    call = asyncio.create_task(agent("send it", session_id="s"))
    async with Journal(str(path)) as journal:
        while not (waiting := await journal.approvals()):  # noqa: ASYNC110 - of another journal
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
        await waiting[0].approve()
    answer = await notes(path, tools=[send])("send it", session_id="s")
    assert (sent, answer.text[:9]) == (["hi"], "answer to")


async def test_a_call_that_is_cancelled_asks_nobody_any_more(tmp_path):
    """Its question is withdrawn, and the session continues."""

    @tool(approve=True)
    async def send(text: str) -> str:
        """Send."""
        return "sent"

    agent = notes(tmp_path / "notes.db", tools=[send])
    async with Journal(str(tmp_path / "notes.db")) as journal, Commander() as commander:
        call = commander.call_handler(agent.call("send it", session_id="s"))
        while not await journal.approvals():  # noqa: ASYNC110 - of another journal
            await asyncio.sleep(0)
        call.cancel("never mind")
        await asyncio.wait([asyncio.ensure_future(observe(call))])
        assert await journal.approvals() == []
        assert (await agent("hello", session_id="s")).text.startswith("answer to 5")


async def test_parsed_answers_and_step_agents_come_back_as_they_were(tmp_path):
    """The parser runs again, in the first execution too."""
    path = str(tmp_path / "notes.db")

    def make() -> Agent[Any]:
        backend = ScriptedBackend(otherwise=lambda request: '{"city": "Rome"}')
        return Agent(backend, name="geo", output_format=JsonParser(City), journal=path)

    agent = make()
    answer = await agent("where?", session_id="s")
    assert answer.output == City("Rome")
    assert [each.output for each in await make().recall("s")] == [None, City("Rome")]

    def team() -> Sequential:
        backend = ScriptedBackend(otherwise=lambda request: f"{len(request.messages)}")
        step = StepAgent(backend, name="step")
        return Sequential(step, Agent(backend, name="last"), name="both", journal=path)

    await team()("go", session_id=1)
    again = team()
    assert (await again("go on", session_id=1)).text == "3"


async def test_bytes_of_a_session_grow_with_what_is_said(tmp_path):
    """n calls cost O(n) bytes: each text is stored twice at most."""
    backend = ScriptedBackend(otherwise=lambda request: "a" * 1000)
    agent = Agent(backend, name="notes", journal=str(tmp_path / "notes.db"))
    for number in range(20):
        await agent(f"{number}" * 500, session_id="s")
    async with Journal(str(tmp_path / "notes.db")) as journal:
        size = sum(len(row.value) for row in (await journal.look("notes/s")).rows)
    said = sum(len(each.text) for each in agent.memory.messages("s"))
    assert size < 2.2 * said


async def test_a_journal_that_is_left_suspends_the_calls_of_its_sessions(tmp_path):
    """As for runs: a tool in progress ends and is recorded, and the session continues."""
    began, go, sent = asyncio.Event(), asyncio.Event(), list[str]()

    @tool
    async def send(text: str) -> str:
        """Send a mail."""
        began.set()
        await go.wait()
        sent.append(text)
        return "sent"

    def play(request: Request) -> Message | str:
        if request.messages[-1].role == "tool":
            return "done"
        call = ToolCall(id="1", name="send", arguments={"text": "hi"})
        return Message(role="assistant", tool_calls=[call])

    def agent(journal: Journal) -> Agent[Any]:
        return Agent(ScriptedBackend(otherwise=play), name="notes", tools=[send], journal=journal)

    journal = Journal(tmp_path / "notes.db", grace=60)
    async with journal:
        calling = asyncio.create_task(agent(journal)("send it", session_id="s"))
        await began.wait()
        asyncio.get_running_loop().call_soon(go.set)
    await asyncio.wait([calling])
    assert isinstance(calling.exception(), NodeCancelled)
    async with journal:
        (run,) = await journal.runs()
        assert (run.state, sent) == ("suspended", ["hi"])
        answer = await agent(journal)("send it", session_id="s")
    assert (answer.text, sent) == ("done", ["hi"])


async def test_a_session_in_which_nothing_is_done_does_not_hold_its_journal(tmp_path):
    """Its block may be left later, or never."""
    journal = Journal(tmp_path / "notes.db")
    async with asyncio.timeout(20):
        async with journal:
            block = journal.session("notes/s")
            await block.__aenter__()
        await block.__aexit__(None, None, None)


async def test_what_a_session_has_spent_is_read_from_its_journal(tmp_path):
    """Over its lifetime, in any process; an interrupted call counts once."""
    asked = 0

    def play(request: Request) -> Message:
        nonlocal asked
        asked += 1
        usage = Usage(input_tokens=100 + len(request.messages), output_tokens=1)
        if request.messages[-1].content == "wait":
            call = ToolCall(id="1", name="wait", arguments={})
            return Message(role="assistant", content="", tool_calls=[call], usage=usage)
        return Message(role="assistant", content="yes", usage=usage)

    def made(journal: Journal) -> Agent[Any]:
        return Agent(ScriptedBackend(otherwise=play), name="a", tools=[wait], journal=journal)

    @tool(read_only=True)
    async def wait() -> str:
        """Wait, the first time."""
        if not cut.done():
            cut.cancel()
            await asyncio.Event().wait()
        return "waited"

    async with Journal(tmp_path / "runs.db", grace=0) as journal:
        first, second = made(journal), made(journal)
        await first("hello", session_id="s")
        await first("hello", session_id="s")
        await second.recall("s")
        assert second.usage("s") == first.usage("s")
        assert second.usage() == {}
        cut = asyncio.ensure_future(second("wait", session_id="s"))
        with pytest.raises(asyncio.CancelledError):
            await cut
        await second("wait", session_id="s")
        await first.recall("s")
        assert asked == 4
        for each in (first, second):
            (spent,) = each.usage("s").values()
            assert spent.output_tokens == asked


def test_the_first_call_imports_nothing(tmp_path: Path) -> None:
    """An import in a call would block the loop, and log a warning about that."""
    program = """if True:
        import sys
        from anabranch import Agent
        from anabranch.testing import ScriptedBackend

        agent = Agent(ScriptedBackend("hi"), name="n", journal=sys.argv[1])
        before = set(sys.modules)
        agent.run_sync("x", session_id="s")
        print([each for each in sys.modules if each not in before and "anabranch" in each])
    """
    command = [sys.executable, "-c", program, str(tmp_path / "runs.db")]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (found.stdout, found.stderr) == ("[]\n", "")
