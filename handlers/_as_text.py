"""A request to a model that is told of its tools, and of its earlier calls, by text alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias, cast

from ..dispatch import Format
from ..messages import Message, Request
from ..tools import AnyTool, describe

__all__ = ["write_as_text"]

FormatOf: TypeAlias = Callable[[str], Format | None]


def write_as_text(request: Request, formats: Iterable[Format]) -> Request:
    """Return the request with all that a format with an `instruction` can write as text.

    Tools become a part of the system prompt, earlier calls a part of what the assistant said, their
    results a message of the user's. Other tools stay as they are.
    """
    instructing = [each for each in formats if each.instruction]
    if not instructing:
        return request

    def format_of(tool: str) -> Format | None:
        return next((each for each in instructing if each.tool in (None, tool)), None)

    messages = list(_messages_as_text(request.messages, format_of))
    silent = request.options.get("tool_choice") == "none"
    tools = cast("list[AnyTool]", [] if silent else request.tools)
    instructions = [
        each.instruction.replace("{tools}", describe(own, "list"))
        for each in instructing
        if (own := [tool for tool in tools if format_of(tool.name) is each])
    ]
    if instructions:
        if not messages or messages[0].role not in ("system", "developer"):
            messages.insert(0, Message(role="system"))
        content = "\n\n".join(filter(None, [messages[0].content, *instructions]))
        messages[0] = messages[0].model_copy(update={"content": content})
    others = [tool for tool in request.tools if format_of(tool.name) is None]
    return Request(messages, others, request.options)


def _messages_as_text(messages: Iterable[Message], format_of: FormatOf) -> Iterator[Message]:
    ids: set[str | None] = set()  # of the calls of the last reply that became text
    results: list[Message] = []  # theirs; they come after those of its other calls
    for message in (*messages, None):
        if message is not None and message.role == "tool":
            if message.tool_call_id in ids:
                results.append(message)
            else:
                yield message
            continue
        if results:
            lines = [f"Observation: {result.content}" for result in results]
            parts = [part for result in results for part in result.parts]
            results = []
            if message is not None and message.role == "user":  # the roles take turns
                parts += message.parts
                lines += [message.content] if message.content else []
                message = message.model_copy(update={"parts": parts})
                message.content = "\n".join(lines)
            else:
                yield Message(role="user", content="\n".join(lines), parts=parts)
        if message is not None:
            texts = [each.write(c) for c in message.tool_calls if (each := format_of(c.name))]
            ids = {call.id for call in message.tool_calls if format_of(call.name)}
            if texts:
                calls = [call for call in message.tool_calls if not format_of(call.name)]
                content = "\n".join(filter(None, [message.content, *texts]))
                message = message.model_copy(update={"content": content, "tool_calls": calls})
            yield message
