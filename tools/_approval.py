"""Calls that wait for a person's yes, each a node of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from inspect import isawaitable
from itertools import count
from typing import TYPE_CHECKING, Any

from ..commander import Node, current_node
from ..dispatch import ToolCall

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

    def applied_to(self, call: ToolCall) -> ToolCall:
        """Return the call as it is to run."""
        if self.arguments is None:
            return call
        return call.model_copy(update={"arguments": dict(self.arguments), "raw": None})


class Approval(Node[Decision], internal=True):
    """One question that waits for its answer. Its `number` names it, its `path` says who asks.

    It ends with its tree: a question whose conversation is cancelled is no longer pending.
    """

    def __init__(self, number: int, call: ToolCall, tool: AnyTool) -> None:
        self.number = number
        self.call = call
        self.tool = tool
        self._decision: Decision | None = None
        self._answered = asyncio.Event()

    async def task(self) -> Decision:
        """Wait for the answer."""
        await self._answered.wait()
        assert self._decision is not None
        return self._decision

    @property
    def waits(self) -> bool:
        """Whether an answer would still count."""
        return self._decision is None and self.state in ("pending", "running")

    def approve(self, arguments: Mapping[str, Any] | None = None) -> bool:
        """Let the call run, with other arguments if given; False if the question is settled.

        Raises `InvalidArguments` if the tool would not take them; the question then still waits.
        """
        if arguments is not None:
            self.tool.check(arguments)
        return self._settle(Decision(True, arguments))

    def deny(self, reason: str = "") -> bool:
        """Refuse the call, and tell the model why; False if the question is settled."""
        return self._settle(Decision(False, reason=reason))

    def _settle(self, decision: Decision) -> bool:
        if not self.waits:
            return False
        self._decision = decision
        self._answered.set()
        return True


class Approvals:
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
        self.timeout = timeout
        self._on_ask = on_ask
        self._numbers = count(1)
        self._asked: dict[int, Approval] = {}
        self._news = asyncio.Event()

    @property
    def pending(self) -> tuple[Approval, ...]:
        """The questions that wait, oldest first."""
        return tuple(each for each in self._asked.values() if each.waits)

    def get(self, number: int) -> Approval:
        """Return the pending question of this number; raise `KeyError` if there is none."""
        question = self._asked[number]
        if not question.waits:
            raise KeyError(number)
        return question

    async def ask(self, call: ToolCall, tool: AnyTool) -> Decision:
        """Put the question as a child of the current node and wait for what is decided."""
        question = Approval(next(self._numbers), call, tool).at_exception(_too_late)
        question.at_done(lambda _: self._asked.pop(question.number, None))
        current_node().call_handler(question, timeout=self.timeout, claim=True)
        self._asked[question.number] = question
        self._news.set()
        if self._on_ask is not None and isawaitable(told := self._on_ask(question)):
            await told
        return await question

    async def __aiter__(self) -> AsyncIterator[Approval]:
        """Yield each question once, those that wait already and those to come; never ends."""
        seen = 0
        while True:
            for question in self.pending:
                if question.number > seen:
                    seen = question.number
                    yield question
            self._news.clear()
            if not any(question.number > seen for question in self.pending):
                await self._news.wait()


def _too_late(question: Node[Any]) -> None:
    if isinstance(question.error, TimeoutError):
        question.recover(Decision(False, reason="nobody answered in time"))
