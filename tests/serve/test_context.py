"""The context of served runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest
from support.openai_client import on_uvicorn, open_client

from anabranch import Agent, ConfigurationError, Context, tool
from anabranch.messages import Message, Request, ToolCall
from anabranch.serve import serve
from anabranch.testing import ScriptedBackend

USERS = {"a": "ada", "b": "eve", "c": "cut"}


@tool
def who(ctx: Context[str]) -> str:
    return ctx.value


def call_who(request: Request) -> Message | str:
    last = request.messages[-1]
    if last.role == "tool":
        return last.content or ""
    return Message(role="assistant", tool_calls=[ToolCall(id="c", name="who")])


async def load_user(name: str) -> str:
    if name == "cut":
        raise RuntimeError("no such user")
    return f"user {name}"


@pytest.mark.parametrize("stored", [False, True])
async def test_each_run_has_the_context_of_its_user(stored: bool, tmp_path: Path) -> None:
    agent = Agent(ScriptedBackend(otherwise=call_who), tools=[who], name="writer")
    journal: Any = tmp_path / "runs.db" if stored else None
    leave: Any = {"openai": "detach"}
    server = serve(agent, auth=USERS.get, context=load_user, journal=journal, on_leave=leave)
    async with on_uvicorn(server) as url:
        for key in ("a", "b"):
            async with open_client(url, key) as client:
                reply = await client.responses.create(model="writer", input="who?")
                assert reply.output_text == f"user {USERS[key]}"
        async with open_client(url, "c") as client:
            with pytest.raises(openai.APIError):
                await client.chat.completions.create(
                    model="writer", messages=[{"role": "user", "content": "who?"}]
                )


def test_the_context_must_be_a_function() -> None:
    with pytest.raises((ConfigurationError, TypeError), match="context must be a function"):
        serve(Agent(ScriptedBackend()), context="ada")  # type: ignore[arg-type]
