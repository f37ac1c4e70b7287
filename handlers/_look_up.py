"""Search for what was asked before the model is, as if it had called for that."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from itertools import count
from typing import Any

from ..commander import Node
from ..messages import Conversation, Message, ToolCall
from ..tools import AnyTool
from ._call_tools import call_tools
from ._handler import handler
from ._view import View

__all__ = ["look_up"]


@handler
async def look_up(
    node: Node[Any], conversation: Conversation, tool: AnyTool, view: View | None = None
) -> bool:
    """Call `tool`, which takes a `query`, with what the user has said last; say whether it was.

    The call and its result enter the conversation, both or neither: what documents say stands in a
    tool's result, where they cannot speak as the user or as the system. A search that fails is
    told there, as of any tool. Does nothing if the last message is not the user's.
    """
    asked = conversation.messages[-1] if conversation.messages else None
    if asked is None or asked.role != "user":
        return False
    taken = {each.id for message in conversation.messages for each in message.tool_calls}
    # Not always the length: a memory that leaves out the oldest may be as long the next time.
    name = next(
        name for n in count(len(conversation.messages)) if (name := f"look_up_{n}") not in taken
    )
    call = ToolCall(id=name, name=tool.name, arguments={"query": asked.content or ""})

    async def calls() -> AsyncGenerator[ToolCall, None]:
        yield call

    found = await node.call_handler(call_tools(calls(), [tool], view))
    conversation.add(Message(role="assistant", tool_calls=[call]), *found)
    return True
