"""The arguments of a tool call: their text on the wire, and the object that it holds."""

from __future__ import annotations

import json
import re
from typing import Any, cast

from .text import encodable

__all__ = ["arguments_text", "read_arguments"]


def read_arguments(raw: str, deepest: int | None = None) -> tuple[dict[str, Any], str | None]:
    """Parse the arguments of a call that is whole: the object and None, or empty and the fault.

    Empty text is an empty object. NaN and infinities, which are not JSON, are faults, and so is
    what is nested deeper than any tool could take; `deepest` says how deep it is, if that is known.
    Half a surrogate pair becomes U+FFFD.
    """
    if not raw.strip():
        return {}, None
    try:
        value: object = _JSON.decode(encodable(raw))
    except (ValueError, RecursionError) as error:
        return {}, f"not valid JSON: {error}"
    if not isinstance(value, dict):
        return {}, f"a JSON object was expected, not {raw[:40]!r}"
    if _deeper_than(_DEEPEST, value) if deepest is None else deepest > _DEEPEST:
        return {}, f"nested deeper than {_DEEPEST} levels"
    if "\\u" in raw and _HALF_ESCAPED.search(raw):
        value = json.loads(encodable(json.dumps(value, ensure_ascii=False)))
    return cast("dict[str, Any]", value), None


# Far below the recursion limit: whatever walks through arguments can do so from any place.
_DEEPEST = 100
_HALF_ESCAPED = re.compile(r"\\u[dD][89a-fA-F]")  # or half of a pair: that is looked at then


def _deeper_than(limit: int, value: Any) -> bool:
    level: list[Any] = [value]
    for _ in range(limit):
        level = [
            inner
            for each in level
            for inner in cast("list[Any]", each.values() if type(each) is dict else each)
            if type(inner) is dict or type(inner) is list
        ]
        if not level:
            return False
    return True


def arguments_text(arguments: object) -> str:
    """Return the arguments of a call as text; servers also send the object itself, or none.

    Raises `ValueError` for what has no JSON.
    """
    if isinstance(arguments, str):
        return encodable(arguments)
    try:
        return encodable(json.dumps(arguments, ensure_ascii=False)) if arguments else ""
    except (TypeError, RecursionError) as error:
        raise ValueError(f"arguments that cannot be written as JSON: {error}") from None


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


# Made once: `json.loads` would make it anew for each call.
_JSON = json.JSONDecoder(parse_constant=_refuse_constant)
