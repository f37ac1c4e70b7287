"""What waits for a person: a numbered question as a node, and the place where all of them wait."""

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
    """One question that waits for its answer. Its `number` names it, its `path` says who asks.

    It ends with its tree: a question whose conversation is cancelled is no longer pending.
    """

    def __init__(self) -> None:
        self.number = 0  # from the list that it waits in
        self._answered: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    async def task(self) -> T:
        """Wait for the answer."""
        return await self._answered

    @property
    def waits(self) -> bool:
        """Whether an answer would still count."""
        return not self._answered.done() and self.state in ("pending", "running")

    def settle(self, answer: T) -> bool:
        """Answer; False if the question is settled. Subclasses offer it in words of their own."""
        if waits := self.waits:
            self._answered.set_result(answer)
        return waits


class PendingList(Generic[Q]):
    """Where questions wait. Any number may wait at once; all belong to one loop."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._asked: dict[int, Q] = {}
        self._news = asyncio.Event()

    @property
    def pending(self) -> tuple[Q, ...]:
        """The questions that wait, oldest first."""
        return tuple(each for each in self._asked.values() if each.waits)

    def get(self, number: int) -> Q:
        """Return the pending question of this number; raise `KeyError` if there is none."""
        question = self._asked[number]
        if not question.waits:
            raise KeyError(number)
        return question

    async def __aiter__(self) -> AsyncIterator[Q]:
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

    def put(self, question: Q, timeout: float | None = None) -> Q:
        """Let a question wait, as a child of the current node, which is to await it."""
        number = question.number = next(self._numbers)
        question.at_done(lambda _: self._asked.pop(number, None))
        current_node().call_handler(question, timeout=timeout, claim=True)
        self._asked[number] = question
        self._news.set()
        return question
