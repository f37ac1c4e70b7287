"""One piece of a streamed reply: the hot path, so plain slotted dataclasses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ._item import ProviderItem
from ._message import Usage

__all__ = ["Delta", "ToolCallDelta"]


@dataclass(slots=True)
class ToolCallDelta:
    """A piece of one tool call. Pieces with the same `index` belong to the same call.

    `arguments` is a piece of JSON text; `id` and `name` come with the first piece. An `index` of -1
    says that the server gave none: the piece belongs to the call with the same `id`, else to the
    last call, unless it brings a name of its own. `item` is data about the call that its provider
    wants back.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""
    item: ProviderItem | None = None


@dataclass(slots=True)
class Delta:
    """A piece of one reply, in the order in which the model made it.

    `done` is the wire's own end mark (`[DONE]`); a reply is whole once a `finish_reason` or
    `done` has come. `usage` may come with any delta, the last one counts. `items`, data that the
    provider wants back, stand behind the text and before the calls of their delta.
    """

    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    tool_calls: Sequence[ToolCallDelta] = ()
    usage: Usage | None = None
    finish_reason: str | None = None
    done: bool = False
    items: Sequence[ProviderItem] = ()
