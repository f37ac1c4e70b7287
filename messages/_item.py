"""Data that a provider wants back unchanged, such as signed reasoning, and its wire fields."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, reduce
from hashlib import sha256
from typing import Any, ClassVar, cast

from pydantic import BaseModel, ConfigDict, Field

from .text import encodable

__all__ = ["CALL_FIELD", "MESSAGE_FIELDS", "ProviderItem", "join_pieces", "put_items"]


class ProviderItem(BaseModel):
    """Data of a reply that its provider needs again in later requests.

    A backend sends an item back, unchanged, to the `provider` that made it and leaves it out for
    any other (see `Backend.item_provider`). Conversations, journals and cassettes store it. It is
    not text: views do not show it, and estimates of tokens do not count it.

    `data` is JSON text, so that storage cannot reorder or round it. `call` is the id of the tool
    call that it belongs to. An item without a call follows the first `after_text` characters of the
    content and the first `after_calls` tool calls. `Message.in_order` yields all three in order.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    provider: str
    data: str = Field(repr=False)
    call: str | None = None
    after_text: int = Field(default=0, ge=0)
    after_calls: int = Field(default=0, ge=0)

    @classmethod
    def of(cls, provider: str, value: object) -> ProviderItem:
        """Make an item from a JSON value. Raises `ValueError` for a value that is not JSON."""
        try:
            data = json.dumps(value, ensure_ascii=False, allow_nan=False)
        except (TypeError, RecursionError) as error:
            raise ValueError(f"cannot write the item as JSON: {error}") from None
        return cls(provider=provider, data=encodable(data))

    def is_from(self, provider: str) -> bool:
        """Return whether `provider` made it, also if the item has only a digest of its name."""
        return self.provider in (provider, _digest(provider))

    def without_name(self) -> ProviderItem:
        """Return the item with a digest of its provider's name, for clients of a server."""
        known = self.provider.startswith(_DIGEST)
        return self if known else self.model_copy(update={"provider": _digest(self.provider)})

    @property
    def value(self) -> Any:
        """The data, parsed. Raises `ValueError` if it is not JSON."""
        try:
            return json.loads(self.data)
        except RecursionError:
            raise ValueError("the item is nested too deeply") from None


_DIGEST = "sha256:"


@cache
def _digest(provider: str) -> str:
    return _DIGEST + sha256(provider.encode()).hexdigest()[:32]


# Fields of a message. DeepSeek and Moonshot refuse a request with tools that lacks the reasoning of
# an earlier reply, and OpenRouter one that lacks its details. Gemini signs text without calls in
# its extra content. `anabranch serve` sends items under their own name.
MESSAGE_FIELDS = frozenset(
    {"reasoning_content", "reasoning", "reasoning_details", "provider_items", "extra_content"}
)
# The field of a tool call. Gemini refuses a call without the signature in this field.
CALL_FIELD = "extra_content"


def join_pieces(values: Sequence[Any]) -> Any:
    """Join the pieces of a field: texts, lists or objects."""
    kinds = set(map(type, values))
    if list in kinds:
        lists = [cast("list[Any]", value) for value in values if type(value) is list]
        return [each for value in lists for each in value]
    if dict in kinds:
        objects = [cast("dict[str, Any]", each) for each in values if type(each) is dict]
        return reduce(_merge, map(_without_marks, objects))
    return "".join(values)


def put_items(wire: dict[str, Any], items: Iterable[ProviderItem]) -> None:
    """Write items into a message of the wire, but only the fields of this module."""
    calls: list[dict[str, Any]] = wire.get("tool_calls", [])
    for item in items:
        try:
            value = item.value
        except ValueError:
            continue  # a user's own text: a server sends only JSON
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
    """Merge two pieces of an object; a later value replaces an earlier one."""
    merged = {**before, **value}
    for name in before.keys() & value.keys():
        old, new = before[name], value[name]
        if isinstance(old, dict) and isinstance(new, dict):
            merged[name] = _merge(cast("dict[str, Any]", old), cast("dict[str, Any]", new))
    return merged


def _join(before: Any, value: Any) -> Any:
    """Join two pieces of a field, such as reasoning before and after a call."""
    if isinstance(before, dict) and isinstance(value, dict):
        return _merge(cast("dict[str, Any]", before), cast("dict[str, Any]", value))
    joins = type(value) in (str, list) and isinstance(before, type(value))
    return before + value if joins else value
