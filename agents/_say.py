"""What may be said: a text, a message or a mapping becomes an `AgentMessage`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, cast

from ..tools import result_text
from ._message import AgentMessage

__all__ = ["TERMINATE", "Said", "as_message", "is_termination", "text_of"]

TERMINATE = "TERMINATE"
"""At the end of a text, or true in a message's `extra`, it ends a conversation."""

Said: TypeAlias = "str | AgentMessage | Mapping[str, Any]"
"""A text, a message, or a mapping with `content` and perhaps `metadata`, `formatted`, `type`."""

FIELDS = frozenset(("content", "formatted", "metadata", "extra", "type"))


def as_message(said: Said, sender: str, receiver: str) -> AgentMessage:
    """Return what `sender` says to `receiver`; a message is copied, whoever it came from.

    Raises `TypeError` for what is no message, `ValueError` for one that says nothing or has fields
    that no message has.
    """
    if isinstance(said, str):
        said = AgentMessage(content=said)
    elif not isinstance(said, AgentMessage):
        said = _from_mapping(said)
    if said.content is None and said.formatted is None:
        raise ValueError(f"{sender} says nothing to {receiver}: the message needs content")
    return said.model_copy(
        update={
            "content": said.formatted if said.content is None else said.content,
            "sender": sender,
            "receiver": receiver,
            "stream_state": "end",
            "extra": dict(said.extra),
        }
    )


def _from_mapping(said: object) -> AgentMessage:
    if not isinstance(said, Mapping):
        raise TypeError(f"a message is a text, an AgentMessage or a mapping, not {said!r:.200}")
    fields = dict(cast("Mapping[str, Any]", said))
    if unknown := [name for name in fields if name not in FIELDS]:
        raise ValueError(f"a message has no {unknown!r}; it has {sorted(FIELDS)}")
    extra: dict[str, Any] = {}
    try:
        extra |= fields.pop("extra", None) or {}
        extra |= fields.pop("metadata", None) or {}
        return AgentMessage(**fields, extra=extra)
    except (TypeError, ValueError) as error:
        raise ValueError(f"this is no message: {said!r:.200} ({error})") from None


def text_of(message: AgentMessage) -> str:
    """Return what a person, or a model, would read of the message."""
    return result_text(message.content)


def is_termination(message: AgentMessage) -> bool:
    """Say whether a message ends the conversation by itself, without a predicate of the user's."""
    if message.extra.get(TERMINATE):
        return True
    return isinstance(message.content, str) and message.content.rstrip().endswith(TERMINATE)
