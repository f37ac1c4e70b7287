"""Tools whose calls may also speak to the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..messages import ToolSchema, has_parameter

__all__ = ["with_narration"]

TO_USER = {"type": "string", "description": "What to tell the user while the tool runs."}


@dataclass(frozen=True, slots=True)
class _NarratingTool:
    name: str
    description: str
    parameters: Mapping[str, Any]
    narration: str  # the parameter that is not the tool's own


def with_narration(tools: Sequence[ToolSchema], key: str = "to_user") -> list[ToolSchema]:
    """Return the tools' schemas with one more argument, `key`: words for the user.

    `fork(..., to_user=key)` shows them as they arrive and takes them out of the arguments. A tool
    that has an argument of that name of its own stays as it is, and `fork(..., tools=tools)` then
    leaves it alone.
    """
    found: list[ToolSchema] = []
    for tool in tools:
        if not has_parameter(tool, key):
            own: Mapping[str, Any] = tool.parameters.get("properties") or {}
            # First, so that the user reads it before the other arguments have come.
            parameters = {**tool.parameters, "properties": {key: TO_USER, **own}}
            tool = _NarratingTool(tool.name, tool.description, parameters, key)
        found.append(tool)
    return found
