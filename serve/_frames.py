"""Server-sent events as text: whole ones, and those of which only a part changes."""

from __future__ import annotations

import json

__all__ = ["HOLE", "frame", "frame_around", "to_json"]

to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
# Stands in a value where what changes will be written; no other text there is this one.
HOLE = "\0 a hole \0"


def frame(value: object, **fields: str) -> str:
    """Write one event of a stream; `fields` are `event` and `id`."""
    lines = "".join(f"{name}: {text}\n" for name, text in fields.items())
    return f"{lines}data: {to_json(value)}\n\n"


def frame_around(value: object, **fields: str) -> list[str]:
    """Write what stands before, between and behind the `HOLE`s of an event.

    For events of which there are many: the JSON of what is constant is made but once.
    """
    return frame(value, **fields).split(to_json(HOLE))
