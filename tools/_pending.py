"""Questions that wait for a person: a numbered question as a node, and the list of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from typing import Any, Generic, TypeVar

from ..commander import Node, current_node

__all__ = ["Pending", "PendingList"]

T = TypeVar("T")
Q = TypeVar("Q", bound="Pending[Any]")


class Pending(Node[T], internal=True):
    """One question that waits for its answer. `number` names it, `path` shows the node that asks.

    It ends with its tree: cancelling a conversation also ends its questions.
    """

    def __init__(self) -> None:
        self.number = 0  # given by the list
        self._answered: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    async def task(self) -> T:
        """Wait for the answer."""
        return await self._answered

    @property
    def waits(self) -> bool:
        """Whether the question still accepts an answer."""
        return not self._answered.done() and self.state in ("pending", "running")

    def settle(self, answer: T) -> bool:
        """Answer the question; return False if it is already answered."""
        if waits := self.waits:
            self._answered.set_result(answer)
        return waits


class PendingList(Generic[Q]):
    """A list of questions that wait. Any number may wait at once; all belong to one event loop."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._questions: dict[int, Q] = {}
        self._added = asyncio.Event()

    @property
    def pending(self) -> tuple[Q, ...]:
        """The questions that wait, oldest first."""
        return tuple(each for each in self._questions.values() if each.waits)

    def get(self, number: int) -> Q:
        """Return the pending question with this number; raise `KeyError` if there is none."""
        question = self._questions[number]
        if not question.waits:
            raise KeyError(number)
        return question

    async def __aiter__(self) -> AsyncIterator[Q]:
        """Yield each question once, waiting ones first, then new ones; never ends."""
        seen = 0
        while True:
            for question in self.pending:
                if question.number > seen:
                    seen = question.number
                    yield question
            self._added.clear()
            if not any(question.number > seen for question in self.pending):
                await self._added.wait()

    async def wait_for_next(self) -> None:
        """Wait until a question is added."""
        self._added.clear()
        await self._added.wait()

    def put(self, question: Q, timeout: float | None = None) -> Q:
        """Add a question as a child of the current node, which must await it."""
        number = question.number = next(self._numbers)
        question.at_done(lambda _: self._questions.pop(number, None))
        current_node().call_handler(question, timeout=timeout, claim=True)
        self._questions[number] = question
        self._added.set()
        return question
