"""Images and files in a request, and what a model is known to take of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..commander.errors import ConfigurationError
from ..messages import Message, Request

if TYPE_CHECKING:
    from ._backend import Backend

__all__ = ["can_take", "fit_parts"]


def fit_parts(backend: Backend, request: Request, *, strict: bool = False) -> Request:
    """Return a request without the parts that a model is known not to take.

    A part of what was answered before, as by another model, becomes a note that it was there; so
    does one that a tool gave, unless it is `strict`. One of what is asked now raises
    `ConfigurationError`: it would be lost unseen.
    """
    takes = backend.takes
    if takes is None or not any(message.parts for message in request.messages):
        return request
    options = {**getattr(backend, "default_options", {}), **request.options}
    answered = max((n for n, m in enumerate(request.messages) if m.role == "assistant"), default=-1)
    messages: list[Message] = []
    for number, message in enumerate(request.messages):
        sent = message.role != "tool" or options.get("tool_images")
        refused = [part for part in message.parts if sent and not part.needs <= takes]
        if refused and number > answered and (strict or message.role != "tool"):
            what = "as an address: give its bytes" if refused[0].kind in takes else "at all"
            raise ConfigurationError(
                f"{backend!r} cannot take {refused[0].about} {what}; "
                f"of images and files it takes {', '.join(sorted(takes - {'url'})) or 'text alone'}"
            )
        if refused:
            notes = (f"[{part.about}, which you cannot see]" for part in refused)
            update = {
                "content": "\n".join(filter(None, [message.content, *notes])),
                "parts": [part for part in message.parts if part not in refused],
            }
            message = message.model_copy(update=update)
        messages.append(message)
    return Request(messages, request.tools, request.options)


def can_take(backend: Backend, request: Request) -> bool:
    """Say whether nothing of what is new in a request would be lost."""
    try:
        fit_parts(backend, request, strict=True)
    except ConfigurationError:
        return False
    return True
