"""What may be said: a text, a message or a mapping becomes an `AgentMessage`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from ..layers import AgentMessage

__all__ = ["TERMINATE", "MessageLike", "as_message", "is_termination"]

TERMINATE = "TERMINATE"
"""At the end of a text, or true in a message's `extra`, it ends a conversation."""

MessageLike: TypeAlias = "str | AgentMessage | Mapping[str, Any]"
"""A text, a message, or a mapping with `content`, and more of what a message has."""

FIELDS = frozenset(("content", "parts", "formatted", "metadata", "extra", "type"))


def as_message(given: MessageLike, sender: str, receiver: str) -> AgentMessage:
    """Return what `sender` says to `receiver`; a message is copied, whoever it came from.

    Raises `TypeError` for what is no message, `ValueError` for one that says nothing or has fields
    that no message has.
    """
    if isinstance(given, str):
        message = AgentMessage(content=given)
    elif isinstance(given, AgentMessage):
        message = given
    elif not isinstance(given, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"a message is a text, an AgentMessage or a mapping, not {given!r:.200}")
    else:
        fields = dict(given)
        if unknown := [name for name in fields if name not in FIELDS]:
            raise ValueError(f"a message has no {unknown!r}; it has {sorted(FIELDS)}")
        extra: dict[str, Any] = {}
        try:
            extra |= fields.pop("extra", None) or {}
            extra |= fields.pop("metadata", None) or {}
            message = AgentMessage(**fields, extra=extra)
        except (TypeError, ValueError) as error:
            raise ValueError(f"this is no message: {given!r:.200} ({error})") from None
    if message.content is None and message.formatted is None:
        raise ValueError(f"{sender} says nothing to {receiver}: the message needs content")
    return message.model_copy(
        update={
            "content": message.formatted if message.content is None else message.content,
            "sender": sender,
            "receiver": receiver,
            "stream_state": "end",
            "extra": dict(message.extra),
        }
    )


def is_termination(message: AgentMessage) -> bool:
    """Say whether a message ends the conversation by itself, without a predicate of the user's."""
    if message.extra.get(TERMINATE):
        return True
    return isinstance(message.content, str) and message.content.rstrip().endswith(TERMINATE)
