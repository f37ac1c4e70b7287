"""What can go wrong among agents, beside the errors of the commander, the backends and the tools.

AnabranchError
    ConversationTooLong     the limit of messages of a whole conversation
    LimitReached            a limit of an orchestrator's state
    UnknownAgent            a name that nobody has (also a LookupError)
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from ..commander.errors import AnabranchError

__all__ = ["ConversationTooLong", "Limit", "LimitReached", "UnknownAgent"]

Limit: TypeAlias = Literal["max_errors", "max_steps", "max_transitions"]


class ConversationTooLong(AnabranchError):
    """A conversation reached the limit of messages that it has. Attribute: `limit`.

    It ends every conversation inside the outermost, which takes it for its end and says so.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(f"the conversation was stopped after {limit} messages (max_messages)")
        self.limit = limit


class LimitReached(AnabranchError):
    """An orchestrator came to a limit of its state.

    Attributes: `limit`, the limit's name, its `value`, and `agent`, who answered last.
    """

    def __init__(self, limit: Limit, value: int, agent: str | None, why: str) -> None:
        super().__init__(f"{why} ({limit}={value})")
        self.limit: Limit = limit
        self.value = value
        self.agent = agent


class UnknownAgent(AnabranchError, LookupError):
    """There is no agent of this name in the directory, or the orchestrator. Attribute: `name`."""

    def __init__(self, name: str, known: list[str], where: str = "the directory") -> None:
        there = ", ".join(known) or "nobody"
        super().__init__(f"there is no agent called {name!r} in {where}: it has {there}")
        self.name = name
