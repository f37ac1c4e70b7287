"""The fields of the chat-completions wire that a server wants back: read, and written again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from ._item import ProviderItem

__all__ = ["ItemReader", "put_items"]

# Fields of a message. DeepSeek and Moonshot refuse a request with tools that lacks the reasoning of
# an earlier reply, OpenRouter one that lacks its details; a server of ours sends items itself.
MESSAGE_FIELDS = ("reasoning_content", "reasoning", "reasoning_details", "provider_items")
# Fields of a tool call. Gemini refuses a call that lacks its signature, which stands in this one.
CALL_FIELDS = ("extra_content",)


class ItemReader:
    """Collects the items of one reply for `delta_from_chunk`; `provider` is who makes it."""

    __slots__ = ("_fields", "_provider")

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._fields: dict[str, list[Any]] = {}

    def take(self, piece: Mapping[str, Any]) -> None:
        """Take the fields of a piece of the message."""
        for name in MESSAGE_FIELDS:
            if name in piece and isinstance(value := piece[name], str | list):
                self._fields.setdefault(name, []).append(cast("Any", value))

    def end(self) -> Sequence[ProviderItem]:
        """Return the fields taken since the last time as an item, if there are any.

        Raises `ValueError` for a field that has no JSON.
        """
        if not self._fields:
            return ()
        joined: dict[str, Any] = {}
        for name, values in self._fields.items():
            if all(isinstance(value, str) for value in values):
                joined[name] = "".join(values)
            else:
                lists = [cast("list[Any]", value) for value in values if type(value) is list]
                joined[name] = [each for value in lists for each in value]
        self._fields = {}
        return (ProviderItem.of(self._provider, joined),)

    def of_call(self, call: Mapping[str, Any]) -> ProviderItem | None:
        """Return the item of a piece of a tool call. Raises `ValueError` as `end` does."""
        fields = {name: call[name] for name in CALL_FIELDS if call.get(name)}
        return ProviderItem.of(self._provider, fields) if fields else None


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
            for name in MESSAGE_FIELDS:
                if name in fields:
                    wire[name] = _join(wire.get(name), fields[name])
        for call in calls:
            if call["id"] == item.call:
                call |= {name: fields[name] for name in CALL_FIELDS if name in fields}


def _join(before: Any, value: Any) -> Any:
    """Return a field that came in several pieces, such as reasoning between two calls."""
    joins = type(before) is type(value) and type(value) in (str, list)
    return before + value if joins else value
