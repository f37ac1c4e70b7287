"""Approval of tool calls by a person: each question is a node that waits for the decision."""

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
    """A person's decision about a call.

    `arguments`, if given, replace those of the call. The model reads `reason` when the call is
    denied.
    """

    approved: bool
    arguments: Mapping[str, Any] | None = None
    reason: str = ""

    @classmethod
    def of(cls, answer: bool | Decision) -> Decision:
        """Return a `Decision` for a plain yes or no; raise `TypeError` for any other value."""
        decision = answer if isinstance(answer, Decision) else cls(answer)
        # `bool("no")` is True, and so is a coroutine that was not awaited: neither may approve a
        # call.
        if not isinstance(decision.approved, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"a decision must be True, False or a Decision, not {decision.approved!r:.200}"
            )
        return decision

    def apply_to(self, call: ToolCall) -> ToolCall:
        """Return the call with the arguments that the person gave, if any."""
        if self.arguments is None:
            return call
        return call.model_copy(update={"arguments": dict(self.arguments), "raw": None})


@dataclass(frozen=True, slots=True)
class ToolQuestion:
    """The question whether a call may run, as an approval function gets it.

    `agent` is the name of the agent that makes the call, None outside of an agent. `session_id` is
    the session of the nearest call that named one, None if none did. So for an agent below another
    agent it is mostly the session of the user.
    """

    call: ToolCall
    tool: AnyTool
    agent: str | None = None
    session_id: int | str | None = None


class Approval(Pending[Decision], internal=True):
    """A call that waits for approval."""

    def __init__(self, call: ToolCall, tool: AnyTool) -> None:
        super().__init__()
        self.call = call
        self.tool = tool

    @property
    def agent(self) -> str | None:
        """The name of the agent that makes the call, None outside of an agent."""
        actor = actor_of(self)
        return None if actor is None else actor.agent

    @property
    def session_id(self) -> int | str | None:
        """The session of the nearest call of an agent that named one, None if none did."""
        actor = actor_of(self)
        return None if actor is None else actor.session_id

    def approve(self, arguments: Mapping[str, Any] | None = None) -> bool:
        """Run the call, with other arguments if given; return False if it is already decided.

        Raises `InvalidArguments` if the tool refuses the arguments; the question then still waits.
        """
        if arguments is not None:
            self.tool.check(arguments)
        return self.settle(Decision(True, arguments))

    def deny(self, reason: str = "") -> bool:
        """Refuse the call and give the model the reason; return False if it is already decided."""
        return self.settle(Decision(False, reason=reason))


class Approvals(PendingList[Approval]):
    """The calls that wait for approval, and the place where an application answers them.

        approvals = Approvals(timeout=300)
        view.approvals = approvals          # or ToolExecutor(..., approvals=approvals)
        async for question in approvals:    # in the application's own task
            show(question.number, question.call)
        ...
        approvals.get(2).approve()          # in any order, whenever the person answers

    Any number may wait at once. After `timeout` seconds without an answer a call is denied.
    `on_ask`, plain or async, is called with each question. An object belongs to one event loop:
    from another thread, use `loop.call_soon_threadsafe`.
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
        """Put the question as a child of the current node, and return the decision."""

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
"""Decides whether calls may run: a function, plain or async, or `Approvals`."""


async def ask_approval(approve: Approve, call: ToolCall, tool: AnyTool) -> bool | Decision:
    """Ask `approve` about a call of the current node, with the agent and session that make it."""
    if isinstance(approve, Approvals):
        return await approve.ask(call, tool)
    actor = actor_of(current_node())
    question = ToolQuestion(call, tool)
    if actor is not None:
        question = ToolQuestion(call, tool, actor.agent, actor.session_id)
    answer = approve(question)
    return await answer if isawaitable(answer) else answer
