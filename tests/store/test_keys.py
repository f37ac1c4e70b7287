"""D18: the key of a backend is in nothing that is written about a run, by any route."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import random
from collections.abc import Awaitable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from support.killed_executions import Execution, kill_at_random, kill_everywhere, run_execution
from support.memory_journal import RUN_ID, Disk, act, journal_of
from support.seeds import example_count, seeds
from support.waiting import wait_until

from anabranch import Agent, Message, ToolCall, connect, handler, tool
from anabranch.backends import Backend
from anabranch.commander import Node, NodeCancelled
from anabranch.handlers import call_tools
from anabranch.messages import Request
from anabranch.store import Durable, DurableCalls, Journal, Live, NotStorable, live
from anabranch.testing import ScriptedBackend

pytestmark = pytest.mark.contract("D18")

KEY = 'sk-A"b\\c/d8Qw3x7ZpLm9-kJ5vT2'
"""One that JSON writes with escapes."""

BACKEND = connect("http://localhost:9/v1", model="m", api_key=KEY)
FORMS = [
    *(text.encode() for text in (KEY, json.dumps(KEY)[1:-1], json.dumps(json.dumps(KEY))[1:-1])),
    *(base64.b64encode(bytes(n) + KEY.encode())[4:32] for n in range(3)),
    KEY.encode().hex().encode(),
    b"8Qw3x7ZpLm9",
]


class Refused(Exception):
    """A failure with a field."""

    def __init__(self, text: str, header: dict[str, str]) -> None:
        super().__init__(text)
        self.header = header


def fail(text: str = KEY) -> str:
    error = Refused(f"refused: {text}", {"authorization": f"Bearer {text}"})
    error.add_note(f"sent {text}")
    raise error


def give(text: str = KEY) -> list[str]:
    return [f"asked with {text}", json.dumps({"header": text}), text]


def give_bytes() -> bytes:
    return b"\x00\xff header " + KEY.encode() + b"\xfe"


@tool(effect="keyed")
def echo() -> dict[str, str]:
    """Return the argument."""
    return {"header": KEY, KEY: "header"}


@tool(effect="keyed")
def refuse() -> str:
    """Fail with the argument."""
    return fail()


@tool(effect="keyed")
def oddly() -> str:
    """Fail with an error that cannot be stored."""

    class Local(Exception):
        pass

    raise Local(KEY)


@tool(approve=True, effect="keyed")
def ask(text: str) -> str:
    """Ask before."""
    return f"did {text}"


async def tell(task: Awaitable[Any]) -> str:
    """Return the outcome, as a body sees it."""
    try:
        return repr(await task)
    except Exception as error:
        notes = [each for each in getattr(error, "__notes__", []) if "failed in" not in each]
        return f"{type(error).__name__} {error} {vars(error).get('header')} {notes}"


class Child(Durable[dict[str, str]]):
    fails: bool = False

    async def task(self) -> dict[str, str]:
        return {"key": fail() if self.fails else KEY}


@handler
async def plain(node: Node[Any]) -> str:
    told = await tell(DurableCalls(node).step(fail))
    raise ValueError(f"{told} and {KEY}")


async def calls(text: str) -> Any:
    for number, name in enumerate(["echo", "refuse", "oddly"]):
        yield ToolCall(id=f"{number} {text}", name=name, arguments={}, index=number)


class Leaks(Durable[list[str]]):
    ways: list[str]
    backend: Live[Backend] = live()

    async def task(self) -> list[str]:
        return [await tell(getattr(self, way)()) for way in self.ways]

    async def steps(self) -> list[str]:
        told = [await tell(self.durable.step(each, f"1{KEY}")) for each in (give, fail)]
        return [*told, await tell(self.durable.step(give_bytes))]

    async def tools(self) -> list[str]:
        return [await tell(self.durable.call(each)) for each in (echo, refuse, oddly)]

    async def models(self) -> list[str]:
        called = call_tools(calls(KEY), [echo, refuse, oddly])
        return [each.content for each in await self.call_handler(called)]

    async def acts(self) -> str:
        return await tell(act("outside", KEY))

    async def jobs(self) -> list[str]:
        return [
            await tell(self.put_job(Child(fails), key=f"{fails} {KEY}")) for fails in (False, True)
        ]

    async def handlers(self) -> str:
        return await tell(self.call_handler(plain()))

    async def messages(self) -> str:
        talk = self.durable.conversation("talk")
        talk.add(f"Use {KEY}, please.", Message(role="assistant", content=KEY))
        return " ".join(str(each.content) for each in talk)

    async def transactions(self) -> list[Any]:
        async with self.durable.transaction() as tx:
            return await tx.execute("select ?, 1", KEY)

    async def answers(self) -> list[str]:
        return [await tell(self.durable.call(ask, f"{n} {KEY}")) for n in range(3)]

    async def signals(self) -> list[str]:
        return [await tell(self.durable.signal("go", str)) for _ in range(2)]

    async def replies(self) -> str:
        other = ScriptedBackend(f"The key is {KEY}.")
        said = await other.complete(Request([Message(role="user", content=f"Say {KEY}.")]))
        self.durable.conversation("said").add(said)
        called = await self.durable.step(give, said.content)  # from the model, or replayed
        return f"{self.durable.conversation('said').messages[0].content} {called}"


WAYS = [name for name in vars(Leaks) if name.endswith("s") and name.islower() and "_" not in name]
INSIDE = [way for way in WAYS if way not in ("answers", "signals")]


async def answer(journal: Journal) -> None:
    """Play the outside world, which also knows the key."""
    await wait_until(lambda: bool(journal._driven))
    for _ in range(2):
        await journal.signal(RUN_ID, "go", f"go with {KEY}")
    answered: set[int] = set()
    while True:
        for each in await journal.approvals():
            if each.number not in answered:
                answered.add(each.number)
                if "2" in str(each.arguments)[:12]:
                    await each.approve({"text": f"another {KEY}"})
                else:
                    await each.deny(f"not {KEY}")
        await asyncio.sleep(0.1)


def bytes_in(folder: Path) -> bytes:
    """Return all bytes that a journal has written there."""
    every = [each for each in folder.glob("runs.db*") if each.is_file()]
    assert {each.name for each in every} >= {"runs.db", "runs.db-wal"}
    return b"".join(each.read_bytes() for each in every)


def require_none(what: bytes) -> None:
    """Require that they do not contain the key."""
    found = [form for form in FORMS if form in what]
    assert not found, what[max(what.index(found[0]) - 200, 0) :][:400]


def require_none_in(execution: Execution) -> None:
    rows = b"\n".join(row.ident + row.value for row in execution.rows)
    require_none(rows)
    require_none(repr((execution.disk.runs, execution.result, execution.error)).encode())


@pytest.mark.parametrize("way", INSIDE)
def test_what_comes_back_has_no_key_and_is_the_same_in_each_life(way: str) -> None:
    """Each waiter gets the stored value, and after each kill finds it again."""
    first = kill_everywhere(lambda: Leaks([way]), live={"backend": BACKEND}, check=require_none_in)
    require_none_in(first)
    assert first.error is None
    assert "***" in f"{first.result}"


@pytest.mark.parametrize("seed", seeds(example_count(6, 200)))
def test_in_any_order_and_over_several_kills(seed: int) -> None:
    """As above, for random programs."""
    draw = random.Random(seed)
    ways = [draw.choice(INSIDE) for _ in range(draw.randint(2, 5))]
    options: dict[str, Any] = {"live": {"backend": BACKEND}}
    require_none_in(kill_at_random(lambda: Leaks(ways), seed, **options))


async def test_no_byte_of_the_file_has_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither the database nor its WAL, whatever this process sends to the run."""
    caplog.set_level(logging.DEBUG, "anabranch.store")
    async with Journal(tmp_path / "runs.db") as journal:
        beside = asyncio.create_task(answer(journal))
        gave = await journal.run(Leaks(WAYS), run_id=RUN_ID, live={"backend": BACKEND})
        beside.cancel()
        await asyncio.wait([beside])
        with pytest.raises(Refused) as failed:
            await journal.run(Child(True), run_id="fails", live={"backend": BACKEND})
        waits = asyncio.create_task(
            journal.run(Leaks(["signals"]), run_id="waits", live={"backend": BACKEND})
        )
        await wait_until(lambda: any(kept._execution.run_id == "waits" for kept in journal._driven))
        await journal.cancel("waits", f"because of {KEY}")
        with pytest.raises(NodeCancelled) as cancelled:
            await waits
        require_none(bytes_in(tmp_path))
    said = [each.getMessage() for each in caplog.records if each.name == "anabranch.store"]
    for told in (gave, failed.value.args, failed.value.header, cancelled.value, said):
        require_none(f"{told}".encode())
    assert f"{gave}".count("***") > 20


