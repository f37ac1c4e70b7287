"""Calls that wait for a person's yes, each a node of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, TypeAlias

from ..commander import Node, actor_of, current_node
from ..messages import ToolCall
from ._pending import Pending, PendingList

if TYPE_CHECKING:
    from ._tool import AnyTool

__all__ = ["Approval", "Approvals", "Approve", "Decision", "ToolQuestion", "ask_approval"]


@dataclass(frozen=True, slots=True)
class Decision:
    """What a person decided about a call.

    `arguments`, if given, replace those of the call; `reason` is told to the model with a no.
    """

    approved: bool
    arguments: Mapping[str, Any] | None = None
    reason: str = ""

    @classmethod
    def of(cls, answer: bool | Decision) -> Decision:
        """Read an answer that may be a plain yes or no; raise `TypeError` for what is neither."""
        decision = answer if isinstance(answer, Decision) else cls(answer)
        # The text "no" is true, and so is a coroutine that nobody awaits.
        if not isinstance(decision.approved, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"whether a call may run is True or False, not {decision.approved!r:.200}"
            )
        return decision

    def apply_to(self, call: ToolCall) -> ToolCall:
        """Return the call as it is to run."""
        if self.arguments is None:
            return call
        return call.model_copy(update={"arguments": dict(self.arguments), "raw": None})


@dataclass(frozen=True, slots=True)
class ToolQuestion:
    """Whether a call may run: of which tool, for which agent, and in which of its sessions.

    `agent` is None outside any agent's call, `session_id` also where none was named.
    """

    call: ToolCall
    tool: AnyTool
    agent: str | None = None
    session_id: int | str | None = None


class Approval(Pending[Decision], internal=True):
    """A call that waits for a yes."""

    def __init__(self, call: ToolCall, tool: AnyTool) -> None:
        super().__init__()
        self.call = call
        self.tool = tool

    @property
    def agent(self) -> str | None:
        """The name of the agent that makes the call, None if it is no agent's."""
        actor = actor_of(self)
        return None if actor is None else actor.agent

    @property
    def session_id(self) -> int | str | None:
        """The session in which that agent was asked, None if none was named."""
        actor = actor_of(self)
        return None if actor is None else actor.session_id

    def approve(self, arguments: Mapping[str, Any] | None = None) -> bool:
        """Let the call run, with other arguments if given; False if the question is settled.

        Raises `InvalidArguments` if the tool would not take them; the question then still waits.
        """
        if arguments is not None:
            self.tool.check(arguments)
        return self.settle(Decision(True, arguments))

    def deny(self, reason: str = "") -> bool:
        """Refuse the call, and tell the model why; False if the question is settled."""
        return self.settle(Decision(False, reason=reason))


class Approvals(PendingList[Approval]):
    """Where calls wait for a person's yes, and where an application answers them.

        approvals = Approvals(timeout=300)
        view.approvals = approvals          # or ToolExecutor(..., approvals=approvals)
        async for question in approvals:    # in the application's own task
            show(question.number, question.call)
        ...
        approvals.get(2).approve()          # in any order, whenever the person answers

    Any number may wait at once. `timeout` is in seconds for each; unanswered by then means no.
    `on_ask`, plain or async, is called with each question. All this belongs to one loop: from
    another thread, go through `loop.call_soon_threadsafe`.
    """

    def __init__(
        self,
        *,
        timeout: float | None = None,
        on_ask: Callable[[Approval], Awaitable[object] | object] | None = None,
    ) -> None:
        super().__init__()
        self.timeout = timeout
        self._on_ask = on_ask

    async def ask(self, call: ToolCall, tool: AnyTool) -> Decision:
        """Put the question as a child of the current node and wait for what is decided."""

        def deny_if_late(asked: Node[Any]) -> None:
            if isinstance(asked.error, TimeoutError):
                asked.recover(Decision(False, reason="nobody answered in time"))

        question = self.put(Approval(call, tool).at_exception(deny_if_late), self.timeout)
        if self._on_ask is not None and isawaitable(notice := self._on_ask(question)):
            await notice
        return await question


Approve: TypeAlias = (
    Approvals | Callable[[ToolQuestion], Awaitable[bool | Decision] | bool | Decision]
)
"""Who says whether calls may run: a function, plain or async, or a place where they wait."""


async def ask_approval(approve: Approve, call: ToolCall, tool: AnyTool) -> bool | Decision:
    """Put a call of the current node to `approve`, with the agent and the session it is for."""
    if isinstance(approve, Approvals):
        return await approve.ask(call, tool)
    actor = actor_of(current_node())
    question = ToolQuestion(call, tool)
    if actor is not None:
        question = ToolQuestion(call, tool, actor.agent, actor.session_id)
    answer = approve(question)
    return await answer if isawaitable(answer) else answer
