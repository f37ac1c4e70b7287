"""Code and tables of docs/chat.md, embedding.md, engine-events.md, orchestrators.md are correct."""

from __future__ import annotations

import ast
import asyncio
import re
from inspect import CO_COROUTINE, signature
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from support.paths import ROOT

from anabranch import (
    Agent,
    AgentMessage,
    Backend,
    BackendUnavailable,
    Commander,
    Message,
    ToolCall,
    settle,
)
from anabranch.agents import planner_reviewer_executor
from anabranch.handlers import View, respond
from anabranch.jobs import ChatJob
from anabranch.testing import ScriptedBackend

DOCS = ROOT / "docs"
CHAT, EMBEDDING, EVENTS, ORCHESTRATORS = (
    (DOCS / f"{name}.md").read_text(encoding="utf-8")
    for name in ("chat", "embedding", "engine-events", "orchestrators")
)


def blocks(page: str) -> list[Any]:
    found = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    return [compile(each, "docs", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT) for each in found]


async def run_block(code: Any, names: dict[str, Any]) -> None:
    if code.co_flags & CO_COROUTINE:
        async with asyncio.timeout(20):
            await FunctionType(code, names)()
    else:  # in a thread, because it may start an event loop
        await asyncio.to_thread(FunctionType(code, names))


async def test_every_block_about_chats_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the order of the page."""
    monkeypatch.chdir(tmp_path)
    backend = ScriptedBackend(otherwise="The Amazon.")
    names: dict[str, Any] = {"backend": backend, "__name__": "page"}
    for code in blocks(CHAT):
        await run_block(code, names)
    assert names["message"].content == "The Amazon."
    assert len(backend.requests) == 5
    assert capsys.readouterr().out.count("The Amazon.") == 2  # shown, and printed; Page writes none


def test_the_tables_about_chats_name_what_there_is() -> None:
    """Each argument of `respond`, and each method of a chat and of a view, but no other name."""
    rows = set(re.findall(r"^\| `(\w+)`", CHAT, re.MULTILINE))
    arguments = {*signature(respond._function).parameters} - {  # pyright: ignore
        *("node", "backend", "conversation", "options")
    }
    assert arguments <= rows
    assert {"read", "response", "answer", "again"} <= {*vars(ChatJob)}
    assert set(re.findall(r"^\| `(\w+)\(\)`", CHAT, re.MULTILINE)) == {
        *("read", "response", "answer", "again")
    }
    shown = {name for name in vars(View) if not name.startswith("_")} - {"approvals", "ask"}
    assert all(f"def {name}(self" in CHAT for name in shown)


async def test_the_first_block_about_embedding_runs() -> None:
    """The blocks for web frameworks must parse. The tests of examples/ cover the same code."""
    first, *_ = blocks(EMBEDDING)
    names: dict[str, Any] = {"backend": ScriptedBackend(otherwise="The Nile.")}
    await run_block(first, names)
    assert names["answer"].text == "The Nile."


async def test_the_program_about_text_prints_it_with_the_agents_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("anabranch.connect", lambda _: ScriptedBackend(otherwise="In Africa."))
    program, *_ = blocks(EVENTS)
    await run_block(program, {"__name__": __name__})  # of a loaded module, for the dataclass
    *texts, result = capsys.readouterr().out.splitlines()
    assert result == "In Africa. In Africa."
    for name in ("history", "maps"):
        pieces = [each.removeprefix(f"{name}: ") for each in texts if each.startswith(name)]
        assert "".join(pieces) == "In Africa."


async def test_a_request_of_the_page_is_answered_by_what_became_of_it() -> None:
    """A reply, a spent budget (also if too few replies completed because of it), a failure."""

    class Desk(Agent):
        def __init__(self, *backends: Backend) -> None:
            super().__init__()
            self.researchers = [Agent(each) for each in backends]

        async def forward(self, message: AgentMessage, session_id: Any = 0) -> str:
            found = await settle(*(each(message) for each in self.researchers), at_least=3)
            return f"{sum(not isinstance(each, Exception) for each in found)} answers"

    names: dict[str, Any] = {}
    (code,) = [each for each in blocks(EMBEDDING) if "research" in each.co_names]
    await run_block(code, names)
    down, costly = BackendUnavailable("down"), "word " * 100_000
    async with Commander() as commander:
        for replies, status, text in [
            ("aaaff", 200, "3 answers"),
            (
                "aafff",
                502,
                "2 of the 3 children needed have completed; 3 failed: BackendUnavailable",
            ),
        ]:
            backends = [ScriptedBackend("yes" if each == "a" else down) for each in replies]
            said = await names["research"](commander, Desk(*backends), "Why?", "ann")
            assert said == (status, text)
        said = await names["research"](commander, Agent(ScriptedBackend("no")), costly)
        assert said == (200, "no")  # a reply in progress may exceed the budget
        call = Message(role="assistant", tool_calls=[ToolCall(id="1", name="x")])
        for asked in (Agent(ScriptedBackend(call)), Desk(*(ScriptedBackend(call) for _ in "abc"))):
            status, _ = await names["research"](commander, asked, costly)
            assert status == 402


def test_the_json_in_the_table_is_what_the_strategies_read() -> None:
    """The agent of the table row accepts the example."""
    orchestrator = planner_reviewer_executor(ScriptedBackend(), "A task.")
    for name in ("planner", "reviewer", "executor"):
        (row,) = re.findall(rf"^\| `{name}` \| (.*) \|$", ORCHESTRATORS, re.MULTILINE)
        agent: Any = orchestrator.agents[name]
        examples = re.findall(r"`(\{.*?\})`", row)
        assert examples
        for example in examples:
            agent.prompt_engineer.parser.parse(f"Here it is: {example}")
