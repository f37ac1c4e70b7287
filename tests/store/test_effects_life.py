"""Effects of durable runs that are cancelled, suspended, or have hooks around them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.killed_executions import run_execution
from support.memory_journal import RUN_ID, mounted

from anabranch import Retry, tool
from anabranch.agents import Agent, AgentHook, AgentMessage, ToolExecutor
from anabranch.handlers import View, call_tools
from anabranch.messages import Message, Request, ToolCall
from anabranch.store import Done, Durable, Journal, Live, NotDone, effect_key, live
from anabranch.store.errors import JournalMismatch
from anabranch.testing import ScriptedBackend
from anabranch.tools import Tool
from tests.store.test_approvals import waiting
from tests.store.test_effects import calls, change, failures, kills, require_alike, told

pytestmark = pytest.mark.contract("D11")


async def found(n: int, fails: int = 0, *, effect_key: str) -> Done | NotDone:
    done = mounted[-1].done
    return Done(done[effect_key]) if effect_key in done else NotDone()


@tool(reconcile=found, reconcile_after=0)
async def buy(n: int, fails: int = 0) -> str:
    return change(f"bought {n}")


BUY = Message(role="assistant", tool_calls=[ToolCall(id="c", name="buy", arguments={"n": 2})])


def say(request: Request) -> str | Message:
    """Answer by the conversation, as a later execution requests fewer replies."""
    return "done" if request.messages[-1].role == "tool" else BUY


class Twice(AgentHook):
    """Doubles purchases and shouts results; both are plain code of each execution."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def before_action(self, agent: Any, message: AgentMessage, session_id: object) -> AgentMessage:
        call: Any = message.output
        changed = call.model_copy(update={"arguments": {"n": call.arguments["n"] * 2}})
        return message.model_copy(update={"output": changed})

    def after_action(self, agent: Any, message: AgentMessage, session_id: object) -> AgentMessage:
        self.seen.append(message.content)
        return message.model_copy(update={"content": message.content.upper()})


class Buyer(Durable[list[str]]):
    hook: Live[Twice] = live()

    async def task(self) -> list[str]:
        message = {"name": "buy", "parameters": {"n": 2}}
        plain = await ToolExecutor([buy])(AgentMessage(content=message))
        agent = Agent(ScriptedBackend(otherwise=say), tools=[buy], hooks=[self.hook], name="a")
        return [plain.content, (await agent("?", session_id="s")).content]


def test_hooks_run_in_each_life_and_the_tool_once() -> None:
    hooks: list[Twice] = []

    def make() -> Buyer:
        hooks.append(Twice())
        return Buyer(hooks[-1])

    first = run_execution(make)
    assert first.error is None, first.error
    for where, disk in kills(first):
        execution = run_execution(make, disk)
        assert (execution.outcome, execution.disk.done) == (first.outcome, first.disk.done), where
        if not any(row.kind == "result" for row in disk.rows[RUN_ID]):
            assert len(hooks[-1].seen) == len(hooks[0].seen), where


REMOTE = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


async def remote(**arguments: Any) -> str:
    return change(f"remote {arguments['n']}", again=True)


class Remote(Durable[list[Any]]):
    async def task(self) -> list[Any]:
        far = Tool(remote, name="far", parameters=REMOTE, effect="keyed")
        wrong = call_tools(calls([("far", 1, 0), ("far", "x", 0)]), [far])  # type: ignore[list-item]
        return told(await self.call_handler(wrong))


def test_a_tool_with_a_schema_from_elsewhere_is_an_effect_as_well() -> None:
    """The model gets an error for invalid arguments, and nothing is written."""
    first = run_execution(Remote)
    assert [each[0] for each in first.result] == ["ok", "invalid"]
    assert sum(row.kind == "intent" for row in first.rows) == 1
    for where, disk in kills(first):
        require_alike(first, run_execution(Remote, disk), where)


# --- suspended runs

STEPS: list[str] = []
GATE: list[asyncio.Event] = []


@tool
async def lengthy(n: int, fails: int = 0) -> str:
    STEPS.append(f"began {n}")
    await GATE[-1].wait()
    STEPS.append(f"ended {n}")
    return effect_key()


class Lengthy(Durable[list[Any]]):
    async def task(self) -> list[Any]:
        return told(await self.call_handler(call_tools(calls([("lengthy", 1, 0)]), [lengthy])))


