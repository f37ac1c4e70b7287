"""Fit requests to a model: leave out parts it does not take, and use roles that it knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ..commander.errors import ConfigurationError
from ..messages import Message, Request, ToolSchema

if TYPE_CHECKING:
    from ._backend import Backend

__all__ = ["Chat", "can_take", "fit_parts", "named_tool", "plain_chat", "plain_messages"]


def fit_parts(backend: Backend, request: Request, *, strict: bool = False) -> Request:
    """Return the request without the parts that the model is known not to take.

    A note replaces such a part of an older message, as for another model, or, unless `strict`, of a
    tool's result. A part of a newest message raises `ConfigurationError`, because it would be lost
    without notice.
    """
    takes = backend.takes
    if takes is None or not any(message.parts for message in request.messages):
        return request
    options = {**getattr(backend, "default_options", {}), **request.options}
    answered = max((n for n, m in enumerate(request.messages) if m.role == "assistant"), default=-1)
    messages: list[Message] = []
    for number, message in enumerate(request.messages):
        sent = message.role != "tool" or options.get("tool_images")
        refused = [part for part in message.parts if sent and not part.needs <= takes]
        if refused and number > answered and (strict or message.role != "tool"):
            what = "as an address: give its bytes" if refused[0].kind in takes else "at all"
            raise ConfigurationError(
                f"{backend!r} cannot take {refused[0].about} {what}; "
                f"of images and files it takes {', '.join(sorted(takes - {'url'})) or 'text alone'}"
            )
        if refused:
            notes = (f"[{part.about}, which you cannot see]" for part in refused)
            update = {
                "content": "\n".join(filter(None, [message.content, *notes])),
                "parts": [part for part in message.parts if part not in refused],
            }
            message = message.model_copy(update=update)
        messages.append(message)
    return Request(messages, request.tools, request.options)


def can_take(backend: Backend, request: Request) -> bool:
    """Return whether `backend` takes all parts of a request's newest messages."""
    try:
        fit_parts(backend, request, strict=True)
    except ConfigurationError:
        return False
    return True


Chat: TypeAlias = list[dict[str, str]]


def plain_chat(messages: Sequence[Message]) -> Chat:
    """Return `plain_messages` as role and text, for a model that takes only text."""
    plain = plain_messages(messages)
    return [{"role": each.role, "content": each.content or ""} for each in plain]


def plain_messages(messages: Sequence[Message]) -> list[Message]:
    """Return a conversation in the roles that every model knows, which alternate.

    A tool's result joins the user's question, and the call before it is left out. Text files are
    put into the text.
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
    raise ConfigurationError(f"tool_choice names {name!r}, which is not a tool of the request")
