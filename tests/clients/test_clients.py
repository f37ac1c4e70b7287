"""Two turns with a tool by each known client, unmodified and in its current version."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.openai_client import on_uvicorn

from anabranch import Agent, tool
from anabranch.messages import Message, Request, ToolCall
from anabranch.serve import serve
from anabranch.testing import ScriptedBackend

HERE = Path(__file__).parent
CLIENTS = Path(os.environ.get("ANABRANCH_CLIENTS", "none")).absolute()
PATIENCE = 300  # seconds for all modes of a client on a busy machine
NOT_INSTALLED = 3  # the status of a program whose client is not there

WIRES = ["chat", "chat-stream", "responses", "responses-stream"]
PYTHON = {
    "openai": WIRES,
    "pydantic-ai-slim": WIRES,
    "openai-agents": WIRES,
    "langchain-openai": WIRES,
    "llm": WIRES[:2],
    "litellm": WIRES[:2],
}
NODE = {"openai": WIRES, "ai": [*WIRES, "compatible", "compatible-stream"]}
WEATHER = {"Rome": "warm", "Oslo": "cold"}
ANSWERS = ["It is warm in Rome.", "It is cold in Oslo."]
THOUGHT = "The city matters."  # clients may show it, and send it back
ROUND = ["user", "assistant", "tool", "assistant"]


def answer(request: Request) -> Message:
    """Call the tool for the city in a question, and answer with its result."""
    *_, before, last = [Message(role="user"), *request.messages]
    if last.role == "tool":
        city = before.tool_calls[0].arguments["city"]
        said = f"It is {last.content} in {city}."
        return Message(role="assistant", content=said, reasoning=THOUGHT)
    city = (last.content or "").removesuffix("?").split()[-1]
    call = ToolCall(id=f"call_{len(request.messages)}", name="weather", arguments={"city": city})
    return Message(role="assistant", tool_calls=[call], reasoning=THOUGHT)


def heard(model: ScriptedBackend) -> list[Message]:
    """Return the last request's messages; pydantic-ai sends reasoning back as messages."""
    messages = model.requests[-1].messages
    return [each for each in messages if each.tool_calls or THOUGHT not in (each.content or "")]


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return WEATHER[city]


async def talk(program: Callable[[str, list[str]], list[str]], modes: list[str]) -> None:
    """Run a client against models, whose tools it runs, and agents, which run their own."""
    models = {mode: ScriptedBackend(otherwise=answer) for mode in modes}
    brains = {f"agent-{mode}": ScriptedBackend(otherwise=answer) for mode in modes}
    agents = {name: Agent(brain, name=name, tools=[weather]) for name, brain in brains.items()}
    async with on_uvicorn(serve(models, agents)) as url:
        command = program(url, [*models, *agents])
        if shutil.which(command[0]) is None:
            pytest.skip(f"there is no {command[0]}")
        process = await asyncio.create_subprocess_exec(
            *command,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(PATIENCE):
                said, wrong = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    if process.returncode == NOT_INSTALLED:
        pytest.skip("the client could not be installed")
    assert process.returncode == 0, wrong.decode()[-5000:]
    seen: Any = json.loads(said.splitlines()[-1])  # litellm also prints other texts
    print(f"version {seen['version']}")
    assert seen["answers"] == dict.fromkeys([*models, *agents], ANSWERS)
    for mode, model in models.items():
        asked = heard(model)
        assert [each.role for each in asked] == [*ROUND, *ROUND[:3]], mode
        contents = [each.content or None for each in asked]
        assert contents[2:4] == ["warm", ANSWERS[0]], mode
        assert contents[6] == "cold", mode
        ids = [call.id for each in asked for call in each.tool_calls]
        assert ids == [each.tool_call_id for each in asked if each.role == "tool"], mode
        assert len({*ids}) == 2, mode
    for mode, brain in brains.items():
        asked = heard(brain)
        assert [each.role for each in asked] == ["user", "assistant", *ROUND[:3]], mode
        assert asked[1].content == ANSWERS[0], mode


@pytest.mark.parametrize("name", PYTHON)
async def test_a_client_for_python_talks_and_runs_tools(name: str) -> None:
    """S9: each wire that it supports, streaming and not. It sends items back in its own way."""
    python, program = CLIENTS / name / "bin" / "python", HERE / "python_clients.py"
    await talk(lambda url, modes: [str(python), str(program), name, url, *modes], PYTHON[name])


@pytest.mark.parametrize("name", NODE)
async def test_a_client_for_node_talks_and_runs_tools(name: str) -> None:
    """S9: OpenAI's client, and the AI SDK with its three providers."""
    folder, program = CLIENTS / f"node-{name}", HERE / "node_clients.mjs"
    arguments = [str(program), name, str(folder)]
    await talk(lambda url, modes: ["node", *arguments, url, *modes], NODE[name])
