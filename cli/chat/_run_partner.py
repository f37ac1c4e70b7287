"""`RunPartner`: whoever answers by a run that keeps a log, here or on a server."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from ...commander import AnabranchError, ConfigurationError, Node
from ...handlers import View, handler
from ...messages import Message
from ._partner import Partner
from ._telling import Telling

__all__ = ["Questions", "Refused", "RunPartner"]


class Refused(AnabranchError):
    """What was said is not taken, and is no part of the conversation; the message says why."""


class RunPartner(Partner):
    """Answers by one run for each turn, and keeps what was said by both.

    With `raw` a result that is JSON is shown as it is, and not as a table.
    """

    def __init__(self, name: str, *, raw: bool = False) -> None:
        self.name = name
        self._raw = raw
        self._messages: list[Message] = []

    def messages(self) -> Sequence[Message]:
        """Return what the person has said and the answers, also those that broke off."""
        return tuple(self._messages)

    def answer(self, said: Message | None, view: View) -> Node[Message]:
        """Make the node that answers; its result is the answer. What is said is kept at once.

        With None, what the person has said last is asked again, and its answer forgotten. A message
        that is not taken is forgotten too (`Refused`).
        """
        if said is not None:
            self._messages.append(said)
        return self._answer(view, again=said is None)

    @abstractmethod
    async def converse(self, node: Node[Any], telling: Telling) -> str:
        """Let it answer, and tell all of it; return the finish reason; raise why there is none.

        `Refused` only before anything is told.
        """

    @handler
    async def _answer(self, node: Node[Any], view: View, *, again: bool) -> Message:
        while again and self._messages and self._messages[-1].role != "user":
            self._messages.pop()
        if not self._messages:
            raise ConfigurationError("nothing has been said yet")
        telling = Telling(view, self.name, raw=self._raw)
        answer = Message(role="assistant", content="")
        try:
            answer.finish_reason = await self.converse(node, telling)
        except Refused:
            self._messages.pop()  # else it would be refused with all that follows
            raise
        finally:
            telling.end()
            answer.content, answer.reasoning = telling.text, telling.reasoning
            if telling.text or telling.reasoning:
                self._messages.append(answer)
        return answer


class Questions:
    """Calls that wait for the person's yes while what is said goes on, each below `node`."""

    def __init__(self, node: Node[Any]) -> None:
        self._node = node
        self._open: dict[int, Node[Any]] = {}

    def put(self, number: int, question: Node[Any]) -> None:
        """Ask; what was asked under this number before is settled."""
        self.settle(number)
        self._open[number] = self._node.call_handler(question)

    def settle(self, number: int) -> None:
        """Ask no more, as it is answered elsewhere."""
        if (question := self._open.pop(number, None)) is not None:
            question.cancel("it is settled")

    def close(self) -> None:
        """Ask nothing any more."""
        for number in [*self._open]:
            self.settle(number)
