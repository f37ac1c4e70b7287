"""Messages as compact JSON, for journals and cassettes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ._message import Message
from .arguments import read_arguments

__all__ = ["read_message", "write_json", "write_message"]


def write_message(message: Message) -> dict[str, Any]:
    """Return the fields without defaults as JSON values; `read_message` makes an equal message.

    Parsed arguments are left out if parsing `raw` gives them again.
    """
    fields = message.model_dump(mode="json", exclude_defaults=True)
    for call, saved in zip(message.tool_calls, fields.get("tool_calls", ()), strict=True):
        if call.raw is not None and read_arguments(call.raw)[0] == call.arguments:
            saved.pop("arguments", None)
    return {"role": message.role, **fields}


def read_message(fields: Mapping[str, Any], kind: type[Message] = Message) -> Message:
    """Make a message from the fields that `write_message` returned."""
    calls = [
        {"arguments": read_arguments(call["raw"])[0], **call} if "raw" in call else call
        for call in fields.get("tool_calls", ())
    ]
    return kind.model_validate({**fields, "tool_calls": calls})


def write_json(value: object) -> str:
    """Write JSON that has a UTF-8 encoding. Equal values have equal texts."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:  # arguments of a call may hold half a surrogate pair
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    return text
