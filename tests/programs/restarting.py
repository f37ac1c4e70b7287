"""A server that tests kill and start again: `python restarting.py FOLDER PORT [DELAY]`."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import Any

from anabranch import Agent, Message, ToolCall, tool
from anabranch.messages import Request
from anabranch.serve import serve
from anabranch.testing import ScriptedBackend

__all__ = ["ACTS", "WORDS"]

ACTS = 3
WORDS = "and so on, " * 4


def app_of(folder: Path, delay: float) -> Any:
    """Return a server of an agent that writes text, calls a tool, and writes more text."""

    @tool
    def act(number: int) -> str:
        """Do something outside, which must not be done twice."""
        with (folder / "outside.txt").open("a") as file:
            file.write(f"{number}\n")
        return f"done {number}"

    @tool(approve=True)
    def ask(number: int) -> str:
        """Do something that needs a yes."""
        return act(number)

    def play(request: Request) -> Message:
        """Play a model that gives another text to each request."""
        before = sum(message.role == "tool" for message in request.messages)
        said = f"<{before} {secrets.token_hex(4)} {WORDS}{before}>"
        if before == ACTS:
            return Message(role="assistant", content=said)
        name = "ask" if "please" in (request.messages[-1 - 2 * before].content or "") else "act"
        call = ToolCall(id=f"c{before}", name=name, arguments={"number": before})
        return Message(role="assistant", content=said, tool_calls=[call])

    backend = ScriptedBackend(otherwise=play, delay=delay, size=4)
    agent = Agent(backend, name="writer", tools=[act, ask])
    return serve(agent, {"model": backend}, journal=folder / "runs.db", keep=60, auth=["a", "b"])


if __name__ == "__main__":
    app_of(Path(sys.argv[1]), float(sys.argv[3])).run(port=int(sys.argv[2]), drain=0)
