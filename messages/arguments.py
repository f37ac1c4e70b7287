"""The arguments of a tool call: parse their text, write it, and the error for invalid ones."""

from __future__ import annotations

import json
import re
from typing import Any, cast

from ..commander.errors import ToolError
from .text import encodable

__all__ = ["ToolCallError", "arguments_text", "read_arguments"]


def read_arguments(raw: str, deepest: int | None = None) -> tuple[dict[str, Any], str | None]:
    """Parse the arguments of a complete call; return the object and None, or {} and the fault.

    Empty text is an empty object. NaN and infinities are faults, since they are not JSON. So is
    nesting of more than 100 levels; `deepest` is the depth, if the caller knows it. Half a
    surrogate pair becomes U+FFFD.
    """
    if not raw.strip():
        return {}, None
    try:
        value: object = _JSON.decode(encodable(raw))
    except (ValueError, RecursionError) as error:
        return {}, f"not valid JSON: {error}"
    if not isinstance(value, dict):
        return {}, f"a JSON object was expected, not {raw[:40]!r}"
    if _deeper_than(MAX_LEVELS, value) if deepest is None else deepest > MAX_LEVELS:
        return {}, f"nested deeper than {MAX_LEVELS} levels"
    if "\\u" in raw and _HALF_ESCAPED.search(raw):
        value = json.loads(encodable(json.dumps(value, ensure_ascii=False)))
    return cast("dict[str, Any]", value), None


# Far below the recursion limit, so that recursive code can read arguments at any stack depth.
MAX_LEVELS = 100
_HALF_ESCAPED = re.compile(r"\\u[dD][89a-fA-F]")  # also begins a complete pair


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
    """Return the arguments of a call as text. Servers also send an object, or nothing.

    Raises `ValueError` for a value that is not JSON.
    """
    if isinstance(arguments, str):
        return encodable(arguments)
    try:
        return encodable(json.dumps(arguments, ensure_ascii=False)) if arguments else ""
    except (TypeError, RecursionError) as error:
        raise ValueError(f"cannot write the arguments as JSON: {error}") from None


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


# Made once: `json.loads` with a `parse_constant` makes a decoder for each call.
_JSON = json.JSONDecoder(parse_constant=_refuse_constant)


class ToolCallError(ToolError):
    """A call that cannot run, because its arguments are cut off or are not a JSON object.

    It takes the place of the call in `reply.tool_calls`, and the model receives its text. `id`,
    `name` and `index` are those of the call, `raw` is the text of its arguments, and `reason` says
    what is wrong.
    """

    def __init__(
        self,
        id: str,  # noqa: A002 - the wire's name
        name: str,
        index: int,
        raw: str,
        reason: str = "its arguments are not a JSON object",
    ) -> None:
        shown = raw if len(raw) <= 500 else f"{raw[:300]} ... {raw[-200:]}"
        # Resumed runs must send the text that earlier releases sent: it is part of requests.
        super().__init__(
            f"The call of {name or 'an unnamed tool'} was not run: {reason}."
            f" Its arguments came as {shown!r}. Call it again with a whole JSON object."
        )
        self.id = id
        self.name = name
        self.index = index
        self.raw = raw
        self.reason = reason
