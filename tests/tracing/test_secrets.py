"""S6: a recording has content only if requested, and never a key."""

import asyncio
import base64
import contextlib
import gc
import json
from dataclasses import field
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

import pytest
from support.scripted_server import Reply as Scripted
from support.scripted_server import ScriptedServer, calls, chunk, event, text
from support.seeds import example_count, seeds

from anabranch import Commander, Conversation, Message, Node, handler, tool
from anabranch.agents import Agent
from anabranch.backends import connect
from anabranch.commander import act_as, emit
from anabranch.handlers import View
from anabranch.jobs import ChatJob
from anabranch.messages import Request
from anabranch.testing import ScriptedBackend
from anabranch.tracing import record
from tests.backends.test_scan import drawn, shows

pytestmark = pytest.mark.contract("S6")

CONTENT = {
    name: f"{name}-{number:04}-plums-and-pears"
    for number, name in enumerate(
        ["prompt", "system", "reply", "thought", "argument", "result", "failure", "note", "reason",
         "stop", "extra", "metadata", "user", "description", "refusal", "finish", "cause", "local"]
    )
}  # fmt: skip


class Talk(ChatJob):
    """A chat that prints its prompts."""

    said: list[str] = field(default_factory=list)

    async def read(self) -> str | None:
        return self.said.pop(0) if self.said else None


def plants(key: str, words: dict[str, str]) -> tuple[Any, Any, Any]:
    """Return tools and a handler that use these texts in each possible place."""

    @tool(description=words["description"])
    async def look(what: str) -> str:
        return f"{words['result']} {key}"

    @tool
    async def fail(what: str) -> str:
        """Fail."""
        error = ValueError(f"{words['failure']} {key}")
        error.add_note(f"{words['note']} {key}")
        raise error from KeyError(words["cause"])

    @handler
    async def odd(node: Node) -> None:
        local = words["local"]
        emit(node, "text", f"{words['reply']} {key}")
        for piece in (key[:5], key[5:9], key[9:]):
            emit(node, "text", piece)
        raise ExceptionGroup(words["failure"], [RuntimeError(f"{local} {key}")])

    return look, fail, odd


@handler
async def hang(node: Node) -> None:
    await asyncio.Event().wait()


