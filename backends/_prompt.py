"""What every model in this process can read, and which tool a request wants called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from ..commander.errors import ConfigurationError
from ..messages import Message, ToolSchema

__all__ = ["Chat", "named_tool", "plain_chat", "plain_messages"]

Chat: TypeAlias = list[dict[str, str]]


def plain_chat(messages: Sequence[Message]) -> Chat:
    """Write a conversation as `plain_messages` does, for a model that takes text alone."""
    plain = plain_messages(messages)
    return [{"role": each.role, "content": each.content or ""} for each in plain]


def plain_messages(messages: Sequence[Message]) -> list[Message]:
    """Write a conversation as the roles that every model knows, each two neighbours different.

    A tool's result joins the user's question, and the call between them is left out. Files of text
    stand in the text.
    """
    chat: list[Message] = []
    for message in messages:
        role, text = message.role, message.whole_text or ""
        parts = [part for part in message.parts if part.kind != "text"]
        if role == "tool":
            role, text, parts = "user", f"The tool's result: {text}", []
        elif role == "developer":
            role = "system"
        if chat and chat[-1].role == role:
            last = chat[-1]
            text, parts = f"{last.content}\n{text}", last.parts + parts
            chat[-1] = Message(role=role, content=text, parts=parts)
        elif text or parts or not message.tool_calls:
            chat.append(Message(role=role, content=text, parts=parts))
    return chat


def named_tool(tools: Sequence[ToolSchema], tool_choice: Mapping[str, Any]) -> ToolSchema:
    """Return the tool that `tool_choice` names. Raises `ConfigurationError` if there is none."""
    name = tool_choice.get("function", {}).get("name")
    for tool in tools:
        if tool.name == name:
            return tool
    raise ConfigurationError(f"tool_choice names {name!r}, which is not among the request's tools")
