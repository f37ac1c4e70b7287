"""Continue a reply that broke off: which replies can be continued, and how much may still come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..messages import Request

__all__ = ["is_constrained", "shortened"]

# Options that make a reply follow a grammar, the last of them as vLLM, SGLang, llama.cpp and Ollama
# take them in the body.
_GRAMMARS = (
    *("response_format", "structured_outputs", "format", "grammar", "json_schema", "regex", "ebnf"),
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar"),
)
_LIMITS = {"max_tokens": 1, "max_completion_tokens": 1, "min_tokens": 0}  # and the least of each


def is_constrained(request: Request, defaults: Mapping[str, Any]) -> bool:
    """Say whether the reply to `request` follows a grammar, which would begin again."""
    options: dict[str, Any] = {**defaults, **request.options}
    options |= {**(defaults.get("extra") or {}), **(request.options.get("extra") or {})}
    for name in _GRAMMARS:
        if options.get(name) not in (None, "", {"type": "text"}):  # an empty schema is one too
            return True
    return bool(request.tools) and options.get("tool_choice") not in (None, "auto", "none")


def shortened(request: Request, defaults: Mapping[str, Any], written: int) -> Request:
    """Return `request` for the rest of a reply of which `written` tokens have come."""
    options = {**request.options}
    extra: dict[str, Any] = {**(options.get("extra") or {})}
    extra_defaults: dict[str, Any] = defaults.get("extra") or {}
    for name, least in _LIMITS.items():
        for given, changed in (defaults, options), (extra_defaults, extra):
            limit: object = changed.get(name, given.get(name))
            if isinstance(limit, int) and not isinstance(limit, bool):
                changed[name] = max(least, limit - written)
    if extra:
        options["extra"] = extra
    return Request(request.messages, request.tools, options)
