"""The errors of agents, in addition to those of the commander, the backends and the tools.

AnabranchError
    ConversationTooLong     a conversation reached its limit of messages
    InputRefused            a guard refused a message to an agent
    LimitReached            an orchestrator reached a limit of its state
    UnknownAgent            no agent has this name (also a LookupError)
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from ..commander.errors import AnabranchError

__all__ = ["ConversationTooLong", "InputRefused", "Limit", "LimitReached", "UnknownAgent"]

Limit: TypeAlias = Literal["max_errors", "max_steps", "max_transitions"]


class ConversationTooLong(AnabranchError):
    """A conversation reached its limit of messages. Attribute: `limit`.

    It passes through nested conversations to the outermost one, which catches it and ends with
    status "message_limit".
    """

    def __init__(self, limit: int) -> None:
        super().__init__(f"the conversation was stopped after {limit} messages (max_messages)")
        self.limit = limit


class InputRefused(AnabranchError):
    """A guard raises it to refuse a message. Its text is for the person who wrote the message.

        def no_passwords(message: AgentMessage) -> None:
            if "password" in message.text:
                raise InputRefused("Please do not send passwords.")

    `anabranch serve` sends the text to the client. A guard may raise any other exception, too. Then
    clients of a server learn only that the run has failed.
    """


class LimitReached(AnabranchError):
    """An orchestrator reached a limit of its state.

    Attributes: `limit`, the name of the limit, its `value`, and `agent`, the agent that answered
    last.
    """

    def __init__(self, limit: Limit, value: int, agent: str | None, why: str) -> None:
        super().__init__(f"{why} ({limit}={value})")
        self.limit: Limit = limit
        self.value = value
        self.agent = agent


class UnknownAgent(AnabranchError, LookupError):
    """No agent of the directory, the group or the orchestrator has this name. Attribute: `name`."""

    def __init__(self, name: str, known: list[str], where: str = "the directory") -> None:
        names = ", ".join(known) or "no agents"
        super().__init__(f"there is no agent called {name!r} in {where}: it has {names}")
        self.name = name
