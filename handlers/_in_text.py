"""A request for a model that is told of its tools, and of its calls, by its prompt alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias, cast

from ..dispatch import Format
from ..messages import Message, Request
from ..tools import AnyTool, describe

__all__ = ["in_text"]

Writer: TypeAlias = Callable[[str], Format | None]


def in_text(request: Request, formats: Iterable[Format]) -> Request:
    """Return the request with all that a format with an `instruction` can write as text.

    Tools become a part of the system prompt, earlier calls a part of what the assistant said, their
    results a message of the user's. Other tools stay as they are.
    """
    told = [each for each in formats if each.instruction]
    if not told:
        return request

    def writer(name: str) -> Format | None:
        return next((each for each in told if each.tool in (None, name)), None)

    messages = list(_in_text(request.messages, writer))
    silent = request.options.get("tool_choice") == "none"
    tools = cast("list[AnyTool]", [] if silent else request.tools)
    about = [
        each.instruction.replace("{tools}", describe(own, "list"))
        for each in told
        if (own := [tool for tool in tools if writer(tool.name) is each])
    ]
    if about:
        if messages and messages[0].role == "system" and messages[0].content:
            about.insert(0, messages.pop(0).content or "")
        messages.insert(0, Message(role="system", content="\n\n".join(about)))
    others = [tool for tool in request.tools if writer(tool.name) is None]
    return Request(messages, others, request.options)


def _in_text(messages: Iterable[Message], writer: Writer) -> Iterator[Message]:
    written: set[str] = set()  # the ids of the calls of the last reply that became text
    results: list[Message] = []  # theirs; they come after those of other calls
    for message in (*messages, None):
        if message is not None and message.role == "tool":
            if message.tool_call_id in written:
                results.append(message)
            else:
                yield message
            continue
        if results:
            said = [f"Observation: {result.content}" for result in results]
            images = [image for result in results for image in result.images]
            results = []
            if message is not None and message.role == "user":
                said += [message.content] if message.content else []
                message = message.model_copy(update={"images": [*images, *message.images]})
                message.content = "\n".join(said)
            else:
                yield Message(role="user", content="\n".join(said), images=images)
        if message is not None:
            texts = {c.id: f.write(c) for c in message.tool_calls if (f := writer(c.name))}
            written = {*texts}
            if texts:
                calls = [call for call in message.tool_calls if call.id not in texts]
                content = "\n".join([*filter(None, [message.content]), *texts.values()])
                message = message.model_copy(update={"content": content, "tool_calls": calls})
            yield message
