"""One call of a tool as a node: asked about first if it must be, limited in time, never failing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any, TypeAlias

from ..commander import Node
from ..messages import ToolCall
from ._approval import Decision
from ._tool import AnyTool, stopped
from .results import ToolResult, fault_result, result

__all__ = ["Ask", "call_result", "start_call"]

Ask: TypeAlias = Callable[[ToolCall, AnyTool], Awaitable[bool | Decision]]
"""Asks a person whether a call may run."""


def start_call(parent: Node[Any], call: ToolCall, tool: AnyTool, ask: Ask) -> Node[ToolResult]:
    """Run `call` as a child of `parent`, after a person's yes if the tool wants one.

    Whatever goes wrong is told in the result, so the node does not fail; it may be cancelled.
    """
    node: Node[ToolResult] = AskFirst(call, tool, ask) if tool.approve else CallTool(call, tool)
    node.at_exception(lambda ended: ended.recover(fault_result(call, ended.error, tool.timeout)))
    # The time in which a person thinks does not count.
    timeout = None if tool.approve else tool.timeout
    return parent.call_handler(node, timeout=timeout, claim=True)


def call_result(node: Node[ToolResult], call: ToolCall) -> ToolResult:
    """Return what the node of a call has given, also if it was cancelled."""
    return node.result or fault_result(call, node.error)


class CallTool(Node[ToolResult], internal=True, name="call_tool"):
    """Run one call."""

    def __init__(self, call: ToolCall, tool: AnyTool) -> None:
        self._call = call
        self._tool = tool

    async def task(self) -> ToolResult:
        """Run it."""
        with _confined():
            return result(self._call, await self._tool.run(self._call.arguments))


class AskFirst(Node[ToolResult], internal=True, name="ask_first"):
    """Run one call if a person says yes."""

    def __init__(self, call: ToolCall, tool: AnyTool, ask: Ask) -> None:
        self._call = call
        self._tool = tool
        self._ask = ask

    async def task(self) -> ToolResult:
        """Ask, then run what was allowed; arguments that are wrong are not asked about.

        What was asked about is what runs: an agent's hooks have seen it before, and nobody else
        has hold of it, whoever has the message.
        """
        with _confined():
            arguments, tool = await self._tool._prepared(self._call.arguments)
            tool.check(arguments)
        call = self._call
        if arguments is not call.arguments:
            call = call.model_copy(update={"arguments": arguments, "raw": None})
        call = call.model_copy(deep=True)
        decision = Decision.of(await self._ask(call.model_copy(deep=True), tool))
        if not decision.approved:
            why = f": {decision.reason}" if decision.reason else ""
            return result(self._call, f"Error: the user did not allow this call{why}", "failed")
        call = decision.applied_to(call)
        answer = await self.call_handler(CallTool(call, tool), timeout=tool.timeout, claim=True)
        if decision.arguments is not None:
            # Or the model would take the result for that of the call it made.
            answer.content = f"(The user changed the arguments to {call.text})\n{answer.content}"
        return answer


@contextmanager
def _confined() -> Generator[None]:
    """Let what would end the program, but for the user's own Ctrl-C, end this call alone."""
    try:
        yield
    except (Exception, asyncio.CancelledError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise stopped(error) from error
