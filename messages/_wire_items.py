"""The fields of the chat-completions wire that a server wants back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, cast

from ._item import ProviderItem

__all__ = ["CALL_FIELD", "MESSAGE_FIELDS", "join_pieces", "put_items"]

# Fields of a message. DeepSeek and Moonshot refuse a request with tools that lacks the reasoning of
# an earlier reply, OpenRouter one that lacks its details, Gemini signs text without calls in its
# extra content; a server of ours sends items itself.
MESSAGE_FIELDS = frozenset(
    {"reasoning_content", "reasoning", "reasoning_details", "provider_items", "extra_content"}
)
# The field of a tool call. Gemini refuses a call that lacks its signature, which it has here.
CALL_FIELD = "extra_content"


def join_pieces(values: Sequence[Any]) -> Any:
    """Return a field that came in several pieces: texts, lists or objects."""
    kinds = set(map(type, values))
    if list in kinds:
        lists = [cast("list[Any]", value) for value in values if type(value) is list]
        return [each for value in lists for each in value]
    if dict in kinds:
        objects = [cast("dict[str, Any]", each) for each in values if type(each) is dict]
        return reduce(_merge, map(_without_marks, objects))
    return "".join(values)


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


def _without_marks(extra: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return extra content without Gemini's mark of a thought, which describes a single piece."""
    if not isinstance(google := extra.get("google"), dict):
        return extra
    fields = cast("dict[str, Any]", google)
    return {**extra, "google": {key: fields[key] for key in fields if key != "thought"}}


def _merge(before: Mapping[str, Any], value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an object that came in several pieces; a later value replaces an earlier one."""
    merged = {**before, **value}
    for name in before.keys() & value.keys():
        old, new = before[name], value[name]
        if isinstance(old, dict) and isinstance(new, dict):
            merged[name] = _merge(cast("dict[str, Any]", old), cast("dict[str, Any]", new))
    return merged


def _join(before: Any, value: Any) -> Any:
    """Return a field that came in several pieces, such as reasoning between two calls."""
    if isinstance(before, dict) and isinstance(value, dict):
        return _merge(cast("dict[str, Any]", before), cast("dict[str, Any]", value))
    joins = type(value) in (str, list) and isinstance(before, type(value))
    return before + value if joins else value
