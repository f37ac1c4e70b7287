"""Tools whose calls may also speak to the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..dispatch import ToolSchema

__all__ = ["narrated"]

TO_USER = {"type": "string", "description": "What to tell the user while the tool runs."}


@dataclass(frozen=True, slots=True)
class _Narrated:
    name: str
    description: str
    parameters: Mapping[str, Any]


def narrated(tools: Sequence[ToolSchema], key: str = "to_user") -> list[ToolSchema]:
    """Return the tools' schemas with one more argument, `key`: words for the user.

    `fork(..., to_user=key)` shows them as they arrive and takes them out of the arguments. A tool
    that has an argument of that name already stays as it is.
    """
    return [tool if key in _properties(tool) else _with(tool, key) for tool in tools]


def _properties(tool: ToolSchema) -> Mapping[str, Any]:
    return tool.parameters.get("properties", {})


def _with(tool: ToolSchema, key: str) -> _Narrated:
    # First, so that the user reads it before the other arguments have come.
    parameters = {**tool.parameters, "properties": {key: TO_USER, **_properties(tool)}}
    return _Narrated(tool.name, tool.description, parameters)
