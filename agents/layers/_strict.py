"""JSON schemas as servers take them that hold a model to them strictly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

__all__ = ["strict_schema"]

# What OpenAI documents for `"strict": true`; any other keyword makes it refuse the request.
KEYWORDS = frozenset(
    (
        *("$defs", "$ref", "type", "title", "description", "enum", "const", "anyOf"),
        *("properties", "required", "additionalProperties", "items", "minItems", "maxItems"),
        *("pattern", "format", "multipleOf"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    )
)
FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid")
)
NOTES = frozenset(("default", "examples", "deprecated", "readOnly", "writeOnly", "$comment"))


class _NotStrictError(Exception):
    """A schema says what a strict one cannot."""


def strict_schema(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a schema of the same values that can be sent with `"strict": true`; None if none is.

    Its objects have their properties and no others, each of them required: the model writes out
    what has a default. It is None for a schema that is no object at its root, has free keys, leaves
    a value open or has keywords that strict servers refuse.
    """
    definitions: Mapping[str, Any] = schema.get("$defs", {})
    root = schema
    if "$ref" in schema:  # a model that contains itself
        name = str(schema["$ref"]).removeprefix("#/$defs/")
        root = {**definitions.get(name, {}), "$defs": definitions}
    if root.get("type") != "object":
        return None
    try:
        return _strict(root)
    except _NotStrictError:
        return None


def _strict(schema: Any) -> dict[str, Any]:
    if not isinstance(schema, Mapping) or not schema:
        raise _NotStrictError  # true, or any value
    given = dict(cast("Mapping[str, Any]", schema))
    if "$ref" in given:
        return {"$ref": given["$ref"]}
    if given.keys() >= {"oneOf", "discriminator"}:  # its cases exclude each other anyway
        given["anyOf"] = given.pop("oneOf")
        del given["discriminator"]
    made = {name: each for name, each in given.items() if name not in NOTES}
    open_ended = not made.keys() & {"type", "anyOf", "enum", "const"}
    if open_ended or not made.keys() <= KEYWORDS or made.get("format", "date") not in FORMATS:
        raise _NotStrictError
    for name in ("$defs", "properties"):
        if name in made:
            made[name] = {key: _strict(each) for key, each in made[name].items()}
    if "anyOf" in made:
        made["anyOf"] = [_strict(each) for each in made["anyOf"]]
    if made.get("type") == "array":
        made["items"] = _strict(made.get("items"))
    if made.get("type") == "object":
        if made.get("additionalProperties", False) is not False or "properties" not in made:
            raise _NotStrictError
        made |= {"required": [*made["properties"]], "additionalProperties": False}
    return made
