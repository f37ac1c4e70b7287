"""What takes part in a conversation: participants, their messages, and a directory of them."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from ...commander.kinds import require
from ..errors import UnknownAgent
from ..layers import AgentMessage

__all__ = [
    "TERMINATE",
    "Answer",
    "Directory",
    "MessageLike",
    "Participant",
    "Status",
    "as_message",
    "is_termination",
    "name_of",
]

TERMINATE = "TERMINATE"
"""At the end of a text, or true in a message's `extra`, it ends a conversation."""

MessageLike: TypeAlias = str | AgentMessage | Mapping[str, Any]
"""A text, a message, or a mapping with `content`, and more of what a message has."""

FIELDS = frozenset(("content", "parts", "formatted", "metadata", "extra", "type"))


def as_message(given: MessageLike, sender: str, receiver: str) -> AgentMessage:
    """Return a message of `sender` to `receiver`; a message is copied, whoever sent it.

    Raises `TypeError` for anything else, `ValueError` for a message without content or with unknown
    fields.
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
    """Return whether a message ends the conversation, without a predicate of the user's."""
    if message.extra.get(TERMINATE):
        return True
    return isinstance(message.content, str) and message.content.rstrip().endswith(TERMINATE)


Status: TypeAlias = Literal[
    "answered",
    "delivered",
    "no_answer",
    "terminated",
    "left",
    "auto_reply_limit",
    "turn_limit",
    "message_limit",
]
"""How a message was received, and how a conversation ended.

`answered`: there is an answer. `delivered`: none was asked for. `no_answer`: a reply function was
done without one, or nobody had any. `terminated`: the message ended the conversation. `left`: the
person left. `auto_reply_limit`: `max_consecutive_auto_reply` was reached; `turn_limit`: the number
of answers that was asked for; `message_limit`: the limit of messages that every conversation has.
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a message: the answer, None if there is none, and why."""

    message: AgentMessage | None = None
    status: Status = "answered"


@runtime_checkable
class Participant(Protocol):
    """Anything that can receive a message: an agent here, a group, a handle of an agent elsewhere.

    Messages, answers and names are all that passes between participants, and all can be pickled.
    One that also has `receive_again`, as agents and groups have, is given a message by that which
    it has received in a failed attempt, and does not hear it twice.
    """

    @property
    def name(self) -> str:
        """The name by which others reach it."""
        ...

    def receive(self, message: AgentMessage, *, request_reply: bool = True) -> Awaitable[Answer]:
        """Take a message and, if asked to, answer it.

        The message is part of the participant's history from the first moment on, or once it has
        passed the `before_agent` hooks of an agent that has some; the answer is before it is
        returned. The partner is `message.receiver` if that is a group's name, else
        `message.sender`.
        """
        ...

    def begin_chat(self, partner: str, *, clear_history: bool = False) -> Awaitable[None]:
        """Take note that a conversation with `partner` begins: counters start again.

        With `clear_history` what was said to and by `partner` before is forgotten.
        """
        ...


class Directory:
    """Participants by name.

    A subclass whose `find` looks further (agents on other machines) needs no change in the agents.
    """

    def __init__(self, *participants: Participant) -> None:
        self._participants: dict[str, Participant] = {}
        for participant in participants:
            self.add(participant)

    def add(self, participant: Participant) -> None:
        """Enter a participant; twice is harmless. Raises `ValueError` if another has its name."""
        require(participant, Participant, "a directory must be of participants")
        if self._participants.setdefault(participant.name, participant) is not participant:
            raise ValueError(f"there are two agents called {participant.name!r} in the directory")

    def remove(self, name: str) -> None:
        """Take a name out; one that is not there is harmless."""
        self._participants.pop(name, None)

    async def find(self, name: str) -> Participant:
        """Return the participant of this name; raise `UnknownAgent` if there is none."""
        try:
            return self._participants[name]
        except KeyError:
            raise UnknownAgent(name, [*self._participants]) from None

    def __contains__(self, name: str) -> bool:
        return name in self._participants

    def __iter__(self) -> Iterator[str]:
        return iter(self._participants)


def name_of(partner: Participant | str) -> str:
    """Return the name of a participant, or the name itself."""
    if isinstance(partner, str):
        return partner
    require(partner, Participant, "a partner must be a participant or a name")
    return partner.name