@pytest.mark.parametrize("in_time", [True, False])
async def test_an_effect_under_way_gets_the_grace_to_end(tmp_path: Path, in_time: bool) -> None:
    """D20: effects that end in it are recorded; others are in doubt, and not repeated silently."""
    STEPS.clear()
    GATE.append(asyncio.Event())
    name = str(tmp_path / "runs.db")
    async with Journal(name, grace=30 if in_time else 0.01) as journal:
        running = asyncio.create_task(journal.run(Lengthy(), run_id="a"))
        async with asyncio.timeout(30):
            while not STEPS:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            running.cancel()
            if in_time:
                asyncio.get_running_loop().call_later(0.05, GATE[-1].set)
            await asyncio.wait([running])
    kinds = [row.kind for row in await rows_of(name)]
    assert kinds[:2] == (["intent", "gave"] if in_time else ["intent"])
    steps = ["began 1", "ended 1"] if in_time else ["began 1"]
    assert steps == STEPS
    async with Journal(name) as journal:
        running = asyncio.create_task(journal.run(Lengthy(), run_id="a"))
        async with asyncio.timeout(30):
            if not in_time:
                while not (doubts := await journal.doubts()):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                await doubts[0].done("so it was")
            ((status, text, _, _),) = await running
    assert status == "ok"
    assert (text == "so it was") is not in_time
    assert steps == STEPS


async def rows_of(name: str) -> list[Any]:
    async with Journal(name) as journal:
        return await journal._file.rows("a")


class Impatient(Durable[list[Any]]):
    async def task(self) -> list[Any]:
        node = self.call_handler(call_tools(calls([("lengthy", 1, 0)]), [lengthy]))
        await asyncio.sleep(5)
        for child in list(node.children):
            child.cancel("too slow")
        return told(await node)


def test_a_call_that_was_cancelled_stays_cancelled() -> None:
    """D11: and its effect is not asked about any more."""
    GATE.append(asyncio.Event())

    first = run_execution(Impatient)
    assert first.result[0][1] == "Error: the call was cancelled: too slow"
    for where, disk in kills(first):
        if any(row.kind in ("cancelled", "result") for row in disk.rows[RUN_ID]):
            require_alike(first, run_execution(Impatient, disk), where)


# --- a person between a new effect and its caller


@tool(approve=True)
async def asks(n: int, fails: int = 0) -> str:
    return change(f"asked {n}")


NUMBERS: list[list[int]] = []


class Asks(Durable[list[Any]]):
    async def task(self) -> list[Any]:
        group = [("asks", n, 0) for n in NUMBERS[-1]]
        return told(await self.call_handler(call_tools(calls(group), [asks], View())))


async def allow_all(journal: Journal) -> None:
    while True:
        for approval in await waiting(journal):
            await asyncio.sleep(100)
            await approval.approve()


def test_a_new_effect_after_a_yes_is_held_for_one_that_waits_for_its_yes() -> None:
    """D8: the node that asks is not the caller: equal numbers of calls, but one is another call."""
    NUMBERS.append([1, 2])
    first = run_execution(Asks, beside=allow_all)
    assert first.error is None
    NUMBERS.append([3, 1, 2])  # one more call, while the recorded ones are still to come
    assert run_execution(
        Asks, first.disk.cut(len(first.rows) - 2, first.disk.done), beside=allow_all
    ).result
    NUMBERS.append([3, 1])
    execution = run_execution(
        Asks, first.disk.cut(len(first.rows) - 2, first.disk.done), beside=allow_all
    )
    assert isinstance(execution.error, JournalMismatch)
    assert execution.state == "parked"
    assert not any("asked 3" in text for text in execution.disk.done.values())


@tool(retry=Retry(attempts=2, on=ValueError, backoff=3600))
async def patient(n: int, fails: int = 0) -> str:
    if failures() < 1:
        raise ValueError("not yet")
    return change(f"patient {n}")


class Patient(Durable[list[Any]]):
    async def task(self) -> list[Any]:
        return told(await self.call_handler(call_tools(calls([("patient", 1, 0)]), [patient])))


def test_a_failed_attempt_is_over_though_the_process_dies_in_the_pause() -> None:
    """It has failed for certain, so no person is asked about its effect."""

    first = run_execution(Patient)
    assert first.result[0][0] == "ok"
    in_the_pause = [row.seq for row in first.rows if row.kind in ("failed", "attempt")]
    for rows in in_the_pause:
        require_alike(first, run_execution(Patient, first.disk.cut(rows, {})), f"{rows}")
