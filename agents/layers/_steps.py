"""The steps of an agent towards its answer: thoughts, calls, results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, TypedDict, cast

from ...messages import Message
from ._memory import TOOLS
from ._message import AgentMessage

__all__ = ["AgentStep", "steps_of"]


class AgentStep(TypedDict):
    """A thought, a call, or a call's result; `name` says which tool, or which kind of tool."""

    kind: Literal["thought", "call", "result"]
    content: Any
    name: str | None


def steps_of(messages: Iterable[AgentMessage], name: str) -> list[AgentStep]:
    """Return the steps that the memory of the agent called `name` tells of."""
    steps: list[AgentStep] = []
    kind: str | None = None
    for message in messages:
        formatted: object = message.formatted
        if message.type == "tool_result":
            steps.append(AgentStep(kind="result", content=message.content, name=kind))
        elif message.sender != name:
            continue
        elif message.type == TOOLS:
            steps += (step for part in cast("list[Message]", formatted) for step in _native(part))
        elif isinstance(formatted, Mapping) and "tool_type" in formatted:
            action = cast("Mapping[str, Any]", formatted)
            kind = action["tool_type"]
            steps += _written(action)
        else:
            steps.append(AgentStep(kind="thought", content=message.content, name=None))
    return steps


def _native(part: Message) -> Iterator[AgentStep]:
    if part.role == "tool":
        yield AgentStep(kind="result", content=part.content, name=part.name)
    elif part.content:
        yield AgentStep(kind="thought", content=part.content, name=None)
    for call in part.tool_calls:
        yield AgentStep(kind="call", content=call.arguments, name=call.name)


def _written(action: Mapping[str, Any]) -> Iterator[AgentStep]:
    if action["thought"]:
        yield AgentStep(kind="thought", content=action["thought"], name=None)
    if action["tool_type"] is not None:
        yield AgentStep(kind="call", content=action["action"], name=action["tool_type"])
