"""The fields of the chat-completions wire that a server wants back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from ._item import ProviderItem

__all__ = ["CALL_FIELD", "MESSAGE_FIELDS", "put_items"]

# Fields of a message. DeepSeek and Moonshot refuse a request with tools that lacks the reasoning of
# an earlier reply, OpenRouter one that lacks its details; a server of ours sends items itself.
MESSAGE_FIELDS = frozenset(
    {"reasoning_content", "reasoning", "reasoning_details", "provider_items"}
)
# The field of a tool call. Gemini refuses a call that lacks its signature, which it has here.
CALL_FIELD = "extra_content"


def put_items(wire: dict[str, Any], items: Iterable[ProviderItem]) -> None:
    """Write items into a message of the wire, and no other fields than those of this module."""
    calls: list[dict[str, Any]] = wire.get("tool_calls", [])
    for item in items:
        try:
            value = item.value
        except ValueError:
            continue  # written by hand: no server has sent it
        if not isinstance(value, dict):
            continue
        fields = cast("dict[str, Any]", value)
        if item.call is None:
            for name in fields:  # in their order, so that a request always has the same bytes
                if name in MESSAGE_FIELDS:
                    wire[name] = _join(wire.get(name), fields[name])
        for call in calls:
            if call["id"] == item.call and CALL_FIELD in fields:
                call[CALL_FIELD] = fields[CALL_FIELD]


def _join(before: Any, value: Any) -> Any:
    """Return a field that came in several pieces, such as reasoning between two calls."""
    joins = type(before) is type(value) and type(value) in (str, list)
    return before + value if joins else value
