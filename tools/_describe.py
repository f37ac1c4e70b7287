"""Tools as text for a prompt, in the formats that models have been trained on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias, cast, get_args

from ._schema import as_list, as_mapping
from ._tool import AnyTool
from .toolkits import Toolkit, flatten

__all__ = ["PromptFormat", "describe"]

TYPES = 2000  # written for one tool; what is beyond is "any"

PromptFormat: TypeAlias = Literal["json", "hermes", "typescript", "list"]


def describe(tools: Iterable[AnyTool | Toolkit], format: PromptFormat = "json") -> str:  # noqa: A002
    """Return the tools as text for a prompt.

    "json" is the list that the chat-completions wire carries, "hermes" one such object a line
    inside `<tools>`, "typescript" a namespace of function types, "list" a line a tool and one an
    argument. Raises `ValueError` for another format.
    """
    if format not in get_args(PromptFormat):
        formats = ", ".join(get_args(PromptFormat))
        raise ValueError(f"format must be one of {formats}, not {format!r}")
    found = flatten(tools)
    if format == "typescript":
        parts = ["namespace functions {"]
        for tool in found:
            fields = _Schema(tool.parameters).fields(tool.parameters, "  ")
            arguments = f"_: {{\n{fields}\n}}" if fields else ""
            parts.append(f"{_comment(tool.description)}type {tool.name} = ({arguments}) => any;")
        return "\n\n".join([*parts, "}"])
    if format == "list":
        items: list[str] = []  # lines for people and small models
        for tool in found:
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
        for tool in found
    ]
    if format == "json":
        return json.dumps(objects, indent=2, ensure_ascii=False)
    # No model should be able to read an end of the block in a description.
    lines = [json.dumps(each, ensure_ascii=False).replace("</", "<\\/") for each in objects]
    return "\n".join(["<tools>", *lines, "</tools>"])


class _Schema:
    """Writes the types of one JSON schema as TypeScript does.

    The schema may be a stranger's, in which anything may stand anywhere.
    """

    def __init__(self, root: Mapping[str, Any], *, comments: bool = True) -> None:
        self._comments = comments
        self._definitions = as_mapping(root.get("$defs"))
        # The definitions being written: one that contains itself is named, not written again.
        self._open: list[str] = []
        self._left = TYPES

    def type(self, schema: Any, indent: str = "") -> str:
        """Return the type that `schema` stands for."""
        self._left -= 1  # a reference to two others that refer to two others has no end
        if not isinstance(schema, Mapping) or self._left < 0:
            return "any"
        found = cast("Mapping[str, Any]", schema)
        if reference := found.get("$ref"):
            name = str(reference).rpartition("/")[2]
            if name in self._open:
                return name
            self._open.append(name)
            written = self.type(self._definitions.get(name), indent)
            self._open.pop()
            return written
        if "const" in found:
            return json.dumps(found["const"], ensure_ascii=False)
        if "enum" in found:
            choices = as_list(found["enum"])
            return " | ".join(json.dumps(each, ensure_ascii=False) for each in choices)
        for key in ("anyOf", "oneOf"):
            if key in found:
                branches = as_list(found[key])
                return " | ".join(dict.fromkeys(self.type(each, indent) for each in branches))
        kind = found.get("type")
        if isinstance(kind, list):
            kinds = cast("list[Any]", kind)
            return " | ".join(self.type({**found, "type": each}, indent) for each in kinds)
        if kind == "array":
            inner = self.type(found.get("items"), indent)
            return f"({inner})[]" if " | " in inner else f"{inner}[]"
        if kind == "object":
            if fields := self.fields(found, indent + "  "):
                return f"{{\n{fields}\n{indent}}}"
            values = found.get("additionalProperties")
            return f"Record<string, {self.type(values, indent)}>" if values else "object"
        return {"integer": "number"}.get(str(kind), str(kind or "any"))

    def fields(self, schema: Mapping[str, Any], indent: str) -> str:
        """Return the properties of an object, a line each."""
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
