"""Durable conversations: each message is one row, and is read back unchanged."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from support.killed_executions import disk_after, execute_in_loop, resume_after_every_row
from support.memory_journal import RUN_ID, Disk
from support.seeds import SEED, example_count

from anabranch import (
    ConfigurationError,
    Conversation,
    Node,
    NodeCancelled,
    Retry,
    StreamInterrupted,
    handler,
    tool,
)
from anabranch.backends import Backend
from anabranch.commander.durable import scope_here
from anabranch.handlers import call_tools, respond
from anabranch.messages import Delta, Message, Request, ToolCall, Usage
from anabranch.messages.compact_json import write_json
from anabranch.store import (
    Durable,
    Journal,
    JournalError,
    JournalMismatch,
    Live,
    NotDurable,
    NotStorable,
)
from anabranch.store import live as later
from anabranch.testing import ScriptedBackend, explore, pause, run_seeded
from anabranch.tools import ToolResult

pytestmark = pytest.mark.contract("D17")


def said(talk: Any) -> list[str]:
    return [message.model_dump_json() for message in talk]


@tool(read_only=True)
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def answers(request: Request) -> Message | str:
    """Call a tool for the user, then answer."""
    if request.messages[-1].role == "tool":
        return f"It is {request.messages[-1].content}."
    call = ToolCall(id="1", name="add", arguments={"a": 1, "b": len(request.messages)})
    usage = Usage(input_tokens=len(request.messages))
    return Message(role="assistant", content="I add.", tool_calls=[call], usage=usage)


def scripted() -> ScriptedBackend:
    return ScriptedBackend(otherwise=answers)


class Talks(Durable[list[str]]):
    backend: Live[Backend] = later()

    async def task(self) -> list[str]:
        talk = self.durable.conversation("talk", "Be short.")
        assert talk is self.durable.conversation("talk")
        for number in range(2):
            talk.add(f"Question {number}, with é and 😀", {"role": "user", "content": "please"})
            await respond(self.backend, talk, [add])
        await self.put_job(Adds("below"))
        talk.messages.append(Message(role="user", content="done"))
        talk.messages += [Message(role="assistant", content="", reasoning="hm")]
        return said(talk)


class Adds(Durable[int]):
    text: str

    async def task(self) -> int:
        talk = self.durable.conversation("talk")
        talk.add(self.text)
        return len(talk)


async def test_it_comes_back_byte_for_byte_after_every_kill() -> None:
    """D17: also messages of a job that does not run again; no reply is requested again."""
    backend = scripted()
    seen = [0]

    def check(first: Any, again: Any, rows: int) -> None:
        known = sum(row.kind == "reply" for row in first.rows[:rows])
        assert len(backend.requests) - seen[-1] == 4 - known
        seen.append(len(backend.requests))
        for kind in ("message", "reply"):
            kept = [
                [row.value for row in execution.rows if row.kind == kind]
                for execution in (first, again)
            ]
            assert kept[0] == kept[1]

    def make() -> Talks:
        seen[-1] = len(backend.requests)
        return Talks(backend)

    first = await resume_after_every_row(make, check)
    assert first.count("message") == len(first.result) == 14


@handler
async def tries(node: Node[Any], talk: Conversation) -> None:
    if not len(talk):
        talk.add("try")
        raise ValueError("again")


@handler
async def hangs(node: Node[Any], talk: Conversation) -> None:
    talk.add("begun")
    await asyncio.Event().wait()


class Looks(Durable[list[int]]):
    """Reads the conversation whenever another node may have added to it."""

    async def task(self) -> list[int]:
        talk = self.durable.conversation("talk")
        await self.call_handler(tries(talk), retry=Retry(attempts=2, on=ValueError, backoff=0))
        seen = [len(talk)]
        seen.append(await self.put_job(Adds("below")))
        seen.append(len(talk))
        node = self.call_handler(hangs(talk))
        for _ in range(20):
            await asyncio.sleep(0)
        node.cancel("enough")
        with suppress(NodeCancelled):
            await node
        return [*seen, len(talk)]


async def test_what_is_not_done_again_stands_there_before_anybody_looks() -> None:
    """The messages of failed attempts, completed jobs and cancelled nodes."""
    first = await resume_after_every_row(
        Looks, lambda first, again, _: _equal_messages(first, again)
    )
    assert first.result == [1, 2, 2, 3]


class Round(Durable[int]):
    number: int

    def __post_init__(self) -> None:
        self.at_end(self.go_on)

    def go_on(self, _: Any) -> None:
        if self.number < 3:
            self.put_job(Round(self.number + 1), parent=self.commander)

    async def task(self) -> int:
        talk = self.durable.conversation("talk", "Be short.")
        assert said(talk)[1:] == [
            Message(role="user", content=f"round {n}").model_dump_json() for n in range(self.number)
        ]
        talk.add(f"round {self.number}")
        await asyncio.sleep(0)
        return len(talk)


async def test_a_round_begins_with_what_stood_when_it_first_began() -> None:
    """Also if the run is resumed in the middle of the round, or after it."""
    first = await resume_after_every_row(
        lambda: Round(0), lambda first, again, _: _equal_messages(first, again)
    )
    assert (first.count("message"), first.count("root")) == (5, 3)


def _equal_messages(first: Any, again: Any) -> None:
    kept = [
        [row.value for row in execution.rows if row.kind == "message"]
        for execution in (first, again)
    ]
    assert kept[0] == kept[1]


# A node of a random tree: how it ends, the words that it adds, and the nodes that it puts.
Plan = tuple[str, list[Any]]


def draw_plan(rng: random.Random, depth: int) -> Plan:
    ends = rng.choice(["plain", "plain", "kept", "kept", "retried", "cancelled", "late"])
    words = [f"{rng.randrange(1000)}" for _ in range(rng.randrange(3))]
    below = [draw_plan(rng, depth - 1) for _ in range(rng.randrange(3 if depth else 1))]
    does = [*words, *below, *below[:1]]
    rng.shuffle(does)
    return ends, does


async def follow(node: Any, talk: Conversation, does: list[Any]) -> None:
    """Follow a plan; each word has the number of messages before it in the first execution."""
    for number, each in enumerate(does):
        if isinstance(each, str):
            talk.add(f"{each} after {len(talk)}")
            continue
        ends, below = each
        if ends == "kept":
            await node.put_job(Follows(below, str(number)))
            continue
        asked: dict[str, Any] = {"key": str(number), "claim": True}
        if ends == "retried":
            asked |= {"retry": Retry(attempts=2, on=KeyError, backoff=0)}
        if ends == "late":
            asked |= {"timeout": 5}
        called = node.call_handler(follows(talk, ends, below), **asked)
        with suppress(NodeCancelled, TimeoutError):
            await called
        talk.add(f"{ends} after {len(talk)}")


@handler
async def follows(node: Any, talk: Conversation, ends: str, does: list[Any]) -> None:
    await follow(node, talk, does)
    if ends == "retried" and scope_here().attempt == 1:  # type: ignore[union-attr]
        raise KeyError(ends)
    if ends == "cancelled":
        node.cancel("enough")
    if ends in ("cancelled", "late"):
        await asyncio.Event().wait()


class Follows(Durable[int]):
    does: list[Any]
    place: str = ""

    async def task(self) -> int:
        talk = self.durable.conversation("talk")
        await follow(self, talk, self.does)
        return len(talk)


class FollowsAll(Durable[list[str]]):
    does: list[Any]

    async def task(self) -> list[str]:
        talk = self.durable.conversation("talk")
        await follow(self, talk, self.does)
        return said(talk)


def as_before(rows: list[Any]) -> list[Any]:
    """Return the rows as earlier versions wrote them: with all nodes above a message."""
    above: dict[str, str] = {}
    written: list[Any] = []
    for row in rows:
        if row.kind == "message" and "by" in (value := json.loads(row.value)):
            tags = [value["by"][at : at + 16] for at in range(0, len(value["by"]), 16)]
            above |= dict(pairwise(tags))
            while parent := above.get(tags[-1]):
                tags.append(parent)
            del value["by"]
            value["above"] = "".join(tag[:8] for tag in tags)
            row = row._replace(value=write_json(value).encode())
        written.append(row)
    return written


def test_a_tree_that_adds_sees_at_each_place_what_stood_there_first() -> None:
    """Whatever runs again, and whichever version wrote the rows."""

    async def main() -> None:
        rng = random.Random(random.random())
        does = draw_plan(rng, 4)[1] + draw_plan(rng, 4)[1]
        first = await execute_in_loop(FollowsAll(does))
        for number in sorted(rng.sample(range(len(first.rows)), min(len(first.rows), 6))):
            disk = disk_after(first, number)
            if rng.random() < 0.5:
                disk.rows[RUN_ID] = as_before(disk.rows[RUN_ID])
            again = await execute_in_loop(FollowsAll(does), disk)
            assert again.result == first.result
            disk = disk_after(again, rng.randint(number, len(again.rows) - 1))
            assert (await execute_in_loop(FollowsAll(does), disk)).result == first.result

    explore(main, seeds=range(SEED, SEED + example_count(12, 1000)))


@handler
async def adds_late(node: Node[Any], talk: Conversation) -> None:
    await asyncio.sleep(0.5)
    talk.add(f"late after {len(talk)}")
    await asyncio.Event().wait()


class FailsLater(Durable[None]):
    async def task(self) -> None:
        await asyncio.sleep(1)
        raise KeyError("too early")


@handler
async def cut_short(node: Node[Any], talk: Conversation, how: str) -> None:
    late = node.call_handler(adds_late(talk), claim=True)
    if how == "cancel":
        await node.put_job(Pauses())
        late.cancel("enough")
        talk.add(f"cancelled after {len(talk)}")
        with suppress(NodeCancelled):
            await late
    else:
        await node.put_job(FailsLater())


class Pauses(Durable[None]):
    async def task(self) -> None:
        await asyncio.sleep(1)


class CutShort(Durable[list[str]]):
    how: str

    async def task(self) -> list[str]:
        talk = self.durable.conversation("talk")
        retry = Retry(attempts=2, on=KeyError, backoff=0) if self.how == "retry" else None
        with suppress(KeyError):
            await self.call_handler(cut_short(talk, self.how), claim=True, retry=retry)
        talk.add(f"end after {len(talk)}")
        return said(talk)


@pytest.mark.parametrize("how", ["failure", "retry", "cancel"])
def test_what_cuts_a_body_short_comes_before_it_adds_its_messages_again(how: str) -> None:
    """A recorded end comes at once in a later execution; the code after it reads the same."""

    async def main() -> None:
        await resume_after_every_row(
            lambda: CutShort(how), lambda first, again, _: _equal_messages(first, again)
        )

    run_seeded(main, None)


@handler
async def adds(node: Node[Any], talk: Conversation, name: str) -> None:
    for number in range(3):
        await pause()
        talk.add(f"{name} {number}")


class Together(Durable[list[str]]):
    async def task(self) -> list[str]:
        talk = self.durable.conversation("talk")
        for node in [self.call_handler(adds(talk, name)) for name in "abc"]:
            await node
        return said(talk)


def test_who_adds_at_once_finds_the_recorded_order() -> None:
    """In any order of the next execution, the recorded messages come first."""

    async def main() -> None:
        first = await execute_in_loop(Together())
        rows = random.randint(0, len(first.rows))
        again = await execute_in_loop(Together(), disk_after(first, rows))
        kept = sum(row.kind == "message" for row in first.rows[:rows])
        assert again.result[:kept] == first.result[:kept]
        assert sorted(again.result) == sorted(first.result)
        third = await execute_in_loop(Together(), disk_after(again, len(again.rows) - 2))
        assert third.result == again.result

    explore(main, seeds=range(SEED, SEED + example_count(200, 3000)))


SAYS = ["first"]


class Changes(Durable[int]):
    async def task(self) -> int:
        talk = self.durable.conversation("talk")
        talk.add(SAYS[0])
        return len(talk)


async def test_other_words_are_refused_and_the_error_says_what_stands_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = await execute_in_loop(Changes())
    monkeypatch.setitem(globals(), "SAYS", ["second"])
    with pytest.raises(JournalMismatch, match=r'"second".*instead of.*"first"'):
        await execute_in_loop(Changes(), disk_after(first, 1))


async def test_messages_are_not_edited_and_nobody_adds_from_outside() -> None:
    """An edit would lack a row, and a message without a node could not be found again."""
    talks: list[Conversation] = []

    class Edits(Durable[None]):
        async def task(self) -> None:
            talk = self.durable.conversation("talk")
            talk.add("a", "b")
            messages: Any = talk.messages
            edits = [
                lambda: messages.__delitem__(0),
                lambda: messages.__setitem__(0, messages[1]),
                lambda: messages.insert(0, messages[1]),
                messages.pop,
                messages.clear,
                messages.reverse,
                lambda: messages.sort(key=str),
                lambda: messages.remove(messages[0]),
                lambda: setattr(talk, "messages", [messages[1]]),
            ]
            for edit in edits:
                with pytest.raises(NotStorable, match="add"):
                    edit()
            assert [message.content for message in talk] == ["a", "b"]
            talks.append(talk)

    await execute_in_loop(Edits())
    with pytest.raises(NotDurable):
        talks[0].add("c")


async def test_rows_that_were_changed_are_noticed() -> None:
    """Each message has a digest of all messages before it."""
    first = await execute_in_loop(Talks(scripted()))
    disk = disk_after(first, len(first.rows) - 2)
    rows = disk.rows[RUN_ID]
    place = next(n for n, row in enumerate(rows) if b"please" in row.value)
    rows[place] = rows[place]._replace(value=rows[place].value.replace(b"please", b"never"))
    with pytest.raises(JournalError, match="damaged"):
        await execute_in_loop(Talks(scripted()), disk)


class Long(Durable[int]):
    backend: Live[Backend] = later()
    count: int = 0

    async def task(self) -> int:
        talk = self.durable.conversation("talk")
        for number in range(self.count):
            talk.add(f"{number:04}" + "ü" * 498)
            await respond(self.backend, talk)
        return len(talk)


async def test_a_conversation_costs_little_more_than_its_text() -> None:
    """D17: the message of a reply refers to the reply's row; the cost of a message is constant."""
    reply = Message(role="assistant", content="x" * 1000, usage=Usage(input_tokens=9000))
    sizes: list[int] = []
    for count in (10, 20, 40):
        execution = await execute_in_loop(Long(ScriptedBackend(otherwise=reply, size=None), count))
        sizes.append(sum(len(row.value) + len(row.ident) + 24 for row in execution.rows))
        assert sizes[-1] < 1.5 * 2000 * count
    assert sizes[2] - sizes[1] < 2.1 * (sizes[1] - sizes[0])