def replies(key: str, words: dict[str, str]) -> list[Scripted]:
    """Return the server's replies to an agent, which calls both tools, and to a chat."""
    argument = json.dumps({"what": f"{words['argument']} {key}"})
    said = text(words["reply"], f" {key[: len(key) // 2]}", key[len(key) // 2 :])
    odd = [
        chunk({"reasoning_content": f"{words['thought']} {key}"}),
        chunk({"content": "x"}),
        chunk(finish=words["finish"]),
        event({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}),
        b"data: [DONE]\n\n",
    ]
    refused = Scripted.error(400, {"message": f"{words['refusal']} {key}", "code": key})
    return [calls(("look", argument), ("fail", argument)), said, Scripted(odd), refused, said]


async def play(file: Path, key: str, words: dict[str, str], *, content: bool) -> None:
    """Record an agent, a chat, a failure and a cancel with all these texts."""
    look, fail, odd = plants(key, words)
    async with ScriptedServer(*replies(key, words)) as server:
        address = server.url.replace("http://", f"http://me:{quote(key, safe='')}@")
        options: dict[str, Any] = {
            "stop": [words["stop"]],
            "metadata": {"who": words["metadata"], "key": key},
            "user": words["user"],
            "extra": {"more": words["extra"], "password": key},
            "temperature": 0.25,
        }
        async with asyncio.timeout(20), Commander() as commander:
            with record(commander, file, content=content):
                backend = connect(server.url, model="m", api_key=key, **options)
                agent = Agent(backend, tools=[look, fail], instructions=f"{words['system']} {key}")
                agent.name = f"agent {key}"
                await asyncio.wait([asyncio.ensure_future(_ask(agent, words, key))])
                other = connect(address, model="m", **options)
                said = [f"{words['prompt']} {key}", words["prompt"]]
                talk = Conversation(words["system"])
                await commander.put_job(Talk(other, talk, view=View(), said=said))
                node = odd()
                act_as(node, f"clerk {key}", f"session {key}")
                await asyncio.wait([asyncio.ensure_future(_outcome(commander, node))])
                node = hang()
                commander.call_handler(node, claim=True)
                await asyncio.sleep(0)
                node.cancel(f"{words['reason']} {key}")
                await backend.aclose()
                await other.aclose()
                del backend, other, agent, node, talk
                gc.collect()


async def _ask(agent: Agent, words: dict[str, str], key: str) -> None:
    with contextlib.suppress(Exception):
        await agent(f"{words['prompt']} {key}", session_id=f"session {key}")


async def _outcome(commander: Commander, node: Any) -> None:
    with contextlib.suppress(Exception):
        await commander.call_handler(node)


def is_in_file(file: Path, words: str) -> bool:
    """Return whether a file contains a text, in any of the usual encodings."""
    said = file.read_text()
    forms = {words, quote(words), words.encode().hex(), json.dumps(words)[1:-1]}
    forms |= {base64.b64encode(words.encode()).decode()[4:-4], words[: len(words) // 2]}
    forms |= {words.split("-", 1)[1]}
    return any(form in said for form in forms)


@pytest.mark.parametrize("seed", seeds(example_count(4, 60)))
async def test_without_content_no_text_is_recorded(seed: int, tmp_path: Path) -> None:
    """S6: no prompt, reply, argument, result, message, note, reason or option; and no key."""
    key = drawn(Random(seed))
    file = tmp_path / "run.jsonl"
    await play(file, key, CONTENT, content=False)
    assert len(file.read_text().splitlines()) > 40
    assert [name for name, words in CONTENT.items() if is_in_file(file, words)] == []
    assert not shows(file.read_text(), key)


@pytest.mark.parametrize("seed", seeds(example_count(4, 60)))
async def test_with_content_no_key_is_recorded(seed: int, tmp_path: Path) -> None:
    """S6: although the backends with the key have ended when it is written."""
    key = drawn(Random(seed))
    file = tmp_path / "run.jsonl"
    await play(file, key, CONTENT, content=True)
    there = {name for name, words in CONTENT.items() if words in file.read_text()}
    assert there >= {"prompt", "system", "reply", "argument", "result", "failure", "reason", "stop"}
    assert not shows(file.read_text(), key)
    joined = "".join(
        line["text"] for line in map(json.loads, file.read_text().splitlines()) if line.get("e")
        == "text"
    )  # fmt: skip
    assert not shows(joined, key)


@pytest.mark.parametrize("content", [False, True])
async def test_keys_of_the_environment_and_of_known_providers_are_masked(
    content: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S6: also in names, runs, agents, sessions and tools, which are recorded in any case."""
    planted = {
        "env": "plain-value-of-a-variable",
        "maker": "sk-proj-a1B2c3D4e5F6g7H8i9J0",
        "github": "ghp_0123456789abcdefghijABCDEFGHIJ",
        "address": "hunter2hunter2",
    }
    monkeypatch.setenv("SOME_API_KEY", planted["env"])
    said = f"{planted['env']} {planted['maker']} {planted['github']}"
    said += f" https://me:{planted['address']}@example.org/"

    class Named(Node[None]):
        async def task(self) -> None:
            await ScriptedBackend(said, model=f"m {said}").complete(
                Request([Message(role="user", content=said)])
            )
            await self.call_handler(hang(), timeout=0.001)

    async with Commander() as commander, record(commander, tmp_path / "r", content=content):
        node = Named(name=f"node {said}")
        act_as(node, said, said)
        await asyncio.wait([asyncio.ensure_future(_outcome(commander, node))])
    written = (tmp_path / "r").read_text()
    assert [name for name, secret in planted.items() if shows(written, secret)] == []
    assert "***" in written


async def test_a_key_that_a_cut_would_halve_is_masked(tmp_path: Path) -> None:
    """S6: a long text is masked before it is cut."""
    key = "sk-proj-" + "a1B2c3D4" * 8

    @handler
    async def says(node: Node, before: int) -> None:
        raise ValueError("x" * before + " " + key + " y" * 20_000)

    async with Commander() as commander, record(commander, tmp_path / "r", content=True):
        for before in range(19_930, 20_001, 7):
            await asyncio.wait([asyncio.ensure_future(_outcome(commander, says(before)))])
    assert not shows((tmp_path / "r").read_text(), key)
