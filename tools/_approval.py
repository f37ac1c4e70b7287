"""Calls that wait for a person's yes, each a node of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from ..commander import Node
from ..messages import ToolCall
from ._pending import Pending, PendingList

if TYPE_CHECKING:
    from ._tool import AnyTool

__all__ = ["Approval", "Approvals", "Decision"]


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
        """Read an answer that may be a plain yes or no."""
        return answer if isinstance(answer, Decision) else cls(answer)

    def apply_to(self, call: ToolCall) -> ToolCall:
        """Return the call as it is to run."""
        if self.arguments is None:
            return call
        return call.model_copy(update={"arguments": dict(self.arguments), "raw": None})


class Approval(Pending[Decision], internal=True):
    """A call that waits for a yes."""

    def __init__(self, call: ToolCall, tool: AnyTool) -> None:
        super().__init__()
        self.call = call
        self.tool = tool

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