class LongTurn(Durable[int]):
    """One turn with many calls of a tool, each below the one before."""

    calls: int
    backend: Live[Backend | None] = later()

    async def task(self) -> int:
        talk = self.durable.conversation("talk")
        talk.add("Go.")
        if self.backend is None:
            await self.call_handler(looks(talk, self.calls))
        else:
            await respond(self.backend, talk, [look], max_rounds=self.calls + 1)
        return len(talk)


@tool(effect="keyed")
async def look(n: int) -> str:
    """Look."""
    return f"{n:04}" + "y" * 996


async def calls(*numbers: int) -> AsyncIterator[ToolCall]:
    for n in numbers:
        yield ToolCall(id=f"{n}", name="look", arguments={"n": n})


@handler
async def looks(node: Node[Any], talk: Conversation, left: int) -> None:
    """Do the same as `respond`, without recording requests, which have all messages."""
    talk.add(*await call_tools(calls(left), [look]))
    if left > 1:
        await node.call_handler(looks(talk, left - 1))


def looks_again(count: int) -> ScriptedBackend:
    """Play a model that calls a tool this many times, one after the other."""

    def reply(request: Request) -> Message:
        n = len(request.messages) // 2
        call = ToolCall(id=f"{n}", name="look", arguments={"n": n}, raw=f'{{"n": {n}}}')
        text, usage = f"{n:04}" + "x" * 996, Usage(input_tokens=n)
        left = [call] if n < count else []
        return Message(role="assistant", content=text, tool_calls=left, usage=usage)

    return ScriptedBackend(otherwise=reply, size=None)


