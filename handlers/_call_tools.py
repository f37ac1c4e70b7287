"""Run the tools that a reply calls, each call a node of its own."""

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
    """Make the node that runs `calls` while they arrive; its result is a `ToolResult` for each.

    A call of a read-only tool about which nobody is asked starts at once; any other when `calls`
    has ended, which is when the reply is whole. If `calls` raises, the calls that run are cancelled
    and no other starts. The results come in the order of the calls. What goes wrong with one call
    (wrong arguments, an unknown tool, an exception, its timeout, its own cancellation) is told in
    its result and concerns no other; an exception's traceback is logged at level INFO. Raises
    `ConfigurationError` if two tools have the same name.
    """
    return CallTools(calls, tools, view or View())


class CallTools(Node[list[ToolResult]], internal=True):
    """The node that `call_tools` makes."""

    def __init__(self, calls: AsyncIterable[Call], tools: Iterable[AnyTool], view: View) -> None:
        self._calls = calls
        self._tools = by_name(tools)
        self._view = view
        self._seen: list[Call] = []
        self._results: dict[int, ToolResult] = {}  # by place in `_seen`: ids may be the same

    async def task(self) -> list[ToolResult]:
        """Start each call in its time, wait for all, and put the results in order."""
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

        A call without one is answered by the news that it was interrupted.
        """
        places = {(call.index, call.id): place for place, call in enumerate(self._seen)}
        given = [self._results.get(places.get((c.index, c.id), -1)) for c in message.tool_calls]
        return [
            answer or ToolResult.of(call, "The call was interrupted.", "failed")
            for call, answer in zip(message.tool_calls, given, strict=True)
        ]

    def _start(self, place: int, call: ToolCall, tool: AnyTool) -> None:
        self._view.called(call)
        node = start_call(self, call, tool, self._view.ask)
        node.at_done(lambda ended: self._settle(place, cast("CallNode", ended).answer))

    def _settle(self, place: int, result: ToolResult) -> None:
        self._results[place] = result
        emit(self, "tool_result", result)
        self._view.answered(result)