class Round(Durable[None]):
    header: str
    backend: Live[Backend] = live()

    async def task(self) -> None:
        if not self.header:
            self.put_job(Round(f"Bearer {KEY}"), parent=self.commander)


async def test_inputs_with_a_key_are_refused() -> None:
    """Inputs identify the run, so no part of them can be removed: it does not begin."""
    async with Journal(":memory:") as journal:
        with pytest.raises(NotStorable, match=r"Round\.header contains the key of a backend"):
            await journal.run(Round(KEY), run_id="r", live={"backend": BACKEND})
        with pytest.raises(NotStorable, match=r"Live\[\.\.\.\]"):
            await journal.start(Round(f"Bearer {KEY}", BACKEND), run_id="r")
        assert await journal.runs() == []


def test_so_are_those_of_a_round() -> None:
    """The put raises it, in each execution, and no row of the round is written."""
    first = kill_everywhere(lambda: Round(""), live={"backend": BACKEND}, check=require_none_in)
    assert isinstance(first.error, NotStorable)
    assert not any(row.kind == "root" for row in first.rows)


class Identity(Durable[UUID]):
    backend: Live[Backend] = live()

    async def task(self) -> UUID:
        return UUID("0c9d1b7e-5a34-4f62-8e1d-93b6a7c2d4f8")