async def test_a_long_turn_costs_little_more_than_its_text() -> None:
    """D17: rows of a call have the same size at any depth; each text is stored once."""
    sizes: dict[int, int] = {}
    for count in (30, 90):
        execution = await execute_in_loop(LongTurn(count, looks_again(count)))
        sizes[count] = sum(len(row.value) + len(row.ident) + 24 for row in execution.rows)
        assert sizes[count] < 1.5 * 2000 * count
        said = [row.value for row in execution.rows if row.kind == "message"]
        assert sum(map(len, said)) < 0.2 * 2000 * count
    assert sizes[90] < 3.05 * sizes[30]


@pytest.mark.parametrize("count", [300, pytest.param(5000, marks=pytest.mark.long)])
async def test_a_deep_turn_costs_little_more_than_its_text(count: int) -> None:
    """D17: and an execution that resumes it adds nothing twice."""
    execution = await execute_in_loop(LongTurn(count, None))
    said = [row.value for row in execution.rows if row.kind == "message"]
    assert sum(map(len, said)) < 0.2 * 1000 * count
    assert sum(len(row.value) + len(row.ident) + 24 for row in execution.rows) < 1.5 * 1000 * count
    again = await execute_in_loop(
        LongTurn(count, None), disk_after(execution, len(execution.rows) // 2)
    )
    assert [row.value for row in again.rows if row.kind == "message"] == said


class Leaks(ScriptedBackend):
    """Says its key."""

    def redact(self, text: str) -> str:
        return text.replace("sk-secret", "***")


class Tells(Durable[int]):
    backend: Live[ScriptedBackend] = later()

    async def task(self) -> int:
        talk = self.durable.conversation("talk")
        talk.add("go")
        for _ in range(3):
            with suppress(StreamInterrupted):
                await self.call_handler(respond(self.backend, talk, [echo]))
        return len(talk)


@tool(read_only=True)
async def echo(text: str) -> str:
    """Return the text."""
    return text


async def test_no_key_that_a_model_says_is_in_a_message() -> None:
    """D18: nor in a broken reply or a result; each later execution adds the same message."""
    call = ToolCall(id="1", name="echo", arguments={"text": "sk-secret"})

    def make() -> Tells:
        broken = [Delta(text="half of it: sk-secret"), StreamInterrupted("cut")]
        calls = Message(role="assistant", content="sk-secret", tool_calls=[call])
        return Tells(Leaks("my key is sk-secret", broken, calls, "done"))

    first = await execute_in_loop(make())
    rows = list(first.rows)
    assert first.result == 6
    texts = [row.value.decode() for row in rows if row.kind in ("message", "reply", "broken")]
    assert not any("sk-secret" in text for text in texts)
    result = next(row.seq for row in rows if row.kind == "result")
    again = await execute_in_loop(Tells(Leaks()), disk_after(first, result - 1))
    assert again.result == 6


async def test_results_of_tools_come_back_as_such() -> None:
    """The result in a conversation that another execution filled is equal and of the same class."""
    first = await execute_in_loop(Talks(scripted()))
    last = next(n for n, row in enumerate(first.rows) if b"below" in row.value)
    kinds: list[type] = []

    class Applies(Durable[None]):
        async def task(self) -> None:
            talk: Any = self.durable.conversation("talk")
            talk.apply(last)
            kinds.extend(type(message) for message in talk)

    disk = Disk()
    disk.rows[RUN_ID] = first.rows[:last]
    await execute_in_loop(Applies(), disk)
    assert kinds.count(ToolResult) == 2


class Answered(Durable[list[str]]):
    """Lets two nodes answer one conversation, one after the other or at once."""

    at_once: bool
    backend: Live[Backend] = later()

    async def task(self) -> list[str]:
        talk = self.durable.conversation("talk")
        talk.add("Go.")
        calls: list[Any] = []
        for name in "ab":
            call = respond(self.backend, talk, [add])
            calls.append(self.call_handler(call, claim=True, key=name))
            if not self.at_once:
                await calls[-1]
        return [(await each).content for each in calls]


def nothing(*_: object) -> None: ...


async def test_two_that_answer_at_once_are_refused() -> None:
    """In another execution the other one could be first, and read another conversation."""
    first = await resume_after_every_row(lambda: Answered(False, scripted()), nothing)
    assert len(first.result) == 2
    with pytest.raises(ConfigurationError, match="two nodes answer"):
        await execute_in_loop(Answered(True, scripted()))


@handler
async def think(node: Node[Any], backend: Backend, talk: Conversation) -> str:
    return f"{(await backend.complete(talk.request())).content}"


class Judged(Durable[list[str]]):
    backend: Live[Backend] = later()

    async def task(self) -> list[str]:
        talk = self.durable.conversation("talk")
        talk.add("Go.")
        judges = [self.call_handler(think(self.backend, talk), key=name) for name in "abc"]
        thoughts = [await each for each in judges]
        talk.add(*thoughts)
        await self.call_handler(respond(self.backend, talk))
        return thoughts


async def test_any_number_may_read_a_conversation_at_once() -> None:
    """And the node that put them adds their results."""
    await resume_after_every_row(lambda: Judged(ScriptedBackend(otherwise="Hm.")), nothing)


async def test_it_lasts_in_a_file(tmp_path: Any) -> None:
    """With the real store: a resumed round finds the earlier messages."""
    backend = scripted()
    async with Journal(str(tmp_path / "runs.db")) as journal:
        result = await journal.run(Talks(backend), run_id="talk")
    asked = len(backend.requests)
    async with Journal(str(tmp_path / "runs.db")) as journal:
        for rows in (5, 9, 14):
            await journal._file.fork("talk", rows, f"talk {rows}")
            assert await journal.run(Talks(backend), run_id=f"talk {rows}") == result
    assert len(backend.requests) < asked + 3 * 4
