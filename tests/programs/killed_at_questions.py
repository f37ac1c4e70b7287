"""Agents that ask for approval in several sessions; the process is killed with open questions."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

from anabranch import Agent, Approvals, Context, Message, ToolCall, tool
from anabranch.messages import Request
from anabranch.store import Journal
from anabranch.testing import ScriptedBackend

SESSIONS = {"ann": 1, 7: 2, "8": 1}


@tool(approve=True, effect="keyed")
async def pay(amount: int, ctx: Context[str] | None = None) -> str:
    """Pay an amount."""
    return f"paid {amount}" if ctx is None else f"paid {amount} to {ctx.value}"


def reply(request: Request) -> Message:
    """Ask to pay as often as the question says, then tell the results."""
    last = request.messages[-1]
    if last.role != "user":
        paid = [each.content or "" for each in request.messages if each.role == "tool"]
        return Message(role="assistant", content=", ".join(paid))
    calls = [
        ToolCall(id=f"c{index}", name="pay", arguments={"amount": index + 1}, index=index)
        for index in range(int(last.content or "0"))
    ]
    return Message(role="assistant", content=None if calls else "nothing", tool_calls=calls)


def make_agent(journal: Journal) -> tuple[Agent[Any], Approvals]:
    """Return the agent of all executions, and its questions."""
    approvals = Approvals()
    backend = ScriptedBackend(otherwise=reply)
    return Agent(
        backend, name="cashier", tools=[pay], approve=approvals, journal=journal
    ), approvals


async def main() -> None:
    async with Journal(sys.argv[1]) as journal:
        agent, approvals = make_agent(journal)
        await agent("0", session_id="idle")
        calls = [agent(str(count), session_id=name) for name, count in SESSIONS.items()]
        asking = asyncio.gather(*calls)
        async for _ in approvals:
            if len(approvals.pending) == sum(SESSIONS.values()):
                os.kill(os.getpid(), signal.SIGKILL)
        await asking


if __name__ == "__main__":
    asyncio.run(main())
