"""Tools as text for a prompt, and schemas by which a model adds a text for the user to a call."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast, get_args

from ..messages import ToolSchema, has_parameter
from ._schema import as_list, as_mapping
from .toolkits import ToolLike, flatten

__all__ = ["PromptFormat", "describe", "with_narration"]

# Bounds the output for one tool: types after these are written as "any".
MAX_TYPES = 2000

PromptFormat: TypeAlias = Literal["json", "hermes", "typescript", "list"]


def describe(tools: Iterable[ToolLike], format: PromptFormat = "json") -> str:  # noqa: A002
    """Return the tools as text for a prompt.

    - "json": the list of objects that a chat-completions request has
    - "hermes": one such object on each line, inside `<tools>`
    - "typescript": a namespace of function types
    - "list": one line for each tool and each argument, for small models

    Raises `ValueError` for another format.
    """
    if format not in get_args(PromptFormat):
        formats = ", ".join(get_args(PromptFormat))
        raise ValueError(f"format must be one of {formats}, not {format!r}")
    selected = flatten(tools)
    if format == "typescript":
        parts = ["namespace functions {"]
        for tool in selected:
            fields = _Schema(tool.parameters).fields(tool.parameters, "  ")
            arguments = f"_: {{\n{fields}\n}}" if fields else ""
            parts.append(f"{_comment(tool.description)}type {tool.name} = ({arguments}) => any;")
        return "\n\n".join([*parts, "}"])
    if format == "list":
        items: list[str] = []
        for tool in selected:
            schema = _Schema(tool.parameters, comments=False)
            required = as_list(tool.parameters.get("required"))
            items.append(f"- {tool.name}: {' '.join(tool.description.split())}".rstrip(": "))
            for name, field in as_mapping(tool.parameters.get("properties")).items():
                optional = "" if name in required else ", optional"
                kind = " ".join(schema.type(field).split())
                items.append(f"    {name} ({kind}{optional}): {_description(field)}".rstrip(": "))
        return "\n".join(items)
    objects = [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": dict(tool.parameters),
            },
        }
        for tool in selected
    ]
    if format == "json":
        return json.dumps(objects, indent=2, ensure_ascii=False)
    # A description must not be able to close the block.
    lines = [json.dumps(each, ensure_ascii=False).replace("</", "<\\/") for each in objects]
    return "\n".join(["<tools>", *lines, "</tools>"])


class _Schema:
    """Writes the types of one JSON schema as TypeScript.

    The schema may come from another author: any value may have any type.
    """

    def __init__(self, root: Mapping[str, Any], *, comments: bool = True) -> None:
        self._comments = comments
        self._definitions = as_mapping(root.get("$defs"))
        # Definitions being written. A recursive one is named instead of written again, so writing
        # ends.
        self._open: list[str] = []
        self._left = MAX_TYPES

    def type(self, schema: Any, indent: str = "") -> str:
        """Return the TypeScript type of `schema`."""
        # References that fork (two in each of n definitions) would need 2**n steps.
        self._left -= 1
        if not isinstance(schema, Mapping) or self._left < 0:
            return "any"
        selected = cast("Mapping[str, Any]", schema)
        if reference := selected.get("$ref"):
            name = str(reference).rpartition("/")[2]
            if name in self._open:
                return name
            self._open.append(name)
            written = self.type(self._definitions.get(name), indent)
            self._open.pop()
            return written
        if "const" in selected:
            return json.dumps(selected["const"], ensure_ascii=False)
        if "enum" in selected:
            choices = as_list(selected["enum"])
            return " | ".join(json.dumps(each, ensure_ascii=False) for each in choices)
        for key in ("anyOf", "oneOf"):
            if key in selected:
                branches = as_list(selected[key])
                return " | ".join(dict.fromkeys(self.type(each, indent) for each in branches))
        kind = selected.get("type")
        if isinstance(kind, list):
            kinds = cast("list[Any]", kind)
            return " | ".join(self.type({**selected, "type": each}, indent) for each in kinds)
        if kind == "array":
            inner = self.type(selected.get("items"), indent)
            return f"({inner})[]" if " | " in inner else f"{inner}[]"
        if kind == "object":
            if fields := self.fields(selected, indent + "  "):
                return f"{{\n{fields}\n{indent}}}"
            values = selected.get("additionalProperties")
            return f"Record<string, {self.type(values, indent)}>" if values else "object"
        return {"integer": "number"}.get(str(kind), str(kind or "any"))

    def fields(self, schema: Mapping[str, Any], indent: str) -> str:
        """Return the properties of an object, one on each line."""
        required = as_list(schema.get("required"))
        return "\n".join(
            _comment(_description(field) if self._comments else "", indent)
            + f"{indent}{name}{'' if name in required else '?'}: {self.type(field, indent)},"
            for name, field in as_mapping(schema.get("properties")).items()
        )


def _comment(text: str, indent: str = "") -> str:
    return "".join(f"{indent}// {line}".rstrip() + "\n" for line in text.splitlines())


def _description(field: Any) -> str:
    return str(as_mapping(field).get("description", ""))


TO_USER_SCHEMA = {"type": "string", "description": "What to tell the user while the tool runs."}


@dataclass(frozen=True, slots=True)
class _NarratingTool:
    name: str
    description: str
    parameters: Mapping[str, Any]
    narration: str  # the name of the added parameter


def with_narration(tools: Sequence[ToolSchema], key: str = "to_user") -> list[ToolSchema]:
    """Return the tools' schemas with one more parameter, `key`: a text for the user.

    `fork(..., to_user=key)` shows that text while it streams and removes it from the arguments. A
    tool that already has a parameter of this name stays unchanged, and `fork(..., tools=tools)`
    does not touch its calls.
    """
    selected: list[ToolSchema] = []
    for tool in tools:
        if not has_parameter(tool, key):
            properties: Mapping[str, Any] = tool.parameters.get("properties") or {}
            # First, so that the user reads the text before the other arguments have arrived.
            parameters = {**tool.parameters, "properties": {key: TO_USER_SCHEMA, **properties}}
            tool = _NarratingTool(tool.name, tool.description, parameters, key)
        selected.append(tool)
    return selected
