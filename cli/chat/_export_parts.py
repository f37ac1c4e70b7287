"""What each export says of a message, fit to stand in a file."""

from __future__ import annotations

import json
import re

from markdown_it.token import Token

from ...handlers.legible import legible
from ...messages import Part, ToolCall
from ...messages.mask import mask

__all__ = ["DATA_IMAGE", "arguments_of", "file_of", "said", "too_hard"]

DATA_IMAGE = re.compile(r"data:image/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/]+={0,2}")
"""An image that a file holds itself; nothing in its address can end an attribute or a link."""

_MOST_PROSE = 20_000  # characters of one paragraph; what a model can write takes seconds to parse
_MOST = 2_000_000
_DEEPEST = 19  # as deep as the parser follows: what lies deeper it would leave out


def said(text: str | None) -> str:
    """Return what was said as it may stand in a file: without keys, and nothing that steers."""
    return legible(mask(text or ""))


def arguments_of(call: ToolCall) -> str:
    """Return a call's arguments as JSON of several lines, or what the model sent instead."""
    if call.error is not None:
        return said(call.raw)
    return said(json.dumps(mask(call.arguments), indent=2, ensure_ascii=False))


def file_of(part: Part) -> str:
    """Return what stands in a file of text."""
    return said((part.data or b"").decode(errors="replace"))


def too_hard(text: str, blocks: list[Token]) -> bool:
    """Whether a text, whose blocks these are, is only to be shown as it was written."""
    prose = (len(token.content) for token in blocks if token.type == "inline")
    deepest = max((token.level for token in blocks), default=0)
    return len(text) > _MOST or max(prose, default=0) > _MOST_PROSE or deepest >= _DEEPEST
