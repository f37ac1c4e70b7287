"""Whom the person at the terminal talks to, whatever that is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from ...commander import Node
from ...handlers import View
from ...messages import Message

__all__ = ["Partner"]


class Partner(ABC):
    """Answers what a person says, one turn after the other; `name` is what the person sees."""

    name: str

    @abstractmethod
    def answer(self, said: Message | None, view: View) -> Node[Any]:
        """Make the node that answers, which has not started, and shows all of it to `view`.

        None lets the partner go on with the conversation as it stands. The node is cancelled to
        stop the answer; what was said by then is kept.
        """

    def steer(self, said: Message) -> bool:
        """Let the answer under way hear this with its next request; False if it cannot."""
        return False

    def unheard(self) -> list[Message]:
        """Return what `steer` has taken and no request had so far, oldest first."""
        return []

    @abstractmethod
    def messages(self) -> Sequence[Message]:
        """Return the conversation, oldest first: what is kept, exported and copied."""

    def sources(self, answer: object) -> Iterator[str]:
        """Yield a line for each document on which an answer, the result of its node, rests."""
        yield from ()
