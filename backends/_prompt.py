"""What every model in this process can read, and which tool a request wants called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from ..commander.errors import ConfigurationError
from ..messages import Message, ToolSchema

__all__ = ["Chat", "named_tool", "plain_chat"]

Chat: TypeAlias = list[dict[str, str]]


def plain_chat(messages: Sequence[Message]) -> Chat:
    """Write a conversation as the roles that every model knows, each two neighbours different.

    A tool's result joins the user's question, and the call between them is left out.
    """
    chat: Chat = []
    for message in messages:
        role, text = message.role, message.content or ""
        if role == "tool":
            role, text = "user", f"The tool's result: {text}"
        elif role == "developer":
            role = "system"
        if chat and chat[-1]["role"] == role:
            chat[-1]["content"] += f"\n{text}"
        elif text or not message.tool_calls:
            chat.append({"role": role, "content": text})
    return chat


def named_tool(tools: Sequence[ToolSchema], tool_choice: Mapping[str, Any]) -> ToolSchema:
    """Return the tool that `tool_choice` names. Raises `ConfigurationError` if there is none."""
    name = tool_choice.get("function", {}).get("name")
    for tool in tools:
        if tool.name == name:
            return tool
    raise ConfigurationError(f"tool_choice names {name!r}, which is not among the request's tools")
