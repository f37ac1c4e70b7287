"""Tools as text for a prompt, in the formats that models have been trained on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeAlias, cast

from ..messages import ToolSchema
from ._tool import AnyTool
from .toolkits import Toolkit, flatten

__all__ = ["Format", "describe"]

TYPES = 2000  # written for one tool; what is beyond is "any"

Format: TypeAlias = Literal["json", "hermes", "typescript", "list"]


def describe(tools: Iterable[AnyTool | Toolkit], format: Format = "json") -> str:  # noqa: A002
    """Return the tools as text for a prompt.

    "json" is the list that the chat-completions wire carries, "hermes" one such object a line
    inside `<tools>`, "typescript" a namespace of function types, "list" a line a tool and one an
    argument. Raises `ValueError` for another format.
    """
    try:
        write = FORMATS[format]
    except KeyError:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, not {format!r}") from None
    return write(flatten(tools))


def _function(tool: ToolSchema) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": dict(tool.parameters),
    }
    return {"type": "function", "function": function}


def _json(tools: list[AnyTool]) -> str:
    return json.dumps([_function(tool) for tool in tools], indent=2, ensure_ascii=False)


def _hermes(tools: list[AnyTool]) -> str:
    # No model should be able to read an end of the block in a description.
    lines = [json.dumps(_function(tool), ensure_ascii=False) for tool in tools]
    return "\n".join(["<tools>", *(line.replace("</", "<\\/") for line in lines), "</tools>"])


def _typescript(tools: list[AnyTool]) -> str:
    return "\n\n".join(["namespace functions {", *map(_ts_function, tools), "}"])


def _ts_function(tool: ToolSchema) -> str:
    schema = _Schema(tool.parameters)
    head = _comment(tool.description, "")
    fields = schema.fields(tool.parameters, "  ")
    arguments = f"_: {{\n{fields}\n}}" if fields else ""
    return f"{head}type {tool.name} = ({arguments}) => any;"


def _comment(text: str, indent: str) -> str:
    return "".join(f"{indent}// {line}".rstrip() + "\n" for line in text.splitlines())


def _list(tools: list[AnyTool]) -> str:
    return "\n".join(map(_item, tools))


def _item(tool: ToolSchema) -> str:
    schema = _Schema(tool.parameters, comments=False)
    required = _list_of(tool.parameters.get("required"))
    lines = [f"- {tool.name}: {' '.join(tool.description.split())}".rstrip(": ")]
    for name, field in _mapping(tool.parameters.get("properties")).items():
        needed = "" if name in required else ", optional"
        kind = " ".join(schema.type(field).split())
        lines.append(f"    {name} ({kind}{needed}): {_said(field)}".rstrip(": "))
    return "\n".join(lines)


class _Schema:
    """Writes the types of one JSON schema as TypeScript does."""

    def __init__(self, root: Mapping[str, Any], *, comments: bool = True) -> None:
        self._comments = comments
        self._definitions = _mapping(root.get("$defs"))
        # The definitions being written: one that contains itself is named, not written again.
        self._open: list[str] = []
        self._left = TYPES

    def type(self, schema: Any, indent: str = "") -> str:
        """Return the type that `schema` stands for."""
        self._left -= 1  # a reference to two others that refer to two others has no end
        if not isinstance(schema, Mapping) or self._left < 0:
            return "any"
        found: Mapping[str, Any] = schema  # pyright: ignore[reportUnknownVariableType]
        if reference := found.get("$ref"):
            return self._named(str(reference).rpartition("/")[2], indent)
        if "const" in found:
            return json.dumps(found["const"], ensure_ascii=False)
        if "enum" in found:
            choices = _list_of(found["enum"])
            return " | ".join(json.dumps(each, ensure_ascii=False) for each in choices)
        for key in ("anyOf", "oneOf"):
            if key in found:
                branches = _list_of(found[key])
                return " | ".join(dict.fromkeys(self.type(each, indent) for each in branches))
        kind = found.get("type")
        if isinstance(kind, list):
            return " | ".join(self.type({**found, "type": each}, indent) for each in kind)  # pyright: ignore[reportUnknownVariableType]
        return self._plain(kind, found, indent)

    def _named(self, name: str, indent: str) -> str:
        if name in self._open:
            return name
        self._open.append(name)
        written = self.type(self._definitions.get(name), indent)
        self._open.pop()
        return written

    def _plain(self, kind: object, schema: Mapping[str, Any], indent: str) -> str:
        if kind == "array":
            inner = self.type(schema.get("items"), indent)
            return f"({inner})[]" if " | " in inner else f"{inner}[]"
        if kind == "object":
            if fields := self.fields(schema, indent + "  "):
                return f"{{\n{fields}\n{indent}}}"
            values = schema.get("additionalProperties")
            return f"Record<string, {self.type(values, indent)}>" if values else "object"
        return {"integer": "number"}.get(str(kind), str(kind or "any"))

    def fields(self, schema: Mapping[str, Any], indent: str) -> str:
        """Return the properties of an object, a line each."""
        required = _list_of(schema.get("required"))
        return "\n".join(
            _comment(_said(field) if self._comments else "", indent)
            + f"{indent}{name}{'' if name in required else '?'}: {self.type(field, indent)},"
            for name, field in _mapping(schema.get("properties")).items()
        )


# A schema may be a stranger's, in which anything may stand anywhere.
def _list_of(value: object) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _said(field: Any) -> str:
    return str(field.get("description", "")) if hasattr(field, "get") else ""


FORMATS: Mapping[str, Callable[[list[AnyTool]], str]] = {
    "json": _json,
    "hermes": _hermes,
    "typescript": _typescript,
    "list": _list,
}
