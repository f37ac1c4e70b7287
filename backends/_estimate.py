"""Tokens where nobody counts them: before a reply, and of one that told no usage."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..messages import Delta, Message, Request, Usage

__all__ = ["estimate_tokens", "usage_of"]

_CHARACTERS_PER_TOKEN = 4
_MOST = 10**12  # tokens of one reply


def estimate_tokens(request: Request, options: Mapping[str, Any]) -> int:
    """Guess what `request` may take: its prompt, and all of `max_tokens` if that is set."""
    most = request.options.get("max_tokens", options.get("max_tokens"))
    return _prompt(request) + (max(0, most) if isinstance(most, int) else 0)


def usage_of(request: Request, deltas: Sequence[Delta]) -> Usage:
    """Return what the reply of which `deltas` came has taken.

    That is the usage it told last. What came after that is estimated; if it told none, all is.
    A usage of nothing tells nothing. What no reply can have taken, less than nothing or more than
    `_MOST`, is set right.
    """
    characters = 0
    for delta in reversed(deltas):
        if delta.usage is not None and (usage := _possible(delta.usage)).total_tokens > 0:
            return _more(usage, characters)
        characters += _said(delta)
    return _more(Usage(input_tokens=_prompt(request)), characters)


def _possible(usage: Usage) -> Usage:
    told = usage.model_dump()
    return Usage(**{name: min(max(0, tokens), _MOST) for name, tokens in told.items()})


def _more(usage: Usage, characters: int) -> Usage:
    tokens = -(-characters // _CHARACTERS_PER_TOKEN)
    return usage + Usage(output_tokens=tokens) if tokens else usage


def _said(delta: Delta) -> int:
    calls = sum(len(call.name or "") + len(call.arguments) for call in delta.tool_calls)
    return len(delta.text) + len(delta.reasoning) + len(delta.refusal) + calls


def _prompt(request: Request) -> int:
    """Return a token for every four characters that the model reads, images aside."""
    characters = sum(map(_length, request.messages))
    for tool in request.tools:
        characters += (
            len(tool.name) + len(tool.description) + len(json.dumps(tool.parameters, default=str))
        )
    return characters // _CHARACTERS_PER_TOKEN + 1


def _length(message: Message) -> int:
    calls = sum(len(call.name) + len(call.text) for call in message.tool_calls)
    return len(message.content or "") + calls
