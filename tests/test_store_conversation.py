"""Durable conversations: each message is a row, once, and comes back as it was."""

import asyncio
import random
from contextlib import suppress
from typing import Any

import pytest
from _lives import RUN_ID, Disk
from _replays import after, every_life, live
from _scale import SEED, many

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
from anabranch.handlers import respond
from anabranch.messages import Delta, Message, Request, ToolCall, Usage
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
from anabranch.testing import ScriptedBackend, explore, pause
from anabranch.tools import ToolResult


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
    """D17: also what a job has added that does not run again; no reply is asked again."""
    backend = scripted()
    seen = [0]

    def check(first: Any, again: Any, rows: int) -> None:
        known = sum(row.kind == "reply" for row in first.rows[:rows])
        assert len(backend.requests) - seen[-1] == 4 - known
        seen.append(len(backend.requests))
        for kind in ("message", "reply"):
            kept = [[row.value for row in life.rows if row.kind == kind] for life in (first, again)]
            assert kept[0] == kept[1]

    def make() -> Talks:
        seen[-1] = len(backend.requests)
        return Talks(backend)

    first = await every_life(make, check)
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
    """Looks at the conversation whenever somebody else may have added to it."""

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
    """What was added by failed attempts, kept jobs and cancelled nodes."""
    first = await every_life(Looks, lambda first, again, _: _equal_messages(first, again))
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
    """And so it does when the run is taken up in the middle of it, or after it."""
    first = await every_life(
        lambda: Round(0), lambda first, again, _: _equal_messages(first, again)
    )
    assert (first.count("message"), first.count("root")) == (5, 3)


def _equal_messages(first: Any, again: Any) -> None:
    kept = [[row.value for row in life.rows if row.kind == "message"] for life in (first, again)]
    assert kept[0] == kept[1]


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
    """Whatever the order of the next life is: what stood there stands there first."""

    async def main() -> None:
        first = await live(Together())
        rows = random.randint(0, len(first.rows))
        again = await live(Together(), after(first, rows))
        kept = sum(row.kind == "message" for row in first.rows[:rows])
        assert again.result[:kept] == first.result[:kept]
        assert sorted(again.result) == sorted(first.result)
        third = await live(Together(), after(again, len(again.rows) - 2))
        assert third.result == again.result

    explore(main, seeds=range(SEED, SEED + many(200, 3000)))


SAYS = ["first"]


class Changes(Durable[int]):
    async def task(self) -> int:
        talk = self.durable.conversation("talk")
        talk.add(SAYS[0])
        return len(talk)


async def test_other_words_are_refused_and_the_error_says_what_stands_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = await live(Changes())
    monkeypatch.setitem(globals(), "SAYS", ["second"])
    with pytest.raises(JournalMismatch, match=r'"second".*there.*"first"'):
        await live(Changes(), after(first, 1))


async def test_messages_are_not_edited_and_nobody_adds_from_outside() -> None:
    """An edit would be no row, and a message of nobody could not be found again."""
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

    await live(Edits())
    with pytest.raises(NotDurable):
        talks[0].add("c")


async def test_rows_that_were_changed_are_noticed() -> None:
    """Each message names a digest of those before it."""
    first = await live(Talks(scripted()))
    disk = after(first, len(first.rows) - 2)
    rows = disk.rows[RUN_ID]
    place = next(n for n, row in enumerate(rows) if b"please" in row.value)
    rows[place] = rows[place]._replace(value=rows[place].value.replace(b"please", b"never"))
    with pytest.raises(JournalError, match="damaged"):
        await live(Talks(scripted()), disk)


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
    """D17: a message that is a reply refers to the reply's row; the cost of one does not grow."""
    reply = Message(role="assistant", content="x" * 1000, usage=Usage(input_tokens=9000))
    sizes: list[int] = []
    for count in (10, 20, 40):
        life = await live(Long(ScriptedBackend(otherwise=reply, size=None), count))
        sizes.append(sum(len(row.value) + len(row.ident) + 24 for row in life.rows))
        assert sizes[-1] < 1.5 * 2000 * count
    assert sizes[2] - sizes[1] < 2.1 * (sizes[1] - sizes[0])


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
    """Say it again."""
    return text


async def test_no_key_that_a_model_says_is_in_a_message() -> None:
    """D18: nor in what a broken reply has said, or a tool; and each later life adds the same."""
    call = ToolCall(id="1", name="echo", arguments={"text": "sk-secret"})

    def make() -> Tells:
        broken = [Delta(text="half of it: sk-secret"), StreamInterrupted("cut")]
        calls = Message(role="assistant", content="sk-secret", tool_calls=[call])
        return Tells(Leaks("my key is sk-secret", broken, calls, "done"))

    first = await live(make())
    rows = list(first.rows)
    assert first.result == 6
    texts = [row.value.decode() for row in rows if row.kind in ("message", "reply", "broken")]
    assert not any("sk-secret" in text for text in texts)
    result = next(row.seq for row in rows if row.kind == "result")
    again = await live(Tells(Leaks()), after(first, result - 1))
    assert again.result == 6


async def test_results_of_tools_come_back_as_such() -> None:
    """What stands in a conversation that another life has filled is equal, and of its kind."""
    first = await live(Talks(scripted()))
    last = next(n for n, row in enumerate(first.rows) if b"below" in row.value)
    kinds: list[type] = []

    class Applies(Durable[None]):
        async def task(self) -> None:
            talk: Any = self.durable.conversation("talk")
            talk.apply(last)
            kinds.extend(type(message) for message in talk)

    disk = Disk()
    disk.rows[RUN_ID] = first.rows[:last]
    await live(Applies(), disk)
    assert kinds.count(ToolResult) == 2


class Answered(Durable[list[str]]):
    """Lets two answer one conversation, one after the other or at once."""

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
    """In another life the other one could be first, and read what it had not read."""
    first = await every_life(lambda: Answered(False, scripted()), nothing)
    assert len(first.result) == 2
    with pytest.raises(ConfigurationError, match="answered by two at once"):
        await live(Answered(True, scripted()))


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
    """And whoever put them adds what they have thought."""
    await every_life(lambda: Judged(ScriptedBackend(otherwise="Hm.")), nothing)


async def test_it_lasts_in_a_file(tmp_path: Any) -> None:
    """With the real store: a round that is taken up finds what was said."""
    backend = scripted()
    async with Journal(str(tmp_path / "runs.db")) as journal:
        result = await journal.run(Talks(backend), run_id="talk")
    asked = len(backend.requests)
    async with Journal(str(tmp_path / "runs.db")) as journal:
        for rows in (5, 9, 14):
            await journal._file.fork("talk", rows, f"talk {rows}")
            assert await journal.run(Talks(backend), run_id=f"talk {rows}") == result
    assert len(backend.requests) < asked + 3 * 4