def test_a_result_that_is_nothing_without_the_key_is_refused() -> None:
    """It fails at once, and not only when a later execution cannot decode it."""
    backend = connect(
        "http://localhost:9/v1", model="m", api_key="0c9d1b7e5a344f628e1d93b6a7c2d4f8"
    )
    first = kill_everywhere(Identity, live={"backend": backend})
    assert isinstance(first.error, NotStorable)
    assert not any(b"0c9d1b7e" in row.value for row in first.rows)


def test_what_another_process_sends_is_cut_where_it_is_taken() -> None:
    """The sender knows no backend; the run gets the letter without the key, in each execution."""
    disk = Disk()

    async def send(_: Journal) -> None:
        elsewhere = journal_of(disk)
        await wait_until(lambda: RUN_ID in disk.runs)
        for _ in range(2):
            await elsewhere.signal(RUN_ID, "go", f"go with {KEY}")

    execution = run_execution(
        lambda: Leaks(["signals"]), disk, live={"backend": BACKEND}, beside=send
    )
    assert execution.result == ["[\"'go with ***'\", \"'go with ***'\"]"]
    require_none_in(execution)


class Client:
    """An object of the user with a key."""

    def redact(self, text: str) -> str:
        return text.replace("word-of-mine", "---")


class Own(Durable[str]):
    client: Live[Client] = live()

    async def task(self) -> str:
        return "the word-of-mine, and nothing else"


class Image:
    """An object whose `redact` does something else."""

    def redact(self, left: int, right: int) -> None:
        raise NotImplementedError


class Shows(Durable[str]):
    image: Live[Image] = live()
    bytes_of: Live[type[Image]] = live()

    async def task(self) -> str:
        return "shown"


def test_what_is_live_and_means_something_else_by_redact_is_let_be() -> None:
    """Also a class that has such a method."""
    assert run_execution(lambda: Shows(Image(), Image)).result == "shown"


def test_whatever_is_live_and_redacts_has_a_say() -> None:
    """An object in a `Live` field whose class has `redact(text)` is used like a backend."""
    assert run_execution(lambda: Own(Client())).result == "the ---, and nothing else"


def test_a_backend_is_known_once_it_is_asked() -> None:
    """Also one that the body creates, and that is in no field."""

    class Made(ScriptedBackend):
        def redact(self, text: str) -> str:
            return BACKEND.redact(text)

    class Asks(Durable[list[str]]):
        async def task(self) -> list[str]:
            await Made("hello").complete(Request([Message(role="user", content=KEY)]))
            return await self.durable.step(give)

    assert kill_everywhere(Asks, check=require_none_in).result[0] == "asked with ***"


class Script(ScriptedBackend):
    def redact(self, text: str) -> str:
        return BACKEND.redact(text)


async def test_a_session_of_an_agent_has_none(tmp_path: Path) -> None:
    """Neither in its messages, nor its tools' results, nor its answer; a call resumes."""
    calls: list[str] = []

    @tool(effect="keyed")
    async def look(word: str) -> str:
        """Look."""
        calls.append(word)
        if len(calls) == 1:
            cut.cancel()
            await asyncio.sleep(60)
        return f"found {KEY}"

    def speak(request: Request) -> Message | str:
        if request.messages[-1].role == "user":
            said = [ToolCall(id="1", name="look", arguments={"word": "a"})]
            return Message(role="assistant", content=f"with {KEY}", tool_calls=said)
        return f"It is {KEY}."

    def agent() -> Agent[str]:
        return Agent(Script(otherwise=speak), name="ann", tools=[look], journal=journal)

    async with Journal(tmp_path / "runs.db", grace=0) as journal:
        cut = asyncio.ensure_future(agent()(f"Use {KEY}.", session_id="s"))
        with pytest.raises(asyncio.CancelledError):
            await cut
        second = agent()
        await second(f"Use {KEY}.", session_id="s")
        assert calls == ["a", "a"]
        require_none(bytes_in(tmp_path))
        third = agent()
        await third.recall("s")
        require_none(f"{third.state_dict('s')}".encode())
        assert len(second.state_dict("s")["memory"]) == len(third.state_dict("s")["memory"])
