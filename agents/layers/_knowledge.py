"""What an agent knows beside its memory: documents that are searched for each question."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from ...handlers import View, look_up
from ...messages import Conversation
from ...tools import AnyTool
from ._call import run_in_tree
from ._memory import SessionId

if TYPE_CHECKING:
    from ._agent import Agent

__all__ = ["Knowledge", "citations", "search_first"]


class Knowledge(Protocol):
    """Something that can be searched and cited, as `anabranch.knowledge.Index`."""

    def as_tool(self, *, k: int = 5) -> AnyTool:
        """Return the tool that searches for `k` passages; it takes a `query`."""
        ...

    def cited(self, answer: str, found: Iterable[str]) -> list[dict[str, Any]]:
        """Return what an answer cites of what the tool gave, as JSON values."""
        ...


async def search_first(
    agent: Agent[Any], conversation: Conversation, session_id: SessionId, view: View
) -> bool:
    """Search for what an agent was asked, through its hooks; say whether it was searched."""
    if agent.knowledge_tool is None:
        return False
    tool = agent.hooked(agent.knowledge_tool, session_id)
    return await run_in_tree(look_up(conversation, tool, view))


def citations(agent: Agent[Any], conversation: Conversation, answer: str) -> dict[str, Any]:
    """Return what an answer's `extra` says of whom it cites."""
    if agent.knowledge is None or agent.knowledge_tool is None:
        return {}
    name = agent.knowledge_tool.name
    said = (each for each in conversation.messages if each.role == "tool" and each.name == name)
    return {"citations": agent.knowledge.cited(answer, [each.content or "" for each in said])}
