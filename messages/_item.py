"""Data that a provider made and wants back unchanged, such as reasoning that it has signed."""

from __future__ import annotations

import json
from functools import cache
from hashlib import sha256
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from .text import encodable

__all__ = ["ProviderItem"]


class ProviderItem(BaseModel):
    """Data of a reply that its provider needs again in later requests.

    A backend sends an item back, unchanged, to the `provider` that made it and leaves it out for
    any other (see `Backend.item_provider`). Conversations, journals and cassettes store it. No
    reader sees it: it is no text, and neither views nor estimates of tokens include it.

    `data` is JSON text, so that storage cannot reorder or round it. `call` is the id of the tool
    call that it belongs to. Without one it stands by itself, behind the first `after_text`
    characters of the content and the first `after_calls` tool calls; `Message.in_order` yields all
    three in order.
    """

    model_config = ConfigDict(frozen=True)

    provider: str
    data: str = Field(repr=False)
    call: str | None = None
    after_text: int = Field(default=0, ge=0)
    after_calls: int = Field(default=0, ge=0)

    @classmethod
    def of(cls, provider: str, value: object) -> ProviderItem:
        """Make an item of a JSON value. Raises `ValueError` for a value that has no JSON."""
        try:
            data = json.dumps(value, ensure_ascii=False, allow_nan=False)
        except (TypeError, RecursionError) as error:
            raise ValueError(f"an item that cannot be written as JSON: {error}") from None
        return cls(provider=provider, data=encodable(data))

    def is_from(self, provider: str) -> bool:
        """Say whether `provider` has made it, also where its name is a digest."""
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
            raise ValueError("an item that is nested too deeply") from None


_DIGEST = "sha256:"


@cache
def _digest(provider: str) -> str:
    return _DIGEST + sha256(provider.encode()).hexdigest()[:32]
