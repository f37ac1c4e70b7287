"""Messages as other rooms keep them in a journal: all there is of them, in few bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ._message import Message
from .arguments import read_arguments

__all__ = ["read_message", "write_json", "write_message"]


def write_message(message: Message) -> dict[str, Any]:
    """Return all fields that say something, as JSON values; `read_message` gives an equal message.

    Arguments that are what the model's own text of them says stand there once.
    """
    fields = message.model_dump(mode="json", exclude_defaults=True)
    for call, saved in zip(message.tool_calls, fields.get("tool_calls", ()), strict=True):
        if call.raw is not None and read_arguments(call.raw)[0] == call.arguments:
            saved.pop("arguments", None)
    return {"role": message.role, **fields}


def read_message(fields: Mapping[str, Any], kind: type[Message] = Message) -> Message:
    """Return the message that `write_message` wrote."""
    calls = [
        {"arguments": read_arguments(call["raw"])[0], **call} if "raw" in call else call
        for call in fields.get("tool_calls", ())
    ]
    return kind.model_validate({**fields, "tool_calls": calls})


def write_json(value: object) -> str:
    """Write JSON as text that has a UTF-8, mostly without escapes; equal values have one text."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:  # arguments of a call may hold half a surrogate pair
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    return text
