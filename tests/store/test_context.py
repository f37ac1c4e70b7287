"""The context of a durable run is passed again, and not stored."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch import (
    Agent,
    Context,
    ContextError,
    Job,
    current_context,
    run,
    settle,
    tool,
)
from anabranch.messages import Message, Request, ToolCall
from anabranch.store import Durable, Journal
from anabranch.testing import ScriptedBackend

pytestmark = pytest.mark.contract("D20")

calls: list[str] = []


@pytest.fixture(autouse=True)
def no_calls() -> None:
    calls.clear()


@dataclass
class User:
    name: str
    token: str = ""


@tool
def pay(amount: int, ctx: Context[User]) -> str:
    calls.append(f"{ctx.value.name} pays {amount}")
    return calls[-1]


@tool
def greet() -> str:
    calls.append("greet")
    return "hello"


@tool
def read_inside() -> str:
    calls.append("inside")
    return current_context(User).value.name


class Buy(Durable[list[str]]):
    async def task(self) -> list[str]:
        return [await self.durable.call(greet), await self.durable.call(pay, 3)]  # type: ignore


class Child(Durable[str]):
    async def task(self) -> str:
        return current_context(User).value.name


class Parent(Durable[str]):
    async def task(self) -> str:
        greeting = await self.durable.call(greet)
        return f"{greeting} {await Child()}"


class Inside(Durable[str]):
    async def task(self) -> str:
        return await self.durable.call(read_inside)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def stored(path: Path) -> bytes:
    return b"".join(each.read_bytes() for each in path.parent.glob("runs.db*") if each.is_file())


def test_a_run_gets_its_context_and_does_not_store_it(path: Path):
    expected = ["hello", "ada pays 3"]
    assert run(Buy(), journal=path, run_id="r", context=User("ada", "token-4711")) == expected
    assert run(Buy(), journal=path, run_id="r") == expected  # the recorded result
    assert len(calls) == 2
    assert b"4711" not in stored(path)


@pytest.mark.parametrize(
    ("job", "expected", "expected_calls"),
    [
        (Buy, ["hello", "ada pays 3"], ["greet", "ada pays 3"]),
        (Parent, "hello ada", ["greet"]),
        (Inside, "ada", ["inside", "inside"]),
    ],
)
def test_a_run_without_its_context_stops_and_can_be_resumed(
    path: Path, job: Any, expected: Any, expected_calls: list[str]
):
    for _ in range(2):
        with pytest.raises(ContextError, match="no context was given"):
            run(job(), journal=path, run_id="r")
    expected_calls = expected_calls if job is not Inside else ["inside"] * 3
    assert run(job(), journal=path, run_id="r", context=User("ada")) == expected
    assert calls == expected_calls


async def test_a_journal_takes_a_context(path: Path):
    async with Journal(path) as journal:
        with pytest.raises(ContextError):
            await journal.run(Buy(), run_id="r")
        assert (await journal.look("r")).run.state == "suspended"
        assert await journal.take_up("r", context=User("ada")) == ["hello", "ada pays 3"]
        assert (await journal.run(Buy(), run_id="q", context=User("eve")))[1] == "eve pays 3"
        with pytest.raises(ContextError):
            current_context()


async def test_a_call_may_pass_a_context_of_its_own(path: Path):
    async with Journal(path) as journal:

        class Other(Durable[str]):
            async def task(self) -> str:
                return await self.durable.call(pay, 3, Context(User("own", "token-4711")))

        assert await journal.run(Other(), run_id="r", context=User("ada")) == "own pays 3"
    assert b"token-4711" not in stored(path)


# --- several readers at the same time, and code that handles their errors


@tool
def declares(ctx: Context[User]) -> str:
    return ctx.value.name


@tool
async def reads() -> str:
    await asyncio.sleep(0)
    return current_context(User).value.name


@tool
def reads_in_thread() -> str:
    return current_context(User).value.name


@tool
async def needs_none() -> str:
    for _ in range(20):
        await asyncio.sleep(0)
    return "ada"


TOOLS = {each.name: each for each in (declares, reads, reads_in_thread, needs_none)}


def use_tool(request: Request) -> Message | str:
    last = request.messages[-1]
    if last.role == "tool":
        return last.content or ""
    calls = [
        ToolCall(id=str(place), name=name, arguments={})
        for place, name in enumerate((last.content or "").split())
    ]
    return Message(role="assistant", tool_calls=calls)


clerk = Agent(ScriptedBackend(otherwise=use_tool), tools=[*TOOLS.values()], name="clerk")


class AskClerk(Durable[str]):
    names: str

    async def task(self) -> str:
        return (await clerk(self.names)).text.split("\n")[0]


class ReadPlain(Job[str]):
    names: str

    async def task(self) -> str:
        return current_context(User).value.name


async def ask_clerk(names: str) -> str:
    return (await clerk(names)).text.split("\n")[0]


MAKERS: dict[str, Any] = {"agent": ask_clerk, "durable": AskClerk, "plain": ReadPlain}


class Desk(Durable[list[str]]):
    shape: str
    kind: str
    questions: list[str]

    async def task(self) -> list[str]:
        made = (MAKERS[self.kind](each) for each in self.questions)
        found: Sequence[Any] = ()
        match self.shape:
            case "settle":
                found = await settle(*made)
            case "gather":
                found = await asyncio.gather(*map(asyncio.ensure_future, made))
            case "return":
                futures = map(asyncio.ensure_future, made)
                found = await asyncio.gather(*futures, return_exceptions=True)
            case _:
                found = [await _catch(each) for each in made]
        return [each if isinstance(each, str) else "failed" for each in found]


async def _catch(each: Any) -> object:
    try:
        return await each
    except Exception as error:
        return error


@given(
    shape=st.sampled_from(["settle", "gather", "return", "catch"]),
    kind=st.sampled_from([*MAKERS]),
    questions=st.lists(
        st.lists(st.sampled_from([*TOOLS]), min_size=1, max_size=2).map(" ".join),
        min_size=1,
        max_size=3,
        unique=True,
    ).filter(lambda found: found[0].split()[0] != "needs_none"),
    attempts=st.integers(1, 2),
)
@settings(max_examples=25, deadline=None)
async def test_a_forgotten_context_is_no_outcome_and_leaves_no_call_in_doubt(
    shape: str, kind: str, questions: list[str], attempts: int
):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "runs.db")
        for _ in range(attempts):
            async with Journal(path) as journal:
                with pytest.raises(ContextError):
                    await journal.run(Desk(shape, kind, questions), run_id="r")
                seen = await journal.look("r")
                assert (seen.run.state, [*seen.waits]) == ("suspended", [])
        async with Journal(path) as journal, asyncio.timeout(20):
            running = journal.run(Desk(shape, kind, questions), run_id="r", context=User("ada"))
            assert await running == ["ada"] * len(questions)


# --- agents


def call_pay(request: Request) -> Message | str:
    last = request.messages[-1]
    if last.role == "tool":
        return last.content or ""
    call = ToolCall(id="c", name="pay", arguments={"amount": 3})
    return Message(role="assistant", tool_calls=[call])


async def test_a_session_of_a_journal_gets_the_context_of_each_call(path: Path):
    agent = Agent(
        ScriptedBackend(otherwise=call_pay),
        lambda ctx: f"Help {ctx.value.name}.",
        tools=[pay],
        name="shop",
        journal=str(path),
    )
    answer = await agent("pay", session_id="s", context=User("ada"))
    assert answer.text == "ada pays 3"
    answer = await agent("pay", session_id="s", context=User("eve"))
    assert answer.text == "eve pays 3"
    with pytest.raises(ContextError):
        await agent("pay again", session_id="s")
    # The call is interrupted, and the same call resumes it.
    answer = await agent("pay again", session_id="s", context=User("joe"))
    assert answer.text == "joe pays 3"
    assert calls == ["ada pays 3", "eve pays 3", "joe pays 3"]
