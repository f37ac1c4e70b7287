"""An agent that calls its tools through an executor, and the messages that request a call."""

from __future__ import annotations

from typing import Any, ClassVar

from anabranch import Agent, AgentMessage
from anabranch.agents import ToolExecutor

__all__ = ["ExecutorAgent", "call_message"]


def call_message(tool: str, **arguments: object) -> AgentMessage:
    return AgentMessage(content={"name": tool, "parameters": arguments})


class ExecutorAgent(Agent[Any]):
    """An agent whose own `forward` uses an executor without a session.

    It calls `tool` with the content of the last message as the only argument, `argument`.
    """

    tool: ClassVar[str]
    argument: ClassVar[str]

    def __init__(self, kit: Any) -> None:
        super().__init__()
        self.executor = ToolExecutor([kit])

    async def forward(self, *messages: Any, **options: Any) -> str:
        call = call_message(self.tool, **{self.argument: messages[-1].content})
        return (await self.executor(call)).content
