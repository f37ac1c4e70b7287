"""Run the tools that a reply calls, each call a node of its own."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterable, Iterable
from contextlib import suppress
from typing import Any, Literal, TypeAlias

from ..commander import Node, NodeCancelled, ToolError, emit
from ..dispatch import Message, ToolCall, ToolCallError
from ..tools import AnyTool, InvalidArguments, ToolResult
from ._handler import handler
from ._view import View

__all__ = ["CallTools", "call_tools"]

logger = logging.getLogger("anabranch.tools")

Call: TypeAlias = ToolCall | ToolCallError


def call_tools(
    calls: AsyncIterable[Call], tools: Iterable[AnyTool], view: View | None = None
) -> CallTools:
    """Make the node that runs `calls` while they arrive; its result is a `ToolResult` for each.

    A call of a read-only tool starts at once; any other when `calls` has ended, which is when the
    reply is whole. If `calls` raises, the calls that run are cancelled and no other starts. The
    results come in the order of the calls. What goes wrong with one call (wrong arguments, an
    unknown tool, an exception, its timeout, its own cancellation) is told in its result and
    concerns no other; an exception's traceback is logged at level INFO.
    """
    return CallTools(calls, tools, view or View())


class CallTools(Node[list[ToolResult]], internal=True):
    """The node that `call_tools` makes."""

    def __init__(self, calls: AsyncIterable[Call], tools: Iterable[AnyTool], view: View) -> None:
        self._calls = calls
        self._tools = {tool.name: tool for tool in tools}
        self._view = view
        self._results: dict[str, ToolResult] = {}

    async def task(self) -> list[ToolResult]:
        """Start each call in its time, wait for all, and put the results in order."""
        seen: list[Call] = []
        waiting: list[tuple[ToolCall, AnyTool]] = []
        async for call in self._calls:
            seen.append(call)
            if (tool := self._tool_for(call)) and isinstance(call, ToolCall):
                if tool.read_only:
                    self._start(call, tool)
                else:
                    waiting.append((call, tool))
        for call, tool in waiting:
            self._start(call, tool)
        for node in self.children:
            with suppress(NodeCancelled):
                await node
        seen.sort(key=lambda call: call.index)
        return [self._results[call.id] for call in seen]

    def results(self, message: Message) -> list[ToolResult]:
        """Return a result for each call in `message`, also after this node was cancelled.

        A call without one is answered by the news that it was interrupted.
        """
        return [
            self._results.get(call.id) or _result(call, "The call was interrupted.", "failed")
            for call in message.tool_calls
        ]

    def _tool_for(self, call: Call) -> AnyTool | None:
        """Return the tool that can run `call`, or settle it as one that none can run."""
        if isinstance(call, ToolCallError):
            self._settle(_result(call, str(call), "invalid"))
            return None
        emit(self, "tool_call", call)
        if (tool := self._tools.get(call.name)) is None:
            known = ", ".join(self._tools) or "none"
            fault = f"Error: there is no tool {call.name!r}; the tools are: {known}"
            self._settle(_result(call, fault, "invalid"))
        return tool

    def _start(self, call: ToolCall, tool: AnyTool) -> None:
        def recover(node: Node[Any]) -> None:
            node.recover(_fault(call, tool, node.error))

        def settle(node: Node[Any]) -> None:
            self._settle(node.result or _fault(call, tool, node.error))

        self._view.called(call)
        make, timeout = (ask_first, None) if tool.approve else (call_tool, tool.timeout)
        node = make(call, tool, self._view).at_exception(recover).at_done(settle)
        self.call_handler(node, timeout=timeout, claim=True)

    def _settle(self, result: ToolResult) -> None:
        self._results[result.tool_call_id or ""] = result
        emit(self, "tool_result", result)
        self._view.answered(result)


@handler
async def call_tool(node: Node[Any], call: ToolCall, tool: AnyTool, view: View) -> ToolResult:
    """Run one call."""
    return _result(call, await tool.run(call.arguments), "ok")


@handler
async def ask_first(node: Node[Any], call: ToolCall, tool: AnyTool, view: View) -> ToolResult:
    """Run one call if a person says yes; the tool's timeout begins then."""
    tool.check(call.arguments)
    if not await view.approve(call):
        return _result(call, "Error: the user did not allow this call", "failed")
    return await node.call_handler(call_tool(call, tool, view), timeout=tool.timeout, claim=True)


def _fault(call: ToolCall, tool: AnyTool, error: BaseException | None) -> ToolResult:
    """Say in words for the model why a call gave no result."""
    match error:
        case InvalidArguments():
            return _result(call, f"Error: {error}", "invalid")
        case ToolError():
            said = str(error)
        case NodeCancelled():
            said = f"the call was cancelled{error.reason and ': '}{error.reason}"
        case TimeoutError() if tool.timeout is not None:
            said = f"{call.name} did not finish within {tool.timeout:g} seconds"
        case _:
            logger.info("tool %s raised", call.name, exc_info=error)
            said = f"{type(error).__name__}: {error}"
    return _result(call, f"Error: {said}", "failed")


def _result(call: Call, text: str, status: Literal["ok", "failed", "invalid"]) -> ToolResult:
    return ToolResult(content=text, tool_call_id=call.id, name=call.name or None, status=status)
