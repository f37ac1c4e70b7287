"""One call of an agent that lives elsewhere, as both its ends see it, and what passes between.

While it lasts the agent may ask for those who live where it was called from: whoever called it
looks for them, and passes on what is said to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from ..agents import AgentMessage, Answer
from ..agents.remote import Scope
from ._actor import Outlet
from ._report import Stand

__all__ = ["CALLER", "AtHome", "Caller", "Question", "Share", "Visit"]


@dataclass(frozen=True, slots=True)
class Visit:
    """What is asked of an agent: one of its methods, or what it has under that name.

    `given` are the packed arguments; `said` the limit of messages of the conversation to which it
    belongs, and how many are left, None outside any; `heard` says whether somebody listens to it.
    """

    method: str
    given: bytes
    stand: Stand
    said: tuple[int, int] | None
    heard: bool


@dataclass(frozen=True, slots=True)
class Question:
    """What an agent asks of its caller: "find", or a method of the participant `name` there.

    `spent` is how many messages were said since the caller last heard of it.
    """

    name: str
    method: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    spent: int


class Share:
    """What a visit has taken of its conversation's messages, and not yet told its caller."""

    def __init__(self, scope: Scope | None) -> None:
        self._scope = scope
        self._left = 0 if scope is None else scope.left

    def spent(self) -> int:
        """Return how many messages were said since this was last called."""
        if self._scope is None:
            return 0
        before, self._left = self._left, self._scope.left
        return before - self._left

    def told(self, left: int | None) -> None:
        """Take over what the caller says is left."""
        if self._scope is not None and left is not None:
            self._scope.left += left - self._left
            self._left = left


class Caller:
    """Who called the agent that runs here, as the agent sees it."""

    def __init__(self, outlet: Outlet, share: Share) -> None:
        self._outlet = outlet
        self._share = share

    async def ask(self, name: str, method: str, *args: Any, **kwargs: Any) -> Any:
        """Let the caller call a method of one who is there; "find" gives a handle, or None."""
        question = Question(name, method, args, kwargs, self._share.spent())
        answer, left = await self._outlet.ask(question)
        self._share.told(left)
        return answer


CALLER: ContextVar[Caller | None] = ContextVar("anabranch.cluster.caller", default=None)
"""Who called the agent in whose answer this runs; None where no agent of this process is called."""


class AtHome:
    """A participant who lives where the agent was called from, as long as that call lasts."""

    def __init__(self, name: str, caller: Caller) -> None:
        self.name = name
        self._caller = caller

    async def receive(self, message: AgentMessage, *, request_reply: bool = True) -> Answer:
        """See `Participant`."""
        return await self._caller.ask(self.name, "receive", message, request_reply=request_reply)

    async def begin_chat(self, partner: str, *, clear_history: bool = False) -> None:
        """See `Participant`."""
        await self._caller.ask(self.name, "begin_chat", partner, clear_history=clear_history)
