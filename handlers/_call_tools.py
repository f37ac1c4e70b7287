"""`call_tools`: run the tool calls of a reply, each as a node."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from contextlib import suppress
from typing import TypeAlias, cast

from ..commander import Node, NodeCancelled, emit
from ..messages import Message, ToolCall, ToolCallError
from ..tools import AnyTool, ToolResult
from ..tools.calls import CallNode, start_call
from ..tools.toolkits import by_name
from ._view import View

__all__ = ["CallTools", "call_tools"]

Call: TypeAlias = ToolCall | ToolCallError


def call_tools(
    calls: AsyncIterable[Call], tools: Iterable[AnyTool], view: View | None = None
) -> CallTools:
    """Return the node that runs `calls` as they arrive; its result is a `ToolResult` for each.

        results = await node.call_handler(call_tools(reply.tool_calls, tools, view))

    A call of a read-only tool without approval starts at once. Any other one starts when `calls`
    has ended, because then the reply is complete. If `calls` raises, running calls are cancelled
    and no other one starts. The results are in the order of the calls. A failure of one call (wrong
    arguments, an unknown tool, an exception, its timeout or cancellation) is its result and does
    not affect the others. A traceback is logged at level INFO. Raises `ConfigurationError` if two
    tools have one name.
    """
    return CallTools(calls, tools, view or View())


class CallTools(Node[list[ToolResult]], internal=True):
    """The node of `call_tools`."""

    def __init__(self, calls: AsyncIterable[Call], tools: Iterable[AnyTool], view: View) -> None:
        self._calls = calls
        self._tools = by_name(tools)
        self._view = view
        self._seen: list[Call] = []
        self._results: dict[int, ToolResult] = {}  # by index in `_seen`, because ids may be equal

    async def task(self) -> list[ToolResult]:
        """Start the calls, wait for all, and return the results in order."""
        waiting: list[tuple[int, ToolCall, AnyTool]] = []
        async for call in self._calls:
            place = len(self._seen)
            self._seen.append(call)
            if isinstance(call, ToolCallError):
                self._settle(place, ToolResult.of(call, str(call), "invalid"))
                continue
            emit(self, "tool_call", call)
            tool = self._tools.get(call.name)
            if tool is None:
                self._settle(place, ToolResult.of_unknown_tool(call, self._tools))
            elif tool.read_only and not tool.approve:
                self._start(place, call, tool)
            else:
                waiting.append((place, call, tool))
        for place, call, tool in waiting:
            self._start(place, call, tool)
        for node in self.children:
            with suppress(NodeCancelled):
                await node
        order = sorted(range(len(self._seen)), key=lambda place: self._seen[place].index)
        return [self._results[place] for place in order]

    def results(self, message: Message) -> list[ToolResult]:
        """Return a result for each call in `message`, also after this node was cancelled.

        A call without a result gets one that says it was interrupted.
        """
        places = {(call.index, call.id): place for place, call in enumerate(self._seen)}
        results = [self._results.get(places.get((c.index, c.id), -1)) for c in message.tool_calls]
        return [
            answer or ToolResult.of(call, "The call was interrupted.", "failed")
            for call, answer in zip(message.tool_calls, results, strict=True)
        ]

    def _start(self, place: int, call: ToolCall, tool: AnyTool) -> None:
        self._view.called(call)
        node = start_call(self, call, tool, self._view.ask)
        node.at_done(lambda ended: self._settle(place, cast("CallNode", ended).answer))

    def _settle(self, place: int, result: ToolResult) -> None:
        self._results[place] = result
        emit(self, "tool_result", result)
        self._view.answered(result)
