"""A JSON schema from another author: refused if it is huge, checked in few steps.

A general validator may take minutes for one line of schema, such as an `allOf` that doubles by
reference or a pattern that backtracks. This one checks the usual parts of a schema for arguments,
and leaves the rest to the server, which checks them anyway. So it may accept arguments that the
schema forbids, and never refuses arguments that it allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, cast

from ._schema import InvalidArguments, as_list, as_mapping

__all__ = ["RemoteSchema"]

# Values in a schema; 20 characters count as one.
MAX_VALUES = 10_000
MAX_SCHEMA_DEPTH = 50
# Comparing one value with one schema is a step. All together take about 20 ms.
MAX_STEPS = 10_000
MAX_REFERENCE_CHARS = 1000
MAX_FAULTS = 5
MAX_SHOWN_CHARS = 80

TYPE_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: _is_number(value) and (isinstance(value, int) or value.is_integer()),
    "number": lambda value: _is_number(value),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


class RemoteSchema:
    """The schema of a tool's arguments, an object; `parameters` is its JSON.

    Raises `ValueError` if it is larger or deeper than a model should read, or is not a schema.

    `check` covers `type`, `enum` and `const` of plain values, `required`, `properties`,
    `additionalProperties`, `items`, lengths and bounds, `allOf`, `anyOf`, references inside the
    schema, and `oneOf` as `anyOf`. It ignores everything else, such as `pattern` and `format`, and
    everything after 10,000 steps.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.parameters: dict[str, Any] = {"properties": {}, **values, "type": "object"}
        self.parameters.pop("$schema", None)
        if not isinstance(properties := self.parameters["properties"], dict):
            raise ValueError(
                f"the properties of the schema must be an object, not {_show(properties)}"
            )
        size = 0.0
        waiting: list[tuple[Any, int]] = [(self.parameters, 0)]
        while waiting:
            value, depth = waiting.pop()
            size += 1 + (len(value) / 20 if isinstance(value, str) else 0)
            if isinstance(value, dict):
                inside = cast("dict[str, Any]", value)
                size += sum(map(len, inside)) / 20
                waiting += [(each, depth + 1) for each in inside.values()]
            elif isinstance(value, list):
                waiting += [(each, depth + 1) for each in cast("list[Any]", value)]
            if depth > MAX_SCHEMA_DEPTH or size + len(waiting) > MAX_VALUES:
                raise ValueError(
                    f"the schema has more than {MAX_VALUES} values or {MAX_SCHEMA_DEPTH} levels"
                )

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments; raise `InvalidArguments` with the first faults."""
        values, faults = dict(arguments), list[str]()
        with suppress(_Undecided, RecursionError):
            checking = _Checker(self.parameters).faults(self.parameters, values, "arguments")
            faults = list(islice(checking, MAX_FAULTS))
        if faults:
            raise InvalidArguments(f"wrong arguments: {'; '.join(faults)[:1000]}")
        return values


class _Undecided(Exception):
    """The check would take too long or the schema is broken: the server decides."""


class _Checker:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._steps = 0

    def _step(self, steps: int = 1) -> None:
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise _Undecided

    def faults(self, schema: Any, value: Any, where: str) -> Iterator[str]:
        """Yield the faults of `value`; none if it is allowed or cannot be checked."""
        self._step()
        if schema is False:
            yield f"{where}: no value is allowed here"
        if not isinstance(schema, dict):
            return
        schema_object = cast("dict[str, Any]", schema)
        if "$id" in schema_object and schema_object is not self._root:
            return  # its references are relative to its own address
        if "$ref" in schema_object:
            yield from self.faults(self._resolve(schema_object["$ref"]), value, where)
        kinds = schema_object.get("type", ())
        kinds = cast("list[Any]", kinds) if isinstance(kinds, list) else [kinds] if kinds else []
        self._step(len(kinds))
        known = all(isinstance(kind, str) and kind in TYPE_CHECKS for kind in kinds)
        if kinds and known and not any(TYPE_CHECKS[kind](value) for kind in kinds):
            yield f"{where}: {_show(value)} is not of type {' or '.join(map(repr, kinds[:7]))}"
            return
        yield from self._choice_faults(schema_object, value, where)
        for each in as_list(schema_object.get("allOf")):
            yield from self.faults(each, value, where)
        for key in ("anyOf", "oneOf"):
            why: list[str] = []
            for branch in as_list(schema_object.get(key)):
                fault = next(self.faults(branch, value, where), None)
                if fault is None:
                    break
                why.append(fault)
            else:
                if why:
                    yield ", or ".join(why[:MAX_FAULTS])
        if isinstance(value, str):
            for fault in _bounds(schema_object, "Length", len(value)):
                yield f"{where}: the length of the text {fault}"
        elif isinstance(value, list):
            items = cast("list[Any]", value)
            for fault in _bounds(schema_object, "Items", len(items)):
                yield f"{where}: the number of items {fault}"
            if "items" in schema_object and "prefixItems" not in schema_object:
                for number, each in enumerate(items):
                    yield from self.faults(schema_object["items"], each, f"{where}[{number}]")
        elif isinstance(value, dict):
            yield from self._object_faults(schema_object, cast("dict[str, Any]", value), where)
        elif _is_number(value):
            for fault in _bounds(schema_object, "imum", value):
                yield f"{where}: {_show(value)} {fault}"

    def _resolve(self, reference: object) -> Any:
        """Return the target of a reference inside this schema, else True: all values are valid."""
        if reference == "#":
            return self._root
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return True
        if "%" in reference or len(reference) > MAX_REFERENCE_CHARS:
            return True
        target: Any = self._root
        for part in reference[2:].split("/"):
            self._step()
            if not isinstance(target, dict):
                return True
            target = cast("dict[str, Any]", target).get(part.replace("~1", "/").replace("~0", "~"))
            if isinstance(target, dict) and "$id" in target:
                return True
        return cast("Any", target)

    def _choice_faults(self, schema: Mapping[str, Any], value: Any, where: str) -> Iterator[str]:
        choices = [schema["const"]] if "const" in schema else as_list(schema.get("enum"))
        self._step(len(choices))
        if not choices or any(isinstance(each, (dict, list)) for each in choices):
            return
        # As in JSON, where 1 equals 1.0 and differs from true.
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
            inner = f"{where}.{name[:MAX_SHOWN_CHARS]}"
            if name in properties:
                yield from self.faults(properties[name], each, inner)
            elif others is False:
                yield f"{inner}: this property is not allowed"
            else:
                yield from self.faults(others, each, inner)


def _bounds(schema: Mapping[str, Any], suffix: str, number: Any) -> Iterator[str]:
    low, high = (schema.get(f"{end}{suffix}") for end in ("min", "max"))
    if _is_number(low) and number < low:
        yield f"is less than {_show(low)}"
    if _is_number(high) and number > high:
        yield f"is more than {_show(high)}"
    if suffix == "imum":
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
    return repr(value[:MAX_SHOWN_CHARS] if isinstance(value, str) else value)[: 2 * MAX_SHOWN_CHARS]
