"""Participants of a conversation, their messages, and a directory of them."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, cast, runtime_checkable

from ...commander.kinds import require
from ...commander.other_names import PAIR_ADVICE
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
"""Ends a conversation at the end of a text, or as a key of `extra` with a true value."""

MessageLike: TypeAlias = str | AgentMessage | Mapping[str, Any]
"""A text, a message, or a mapping with `content` and other fields of a message."""

MESSAGE_FIELDS = frozenset(("content", "parts", "output", "metadata", "extra", "type"))


def as_message(given: MessageLike, sender: str, receiver: str) -> AgentMessage:
    """Return a message of `sender` to `receiver`; a given message is copied.

    Raises `TypeError` for another type, `ValueError` for a message without content or with unknown
    fields.
    """
    if isinstance(given, str):
        message = AgentMessage(content=given)
    elif isinstance(given, AgentMessage):
        message = given
    elif not isinstance(given, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(_describe_fault(given))
    else:
        fields = dict(given)
        if unknown := [name for name in fields if name not in MESSAGE_FIELDS]:
            raise ValueError(
                f"a message has no fields {unknown!r}, it may have {sorted(MESSAGE_FIELDS)}"
            )
        extra: dict[str, Any] = {}
        try:
            extra |= fields.pop("extra", None) or {}
            extra |= fields.pop("metadata", None) or {}
            message = AgentMessage(**fields, extra=extra)
        except (TypeError, ValueError) as error:
            raise ValueError(f"cannot make a message of {given!r:.200}: {error}") from None
    if message.content is None and message.output is None:
        raise ValueError(f"the message of {sender} to {receiver} must have content")
    return message.model_copy(
        update={
            "content": message.output if message.content is None else message.content,
            "sender": sender,
            "receiver": receiver,
            "stream_state": "end",
            "extra": dict(message.extra),
        }
    )


def _describe_fault(given: object) -> str:
    advice = ""
    if isinstance(given, tuple) and given and isinstance(cast("Any", given)[0], bool):
        advice = f". {PAIR_ADVICE}"
    return f"a message must be a text, an AgentMessage or a mapping, not {given!r:.200}{advice}"


def is_termination(message: AgentMessage) -> bool:
    """Return whether a message ends the conversation, by `TERMINATE`."""
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
"""Why a message has an answer or none, and why a conversation ended.

- `answered`: there is an answer; `delivered`: no answer was requested
- `no_answer`: the reply function returned None, or no participant had an answer
- `terminated`: a message ended the conversation; `left`: the person left
- `auto_reply_limit`: `max_consecutive_auto_reply` automatic answers; `turn_limit`: `max_turns`
- `message_limit`: `max_messages` of the outermost conversation
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of `receive`: the answer, or None, and the reason."""

    message: AgentMessage | None = None
    status: Status = "answered"


@runtime_checkable
class Participant(Protocol):
    """Anything that can receive messages: an agent, a group, a handle of a remote agent.

    Only messages, answers and names pass between participants, and all of them can be pickled. A
    participant may also have `receive_again`, as agents and groups do. A retry calls it instead of
    `receive`, with the same message, so that the participant does not store the message twice.
    """

    @property
    def name(self) -> str:
        """The name by which others reach it."""
        ...

    def receive(self, message: AgentMessage, *, request_reply: bool = True) -> Awaitable[Answer]:
        """Store a message and, with `request_reply`, answer it.

        The message enters the history before the first `await`, or after the agent's `before_agent`
        hooks. The answer enters the history before it is returned. Both enter the history with the
        partner: the group if `message.receiver` names one, else `message.sender`.
        """
        ...

    def begin_chat(self, partner: str, *, clear_history: bool = False) -> Awaitable[None]:
        """Begin a conversation with `partner`: counters start again.

        With `clear_history` the messages to and from `partner` are forgotten.
        """
        ...


class Directory:
    """Participants by name.

        directory = Directory(alice, bob)
        await alice.initiate_chat("bob", "Hello")  # with Alice(..., directory=directory)

    A subclass whose `find` also finds agents on other machines needs no change in the agents.
    """

    def __init__(self, *participants: Participant) -> None:
        self._participants: dict[str, Participant] = {}
        for participant in participants:
            self.add(participant)

    def add(self, participant: Participant) -> None:
        """Add a participant; a repetition is harmless. Raises `ValueError` if the name is taken."""
        require(participant, Participant, "each entry of a directory must be a Participant")
        if self._participants.setdefault(participant.name, participant) is not participant:
            raise ValueError(f"there are two agents called {participant.name!r} in the directory")

    def remove(self, name: str) -> None:
        """Remove a name; an unknown name is harmless."""
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
    """Return the name of a participant; a name is returned unchanged."""
    if isinstance(partner, str):
        return partner
    require(partner, Participant, "a partner must be a participant or a name")
    return partner.name
