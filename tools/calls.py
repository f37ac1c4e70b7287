"""One call of a tool as a node: asked about first if it must be, limited in time, never failing.

`start_call` is how every room runs a call: the handlers those of a reply, the agents those that
come as messages.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from ..commander import Node
from ..messages import ToolCall
from ._approval import Decision
from ._schema import InvalidArguments
from ._tool import AnyTool, contain_exit
from .results import ToolResult

__all__ = ["Ask", "CallNode", "start_call"]

Ask: TypeAlias = Callable[[ToolCall, AnyTool], Awaitable[bool | Decision]]
"""Asks a person whether a call may run."""


def start_call(parent: Node[object], call: ToolCall, tool: AnyTool, ask: Ask) -> CallNode:
    """Run `call` as a child of `parent`, after a person's yes if the tool wants one.

    Whatever goes wrong is told in the result, so the node does not fail; it may be cancelled.
    """
    node = _AskFirst(call, tool, ask) if tool.approve else _Run(call, tool)
    node.at_exception(
        lambda ended: ended.recover(ToolResult.of_error(call, ended.error, tool.timeout))
    )
    if tool.approve:  # what is limited and tried again is the call after the yes
        return parent.call_handler(node, claim=True)
    return parent.call_handler(node, timeout=tool.timeout, retry=tool.retry, claim=True)


class CallNode(Node[ToolResult], internal=True):
    """The node of one call; it goes by the tool's name."""

    def __init__(self, call: ToolCall, tool: AnyTool, name: str = "") -> None:
        super().__init__(name or tool.name)
        self._call = call
        self._tool = tool

    @property
    def answer(self) -> ToolResult:
        """What the call has given when the node is done, also if it was cancelled."""
        return self.result or ToolResult.of_error(self._call, self.error)


class _Run(CallNode, internal=True):
    async def task(self) -> ToolResult:
        try:
            with contain_exit(KeyboardInterrupt):  # the user's own Ctrl-C
                return ToolResult.of(self._call, await self._tool.run(self._call.arguments))
        except InvalidArguments as error:  # no failure: another attempt would not mend them
            return ToolResult.of_error(self._call, error)


class _AskFirst(CallNode, internal=True):
    def __init__(self, call: ToolCall, tool: AnyTool, ask: Ask) -> None:
        super().__init__(call, tool, f"ask_first:{tool.name}")
        self._ask = ask

    async def task(self) -> ToolResult:
        """Ask, then run what was allowed; arguments that are wrong are not asked about.

        What was asked about is what runs: an agent's hooks have seen it before, and nobody else
        has hold of it, whoever has the message.
        """
        with contain_exit(KeyboardInterrupt):
            arguments, tool = await self._tool.prepare(self._call.arguments)
            tool.check(arguments)
        call = self._call
        if arguments is not call.arguments:
            call = call.model_copy(update={"arguments": arguments, "raw": None})
        call = call.model_copy(deep=True)
        decision = Decision.of(await self._ask(call.model_copy(deep=True), tool))
        if not decision.approved:
            why = f": {decision.reason}" if decision.reason else ""
            text = f"Error: the user did not allow this call{why}"
            return ToolResult.of(self._call, text, "failed")
        call = decision.apply_to(call)
        running = _Run(call, tool)
        answer = await self.call_handler(
            running, timeout=tool.timeout, retry=tool.retry, claim=True
        )
        if decision.arguments is not None:
            # Or the model would take the result for that of the call it made.
            answer.content = f"(The user changed the arguments to {call.text})\n{answer.content}"
        return answer
