"""Tokens where nobody counts them: before a reply, and of one that came without its usage."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..messages import Delta, Request, Usage

__all__ = ["estimate_tokens", "most_of", "usage_of"]

_CHARACTERS_PER_TOKEN = 4
_MOST = 10**12  # tokens of one reply


def estimate_tokens(request: Request, options: Mapping[str, Any]) -> int:
    """Guess what `request` may take: its prompt, and all of `max_tokens` if that is set."""
    most = _max_tokens(request, options)
    return _prompt(request) + (0 if most is None else most)


def most_of(request: Request, options: Mapping[str, Any]) -> Usage | None:
    """Return the most that `request` may take; None without `max_tokens`."""
    most = _max_tokens(request, options)
    return None if most is None else Usage(input_tokens=_prompt(request), output_tokens=most)


def _max_tokens(request: Request, options: Mapping[str, Any]) -> int | None:
    most = request.options.get("max_tokens", options.get("max_tokens"))
    return most if isinstance(most, int) and most >= 0 else None


def usage_of(request: Request, deltas: Sequence[Delta]) -> Usage:
    """Return what the reply of which `deltas` came has taken.

    That is the last usage among them, and an estimate of what came after it; without one, all is
    estimated. A usage of 0 tokens counts as none. What no reply can have taken, less than nothing
    or more than `_MOST`, is set right.
    """
    characters = 0
    for delta in reversed(deltas):
        if delta.usage is not None:
            counts = delta.usage.model_dump()
            usage = Usage(**{name: min(max(0, n), _MOST) for name, n in counts.items()})
            if usage.total_tokens > 0:
                return _add(usage, characters)
        characters += len(delta.text) + len(delta.reasoning) + len(delta.refusal)
        characters += sum(len(call.name or "") + len(call.arguments) for call in delta.tool_calls)
    return _add(Usage(input_tokens=_prompt(request)), characters)


def _add(usage: Usage, characters: int) -> Usage:
    tokens = -(-characters // _CHARACTERS_PER_TOKEN)
    return usage + Usage(output_tokens=tokens) if tokens else usage


def _prompt(request: Request) -> int:
    """Return a token for every four characters that the model reads, and what images may take."""
    characters = parts = 0
    for message in request.messages:
        characters += len(message.content or "")
        if message.role != "tool":
            parts += sum(part.estimate_tokens() for part in message.parts)
        characters += sum(len(call.name) + len(call.text) for call in message.tool_calls)
    for tool in request.tools:
        parameters = json.dumps(tool.parameters, default=str)
        characters += len(tool.name) + len(tool.description) + len(parameters)
    return parts + characters // _CHARACTERS_PER_TOKEN + 1
