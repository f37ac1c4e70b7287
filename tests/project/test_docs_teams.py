"""The programs of docs/agent-teams.md do what the page says."""

from __future__ import annotations

import ast
import asyncio
import re
from types import FunctionType
from typing import Any

import pytest
from support.paths import ROOT

from anabranch import Message, ToolCall
from anabranch.messages import Request
from anabranch.testing import ScriptedBackend

PAGE = (ROOT / "docs" / "agent-teams.md").read_text(encoding="utf-8")


def answer(request: Request) -> Message | str:
    """Answer as a model would that follows the page's prompts."""
    prompt, last = request.messages[0].content or "", request.messages[-1]
    tools = {tool.name for tool in request.tools}
    if "yes or no" in prompt:
        return "Yes."
    if last.role == "tool":
        return f"Read: {last.content}"
    if "researcher" in tools:
        call = ToolCall(id="1", name="researcher", arguments={"request": "the longest river"})
        return Message(role="assistant", tool_calls=[call])
    if "transfer_to_billing" in tools:
        call = ToolCall(id="1", name="transfer_to_billing", arguments={})
        return Message(role="assistant", tool_calls=[call])
    return "The Nile." if "facts" in prompt else "You get it back."


async def test_the_programs_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tool, a handoff, layers and a refusal."""
    monkeypatch.setattr("anabranch.connect", lambda _: ScriptedBackend(otherwise=answer))
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        names: dict[str, Any] = {"__name__": "page"}
        code = compile(block, "docs", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        await asyncio.to_thread(FunctionType(code, names))
        assert len(names.get("posts", "abc")) == 3
    read, handed_over, blogger, writer, critic, *_, refused = capsys.readouterr().out.splitlines()
    assert read == "Read: The Nile."
    assert handed_over == "billing You get it back. ['triage', 'billing']"
    assert blogger == "Blogger('Blogger')"
    assert writer.startswith("  (writer): Agent('writer', ")
    assert critic.startswith("  (critic): Agent('critic', ")
    assert refused == "Please do not send passwords."
