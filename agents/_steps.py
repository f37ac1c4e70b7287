"""The steps of an agent towards its answer: thoughts, calls, results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, TypedDict, cast

from ..messages import Message
from ._memory import TOOLS
from ._message import AgentMessage

__all__ = ["Step", "steps_of"]


class Step(TypedDict):
    """A thought, a call, or a call's result; `name` says which tool, or which kind of tool."""

    kind: Literal["thought", "call", "result"]
    content: Any
    name: str | None


def steps_of(messages: Iterable[AgentMessage], name: str) -> list[Step]:
    """Return the steps that the memory of the agent called `name` tells of."""
    steps: list[Step] = []
    kind: str | None = None
    for message in messages:
        formatted: object = message.formatted
        if message.type == "tool_result":
            steps.append(Step(kind="result", content=message.content, name=kind))
        elif message.sender != name:
            continue
        elif message.type == TOOLS:
            steps += (step for part in cast("list[Message]", formatted) for step in _native(part))
        elif isinstance(formatted, Mapping) and "tool_type" in formatted:
            action = cast("Mapping[str, Any]", formatted)
            kind = action["tool_type"]
            steps += _written(action)
        else:
            steps.append(Step(kind="thought", content=message.content, name=None))
    return steps


def _native(part: Message) -> Iterator[Step]:
    if part.role == "tool":
        yield Step(kind="result", content=part.content, name=part.name)
    elif part.content:
        yield Step(kind="thought", content=part.content, name=None)
    for call in part.tool_calls:
        yield Step(kind="call", content=call.arguments, name=call.name)


def _written(action: Mapping[str, Any]) -> Iterator[Step]:
    if action["thought"]:
        yield Step(kind="thought", content=action["thought"], name=None)
    if action["tool_type"] is not None:
        yield Step(kind="call", content=action["action"], name=action["tool_type"])
