"""The directory: agents reach each other by name, wherever they live."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from ...commander.kinds import require
from ..errors import UnknownAgent
from ..layers import AgentMessage

__all__ = ["Answer", "Directory", "Participant", "Status", "name_of"]

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
