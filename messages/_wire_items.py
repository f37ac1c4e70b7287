"""The fields of the chat-completions wire that a server wants back: read, and written again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from ._item import ProviderItem

__all__ = ["ItemReader", "put_items"]

# Fields of a message. DeepSeek and Moonshot refuse a request with tools that lacks the reasoning of
# an earlier reply, OpenRouter one that lacks its details; a server of ours sends items itself.
MESSAGE_FIELDS = frozenset(
    {"reasoning_content", "reasoning", "reasoning_details", "provider_items"}
)
# The field of a tool call. Gemini refuses a call that lacks its signature, which it has here.
CALL_FIELD = "extra_content"


class ItemReader:
    """Collects the items of one reply for `delta_from_chunk`; `provider` is who makes it."""

    __slots__ = ("_provider", "fields")

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self.fields: dict[str, list[Any]] = {}  # of the message, since the last item

    def take(self, piece: Mapping[str, Any]) -> None:
        """Take the fields of a piece of the message."""
        for name in piece:  # one or two, mostly
            if name in MESSAGE_FIELDS and type(value := piece[name]) in (str, list):
                self.fields.setdefault(name, []).append(value)

    def end(self) -> Sequence[ProviderItem]:
        """Return the fields taken since the last time as an item, if there are any.

        Raises `ValueError` for a field that has no JSON.
        """
        if not self.fields:
            return ()
        joined: dict[str, Any] = {}
        for name, values in self.fields.items():
            if all(isinstance(value, str) for value in values):
                joined[name] = "".join(values)
            else:
                lists = [cast("list[Any]", value) for value in values if type(value) is list]
                joined[name] = [each for value in lists for each in value]
        self.fields = {}
        return (ProviderItem.of(self._provider, joined),)

    def of_call(self, call: Mapping[str, Any]) -> ProviderItem | None:
        """Return the item of a piece of a tool call. Raises `ValueError` as `end` does."""
        value = call.get(CALL_FIELD)
        return ProviderItem.of(self._provider, {CALL_FIELD: value}) if value else None


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
