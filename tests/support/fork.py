"""A source of deltas, and a node whose body forks it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from anabranch.commander import Commander, Node
from anabranch.handlers import handler
from anabranch.messages import Delta, ToolCallDelta, Usage

__all__ = [
    "CALL_DELTAS",
    "TIMEOUT_SECONDS",
    "BodyNode",
    "DeltaSource",
    "collect",
    "collect_in_handler",
    "run_body",
]

TIMEOUT_SECONDS = 10.0
CALL_DELTAS = [
    Delta("Wait."),
    Delta(tool_calls=[ToolCallDelta(0, "a", "f")]),
    Delta(tool_calls=[ToolCallDelta(0, arguments='{"to_user": "Look')]),
    Delta(tool_calls=[ToolCallDelta(0, arguments='ing", "x": 1}')]),
    Delta(usage=Usage(input_tokens=3, output_tokens=4), finish_reason="tool_calls"),
]


class DeltaSource:
    """An iterator of deltas that then raises `failure`, if any, and notes its progress and end."""

    def __init__(self, *deltas: Delta, failure: Exception | None = None) -> None:
        self.deltas = deltas
        self.failure = failure
        self.given = 0
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[Delta]:
        for delta in self.deltas:
            await asyncio.sleep(0)
            self.given += 1
            yield delta
        if self.failure is not None:
            raise self.failure

    async def aclose(self) -> None:
        self.closed = True


class BodyNode(Node[Any]):
    """A node whose body is a function."""

    def __init__(self, body: Callable[[Node[Any]], Any]) -> None:
        self.body = body

    async def task(self) -> Any:
        return await self.body(self)


async def run_body(body: Callable[[Node[Any]], Any]) -> Any:
    """Run a function as the body of a node in a new tree; return its result."""
    async with asyncio.timeout(TIMEOUT_SECONDS), Commander() as commander:
        return await commander.run(BodyNode(body))


async def collect(branch: AsyncIterator[Any]) -> list[Any]:
    """Return all items of a branch."""
    return [item async for item in branch]


@handler
async def collect_in_handler(_: Node[Any], branch: AsyncIterator[Any]) -> list[Any]:
    return await collect(branch)
