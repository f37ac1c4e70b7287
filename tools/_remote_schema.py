"""A JSON schema that a stranger wrote: refused if it is huge, checked in few steps.

A general validator may take minutes for a line of schema: `allOf` that doubles by reference, a
pattern that tries every way. This one checks what people write for a model's arguments and leaves
the rest to the server, which checks them anyway. So it may let pass what the whole schema forbids,
and never refuses what the schema allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, cast

from ._schema import InvalidArguments, as_list, as_mapping

__all__ = ["RemoteSchema"]

NODES = 10_000  # values in a schema; 20 characters count as one
DEPTH = 50
STEPS = 10_000  # looking at a value with a schema is one; some 20 ms in all
LONGEST_REFERENCE = 1000
FAULTS = 5
SHOWN = 80

TYPES: Mapping[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: _is_number(value) and (isinstance(value, int) or value.is_integer()),
    "number": lambda value: _is_number(value),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


class RemoteSchema:
    """The schema of a tool's arguments; `parameters` is what its author wrote, an object's.

    Raises `ValueError`, which says why, if it is larger or deeper than a model should be shown or
    is not of a schema's form.

    Checked are `type`, `enum` and `const` of plain values, `required`, `properties`,
    `additionalProperties`, `items`, lengths and bounds, `allOf`, `anyOf`, and references inside the
    schema; `oneOf` is checked as `anyOf`. All else is not, `pattern` and `format` first of all, nor
    what is left after 10,000 steps.
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.parameters: dict[str, Any] = {"properties": {}, **given, "type": "object"}
        self.parameters.pop("$schema", None)
        if not isinstance(properties := self.parameters["properties"], dict):
            raise ValueError(f"the properties of its schema are {_show(properties)}")
        nodes = 0.0
        waiting: list[tuple[Any, int]] = [(self.parameters, 0)]
        while waiting:
            value, depth = waiting.pop()
            nodes += 1 + (len(value) / 20 if isinstance(value, str) else 0)
            if isinstance(value, dict):
                inside = cast("dict[str, Any]", value)
                nodes += sum(map(len, inside)) / 20
                waiting += [(each, depth + 1) for each in inside.values()]
            elif isinstance(value, list):
                waiting += [(each, depth + 1) for each in cast("list[Any]", value)]
            if depth > DEPTH or nodes + len(waiting) > NODES:
                raise ValueError(f"its schema is larger than {NODES} values or deeper than {DEPTH}")

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments; raise `InvalidArguments`, which names the first faults."""
        given, faults = dict(arguments), list[str]()
        with suppress(_Unclear, RecursionError):
            checking = _Check(self.parameters).faults(self.parameters, given, "arguments")
            faults = list(islice(checking, FAULTS))
        if faults:
            raise InvalidArguments(f"wrong arguments: {'; '.join(faults)[:1000]}")
        return given


class _Unclear(Exception):
    """It would take too long, or the schema is broken: let the server judge."""


class _Check:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._steps = 0

    def _step(self, steps: int = 1) -> None:
        self._steps += steps
        if self._steps > STEPS:
            raise _Unclear

    def faults(self, schema: Any, value: Any, where: str) -> Iterator[str]:
        """Say what is wrong with `value`; nothing if it is allowed or this cannot tell."""
        self._step()
        if schema is False:
            yield f"{where}: nothing is allowed here"
        if not isinstance(schema, dict):
            return
        found = cast("dict[str, Any]", schema)
        if "$id" in found and found is not self._root:
            return  # its references are relative to it
        if "$ref" in found:
            yield from self.faults(self._resolve(found["$ref"]), value, where)
        kinds = found.get("type", ())
        kinds = cast("list[Any]", kinds) if isinstance(kinds, list) else [kinds] if kinds else []
        self._step(len(kinds))
        known = all(isinstance(kind, str) and kind in TYPES for kind in kinds)
        if kinds and known and not any(TYPES[kind](value) for kind in kinds):
            yield f"{where}: {_show(value)} is not of type {' or '.join(map(repr, kinds[:7]))}"
            return
        yield from self._choice_faults(found, value, where)
        for each in as_list(found.get("allOf")):
            yield from self.faults(each, value, where)
        for key in ("anyOf", "oneOf"):
            why: list[str] = []
            for branch in as_list(found.get(key)):
                fault = next(self.faults(branch, value, where), None)
                if fault is None:
                    break
                why.append(fault)
            else:
                if why:
                    yield ", or ".join(why[:FAULTS])
        if isinstance(value, str):
            for fault in _bounds(found, "Length", len(value)):
                yield f"{where}: the length of the text {fault}"
        elif isinstance(value, list):
            items = cast("list[Any]", value)
            for fault in _bounds(found, "Items", len(items)):
                yield f"{where}: the number of items {fault}"
            if "items" in found and "prefixItems" not in found:
                for number, each in enumerate(items):
                    yield from self.faults(found["items"], each, f"{where}[{number}]")
        elif isinstance(value, dict):
            yield from self._object_faults(found, cast("dict[str, Any]", value), where)
        elif _is_number(value):
            for fault in _bounds(found, "imum", value):
                yield f"{where}: {_show(value)} {fault}"

    def _resolve(self, reference: object) -> Any:
        """Return what is referred to inside this schema; anything else allows all."""
        if reference == "#":
            return self._root
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return True
        if "%" in reference or len(reference) > LONGEST_REFERENCE:
            return True
        found: Any = self._root
        for part in reference[2:].split("/"):
            self._step()
            if not isinstance(found, dict):
                return True
            found = cast("dict[str, Any]", found).get(part.replace("~1", "/").replace("~0", "~"))
            if isinstance(found, dict) and "$id" in found:
                return True
        return cast("Any", found)

    def _choice_faults(self, schema: Mapping[str, Any], value: Any, where: str) -> Iterator[str]:
        choices = [schema["const"]] if "const" in schema else as_list(schema.get("enum"))
        self._step(len(choices))
        if not choices or any(isinstance(each, (dict, list)) for each in choices):
            return
        # As in JSON, where 1 is 1.0 and not true.
        boolean = isinstance(value, bool)
        if not any(isinstance(each, bool) == boolean and each == value for each in choices):
            shown = ", ".join(map(_show, choices[:20])) + (", ..." if len(choices) > 20 else "")
            yield f"{where}: {_show(value)} is not one of {shown}"

    def _object_faults(
        self, schema: Mapping[str, Any], value: dict[str, Any], where: str
    ) -> Iterator[str]:
        for fault in _bounds(schema, "Properties", len(value)):
            yield f"{where}: the number of properties {fault}"
        required = as_list(schema.get("required"))
        self._step(len(required) + len(value))
        for name in required:
            if isinstance(name, str) and name not in value:
                yield f"{where}: {_show(name)} is a required property"
        properties = as_mapping(schema.get("properties"))
        others = True if "patternProperties" in schema else schema.get("additionalProperties", True)
        for name, each in value.items():
            inner = f"{where}.{name[:SHOWN]}"
            if name in properties:
                yield from self.faults(properties[name], each, inner)
            elif others is False:
                yield f"{inner}: there is no such property"
            else:
                yield from self.faults(others, each, inner)


def _bounds(schema: Mapping[str, Any], what: str, number: Any) -> Iterator[str]:
    low, high = (schema.get(f"{end}{what}") for end in ("min", "max"))
    if _is_number(low) and number < low:
        yield f"is less than {_show(low)}"
    if _is_number(high) and number > high:
        yield f"is more than {_show(high)}"
    if what == "imum":
        low, high = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
        if _is_number(low) and number <= low:
            yield f"is not more than {_show(low)}"
        if _is_number(high) and number >= high:
            yield f"is not less than {_show(high)}"


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _show(value: object) -> str:
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    return repr(value[:SHOWN] if isinstance(value, str) else value)[: 2 * SHOWN]
